//! The registers of the simulated SSD, and the memory that it reaches.
//!
//! ```text
//!   CC.EN 0 -> 1   the thread makes the admin queues and sets CSTS.RDY
//!   CC.EN 1 -> 0   the generation ends at once: no memory of its queues is accessed any more. CSTS.RDY is cleared
//!   reset          as CC.EN 1 -> 0; and all registers and configuration space have their first values
//!   removal        the generation ends; BAR 0 and configuration space read as ones
//! ```
//!
//! Software may write to any byte of BAR 0, which is plain memory. So the registers that it may not write are written
//! again after each of its writes.

use driver::{Interrupt, SharedMemory};
use zerocopy::little_endian::{U32, U64};

use super::config_space::{BAR_BYTES, ConfigSpace, MSIX_TABLE};
use super::dma::{Fault, Mappings, Part};
use crate::model::{CAPABILITIES, READY_WITHIN, VERSION};
use crate::nvme::fabrics::{csts, property};

/// Bytes of the properties.
const PROPERTIES: usize = 0x1000;
/// Bit of CC: the controller processes commands.
pub(super) const ENABLE: u32 = 1;

/// The admin queues, as they were set when the controller was enabled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AdminQueues {
    /// Number of entries of the submission queue, and of the completion queue.
    pub entries: [u32; 2],
    /// I/O addresses of both.
    pub at: [u64; 2],
}

/// The registers of a function.
pub(super) struct Registers {
    config: ConfigSpace,
    pub(super) mappings: Mappings,
    vectors: Vec<Interrupt>,
    /// Value of CC.
    cc: u32,
    /// Value of CSTS.
    csts: u32,
    admin: AdminQueues,
    /// Number of times that the controller was disabled, reset or removed.
    generation: u64,
    /// Doorbells that were written and not looked at, by queue: the new tail of a submission queue, and the new head of
    /// a completion queue.
    doorbells: Vec<[Option<u32>; 2]>,
    is_removed: bool,
    is_stopping: bool,
}

/// The registers as the thread sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub generation: u64,
    pub cc: u32,
    pub admin: AdminQueues,
    pub is_stopping: bool,
}

impl Registers {
    /// Makes the registers of a controller with this many I/O queues.
    pub(super) fn new(queues: u16) -> Self {
        Self {
            config: ConfigSpace::new(queues + 1),
            mappings: Mappings::default(),
            vectors: Vec::new(),
            cc: 0,
            csts: 0,
            admin: AdminQueues::default(),
            generation: 0,
            doorbells: vec![[None; 2]; usize::from(queues) + 1],
            is_removed: false,
            is_stopping: false,
        }
    }

    /// Writes the registers that software may not write to BAR 0.
    pub(super) fn publish(&self, bar: &SharedMemory) {
        if self.is_removed {
            bar.fill(0, BAR_BYTES, 0xff);
            return;
        }
        // CAST: offsets of registers.
        let at = |property: u32| property as usize;
        bar.write_obj(at(property::CAP), &U64::new(CAPABILITIES));
        bar.write_obj(at(property::VS), &U32::new(VERSION));
        bar.write_obj(at(property::CSTS), &U32::new(self.csts));
        bar.write_obj(at(property::CRTO), &U32::new(READY_WITHIN));
    }

    pub(super) fn config_read(&self, offset: u16, out: &mut [u8]) {
        if self.is_removed {
            out.fill(0xff);
        } else {
            self.config.read(offset, out);
        }
    }

    /// Returns whether software has asked for a function level reset.
    pub(super) fn config_write(&mut self, offset: u16, data: &[u8]) -> bool {
        !self.is_removed && self.config.write(offset, data)
    }

    /// Handles a write to BAR 0, whose bytes are there already.
    pub(super) fn written(&mut self, bar: &SharedMemory, offset: u64, bytes: &[u8]) {
        let end = offset.saturating_add(bytes.len() as u64); // CAST: widening.
        let touches = |register: u32| {
            let register = u64::from(register);
            offset < register + 4 && register < end
        };
        if self.is_removed {
            self.publish(bar);
        // CAST: widening.
        } else if offset >= PROPERTIES as u64 {
            self.ring(offset, bytes);
        } else {
            if touches(property::CC) {
                let cc: U32 = bar.read_obj(property::CC as usize); // CAST: widening.
                self.configure(bar, cc.get());
            }
            self.publish(bar);
        }
    }

