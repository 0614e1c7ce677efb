//! SGL descriptors (Base specification, "Scatter Gather List"; RDMA transport, figures 9 and 10).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Status;

/// A descriptor in a command: 16 bytes, the last of which is the type.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Sgl {
    /// Address of the data, or offset of the data in the capsule.
    pub address: U64,
    /// In a keyed descriptor: 24 bits of length, then the low 8 bits of the key. Otherwise 32 bits of length.
    low: U32,
    /// In a keyed descriptor: the high 24 bits of the key, then the type. Otherwise the type in the top byte.
    high: U32,
}

static_assertions::const_assert_eq!(size_of::<Sgl>(), 16);

/// Type of a keyed data block. The subtype is an address (0), or an address with a key that the controller must
/// invalidate (Fh).
const KEYED: u8 = 0x40;
const KEYED_INVALIDATE: u8 = 0x4f;
/// Type of a data block whose address is an offset in the capsule.
const IN_CAPSULE: u8 = 0x01;

/// Location of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// The command has no data.
    None,
    /// In the host's memory.
    Remote {
        /// Address within the memory of the key.
        address: u64,
        /// Number of bytes: less than 16 MiB.
        bytes: u32,
        /// Remote key.
        key: u32,
        /// True if the response must invalidate the host's key (Send with Invalidate).
        invalidate: bool,
    },
    /// In the capsule, after the command.
    Capsule {
        /// Offset from the end of the command, in bytes.
        offset: u64,
        /// Number of bytes.
        bytes: u32,
    },
}

impl Data {
    /// Returns the number of bytes.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Remote { bytes, .. } | Self::Capsule { bytes, .. } => bytes,
        }
    }
}

impl Sgl {
    /// Returns type and subtype: the descriptor's last byte.
    #[inline]
    #[must_use]
    pub const fn kind(&self) -> u8 {
        (self.high.get() >> 24) as u8 // CAST: eight bits are left.
    }

    /// Returns the location of the data.
    ///
    /// # Errors
    /// The type or subtype does not exist on an RDMA transport, or this target does not support it.
    #[inline]
    pub const fn data(&self) -> Result<Data, Status> {
        let kind = self.kind();
        match kind {
            KEYED | KEYED_INVALIDATE => {
                let bytes = self.low.get() & 0x00ff_ffff;
                if bytes == 0 {
                    return Ok(Data::None);
                }
                Ok(Data::Remote {
                    address: self.address.get(),
                    bytes,
                    key: self.low.get() >> 24 | self.high.get() << 8,
                    invalidate: kind == KEYED_INVALIDATE,
                })
            }
            IN_CAPSULE => Ok(Data::Capsule {
                offset: self.address.get(),
                bytes: self.low.get(),
            }),
            _ => Err(Status::SGL_TYPE.dnr()),
        }
    }

    /// Returns a keyed descriptor, as a host sends it.
    #[must_use]
    pub fn keyed(address: u64, bytes: u32, key: u32, invalidate: bool) -> Self {
        let kind = if invalidate { KEYED_INVALIDATE } else { KEYED };
        Self {
            address: address.into(),
            low: (bytes & 0x00ff_ffff | key << 24).into(),
            high: (key >> 8 | u32::from(kind) << 24).into(),
        }
    }

    /// Returns a descriptor of in-capsule data, as a host sends it.
    #[must_use]
    pub fn in_capsule(bytes: u32) -> Self {
        Self {
            address: 0.into(),
            low: bytes.into(),
            high: (u32::from(IN_CAPSULE) << 24).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A keyed descriptor has its key across two words: figures 9 and 10 of the RDMA transport lay out the field "SGL
    /// Descriptor 1" as address, 24 bits of length, key, type.
    #[test]
    fn a_keyed_descriptor_has_its_key_across_the_words() {
        let bytes = [
            0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, // address
            0x00, 0x10, 0x02, // length
            0xef, 0xbe, 0xad, 0xde, // key
            0x4f,
        ];
        let sgl = Sgl::read_from_bytes(&bytes).expect("16 bytes");
        let data = Data::Remote {
            address: 0x1122_3344_5566_7788,
            bytes: 0x0002_1000,
            key: 0xdead_beef,
            invalidate: true,
        };
        assert_eq!(sgl.data(), Ok(data));
        let made = Sgl::keyed(0x1122_3344_5566_7788, 0x0002_1000, 0xdead_beef, true);
        assert_eq!(made.as_bytes(), bytes);
    }

    #[test]
    fn a_keyed_descriptor_of_no_bytes_is_no_data_and_other_types_are_refused() {
        assert_eq!(Sgl::keyed(0, 0, 0, false).data(), Ok(Data::None));
        for kind in [0x00, 0x02, 0x10, 0x20, 0x30, 0x31, 0x41, 0x5a, 0xff] {
            let mut bytes = [0; 16];
            bytes[15] = kind;
            let sgl = Sgl::read_from_bytes(&bytes).expect("16 bytes");
            assert_eq!(sgl.data(), Err(Status::SGL_TYPE.dnr()), "{kind:#04x}");
        }
    }
}
