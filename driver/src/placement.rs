//! Placement of memory: its page size, its NUMA node, and the time of its allocation.
//!
//! Three properties are decided before memory is first used. The page size is that of the file behind the memory
//! (memfd_create(2), `MFD_HUGETLB`). The node is a policy of the address range (mbind(2), `MPOL_BIND`): when a page is
//! first touched, the kernel takes it from that node, or fails. The pages can be touched in advance, by several
//! threads (madvise(2), `MADV_POPULATE_WRITE`, Linux 5.14): a page of 1 GiB takes a good part of a second to clear,
//! and the kernel's VFIO, which pins all pages when it maps them, would clear one after the other.
//!
//! Touching a missing page of the hugetlb pool kills the process (SIGBUS). A reservation does not exclude that. It
//! counts for the whole machine, not for a node (Linux `Documentation/admin-guide/mm/hugetlbpage.rst`), and a control
//! group may forbid pages that are reserved (`Documentation/admin-guide/cgroup-v1/hugetlb.rst`, "Page fault
//! accounting"). So hugetlb memory is always populated in this module: a missing page is then an error now instead of
//! a signal later.
//!
//! The system calls go through [`Pages`]. Tests implement it as a machine with several nodes, or with an old kernel.

// UNSAFETY: mbind and madvise take raw addresses.
#![expect(unsafe_code, reason = "system calls about memory")]

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::errno::Errno;
use nix::libc;

use crate::error::DmaError;
use crate::memory::SharedMemory;
use crate::page::PageSize;

/// Highest number of a NUMA node plus one: the most that Linux can be built for (`NODES_SHIFT` is at most 10).
pub(crate) const MOST_NODES: u32 = 1024;
/// Number of 64-bit words in a mask of nodes.
const MASK_WORDS: usize = MOST_NODES as usize / 64;
/// Number of bytes that one thread populates at a time, unless a page is larger.
const SLICE_BYTES: usize = 64 << 20;

/// System calls and queries about pages.
pub(crate) trait Pages: Sync {
    /// Calls `mbind` for all of `memory`, with a mask of nodes.
    fn mbind(
        &self,
        memory: &SharedMemory,
        mode: libc::c_int,
        nodes: &[u64],
        maxnode: usize,
        flags: u32,
    ) -> Result<(), Errno>;
    /// Calls `madvise` with `MADV_POPULATE_WRITE`.
    fn populate(&self, memory: &SharedMemory) -> Result<(), Errno>;
    /// Returns the free pages of a hugetlb pool, of the machine or of a node; `None` if there is no such pool.
    fn free(&self, size: PageSize, node: Option<u32>) -> Option<usize>;
}

/// The machine itself.
pub(crate) struct Machine;

impl Pages for Machine {
    fn mbind(
        &self,
        memory: &SharedMemory,
        mode: libc::c_int,
        nodes: &[u64],
        maxnode: usize,
        flags: u32,
    ) -> Result<(), Errno> {
        // The kernel uses `maxnode - 1` bits of the mask (`get_nodes` in mm/mempolicy.c subtracts one).
        assert!(
            maxnode <= nodes.len() * 64 + 1,
            "a mask of {} words",
            nodes.len()
        );
        // SAFETY: the range is mapped as long as `memory` is borrowed, and the kernel reads `maxnode - 1` bits of a
        // mask that has them (asserted). A policy changes where pages come from, not their contents.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                memory.address(),
                memory.len(),
                mode,
                nodes.as_ptr(),
                maxnode,
                flags,
            )
        };
        Errno::result(result).map(drop)
    }

    fn populate(&self, memory: &SharedMemory) -> Result<(), Errno> {
        let at = memory.pointer(0, memory.len());
        // SAFETY: the range is mapped as long as `memory` is borrowed. Populating changes no byte: a missing page is
        // allocated as by a write that changes nothing.
        let result =
            unsafe { libc::madvise(at.as_ptr().cast(), memory.len(), libc::MADV_POPULATE_WRITE) };
        Errno::result(result).map(drop)
    }

    fn free(&self, size: PageSize, node: Option<u32>) -> Option<usize> {
        let pool = size.pool();
        let path = match node {
            Some(node) => format!("/sys/devices/system/node/node{node}/hugepages/{pool}"),
            None => format!("/sys/kernel/mm/hugepages/{pool}"),
        };
        let text = std::fs::read_to_string(path + "/free_hugepages").ok()?;
        text.trim().parse().ok()
    }
}

