//! The interface of a queue pair to its function.
//!
//! A [`crate::qp::Qp`] owns no memory, no keys, no completion queues, no port and no clock. All of them belong to the
//! function. The queue pair reads and changes them through the `&mut dyn Host` argument of each call. So a queue pair
//! can be tested alone, with a host that keeps all of this in vectors, and no code in it can block.
//!
//! A host acts at once: when the method returns, the read or write has happened, the frame is queued on the port,
//! the CQE is in the ring. There are two kinds of errors: the IOMMU refused an address ([`DmaFault`]), or a key did
//! not cover an access ([`KeyError`]).

pub use crate::iommu::DmaFault;
use crate::profile::Habits;
use crate::q_counters::QCounter;
use crate::wire::Outline;
use mlx_prm::{Cqe64, DataSeg, EventType};
use thiserror::Error;

/// Services that the function provides to a queue pair.
pub trait Host {
    /// Returns virtual time in nanoseconds.
    fn now(&self) -> u64;

    /// Reads queue memory or a doorbell record at a DMA address, without a key.
    ///
    /// # Errors
    /// [`DmaFault`]: part of the range is not mapped, or the function is no bus master.
    fn dma_read(&mut self, iova: u64, out: &mut [u8]) -> Result<(), DmaFault>;

    /// Writes queue memory or a doorbell record at a DMA address, without a key.
    ///
    /// # Errors
    /// [`DmaFault`], as for reading; or part of the range is mapped read-only.
    fn dma_write(&mut self, iova: u64, data: &[u8]) -> Result<(), DmaFault>;

    /// Reads data through a key. Checks existence, variant, free state, PD, QPN, access and range, then does the DMA.
    ///
    /// # Errors
    /// [`KeyError`]: the first check that fails, or the DMA that follows the checks.
    fn key_read(
        &mut self,
        key: u32,
        scope: KeyScope,
        va: u64,
        out: &mut [u8],
    ) -> Result<(), KeyError>;

    /// Writes data through a key, with the checks of [`Host::key_read`].
    ///
    /// # Errors
    /// [`KeyError`], as [`Host::key_read`].
    fn key_write(
        &mut self,
        key: u32,
        scope: KeyScope,
        va: u64,
        data: &[u8],
    ) -> Result<(), KeyError>;

    /// Makes the checks of [`Host::key_read`] and [`Host::key_write`] for a whole range, without a DMA.
    ///
    /// # Errors
    /// [`KeyError`], as [`Host::key_read`], except for the DMA.
    fn key_check(
        &mut self,
        key: u32,
        scope: KeyScope,
        va: u64,
        bytes: u64,
        write: bool,
    ) -> Result<(), KeyError>;

    /// Writes a CQE. The completion queue handles owner bit, wrap, overrun and arming, and ignores the owner bit of
    /// `cqe.op_own`. `solicited` satisfies an arm for solicited entries.
    fn complete(&mut self, cqn: u32, cqe: Cqe64, solicited: bool);

    /// Writes a CQE of 128 bytes. `first` is the half before the 64-byte CQE.
    fn complete_wide(&mut self, cqn: u32, first: [u8; 64], cqe: Cqe64, solicited: bool);

    /// Raises an asynchronous event that names the queue pair `qpn`.
    fn qp_event(&mut self, event: EventType, qpn: u32);

    /// Takes the next WQE of a shared receive queue, if there is one. Sends the limit event if the limit is reached.
    ///
    /// # Errors
    /// [`DmaFault`]: the queue's doorbell record or its next WQE cannot be read.
    fn srq_take(&mut self, srqn: u32) -> Result<Option<SrqWqe>, DmaFault>;

    /// Returns the XRC SRQ with this number.
    fn xrc_srq(&self, srqn: u32) -> Option<XrcTarget> {
        let _ = srqn;
        None
    }

    /// Returns a buffer of `bytes` bytes with arbitrary contents.
    fn buffer(&mut self, bytes: usize) -> Vec<u8> {
        vec![0; bytes]
    }

    /// Returns whether frames must carry their ICRC, because something may read it.
    fn seals(&self) -> bool {
        true
    }

    /// Returns the number of bytes that queue pairs have sent so far. Those of other functions may be included.
    fn sent_bytes(&self) -> u64 {
        0
    }

    /// Sends a whole Ethernet frame (without FCS) on this function's port.
    fn transmit(&mut self, frame: Vec<u8>);

