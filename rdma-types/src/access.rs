//! Access rights to memory.

bitflags::bitflags! {
    /// Access rights to a memory region or a memory window. The numbers are those of DAT's `DAT_MEM_PRIV_FLAGS`.
    ///
    /// Unknown bits are kept (`from_bits_retain`), so that a later check can refuse them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Local requests may read the memory.
        const LOCAL_READ = 0x01;
        /// Peers may read the memory by RDMA Read.
        const REMOTE_READ = 0x02;
        /// Local requests may write it.
        const LOCAL_WRITE = 0x10;
        /// Peers may write the memory by RDMA Write.
        const REMOTE_WRITE = 0x20;
    }
}

impl Access {
    /// Right to a region: peers may run atomic operations on it. DAT 1.2 has no such privilege; the number is that
    /// of DAT 2.0's extension for InfiniBand (`DAT_IB_MEM_PRIV_REMOTE_ATOMIC`). [`Access::all`] does not contain it.
    pub const REMOTE_ATOMIC: Self = Self::from_bits_retain(0x40);
    /// Right to a window: a peer may unbind the window by a Send with invalidate. [`Access::all`] does not contain it.
    pub const REMOTE_INVALIDATE: Self = Self::from_bits_retain(0x80);
    /// All rights that peers may have to the memory's bytes.
    pub const REMOTE: Self = Self::REMOTE_READ
        .union(Self::REMOTE_WRITE)
        .union(Self::REMOTE_ATOMIC);
}

impl serde::Serialize for Access {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(self.bits())
    }
}

impl<'de> serde::Deserialize<'de> for Access {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        serde::Deserialize::deserialize(from).map(Self::from_bits_retain)
    }
}
