//! A device double for this crate's tests: it records the calls it receives, and reaches memory as a device would.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::clock::Clock;
use crate::device::{Device, MessageMemory};
use crate::function::Function;
use crate::interrupt::{Interrupt, Notices};
use crate::memory::SharedMemory;
use crate::real_clock::RealClock;

/// Bytes of BAR 0, the double's only BAR.
pub(crate) const BAR_BYTES: usize = 0x1000;

/// A mapping: the memory, the byte offset in the memory, and the number of bytes.
type Mapping = (SharedMemory, usize, usize);

#[derive(Default)]
struct State {
    config: BTreeMap<u16, u8>,
    writes: Vec<(u8, u64, Vec<u8>)>,
    resets: usize,
    interrupts: Vec<Vec<Interrupt>>,
    notices: Notices,
    mappings: BTreeMap<u64, Mapping>,
    /// Start I/O addresses of all read-only mappings ever made.
    read_only: Vec<u64>,
    /// Memory that is accessed by messages, and its length in bytes. The key is the I/O address of its start.
    asked: BTreeMap<u64, (Arc<dyn MessageMemory>, usize)>,
    /// True if `dma_map` and `dma_unmap` are refused.
    refuses_dma: bool,
    /// True if `dma_unmap` is refused.
    refuses_unmap: bool,
}

/// A device double. Clones share its state.
#[derive(Clone)]
pub(crate) struct Double {
    bar: SharedMemory,
    can_be_parked: bool,
    state: Arc<Mutex<State>>,
}

impl Double {
    pub(crate) fn new() -> Self {
        Self {
            bar: SharedMemory::anonymous(BAR_BYTES).unwrap(),
            can_be_parked: false,
            state: Arc::default(),
        }
    }