    /// Notes a doorbell. A write of another length, or elsewhere, has no meaning.
    fn ring(&mut self, offset: u64, bytes: &[u8]) {
        let Some(bytes) = bytes.first_chunk::<4>().filter(|_| bytes.len() == 4) else {
            return;
        };
        // The caller has checked that the offset is behind the properties.
        let at = usize::try_from(offset).unwrap_or(usize::MAX) - PROPERTIES;
        // CAST: widening.
        if !at.is_multiple_of(4) || at >= MSIX_TABLE as usize - PROPERTIES {
            return;
        }
        let value: U32 = zerocopy::transmute!(*bytes);
        if let Some(queue) = self.doorbells.get_mut(at / 8) {
            queue[at / 4 % 2] = Some(value.get() & 0xffff);
        }
    }

    fn configure(&mut self, bar: &SharedMemory, cc: u32) {
        let before = self.cc;
        self.cc = cc;
        match (before & ENABLE, cc & ENABLE) {
            (0, 1) => {
                let word = |at| {
                    let word: U32 = bar.read_obj(at);
                    word.get()
                };
                let address = |at| {
                    let address: U64 = bar.read_obj(at);
                    address.get() & !0xfff
                };
                // CAST: offsets of registers.
                let [sizes, submission, completion] =
                    [property::AQA, property::ASQ, property::ACQ].map(|at| at as usize);
                let sizes = word(sizes);
                self.admin = AdminQueues {
                    entries: [(sizes & 0xfff) + 1, (sizes >> 16 & 0xfff) + 1],
                    at: [address(submission), address(completion)],
                };
            }
            (1, 0) => self.end_generation(),
            _ => {}
        }
    }

    /// Ends the access to the queues.
    fn end_generation(&mut self) {
        self.generation += 1;
        self.csts = 0;
        self.doorbells.fill([None; 2]);
    }

    /// Resets the function.
    pub(super) fn reset(&mut self, bar: &SharedMemory) {
        if self.is_removed {
            return;
        }
        self.end_generation();
        self.cc = 0;
        self.config.reset();
        bar.fill(0, PROPERTIES, 0);
        self.publish(bar);
    }

    /// Removes the function.
    pub(super) fn remove(&mut self, bar: &SharedMemory) {
        self.end_generation();
        (self.cc, self.is_removed) = (0, true);
        self.publish(bar);
    }

    /// Asks the thread to end.
    pub(super) fn stop(&mut self) {
        self.end_generation();
        self.is_stopping = true;
    }

    pub(super) fn set_vectors(&mut self, vectors: Vec<Interrupt>) {
        self.vectors = vectors;
    }

    /// Returns the registers as they are now.
    pub(super) const fn seen(&self) -> Seen {
        Seen {
            generation: self.generation,
            cc: self.cc,
            admin: self.admin,
            is_stopping: self.is_stopping,
        }
    }

    /// Takes the doorbells that were written since the last call: number of the queue, its tail, its head.
    pub(super) fn take_doorbells(&mut self, generation: u64) -> Vec<(u16, [Option<u32>; 2])> {
        if generation != self.generation {
            return Vec::new();
        }
        let all = (0..).zip(&mut self.doorbells);
        let written = all.filter(|(_, queue)| **queue != [None; 2]);
        written
            .map(|(number, queue)| (number, core::mem::take(queue)))
            .collect()
    }

    /// Sets CSTS, if the generation is still this one.
    pub(super) fn set_status(&mut self, bar: &SharedMemory, generation: u64, status: u32) {
        if generation == self.generation {
            self.csts = status;
            self.publish(bar);
        }
    }

    /// Adds the fatal status to CSTS, if the generation is still this one.
    pub(super) fn fail(&mut self, bar: &SharedMemory, generation: u64) {
        self.set_status(bar, generation, self.csts | csts::CFS);
    }

    /// Returns the first part of an access by a queue of this generation.
    pub(super) fn part(
        &self,
        generation: u64,
        (iova, bytes): (u64, usize),
        is_write: bool,
    ) -> Result<Part, Fault> {
        if generation != self.generation || !self.config.is_bus_master() {
            return Err(Fault);
        }
        self.mappings.part(iova, bytes, is_write)
    }

    /// Signals a vector for a queue of this generation.
    pub(super) fn signal(&self, generation: u64, vector: u16) {
        if generation == self.generation
            && self.config.is_bus_master()
            && let Some(vector) = self.vectors.get(usize::from(vector))
        {
            vector.signal();
        }
    }
}
