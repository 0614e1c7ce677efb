//! What a queue pair needs of the function it lives in.
//!
//! A [`crate::qp::Qp`] owns no memory, no keys, no completion queues, no port and no clock. All of
//! them belong to the function, and reach the queue pair as one `&mut dyn Host` argument of each
//! call; what the queue pair wants done to them leaves it through the same argument. So a queue
//! pair can be tested alone, with a host made of vectors, and nothing in it can wait.
//!
//! A host answers at once: reads and writes happen before the method returns, a frame is queued on
//! the port, a CQE is in the ring. Errors are the two that the fabric can produce: the IOMMU refused
//! an address ([`DmaFault`]), or a key did not cover an access ([`KeyError`]).

pub use crate::iommu::DmaFault;
use crate::profile::Habits;
use crate::q_counters::QCounter;
use crate::wire::Outline;
use mlx_prm::{Cqe64, DataSeg, EventType};
use thiserror::Error;

/// What a queue pair needs of the function it lives in.
pub trait Host {
    /// Virtual time, nanoseconds.
    fn now(&self) -> u64;

    /// Reads queue memory or a doorbell record: DMA addresses, no key.
    ///
    /// # Errors
    /// [`DmaFault`]: the range is not mapped whole, or the function is no bus master.
    fn dma_read(&mut self, iova: u64, out: &mut [u8]) -> Result<(), DmaFault>;

    /// Writes queue memory or a doorbell record: DMA addresses, no key.
    ///
    /// # Errors
    /// [`DmaFault`]: as for reading, or part of the range is mapped to be read only.
    fn dma_write(&mut self, iova: u64, data: &[u8]) -> Result<(), DmaFault>;

    /// Reads data through a key: checks existence, free state, variant, PD, QPN, range and access,
    /// then does the DMA.
    ///
    /// # Errors
    /// [`KeyError`]: the first check that fails, or the DMA behind it.
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

    /// The checks of [`Host::key_read`] and [`Host::key_write`] for a whole range, without moving
    /// a byte.
    ///
    /// # Errors
    /// [`KeyError`], as [`Host::key_read`], but for the DMA.
    fn key_check(
        &mut self,
        key: u32,
        scope: KeyScope,
        va: u64,
        bytes: u64,
        write: bool,
    ) -> Result<(), KeyError>;

    /// Writes a CQE. Owner bit, wrap, overrun and arming are the completion queue's business; the
    /// owner bit of `cqe.op_own` is ignored. `solicited` satisfies an arm for solicited entries.
    fn complete(&mut self, cqn: u32, cqe: Cqe64, solicited: bool);

    /// Writes a CQE of 128 bytes: `first` is the half before the CQE proper.
    fn complete_wide(&mut self, cqn: u32, first: [u8; 64], cqe: Cqe64, solicited: bool);

    /// Raises an asynchronous event that names this queue pair.
    fn qp_event(&mut self, event: EventType, qpn: u32);

    /// Takes the next WQE of a shared receive queue, if there is one; fires the limit event.
    ///
    /// # Errors
    /// [`DmaFault`]: its doorbell record or its next WQE cannot be read.
    fn srq_take(&mut self, srqn: u32) -> Result<Option<SrqWqe>, DmaFault>;

    /// The XRC SRQ of that number.
    fn xrc_srq(&self, srqn: u32) -> Option<XrcTarget> {
        let _ = srqn;
        None
    }

    /// Memory for a frame of so many bytes, with anything in it.
    fn buffer(&mut self, bytes: usize) -> Vec<u8> {
        vec![0; bytes]
    }

    /// Whether frames need their ICRC: somebody may look at it.
    fn seals(&self) -> bool {
        true
    }

    /// Bytes that were put onto this port's wire so far, by any queue pair.
    fn sent_bytes(&self) -> u64 {
        0
    }

    /// Puts a whole Ethernet frame (without FCS) onto this function's port.
    fn transmit(&mut self, frame: Vec<u8>);

