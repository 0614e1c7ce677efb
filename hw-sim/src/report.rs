//! Report about a function, at the end of a run or before.

use crate::iommu::FaultRecord;
use crate::traffic::Traffic;
use std::collections::BTreeMap;

/// Facts about a function. Tests may require some of them to be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionReport {
    /// Number of objects that exist, by kind.
    pub objects: BTreeMap<&'static str, usize>,
    /// Number of objects that still exist or that TEARDOWN_HCA found still existing, by kind.
    pub leaked: BTreeMap<&'static str, usize>,
    /// Number of firmware pages that the driver has not taken back.
    pub pages_held: usize,
    /// Accesses that the IOMMU refused, at most the first 256.
    pub dma_faults: Vec<FaultRecord>,
    /// Rules that the driver broke and for which the device has no error code.
    pub driver_bugs: Vec<String>,
    /// Number of received commands, by opcode.
    pub opcodes: BTreeMap<u16, u64>,
    /// Number of accesses by ACCESS_REG and of refused ones, by register.
    pub registers: BTreeMap<u16, Asked>,
    /// Refused commands, with opcode, status, syndrome and reason. Those after the first thousand are only counted.
    pub refused: Vec<Refused>,
    /// Number of all refused commands, by opcode.
    pub refusals: BTreeMap<u16, u64>,
    /// Number of dropped frames, received or sent, by reason.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Frames that the port sent to the wire or to other functions of the card.
    pub transmitted: Traffic,
    /// Frames that the port received from the wire or from other functions of the card.
    pub received: Traffic,
    /// Number of send doorbells.
    pub send_doorbells: u64,
    /// Number of resets by the driver or by its system; the end of a vfio-user session is one. A manager that enables
    /// or disables the function adds none.
    pub resets: u64,
}

/// Counters of the accesses to a register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Number of all accesses.
    pub times: u64,
    /// Number of refused accesses.
    pub refused: u64,
}

/// A command that the firmware refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Opcode of the command.
    pub opcode: u16,
    /// Output status.
    pub status: u8,
    /// Output syndrome: a hash of the reason, or the syndrome recorded on a real card. Equal reasons have equal
    /// syndromes.
    pub syndrome: u32,
    /// Reason of the refusal, as text.
    pub reason: String,
}

impl FunctionReport {
    /// Returns whether the driver made no error: no leaked object, no page held, no DMA fault, no driver bug.
    pub fn is_clean(&self) -> bool {
        self.leaked.is_empty()
            && self.pages_held == 0
            && self.dma_faults.is_empty()
            && self.driver_bugs.is_empty()
    }
}
