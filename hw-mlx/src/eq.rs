//! Event queues: notifications from the device.
//!
//! An event queue is a ring of 64-byte entries (EQEs) the device writes and we read. Entry
//! `consumer & (n - 1)` is ours when its owner bit equals the parity of the lap the consumer counter
//! is in; the device writes 0 on its first lap, so every entry starts with owner 1 (PRM "Event Queue
//! Entry").
//!
//! The device counts how many entries we have read by the consumer counter we write to a doorbell
//! of the queue's UAR. Two registers exist: one only updates, one updates and arms. An armed queue
//! raises its MSI-X vector once, when an entry beyond the counter is or becomes available, then
//! stays silent until armed again. So the order is: drain, arm; entries that arrived in between raise
//! the vector at once and nothing is lost.
//!
//! An overrun is fatal (health syndrome 0x0c), so rings have 128 spare entries and the counter is
//! written at least every 128 entries even in the middle of a drain (mlx5_core's rule).

use driver::{Be32, Block, DmaArena, DmaBuffer, DmaError, barrier};

use mlx_prm::{CreateEqIn, Eqe, Eqn, UarIndex, UarPage};

/// Bytes of an entry.
const ENTRY_BYTES: usize = 64;
/// The owner byte of an entry; bit 0 counts.
const OWNER: usize = 0x3f;
const OWNER_BIT: u8 = 1;
/// Entries beyond the wanted number, and the maximum number read before the device is told.
const SPARE: u32 = 128;
/// The counter in the doorbell and in the context has 24 bits.
const COUNTER_MASK: u32 = 0x00ff_ffff;
const PAGE_LOG: u32 = 12;

/// Returns the number of events that may be waiting in a ring of `1 << log_entries`, the spare ones left free.
pub(crate) fn events(log_entries: u32) -> u32 {
    (1u32 << log_entries.min(24)).saturating_sub(SPARE).max(1)
}

/// A ring not yet known to the device.
pub(crate) struct Ring {
    memory: DmaBuffer,
    log_entries: u32,
}

impl Ring {
    /// Makes a ring for at least `wanted` entries and the spare ones, all owned by the device. One page list entry
    /// describes it: its IOVA is aligned to its size.
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

    /// The CREATE_EQ input describing this ring, and its page list.
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
            // PANIC: vectors are those of MSI-X, at most 2048; the field has 12 bits.
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
    /// Entries read since creation; wraps.
    consumer: u32,
    /// Entries read since the device was last told.
    untold: u32,
    /// True if entries were read since the queue was last armed: it may have fired for them.
    fired: bool,
    vector: usize,
}

impl Eq {
    /// Makes the queue that the device created on `ring`. Not armed yet.
    pub(crate) fn new(eqn: Eqn, ring: Ring, uar: Block<UarPage>, vector: usize) -> Self {
        Self {
            eqn,
            ring,
            uar,
            consumer: 0,
            untold: 0,
            fired: true,
            vector,
        }
    }

    pub(crate) fn eqn(&self) -> Eqn {
        self.eqn
    }

    /// Returns the memory, when the queue is no longer read.
    pub(crate) fn into_ring(self) -> Ring {
        self.ring
    }

    /// Returns the number of entries of the ring, the maximum that can be waiting.
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
        barrier::dma_from_device(); // nothing else of the entry before its owner bit
        let eqe = self.ring.memory.read_obj(at);
        self.consumer = self.consumer.wrapping_add(1);
        self.untold += 1;
        self.fired = true;
        if self.untold >= SPARE {
            self.tell(false);
        }
        Some(eqe)
    }

    /// Publishes the consumer counter and asks for an interrupt at the next entry. Does nothing if the queue is armed
    /// already.
    pub(crate) fn arm(&mut self) {
        if self.fired {
            self.tell(true);
            self.fired = false;
        }
    }

    /// Writes the consumer counter. The one place that rings this queue's doorbells.
    fn tell(&mut self, arm: bool) {
        let value = self.eqn.get() << 24 | (self.consumer & COUNTER_MASK);
        barrier::dma_hand_back(); // the entries are read before the device may overwrite them
        if arm {
            self.uar.write(|page| &page.eq_arm, Be32::new(value));
        } else {
            self.uar.write(|page| &page.eq_update, Be32::new(value));
        }
        barrier::flush_write_combining();
        self.untold = 0;
    }
}

impl std::fmt::Debug for Eq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Eq")
            .field("eqn", &self.eqn)
            .field("entries", &self.entries())
            .field("consumer", &format_args!("{:#x}", self.consumer))
            .field("untold", &self.untold)
            .field("armed", &!self.fired)
            .field("vector", &self.vector)
            .finish_non_exhaustive()
    }
}