    /// Puts a frame onto this function's port of which only the payload is written.
    fn transmit_outlined(&mut self, outline: &Outline, mut frame: Vec<u8>) {
        outline.write(&mut frame, self.seals());
        self.transmit(frame);
    }

    /// The used entry of the port's GID table at `index`; on InfiniBand only its GID means something.
    fn gid(&self, index: u8) -> Option<GidEntry>;

    /// A number that is another one when an answer of [`Host::gid`] or [`Host::lid`] may be; none if nobody counts.
    fn addresses(&self) -> Option<u64> {
        None
    }

    /// The LID of an InfiniBand port; none on Ethernet.
    fn lid(&self) -> Option<u16> {
        None
    }

    /// CQE version of the function: 1 puts the user index where version 0 has the SRQ number.
    fn cqe_version(&self) -> u8;

    /// Counts something in a counter set (QPC `counter_set_id`; 0 is the set of those that name none).
    fn count(&mut self, set: u32, what: QCounter) {
        let _ = (set, what);
    }

    /// A rule of the PRM was broken by the driver: logged and reported, never fatal.
    fn driver_bug(&mut self, what: String);

    /// The world's seeded stream of random numbers.
    fn random(&mut self) -> u64;

    /// Carries out a UMR work request: changes the context of an existing key.
    ///
    /// # Errors
    /// [`KeyError`]: the key may not be changed so; [`KeyError::Unsupported`] where there is no UMR.
    fn umr(&mut self, request: UmrRequest<'_>) -> Result<(), KeyError> {
        let _ = request;
        Err(KeyError::Unsupported)
    }

    /// What the device does one way, others another.
    fn habits(&self) -> Habits {
        Habits::default()
    }

    /// Whether a WQE behind a UMR needs no fence (PRM, `umr_fence` 2).
    fn umr_keeps_order(&self) -> bool {
        false
    }

    /// Whether requesters send again before the ACK timeout of their queue pair has passed: RoCE adaptive
    /// retransmission, which is on where there is the capability `roce_accl`.
    fn retransmits_early(&self) -> bool {
        false
    }

    /// Frees a key on behalf of a peer's SEND with Invalidate.
    ///
    /// # Errors
    /// [`KeyError`]: the queue pair may not use the key, or the key cannot be invalidated by a peer;
    /// [`KeyError::Unsupported`] where there is no UMR.
    fn invalidate(&mut self, key: u32, scope: KeyScope) -> Result<(), KeyError> {
        let _ = (key, scope);
        Err(KeyError::Unsupported)
    }

    /// Largest RDMA path MTU the port carries, as the QPC codes it (1 = 256 … 5 = 4096).
    fn port_mtu(&self) -> u8 {
        5
    }

    /// Whether the function has atomics of 8 bytes (general capability `atomic`; atomic capabilities
    /// `atomic_operations` and `atomic_size_qp`).
    fn has_atomics(&self) -> bool {
        true
    }

    /// Whether the answer of an atomic is written big-endian into the requester's memory (PRM,
    /// atomic capabilities, `atomic_req_8B_endianness_mode` 0) instead of in the host's order.
    fn atomic_reply_big_endian(&self) -> bool {
        false
    }
}

/// [`KeyScope::pd`] of the function's own UMR queue pair, which is in no protection domain and reaches
/// keys of all.
pub const ANY_PD: u32 = u32::MAX;

/// For whom a key is used, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyScope {
    /// Protection domain of the queue pair, or [`ANY_PD`].
    pub pd: u32,
    /// Number of the queue pair.
    pub qpn: u32,
    /// The peer named the key (rkey); otherwise a WQE of this function did (lkey).
    pub remote: bool,
    /// The access is an atomic operation.
    pub atomic: bool,
    /// The queue pair may use the reserved lkey (QPC `rlky`).
    pub rlky: bool,
}

