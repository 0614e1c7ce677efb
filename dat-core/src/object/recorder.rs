//! The flight recorder of an instance: its last posts, completions and state changes, in a ring that is allocated when
//! recording starts.
//!
//! Recording disables the fast path of an endpoint ([`AtOnce`](super::ep::AtOnce)), and adds an obstacle to every EVD.
//! So every post and every completion takes the ordered path, which records it. While recording is off it costs
//! nothing.
//!
//! The provider records what belongs to the whole adapter: commands, datagrams, events of the device
//! ([`Provider::record`](crate::provider::Provider::record)).
//!
//! After a failure there may be no program left that asks for the records. So a [`Keeper`] receives them when a
//! connection breaks, and when the instance's thread panics, which drops the recorder. A peer can break connections as
//! often as it wants, so the number of calls for broken connections is limited.

use core::fmt;
use std::net::IpAddr;

use super::ep::cause::EndCause;
use super::ep::state::EpState;
use crate::log_budget::LogBudget;
use crate::provider::{Completion, Nanos, Qpn, RequestOp};
use crate::types::DtoStatus;

/// Number of events that a recorder keeps.
pub const RECORDS: usize = 65_536;

/// A recorded event: its time, its endpoint and its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Record {
    /// Time of the event, by the clock of the function.
    pub at: Nanos,
    /// Consumer's cookie of a post or completion; 0 for other events.
    pub cookie: u64,
    /// Number of bytes posted or transferred; 4 GiB - 1 also stands for any larger number.
    pub bytes: u32,
    /// Number that depends on the kind. For a bind: the new `rmr_context`. For another post: the peer's `rmr_context`.
    /// For a failed completion: the device's syndrome, with the vendor syndrome in the upper half. For a state: the
    /// queue pair number. Otherwise 0.
    pub context: u32,
    /// Number of the endpoint in the instance.
    pub ep: u32,
    /// Kind of event.
    pub what: Recorded,
}

static_assertions::const_assert_eq!(size_of::<Record>(), 32);

/// Kind of a recorded event, with its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recorded {
    /// A DTO or a bind was posted, and its doorbell was rung.
    Posted(Posted),
    /// A request completed with this status.
    RequestDone(DtoStatus),
    /// A receive completed with this status.
    RecvDone(DtoStatus),
    /// The endpoint changed from the first state to the second.
    State(EpState, EpState),
    /// A connection, or an attempt to connect, ended for this cause.
    Ended(EndCause),
}

/// Kind of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Posted {
    /// A Send.
    Send,
    /// A Send with immediate data.
    SendImmediate,
    /// A Send that invalidates a context of the peer.
    SendInvalidate,
    /// An RDMA Write.
    RdmaWrite,
    /// An RDMA Write with immediate data.
    RdmaWriteImmediate,
    /// An RDMA Read.
    RdmaRead,
    /// A fetch-and-add.
    FetchAdd,
    /// A compare-and-swap.
    CompareSwap,
    /// A bind of a memory window.
    Bind,
    /// A receive.
    Recv,
}

impl Posted {
    /// Returns the usual name of the operation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "Send",
            Self::SendImmediate => "Send with immediate data",
            Self::SendInvalidate => "Send with invalidate",
            Self::RdmaWrite => "RDMA Write",
            Self::RdmaWriteImmediate => "RDMA Write with immediate data",
            Self::RdmaRead => "RDMA Read",
            Self::FetchAdd => "fetch-and-add",
            Self::CompareSwap => "compare-and-swap",
            Self::Bind => "bind",
            Self::Recv => "receive",
        }
    }

    /// Returns the kind of a request, and the peer's RMR context that the request names, or 0.
    pub(crate) const fn request(op: RequestOp) -> (Self, u32) {
        match op {
            RequestOp::Send => (Self::Send, 0),
            RequestOp::SendImmediate(_) => (Self::SendImmediate, 0),
            RequestOp::SendInvalidate { rmr_context } => (Self::SendInvalidate, rmr_context),
            RequestOp::RdmaWrite { rmr_context, .. } => (Self::RdmaWrite, rmr_context),
            RequestOp::RdmaWriteImmediate { rmr_context, .. } => {
                (Self::RdmaWriteImmediate, rmr_context)
            }
            RequestOp::RdmaRead { rmr_context, .. } => (Self::RdmaRead, rmr_context),
            RequestOp::FetchAdd { rmr_context, .. } => (Self::FetchAdd, rmr_context),
            RequestOp::CompareSwap { rmr_context, .. } => (Self::CompareSwap, rmr_context),
        }
    }
}

impl Record {
    pub(crate) fn posted(
        at: Nanos,
        ep: u32,
        (what, context): (Posted, u32),
        bytes: u64,
        cookie: u64,
    ) -> Self {
        Self {
            at,
            cookie,
            bytes: bytes.try_into().unwrap_or(u32::MAX),
            context,
            ep,
            what: Recorded::Posted(what),
        }
    }

