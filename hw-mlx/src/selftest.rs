//! Self-test: checks that a function executes posted requests, and finds the layer that fails if it does not.
//!
//! One queue pair is connected to itself. If the device supports it (`fl` of the address path, capability
//! `fl_rc_qp_when_roce_enabled`), the device loops its packets back whatever their addresses are, as in the steering
//! code of Linux and rdma-core (`dr_send_allow_fl`). Otherwise the packets go to the function's own address at index 0.
//! In both cases no peer, no management datagram, no cable and no rule of the e-switch takes part, so a failure is in
//! one of the layers that the test names ([`Layer`]).
//!
//! ```text
//!   bring-up -> objects (command) -> doorbell -> WQE fetched (queue) -> CQE (completion) -> bytes (data) -> interrupt
//! ```
//!
//! Two counters of the send queue in the queue pair's context distinguish the layers in the middle: the counter that
//! the device read from the doorbell record, and the counter up to which it has fetched WQEs.

use core::fmt;
use std::time::Duration;

use driver::{DmaBuffer, Function};
use mlx_prm::{AllocPdIn, Cqn, DeallocPdIn};
use rdma_types::{Access, DataSegment, QueueSizes, RequestFlags, RequestOp};
use thiserror::Error;

use crate::completion::{Completion, Status};
use crate::config::HcaConfig;
use crate::cq::Cq;
use crate::device::Hca;
use crate::error::MlxError;
use crate::mkey::{self, KeyRequest};
use crate::qp::Qp;
use crate::qp::control::{self, QpRequest};
use crate::ring::Lent;
use crate::uar::Doorbells;

/// Length of each message in bytes: several packets at any MTU.
const BYTES: usize = 16 * 1024;
/// Time limit of a completion. It is much longer than the device's retries, so the device reports its error first.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two polls.
const PAUSE: Duration = Duration::from_millis(1);
/// Number of events that the test waits for, and the time within which each should come.
const EVENTS: u32 = 8;
const PROMPT: Duration = Duration::from_millis(250);
const SIZES: QueueSizes = QueueSizes {
    max_requests: 4,
    max_recvs: 4,
    max_request_segments: 1,
    max_read_segments: 1,
    max_recv_segments: 1,
    binds: false,
};
const ENTRIES: u32 = 64;
/// Offsets of the source and the target buffer.
const SOURCE: usize = 0;
const TARGET: usize = BYTES;
/// Byte with which the target is filled before a message arrives.
const FILL_BYTE: u8 = 0xa5;

/// Layers in the order in which a request passes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// Reset, firmware, capabilities, port.
    BringUp,
    /// Commands that create and connect a queue pair.
    Command,
    /// Doorbell register and doorbell record.
    Doorbell,
    /// Ring from which the device reads requests.
    Queue,
    /// Completion queue, and the contents of its entries.
    Completion,
    /// Transferred bytes.
    Data,
    /// Event of the completion: event queue and MSI-X vector.
    Interrupt,
}

impl Layer {
    /// Returns the layer's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BringUp => "bring-up",
            Self::Command => "command",
            Self::Doorbell => "doorbell",
            Self::Queue => "queue",
            Self::Completion => "completion",
            Self::Data => "data",
            Self::Interrupt => "interrupt",
        }
    }

    /// Returns advice for a failure in this layer.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::BringUp => {
                "the error names the step: the function's reset, its firmware, a capability or a command"
            }
            Self::Command => {
                "status and syndrome say what the firmware does not like; the command's bytes are in the log (RUST_LOG=hw_mlx=trace)"
            }
            Self::Doorbell => {
                "the device did not read the doorbell record: the UAR page, the BAR's mapping, or the record's I/O address (dmesg shows faults of the IOMMU)"
            }
            Self::Queue => {
                "the device knows of the request and did not fetch it: the ring's pages and their I/O addresses (dmesg)"
            }
            Self::Completion => {
                "the request was fetched: the completion queue's pages, the memory key, or the packets' way back to the queue pair"
            }
            Self::Data => "the memory key's translation, or a cache between device and memory",
            Self::Interrupt => {
                "completions come, their interrupts do not: MSI-X, interrupt remapping, /proc/interrupts"
            }
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Result of a self-test that passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// True if the device looped packets back whatever their addresses were. False if they went to its own address.
    pub forced: bool,
    /// Length in bytes of each message: a Send, an RDMA Write and an RDMA Read. All bytes were compared.
    pub bytes: usize,
}

