//! Pools: DMA memory of a size, page size and node that the program chooses.
//!
//! The arena is for short-lived buffers, on the pages that are available. A pool is for memory that a program
//! knows it will need, such as the cache of a storage appliance. The pool is made once, on pages of a chosen size and
//! a chosen NUMA node, and may be populated before the first allocation. It is one mapping, from which buffers are
//! allocated. A pool whose pages are not available is refused, unless the program permitted smaller pages.

use std::num::NonZeroUsize;
use std::sync::{Arc, PoisonError};

use super::{Chunk, DmaBuffer, DmaMemory, LINE_BYTES};
use crate::error::{DmaError, MemoryError};
use crate::function::Function;
use crate::memory::SharedMemory;
use crate::page::DMA_PAGE;
use crate::page::GIB;
use crate::page::PageSize;
use crate::placement::{Machine, Pages, Placement};

/// Parameters of a pool. By default a pool is on base pages of no particular NUMA node, and its pages are populated at
/// their first use (the kernel's VFIO populates all memory when it maps it).
///
/// Huge pages are always populated when the pool is made, as by [`prefault`](Self::prefault) with one thread, because
/// only that shows whether this process can have them. This needs Linux 5.14.
#[derive(Clone, Debug)]
#[must_use = "a builder makes nothing until it builds"]
pub struct PoolBuilder {
    function: Function,
    pages: PageSize,
    or_smaller: bool,
    placement: Placement,
}

impl PoolBuilder {
    /// Uses pages of this size and no other.
    pub const fn pages(mut self, size: PageSize) -> Self {
        self.pages = size;
        self.or_smaller = false;
        self
    }

    /// Uses pages of this size, or of the next smaller size of which there are enough. [`DmaPool::page_size`] returns
    /// the size used.
    pub const fn pages_up_to(mut self, size: PageSize) -> Self {
        self.pages = size;
        self.or_smaller = true;
        self
    }

    /// Uses memory of this NUMA node and no other (mbind(2), `MPOL_BIND`).
    pub const fn node(mut self, node: u32) -> Self {
        self.placement.node = Some(node);
        self
    }

    /// Populates the pool when it is made, with up to this many threads. Each of them takes 64 MiB at a time, or one
    /// page if a page is larger. With 0 threads, base pages are populated at their first use.
    pub const fn prefault(mut self, threads: usize) -> Self {
        self.placement.threads = NonZeroUsize::new(threads);
        self
    }

    /// Makes a pool of `bytes` bytes, rounded up to whole pages.
    ///
    /// # Errors
    /// [`DmaError::Request`]: no bytes. [`DmaError::HugePages`], [`DmaError::NoHugePages`]: there are no such pages, or
    /// the function takes none. [`DmaError::Node`]: there is no such node, or this process may not use it.
    /// [`DmaError::Populate`]: there is not enough memory: in all, on that node, or for this process.
    /// [`DmaError::Memory`], [`DmaError::Iova`], [`DmaError::Function`]: the host could not map the memory, the I/O
    /// address space had no free range, or the function refused the mapping.
    pub fn build(&self, bytes: usize) -> Result<DmaPool, DmaError> {
        self.build_on(&Machine, bytes)
    }

    fn build_on(&self, machine: &dyn Pages, bytes: usize) -> Result<DmaPool, DmaError> {
        let mut size = self.pages;
        loop {
            match (self.chunk(machine, bytes, size), size.smaller()) {
                (Ok(chunk), _) => {
                    return Ok(DmaPool {
                        chunk: Arc::new(chunk),
                        pages: size,
                    });
                }
                (Err(error), Some(smaller)) if self.or_smaller && is_page_shortage(&error) => {
                    tracing::info!("{error}; trying pages of {:#x} bytes", smaller.bytes());
                    size = smaller;
                }
                (Err(error), _) => return Err(error),
            }
        }
    }

    /// Allocates and maps the memory.
    fn chunk(&self, machine: &dyn Pages, bytes: usize, size: PageSize) -> Result<Chunk, DmaError> {
        if bytes == 0 {
            return Err(DmaError::Request { bytes, align: 1 });
        }
        let rounded = bytes
            .checked_next_multiple_of(size.bytes().max(DMA_PAGE))
            .ok_or(MemoryError::TooLarge { bytes })?;
        if size != PageSize::Base {
            self.check_free_pages(machine, rounded, size)?;
        }
        let memory = |remainder| {
            let memory = SharedMemory::congruent(rounded, GIB, remainder, size)?;
            self.placement.apply(machine, &memory, size)?;
            Ok(memory)
        };
        Chunk::over(self.function.space(), rounded, memory)
    }