/// Node and time of allocation of the pages of memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Placement {
    /// NUMA node, below [`MOST_NODES`]; `None` for no particular node.
    pub(crate) node: Option<u32>,
    /// Number of threads that populate the memory; `None` to populate on first use (but huge pages at once).
    pub(crate) threads: Option<NonZeroUsize>,
}

impl Placement {
    /// Applies the placement to memory that has not been touched yet.
    pub(crate) fn apply(
        self,
        pages: &dyn Pages,
        memory: &SharedMemory,
        size: PageSize,
    ) -> Result<(), DmaError> {
        if let Some(node) = self.node {
            bind(pages, memory, node)?;
        }
        // Huge pages must be populated now: a missing page would cause SIGBUS at its first use (see the module's
        // comment).
        let must = size != PageSize::Base;
        match self.threads {
            Some(threads) => populate(pages, memory, size, threads, !must),
            None if must => populate(pages, memory, size, NonZeroUsize::MIN, false),
            None => Ok(()),
        }
    }
}

fn bind(pages: &dyn Pages, memory: &SharedMemory, node: u32) -> Result<(), DmaError> {
    let mut mask = [0; MASK_WORDS];
    let out_of_range = DmaError::Node {
        node,
        bytes: memory.len(),
        errno: Errno::EINVAL,
    };
    let Some(word) = mask.get_mut(node as usize / 64) else {
        return Err(out_of_range);
    };
    *word = 1 << (node % 64);
    pages
        .mbind(memory, libc::MPOL_BIND, &mask, MOST_NODES as usize + 1, 0)
        .map_err(|errno| DmaError::Node {
            node,
            bytes: memory.len(),
            errno,
        })
}

