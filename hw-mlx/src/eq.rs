//! Event queues: notifications from the device.
//!
//! An event queue is a ring of 64-byte entries (EQEs) the device writes and we read. Entry
//! `consumer & (n - 1)` is ours when its owner bit equals the parity of the consumer counter's lap. The device writes
//! owner 0 on its first lap, so every entry is initialized with owner 1 (PRM "Event Queue Entry").
//!
//! We report how many entries we have read by writing the consumer counter to a doorbell of the queue's UAR. There are
//! two doorbells: one only updates the counter, the other updates the counter and arms the queue. An armed queue
//! raises its MSI-X vector once, when an entry beyond the counter is or becomes available. For the next interrupt it
//! must be armed again. So the driver first drains the queue and then arms it. Entries that arrive in between raise the
//! vector at once, and no event is missed.
//!
//! An overrun is fatal (health syndrome 0x0c), so rings have 128 spare entries and the counter is
//! written at least every 128 entries even in the middle of a drain (mlx5_core's rule).

mod parking;

use driver::{Be32, Block, DmaArena, DmaBuffer, DmaError, barrier};

use mlx_prm::{CreateEqIn, Eqe, Eqn, UarIndex, UarPage};
pub use parking::EqSnapshot;

/// Length of an entry in bytes.
const ENTRY_BYTES: usize = 64;
/// Offset of the byte in an entry whose bit 0 is the owner bit.
const OWNER: usize = 0x3f;
const OWNER_BIT: u8 = 1;
/// Number of entries beyond the wanted number, and the maximum number read before the counter is written.
const SPARE: u32 = 128;
/// Mask of the 24-bit counter in the doorbell and in the context.
const COUNTER_MASK: u32 = 0x00ff_ffff;
const PAGE_LOG: u32 = 12;

/// Returns the number of events that may be pending in a ring of `1 << log_entries` entries, without the spare ones.
pub(crate) fn events(log_entries: u32) -> u32 {
    (1u32 << log_entries.min(24)).saturating_sub(SPARE).max(1)
}

/// A ring for an event queue that the device does not use yet, or no longer.
pub(crate) struct Ring {
    memory: DmaBuffer,
    log_entries: u32,
}

impl Ring {
    /// Makes a ring for at least `wanted` entries and the spare ones, all owned by the device. One page list entry
    /// describes the ring, because its IOVA is aligned to its size.
    pub(crate) fn new(arena: &DmaArena, wanted: u32) -> Result<Self, DmaError> {
        let entries = (wanted + SPARE).next_power_of_two();
        let bytes = (entries as usize * ENTRY_BYTES).max(1 << PAGE_LOG);
        let memory = arena.alloc(bytes, bytes)?;
        for entry in 0..entries as usize {
            memory.store_u8(entry * ENTRY_BYTES + OWNER, OWNER_BIT);
        }
        Ok(Self {
            memory,
            log_entries: entries.ilog2(),
        })
    }

    /// Returns the CREATE_EQ input that describes this ring, and its page list.
    pub(crate) fn create_command(
        &self,
        events: u64,
        vector: usize,
        uar: UarIndex,
    ) -> (CreateEqIn, [u8; 8]) {
        let mut input = CreateEqIn::new();
        let page_log = (self.memory.len().ilog2()).max(PAGE_LOG);
        input
            .eq_context_entry_mut()
            .set_log_eq_size(self.log_entries)
            .set_uar_page(uar.get())
            // PANIC: the field has 12 bits, and MSI-X vectors are below 2048.
            .set_intr(u32::try_from(vector).expect("an MSI-X vector"))
            .set_log_page_size(page_log - PAGE_LOG);
        input.set_event_bitmask(events);
        (input, self.memory.iova().0.to_be_bytes())
    }
}

/// An event queue of the device.
pub(crate) struct Eq {
    eqn: Eqn,
    ring: Ring,
    uar: Block<UarPage>,
    /// Number of the doorbell page.
    uar_index: UarIndex,
    /// Number of entries read since creation; wraps.
    consumer: u32,
    /// Number of entries read since the counter was last written.
    unpublished: u32,
    /// True if the queue must be armed: it was never armed, or entries were read since, so it may have raised its
    /// vector.
    fired: bool,
    vector: usize,
}

impl Eq {
    /// Makes the queue that the device created on `ring`. The queue is not armed yet.
    pub(crate) fn new(
        eqn: Eqn,
        ring: Ring,
        (uar_index, uar): (UarIndex, Block<UarPage>),
        vector: usize,
    ) -> Self {
        Self {
            eqn,
            ring,
            uar,
            uar_index,
            consumer: 0,
            unpublished: 0,
            fired: true,
            vector,
        }
    }

    pub(crate) fn eqn(&self) -> Eqn {
        self.eqn
    }

    /// Returns the number of the queue's doorbell page.
    pub(crate) fn uar_index(&self) -> UarIndex {
        self.uar_index
    }

    /// Returns the number of the queue's interrupt vector.
    pub(crate) fn vector(&self) -> usize {
        self.vector
    }

    /// Returns the ring of a queue that is no longer read.
    pub(crate) fn into_ring(self) -> Ring {
        self.ring
    }

    /// Returns the number of entries of the ring, which is the maximum number pending.
    pub(crate) fn entries(&self) -> u32 {
        1 << self.ring.log_entries
    }

    /// Returns the next entry, if the device has written one.
    pub(crate) fn poll(&mut self) -> Option<Eqe> {
        let slot = self.consumer & (self.entries() - 1);
        let at = slot as usize * ENTRY_BYTES;
        let lap = (self.consumer >> self.ring.log_entries) & 1;
        if u32::from(self.ring.memory.load_u8(at + OWNER) & OWNER_BIT) != lap {
            return None;
        }
        barrier::dma_from_device(); // the rest of the entry is read after its owner bit
        let eqe = self.ring.memory.read_obj(at);
        self.consumer = self.consumer.wrapping_add(1);
        self.unpublished += 1;
        self.fired = true;
        if self.unpublished >= SPARE {
            self.publish(false);
        }
        Some(eqe)
    }

    /// Writes the consumer counter and requests an interrupt at the next entry. Does nothing if the queue is already
    /// armed.
    pub(crate) fn arm(&mut self) {
        if self.fired {
            self.publish(true);
            self.fired = false;
        }
    }

    /// Writes the consumer counter, and arms the queue if `arm` is set. No other function rings this queue's doorbells.
    fn publish(&mut self, arm: bool) {
        let value = self.eqn.get() << 24 | (self.consumer & COUNTER_MASK);
        barrier::dma_hand_back(); // the entries are read before the device may overwrite them
        if arm {
            self.uar.write(|page| &page.eq_arm, Be32::new(value));
        } else {
            self.uar.write(|page| &page.eq_update, Be32::new(value));
        }
        barrier::flush_write_combining();
        self.unpublished = 0;
    }
}

impl std::fmt::Debug for Eq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Eq")
            .field("eqn", &self.eqn)
            .field("entries", &self.entries())
            .field("consumer", &format_args!("{:#x}", self.consumer))
            .field("unpublished", &self.unpublished)
            .field("armed", &!self.fired)
            .field("vector", &self.vector)
            .finish_non_exhaustive()
    }
}
