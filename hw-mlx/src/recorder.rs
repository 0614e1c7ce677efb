//! The flight recorder of a function: its last commands, management datagrams, frames of the network protocols, and
//! events of device and link.
//!
//! The recorder belongs to the function, not to one instance, because any instance may process datagrams for all, and
//! events go to all. So there is one ring, from the time when the first instance records until the function is closed.
//!
//! The ring has its own lock, which is acquired after all other locks. A thread that records holds it for one entry.
//! Commands are recorded under the lock of the command queue, datagrams under no other lock, frames under the network's
//! lock. One ring lock keeps all entries in one order. Posts are not recorded, and neither are polls that find no
//! datagram. While recording is off, the cost is the load of a flag.
//!
//! An entry has 32 bytes. The bytes of datagrams, frames and texts do not fit in an entry. They are kept beside the
//! ring, at most [`KEPT_BYTES`] of them, and the oldest are dropped first. So an entry may be kept longer than its
//! bytes.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;
use std::fmt;
use std::net::Ipv6Addr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use driver::Instant;
use mlx_prm::{CmdStatus, Opcode};
use rdma_types::Qpn;
use static_assertions::const_assert;

use crate::error::{CmdError, Mac};
use crate::event::AsyncEvent;
use crate::mad::MAD_BYTES;

/// Maximum number of entries that are kept; older ones are dropped.
pub const RECORDS: usize = 65_536;
/// Maximum bytes of datagrams, frames and texts that are kept, enough for 4000 datagrams; older ones are dropped.
pub const KEPT_BYTES: usize = 1 << 20;

/// Result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// The command succeeded.
    Done,
    /// The firmware refused the command.
    Refused {
        /// Status byte of the answer.
        status: CmdStatus,
        /// The firmware's detail code.
        syndrome: u32,
    },
    /// The command was not delivered, or its answer was invalid.
    Garbled,
    /// The command was not answered in time.
    Unanswered,
}

/// A management datagram and its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Source MAC; 0 for a datagram that arrived, since the device does not report it.
    pub source_mac: [u8; 6],
    /// Destination MAC.
    pub mac: [u8; 6],
    /// Source GID; an IPv4 address is `::ffff:a.b.c.d`.
    pub source: [u8; 16],
    /// Destination GID.
    pub destination: [u8; 16],
    /// Traffic class.
    pub traffic_class: u8,
    /// UDP source port; 0 for a datagram that arrived.
    pub port: u16,
    /// Number of the queue pair that it came from.
    pub source_qpn: Qpn,
    /// Number of the queue pair that it went to.
    pub qpn: Qpn,
    /// The 256 bytes of the datagram.
    pub mad: [u8; MAD_BYTES],
}

/// A recorded entry with its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedRecord {
    /// Time by the clock of the function, in nanoseconds.
    pub at: u64,
    /// The entry.
    pub what: Recorded,
}

/// A recorded entry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recorded {
    /// A command was answered, or its wait was given up.
    Command {
        /// The command.
        opcode: Opcode,
        /// Its result.
        answer: Answer,
        /// Time from the doorbell until the command's owner took the answer or gave up waiting.
        took: Duration,
    },
    /// A management datagram was handed to the device, or came from it.
    Datagram {
        /// True if it was sent, false if it arrived.
        sent: bool,
        /// The datagram; `None` if its bytes were dropped for newer ones.
        datagram: Option<Box<Datagram>>,
    },
    /// A frame of the network protocols: ARP, neighbour discovery, echo, group membership reports.
    Frame {
        /// True if it was sent, false if it arrived.
        sent: bool,
        /// Bytes of the frame from the destination MAC on; `None` if they were dropped for newer ones.
        frame: Option<Box<[u8]>>,
    },
    /// Text of an event of device, link or network; `None` if it was dropped for newer ones.
    Event(Option<Box<str>>),
}