/// Result of a self-test that failed.
#[derive(Debug, Error)]
#[error("{layer}: {what}")]
pub struct Failed {
    /// Layer of the failure.
    pub layer: Layer,
    /// Description of the failure.
    pub what: String,
}

impl Failed {
    fn new(layer: Layer, what: impl fmt::Display) -> Self {
        let what = what.to_string();
        Self { layer, what }
    }

    fn command(error: impl Into<MlxError>) -> Self {
        Self::new(Layer::Command, error.into())
    }
}

/// Brings a function up, lets it send to itself, and tears it down again.
///
/// # Errors
/// The layer that failed, and a description of the failure.
pub fn run(function: Function, config: HcaConfig) -> Result<Passed, Failed> {
    let mut hca =
        Hca::open(function, config).map_err(|error| Failed::new(Layer::BringUp, error))?;
    let exercised = exercise(&mut hca);
    let closed = hca.close();
    let passed = exercised?;
    closed.map_err(|error| Failed::new(Layer::BringUp, error))?;
    Ok(passed)
}

/// Device objects of the test, in order of creation.
struct TestObjects<'a> {
    hca: &'a mut Hca,
    pd: u32,
    memory: Lent<DmaBuffer>,
    mkey: u32,
    key: u32,
    cq: Cq,
    qp: Qp,
    /// Numbers of send queue blocks that the device knew of, and had fetched, before the last request.
    before: (u32, u32),
}

fn exercise(hca: &mut Hca) -> Result<Passed, Failed> {
    let mut rig = TestObjects::new(hca).map_err(Failed::command)?;
    let exercised = rig.exercise();
    let freed = rig.free();
    let passed = exercised?;
    freed.map_err(Failed::command)?;
    Ok(passed)
}

impl<'a> TestObjects<'a> {
    /// Creates the objects. If a step fails, the earlier objects are destroyed with the function.
    fn new(hca: &'a mut Hca) -> Result<Self, MlxError> {
        let doorbells = Doorbells::new(hca.uar().clone());
        let pd = hca.exec(&AllocPdIn::new())?.pd();
        let memory = hca.arena().alloc(2 * BYTES, 4096)?;
        let request = KeyRequest {
            pd,
            address: memory.address(),
            bytes: memory.len() as u64,
            access: Access::LOCAL_READ
                | Access::LOCAL_WRITE
                | Access::REMOTE_READ
                | Access::REMOTE_WRITE,
            variant: 0,
            may_have_windows: false,
        };
        let memory = Lent::new(memory, hca.arena().downgrade());
        let (mkey, key) = mkey::create(hca, &request, memory.get().iova())?;
        let cq = Cq::create(hca, &doorbells, ENTRIES)?;
        let request = QpRequest {
            pd,
            cqn_send: cq.cqn(),
            cqn_receive: cq.cqn(),
            srq: None,
            sizes: SIZES,
            owner: 0,
        };
        let qp = Qp::create(hca, &doorbells, &request)?;
        Ok(Self {
            hca,
            pd,
            memory,
            mkey,
            key,
            cq,
            qp,
            before: (0, 0),
        })
    }

    fn free(mut self) -> Result<(), MlxError> {
        self.qp.destroy(self.hca, &mut self.cq, None)?;
        self.cq.destroy(self.hca)?;
        mkey::destroy(self.hca, self.mkey)?;
        drop(self.memory.give_back());
        self.hca.exec(DeallocPdIn::new().set_pd(self.pd))?;
        Ok(())
    }

