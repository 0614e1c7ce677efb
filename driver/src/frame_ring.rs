//! Frames in memory that two processes share: one direction of a wire, with one writer and one reader.
//!
//! ```text
//!    +0    head    bytes written since the beginning, modulo 2^32                         the writer's
//!  +128    tail    bytes taken, likewise                                                  the reader's
//!  +256    waits   1: the reader sleeps, and has to be woken for the next frame           both
//! +4096    data    records: the length of a frame, the frame, up to the next 64 bytes
//! ```
//!
//! A record is contiguous. If it does not fit before the end of the data, it begins at the start, and a length that
//! no frame has ([`WRAP`]) is written where the record would have begun.
//!
//! The other side may write anything at any time. So each number is read once and checked against its legal range.
//! Each side keeps a private copy of its own position. Frames are copied out before they are parsed. An impossible
//! number is reported as [`Broken`], and the ring does not recover from it. Neither side can make the other wait in
//! this module.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use thiserror::Error;

use crate::error::MemoryError;
use crate::memory::SharedMemory;

/// Bytes of the longest frame: larger than a jumbo frame of 9978 bytes.
pub(crate) const FRAME_BYTES: usize = 16 << 10;
/// Bytes of the data of one direction.
const DATA_BYTES: u32 = 1 << 20;
/// Offset of the data of one direction.
const DATA: usize = 4096;
/// Bytes of one direction.
const DIRECTION: usize = DATA + DATA_BYTES as usize;
/// Bytes of both directions.
pub(crate) const RINGS_BYTES: usize = 2 * DIRECTION;

const HEAD: usize = 0;
const TAIL: usize = 128;
const WAITS: usize = 256;

/// Bytes of the length that precedes a frame.
const PREFIX: usize = 4;
/// Alignment in bytes of records.
const GRANULE: u32 = 64;
/// Value in place of a length: the next record is at the start of the data.
const WRAP: u32 = u32::MAX;

/// An error: the other side has written an impossible number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the other side of a wire has corrupted the shared memory: {what} {value:#x} at {at:#x}")]
pub(crate) struct Broken {
    what: &'static str,
    value: u32,
    at: u32,
}

/// One of the two processes of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The process that made the memory. It writes the first direction.
    Maker,
    /// The process that received the memory.
    Other,
}

/// Allocates memory for both directions.
pub(crate) fn fresh() -> Result<SharedMemory, MemoryError> {
    SharedMemory::anonymous(RINGS_BYTES)
}

/// Returns the number of bytes of the record of a frame with `frame` bytes.
fn record_bytes(frame: usize) -> u32 {
    // CAST: a frame has at most FRAME_BYTES.
    let bytes = u32::try_from(frame + PREFIX).unwrap_or(u32::MAX - GRANULE);
    bytes.next_multiple_of(GRANULE)
}

/// Returns the offset of a byte in the memory. `begin` is the start of the direction, and `count` the number of bytes
/// of the direction before this byte.
fn place(begin: usize, count: u32) -> usize {
    // CAST: below DATA_BYTES.
    begin + DATA + (count % DATA_BYTES) as usize
}

/// Writer of one direction.
#[derive(Debug)]
pub(crate) struct Writer {
    memory: SharedMemory,
    begin: usize,
    head: u32,
    /// Position of the reader (its tail) when this side last loaded it.
    tail: u32,
}

impl Writer {
    pub(crate) fn new(memory: SharedMemory, side: Side) -> Self {
        let begin = match side {
            Side::Maker => 0,
            Side::Other => DIRECTION,
        };
        Self {
            memory,
            begin,
            head: 0,
            tail: 0,
        }
    }

    /// Writes a frame of 1 to [`FRAME_BYTES`] bytes. Returns false if the ring has no space for it.
    pub(crate) fn push(&mut self, frame: &[u8]) -> Result<bool, Broken> {
        let record = record_bytes(frame.len());
        let to_end = DATA_BYTES - self.head % DATA_BYTES;
        let skipped = if record > to_end { to_end } else { 0 };
        if !self.has_room(skipped + record)? {
            return Ok(false);
        }
        if skipped > 0 {
            let at = place(self.begin, self.head);
            self.memory.store_be32(at, WRAP);
            self.head = self.head.wrapping_add(skipped);
        }
        let at = place(self.begin, self.head);
        // CAST: at most FRAME_BYTES.
        let length = u32::try_from(frame.len()).unwrap_or(WRAP);
        self.memory.store_be32(at, length);
        self.memory.write_bytes(at + PREFIX, frame);
        self.head = self.head.wrapping_add(record);
        // The frame must be written before the count that announces it.
        fence(Ordering::Release);
        self.memory.store_be32(self.begin + HEAD, self.head);
        Ok(true)
    }