    /// Sends a frame of which only the payload is filled in. The headers are written from `outline`.
    fn transmit_outlined(&mut self, outline: &Outline, mut frame: Vec<u8>) {
        outline.write(&mut frame, self.seals());
        self.transmit(frame);
    }

    /// Returns the entry of the port's GID table at `index`, if the entry is set. On InfiniBand only the entry's GID
    /// has a meaning.
    fn gid(&self, index: u8) -> Option<GidEntry>;

    /// Returns a number that changes whenever a result of [`Host::gid`] or [`Host::lid`] may change; `None` if
    /// changes are not counted.
    fn addresses(&self) -> Option<u64> {
        None
    }

    /// Returns the LID of an InfiniBand port; `None` on Ethernet.
    fn lid(&self) -> Option<u16> {
        None
    }

    /// Returns the CQE version of the function. Version 1 has the user index in the field of version 0's SRQ number.
    fn cqe_version(&self) -> u8;

    /// Increments a counter of a counter set (QPC `counter_set_id`; 0 is the default set).
    fn count(&mut self, set: u32, what: QCounter) {
        let _ = (set, what);
    }

    /// Reports that the driver violated a rule of the PRM. The report is logged and never fatal.
    fn driver_bug(&mut self, what: String);

    /// Returns the next number of the simulator's seeded random stream.
    fn random(&mut self) -> u64;

    /// Executes a UMR work request, which changes the context of an existing key.
    ///
    /// # Errors
    /// [`KeyError`]: this change of the key is not permitted; [`KeyError::Unsupported`] if the function has no UMR.
    fn umr(&mut self, request: UmrRequest<'_>) -> Result<(), KeyError> {
        let _ = request;
        Err(KeyError::Unsupported)
    }

    /// Returns this device's variants of the behaviours that differ between devices.
    fn habits(&self) -> Habits {
        Habits::default()
    }

    /// Returns whether a WQE that follows a UMR needs no fence (PRM, `umr_fence` 2).
    fn umr_keeps_order(&self) -> bool {
        false
    }

    /// Returns whether requesters retransmit before the ACK timeout of their queue pair: RoCE adaptive
    /// retransmission, which is on with the capability `roce_accl`.
    fn retransmits_early(&self) -> bool {
        false
    }

    /// Frees a key on behalf of a peer's SEND with Invalidate.
    ///
    /// # Errors
    /// [`KeyError`]: the queue pair may not use the key, or a peer may not invalidate it; [`KeyError::Unsupported`]
    /// if the function has no UMR.
    fn invalidate(&mut self, key: u32, scope: KeyScope) -> Result<(), KeyError> {
        let _ = (key, scope);
        Err(KeyError::Unsupported)
    }

    /// Returns the largest RDMA path MTU of the port, as the QPC codes it (1 = 256 … 5 = 4096).
    fn port_mtu(&self) -> u8 {
        5
    }

    /// Returns whether the function has atomics of 8 bytes (general capability `atomic`; atomic capabilities
    /// `atomic_operations` and `atomic_size_qp`).
    fn has_atomics(&self) -> bool {
        true
    }

    /// Returns whether the device writes the result of an atomic big-endian into the requester's memory (PRM, atomic
    /// capabilities, `atomic_req_8B_endianness_mode` 0) instead of in the host's byte order.
    fn atomic_reply_big_endian(&self) -> bool {
        false
    }
}

/// Value of [`KeyScope::pd`] for the function's own UMR queue pair, which belongs to no protection domain and may use
/// keys of all protection domains.
pub const ANY_PD: u32 = u32::MAX;

/// User of a key, and kind of the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyScope {
    /// Protection domain of the queue pair, or [`ANY_PD`].
    pub pd: u32,
    /// Number of the queue pair.
    pub qpn: u32,
    /// True if the peer named the key (rkey). Otherwise a WQE of this function named it (lkey).
    pub remote: bool,
    /// True if the access is an atomic operation.
    pub atomic: bool,
    /// True if the queue pair may use the reserved lkey (QPC `rlky`).
    pub rlky: bool,
}

