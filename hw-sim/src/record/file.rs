//! The file format of a recording.
//!
//! ```text
//!   "mlx5rec\n"  version (2 bytes)   length (4)  CRC-32 (4)  header, postcard
//!   then blocks: packed length (4)   length (4)  CRC-32 (4)  records, postcard one after the other, deflated
//! ```
//!
//! Numbers before a block are big-endian; the checksums cover the unpacked bytes. Each block is packed by itself. So if
//! a file was truncated, or its writer was killed, the file is readable up to its last whole block. A reader has one
//! block in memory. It refuses a block that is longer than a writer makes.
//!
//! A record has no length of its own, so adding or removing a field needs a new version. Version 2 added the traffic
//! classes to [`Record::Qos`]. A file of version 1 is read up to its first such record; all other records are the same.

use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Record;

const MAGIC: &[u8; 8] = b"mlx5rec\n";
/// Version that the writer produces.
pub const VERSION: u16 = 2;
/// Oldest version that the reader accepts.
const OLDEST: u16 = 1;
/// Number of the variant [`Record::Qos`] in a file.
const QOS_NUMBER: u8 = 30;
/// First version with the current fields of [`Record::Qos`].
const QOS_SINCE: u16 = 2;
/// A block is written to the file when its records have at least this number of bytes.
const BLOCK: usize = 256 << 10;
/// Maximum size of a record in bytes.
pub(super) const LONGEST_RECORD: usize = 1 << 20;
/// Maximum size of an unpacked block in bytes.
const LONGEST_BLOCK: usize = BLOCK + LONGEST_RECORD;
const LONGEST_HEADER: usize = 64 << 10;

/// Header of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Seed of the simulation.
    pub seed: u64,
    /// Version of the simulator that made the recording.
    pub simulator: String,
    /// Description for human readers.
    pub about: String,
}

/// Reason for which a recording cannot be read.
#[derive(Debug, Error)]
pub enum RecordingError {
    /// The file does not begin like a recording.
    #[error("not a recording of a simulated world")]
    Foreign,
    /// The recording has a version that this reader does not support.
    #[error("a recording of version {0}; this simulator reads versions {OLDEST} to {VERSION}")]
    Version(u16),
    /// The recording contains a record whose fields have changed since the recording's version.
    #[error(
        "a recording of version {0} has settings of a port, which are read from version {QOS_SINCE} on"
    )]
    OldSettings(u16),
    /// The file contains bytes that no writer produces.
    #[error("damaged {place}: {what}")]
    Damaged {
        /// Place of the damage in the file.
        place: String,
        /// Description of the damage.
        what: String,
    },
    /// Reading the file failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

fn damaged(place: impl Into<String>, what: impl Into<String>) -> RecordingError {
    RecordingError::Damaged {
        place: place.into(),
        what: what.into(),
    }
}

/// Returns a number as the file encodes it, in four bytes, big-endian.
fn word(number: usize) -> io::Result<[u8; 4]> {
    let number = u32::try_from(number).map_err(|_| io::Error::other("too long for a recording"))?;
    Ok(number.to_be_bytes())
}

/// Returns a recording of records that are already encoded, validly or not. This is for tests of readers.
///
/// # Errors
/// The records exceed the size of a block, or the header is too long.
pub fn packed(header: &Header, records: &[u8]) -> io::Result<Vec<u8>> {
    let mut file = head(header)?;
    if !records.is_empty() {
        file.extend(block(records)?);
    }
    Ok(file)
}

/// Returns the first bytes of a file: magic, version and header.
fn head(header: &Header) -> io::Result<Vec<u8>> {
    let body = postcard::to_stdvec(header).map_err(io::Error::other)?;
    if body.len() > LONGEST_HEADER {
        return Err(io::Error::other(
            "the description of the recording is too long",
        ));
    }
    let mut head = MAGIC.to_vec();
    head.extend(VERSION.to_be_bytes());
    head.extend(word(body.len())?);
    head.extend(crc32fast::hash(&body).to_be_bytes());
    head.extend(&body);
    Ok(head)
}

/// Returns a packed block that contains these encoded records.
fn block(records: &[u8]) -> io::Result<Vec<u8>> {
    if records.len() > LONGEST_BLOCK {
        return Err(io::Error::other("too long for a block"));
    }
    let mut packer = DeflateEncoder::new(vec![0; 12], Compression::default());
    packer.write_all(records)?;
    let mut packed = packer.finish()?;
    let length = packed.len() - 12;
    packed[..4].copy_from_slice(&word(length)?);
    packed[4..8].copy_from_slice(&word(records.len())?);
    packed[8..12].copy_from_slice(&crc32fast::hash(records).to_be_bytes());
    Ok(packed)
}

/// Writes a recording.
pub(super) struct Writer {
    to: Box<dyn Write + Send>,
    block: Vec<u8>,
    /// Number of bytes written to the file.
    pub(super) written: u64,
}