    fn has_room(&mut self, wanted: u32) -> Result<bool, Broken> {
        let room = |head: u32, tail: u32| DATA_BYTES.checked_sub(head.wrapping_sub(tail));
        if room(self.head, self.tail).is_some_and(|room| room >= wanted) {
            return Ok(true);
        }
        let tail = self.memory.load_be32(self.begin + TAIL);
        // Our later stores to the freed bytes must not overtake the reader's copies of these bytes.
        fence(Ordering::Acquire);
        let room = room(self.head, tail).ok_or(Broken {
            what: "tail",
            value: tail,
            at: self.head,
        })?;
        self.tail = tail;
        Ok(room >= wanted)
    }

    /// Records that waking the reader failed, so that the next [`must_wake`](Self::must_wake) tries again.
    pub(crate) fn wake_failed(&self) {
        self.memory.store_be32(self.begin + WAITS, 1);
    }

    /// Returns whether the reader sleeps and the caller has to wake it. Returns true only once for each sleep, because
    /// the flag is cleared here.
    pub(crate) fn must_wake(&self) -> bool {
        // The writer stores the head and then reads this flag; `Reader::arm` stores the flag and then reads the head.
        // So at least one side sees the other's store.
        fence(Ordering::SeqCst);
        let waits = self.memory.load_be32(self.begin + WAITS) != 0;
        if waits {
            self.memory.store_be32(self.begin + WAITS, 0);
        }
        waits
    }
}

/// Reader of one direction. One thread at a time takes frames; any thread may check for frames.
#[derive(Debug)]
pub(crate) struct Reader {
    memory: SharedMemory,
    begin: usize,
    /// Bytes taken so far.
    tail: AtomicU32,
}

impl Reader {
    pub(crate) fn new(memory: SharedMemory, side: Side) -> Self {
        let begin = match side {
            Side::Maker => DIRECTION,
            Side::Other => 0,
        };
        Self {
            memory,
            begin,
            tail: AtomicU32::new(0),
        }
    }

    /// Returns true if the writer's head differs from our tail: [`pop`](Self::pop) then takes a frame or reports
    /// [`Broken`].
    pub(crate) fn has_some(&self) -> bool {
        self.memory.load_be32(self.begin + HEAD) != self.tail.load(Ordering::Relaxed)
    }

    /// Requests that the writer wake the reader for the next frame. Returns false if the ring already has a frame.
    pub(crate) fn arm(&self) -> bool {
        self.memory.store_be32(self.begin + WAITS, 1);
        fence(Ordering::SeqCst);
        !self.has_some()
    }

