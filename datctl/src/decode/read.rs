//! The reader of a flight recorder's file.

use std::error::Error;
use std::path::Path;

use control::schema::Entry;
use hw_sim::pcap::{NOTE_HEADER, Remark};
use hw_sim::wire::Packet;
use pcap_file::DataLink;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use udapl::recorder::{Mad, Message};

/// Limit on the size of a file, in bytes.
const LONGEST: u64 = 1 << 30;

/// Contents of a file.
pub(super) struct File {
    /// Name of the adapter, as recorded.
    pub(super) adapter: String,
    /// ID of the process that had the adapter open.
    pub(super) process: Option<u32>,
    /// Reason why the file was written.
    pub(super) reason: String,
    /// Endpoints that existed when the file was written.
    pub(super) endpoints: Vec<Entry>,
    /// Events, in the order of the file.
    pub(super) events: Vec<TimedEvent>,
}

/// An event.
pub(super) struct TimedEvent {
    /// Time in nanoseconds of the file's clock.
    pub(super) at: u64,
    /// The event itself.
    pub(super) what: What,
}

/// Kinds of events.
pub(super) enum What {
    /// A note of the recorder: an action of the driver, or a report of the device.
    Note(Box<Entry>),
    /// A message of the connection manager.
    Message {
        /// True if the message was sent; false if it arrived.
        sent: bool,
        /// The decoded message.
        message: Box<Message>,
        /// The bytes of the message.
        mad: Box<Mad>,
    },
}

impl File {
    pub(super) fn read(path: &Path) -> Result<Self, Box<dyn Error>> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let file = std::fs::File::open(path).map_err(|error| failed(&error))?;
        let metadata = file.metadata().map_err(|error| failed(&error))?;
        if !metadata.is_file() {
            return Err(failed(&"not a regular file; a recorder writes one").into());
        }
        let bytes = metadata.len();
        if bytes > LONGEST {
            return Err(failed(&format!("{bytes} bytes are more than a recorder writes")).into());
        }
        let reader = std::io::BufReader::new(file);
        let mut reader = PcapNgReader::new(reader).map_err(|error| {
            failed(&format!(
                "not a pcapng file, which a recorder writes: {error}"
            ))
        })?;
        let mut read = Self {
            adapter: "?".to_owned(),
            process: None,
            reason: String::new(),
            endpoints: Vec::new(),
            events: Vec::new(),
        };
        let (mut links, mut notes) = (Vec::new(), 0_usize);
        while let Some(block) = reader.next_block() {
            match block.map_err(|error| failed(&error))? {
                Block::InterfaceDescription(interface) => links.push(interface.linktype),
                Block::EnhancedPacket(packet) => {
                    let link = usize::try_from(packet.interface_id)
                        .ok()
                        .and_then(|at| links.get(at));
                    let at = u64::try_from(packet.timestamp.as_nanos()).unwrap_or(u64::MAX);
                    let sent = packet.options.iter().any(|option| {
                        matches!(option, EnhancedPacketOption::Flags(flags) if Remark::is_sent(*flags))
                    });
                    match link {
                        Some(DataLink::WIRESHARK_UPPER_PDU) => {
                            notes += usize::from(read.note(at, &packet.data));
                        }
                        Some(DataLink::ETHERNET) => read.frame(at, sent, &packet.data),
                        Some(_) | None => {}
                    }
                }
                Block::SectionHeader(_)
                | Block::Packet(_)
                | Block::SimplePacket(_)
                | Block::NameResolution(_)
                | Block::InterfaceStatistics(_)
                | Block::SystemdJournalExport(_)
                | Block::Unknown(_) => {}
            }
        }
        if notes == 0 {
            return Err(failed(&"no file of a flight recorder: it has none of its notes").into());
        }
        Ok(read)
    }

    /// Reads a note. Returns false if the data are no note of a flight recorder.
    fn note(&mut self, at: u64, bytes: &[u8]) -> bool {
        let Some(json) = bytes.strip_prefix(&NOTE_HEADER) else {
            return false;
        };
        let Ok(entry) = serde_json::from_slice::<Entry>(json) else {
            return false;
        };
        match entry.kind.as_str() {
            "dump" => {
                self.adapter = entry.adapter.unwrap_or_default();
                self.process = entry.process;
                self.reason = entry.says;
            }
            "endpoint" => self.endpoints.push(entry),
            _ => self.events.push(TimedEvent {
                at,
                what: What::Note(Box::new(entry)),
            }),
        }
        true
    }

    /// Reads a frame, if it contains a datagram of the connection manager.
    fn frame(&mut self, at: u64, sent: bool, bytes: &[u8]) {
        let Ok(packet) = Packet::parse_ignoring_icrc(bytes) else {
            return;
        };
        let Some(mad) = packet.payload.first_chunk::<256>() else {
            return;
        };
        if let Ok((_, message)) = Message::parse(mad) {
            let (message, mad) = (Box::new(message), Box::new(*mad));
            let what = What::Message { sent, message, mad };
            self.events.push(TimedEvent { at, what });
        }
    }
}
