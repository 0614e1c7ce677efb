//! Benchmark for callgrind: cost of a read of 4 KiB in the reactor. `disk NAME` runs `region_NAME` once, which makes
//! 1,024 reads of a file that is in the page cache.
//!
//! `valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*region_NAME' disk NAME` counts the instructions
//! in user space, without those of the kernel.

use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use driver::{
    Clock, Device, DmaArena, DmaBuffer, File, Function, Instant, Interrupt, Reactor, RealClock,
    SharedMemory,
};

const BLOCK: usize = 4096;
const READS: usize = 1024;
const DEPTH: usize = 32;

/// A device model without BARs and interrupts. It accepts every DMA mapping and does nothing else.
struct Idle;

impl Device for Idle {
    fn name(&self) -> &'static str {
        "idle"
    }
    fn config_read(&self, _offset: u16, out: &mut [u8]) {
        out.fill(0);
    }
    fn config_write(&self, _offset: u16, _data: &[u8]) {}
    fn bar(&self, _index: u8) -> Option<SharedMemory> {
        None
    }
    fn bar_written(&self, _index: u8, _offset: u64, _bytes: &[u8]) {}
    fn reset(&self) {}
    fn interrupt_count(&self) -> usize {
        0
    }
    fn set_interrupts(&self, _vectors: Vec<Interrupt>) {}
    fn dma_map(
        &self,
        _iova: u64,
        _memory: SharedMemory,
        _offset: usize,
        _bytes: usize,
    ) -> Result<(), String> {
        Ok(())
    }
    fn dma_unmap(&self, _iova: u64, _bytes: usize) -> Result<(), String> {
        Ok(())
    }
    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        std::iter::once(0..=u64::MAX).collect()
    }
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(RealClock::new())
    }
}

struct Disk {
    reactor: Reactor,
    file: File,
    buffer: DmaBuffer,
}

impl Disk {
    fn queue(&mut self, at: usize) {
        let offset = (at % DEPTH * BLOCK) as u64;
        self.reactor
            .queue_read(&self.file, offset, &self.buffer, at % DEPTH * BLOCK, BLOCK)
            .expect("queued");
    }

    /// Takes all available completions and checks them. Returns their number.
    fn take(&mut self) -> usize {
        let mut taken = 0;
        while let Some(ended) = self.reactor.take_completion() {
            assert!(matches!(ended.result, Ok(BLOCK)), "{ended:?}");
            taken += 1;
        }
        taken
    }

    fn many(&mut self, descriptors: &[BorrowedFd<'_>], depth: usize) {
        let mut begun = 0;
        let mut ended = 0;
        while ended < READS {
            while begun < READS && begun - ended < depth {
                self.queue(begun);
                begun += 1;
            }
            self.reactor
                .wait_for(descriptors, Instant(u64::MAX))
                .expect("waited");
            ended += self.take();
        }
    }
}

/// Keeps one read outstanding at a time.
#[inline(never)]
fn region_one(disk: &mut Disk) {
    disk.many(&[], 1);
}

/// Keeps up to 32 reads outstanding.
#[inline(never)]
fn region_many(disk: &mut Disk) {
    disk.many(&[], DEPTH);
}

/// Keeps up to 32 reads outstanding, and passes a device's interrupt descriptor to each wait.
#[inline(never)]
fn region_beside(disk: &mut Disk) {
    let interrupt = Interrupt::new().expect("an eventfd");
    disk.many(&[interrupt.as_fd()], DEPTH);
}

fn main() {
    let function = Function::in_process(Arc::new(Idle)).expect("a function");
    let arena = DmaArena::new(&function).expect("an arena");
    let buffer = arena.alloc(DEPTH * BLOCK, BLOCK).expect("memory");
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file()
        .set_len((DEPTH * BLOCK) as u64)
        .expect("a length");
    let mut disk = Disk {
        reactor: Reactor::new(64).expect("a ring"),
        file: File::open(file.path()).expect("opened"),
        buffer,
    };
    let buffer = disk.buffer.clone();
    let pinned = disk.reactor.register(&[buffer]).expect("the ring");
    // Warm up, so that all tables have reached their final size.
    disk.many(&[], DEPTH);
    match std::env::args().nth(1).as_deref() {
        Some("one") => region_one(&mut disk),
        Some("many") => region_many(&mut disk),
        Some("beside") => region_beside(&mut disk),
        _ => println!("disk one | many | beside (pinned: {pinned})"),
    }
}