/// Populates the pages now. Each thread takes a slice at a time. On a kernel without `MADV_POPULATE_WRITE`, the thread
/// touches the pages one by one, if `may_touch`.
fn populate(
    pages: &dyn Pages,
    memory: &SharedMemory,
    size: PageSize,
    threads: NonZeroUsize,
    may_touch: bool,
) -> Result<(), DmaError> {
    let slice = SLICE_BYTES.max(size.bytes());
    let slices = memory.len().div_ceil(slice);
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<DmaError>> = Mutex::new(None);
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= slices {
                return;
            }
            let at = number * slice;
            let part = memory.part(at, slice.min(memory.len() - at));
            let done = match pages.populate(&part) {
                // Linux before 5.14 does not know this advice.
                Err(Errno::EINVAL) if may_touch => {
                    for page in (0..part.len()).step_by(size.bytes()) {
                        part.store_u8(page, 0);
                    }
                    Ok(())
                }
                done => done,
            };
            if let Err(errno) = done {
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.get_or_insert(DmaError::Populate {
                    bytes: part.len(),
                    at,
                    of: memory.len(),
                    page_bytes: size.bytes(),
                    errno,
                });
                // Stops all threads from starting another slice.
                next.store(slices, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.get().min(slices) {
            let helper = std::thread::Builder::new().name("populate".to_owned());
            if let Err(error) = helper.spawn_scoped(scope, work) {
                tracing::debug!(%error, "cannot start another thread for populating memory");
                break;
            }
        }
        work();
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Condvar;
    use std::time::Duration;

    use super::*;

    /// A call of mbind: address, length, mode, mask, `maxnode`, flags.
    type Bound = (usize, usize, i32, Vec<u64>, usize, u32);

    /// Time after which a call no longer waits for other threads. The test then fails by their number.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A machine with two nodes that records the calls it receives.
    #[derive(Default)]
    struct Recorded {
        bound: Mutex<Vec<Bound>>,
        populated: Mutex<Vec<(usize, usize)>>,
        threads: Mutex<HashSet<std::thread::ThreadId>>,
        /// Number of threads that must have called `populate` before a call returns.
        together: usize,
        /// Notified when a thread calls `populate`.
        begun: Condvar,
        /// The address from which populating fails, and its error.
        refuses: Option<(usize, Errno)>,
    }

    impl Pages for Recorded {
        fn mbind(
            &self,
            memory: &SharedMemory,
            mode: i32,
            nodes: &[u64],
            maxnode: usize,
            flags: u32,
        ) -> Result<(), Errno> {
            if nodes[0] > 3 || nodes[1..].iter().any(|word| *word != 0) {
                return Err(Errno::EINVAL);
            }
            let asked = (
                memory.address(),
                memory.len(),
                mode,
                nodes.to_vec(),
                maxnode,
                flags,
            );
            self.bound.lock().unwrap().push(asked);
            Ok(())
        }

        fn populate(&self, memory: &SharedMemory) -> Result<(), Errno> {
            let asked = (memory.address(), memory.len());
            self.populated.lock().unwrap().push(asked);
            let mut threads = self.threads.lock().unwrap();
            threads.insert(std::thread::current().id());
            self.begun.notify_all();
            let are_few = |threads: &mut HashSet<_>| threads.len() < self.together;
            let waited = self.begun.wait_timeout_while(threads, PATIENCE, are_few);
            drop(waited.unwrap());
            match self.refuses {
                Some((from, errno)) if asked.0 >= from => Err(errno),
                Some(_) | None => Ok(()),
            }
        }

        fn free(&self, _: PageSize, _: Option<u32>) -> Option<usize> {
            None
        }
    }

    fn placed(node: Option<u32>, threads: usize) -> Placement {
        Placement {
            node,
            threads: NonZeroUsize::new(threads),
        }
    }

    /// mbind(2): `MPOL_BIND` is 2; the mask has a bit for each node; `maxnode` is the number of bits plus one
    /// (`get_nodes` in mm/mempolicy.c of Linux).
    #[test]
    fn a_node_is_bound_by_its_bit_in_the_mask_and_nothing_else() {
        let memory = SharedMemory::of_this_process(8192).unwrap();
        let pages = Recorded::default();
        placed(Some(1), 0)
            .apply(&pages, &memory, PageSize::Base)
            .unwrap();
        let mut mask = vec![0; 16];
        mask[0] = 2;
        let asked = pages.bound.lock().unwrap().clone();
        assert_eq!(asked, [(memory.address(), 8192, 2, mask, 1025, 0)]);
        assert_eq!(*pages.populated.lock().unwrap(), []);
        for node in [2, 64, 1023, 1024, u32::MAX] {
            let refused = placed(Some(node), 0).apply(&pages, &memory, PageSize::Base);
            let text = refused.unwrap_err().to_string();
            let named = format!("NUMA node {node}");
            assert!(
                text.contains(&named) && text.contains("EINVAL (22)"),
                "{text}"
            );
        }
        assert_eq!(pages.bound.lock().unwrap().len(), 1);
    }

    #[test]
    fn this_machine_binds_memory_to_its_first_node_and_to_no_node_it_has_not() {
        if !std::path::Path::new("/sys/devices/system/node/node0").exists() {
            println!("skipped: the kernel knows no nodes");
            return;
        }
        let memory = SharedMemory::of_this_process(1 << 20).unwrap();
        placed(Some(0), 2)
            .apply(&Machine, &memory, PageSize::Base)
            .unwrap();
        let refused = placed(Some(1023), 2).apply(&Machine, &memory, PageSize::Base);
        assert!(
            matches!(refused, Err(DmaError::Node { node: 1023, .. })),
            "{refused:?}"
        );
    }

    #[test]
    fn every_byte_is_populated_once_by_as_many_threads_as_asked_for() {
        let bytes = 5 * SLICE_BYTES + 4096;
        let memory = SharedMemory::of_this_process(bytes).unwrap();
        // There are six slices.
        for (threads, used) in [(1, 1), (4, 4), (100, 6)] {
            // With fewer threads, `populate` waits for `PATIENCE`, and the assertion on their number fails.
            let pages = Recorded {
                together: used,
                ..Recorded::default()
            };
            placed(None, threads)
                .apply(&pages, &memory, PageSize::Base)
                .unwrap();
            let mut asked = pages.populated.lock().unwrap().clone();
            asked.sort_unstable();
            let mut at = memory.address();
            for (start, bytes) in asked {
                assert_eq!(start, at);
                at += bytes;
            }
            assert_eq!(at, memory.address() + bytes);
            assert_eq!(pages.threads.lock().unwrap().len(), used, "of {threads}");
        }
    }

    #[test]
    fn memory_that_cannot_be_populated_is_an_error_and_the_rest_is_not_begun() {
        let memory = SharedMemory::of_this_process(8 * SLICE_BYTES).unwrap();
        let pages = Recorded {
            refuses: Some((memory.address() + 2 * SLICE_BYTES, Errno::EFAULT)),
            ..Recorded::default()
        };
        let error = placed(None, 1)
            .apply(&pages, &memory, PageSize::Base)
            .unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("0x8000000") && text.contains("EFAULT (14)"),
            "{text}"
        );
        assert_eq!(pages.populated.lock().unwrap().len(), 3);
    }

    /// A control group may forbid huge pages that are free and reserved. Populating them fails, and touching them kills
    /// the process.
    #[test]
    fn huge_pages_are_populated_at_once_and_refused_if_they_cannot_be() {
        let memory = SharedMemory::of_this_process(8192).unwrap();
        for (node, threads) in [(None, 0), (None, 1), (Some(0), 0), (Some(0), 1)] {
            let pages = Recorded::default();
            placed(node, threads)
                .apply(&pages, &memory, PageSize::Huge2M)
                .unwrap();
            let asked = pages.populated.lock().unwrap().clone();
            assert_eq!(asked, [(memory.address(), 8192)], "{node:?} {threads}");
            let forbidden = Recorded {
                refuses: Some((0, Errno::EFAULT)),
                ..Recorded::default()
            };
            let refused = placed(node, threads).apply(&forbidden, &memory, PageSize::Huge2M);
            assert!(
                matches!(refused, Err(DmaError::Populate { .. })),
                "{refused:?}"
            );
        }
    }

    /// Before Linux 5.14, MADV_POPULATE_WRITE returns EINVAL (madvise(2)). Base pages are then touched instead, but
    /// memory of a hugetlb pool is refused.
    #[test]
    fn an_old_kernel_has_pages_touched_but_none_of_the_hugetlb_pool() {
        let memory = SharedMemory::anonymous(16 * 4096).unwrap();
        let pages = Recorded {
            refuses: Some((0, Errno::EINVAL)),
            ..Recorded::default()
        };
        let there = || {
            nix::sys::stat::fstat(memory.as_fd().unwrap())
                .unwrap()
                .st_blocks
        };
        assert_eq!(there(), 0);
        placed(None, 1)
            .apply(&pages, &memory, PageSize::Base)
            .unwrap();
        assert!(there() >= 16 * 8);
        for (node, threads) in [(Some(0), 0), (Some(0), 1), (None, 0), (None, 1)] {
            let refused = placed(node, threads).apply(&pages, &memory, PageSize::Huge2M);
            assert!(
                matches!(refused, Err(DmaError::Populate { .. })),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn this_machine_populates_memory() {
        let memory = SharedMemory::anonymous(64 * 4096).unwrap();
        placed(None, 2)
            .apply(&Machine, &memory, PageSize::Base)
            .unwrap();
        let there = nix::sys::stat::fstat(memory.as_fd().unwrap()).unwrap();
        assert!(there.st_blocks >= 64 * 8, "{}", there.st_blocks);
        assert_eq!(memory.load_u8(5), 0);
    }
}
