//! Parts that all management datagrams have in common: versions, status codes, blocks of tables (IBTA volume 1, section
//! 13.4).

use mlx_prm::{MadMethod, Smp};

/// `base_version` and `class_version` of every simulated class.
pub const BASE_VERSION: u8 = 1;
pub const CLASS_VERSION: u8 = 1;
/// Size of a management datagram in bytes.
pub const MAD_BYTES: usize = 256;
/// Size in bytes of an attribute in a subnet management packet.
pub const DATA_BYTES: usize = 64;
/// IEEE vendor ID of ConnectX, which NodeInfo and QUERY_ADAPTER report.
pub const IEEE_MELLANOX: u32 = 0x0002c9;

/// Invalid field codes, in bits 4:2 of a MAD's status (IBTA volume 1, table "MAD Common Status Field Bit Values").
pub const BAD_VERSION: Status = Status(1 << 2);
pub const METHOD_NOT_SUPPORTED: Status = Status(2 << 2);
pub const ATTRIBUTE_NOT_SUPPORTED: Status = Status(3 << 2);
pub const INVALID_VALUE: Status = Status(7 << 2);

/// Status with which an agent refuses a management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u16);

/// Bytes of a subnet management attribute.
pub type Data = [u8; DATA_BYTES];

/// An attribute, or the status with which the request is refused.
pub type Answer = Result<Data, Status>;

/// Methods that the agents support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Set,
}

impl Method {
    /// Checks the versions of a datagram and returns its method.
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

    /// Refuses a Set of an attribute that supports only Get.
    pub fn only_get(self) -> Result<(), Status> {
        match self {
            Self::Get => Ok(()),
            // IBTA volume 1, section 13.4.7: this status reports an unsupported combination of method and attribute.
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

/// Returns block number `block` of a table, in blocks of `entries` entries.
pub fn block<T>(table: &[T], block: usize, entries: usize) -> Result<&[T], Status> {
    table.chunks(entries).nth(block).ok_or(INVALID_VALUE)
}

/// Returns block number `block` of a table for modification, in blocks of `entries` entries.
pub fn block_mut<T>(table: &mut [T], block: usize, entries: usize) -> Result<&mut [T], Status> {
    table.chunks_mut(entries).nth(block).ok_or(INVALID_VALUE)
}

/// Returns 16-bit entries as an attribute, in big-endian order.
pub fn of_words(entries: &[u16]) -> Data {
    let mut data = [0; DATA_BYTES];
    for (place, entry) in data.chunks_exact_mut(2).zip(entries) {
        place.copy_from_slice(&entry.to_be_bytes());
    }
    data
}

/// Returns the 16-bit entries of an attribute.
pub fn words(data: &Data) -> impl Iterator<Item = u16> {
    data.chunks_exact(2)
        .map(|word| u16::from_be_bytes([word[0], word[1]]))
}