    fn exercise(&mut self) -> Result<Passed, Failed> {
        let roce = self.hca.caps().roce();
        let forced = roce.is_some_and(mlx_prm::RoceCap::fl_rc_qp_when_roce_enabled);
        let connected = self.qp.connect_to_itself(self.hca, forced);
        let forced = connected.map_err(Failed::command)?;
        let (target, rmr_context) = (self.memory.get().address() + TARGET as u64, self.key);
        self.moves("Send", RequestOp::Send, SOURCE, 2)?;
        let write = RequestOp::RdmaWrite {
            address: target,
            rmr_context,
        };
        self.moves("RDMA Write", write, SOURCE, 1)?;
        let read = RequestOp::RdmaRead {
            address: self.memory.get().address() + SOURCE as u64,
            rmr_context,
        };
        self.moves("RDMA Read", read, TARGET, 1)?;
        self.interrupts(write)?;
        Ok(Passed {
            forced,
            bytes: BYTES,
        })
    }

    /// Posts a request whose local segment is at offset `local`, waits for `completions` completions, and compares the
    /// target with the source.
    fn moves(
        &mut self,
        name: &'static str,
        op: RequestOp,
        local: usize,
        completions: usize,
    ) -> Result<(), Failed> {
        let sent: Vec<u8> = (0..BYTES)
            // The pattern differs from message to message.
            // PANIC: the value is below 251.
            .map(|at| u8::try_from((at + name.len()) % 251).expect("a byte"))
            .collect();
        self.memory.get().write_bytes(SOURCE, &sent);
        self.memory.get().fill(TARGET, BYTES, FILL_BYTE);
        if completions > 1 {
            let receive = core::iter::once(self.segment(TARGET));
            let posted = self.qp.post_recv(receive, 1, false);
            posted.map_err(|_| Failed::new(Layer::Queue, "no room for a receive"))?;
        }
        self.post(op, local)?;
        for completion in self.completions(name, completions)? {
            if completion.status != Status::Success {
                let (syndrome, vendor) = completion.detail.syndrome();
                let text = crate::completion::explain(syndrome, vendor);
                return Err(Failed::new(
                    Layer::Completion,
                    format!("{name}: {text} (syndrome {syndrome:#04x}, vendor {vendor:#04x})"),
                ));
            }
        }
        let mut arrived = vec![0; BYTES];
        self.memory.get().read_bytes(TARGET, &mut arrived);
        compare(name, &sent, &arrived)
    }

    fn post(&mut self, op: RequestOp, local: usize) -> Result<(), Failed> {
        self.before = self.blocks()?;
        let segment = core::iter::once(self.segment(local));
        let posted = self.qp.post_request(op, segment, 0, RequestFlags::NONE);
        posted.map_err(|_| Failed::new(Layer::Queue, "no room for a request"))
    }

    fn segment(&self, at: usize) -> DataSegment {
        DataSegment {
            lmr_context: self.key,
            address: self.memory.get().address() + at as u64,
            // PANIC: `BYTES` is a constant below 2^31.
            bytes: u32::try_from(BYTES).expect("16 KiB"),
        }
    }

    /// Polls for the given number of completions.
    fn completions(&mut self, name: &str, count: usize) -> Result<Vec<Completion>, Failed> {
        let deadline = self.hca.now() + PATIENCE;
        let mut done = Vec::new();
        loop {
            while let Some(entry) = self.cq.poll() {
                if entry.owner() != self.qp.owner() {
                    let what = format!("{name}: a completion of another queue pair: {entry:?}");
                    return Err(Failed::new(Layer::Completion, what));
                }
                done.extend(self.qp.complete(&entry));
            }
            if done.len() >= count {
                return Ok(done);
            }
            if self.hca.now() >= deadline {
                return Err(self.diagnose(name, done.len(), count));
            }
            let pause = self.hca.now() + PAUSE;
            let waited = self.hca.wait(pause);
            waited.map_err(|error| Failed::new(Layer::Completion, format!("{name}: {error}")))?;
        }
    }

    /// Returns the number of send queue blocks that the device knows of, and the number that it has fetched.
    fn blocks(&mut self) -> Result<(u32, u32), Failed> {
        let context = control::query(self.hca, self.qp.number()).map_err(Failed::command)?;
        Ok((context.sw_sq_wqebb_counter(), context.hw_sq_wqebb_counter()))
    }