/// An entry of the ring.
#[derive(Clone, Copy)]
enum Entry {
    Command {
        opcode: Opcode,
        answer: Answer,
        took: u64,
    },
    Datagram {
        sent: bool,
        kept: u64,
    },
    Frame {
        sent: bool,
        kept: u64,
    },
    Event {
        kept: u64,
    },
}

#[derive(Clone, Copy)]
struct Record {
    at: u64,
    entry: Entry,
}

const_assert!(size_of::<Record>() <= 32);

/// Data of an entry that does not fit in the entry itself.
#[derive(Clone)]
enum Kept {
    Datagram(Box<Datagram>),
    Frame(Box<[u8]>),
    Text(Box<str>),
}

impl Kept {
    fn bytes(&self) -> usize {
        match self {
            Self::Datagram(_) => MAD_BYTES,
            Self::Frame(frame) => frame.len(),
            Self::Text(text) => text.len(),
        }
    }
}

#[derive(Default)]
struct Ring {
    records: VecDeque<Record>,
    /// Number of entries that were dropped for newer ones.
    before: u64,
    kept: VecDeque<Kept>,
    kept_bytes: usize,
    /// Running number of the oldest data that is kept.
    first_kept: u64,
}

impl Ring {
    fn push(&mut self, at: u64, entry: Entry) {
        if self.records.len() == RECORDS {
            self.records.pop_front();
            self.before += 1;
        }
        self.records.push_back(Record { at, entry });
    }

    /// Keeps data and drops the oldest if the limit is exceeded. Returns the running number of the data.
    fn keep(&mut self, kept: Kept) -> u64 {
        self.kept_bytes += kept.bytes();
        self.kept.push_back(kept);
        while self.kept_bytes > KEPT_BYTES
            && let Some(oldest) = self.kept.pop_front()
        {
            self.kept_bytes -= oldest.bytes();
            self.first_kept += 1;
        }
        // CAST: usize to u64 is widening.
        (self.first_kept + self.kept.len() as u64).saturating_sub(1)
    }

    fn kept(&self, number: u64) -> Option<&Kept> {
        let at = number.checked_sub(self.first_kept)?;
        self.kept.get(usize::try_from(at).ok()?)
    }

    fn timed_record(&self, record: &Record) -> TimedRecord {
        let what = match record.entry {
            Entry::Command {
                opcode,
                answer,
                took,
            } => Recorded::Command {
                opcode,
                answer,
                took: Duration::from_nanos(took),
            },
            Entry::Datagram { sent, kept } => Recorded::Datagram {
                sent,
                datagram: match self.kept(kept) {
                    Some(Kept::Datagram(datagram)) => Some(datagram.clone()),
                    Some(Kept::Frame(_) | Kept::Text(_)) | None => None,
                },
            },
            Entry::Frame { sent, kept } => Recorded::Frame {
                sent,
                frame: match self.kept(kept) {
                    Some(Kept::Frame(frame)) => Some(frame.clone()),
                    Some(Kept::Datagram(_) | Kept::Text(_)) | None => None,
                },
            },
            Entry::Event { kept } => Recorded::Event(match self.kept(kept) {
                Some(Kept::Text(text)) => Some(text.clone()),
                Some(Kept::Datagram(_) | Kept::Frame(_)) | None => None,
            }),
        };
        TimedRecord {
            at: record.at,
            what,
        }
    }
}

/// The recorder of a function.
#[derive(Default)]
pub struct Recorder {
    on: AtomicBool,
    ring: Mutex<Ring>,
}

impl Recorder {
    /// Starts recording. Allocates 2 MiB for the ring; kept data is allocated as it comes. Does nothing if recording is
    /// already on.
    pub fn start(&self) {
        let mut ring = self.lock();
        let room = RECORDS.saturating_sub(ring.records.len());
        ring.records.reserve_exact(room);
        self.on.store(true, Ordering::Relaxed);
    }

