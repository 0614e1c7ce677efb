//! The IOMMU in front of the function, and the DMA engine behind it.
//!
//! Mappings are kept by start address. A lookup descends a balanced tree, except for the few mappings that were
//! accessed last. An access may cross adjoining mappings. An access to an unmapped address, or while the function is
//! not a bus master, transfers nothing and is a [`DmaFault`]. Every fault is recorded with the part of the device that
//! made the access, because hardware would have written it into the host's log. The caller decides the consequence of
//! a fault (a delivery status, a dead EQ, a QP in error).
//!
//! Memory of a driver in another process may be reachable only by messages to that process. Each access is then a
//! request ([`MessageMemory`]) for which the function waits. A request that fails is a fault, too; it may have
//! transferred a part of the data.

use driver::{MessageMemory, SharedMemory};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use thiserror::Error;

/// The IOMMU refused an access, or the memory behind the address did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("DMA {} of {bytes} bytes at {iova:#x} refused", if *.write { "write" } else { "read" })]
pub struct DmaFault {
    /// First address of the access.
    pub iova: u64,
    /// Length of the access in bytes.
    pub bytes: usize,
    /// True if the access was a write.
    pub write: bool,
}

/// Maximum number of faults recorded in detail. Later faults are only counted.
const MAX_RECORDED: usize = 256;

/// Part of the device that makes an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The command interface, for command entries and mailboxes.
    Command,
    /// The firmware, for the pages that the driver gave it.
    FirmwarePage,
    /// The event queue of this number.
    Eq(u32),
    /// The completion queue of this number.
    Cq(u32),
    /// The queue pair of this number, for its work queues and its doorbell record.
    Qp(u32),
    /// The shared receive queue of this number.
    Srq(u32),
    /// A data access through this key.
    Key(u32),
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command => f.write_str("command interface"),
            Self::FirmwarePage => f.write_str("firmware page"),
            Self::Eq(number) => write!(f, "EQ {number:#x}"),
            Self::Cq(number) => write!(f, "CQ {number:#x}"),
            Self::Qp(number) => write!(f, "QP {number:#x}"),
            Self::Srq(number) => write!(f, "SRQ {number:#x}"),
            Self::Key(key) => write!(f, "key {key:#010x}"),
        }
    }
}

/// A refused access, with its initiator and the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRecord {
    /// The refused access.
    pub fault: DmaFault,
    /// Part of the device that made the access.
    pub who: Who,
    /// Cause of the refusal.
    pub cause: FaultCause,
}

/// Cause of a refused access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultCause {
    /// The function was not a bus master, so mappings were not checked.
    NotBusMaster,
    /// No mapping permits the access.
    Unmapped,
    /// The range is mapped, but the owner of the memory did not do the access: the process refused it, has ended, or
    /// did not answer in time, or the program has unmapped or replaced the memory.
    NotDone,
}

/// Memory behind a mapping.
#[derive(Clone, Debug)]
enum Bytes {
    /// Memory of this process, from this byte offset on.
    Here(SharedMemory, usize),
    /// Memory of another process, which is accessed by messages.
    Asked(Arc<dyn MessageMemory>),
}

#[derive(Clone, Debug)]
struct Mapping {
    length: u64,
    bytes: Bytes,
    /// True if the device may write.
    writable: bool,
}

/// A contiguous range of bytes in one mapping.
enum Piece<'a> {
    Here(&'a SharedMemory, usize),
    Asked(&'a dyn MessageMemory, u64),
}

impl Piece<'_> {
    fn read(&self, out: &mut [u8]) -> io::Result<()> {
        match *self {
            Self::Here(memory, at) => memory.try_read_bytes(at, out),
            Self::Asked(memory, iova) => memory.read(iova, out),
        }
    }

    /// Writes `data`. In memory of this process, the last byte is written after all others, with one store.
    fn write(&self, data: &[u8]) -> io::Result<()> {
        match *self {
            Self::Here(memory, at) => store(memory, at, data),
            Self::Asked(memory, iova) => memory.write(iova, data),
        }
    }
}

