//! Writing the frames on the wire as a pcapng file.
//!
//! Each function is one interface, which is described when it is added. Each frame is an Enhanced Packet Block with the
//! virtual time of its transmission. Time starts at the simulation's origin, in nanoseconds (`if_tsresol` 9), so that
//! a deterministic run always yields the same file.
//!
//! Records other than frames are notes in text. An interface of notes has link type WIRESHARK_UPPER_PDU. A packet of
//! this type names the Wireshark dissector for its bytes, here `json`. So Wireshark shows the fields of a note without
//! a warning.

use crate::profile::PortType;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, Endianness, PcapError};
use std::borrow::Cow;
use std::io::Write;
use std::time::Duration;
use thiserror::Error;

/// log10 of the number of timestamp units per second, as `if_tsresol` codes it.
const NANOSECONDS: u8 = 9;

/// Header before a note's text: tag "name of the dissector" (12), length 4, `json`, and the end of tags (Wireshark,
/// `epan/exported_pdu.h`).
pub const NOTE_HEADER: [u8; 12] = *b"\0\x0c\0\x04json\0\0\0\0";

/// Direction of a frame, and a comment on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Remark<'a> {
    /// Comment that a capture viewer shows.
    pub comment: &'a str,
    /// True if the function sent the frame, false if it received the frame.
    pub sent: bool,
}

impl Remark<'_> {
    /// Values of `epb_flags`, bits 0 and 1 (pcapng, "Enhanced Packet Block Flags Word").
    const INBOUND: u32 = 1;
    const OUTBOUND: u32 = 2;

    /// Returns whether a frame's flags mark it as sent.
    #[must_use]
    pub const fn is_sent(flags: u32) -> bool {
        flags & 3 == Self::OUTBOUND
    }
}

/// The capture could not be written.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// The underlying writer failed.
    #[error("capture: {}", words(.0))]
    Write(#[from] PcapError),
    /// The caller wrote a frame to an interface that was never added.
    #[error("capture: interface {0} was never added")]
    Interface(u32),
}

/// Returns the error's text. For I/O errors this is the system's text, because the library's is always "Error reading
/// bytes".
fn words(error: &PcapError) -> String {
    if let PcapError::IoError(error) = error {
        return error.to_string();
    }
    error.to_string()
}

/// A pcapng file being written.
pub struct Capture<W: Write> {
    writer: PcapNgWriter<W>,
    interfaces: u32,
}

impl<W: Write> Capture<W> {
    /// Creates a capture and writes the section header.
    ///
    /// # Errors
    /// [`CaptureError::Write`]: the writer failed.
    pub fn new(writer: W) -> Result<Self, CaptureError> {
        // The byte order is fixed and not the machine's, so that a seed yields the same file on every machine.
        let writer = PcapNgWriter::with_endianness(writer, Endianness::Little)?;
        Ok(Self {
            writer,
            interfaces: 0,
        })
    }

    /// Adds an interface and returns its number, which the caller passes to [`Capture::frame`].
    ///
    /// # Errors
    /// [`CaptureError::Write`]: the writer failed.
    pub fn add_interface(&mut self, name: &str, port_type: PortType) -> Result<u32, CaptureError> {
        let linktype = match port_type {
            PortType::Ethernet => DataLink::ETHERNET,
            PortType::InfiniBand => DataLink::INFINIBAND,
        };
        self.describe(name, linktype)
    }

    /// Adds an interface for notes and returns its number, which the caller passes to [`Capture::note`].
    ///
    /// # Errors
    /// [`CaptureError::Write`]: the writer failed.
    pub fn add_notes(&mut self, name: &str) -> Result<u32, CaptureError> {
        self.describe(name, DataLink::WIRESHARK_UPPER_PDU)
    }

    fn describe(&mut self, name: &str, linktype: DataLink) -> Result<u32, CaptureError> {
        self.writer.write_pcapng_block(InterfaceDescriptionBlock {
            linktype,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        })?;
        let id = self.interfaces;
        self.interfaces += 1;
        Ok(id)
    }

    /// Writes a note in JSON with the time `now` (virtual nanoseconds).
    ///
    /// # Errors
    /// As [`Capture::frame`].
    pub fn note(&mut self, interface: u32, now: u64, json: &str) -> Result<(), CaptureError> {
        let bytes = [&NOTE_HEADER, json.as_bytes()].concat();
        self.frame(interface, now, &bytes)
    }

    /// Writes a frame that `interface` transmitted at `now` (virtual nanoseconds).
    ///
    /// # Errors
    /// [`CaptureError::Interface`]: no interface has this number. [`CaptureError::Write`]: the writer failed.
    pub fn frame(&mut self, interface: u32, now: u64, frame: &[u8]) -> Result<(), CaptureError> {
        self.block(interface, now, frame, Vec::new())
    }

    /// Writes a frame with its direction and a comment.
    ///
    /// # Errors
    /// As [`Capture::frame`].
    pub fn remarked(
        &mut self,
        interface: u32,
        now: u64,
        frame: &[u8],
        remark: Remark<'_>,
    ) -> Result<(), CaptureError> {
        let way = if remark.sent {
            Remark::OUTBOUND
        } else {
            Remark::INBOUND
        };
        let options = vec![
            EnhancedPacketOption::Comment(Cow::Borrowed(remark.comment)),
            EnhancedPacketOption::Flags(way),
        ];
        self.block(interface, now, frame, options)
    }

    fn block(
        &mut self,
        interface: u32,
        now: u64,
        frame: &[u8],
        options: Vec<EnhancedPacketOption<'_>>,
    ) -> Result<(), CaptureError> {
        if interface >= self.interfaces {
            return Err(CaptureError::Interface(interface));
        }
        self.writer.write_pcapng_block(EnhancedPacketBlock {
            interface_id: interface,
            timestamp: Duration::from_nanos(now),
            original_len: u32::try_from(frame.len()).unwrap_or(u32::MAX),
            data: Cow::Borrowed(frame),
            options,
        })?;
        Ok(())
    }

    /// Returns the writer, for flushing.
    pub fn into_inner(self) -> W {
        self.writer.into_inner()
    }

    /// Flushes the writer.
    ///
    /// # Errors
    /// [`CaptureError::Write`]: the writer failed.
    pub fn flush(&mut self) -> Result<(), CaptureError> {
        self.writer
            .get_mut()
            .flush()
            .map_err(|error| CaptureError::Write(PcapError::IoError(error)))
    }
}
