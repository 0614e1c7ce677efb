//! Bytes that say who wrote them.
//!
//! A slot of memory is filled with words of eight bytes: the number of the message, and the place of the word in it. So
//! every word that lands anywhere says where it belongs, and a check needs no copy of what was sent.

use udapl::DmaMemory;

/// Bytes of a slot: the longest message.
pub const SLOT: usize = 4096;
/// Bytes behind a slot that nobody is granted.
pub const GAP: usize = 64;
/// From one slot to the next.
pub const STRIDE: usize = SLOT + GAP;
/// What stands in gaps and in memory that was freed.
const CANARY: u8 = 0xa5;

fn words(tag: u64) -> Vec<u8> {
    (0..(SLOT / 8) as u64)
        .flat_map(|place| (tag << 16 | place).to_be_bytes())
        .collect()
}

/// Memory of so many slots with gaps behind them.
pub fn prepare(memory: &DmaMemory, slots: usize) {
    let mut bytes = vec![0; STRIDE];
    bytes[SLOT..].fill(CANARY);
    for slot in 0..slots {
        memory.write_from(slot * STRIDE, &bytes).expect("inside");
    }
}

/// Puts a message into a slot.
pub fn put(memory: &DmaMemory, slot: usize, tag: u64) {
    memory
        .write_from(slot * STRIDE, &words(tag))
        .expect("inside");
}

/// Whether the first `bytes` bytes of a slot are those of a message.
#[must_use]
pub fn is(memory: &DmaMemory, slot: usize, tag: u64, bytes: usize) -> bool {
    memory.read(slot * STRIDE, bytes).expect("inside") == words(tag)[..bytes]
}

/// The number that a slot begins with.
#[must_use]
pub fn number(memory: &DmaMemory, slot: usize) -> u64 {
    let bytes = memory.bytes(slot * STRIDE..).expect("inside");
    bytes.object(0).expect("a number")
}

/// Whether nothing has come into the gaps.
#[must_use]
pub fn gaps_are_whole(memory: &DmaMemory, slots: usize) -> bool {
    (0..slots).all(|slot| memory.read(slot * STRIDE + SLOT, GAP).expect("inside") == [CANARY; GAP])
}

/// Fills memory that nobody may reach.
pub fn cover(memory: &DmaMemory) {
    memory
        .write_from(0, &vec![CANARY; memory.len()])
        .expect("inside");
}

/// Where memory that nobody may reach has changed.
#[must_use]
pub fn changed(memory: &DmaMemory) -> Option<usize> {
    let bytes = memory.read(0, memory.len()).expect("inside");
    bytes.iter().position(|byte| *byte != CANARY)
}

/// Memory that is its owner's again, and watched from now on.
pub struct Freed {
    memory: DmaMemory,
    /// Whose it was.
    pub side: usize,
    /// What it was.
    pub what: &'static str,
}

impl Freed {
    /// Fills it.
    #[must_use]
    pub fn watch(memory: DmaMemory, side: usize, what: &'static str) -> Self {
        cover(&memory);
        Self { memory, side, what }
    }

    /// Where it has changed.
    #[must_use]
    pub fn changed(&self) -> Option<usize> {
        changed(&self.memory)
    }
}