/// An entry of the RoCE address table (PRM `roce_addr_layout`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Source GID; IPv4 addresses as `::ffff:a.b.c.d`.
    pub gid: [u8; 16],
    /// Source MAC address.
    pub mac: [u8; 6],
    /// RoCE version of the address: 0 is RoCE v1, 2 is RoCE v2.
    pub roce_version: u8,
    /// Network layer of the address: 0 is IPv4, 1 is IPv6 (RoCE v2 only).
    pub l3_type: u8,
    /// 802.1Q VLAN of the address, if any.
    pub vlan: Option<u16>,
}

/// A WQE taken from a shared receive queue.
#[derive(Clone, Debug)]
pub struct SrqWqe {
    /// Index of the WQE, which the CQE carries.
    pub index: u16,
    /// Protection domain of the shared receive queue. The keys of the scatter list belong to this domain, even if the
    /// queue pair that takes the WQE has another one.
    pub pd: u32,
    /// Scatter list of the WQE, without the terminator.
    pub scatter: Vec<DataSeg>,
    /// XRC fields for the completion, if the queue is an XRC SRQ.
    pub xrc: Option<XrcSource>,
}

/// Destination of the completion of an XRC SRQ's WQE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcSource {
    /// Number of the XRC SRQ.
    pub number: u32,
    /// Number of the completion queue of the XRC SRQ.
    pub cqn: u32,
    /// User index that CQEs of version 1 carry for the XRC SRQ.
    pub user_index: u32,
}

/// An XRC SRQ as the target of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcTarget {
    /// XRC domain of the SRQ.
    pub xrcd: u32,
    /// Protection domain of the SRQ, to which the keys of the request belong.
    pub pd: u32,
}

/// A parsed UMR work request (PRM "UMR WQE").
#[derive(Clone, Copy, Debug)]
pub struct UmrRequest<'a> {
    /// Key that the UMR changes, as the WQE's control segment names it.
    pub key: u32,
    /// Protection domain and number of the requesting queue pair.
    pub scope: KeyScope,
    /// True if the queue pair may do fast registration (QPC `fre`).
    pub fast: bool,
    /// UMR control segment.
    pub control: &'a [u8; 48],
    /// Memory key context segment.
    pub context: &'a [u8; 64],
    /// Translation entries of the WQE, inline or gathered from memory.
    pub entries: &'a [u8],
}

/// Reason for which a key does not permit an access or a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    /// No key has this index.
    #[error("key {key:#010x}: no such key")]
    Missing {
        /// The key that the access names.
        key: u32,
    },
    /// The key is in the free state.
    #[error("key {key:#010x}: free")]
    Free {
        /// The key that the access names.
        key: u32,
    },
    /// The low byte of the named key differs from the key's current variant.
    #[error("key {key:#010x}: stale variant")]
    Variant {
        /// The key that the access names.
        key: u32,
    },
    /// Key and queue pair belong to different protection domains.
    #[error("key {key:#010x}: protection domain of another queue pair")]
    ProtectionDomain {
        /// The key that the access names.
        key: u32,
    },
    /// The key is bound to another queue pair.
    #[error("key {key:#010x}: bound to another queue pair")]
    QueuePair {
        /// The key that the access names.
        key: u32,
    },
    /// The access exceeds the key's address range.
    #[error("key {key:#010x}: {bytes} bytes at {va:#x} leave the region")]
    Range {
        /// The key that the access names.
        key: u32,
        /// First address of the access.
        va: u64,
        /// Length of the access in bytes.
        bytes: u64,
    },
    /// The key does not grant this kind of access.
    #[error("key {key:#010x}: access not granted")]
    Access {
        /// The key that the access names.
        key: u32,
    },
    /// A queue pair without `fre` tried to change the key's pages, entity size or domain, or the range or rights of a
    /// key that has pages.
    #[error("key {key:#010x}: change of pages, range, rights or domain without fre")]
    FastRegistration {
        /// The key that the request names.
        key: u32,
    },
    /// The function's keys and their tables would exceed the memory limit for keys.
    #[error("key {key:#010x}: no memory for {bytes} bytes more of table")]
    Memory {
        /// The key that the request names.
        key: u32,
        /// Number of bytes by which the key's table would grow.
        bytes: usize,
    },
    /// A queue pair without `rlky` used the reserved lkey.
    #[error("reserved lkey without rlky")]
    Reserved,
    /// The key covered the access, but the IOMMU refused it.
    #[error(transparent)]
    Dma(#[from] DmaFault),
    /// This host does not implement the call.
    #[error("not supported by this function")]
    Unsupported,
}
