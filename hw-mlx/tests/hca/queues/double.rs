//! A device double that only observes: memory, a BAR, and a record of every register write. The record has a copy of
//! the watched memory at the time of the write.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};

use driver::{Clock, Device, DmaArena, Function, Interrupt, RealClock, SharedMemory};
use hw_mlx::ring::RingMemory;
use hw_mlx::uar::Doorbells;
use mlx_prm::UarPage;

const BAR_BYTES: usize = 0x1000;
const FIRST_IOVA: u64 = 1 << 30;
const LAST_IOVA: u64 = (1 << 36) - 1;

/// A register write, and the memory that the device could read at that time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterWrite {
    pub offset: u64,
    pub bytes: Vec<u8>,
    /// Contents of the watched memory ranges at that time.
    pub seen: Vec<Vec<u8>>,
}

#[derive(Default)]
struct State {
    mappings: BTreeMap<u64, (SharedMemory, usize, usize)>,
    watched: Vec<(u64, usize)>,
    writes: Vec<RegisterWrite>,
}

/// The observing device.
pub struct Double {
    bar: SharedMemory,
    state: Mutex<State>,
}

impl Double {
    /// Copies `bytes` bytes at an I/O address, as a device would read them.
    pub fn read(&self, iova: u64, bytes: usize) -> Vec<u8> {
        read(&self.state.lock().unwrap(), iova, bytes)
    }

    /// Watches a memory range: the double records its contents at each later register write.
    pub fn watch(&self, iova: u64, bytes: usize) {
        self.state.lock().unwrap().watched.push((iova, bytes));
    }

    /// Returns the register writes since the last call.
    pub fn take_writes(&self) -> Vec<RegisterWrite> {
        std::mem::take(&mut self.state.lock().unwrap().writes)
    }
}

fn read(state: &State, iova: u64, bytes: usize) -> Vec<u8> {
    let (start, (memory, offset, _)) = state.mappings.range(..=iova).next_back().expect("mapped");
    let mut out = vec![0; bytes];
    memory.read_bytes(offset + usize::try_from(iova - start).unwrap(), &mut out);
    out
}

impl Device for Double {
    fn name(&self) -> &str {
        "double"
    }
    fn config_read(&self, _offset: u16, out: &mut [u8]) {
        out.fill(0);
    }
    fn config_write(&self, _offset: u16, _data: &[u8]) {}
    fn bar(&self, index: u8) -> Option<SharedMemory> {
        (index == 0).then(|| self.bar.clone())
    }
    fn bar_written(&self, _index: u8, offset: u64, bytes: &[u8]) {
        let mut state = self.state.lock().unwrap();
        let seen = state
            .watched
            .iter()
            .map(|&(iova, bytes)| read(&state, iova, bytes))
            .collect();
        state.writes.push(RegisterWrite {
            offset,
            bytes: bytes.to_vec(),
            seen,
        });
    }
    fn reset(&self) {}
    fn interrupt_count(&self) -> usize {
        0
    }
    fn set_interrupts(&self, _vectors: Vec<Interrupt>) {}
    fn dma_map(
        &self,
        iova: u64,
        memory: SharedMemory,
        offset: usize,
        bytes: usize,
    ) -> Result<(), String> {
        self.state
            .lock()
            .unwrap()
            .mappings
            .insert(iova, (memory, offset, bytes));
        Ok(())
    }
    fn dma_unmap(&self, iova: u64, _bytes: usize) -> Result<(), String> {
        self.state.lock().unwrap().mappings.remove(&iova);
        Ok(())
    }
    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        vec![FIRST_IOVA..=LAST_IOVA]
    }
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(RealClock::new())
    }
}

/// An observing device, and the parts that queues need from it.
pub struct Bench {
    pub device: Arc<Double>,
    pub doorbells: Doorbells,
    arena: DmaArena,
}

impl Bench {
    pub fn new() -> Self {
        let device = Arc::new(Double {
            bar: SharedMemory::anonymous(BAR_BYTES).unwrap(),
            state: Mutex::default(),
        });
        let function = Function::in_process(device.clone()).unwrap();
        let doorbells = Doorbells::new(function.bar(0).unwrap().block::<UarPage>(0).unwrap());
        let arena = DmaArena::with_chunk_bytes(&function, 1 << 22).unwrap();
        Self {
            device,
            doorbells,
            arena,
        }
    }

    pub fn memory(&self, bytes: usize) -> RingMemory {
        RingMemory::alloc(&self.arena, bytes).unwrap()
    }
}
