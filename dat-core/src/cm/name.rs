//! Identifiers of connections: ours, and the peers'.

use slotmap::{Key, KeyData};

slotmap::new_key_type! {
    /// Identifier of a connection.
    pub struct ConnId;
    /// Identifier of a listener.
    pub struct ListenId;
}

macro_rules! raw {
    ($name:ident) => {
        impl $name {
            /// Returns the identifier as a number, for a snapshot.
            #[must_use]
            pub fn to_raw(self) -> u64 {
                self.data().as_ffi()
            }

            /// Makes an identifier from the number of `to_raw`. Another number makes an identifier that may name
            /// nothing.
            #[must_use]
            pub fn from_raw(number: u64) -> Self {
                KeyData::from_ffi(number).into()
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_u64(self.to_raw())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                serde::Deserialize::deserialize(from).map(Self::from_raw)
            }
        }
    };
}

raw!(ConnId);
raw!(ListenId);

/// A communication ID or a queue pair number of a peer. The sender may claim any GUID and number, so they identify an
/// object only together with the address they came from. A number of one peer never matches that of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PeerName<N> {
    pub(super) gid: [u8; 16],
    pub(super) ca_guid: u64,
    pub(super) number: N,
}