    /// Returns the layer in which a request that does not complete is stuck.
    fn diagnose(&mut self, name: &str, done: usize, count: usize) -> Failed {
        let (posted, fetched) = match self.blocks() {
            Ok(blocks) => blocks,
            Err(error) => return error,
        };
        let layer = if posted == self.before.0 {
            Layer::Doorbell
        } else if fetched == self.before.1 {
            Layer::Queue
        } else {
            Layer::Completion
        };
        let what = format!(
            "{name}: {done} of {count} completions after {} s; of the send queue's blocks the device knows {posted} and has fetched {fetched}",
            PATIENCE.as_secs()
        );
        Failed::new(layer, what)
    }

    /// Checks that an armed completion queue raises interrupts. Up to half of [`EVENTS`] interrupts may be late,
    /// because the machine may be busy.
    fn interrupts(&mut self, op: RequestOp) -> Result<(), Failed> {
        let mut late = 0;
        for _ in 0..EVENTS {
            late += u32::from(!self.event(op)?);
        }
        if late <= EVENTS / 2 {
            return Ok(());
        }
        Err(Failed::new(
            Layer::Interrupt,
            format!(
                "{late} of {EVENTS} interrupts did not come within {PROMPT:?} of their request"
            ),
        ))
    }

    /// Returns whether a completion's interrupt came within `PROMPT`. Fails if its event does not come at all.
    fn event(&mut self, op: RequestOp) -> Result<bool, Failed> {
        const NAME: &str = "RDMA Write with an event";
        self.cq.arm(false);
        // Signals of earlier commands and completions must not be counted as this interrupt, so they are cleared first.
        for _ in 0..EVENTS {
            self.hca.process_events();
            if !self.hca.is_interrupted(self.hca.now()) {
                break;
            }
            self.hca.woken();
        }
        self.post(op, SOURCE)?;
        let begin = self.hca.now();
        let prompt = self.hca.is_interrupted(begin + PROMPT);
        let deadline = begin + PATIENCE;
        let ours = Cqn::new(self.cq.cqn());
        loop {
            let waited = self.hca.wait(deadline);
            waited.map_err(|error| Failed::new(Layer::Interrupt, format!("{NAME}: {error}")))?;
            let mut named = core::iter::from_fn(|| self.hca.next_completion());
            if named.any(|cqn| cqn == ours) {
                break;
            }
            if self.hca.now() >= deadline {
                let what = format!("{NAME}: no event in {} s", PATIENCE.as_secs());
                return Err(Failed::new(Layer::Interrupt, what));
            }
        }
        self.cq.sequence().count_event();
        self.completions(NAME, 1)?;
        Ok(prompt)
    }
}

fn compare(name: &str, sent: &[u8], arrived: &[u8]) -> Result<(), Failed> {
    let differs = |(_, (one, other)): &(usize, (&u8, &u8))| one != other;
    let Some((at, (one, other))) = sent.iter().zip(arrived).enumerate().find(differs) else {
        return Ok(());
    };
    let untouched = arrived.iter().all(|byte| *byte == FILL_BYTE);
    let what = if untouched {
        format!("{name} completed, and no byte of it arrived")
    } else {
        format!("{name}: byte {at:#x} is {other:#04x}, {one:#04x} was sent")
    };
    Err(Failed::new(Layer::Data, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_differ_are_named_by_their_place_and_values() {
        let sent = [1, 2, 3, 4];
        compare("Send", &sent, &sent).expect("the same");
        let error = compare("Send", &sent, &[1, 2, 7, 8]).expect_err("they differ");
        assert_eq!(
            error.to_string(),
            "data: Send: byte 0x2 is 0x07, 0x03 was sent"
        );
        let error = compare("RDMA Read", &sent, &[FILL_BYTE; 4]).expect_err("nothing came");
        assert_eq!(
            error.to_string(),
            "data: RDMA Read completed, and no byte of it arrived"
        );
    }
}