    pub(crate) fn done(at: Nanos, ep: u32, done: &Completion) -> Self {
        let (syndrome, vendor) = done.detail.syndrome();
        let good = done.status == DtoStatus::Success;
        let bytes = if good { done.transferred } else { 0 };
        Self {
            at,
            cookie: done.cookie,
            bytes: bytes.try_into().unwrap_or(u32::MAX),
            context: u32::from(vendor) << 16 | u32::from(syndrome),
            ep,
            what: if done.request {
                Recorded::RequestDone(done.status)
            } else {
                Recorded::RecvDone(done.status)
            },
        }
    }

    pub(crate) const fn state(
        at: Nanos,
        ep: u32,
        qpn: Option<Qpn>,
        from: EpState,
        to: EpState,
    ) -> Self {
        Self {
            at,
            cookie: 0,
            bytes: 0,
            context: match qpn {
                Some(qpn) => qpn.get(),
                None => 0,
            },
            ep,
            what: Recorded::State(from, to),
        }
    }

    pub(crate) const fn ended(at: Nanos, ep: u32, cause: EndCause) -> Self {
        Self {
            at,
            cookie: 0,
            bytes: 0,
            context: 0,
            ep,
            what: Recorded::Ended(cause),
        }
    }
}

/// Prints one event: the endpoint, the kind, and its numbers. [`RecorderDump`] prints the time.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cookie, bytes, .. } = *self;
        write!(f, "EP {}: ", self.ep)?;
        let (part, status) = match self.what {
            Recorded::State(from, to) => return write!(f, "{} -> {}", from.name(), to.name()),
            Recorded::Ended(cause) => return write!(f, "the connection is over: {cause}"),
            Recorded::Posted(what) => {
                write!(f, "{} posted, {bytes} bytes, ", what.name())?;
                if self.context != 0 {
                    write!(f, "rmr_context {:#x}, ", self.context)?;
                }
                return write!(f, "cookie {cookie:#x}");
            }
            Recorded::RequestDone(status) => ("request", status),
            Recorded::RecvDone(status) => ("receive", status),
        };
        write!(f, "{part} done, {}, ", status.name())?;
        if status == DtoStatus::Success {
            write!(f, "{bytes} bytes, ")?;
        }
        if self.context != 0 {
            let (syndrome, vendor) = (self.context & 0xffff, self.context >> 16);
            write!(
                f,
                "syndrome {syndrome:#04x}, vendor syndrome {vendor:#04x}, "
            )?;
        }
        write!(f, "cookie {cookie:#x}")
    }
}

/// Occasion on which a [`Keeper`] is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Occasion {
    /// A connection broke.
    Broken {
        /// Number of the endpoint in the instance.
        ep: u32,
        /// Cause of the break; `None` if it is unknown.
        cause: Option<EndCause>,
    },
    /// The instance's thread is panicking.
    Panic,
}

/// A function that receives the records. It runs in the instance's thread, and must not call the instance.
pub type Keeper = Box<dyn FnMut(Occasion, RecorderDump) + Send>;

/// Ring of the last recorded events.
pub(crate) struct Recorder {
    /// Number of the instance in the process.
    instance: u32,
    ring: Vec<Record>,
    /// Number of events recorded since the start.
    recorded: u64,
    keeper: Option<Keeper>,
    budget: LogBudget,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if std::thread::panicking() && self.keeper.is_some() {
            // During a panic the clock and the endpoints cannot be read, so the time of the last event is used.
            let at = self.last().map_or(0, |record| record.at);
            let dump = self.dump(at, Vec::new());
            if let Some(keeper) = &mut self.keeper {
                keeper(Occasion::Panic, dump);
            }
        }
    }
}

impl Recorder {
    /// Allocates and writes all of the ring once, so that no post causes a page fault.
    pub(crate) fn new(instance: u32) -> Self {
        let nothing = Record::state(0, 0, None, EpState::Unconnected, EpState::Unconnected);
        Self {
            instance,
            ring: vec![nothing; RECORDS],
            recorded: 0,
            keeper: None,
            budget: LogBudget::default(),
        }
    }

    pub(crate) const fn has_keeper(&self) -> bool {
        self.keeper.is_some()
    }

    pub(crate) fn set_keeper(&mut self, keeper: Keeper) {
        self.keeper = Some(keeper);
    }

    /// Returns whether the keeper must be called for a connection that broke now. Counts against the limit of calls.
    pub(crate) fn is_wanted(&mut self, now: Nanos) -> bool {
        self.keeper.is_some() && self.budget.take(now).is_some()
    }

    pub(crate) fn call_keeper(&mut self, occasion: Occasion, dump: RecorderDump) {
        if let Some(keeper) = &mut self.keeper {
            keeper(occasion, dump);
        }
    }

