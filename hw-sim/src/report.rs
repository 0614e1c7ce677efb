//! What a function has to say at the end of a run.

use crate::iommu::FaultRecord;
use crate::port::Traffic;
use std::collections::BTreeMap;

/// Everything about a function that a test may want to be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionReport {
    /// Objects that exist, by kind.
    pub objects: BTreeMap<&'static str, usize>,
    /// Objects that exist, and objects a TEARDOWN_HCA found still existing, by kind.
    pub leaked: BTreeMap<&'static str, usize>,
    /// Firmware pages not given back.
    pub pages_held: usize,
    /// Accesses the IOMMU refused.
    pub dma_faults: Vec<FaultRecord>,
    /// Rules the driver broke where the device has no way to answer.
    pub driver_bugs: Vec<String>,
    /// Commands received, by opcode.
    pub opcodes: BTreeMap<u16, u64>,
    /// Registers asked for by ACCESS_REG: how often, and how often refused.
    pub registers: BTreeMap<u16, Asked>,
    /// Commands refused: opcode, status, syndrome, reason. Those beyond the first thousand are only counted.
    pub refused: Vec<Refused>,
    /// Commands refused, all of them, by opcode.
    pub refusals: BTreeMap<u16, u64>,
    /// Frames the port received and nobody wanted, by reason.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Frames the port sent onto the wire.
    pub transmitted: Traffic,
    /// Frames the port received from it.
    pub received: Traffic,
    /// Send doorbells rung.
    pub send_doorbells: u64,
}

/// How often something was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Altogether.
    pub times: u64,
    /// Of them refused.
    pub refused: u64,
}

/// A command the firmware refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Opcode.
    pub opcode: u16,
    /// Output status.
    pub status: u8,
    /// Output syndrome; the reason's hash, so that equal reasons have equal syndromes.
    pub syndrome: u32,
    /// Why, in words.
    pub reason: String,
}

impl FunctionReport {
    /// Whether the driver has nothing to explain: no leak, no page held, no fault, no bug.
    pub fn is_clean(&self) -> bool {
        self.leaked.is_empty()
            && self.pages_held == 0
            && self.dma_faults.is_empty()
            && self.driver_bugs.is_empty()
    }
}
