//! Handles: the consumer's identifiers for objects of an IA.
//!
//! Every object is an entry in a table of its [`Ia`](crate::Ia). A handle holds the index of the entry, the entry's
//! generation, and the number of the IA. So a freed handle, or one of another IA, is recognised and refused with
//! DAT_INVALID_HANDLE. A handle refers to a wrong object in one case: its IA is closed, and the process has adopted an
//! IA that has the same number, from another process. Handles are small and `Copy`. There is no null handle; use
//! `Option`.

use slotmap::Key;

/// A handle of one kind of object.
pub(crate) trait Handle: Copy + core::fmt::Debug {
    /// Key of the object in its table.
    type Key: Key;
    /// Makes the handle of an object of an IA.
    fn new(key: Self::Key, ia: u32) -> Self;
    /// Returns the key of the object if it is one of this IA.
    fn of(self, ia: u32) -> Option<Self::Key>;
}

macro_rules! handles {
    ($($(#[$meta:meta])* $handle:ident over $key:ident;)*) => {
        slotmap::new_key_type! {
            $(pub(crate) struct $key;)*
        }
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, PartialEq, Eq, Hash)]
            pub struct $handle {
                pub(crate) key: $key,
                pub(crate) ia: u32,
            }

            impl $handle {
                /// Returns the handle as two numbers, for tables that keep handles of all kinds: the index with its
                /// generation, and the number of the IA.
                #[inline]
                #[must_use]
                pub fn to_raw(self) -> (u64, u32) {
                    (self.key.data().as_ffi(), self.ia)
                }

                /// Makes a handle from the two numbers of `to_raw`. Numbers that came from no handle make a handle that
                /// refers to no object, or by chance to an object of this kind. No IA has the number 0.
                #[inline]
                #[must_use]
                pub fn from_raw(key: u64, ia: u32) -> Self {
                    let key = slotmap::KeyData::from_ffi(key).into();
                    Self { key, ia }
                }
            }

            impl Handle for $handle {
                type Key = $key;

                fn new(key: $key, ia: u32) -> Self {
                    Self { key, ia }
                }

                fn of(self, ia: u32) -> Option<$key> {
                    (self.ia == ia).then_some(self.key)
                }
            }

            impl serde::Serialize for $handle {
                fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                    self.to_raw().serialize(to)
                }
            }

            impl<'de> serde::Deserialize<'de> for $handle {
                fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                    let (key, ia) = serde::Deserialize::deserialize(from)?;
                    Ok(Self::from_raw(key, ia))
                }
            }

            impl core::fmt::Debug for $handle {
                fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                    let bits = self.key.data().as_ffi();
                    write!(f, concat!(stringify!($handle), "({}:{}v{})"), self.ia, bits & 0xffff_ffff, bits >> 32)
                }
            }
        )*
    };
}

handles! {
    /// Handle of a Protection Zone.
    PzHandle over PzKey;
    /// Handle of a Local Memory Region.
    LmrHandle over LmrKey;
    /// Handle of a Remote Memory Region.
    RmrHandle over RmrKey;
    /// Handle of an Event Dispatcher.
    EvdHandle over EvdKey;
    /// Handle of an Endpoint.
    EpHandle over EpKey;
    /// Handle of a Shared Receive Queue.
    SrqHandle over SrqKey;
    /// Handle of a Public Service Point.
    PspHandle over PspKey;
    /// Handle of a Connection Request.
    CrHandle over CrKey;
    /// Handle of a Consumer Notification Object.
    CnoHandle over CnoKey;
    /// Handle of a Reserved Service Point.
    RspHandle over RspKey;
}

/// Returns the table index of a key. Providers get the index of an endpoint, EVD or SRQ as `owner`. Checks of posts
/// compare the indices of PZs.
pub(crate) fn index_of(key: impl Key) -> u32 {
    // CAST: slotmap keeps the index in the low half of the 64 bits.
    (key.data().as_ffi() & 0xffff_ffff) as u32
}

/// Kind of the object that a handle refers to (`DAT_HANDLE_TYPE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum HandleType {
    /// A connection request.
    Cr = 0,
    /// An endpoint.
    Ep = 1,
    /// An event dispatcher.
    Evd = 2,
    /// An interface adapter.
    Ia = 3,
    /// A local memory region.
    Lmr = 4,
    /// A public service point.
    Psp = 5,
    /// A protection zone.
    Pz = 6,
    /// A remote memory region.
    Rmr = 7,
    /// A reserved service point.
    Rsp = 8,
    /// A consumer notification object.
    Cno = 9,
    /// A shared receive queue.
    Srq = 10,
}

macro_rules! any_handle {
    ($($(#[$meta:meta])* $variant:ident($handle:ident),)*) => {
        /// A handle of any kind (`DAT_HANDLE`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub enum AnyHandle {
            /// The IA that the call is made on.
            Ia,
            $($(#[$meta])* $variant($handle),)*
        }

        $(impl From<$handle> for AnyHandle {
            fn from(handle: $handle) -> Self {
                Self::$variant(handle)
            }
        })*

        impl AnyHandle {
            /// Returns the kind of the object.
            #[must_use]
            pub const fn handle_type(self) -> HandleType {
                match self {
                    Self::Ia => HandleType::Ia,
                    $(Self::$variant(_) => HandleType::$variant,)*
                }
            }

            /// Returns a number by which handles of one IA can be sorted.
            pub(crate) fn order(self) -> (u32, u64) {
                let key = match self {
                    Self::Ia => 0,
                    $(Self::$variant(handle) => handle.to_raw().0,)*
                };
                (self.handle_type() as u32, key) // CAST: the numbers of the header.
            }
        }
    };
}

any_handle! {
    /// A connection request.
    Cr(CrHandle),
    /// An endpoint.
    Ep(EpHandle),
    /// An event dispatcher.
    Evd(EvdHandle),
    /// A local memory region.
    Lmr(LmrHandle),
    /// A public service point.
    Psp(PspHandle),
    /// A protection zone.
    Pz(PzHandle),
    /// A remote memory region.
    Rmr(RmrHandle),
    /// A reserved service point.
    Rsp(RspHandle),
    /// A consumer notification object.
    Cno(CnoHandle),
    /// A shared receive queue.
    Srq(SrqHandle),
}