    /// Moves the next frame to `frame`. Returns false if the ring is empty.
    pub(crate) fn pop(&self, frame: &mut Vec<u8>) -> Result<bool, Broken> {
        let mut tail = self.tail.load(Ordering::Relaxed);
        let head = self.memory.load_be32(self.begin + HEAD);
        if head == tail {
            return Ok(false);
        }
        // The record is read only after the count that announces it.
        fence(Ordering::Acquire);
        let broken = |what, value, at| Broken { what, value, at };
        let mut there = head.wrapping_sub(tail);
        if there > DATA_BYTES || !there.is_multiple_of(GRANULE) {
            return Err(broken("head", head, tail));
        }
        let mut length = self.memory.load_be32(place(self.begin, tail));
        if length == WRAP {
            // A wrap at the start of the data is illegal, because a record at the start always fits. So is a wrap with
            // no record after it, because the writer publishes both together.
            let to_end = DATA_BYTES - tail % DATA_BYTES;
            if to_end == DATA_BYTES || to_end >= there {
                return Err(broken("wrap", head, tail));
            }
            tail = tail.wrapping_add(to_end);
            there -= to_end;
            length = self.memory.load_be32(place(self.begin, tail));
        }
        // CAST: usize has at least 32 bits here.
        let bytes = length as usize;
        let fits = |record: u32| record <= there && record <= DATA_BYTES - tail % DATA_BYTES;
        if bytes == 0 || bytes > FRAME_BYTES || !fits(record_bytes(bytes)) {
            return Err(broken("length", length, tail));
        }
        frame.resize(bytes, 0);
        let at = place(self.begin, tail);
        self.memory.read_bytes(at + PREFIX, frame);
        tail = tail.wrapping_add(record_bytes(bytes));
        self.tail.store(tail, Ordering::Relaxed);
        // The copy must be complete before the tail is stored, which frees the record's bytes.
        fence(Ordering::Release);
        self.memory.store_be32(self.begin + TAIL, tail);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> (Writer, Reader, SharedMemory) {
        let memory = fresh().unwrap();
        let writer = Writer::new(memory.clone(), Side::Maker);
        let reader = Reader::new(memory.clone(), Side::Other);
        (writer, reader, memory)
    }

    #[test]
    fn frames_come_out_as_they_went_in_however_often_the_ring_goes_round() {
        let (mut writer, reader, _) = ends();
        let mut out = Vec::new();
        for turn in 0..4000_usize {
            let frame = |number: usize| {
                let bytes = 1 + (turn * 37 + number * 4099) % FRAME_BYTES;
                vec![u8::try_from((turn + number) % 251).unwrap(); bytes]
            };
            for number in 0..3 {
                assert!(writer.push(&frame(number)).unwrap());
            }
            for number in 0..3 {
                assert!(reader.pop(&mut out).unwrap());
                assert_eq!(out, frame(number), "turn {turn}");
            }
            assert!(!reader.pop(&mut out).unwrap());
        }
    }

    #[test]
    fn a_full_ring_takes_no_frame_until_one_is_taken() {
        let (mut writer, reader, _) = ends();
        let frame = [7; 4096];
        let mut pushed = 0;
        while writer.push(&frame).unwrap() {
            pushed += 1;
        }
        assert_eq!(pushed, DATA_BYTES / record_bytes(4096));
        let mut out = Vec::new();
        assert!(reader.pop(&mut out).unwrap());
        assert!(writer.push(&[1; 64]).unwrap());
        while reader.pop(&mut out).unwrap() {}
        assert_eq!(out, [1; 64]);
    }

    #[test]
    fn a_reader_that_sleeps_is_woken_once_and_does_not_sleep_over_a_frame() {
        let (mut writer, reader, _) = ends();
        assert!(!writer.must_wake(), "nobody sleeps");
        assert!(reader.arm());
        assert!(writer.push(&[1]).unwrap());
        assert!(writer.must_wake());
        assert!(!writer.must_wake());
        writer.wake_failed();
        assert!(writer.must_wake());
        assert!(!reader.arm(), "there is one");
        let mut out = Vec::new();
        assert!(reader.pop(&mut out).unwrap() && reader.arm());
    }

    #[test]
    fn a_number_that_cannot_be_is_refused_and_reaches_nothing() {
        let (mut out, length) = (Vec::new(), DATA);
        let harmed = |harm: &dyn Fn(&SharedMemory)| {
            let (mut writer, reader, memory) = ends();
            assert!(writer.push(&[1; 100]).unwrap());
            harm(&memory);
            reader.pop(&mut Vec::new()).unwrap_err().what
        };
        for head in [1, 63, DATA_BYTES + GRANULE, u32::MAX, u32::MAX - 63] {
            assert_eq!(harmed(&|memory| memory.store_be32(HEAD, head)), "head");
        }
        // Each of these lengths is refused: 0, longer than any frame, and longer than the bytes written.
        for bytes in [0, 16 << 10 | 1, u32::MAX - 1, 125, 1 << 31] {
            assert_eq!(harmed(&|memory| memory.store_be32(length, bytes)), "length");
        }
        assert_eq!(harmed(&|memory| memory.store_be32(length, WRAP)), "wrap");
        // A record that would continue beyond the end is refused, and so is a wrap without a record after it.
        let (mut writer, reader, memory) = ends();
        while writer.push(&[1; 4096 - PREFIX]).unwrap() {
            assert!(reader.pop(&mut out).unwrap());
            if writer.head == DATA_BYTES - 4096 {
                break;
            }
        }
        assert!(writer.push(&[1; 64]).unwrap());
        memory.store_be32(HEAD, writer.head.wrapping_add(8192));
        memory.store_be32(place(0, DATA_BYTES - 4096), 5000);
        assert_eq!(reader.pop(&mut out).unwrap_err().what, "length");
        memory.store_be32(place(0, DATA_BYTES - 4096), WRAP);
        memory.store_be32(HEAD, DATA_BYTES);
        assert_eq!(reader.pop(&mut out).unwrap_err().what, "wrap");
        // A tail beyond the head is refused.
        let (mut writer, _, memory) = ends();
        memory.store_be32(TAIL, 2 * DATA_BYTES);
        let refused = std::iter::repeat_with(|| writer.push(&[1; 9000])).find_map(Result::err);
        let text = refused.unwrap().to_string();
        assert!(text.contains("tail 0x200000"), "{text}");
    }
}