impl Writer {
    pub(super) fn new(mut to: Box<dyn Write + Send>, header: &Header) -> io::Result<Self> {
        let head = head(header)?;
        to.write_all(&head)?;
        Ok(Self {
            to,
            block: Vec::new(),
            written: head.len() as u64,
        })
    }

    pub(super) fn add(&mut self, record: &Record) -> io::Result<()> {
        let before = self.block.len();
        let block = std::mem::take(&mut self.block);
        self.block = postcard::to_extend(record, block).map_err(io::Error::other)?;
        if self.block.len() - before > LONGEST_RECORD {
            self.block.truncate(before);
            return Err(io::Error::other(format!(
                "too long for a recording: {record}"
            )));
        }
        if self.block.len() >= BLOCK {
            self.pack()?;
        }
        Ok(())
    }

    fn pack(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let packed = block(&self.block)?;
        self.block.clear();
        self.to.write_all(&packed)?;
        self.written += packed.len() as u64;
        Ok(())
    }

    /// Writes everything recorded so far to the file.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.pack()?;
        self.to.flush()
    }
}

/// Reads a recording.
pub(crate) struct Reader<R> {
    from: R,
    version: u16,
    header: Header,
    block: Vec<u8>,
    at: usize,
    blocks: u64,
    /// True if the file ends inside a block.
    cut: bool,
}

impl<R: Read> Reader<R> {
    pub(crate) fn new(mut from: R) -> Result<Self, RecordingError> {
        let mut head = [0; 18];
        if !filled(&mut from, &mut head)? || !head.starts_with(MAGIC) {
            return Err(RecordingError::Foreign);
        }
        let [.., v, w, a, b, c, d, e, f, g, h] = head;
        let version = u16::from_be_bytes([v, w]);
        if !(OLDEST..=VERSION).contains(&version) {
            return Err(RecordingError::Version(version));
        }
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length > LONGEST_HEADER {
            return Err(damaged("header", format!("{length} bytes")));
        }
        let mut body = vec![0; length];
        if !filled(&mut from, &mut body)? {
            return Err(damaged("header", "the file ends in it"));
        }
        if crc32fast::hash(&body).to_be_bytes() != [e, f, g, h] {
            return Err(damaged("header", "its checksum is wrong"));
        }
        let header =
            postcard::from_bytes(&body).map_err(|error| damaged("header", error.to_string()))?;
        Ok(Self {
            from,
            version,
            header,
            block: Vec::new(),
            at: 0,
            blocks: 0,
            cut: false,
        })
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// Returns whether the file ended inside a block.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut
    }

    /// Returns the next record, or `None` at the end of the file.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, RecordingError> {
        if self.at == self.block.len() && !self.next_block()? {
            return Ok(None);
        }
        if self.version < QOS_SINCE && self.block[self.at] == QOS_NUMBER {
            return Err(RecordingError::OldSettings(self.version));
        }
        let place = || format!("block {}, byte {}", self.blocks, self.at);
        let (record, rest) = postcard::take_from_bytes(&self.block[self.at..])
            .map_err(|error| damaged(place(), error.to_string()))?;
        self.at = self.block.len() - rest.len();
        Ok(Some(record))
    }

    fn next_block(&mut self) -> Result<bool, RecordingError> {
        (self.at, self.blocks) = (0, self.blocks + 1);
        self.block.clear();
        let mut head = [0; 12];
        let Some(_) = self.whole(&mut head)? else {
            return Ok(false);
        };
        let [a, b, c, d, e, f, g, h, sum @ ..] = head;
        let packed = u32::from_be_bytes([a, b, c, d]) as usize;
        let length = u32::from_be_bytes([e, f, g, h]) as usize;
        let place = format!("block {}", self.blocks);
        // Deflate enlarges incompressible input by a few bytes at most.
        if length == 0 || length > LONGEST_BLOCK || packed > length + length / 8 + 64 {
            return Err(damaged(place, format!("{packed} bytes, {length} unpacked")));
        }
        let mut bytes = vec![0; packed];
        let Some(()) = self.whole(&mut bytes)? else {
            self.cut = true;
            return Ok(false);
        };
        let mut unpacked = DeflateDecoder::new(&bytes[..]).take(length as u64 + 1);
        unpacked
            .read_to_end(&mut self.block)
            .map_err(|error| damaged(&place, error.to_string()))?;
        if self.block.len() != length || crc32fast::hash(&self.block).to_be_bytes() != sum {
            self.block.clear();
            return Err(damaged(place, "its length or checksum is wrong"));
        }
        Ok(true)
    }

    /// Fills `out`. Returns `None` if the file ends before `out` is full.
    fn whole(&mut self, out: &mut [u8]) -> io::Result<Option<()>> {
        let mut done = 0;
        while done < out.len() {
            match self.from.read(&mut out[done..]) {
                Ok(0) => {
                    self.cut = done > 0;
                    return Ok(None);
                }
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(()))
    }
}

fn filled(from: &mut impl Read, out: &mut [u8]) -> io::Result<bool> {
    match from.read_exact(out) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