    fn last(&self) -> Option<&Record> {
        let last = self.recorded.checked_sub(1)? % RECORDS as u64; // CAST: widening.
        self.ring.get(usize::try_from(last).ok()?)
    }

    #[inline]
    pub(crate) fn push(&mut self, record: Record) {
        // CAST: less than the number of entries in the ring.
        #[expect(clippy::cast_possible_truncation, reason = "below RECORDS")]
        let place = (self.recorded % RECORDS as u64) as usize;
        self.ring[place] = record;
        self.recorded += 1;
    }

    pub(crate) fn dump(&self, at: Nanos, endpoints: Vec<RecordedEp>) -> RecorderDump {
        let kept = usize::try_from(self.recorded).map_or(RECORDS, |all| all.min(RECORDS));
        let (mut records, place) = (Vec::with_capacity(kept), self.recorded % RECORDS as u64);
        if kept == RECORDS {
            let oldest = usize::try_from(place).unwrap_or(0);
            records.extend_from_slice(&self.ring[oldest..]);
            records.extend_from_slice(&self.ring[..oldest]);
        } else {
            records.extend_from_slice(&self.ring[..kept]);
        }
        RecorderDump {
            instance: self.instance,
            at,
            before: self.recorded - kept as u64,
            records,
            endpoints,
        }
    }
}

/// Contents of a recorder. The text form has one line about the dump, then one line per event. The time of an event is
/// given in milliseconds before the dump.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecorderDump {
    /// Number of the instance in the process.
    pub instance: u32,
    /// Time of the dump, by the clock of the function.
    pub at: Nanos,
    /// Number of older events that were overwritten or dropped.
    pub before: u64,
    /// The events, oldest first.
    pub records: Vec<Record>,
    /// The endpoints at the time of the dump; empty if the thread panicked.
    pub endpoints: Vec<RecordedEp>,
}

/// An endpoint that recorded events refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedEp {
    /// Number of the endpoint in the instance.
    pub ep: u32,
    /// Number of the endpoint's queue pair; `None` if it has none.
    pub qp_number: Option<Qpn>,
    /// Address of the peer; `None` if the endpoint has none.
    pub peer: Option<IpAddr>,
}

impl RecorderDump {
    /// Returns the dump with at most the last `events` events.
    #[must_use]
    pub fn last(mut self, events: usize) -> Self {
        let dropped = self.records.len().saturating_sub(events);
        self.records.drain(..dropped);
        self.before += dropped as u64; // CAST: widening.
        self
    }
}

impl fmt::Display for RecorderDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "instance {}, {} events, {} older ones lost; time in ms before the dump",
            self.instance,
            self.records.len(),
            self.before
        )?;
        for record in &self.records {
            let ago = self.at.saturating_sub(record.at);
            let (ms, ns) = (ago / 1_000_000, ago % 1_000_000);
            writeln!(f, "{:>12} {record}", format!("-{ms}.{ns:06}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_ring_keeps_the_last_events_oldest_first_and_tells_how_many_are_lost() {
        let mut recorder = Recorder::new(7);
        let (all, kept) = (RECORDS as u64 + 3, RECORDS as u64);
        for at in 0..all {
            recorder.push(Record::posted(at, 1, (Posted::Send, 0), 8, at));
        }
        let dump = recorder.dump(all, Vec::new());
        assert_eq!((dump.before, dump.records.len()), (3, RECORDS));
        assert!(dump.records.iter().map(|record| record.at).eq(3..3 + kept));
        let last = dump.last(2);
        assert_eq!(last.before, all - 2);
        assert!(last.records.iter().map(|record| record.at).eq(all - 2..all));
    }

    #[test]
    fn a_thread_that_panics_hands_its_recorder_over() {
        let (to, kept) = std::sync::mpsc::channel();
        let mut recorder = Recorder::new(3);
        recorder.set_keeper(Box::new(move |occasion, dump| {
            to.send((occasion, dump)).expect("somebody listens");
        }));
        recorder.push(Record::ended(5, 1, EndCause::TimedOut));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _recorder = recorder;
            panic!("for a test");
        }));
        assert!(panicked.is_err());
        let (occasion, dump) = kept.try_recv().expect("it was handed over");
        assert_eq!((occasion, dump.instance, dump.at), (Occasion::Panic, 3, 5));
        assert!(dump.to_string().contains("the connect timed out"));
    }

    #[test]
    fn a_recorder_dropped_without_a_panic_is_not_handed_over() {
        let mut recorder = Recorder::new(3);
        recorder.set_keeper(Box::new(|occasion, _| panic!("{occasion:?}")));
        drop(recorder);
    }

    #[test]
    fn more_bytes_than_a_record_has_room_for_are_not_few() {
        let record = Record::posted(0, 1, (Posted::Send, 0), 1 << 32, 0);
        assert_eq!(record.bytes, u32::MAX);
    }
}