/// Writes `data` to `memory` at offset `at`. The last byte is written after all others, with one store.
///
/// # Errors
/// The program that owns the memory has unmapped or replaced it.
pub(crate) fn store(memory: &SharedMemory, at: usize, data: &[u8]) -> io::Result<()> {
    // PANIC: every caller passes at least one byte.
    let (last, first) = data.split_last().expect("a byte");
    memory.try_write_bytes(at, first)?;
    std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
    memory.try_write_bytes(at + first.len(), std::slice::from_ref(last))
}

/// Checks that a range to be mapped lies in the memory and begins at a page boundary.
pub(crate) fn fits(
    iova: u64,
    memory: &SharedMemory,
    offset: usize,
    bytes: usize,
) -> Result<(), String> {
    if !offset.is_multiple_of(4096) {
        return Err(format!("map {iova:#x}+{bytes:#x}: not whole pages"));
    }
    if !memory.contains(offset, bytes) {
        return Err(format!(
            "map {iova:#x}+{bytes:#x}: memory is shorter than that"
        ));
    }
    Ok(())
}

/// Number of recently used mappings that are found without a descent of the tree.
const RECENT: usize = 4;

/// A copy of a recently used mapping of this process's memory.
#[derive(Clone, Debug)]
struct Recent {
    start: u64,
    length: u64,
    memory: SharedMemory,
    offset: usize,
    writable: bool,
}

impl Recent {
    /// Returns the offset of an access in the memory, if the mapping contains and permits it.
    #[inline]
    fn place(&self, iova: u64, bytes: usize, write: bool) -> Option<usize> {
        let inside = iova.wrapping_sub(self.start);
        let is_whole = inside < self.length && bytes as u64 <= self.length - inside;
        if !is_whole || write && !self.writable {
            return None;
        }
        // CAST: below the mapping's length, which came from a usize.
        Some(self.offset + usize::try_from(inside).ok()?)
    }
}

/// The mappings of one function.
#[derive(Debug, Default)]
pub struct Iommu {
    mappings: BTreeMap<u64, Mapping>,
    /// Recently used mappings. Unmapping empties this list.
    recent: [Option<Recent>; RECENT],
    /// Index of the entry of `recent` to replace next.
    oldest: usize,
    bus_master: bool,
    faults: Vec<FaultRecord>,
    fault_count: u64,
}

impl Iommu {
    /// Returns the IOVA ranges that software may map: 39 bits, without the window of x86 message interrupts.
    pub fn ranges() -> Vec<RangeInclusive<u64>> {
        vec![0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff]
    }

    /// Sets whether DMA is allowed.
    pub fn set_bus_master(&mut self, on: bool) {
        self.bus_master = on;
    }

    /// Returns whether DMA is allowed.
    pub fn bus_master(&self) -> bool {
        self.bus_master
    }