    /// Returns the recorded entries; `None` if recording is off.
    #[must_use]
    pub fn dump(&self) -> Option<RecorderDump> {
        self.is_on().then(|| {
            let ring = self.lock();
            RecorderDump {
                before: ring.before,
                records: ring
                    .records
                    .iter()
                    .map(|record| ring.timed_record(record))
                    .collect(),
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        // A panic under this lock leaves at most bytes that no entry refers to.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether recording is on.
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Records the answer of a command.
    pub(crate) fn answered(
        &self,
        now: Instant,
        opcode: Opcode,
        answer: &Result<Vec<u8>, CmdError>,
        took: Duration,
    ) {
        if self.is_on() {
            let answer = match answer {
                Ok(_) => Answer::Done,
                Err(CmdError::Refused {
                    status, syndrome, ..
                }) => Answer::Refused {
                    status: *status,
                    syndrome: *syndrome,
                },
                Err(_) => Answer::Garbled,
            };
            self.command(now, opcode, answer, took);
        }
    }

    /// Records a command whose wait was given up.
    pub(crate) fn unanswered(&self, now: Instant, opcode: Opcode, took: Duration) {
        if self.is_on() {
            self.command(now, opcode, Answer::Unanswered, took);
        }
    }

    fn command(&self, now: Instant, opcode: Opcode, answer: Answer, took: Duration) {
        let entry = Entry::Command {
            opcode,
            answer,
            took: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
        };
        self.lock().push(now.0, entry);
    }

    /// Records a management datagram that was handed to the device, or came from it.
    pub(crate) fn datagram(&self, now: Instant, sent: bool, datagram: Datagram) {
        let mut ring = self.lock();
        let kept = ring.keep(Kept::Datagram(Box::new(datagram)));
        ring.push(now.0, Entry::Datagram { sent, kept });
    }

    /// Records a frame that was handed to the device, or came from it.
    pub fn frame(&self, now: Instant, sent: bool, frame: &[u8]) {
        if self.is_on() {
            let mut ring = self.lock();
            let kept = ring.keep(Kept::Frame(frame.into()));
            ring.push(now.0, Entry::Frame { sent, kept });
        }
    }

    pub(crate) fn event(&self, now: Instant, event: &AsyncEvent) {
        if self.is_on() {
            let mut ring = self.lock();
            let kept = ring.keep(Kept::Text(event.to_string().into()));
            ring.push(now.0, Entry::Event { kept });
        }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder")
            .field("on", &self.is_on())
            .finish_non_exhaustive()
    }
}

/// Contents of a function's recorder.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecorderDump {
    /// Number of older entries, which were dropped.
    pub before: u64,
    /// The entries, oldest first.
    pub records: Vec<TimedRecord>,
}

impl RecorderDump {
    /// Keeps only the last `entries` entries.
    #[must_use]
    pub fn last(mut self, entries: usize) -> Self {
        let dropped = self.records.len().saturating_sub(entries);
        self.records.drain(..dropped);
        self.before += dropped as u64; // CAST: widening.
        self
    }
}

/// Returns class, method and attribute of a management datagram as text (IBTA volume 1, "Management Datagram
/// Format").
fn in_numbers(mad: &[u8; MAD_BYTES]) -> String {
    let [_, class, _, method] = [mad[0], mad[1], mad[2], mad[3]];
    let attribute = u16::from_be_bytes([mad[16], mad[17]]);
    format!("class {class:#04x}, method {method:#04x}, attribute {attribute:#06x}")
}

/// Formats the entry as text, without its time.
impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const GONE: &str = "(its bytes made room for newer ones)";
        let way = |sent: bool| if sent { "sent" } else { "received" };
        match self {
            Self::Command {
                opcode,
                answer,
                took,
            } => {
                match opcode.name() {
                    Some(name) => write!(f, "command {name}: ")?,
                    None => write!(f, "command {:#06x}: ", opcode.0)?,
                }
                match answer {
                    Answer::Done => f.write_str("done")?,
                    Answer::Refused { status, syndrome } => write!(
                        f,
                        "refused, status {:#04x}, syndrome {syndrome:#010x}",
                        status.0
                    )?,
                    Answer::Garbled => f.write_str("not delivered, or its answer is garbled")?,
                    Answer::Unanswered => f.write_str("no answer")?,
                }
                let took = took.as_nanos();
                write!(f, ", after {}.{:03} us", took / 1000, took % 1000)
            }
            Self::Datagram { sent, datagram } => {
                write!(f, "datagram {}: ", way(*sent))?;
                let Some(datagram) = datagram else {
                    return f.write_str(GONE);
                };
                let gid = |gid: [u8; 16]| Ipv6Addr::from(gid).to_canonical();
                write!(
                    f,
                    "{}, {} to {}",
                    in_numbers(&datagram.mad),
                    gid(datagram.source),
                    gid(datagram.destination)
                )
            }
            Self::Frame { sent, frame } => {
                write!(f, "frame {}: ", way(*sent))?;
                let Some(frame) = frame else {
                    return f.write_str(GONE);
                };
                if let Some((to, rest)) = frame.split_first_chunk::<6>()
                    && let Some((from, rest)) = rest.split_first_chunk::<6>()
                    && let Some((kind, _)) = rest.split_first_chunk::<2>()
                {
                    let kind = match u16::from_be_bytes(*kind) {
                        0x0806 => "ARP".to_owned(),
                        0x0800 => "IPv4".to_owned(),
                        0x86dd => "IPv6".to_owned(),
                        0x8100 => "of a VLAN".to_owned(),
                        other => format!("EtherType {other:#06x}"),
                    };
                    write!(f, "{kind}, {} to {}, ", Mac(*from), Mac(*to))?;
                }
                write!(f, "{} bytes", frame.len())
            }
            Self::Event(Some(text)) => f.write_str(text),
            Self::Event(None) => f.write_str("an event (its text made room for newer ones)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorder_that_was_not_started_keeps_nothing() {
        let recorder = Recorder::default();
        recorder.event(Instant(1), &AsyncEvent::PortDown);
        recorder.frame(Instant(1), true, &[0; 64]);
        assert!(recorder.dump().is_none());
        assert_eq!(recorder.lock().records.len(), 0);
    }

    #[test]
    fn bytes_of_the_oldest_frames_go_first_and_their_entries_say_so() {
        let recorder = Recorder::default();
        recorder.start();
        let frames = KEPT_BYTES / 1024 + 3;
        for at in 0..frames {
            recorder.frame(Instant(at as u64), true, &[at.to_be_bytes()[7]; 1024]);
        }
        let dump = recorder.dump().expect("it records");
        assert_eq!((dump.before, dump.records.len()), (0, frames));
        for (at, told) in dump.records.iter().enumerate() {
            let Recorded::Frame { sent: true, frame } = &told.what else {
                panic!("{told:?}")
            };
            let kept = frame.as_ref().map(|frame| frame[0]);
            assert_eq!(kept, (at >= 3).then(|| at.to_be_bytes()[7]), "frame {at}");
        }
        assert!(dump.records[0].what.to_string().contains("made room"));
    }

    #[test]
    fn a_full_ring_keeps_the_last_entries_and_counts_the_lost_ones() {
        let recorder = Recorder::default();
        recorder.start();
        let took = Duration::from_nanos(1_500);
        for at in 0..RECORDS as u64 + 2 {
            recorder.answered(Instant(at), Opcode::CREATE_QP, &Ok(Vec::new()), took);
        }
        let dump = recorder.dump().expect("it records");
        assert_eq!((dump.before, dump.records.len()), (2, RECORDS));
        assert_eq!(dump.records[0].at, 2);
        let text = dump.records[0].what.to_string();
        assert_eq!(text, "command CREATE_QP: done, after 1.500 us");
        assert_eq!(dump.last(1).before, RECORDS as u64 + 1);
    }
}