/// An entry of the RoCE address table (PRM `roce_addr_layout`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Source GID; IPv4 addresses as `::ffff:a.b.c.d`.
    pub gid: [u8; 16],
    /// Source MAC address.
    pub mac: [u8; 6],
    /// 0: RoCE v1, 2: RoCE v2.
    pub roce_version: u8,
    /// 0: IPv4, 1: IPv6 (RoCE v2 only).
    pub l3_type: u8,
    /// 802.1Q VLAN the address lives in.
    pub vlan: Option<u16>,
}

/// A WQE taken from a shared receive queue.
#[derive(Clone, Debug)]
pub struct SrqWqe {
    /// Its index, which the CQE will carry.
    pub index: u16,
    /// Protection domain of the queue. The keys of the list are of this one, whichever the queue
    /// pair is in that takes the WQE.
    pub pd: u32,
    /// Its scatter list, without terminator.
    pub scatter: Vec<DataSeg>,
    /// The queue is an XRC SRQ.
    pub xrc: Option<XrcSource>,
}

/// Where the completion of a WQE of an XRC SRQ goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcSource {
    /// The queue.
    pub number: u32,
    /// Its completion queue.
    pub cqn: u32,
    /// Index that its CQEs of version 1 carry.
    pub user_index: u32,
}

/// An XRC SRQ as a request finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcTarget {
    /// Its XRC domain.
    pub xrcd: u32,
    /// Its protection domain, in which the keys of the request are.
    pub pd: u32,
}

/// A UMR work request, taken apart (PRM "UMR WQE").
#[derive(Clone, Copy, Debug)]
pub struct UmrRequest<'a> {
    /// The key that is changed, as in the control segment.
    pub key: u32,
    /// Protection domain and number of the queue pair that asks.
    pub scope: KeyScope,
    /// The queue pair may register memory fast (QPC `fre`).
    pub fast: bool,
    /// UMR control segment.
    pub control: &'a [u8; 48],
    /// Memory key context segment.
    pub context: &'a [u8; 64],
    /// Translation entries that follow, inline or gathered from memory.
    pub entries: &'a [u8],
}

/// Why a key did not cover an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    /// No key has this index.
    #[error("key {key:#010x}: no such key")]
    Missing {
        /// The key as used.
        key: u32,
    },
    /// The key is in the free state.
    #[error("key {key:#010x}: free")]
    Free {
        /// The key as used.
        key: u32,
    },
    /// The low byte differs from the key's current variant.
    #[error("key {key:#010x}: stale variant")]
    Variant {
        /// The key as used.
        key: u32,
    },
    /// Key and queue pair belong to different protection domains.
    #[error("key {key:#010x}: protection domain of another queue pair")]
    ProtectionDomain {
        /// The key as used.
        key: u32,
    },
    /// The key is bound to another queue pair.
    #[error("key {key:#010x}: bound to another queue pair")]
    QueuePair {
        /// The key as used.
        key: u32,
    },
    /// The access leaves the region.
    #[error("key {key:#010x}: {bytes} bytes at {va:#x} leave the region")]
    Range {
        /// The key as used.
        key: u32,
        /// First address of the access.
        va: u64,
        /// Its length.
        bytes: u64,
    },
    /// The key does not grant this kind of access.
    #[error("key {key:#010x}: access not granted")]
    Access {
        /// The key as used.
        key: u32,
    },
    /// A change of pages, entity size, domain, or of range or rights of pages, on a queue pair that may not make it.
    #[error("key {key:#010x}: change of pages, range, rights or domain without fre")]
    FastRegistration {
        /// The key as used.
        key: u32,
    },
    /// The keys of the function and their tables would take more memory than there is for them.
    #[error("key {key:#010x}: no memory for {bytes} bytes more of table")]
    Memory {
        /// The key as used.
        key: u32,
        /// Bytes by which its table would grow.
        bytes: usize,
    },
    /// The reserved lkey on a queue pair that may not use it.
    #[error("reserved lkey without rlky")]
    Reserved,
    /// The key was good and the IOMMU was not.
    #[error(transparent)]
    Dma(#[from] DmaFault),
    /// This host does not do that.
    #[error("not supported by this function")]
    Unsupported,
}