    /// Maps memory at an address. Like VFIO, it refuses overlaps and ranges that are not whole 4 KiB pages.
    ///
    /// # Errors
    /// A text: the range is empty, not in whole pages, longer than the memory, outside of the usable [`Iommu::ranges`],
    /// or partly mapped already.
    pub fn map(
        &mut self,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String> {
        self.insert_here(iova, memory, offset, bytes, true)
    }

    /// Maps memory that the device may only read. A write by the device is a fault.
    ///
    /// # Errors
    /// As [`Iommu::map`].
    pub fn map_read_only(
        &mut self,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String> {
        self.insert_here(iova, memory, offset, bytes, false)
    }

    /// Maps memory of another process, which the device accesses by messages.
    ///
    /// # Errors
    /// As [`Iommu::map`].
    pub fn map_asked(
        &mut self,
        iova: u64,
        memory: Arc<dyn MessageMemory>,
        bytes: usize,
        writable: bool,
    ) -> Result<(), String> {
        self.insert(iova, Bytes::Asked(memory), bytes, writable)
    }

    fn insert_here(
        &mut self,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
        writable: bool,
    ) -> Result<(), String> {
        fits(iova, &memory, offset, bytes)?;
        self.insert(iova, Bytes::Here(memory, offset), bytes, writable)
    }

    fn insert(
        &mut self,
        iova: u64,
        memory: Bytes,
        bytes: usize,
        writable: bool,
    ) -> Result<(), String> {
        let length = bytes as u64;
        if bytes == 0 || !(iova | length).is_multiple_of(4096) {
            return Err(format!("map {iova:#x}+{bytes:#x}: not whole pages"));
        }
        let Some(last) = iova.checked_add(length - 1) else {
            return Err(format!("map {iova:#x}+{bytes:#x}: wraps"));
        };
        if !Self::ranges()
            .iter()
            .any(|range| range.contains(&iova) && range.contains(&last))
        {
            return Err(format!(
                "map {iova:#x}+{bytes:#x}: outside the usable ranges"
            ));
        }
        let before = self.mappings.range(..=last).next_back();
        if let Some((&start, mapping)) = before
            && start + mapping.length > iova
        {
            return Err(format!(
                "map {iova:#x}+{bytes:#x}: {start:#x}+{:#x} is mapped",
                mapping.length
            ));
        }
        self.mappings.insert(
            iova,
            Mapping {
                length,
                bytes: memory,
                writable,
            },
        );
        Ok(())
    }

    /// Unmaps every mapping inside the range. Like VFIO type 1 v2, it refuses to split a mapping.
    ///
    /// # Errors
    /// A text: the range wraps, holds no mapping, or would split a mapping. Nothing is unmapped then.
    pub fn unmap(&mut self, iova: u64, bytes: usize) -> Result<(), String> {
        let Some(end) = iova.checked_add(bytes as u64) else {
            return Err(format!("unmap {iova:#x}+{bytes:#x}: wraps"));
        };
        let inside: Vec<u64> = self
            .mappings
            .range(iova..end)
            .map(|(&start, _)| start)
            .collect();
        let cut = |start: u64, mapping: &Mapping| start < iova || start + mapping.length > end;
        if let Some((&start, mapping)) = self.mappings.range(..end).next_back()
            && start + mapping.length > iova
            && cut(start, mapping)
        {
            return Err(format!(
                "unmap {iova:#x}+{bytes:#x}: cuts the mapping at {start:#x}"
            ));
        }
        if let Some((&start, mapping)) = self.mappings.range(..iova).next_back()
            && start + mapping.length > iova
        {
            return Err(format!(
                "unmap {iova:#x}+{bytes:#x}: cuts the mapping at {start:#x}"
            ));
        }
        if inside.is_empty() {
            return Err(format!(
                "unmap {iova:#x}+{bytes:#x}: nothing is mapped there"
            ));
        }
        for start in inside {
            self.mappings.remove(&start);
        }
        self.recent = Default::default();
        Ok(())
    }

    /// Returns the number of mappings.
    pub fn len(&self) -> usize {
        self.mappings.len()
    }

    /// Returns whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }

    /// Returns whether the whole range is mapped and DMA is allowed. A negative answer is not recorded as a fault.
    pub fn reaches(&self, iova: u64, bytes: usize) -> bool {
        self.bus_master && self.covered(iova, bytes, false)
    }

    /// Reads host memory.
    ///
    /// # Errors
    /// [`DmaFault`], which is recorded. If part of the range is not mapped or the function is no bus master, `out` is
    /// unchanged. If the memory behind a mapping did not answer, a part of `out` may be written.
    pub fn read(&mut self, iova: u64, out: &mut [u8], who: Who) -> Result<(), DmaFault> {
        if let Some((memory, at)) = self.whole(iova, out.len(), false) {
            return match memory.try_read_bytes(at, out) {
                Ok(()) => Ok(()),
                Err(error) => Err(self.not_done(iova, out.len(), false, who, &error)),
            };
        }
        self.check(iova, out.len(), false, who)?;
        let (bytes, mut done) = (out.len(), 0);
        while done < bytes {
            let (piece, run) = self.piece(iova + done as u64, bytes - done);
            if let Err(error) = piece.read(&mut out[done..done + run]) {
                return Err(self.not_done(iova, bytes, false, who, &error));
            }
            done += run;
        }
        Ok(())
    }

    /// Writes host memory. The last byte is written after all others, because programs poll the last byte of an RDMA
    /// Write and then rely on the other bytes. A bus that writes in ascending order permits this.
    ///
    /// # Errors
    /// [`DmaFault`], which is recorded, for the same causes as [`Iommu::read`], or because part of the range is mapped
    /// read-only. Nothing is written then, unless the memory behind a mapping did not answer.
    pub fn write(&mut self, iova: u64, data: &[u8], who: Who) -> Result<(), DmaFault> {
        if let Some((memory, at)) = self.whole(iova, data.len(), true) {
            return match store(memory, at, data) {
                Ok(()) => Ok(()),
                Err(error) => Err(self.not_done(iova, data.len(), true, who, &error)),
            };
        }
        self.check(iova, data.len(), true, who)?;
        let mut done = 0;
        while done < data.len() {
            let (piece, run) = self.piece(iova + done as u64, data.len() - done);
            if let Err(error) = piece.write(&data[done..done + run]) {
                return Err(self.not_done(iova, data.len(), true, who, &error));
            }
            done += run;
        }
        Ok(())
    }

    /// Writes one byte in one store, after everything written before it. This byte passes the ownership of an entry.
    ///
    /// # Errors
    /// [`DmaFault`], as [`Iommu::write`].
    pub fn publish(&mut self, iova: u64, value: u8, who: Who) -> Result<(), DmaFault> {
        // The entry's contents must be visible before the byte that marks it valid.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        self.write(iova, &[value], who)
    }

    /// Returns the recorded faults, at most the first 256.
    pub fn faults(&self) -> &[FaultRecord] {
        &self.faults
    }

    /// Returns the number of refused accesses, recorded in detail or not.
    pub fn fault_count(&self) -> u64 {
        self.fault_count
    }

    fn check(&mut self, iova: u64, bytes: usize, write: bool, who: Who) -> Result<(), DmaFault> {
        // If the function is no bus master, this is the cause, whatever is mapped.
        let cause = if !self.bus_master {
            FaultCause::NotBusMaster
        } else if self.covered(iova, bytes, write) {
            return Ok(());
        } else {
            FaultCause::Unmapped
        };
        let fault = DmaFault { iova, bytes, write };
        tracing::debug!(%who, %fault, ?cause, "DMA fault");
        self.record(FaultRecord { fault, who, cause });
        Err(fault)
    }

    /// Records the fault of an access to a mapped range whose memory did not answer or no longer exists.
    fn not_done(
        &mut self,
        iova: u64,
        bytes: usize,
        write: bool,
        who: Who,
        error: &io::Error,
    ) -> DmaFault {
        let fault = DmaFault { iova, bytes, write };
        tracing::warn!(%who, %fault, "DMA fault: {error}");
        let cause = FaultCause::NotDone;
        self.record(FaultRecord { fault, who, cause });
        fault
    }

    fn record(&mut self, record: FaultRecord) {
        self.fault_count += 1;
        if self.faults.len() < MAX_RECORDED {
            self.faults.push(record);
        }
    }

    fn covered(&self, iova: u64, bytes: usize, write: bool) -> bool {
        let Some(end) = iova.checked_add(bytes as u64) else {
            return false;
        };
        let mut at = iova;
        loop {
            let Some((&start, mapping)) = self.mappings.range(..=at).next_back() else {
                return false;
            };
            let mapped_end = start + mapping.length;
            if mapped_end <= at || write && !mapping.writable {
                return false;
            }
            if mapped_end >= end {
                return true;
            }
            at = mapped_end;
        }
    }

    /// Returns the memory and offset of a permitted access that lies inside one mapping, which is the usual case.
    /// Returns `None` if the caller must use the general path.
    fn whole(&mut self, iova: u64, bytes: usize, write: bool) -> Option<(&SharedMemory, usize)> {
        if !self.bus_master || bytes == 0 {
            return None;
        }
        let known = self.recent.iter().enumerate().find_map(|(number, recent)| {
            let place = recent.as_ref()?.place(iova, bytes, write)?;
            Some((number, place))
        });
        let (number, place) = match known {
            Some(known) => known,
            None => self.descend(iova, bytes, write)?,
        };
        Some((&self.recent[number].as_ref()?.memory, place))
    }

    /// Does the work of [`Iommu::whole`] for a mapping that is not in the recent list, and adds the mapping to that
    /// list. Returns the mapping's index in the list and the offset in the memory.
    fn descend(&mut self, iova: u64, bytes: usize, write: bool) -> Option<(usize, usize)> {
        let (&start, mapping) = self.mappings.range(..=iova).next_back()?;
        let Bytes::Here(memory, offset) = &mapping.bytes else {
            return None;
        };
        let found = Recent {
            start,
            length: mapping.length,
            memory: memory.clone(),
            offset: *offset,
            writable: mapping.writable,
        };
        let place = found.place(iova, bytes, write)?;
        let number = self.oldest;
        self.recent[number] = Some(found);
        self.oldest = (number + 1) % RECENT;
        Some((number, place))
    }

    /// Returns the memory behind a mapped address, and how many of the `bytes` lie in that mapping.
    fn piece(&self, iova: u64, bytes: usize) -> (Piece<'_>, usize) {
        // PANIC: callers pass only addresses that `check` has found mapped.
        let (&start, mapping) = self
            .mappings
            .range(..=iova)
            .next_back()
            .expect("covered address");
        let inside = iova - start;
        let run = (mapping.length - inside).min(bytes as u64);
        // CAST: both are at most `mapping.length`, which came from a usize.
        let (inside, run) = (
            usize::try_from(inside).unwrap_or(usize::MAX),
            usize::try_from(run).unwrap_or(0),
        );
        let piece = match &mapping.bytes {
            Bytes::Here(memory, offset) => Piece::Here(memory, offset + inside),
            Bytes::Asked(memory) => Piece::Asked(&**memory, iova),
        };
        (piece, run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Mutex;

    fn iommu() -> (Iommu, SharedMemory) {
        let memory = SharedMemory::anonymous(4 * 4096).unwrap();
        let mut iommu = Iommu::default();
        iommu.set_bus_master(true);
        (iommu, memory)
    }

    #[test]
    fn an_access_may_cross_adjoining_mappings() {
        let (mut iommu, memory) = iommu();
        iommu
            .map(0x10_0000, memory.clone(), 0x3000, 0x1000)
            .unwrap();
        iommu
            .map(0x10_1000, memory.clone(), 0x0000, 0x1000)
            .unwrap();
        iommu.write(0x10_0ffe, &[1, 2, 3, 4], Who::Command).unwrap();
        let mut out = [0; 2];
        memory.read_bytes(0x3ffe, &mut out);
        assert_eq!(out, [1, 2]);
        memory.read_bytes(0, &mut out);
        assert_eq!(out, [3, 4]);
        let mut back = [0; 4];
        iommu.read(0x10_0ffe, &mut back, Who::Command).unwrap();
        assert_eq!(back, [1, 2, 3, 4]);
    }

    /// A write stores the last byte after all others. The test maps no memory behind the last byte, so the store of
    /// that byte panics; the memory then holds all other bytes.
    #[test]
    fn the_last_byte_of_a_write_is_stored_after_all_others() {
        let (mut iommu, memory) = iommu();
        let beyond = Mapping {
            length: 0x1001,
            bytes: Bytes::Here(memory.clone(), 0x3000),
            writable: true,
        };
        iommu.mappings.insert(0x10_0000, beyond);
        let data: Vec<u8> = (1..=100).collect();
        let write = AssertUnwindSafe(|| iommu.write(0x10_1001 - 100, &data, Who::Command));
        catch_unwind(write).expect_err("nowhere to store the last byte");
        let mut stored = [0; 99];
        memory.read_bytes(0x4000 - 99, &mut stored);
        assert_eq!(stored, data[..99]);
    }

    #[test]
    fn a_write_to_memory_mapped_for_reading_faults_even_if_only_its_end_is_there() {
        let (mut iommu, memory) = iommu();
        iommu.map(0x10_0000, memory.clone(), 0, 0x1000).unwrap();
        iommu
            .map_read_only(0x10_1000, memory.clone(), 0x1000, 0x1000)
            .unwrap();
        memory.write_bytes(0xffe, &[1, 2, 3, 4]);
        let mut out = [0; 4];
        iommu.read(0x10_0ffe, &mut out, Who::Command).unwrap();
        assert_eq!(out, [1, 2, 3, 4]);
        assert!(iommu.write(0x10_0ffe, &[9; 4], Who::Command).is_err());
        assert!(iommu.publish(0x10_1000, 9, Who::Command).is_err());
        memory.read_bytes(0xffe, &mut out);
        assert_eq!(out, [1, 2, 3, 4], "nothing moved");
        assert!(iommu.faults().iter().all(|record| record.fault.write));
        assert_eq!(iommu.fault_count(), 2);
    }

    #[test]
    fn an_access_that_leaves_the_mappings_moves_nothing_and_is_recorded() {
        let (mut iommu, memory) = iommu();
        iommu.map(0x10_0000, memory.clone(), 0, 0x1000).unwrap();
        let fault = iommu.write(0x10_0fff, &[9, 9], Who::Qp(0x58)).unwrap_err();
        assert_eq!(
            fault,
            DmaFault {
                iova: 0x10_0fff,
                bytes: 2,
                write: true
            }
        );
        assert_eq!(memory.load_u8(0xfff), 0);
        assert_eq!(
            iommu.faults(),
            [FaultRecord {
                fault,
                who: Who::Qp(0x58),
                cause: FaultCause::Unmapped
            }]
        );
    }

    #[test]
    fn no_dma_without_bus_master() {
        let (mut iommu, memory) = iommu();
        iommu.map(0, memory, 0, 0x1000).unwrap();
        iommu.set_bus_master(false);
        for iova in [0, 0x7000] {
            assert!(iommu.read(iova, &mut [0], Who::Command).is_err());
        }
        assert_eq!(iommu.faults().len(), 2);
        let causes: Vec<_> = iommu.faults().iter().map(|fault| fault.cause).collect();
        assert_eq!(causes, [FaultCause::NotBusMaster; 2]);
    }

    /// Memory of another process that answers a limited number of accesses and then fails.
    #[derive(Debug)]
    struct Elsewhere {
        first: u64,
        bytes: SharedMemory,
        patience: Mutex<usize>,
    }

    impl Elsewhere {
        fn access(&self, iova: u64) -> io::Result<usize> {
            let mut patience = self.patience.lock().unwrap();
            *patience = patience.checked_sub(1).ok_or(io::ErrorKind::TimedOut)?;
            Ok(usize::try_from(iova - self.first).unwrap())
        }
    }

    impl MessageMemory for Elsewhere {
        fn read(&self, iova: u64, out: &mut [u8]) -> io::Result<()> {
            self.bytes.read_bytes(self.access(iova)?, out);
            Ok(())
        }

        fn write(&self, iova: u64, data: &[u8]) -> io::Result<()> {
            self.bytes.write_bytes(self.access(iova)?, data);
            Ok(())
        }
    }

    /// Returns an IOMMU with adjoining mappings of local memory and of memory reached by messages.
    fn beside(patience: usize, writable: bool) -> (Iommu, SharedMemory, SharedMemory) {
        let (mut iommu, here) = iommu();
        let there = SharedMemory::anonymous(2 * 4096).unwrap();
        let elsewhere = Elsewhere {
            first: 0x10_1000,
            bytes: there.clone(),
            patience: Mutex::new(patience),
        };
        iommu.map(0x10_0000, here.clone(), 0, 0x1000).unwrap();
        iommu
            .map_asked(0x10_1000, Arc::new(elsewhere), 0x2000, writable)
            .unwrap();
        (iommu, here, there)
    }

    #[test]
    fn memory_reached_by_messages_behaves_like_local_memory() {
        let (mut iommu, here, there) = beside(usize::MAX, true);
        let data: Vec<u8> = (1..=200).collect();
        iommu.write(0x10_1000 - 50, &data, Who::Command).unwrap();
        let (mut first, mut rest) = ([0; 50], [0; 150]);
        here.read_bytes(0x1000 - 50, &mut first);
        there.read_bytes(0, &mut rest);
        assert_eq!([&first[..], &rest].concat(), data);
        let mut back = vec![0; 200];
        iommu.read(0x10_1000 - 50, &mut back, Who::Command).unwrap();
        assert_eq!(back, data);
        iommu.publish(0x10_2fff, 9, Who::Command).unwrap();
        assert_eq!(there.load_u8(0x1fff), 9);
        assert!(iommu.write(0x10_2fff, &[1, 2], Who::Command).is_err());
        assert_eq!(there.load_u8(0x1fff), 9, "nothing moved");
        let overlap = iommu.map(0x10_2000, here, 0, 0x1000).unwrap_err();
        assert!(overlap.contains("0x101000"), "{overlap}");
        iommu.unmap(0x10_1000, 0x2000).unwrap();
        assert!(iommu.read(0x10_1000, &mut back, Who::Command).is_err());
    }

    #[test]
    fn memory_reached_by_messages_can_be_read_only() {
        let (mut iommu, _here, there) = beside(usize::MAX, false);
        assert!(iommu.write(0x10_1000, &[1], Who::Command).is_err());
        assert!(iommu.publish(0x10_1000, 1, Who::Command).is_err());
        assert_eq!(there.load_u8(0), 0);
        iommu.read(0x10_1000, &mut [0; 4], Who::Command).unwrap();
    }

    #[test]
    fn unanswered_memory_is_a_fault_of_its_own_kind() {
        let (mut iommu, _here, there) = beside(1, true);
        iommu.write(0x10_1000, &[1; 4], Who::Key(7)).unwrap();
        let fault = iommu.write(0x10_0ffe, &[2; 4], Who::Key(7)).unwrap_err();
        assert_eq!((fault.iova, fault.bytes, fault.write), (0x10_0ffe, 4, true));
        assert_eq!(there.load_u8(0), 1);
        assert!(iommu.read(0x10_1000, &mut [0], Who::Key(7)).is_err());
        assert!(iommu.publish(0x10_1000, 3, Who::Key(7)).is_err());
        let causes: Vec<_> = iommu.faults().iter().map(|fault| fault.cause).collect();
        assert_eq!(causes, [FaultCause::NotDone; 3]);
        assert_eq!(iommu.fault_count(), 3);
    }

    #[test]
    fn overlaps_and_cuts_are_refused_as_vfio_does() {
        let (mut iommu, memory) = iommu();
        iommu.map(0x2000, memory.clone(), 0, 0x2000).unwrap();
        assert!(iommu.map(0x3000, memory.clone(), 0, 0x1000).is_err());
        assert!(iommu.map(0x1000, memory.clone(), 0, 0x2000).is_err());
        assert!(iommu.map(0x1000, memory.clone(), 0, 0x4000).is_err());
        assert!(iommu.map(0x800, memory.clone(), 0, 0x1000).is_err());
        assert!(
            iommu.map(0xfee0_0000, memory, 0, 0x1000).is_err(),
            "the interrupt window"
        );
        assert!(iommu.unmap(0x3000, 0x1000).is_err());
        assert!(iommu.unmap(0x2000, 0x1000).is_err());
        assert!(iommu.unmap(0x8000, 0x1000).is_err());
        iommu.unmap(0x2000, 0x2000).unwrap();
        assert!(iommu.is_empty());
    }
}