    /// Checks that the function takes huge pages, and that the hugetlb pool has enough free ones. This is only a first
    /// check: populating shows whether the pages are really available.
    fn check_free_pages(
        &self,
        machine: &dyn Pages,
        bytes: usize,
        size: PageSize,
    ) -> Result<(), DmaError> {
        let page_bytes = size.bytes();
        if !self.function.takes_huge_pages() {
            return Err(DmaError::NoHugePages {
                name: self.function.name().to_owned(),
                page_bytes,
            });
        }
        let (node, needed) = (self.placement.node, bytes / page_bytes);
        let free = machine.free(size, node);
        if free.is_some_and(|free| free >= needed) {
            return Ok(());
        }
        Err(DmaError::HugePages {
            needed,
            page_bytes,
            node,
            free,
        })
    }
}

/// Returns whether the error means that pages of this size are not available, so that smaller pages may work.
fn is_page_shortage(error: &DmaError) -> bool {
    match error {
        DmaError::HugePages { .. }
        | DmaError::NoHugePages { .. }
        | DmaError::Populate { .. }
        | DmaError::Memory(MemoryError::System { .. }) => true,
        DmaError::Request { .. }
        | DmaError::Node { .. }
        | DmaError::PoolFull { .. }
        | DmaError::Iova(_)
        | DmaError::Memory(
            MemoryError::Empty | MemoryError::TooLarge { .. } | MemoryError::File { .. },
        )
        | DmaError::NotMapped { .. }
        | DmaError::Parked { .. }
        | DmaError::Function(_) => false,
    }
}

/// A fixed amount of DMA memory. Clones share it; it is unmapped with the last clone and the last buffer.
#[derive(Clone)]
pub struct DmaPool {
    pub(super) chunk: Arc<Chunk>,
    pub(super) pages: PageSize,
}

impl DmaPool {
    /// Returns a builder of a pool for a function, and for all functions that share its I/O address space.
    pub fn builder(function: &Function) -> PoolBuilder {
        PoolBuilder {
            function: function.clone(),
            pages: PageSize::Base,
            or_smaller: false,
            placement: Placement::default(),
        }
    }

    /// Returns the size of the pool's pages.
    #[must_use]
    pub const fn page_size(&self) -> PageSize {
        self.pages
    }

    /// Returns the size of the pool in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a pool of no bytes is refused")]
    pub fn len(&self) -> usize {
        self.chunk.mapped.memory().len()
    }

    /// Returns the number of free bytes. They need not be contiguous.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        let state = self.chunk.state.lock();
        let state = state.unwrap_or_else(PoisonError::into_inner);
        let free = state.free.free_ranges();
        let bytes: u64 = free.map(|range| range.end() - range.start() + 1).sum();
        // CAST: the number of free bytes is at most `len`.
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// Allocates `bytes` zeroed bytes whose virtual and I/O addresses are multiples of `align`, a power of two up to 1
    /// GiB.
    ///
    /// # Errors
    /// [`DmaError::Request`]: no bytes, or an alignment that is no power of two up to 1 GiB. [`DmaError::PoolFull`]:
    /// no free range of the pool is long enough at that alignment. [`DmaError::Parked`]: another process has the
    /// function, and may have given the memory to an owner of its own.
    pub fn alloc(&self, bytes: usize, align: usize) -> Result<DmaBuffer, DmaError> {
        let request = DmaError::Request { bytes, align };
        if bytes == 0 || !align.is_power_of_two() || align > GIB {
            return Err(request);
        }
        let Some(rounded) = bytes.checked_next_multiple_of(LINE_BYTES) else {
            return Err(request);
        };
        let space = self.chunk.mapped.space();
        if space.is_parked() {
            let name = space.name().to_owned();
            return Err(DmaError::Parked { name });
        }
        match self.chunk.take(rounded, align.max(LINE_BYTES)) {
            Some(lease) => Ok(DmaBuffer::new(lease, bytes)),
            None => Err(DmaError::PoolFull {
                bytes,
                align,
                free: self.free_bytes(),
                of: self.len(),
            }),
        }
    }

