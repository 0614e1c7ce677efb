//! Report about a function at the end of a run.

use crate::iommu::FaultRecord;
use crate::port::Traffic;
use std::collections::BTreeMap;

/// Properties of a function that a test may require to be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionReport {
    /// Objects that exist, by kind.
    pub objects: BTreeMap<&'static str, usize>,
    /// Objects that still exist, and objects that TEARDOWN_HCA found still existing, by kind.
    pub leaked: BTreeMap<&'static str, usize>,
    /// Number of firmware pages not given back.
    pub pages_held: usize,
    /// Accesses the IOMMU refused.
    pub dma_faults: Vec<FaultRecord>,
    /// Broken rules for which the device has no error code.
    pub driver_bugs: Vec<String>,
    /// Commands received, by opcode.
    pub opcodes: BTreeMap<u16, u64>,
    /// Registers accessed by ACCESS_REG: number of accesses, and of refusals.
    pub registers: BTreeMap<u16, Asked>,
    /// Commands refused: opcode, status, syndrome, reason. Those beyond the first thousand are only counted.
    pub refused: Vec<Refused>,
    /// Commands refused, all of them, by opcode.
    pub refusals: BTreeMap<u16, u64>,
    /// Received frames without a receiver, by reason.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Frames the port sent onto the wire.
    pub transmitted: Traffic,
    /// Frames the port received from it.
    pub received: Traffic,
    /// Number of send doorbells.
    pub send_doorbells: u64,
}

/// Number of accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// All of them.
    pub times: u64,
    /// The refused ones.
    pub refused: u64,
}

/// A command the firmware refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Opcode.
    pub opcode: u16,
    /// Output status.
    pub status: u8,
    /// Output syndrome: a hash of the reason, so that equal reasons have equal syndromes.
    pub syndrome: u32,
    /// Reason in words.
    pub reason: String,
}

impl FunctionReport {
    /// Returns whether the driver made no error: no leak, no page held, no fault, no bug.
    pub fn is_clean(&self) -> bool {
        self.leaked.is_empty()
            && self.pages_held == 0
            && self.dma_faults.is_empty()
            && self.driver_bugs.is_empty()
    }
}
