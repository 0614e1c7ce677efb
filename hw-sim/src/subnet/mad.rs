//! Parts that all management datagrams share: versions, status codes, blocks of tables (IBTA volume 1, section 13.4).

use mlx_prm::{MadMethod, Smp};

/// `base_version` and `class_version` of every class here.
pub const BASE_VERSION: u8 = 1;
pub const CLASS_VERSION: u8 = 1;
/// Bytes of a management datagram.
pub const MAD_BYTES: usize = 256;
/// Bytes of an attribute in a subnet management packet.
pub const DATA_BYTES: usize = 64;
/// Vendor of ConnectX, as NodeInfo and QUERY_ADAPTER name it.
pub const IEEE_MELLANOX: u32 = 0x0002c9;

/// Invalid field codes, in bits 4:2 of a MAD's status (IBTA volume 1, table "MAD Common Status Field Bit Values").
pub const BAD_VERSION: Status = Status(1 << 2);
pub const METHOD_NOT_SUPPORTED: Status = Status(2 << 2);
pub const ATTRIBUTE_NOT_SUPPORTED: Status = Status(3 << 2);
pub const INVALID_VALUE: Status = Status(7 << 2);

/// Status that refuses a management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u16);

/// An attribute of subnet management.
pub type Data = [u8; DATA_BYTES];

/// An attribute, or the reason for which there is none.
pub type Answer = Result<Data, Status>;

/// Methods that agents know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Set,
}

impl Method {
    /// Returns the method of a datagram, after a check of its versions.
    pub fn of(base_version: u8, class_version: u8, method: u8) -> Result<Self, Status> {
        if (base_version, class_version) != (BASE_VERSION, CLASS_VERSION) {
            return Err(BAD_VERSION);
        }
        match MadMethod(method) {
            MadMethod::GET => Ok(Self::Get),
            MadMethod::SET => Ok(Self::Set),
            _ => Err(METHOD_NOT_SUPPORTED),
        }
    }

    /// Refuses a Set of an attribute that has only a Get.
    pub fn only_get(self) -> Result<(), Status> {
        match self {
            Self::Get => Ok(()),
            // IBTA volume 1, section 13.4.7: the combination of method and attribute is not supported.
            Self::Set => Err(ATTRIBUTE_NOT_SUPPORTED),
        }
    }
}

/// Returns the answer to a subnet management packet. The caller sets its direction bit.
pub fn answered(request: &Smp, answer: Answer) -> Smp {
    let mut smp = request.clone();
    smp.set_method(MadMethod::GET_RESP.0);
    match answer {
        Ok(data) => smp.set_status(0).set_data(&data),
        Err(Status(status)) => smp.set_status(status),
    };
    smp
}

/// A block of a table of 16-bit or wider entries.
pub fn block<T>(table: &[T], block: usize, entries: usize) -> Result<&[T], Status> {
    table.chunks(entries).nth(block).ok_or(INVALID_VALUE)
}

/// A block of a table, to change it.
pub fn block_mut<T>(table: &mut [T], block: usize, entries: usize) -> Result<&mut [T], Status> {
    table.chunks_mut(entries).nth(block).ok_or(INVALID_VALUE)
}

/// A block of 16-bit entries, as an attribute.
pub fn of_words(entries: &[u16]) -> Data {
    let mut data = [0; DATA_BYTES];
    for (place, entry) in data.chunks_exact_mut(2).zip(entries) {
        place.copy_from_slice(&entry.to_be_bytes());
    }
    data
}

/// The 16-bit entries of an attribute.
pub fn words(data: &Data) -> impl Iterator<Item = u16> {
    data.chunks_exact(2)
        .map(|word| u16::from_be_bytes([word[0], word[1]]))
}