    /// Allocates `bytes` zeroed bytes for a memory region, aligned to 256 (`DAT_OPTIMAL_ALIGNMENT`).
    ///
    /// # Errors
    /// As [`DmaPool::alloc`].
    pub fn memory(&self, bytes: usize) -> Result<DmaMemory, DmaError> {
        Ok(self.alloc(bytes, 256)?.into())
    }
}

impl std::fmt::Debug for DmaPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "DmaPool({:#x} of {:#x} bytes free, pages of {:#x})",
            self.free_bytes(),
            self.len(),
            self.pages.bytes()
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use nix::errno::Errno;

    use super::*;
    use crate::double::Double;

    /// A machine that claims a number of free 2 MiB pages on each of two nodes but does not have them.
    struct ClaimedPages {
        each: usize,
        asked: Mutex<Vec<(PageSize, Option<u32>)>>,
    }

    impl ClaimedPages {
        fn new(each: usize) -> Self {
            Self {
                each,
                asked: Mutex::default(),
            }
        }
    }

    impl Pages for ClaimedPages {
        fn mbind(
            &self,
            _: &SharedMemory,
            _: i32,
            _: &[u64],
            _: usize,
            _: u32,
        ) -> Result<(), Errno> {
            Ok(())
        }

        fn populate(&self, _: &SharedMemory) -> Result<(), Errno> {
            Err(Errno::EFAULT)
        }

        fn free(&self, size: PageSize, node: Option<u32>) -> Option<usize> {
            self.asked.lock().unwrap().push((size, node));
            (size == PageSize::Huge2M).then_some(match node {
                Some(_) => self.each,
                None => 2 * self.each,
            })
        }
    }

    /// A control group may forbid huge pages although the hugetlb pool has free ones. They then cannot be populated.
    #[test]
    fn a_chunk_of_the_arena_is_on_base_pages_if_huge_ones_cannot_be_populated() {
        let forbidden = ClaimedPages::new(1);
        let memory = Chunk::memory(&forbidden, 2 << 20, 0, true).unwrap();
        assert_eq!(forbidden.asked.lock().unwrap().len(), 1);
        memory.store_u8((2 << 20) - 1, 1);
    }

    #[test]
    fn a_pool_is_one_mapping_whatever_is_cut_from_it_and_goes_with_its_last_buffer() {
        let device = Double::new();
        let function = device.function();
        let pool = DmaPool::builder(&function)
            .prefault(2)
            .build(100_000)
            .unwrap();
        assert_eq!((pool.len(), pool.free_bytes()), (102_400, 102_400));
        assert_eq!(pool.page_size(), PageSize::Base);
        let buffers: Vec<_> = (0..20).map(|_| pool.alloc(4000, 4096).unwrap()).collect();
        assert_eq!(device.mappings().len(), 1);
        for buffer in &buffers {
            assert_eq!(buffer.address() % 4096, 0);
            assert_eq!(buffer.iova().0 % GIB as u64, buffer.address() % GIB as u64);
            buffer.fill(0, 4000, 0xee);
        }
        let memory = pool.memory(100).unwrap();
        assert!(memory.is_reached_by(&function));
        assert_eq!(pool.free_bytes(), 102_400 - 20 * 4032 - 128);
        let first = buffers[0].address();
        drop(buffers);
        let again = pool.alloc(4096, 4096).unwrap();
        assert_eq!(again.address(), first);
        assert_eq!(again.read_obj::<[u8; 4096]>(0), [0; 4096], "zeroed");
        drop((pool, memory));
        assert_eq!(device.mappings().len(), 1);
        drop(again);
        assert_eq!(device.mappings(), []);
    }

    /// A program may drop a pool while the device runs, so dropping the pool does not free memory that the device may
    /// write.
    #[test]
    fn memory_of_a_pool_that_is_kept_is_not_given_out_again_and_stays_mapped_without_the_pool() {
        let device = Double::new();
        let function = device.function();
        let pool = DmaPool::builder(&function).build(8192).unwrap();
        let [kept, other] = [(); 2].map(|()| pool.alloc(pool.len() / 2, 64).unwrap());
        let mapped = device.mappings();
        kept.arena().keep(kept);
        assert_eq!(pool.free_bytes(), 0);
        drop((pool, other));
        assert_eq!(device.mappings(), mapped);
        drop(function);
        assert_eq!(device.mappings(), []);
    }

    #[test]
    fn a_pool_that_is_full_says_how_much_is_left() {
        let pool = DmaPool::builder(&Double::new().function())
            .build(8192)
            .unwrap();
        let _held = pool.alloc(4096, 64).unwrap();
        let text = pool.alloc(4097, 64).unwrap_err().to_string();
        assert_eq!(
            text,
            "a pool of 0x2000 bytes has 0x1000 free, and no 0x1001 together that are aligned to 0x40"
        );
        for (bytes, align) in [(0, 1), (1, 0), (1, 3), (1, 2 * GIB), (usize::MAX, 1)] {
            let refused = pool.alloc(bytes, align);
            assert!(
                matches!(refused, Err(DmaError::Request { .. })),
                "{bytes:#x} {align:#x}"
            );
        }
        let none = DmaPool::builder(&Double::new().function()).build(0);
        assert!(matches!(none, Err(DmaError::Request { .. })));
    }

    #[test]
    fn huge_pages_that_are_not_there_are_refused_with_their_number_or_smaller_ones_taken() {
        let device = Double::new();
        let function = device.function();
        let builder = DmaPool::builder(&function);
        let few = ClaimedPages::new(1);
        let refused = builder
            .clone()
            .pages(PageSize::Huge2M)
            .build_on(&few, 5 << 20);
        assert_eq!(
            refused.unwrap_err().to_string(),
            "3 pages of 0x200000 bytes are wanted and 2 are free: echo their number in all > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
        );
        let of_node = builder
            .clone()
            .pages(PageSize::Huge2M)
            .node(1)
            .build_on(&few, 4 << 20);
        assert_eq!(
            of_node.unwrap_err().to_string(),
            "2 pages of 0x200000 bytes on NUMA node 1 are wanted and 1 are free: echo their number in all > /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages"
        );
        let no_pool = builder.clone().pages(PageSize::Huge1G).build_on(&few, 1);
        assert_eq!(
            no_pool.unwrap_err().to_string(),
            "1 pages of 0x40000000 bytes are wanted, and the system has no pool of such: hugepagesz= and hugepages= on the kernel's command line make one"
        );
        assert_eq!(device.mappings(), []);
        let smaller = builder
            .pages_up_to(PageSize::Huge1G)
            .build_on(&few, 5 << 20)
            .unwrap();
        assert_eq!(smaller.page_size(), PageSize::Base);
        let asked = [
            PageSize::Huge2M,
            PageSize::Huge2M,
            PageSize::Huge1G,
            PageSize::Huge1G,
            PageSize::Huge2M,
        ];
        assert_eq!(
            few.asked
                .lock()
                .unwrap()
                .iter()
                .map(|it| it.0)
                .collect::<Vec<_>>(),
            asked
        );
    }

    /// If memory cannot be populated, no pool is made. Hugetlb reservations count for the whole machine, so a page that
    /// a node lacks would otherwise cause SIGBUS at its first use.
    #[test]
    fn memory_that_cannot_be_populated_makes_no_pool() {
        let device = Double::new();
        let function = device.function();
        let builder = DmaPool::builder(&function).prefault(1);
        let refused = builder.clone().build_on(&ClaimedPages::new(0), 4096);
        assert!(
            matches!(refused, Err(DmaError::Populate { .. })),
            "{refused:?}"
        );
        let next = builder.prefault(0).build(4096).unwrap();
        // The only mapping is that of the second pool.
        assert_eq!(
            device.mappings(),
            [(next.alloc(1, 1).unwrap().iova().0, 4096)]
        );
    }

    #[test]
    fn huge_pages_of_this_machine_hold_a_pool_if_it_has_any() {
        let function = Double::new().function();
        let builder = DmaPool::builder(&function)
            .pages(PageSize::Huge2M)
            .prefault(2);
        if Machine
            .free(PageSize::Huge2M, None)
            .is_none_or(|free| free < 2)
        {
            println!("skipped: no huge pages are free; a refusal is looked at instead");
            assert!(matches!(
                builder.build(4 << 20),
                Err(DmaError::HugePages { .. })
            ));
            return;
        }
        let pool = builder.build(3 << 20).unwrap();
        assert_eq!((pool.len(), pool.page_size()), (4 << 20, PageSize::Huge2M));
        pool.alloc(3 << 20, 2 << 20).unwrap().store_u8(0, 1);
    }
}