    pub(crate) fn that_can_be_parked() -> Self {
        Self {
            can_be_parked: true,
            ..Self::new()
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn function(&self) -> Function {
        Function::in_process(Arc::new(self.clone())).unwrap()
    }

    pub(crate) fn writes(&self) -> Vec<(u8, u64, Vec<u8>)> {
        self.state().writes.clone()
    }

    pub(crate) fn bar_memory(&self) -> SharedMemory {
        self.bar.clone()
    }

    pub(crate) fn resets(&self) -> usize {
        self.state().resets
    }

    pub(crate) fn times_interrupts_set(&self) -> usize {
        self.state().interrupts.len()
    }

    /// Returns the number of enabled vectors.
    pub(crate) fn interrupts_set(&self) -> usize {
        self.state().interrupts.last().map_or(0, Vec::len)
    }

    pub(crate) fn signal(&self, vector: usize) {
        self.state().interrupts[0][vector].signal();
    }

    pub(crate) fn notices(&self) -> Notices {
        self.state().notices.clone()
    }

    pub(crate) fn set_refuses_dma(&self, refuses_dma: bool) {
        self.state().refuses_dma = refuses_dma;
    }

    pub(crate) fn set_refuses_unmap(&self, refuses_unmap: bool) {
        self.state().refuses_unmap = refuses_unmap;
    }

    /// Returns whether the device may start DMA.
    pub(crate) fn is_bus_master(&self) -> bool {
        let mut command = [0];
        self.config_read(4, &mut command);
        command[0] & 4 != 0
    }

    /// Returns IOVA and length in bytes of all mappings of memory that is accessed in place.
    pub(crate) fn mappings(&self) -> Vec<(u64, usize)> {
        self.state()
            .mappings
            .iter()
            .map(|(&iova, &(_, _, bytes))| (iova, bytes))
            .collect()
    }

    /// Returns the memory that the device's DMA at an IOVA accesses in place, and the offset there. `None` if nothing
    /// is mapped.
    pub(crate) fn memory_at(&self, iova: u64) -> Option<(SharedMemory, usize)> {
        let state = self.state();
        let (start, (memory, offset, bytes)) = state.mappings.range(..=iova).next_back()?;
        let into = usize::try_from(iova - start).unwrap();
        (into < *bytes).then(|| (memory.clone(), offset + into))
    }

    /// Returns the start I/O addresses of all read-only mappings ever made.
    pub(crate) fn read_only(&self) -> Vec<u64> {
        self.state().read_only.clone()
    }

    /// Returns the memory that the device's DMA at an IOVA accesses by messages.
    pub(crate) fn asks(&self, iova: u64) -> Arc<dyn MessageMemory> {
        let state = self.state();
        let (&start, (memory, bytes)) = state.asked.range(..=iova).next_back().unwrap();
        let into = usize::try_from(iova - start).unwrap();
        assert!(into < *bytes, "IOVA {iova:#x} is not mapped");
        Arc::clone(memory)
    }

    /// Returns IOVA and length of all mappings that are accessed by messages.
    pub(crate) fn asked(&self) -> Vec<(u64, usize)> {
        let of = |(&iova, &(_, bytes)): (&u64, &(_, usize))| (iova, bytes);
        self.state().asked.iter().map(of).collect()
    }

    /// Returns the memory that the device's DMA at an IOVA reaches, and the offset in that memory.
    pub(crate) fn reach(&self, iova: u64) -> (SharedMemory, usize) {
        let state = self.state();
        let (&start, (memory, offset, bytes)) = state.mappings.range(..=iova).next_back().unwrap();
        let into = usize::try_from(iova - start).unwrap();
        assert!(into < *bytes, "IOVA {iova:#x} is not mapped");
        (memory.clone(), offset + into)
    }
}

impl Device for Double {
    fn name(&self) -> &str {
        "double"
    }

    fn config_read(&self, offset: u16, out: &mut [u8]) {
        let state = self.state();
        for (at, byte) in (offset..).zip(out) {
            *byte = state.config.get(&at).copied().unwrap_or(0);
        }
    }

    fn config_write(&self, offset: u16, data: &[u8]) {
        self.state()
            .config
            .extend((offset..).zip(data.iter().copied()));
    }

    fn bar(&self, index: u8) -> Option<SharedMemory> {
        (index == 0).then(|| self.bar.clone())
    }

    fn bar_written(&self, index: u8, offset: u64, bytes: &[u8]) {
        let mut stored = vec![0; bytes.len()];
        self.bar
            .read_bytes(usize::try_from(offset).unwrap(), &mut stored);
        assert_eq!(stored, bytes, "the write at {offset:#x} is not in memory");
        self.state().writes.push((index, offset, bytes.to_vec()));
    }

    fn reset(&self) {
        self.state().resets += 1;
    }

    fn interrupt_count(&self) -> usize {
        2
    }

    fn set_interrupts(&self, vectors: Vec<Interrupt>) {
        self.state().interrupts.push(vectors);
    }

    fn set_notices(&self, notices: Notices) {
        self.state().notices = notices;
    }

    fn dma_map(
        &self,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String> {
        let mut state = self.state();
        if state.refuses_dma {
            return Err("refused by the double".to_owned());
        }
        let end = iova + u64::try_from(bytes).unwrap();
        let overlapped = state
            .mappings
            .range(..end)
            .next_back()
            .is_some_and(|(&start, &(_, _, length))| start + u64::try_from(length).unwrap() > iova);
        if overlapped {
            return Err("overlaps a mapping".to_owned());
        }
        state.mappings.insert(iova, (memory, offset, bytes));
        Ok(())
    }

    fn dma_map_read_only(
        &self,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String> {
        self.dma_map(iova, memory, offset, bytes)?;
        self.state().read_only.push(iova);
        Ok(())
    }

    fn dma_map_by_message(
        &self,
        iova: u64,
        memory: Arc<dyn MessageMemory>,
        bytes: usize,
        writable: bool,
    ) -> Result<(), String> {
        let mut state = self.state();
        if state.refuses_dma {
            return Err("refused by the double".to_owned());
        }
        if !writable {
            state.read_only.push(iova);
        }
        state.asked.insert(iova, (memory, bytes));
        Ok(())
    }

    fn dma_unmap(&self, iova: u64, bytes: usize) -> Result<(), String> {
        let mut state = self.state();
        if state.refuses_dma || state.refuses_unmap {
            return Err("refused by the double".to_owned());
        }
        if state.asked.get(&iova).is_some_and(|asked| asked.1 == bytes) {
            state.asked.remove(&iova);
            return Ok(());
        }
        match state.mappings.get(&iova) {
            Some(&(_, _, mapped)) if mapped == bytes => {
                state.mappings.remove(&iova);
                Ok(())
            }
            Some(_) | None => Err("no such mapping".to_owned()),
        }
    }

    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        vec![0..=0xfedf_ffff, 0xfef0_0000..=0xff_ffff_ffff]
    }

    fn can_be_parked(&self) -> bool {
        self.can_be_parked
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(RealClock::new())
    }
}
