//! Bytes that identify the message that wrote them.
//!
//! A slot of memory is filled with words of eight bytes. A word contains the number of the message and the word's index
//! in the slot. So a check needs no copy of the data sent.

use udapl::DmaMemory;

/// Length in bytes of a slot and of the longest message.
pub const SLOT: usize = 4096;
/// Length in bytes of the gap after a slot, which no peer may access.
pub const GAP: usize = 64;
/// Distance between the starts of two slots in bytes.
pub const STRIDE: usize = SLOT + GAP;
/// Fill byte of gaps and of freed memory.
const CANARY: u8 = 0xa5;

fn words(tag: u64) -> Vec<u8> {
    (0..(SLOT / 8) as u64)
        .flat_map(|place| (tag << 16 | place).to_be_bytes())
        .collect()
}

/// Fills `slots` slots with zeros, and the gap after each slot with the canary byte.
pub fn prepare(memory: &DmaMemory, slots: usize) {
    let mut bytes = vec![0; STRIDE];
    bytes[SLOT..].fill(CANARY);
    for slot in 0..slots {
        memory.write_from(slot * STRIDE, &bytes).expect("inside");
    }
}

/// Fills a slot with the words of the message `tag`.
pub fn put(memory: &DmaMemory, slot: usize, tag: u64) {
    memory
        .write_from(slot * STRIDE, &words(tag))
        .expect("inside");
}

/// Returns whether the first `bytes` bytes of a slot are those of the message `tag`.
#[must_use]
pub fn is(memory: &DmaMemory, slot: usize, tag: u64, bytes: usize) -> bool {
    memory.read(slot * STRIDE, bytes).expect("inside") == words(tag)[..bytes]
}

/// Returns the first eight bytes of a slot as a number in host byte order, which is the value of a counter.
#[must_use]
pub fn number(memory: &DmaMemory, slot: usize) -> u64 {
    let bytes = memory.bytes(slot * STRIDE..).expect("inside");
    bytes.object(0).expect("a number")
}

/// Returns whether all gaps are unchanged.
#[must_use]
pub fn gaps_are_whole(memory: &DmaMemory, slots: usize) -> bool {
    (0..slots).all(|slot| memory.read(slot * STRIDE + SLOT, GAP).expect("inside") == [CANARY; GAP])
}

/// Fills memory that no peer may access with the canary byte.
pub fn cover(memory: &DmaMemory) {
    memory
        .write_from(0, &vec![CANARY; memory.len()])
        .expect("inside");
}

/// Returns the offset of the first byte that is no canary, in memory that no peer may access.
#[must_use]
pub fn changed(memory: &DmaMemory) -> Option<usize> {
    let bytes = memory.read(0, memory.len()).expect("inside");
    bytes.iter().position(|byte| *byte != CANARY)
}

/// Memory that no peer may access any more, and that is checked for changes.
pub struct Freed {
    memory: DmaMemory,
    /// Index of the side that owned the memory.
    pub side: usize,
    /// End of the failure message: the event after which no peer may access the memory.
    pub what: &'static str,
}

impl Freed {
    /// Fills the memory with the canary byte, and returns the record for later checks.
    #[must_use]
    pub fn watch(memory: DmaMemory, side: usize, what: &'static str) -> Self {
        cover(&memory);
        Self { memory, side, what }
    }

    /// Returns the offset of the first byte that has changed since the call of `Freed::watch`.
    #[must_use]
    pub fn changed(&self) -> Option<usize> {
        changed(&self.memory)
    }
}
