//! The recorder of a simulation's inputs.
//!
//! Functions access the drivers' memory through [`WatchedMemory`], which records each access. An advance of time is
//! recorded only once it has a result or another input follows, so that an idle simulation does not fill the file.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use driver::{MessageMemory, SharedMemory};
use thiserror::Error;

use super::Record;
use super::file::{Header, LONGEST_RECORD, Writer};
use crate::event_log::EventLog;

/// Maximum size of a file in bytes. The recording ends when the file reaches it.
pub const LARGEST: u64 = 4 << 30;

/// Reason for which a simulation cannot be recorded.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The simulation already has functions, or its time has advanced. Both would be missing in the recording.
    #[error("a world is recorded from its beginning, and this one has functions already")]
    Begun,
    /// The underlying writer failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// The recorder, shared by the simulation and its watched memory.
pub(crate) type Tape = Arc<Mutex<Recorder>>;

/// The recorder of one simulation.
pub(crate) struct Recorder {
    /// Writer of the file; `None` once the recording has ended.
    writer: Option<Writer>,
    /// Virtual time of the last advance, if it is not recorded yet because nothing has followed it.
    held: Option<u64>,
    writes: u64,
    sum: crc32fast::Hasher,
}

pub(crate) fn lock(tape: &Mutex<Recorder>) -> MutexGuard<'_, Recorder> {
    tape.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorder {
    pub(crate) fn new(to: Box<dyn Write + Send>, header: &Header) -> io::Result<Self> {
        Ok(Self {
            writer: Some(Writer::new(to, header)?),
            held: None,
            writes: 0,
            sum: crc32fast::Hasher::new(),
        })
    }

    /// Records an input. `log` contains the results of the inputs before.
    pub(crate) fn input(&mut self, log: &mut EventLog, record: Record) {
        let is_quiet = self.writes == 0 && !log.has_news();
        match (record, is_quiet) {
            // The earlier advance of time had no result, so this record replaces it.
            (Record::Time { now }, true) if self.held.is_some() => self.held = Some(now),
            (record, _) => {
                self.write_results(log);
                if let Record::Time { now } = record {
                    self.held = Some(now);
                } else {
                    self.add(&record);
                }
            }
        }
    }

    /// Writes the results of the last recorded input.
    fn write_results(&mut self, log: &mut EventLog) {
        self.release();
        if self.writes > 0 {
            let record = Record::Wrote {
                writes: std::mem::take(&mut self.writes),
                sum: std::mem::take(&mut self.sum).finalize(),
            };
            self.add(&record);
        }
        let news = log.take_lines();
        let mut rest = news.as_str();
        while !rest.is_empty() {
            let room = rest.floor_char_boundary(LONGEST_RECORD / 2);
            let (now, later) = rest.split_at(room);
            self.add(&Record::Log(now.to_owned()));
            rest = later;
        }
    }

    fn release(&mut self) {
        if let Some(now) = self.held.take() {
            self.add(&Record::Time { now });
        }
    }

    fn add(&mut self, record: &Record) {
        let Some(writer) = &mut self.writer else {
            return;
        };
        let added = writer.add(record).and_then(|()| match writer.written {
            0..LARGEST => Ok(()),
            _ => Err(io::Error::other(format!(
                "the file would exceed {LARGEST} bytes"
            ))),
        });
        if let Err(error) = added {
            self.end(&error);
        }
    }

    /// Ends the recording after an error. The simulation itself continues.
    fn end(&mut self, error: &io::Error) {
        tracing::error!("recording: {error}; it ends here");
        self.writer = None;
    }

    /// Writes everything recorded so far to the file. Returns whether the recording continues.
    pub(crate) fn flush(&mut self, log: &mut EventLog) -> bool {
        self.write_results(log);
        if let Some(writer) = &mut self.writer
            && let Err(error) = writer.flush()
        {
            self.end(&error);
        }
        self.writer.is_some()
    }

    fn read(&mut self, function: usize, iova: u64, bytes: Option<&[u8]>) {
        self.release();
        let bytes = bytes.map(<[u8]>::to_vec);
        self.add(&Record::Read {
            function,
            iova,
            bytes,
        });
    }

    fn wrote(&mut self, function: usize, iova: u64, data: &[u8]) {
        self.release();
        self.writes += 1;
        add_write(&mut self.sum, function, iova, data);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // The error is ignored here, because a caller that needs it calls `flush` first.
        if let Some(writer) = &mut self.writer {
            let _ = writer.flush();
        }
    }
}

/// Adds a DMA write to the checksum.
pub(super) fn add_write(sum: &mut crc32fast::Hasher, function: usize, iova: u64, data: &[u8]) {
    sum.update(&[function.to_be_bytes(), iova.to_be_bytes()].concat());
    sum.update(data);
}

/// Location of the memory that a driver has mapped.
enum Behind {
    Here(SharedMemory, usize),
    Asked(Arc<dyn MessageMemory>),
}

/// Memory whose accesses are recorded.
pub(crate) struct WatchedMemory {
    tape: Tape,
    function: usize,
    first: u64,
    behind: Behind,
}

impl std::fmt::Debug for WatchedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WatchedMemory({:#x})", self.first)
    }
}

impl WatchedMemory {
    /// Returns watched memory for memory of this process that is mapped at `first`.
    ///
    /// # Errors
    /// An error text, as from [`Iommu::map`](crate::iommu::Iommu::map): the memory does not contain the range, or
    /// `offset` is not a page boundary.
    pub(crate) fn here(
        tape: &Tape,
        function: usize,
        first: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<Arc<Self>, String> {
        crate::iommu::fits(first, &memory, offset, bytes)?;
        Ok(Arc::new(Self {
            tape: Arc::clone(tape),
            function,
            first,
            behind: Behind::Here(memory, offset),
        }))
    }

    /// Returns watched memory for memory of another process, which is accessed by messages.
    pub(crate) fn asked(
        tape: &Tape,
        function: usize,
        first: u64,
        memory: Arc<dyn MessageMemory>,
    ) -> Arc<Self> {
        Arc::new(Self {
            tape: Arc::clone(tape),
            function,
            first,
            behind: Behind::Asked(memory),
        })
    }

    fn place(&self, offset: usize, iova: u64) -> usize {
        // CAST: the difference is an offset in a mapping, whose length came from a usize.
        offset + usize::try_from(iova - self.first).unwrap_or(usize::MAX)
    }
}

impl MessageMemory for WatchedMemory {
    fn read(&self, iova: u64, out: &mut [u8]) -> io::Result<()> {
        let done = match &self.behind {
            Behind::Here(memory, offset) => memory.try_read_bytes(self.place(*offset, iova), out),
            Behind::Asked(memory) => memory.read(iova, out),
        };
        let found = done.is_ok().then_some(&*out);
        lock(&self.tape).read(self.function, iova, found);
        done
    }

    fn write(&self, iova: u64, data: &[u8]) -> io::Result<()> {
        let done = match &self.behind {
            Behind::Here(memory, offset) => {
                crate::iommu::store(memory, self.place(*offset, iova), data)
            }
            Behind::Asked(memory) => memory.write(iova, data),
        };
        let mut tape = lock(&self.tape);
        match done {
            Ok(()) => tape.wrote(self.function, iova, data),
            Err(_) => {
                let function = self.function;
                tape.release();
                tape.add(&Record::NotWritten { function, iova });
            }
        }
        done
    }
}
