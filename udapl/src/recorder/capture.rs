//! Writes a dump as a pcapng file.
//!
//! The file has two interfaces. The first has frames: ARP and neighbour discovery frames as they were, and MADs in
//! frames that are rebuilt around their bytes ([`datagram_frame`]; the frame's comment says so). Its link type is
//! Ethernet, for which Wireshark has dissectors of InfiniBand's connection manager; it has none for a link type of
//! our own. The second interface has notes, which were never on the wire.
//!
//! Times are those of the wall clock. In a simulation they are those of the function's own clock, so that a repeated
//! run writes the same file.

use std::io::Write;

use control::schema::Entry;
use dat_core::DtoStatus;
use dat_core::recorder::{Posted, Record, Recorded};
use dat_mlx::InWords;
use hw_mlx::recorder::{Recorded as OfFunction, TimedRecord};
use hw_sim::PortType;
use hw_sim::pcap::{Capture, Remark};

use super::frame::datagram_frame;
use super::{Dump, Qpn};

pub use hw_sim::pcap::CaptureError;

/// Comment on every rebuilt MAD frame.
const REBUILT: &str = "the bytes of the datagram are those that the card was given, or gave us; the headers around it are \
built again from what the card was told, and what it does not tell is 0";

/// A packet block of the file.
enum PacketBlock {
    /// A note.
    Note(Box<Entry>),
    /// A frame with its comment.
    Frame {
        /// Bytes of the frame.
        bytes: Vec<u8>,
        /// True if the function sent it; false if it arrived.
        sent: bool,
        /// Comment for readers.
        comment: String,
    },
}

impl Dump {
    /// Writes the file.
    ///
    /// # Errors
    /// I/O errors of the writer.
    pub fn write_pcapng(&self, writer: impl Write) -> Result<(), CaptureError> {
        let mut capture = Capture::new(writer)?;
        let frames = capture.add_interface(&self.adapter, PortType::Ethernet)?;
        let notes = capture.add_notes(&format!("{}, what the card was told", self.adapter))?;
        let origin = self.origin.map_or(0, |origin| {
            u64::try_from(origin.as_nanos()).unwrap_or_default()
        });
        for (at, written) in self.in_order() {
            let at = origin.saturating_add(at);
            match written {
                PacketBlock::Note(entry) => {
                    // PANIC: the entry has only names and numbers, which JSON can represent.
                    let json = serde_json::to_string(&entry).expect("an entry");
                    capture.note(notes, at, &json)?;
                }
                PacketBlock::Frame {
                    bytes,
                    sent,
                    comment,
                } => {
                    let comment = comment.as_str();
                    capture.remarked(frames, at, &bytes, Remark { comment, sent })?;
                }
            }
        }
        capture.flush()
    }

    /// Returns all packet blocks in the order in which they are written, each with its time by the function's clock.
    fn in_order(&self) -> Vec<(u64, PacketBlock)> {
        let mut all = Vec::new();
        for dump in &self.instances {
            let instance = dump.instance;
            let records = dump.records.iter();
            all.extend(records.map(|record| (record.at, note(of_instance(instance, record)))));
        }
        let told = self.function.iter().flat_map(|dump| &dump.records);
        all.extend(told.map(|told| (told.at, of_function(told))));
        all.sort_by_key(|(at, _)| *at);
        let end = self.at();
        for dump in &self.instances {
            let instance = Some(dump.instance);
            all.extend(dump.endpoints.iter().map(|ep| {
                let entry = Entry {
                    kind: "endpoint".to_owned(),
                    says: format!("EP {} of instance {}", ep.ep, dump.instance),
                    instance,
                    endpoint: Some(ep.ep),
                    queue_pair: ep.qp_number.map(Qpn::get),
                    peer: ep.peer.map(|peer| peer.to_string()),
                    ..Entry::default()
                };
                (end, note(entry))
            }));
        }
        let entry = Entry {
            kind: "dump".to_owned(),
            says: self.reason.clone(),
            adapter: Some(self.adapter.clone()),
            process: Some(self.process),
            ..Entry::default()
        };
        all.push((end, note(entry)));
        all
    }
}

fn note(entry: Entry) -> PacketBlock {
    PacketBlock::Note(Box::new(entry))
}

fn of_instance(instance: u32, record: &Record) -> Entry {
    let entry = Entry {
        says: record.to_string(),
        instance: Some(instance),
        endpoint: Some(record.ep),
        ..Entry::default()
    };
    let done = |status: DtoStatus, receive| {
        let good = status == DtoStatus::Success;
        let [_, vendor, _, syndrome] = record.context.to_be_bytes();
        Entry {
            kind: "completion".to_owned(),
            what: Some(status.name().to_owned()),
            receive: Some(receive),
            bytes: good.then_some(record.bytes),
            cookie: Some(record.cookie),
            syndromes: (!good).then_some((syndrome, vendor)),
            ..entry.clone()
        }
    };
    match record.what {
        Recorded::Posted(what) => Entry {
            kind: "post".to_owned(),
            what: Some(what.name().to_owned()),
            receive: Some(what == Posted::Recv),
            bytes: Some(record.bytes),
            cookie: Some(record.cookie),
            ..entry
        },
        Recorded::RequestDone(status) => done(status, false),
        Recorded::RecvDone(status) => done(status, true),
        Recorded::State(from, to) => Entry {
            kind: "state".to_owned(),
            what: Some(to.name().to_owned()),
            from: Some(from.name().to_owned()),
            queue_pair: (record.context != 0).then_some(record.context),
            ..entry
        },
        Recorded::Ended(cause) => Entry {
            kind: "end".to_owned(),
            what: Some(cause.to_string()),
            ..entry
        },
        _ => Entry {
            kind: "event".to_owned(),
            ..entry
        },
    }
}

fn of_function(told: &TimedRecord) -> PacketBlock {
    let says = InWords(&told.what).to_string();
    let kind = match &told.what {
        OfFunction::Datagram {
            sent,
            datagram: Some(datagram),
        } => {
            return PacketBlock::Frame {
                bytes: datagram_frame(datagram),
                sent: *sent,
                comment: format!("{says}\n{REBUILT}"),
            };
        }
        OfFunction::Frame {
            sent,
            frame: Some(frame),
        } => {
            return PacketBlock::Frame {
                bytes: frame.to_vec(),
                sent: *sent,
                comment: says,
            };
        }
        OfFunction::Datagram { datagram: None, .. } | OfFunction::Frame { frame: None, .. } => {
            "lost"
        }
        OfFunction::Command { .. } => "command",
        OfFunction::Event(_) | _ => "event",
    };
    note(Entry {
        kind: kind.to_owned(),
        says,
        ..Entry::default()
    })
}
