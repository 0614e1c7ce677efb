//! Functions that are parked, and resumed in this process or in a child process. The server sees one client.

// UNSAFETY: tests lend memory, and fork.
#![expect(unsafe_code, reason = "lending and fork")]

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use nix::fcntl::{FallocateFlags, fallocate};
use nix::libc;
use nix::sys::stat::fstat;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};
use tempfile::TempDir;
use zerocopy::IntoBytes;

use super::super::Server;
use super::super::client::{RESUME_MESSAGES, UNCLAIMED_MESSAGES};
use super::super::message::{self as wire, Command, HEADER_BYTES, Header};
use super::super::socket::{self, Socket};
use super::{Rig, Sample, arrives, words};
use crate::double::Double;
use crate::handover::Claimed;
use crate::{
    ArenaError, ArenaSnapshot, BackendSnapshot, Be32, ClaimError, DmaArena, DmaError, DmaPool,
    Function, FunctionSnapshot, Iova, LentMemory, MappingSnapshot, NamedFd, ParkError, ResumeError,
    SharedMemory, UnclaimedMemory,
};

mod changed;

const PAGE: usize = 4096;
const CHUNK: usize = 1 << 16;
/// I/O address that the tests choose for memory of their own.
const OWN: Iova = Iova(0x10_0000_0000);

fn park(function: Function) -> (FunctionSnapshot, Vec<NamedFd>) {
    function.park().map_err(|(_, error)| error).unwrap()
}

fn resume(snapshot: &FunctionSnapshot, descriptors: Vec<NamedFd>) -> Function {
    Function::resume(snapshot, descriptors)
        .map_err(|(_, error)| error)
        .unwrap()
        .go_on(&Claimed::by_caller())
}

/// Resumes a function that is refused. Returns the descriptors and the error.
fn refused(snapshot: &FunctionSnapshot, descriptors: Vec<NamedFd>) -> (Vec<NamedFd>, ResumeError) {
    Function::resume(snapshot, descriptors).unwrap_err()
}

fn bytes_at<const N: usize>(memory: &SharedMemory, at: usize) -> [u8; N] {
    memory.read_obj(at)
}

/// Registers, interrupts and memory are kept, and so are the device's writes and signals between `park` and `resume`.
#[test]
fn a_resumed_function_keeps_its_state_and_the_server_sees_no_end() {
    let rig = Rig::new(1);
    let function = rig.function();
    function.set_bus_master(true).unwrap();
    let interrupts = function.enable_interrupts(usize::MAX).unwrap();
    let bar = function.bar(0).unwrap();
    let block = bar.block::<Sample>(0x100).unwrap();
    block.write(|r| &r.control, Be32::new(0x1111_2222));

    let arena = DmaArena::with_chunk_bytes(&function, CHUNK).unwrap();
    let small = arena.alloc(100, 64).unwrap();
    let lost = arena.alloc(2 * PAGE, PAGE).unwrap();
    let large = arena.alloc(3 * CHUNK, PAGE).unwrap();
    small.write_bytes(0, b"small");
    large.write_bytes(3 * CHUNK - 5, b"large");
    lost.fill(0, 2 * PAGE, 0xee);
    let own = SharedMemory::anonymous(3 * PAGE).unwrap();
    function.dma_map(OWN, &own, PAGE, 2 * PAGE).unwrap();
    own.write_bytes(PAGE + 7, b"own");
    let places = [&small, &large].map(|it| (it.iova(), it.len(), it.address()));
    let (lost_at, own_at) = (lost.iova(), own.address());
    rig.double.signal(1);
    assert!(arrives(&interrupts[1]));
    let mappings = rig.double.mappings();
    assert_eq!(mappings.len(), 3);

    function.hold_mappings();
    let arena_before = arena.snapshot().unwrap();
    drop((small, lost, large, arena, own, interrupts, block, bar));
    let (snapshot, descriptors) = park(function);
    assert_eq!(rig.double.mappings(), mappings);

    let (memory, at) = rig.double.reach(places[0].0.0 + 50);
    memory.write_bytes(at, b"by device");
    rig.double.signal(0);

    let function = resume(&snapshot, descriptors);
    let arena = DmaArena::resume(&function, &arena_before).unwrap();
    let [small, large] = places.map(|(iova, bytes, address)| {
        let buffer = arena.claim(iova, bytes).unwrap();
        assert_eq!((buffer.iova(), buffer.len()), (iova, bytes));
        assert_eq!(buffer.address(), address);
        buffer
    });
    assert_eq!(small.read_obj::<[u8; 5]>(0), *b"small");
    assert_eq!(small.read_obj::<[u8; 9]>(50), *b"by device");
    assert_eq!(large.read_obj::<[u8; 5]>(3 * CHUNK - 5), *b"large");
    let own = function.claim_mapping(OWN, 2 * PAGE).unwrap();
    assert_eq!((own.address(), own.len()), (own_at, 3 * PAGE));
    assert_eq!(bytes_at(&own, PAGE + 7), *b"own");

    let interrupts = function.enable_interrupts(usize::MAX).unwrap();
    assert_eq!(interrupts.len(), 2);
    assert!(arrives(&interrupts[0]));
    assert_eq!([interrupts[0].take(), interrupts[1].take()], [1, 1]);
    rig.double.signal(1);
    assert!(arrives(&interrupts[1]));
    rig.double.notices().error.unwrap().signal();
    assert!(arrives(function.notices().error.as_ref().unwrap()));
    assert_eq!(rig.double.times_interrupts_set(), 1);
    let bar = function.bar(0).unwrap();
    let block = bar.block::<Sample>(0x100).unwrap();
    assert_eq!(block.read(|r| &r.control).get(), 0x1111_2222);
    block.write(|r| &r.control, Be32::new(0x3333_4444));
    assert_eq!(block.read(|r| &r.control).get(), 0x3333_4444);
    assert!(rig.double.is_bus_master());

    let left = UnclaimedMemory {
        iova: lost_at,
        bytes: 2 * PAGE,
    };
    assert_eq!(arena.unclaimed(), [left]);
    assert_eq!(arena.finish(), [left]);
    assert_eq!(function.release_mappings(), []);
    assert_eq!(rig.double.mappings(), mappings);
    // Memory that was not claimed is used again, and is cleared before.
    let again = arena.alloc(2 * PAGE, PAGE).unwrap();
    assert_eq!(again.iova(), lost_at);
    assert_eq!(again.read_obj::<[u8; 2 * PAGE]>(0), [0; 2 * PAGE]);
    drop(large);
    assert_eq!(rig.double.mappings().len(), 2);
    function.dma_unmap(OWN, 2 * PAGE).unwrap();
    assert_eq!(rig.double.mappings().len(), 1);
    assert_eq!(rig.double.resets(), 0);
    drop((small, again, arena, own, interrupts, block, bar, function));
    let double = rig.finished();
    assert_eq!((double.resets(), double.mappings()), (1, vec![]));
}

/// Drives a function in a child process. Returns false if a step fails. Nothing is dropped, because another thread of
/// the parent may have held a lock of this crate's unmapping at the fork.
fn drive_in_child(
    snapshot: &FunctionSnapshot,
    descriptors: Vec<NamedFd>,
    (arena, iova): (&ArenaSnapshot, Iova),
) -> bool {
    let function = match Function::resume(snapshot, descriptors) {
        Ok(function) => std::mem::ManuallyDrop::new(function),
        Err(error) => {
            std::mem::forget(error);
            return false;
        }
    };
    let Ok(arena) = DmaArena::resume(&function, arena).map(std::mem::ManuallyDrop::new) else {
        return false;
    };
    let Ok(buffer) = arena.claim(iova, 64).map(std::mem::ManuallyDrop::new) else {
        return false;
    };
    let Ok(interrupts) = function.enable_interrupts(2) else {
        return false;
    };
    let as_before = buffer.read_obj::<[u8; 6]>(0) == *b"parent" && interrupts[1].take() == 1;
    buffer.write_bytes(0, b"child!");
    let Ok(bar) = function.bar(0).map(std::mem::ManuallyDrop::new) else {
        return false;
    };
    let Ok(block) = bar.block::<Sample>(0x100).map(std::mem::ManuallyDrop::new) else {
        return false;
    };
    block.write(|r| &r.control, Be32::new(0x5555_6666));
    as_before && block.read(|r| &r.control).get() == 0x5555_6666
}

#[test]
fn a_child_process_drives_the_function_and_the_parent_resumes_it_afterwards() {
    let rig = Rig::new(1);
    let function = rig.function();
    let interrupts = function.enable_interrupts(2).unwrap();
    let arena = DmaArena::with_chunk_bytes(&function, CHUNK).unwrap();
    let buffer = arena.alloc(64, 64).unwrap();
    buffer.write_bytes(0, b"parent");
    let iova = buffer.iova();
    rig.double.signal(1);
    assert!(arrives(&interrupts[1]));
    function.hold_mappings();
    let arena_before = arena.snapshot().unwrap();
    drop((buffer, arena, interrupts));
    let (snapshot, descriptors) = park(function);

    // SAFETY: the child has one thread, and takes no lock that another thread can have held at the fork: the allocator
    // of the C library is made for that. It ends by `_exit`.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let done = drive_in_child(&snapshot, descriptors, (&arena_before, iova));
            // SAFETY: the call ends the process.
            unsafe { libc::_exit(i32::from(!done)) };
        }
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
        }
    }
    let written = rig.double.writes();
    assert_eq!(written, [(0, 0x110, vec![0x55, 0x55, 0x66, 0x66])]);
    let function = resume(&snapshot, descriptors);
    let arena = DmaArena::resume(&function, &arena_before).unwrap();
    let buffer = arena.claim(iova, 64).unwrap();
    assert_eq!(buffer.read_obj::<[u8; 6]>(0), *b"child!");
    assert_eq!(rig.double.resets(), 0);
    drop((buffer, arena, function));
    assert_eq!(rig.finished().resets(), 1);
}

/// Parks a function, which is refused. Returns the function and the error.
fn not_parked(function: Function) -> (Function, ParkError) {
    function.park().unwrap_err()
}

#[test]
fn park_names_the_use_of_a_function_that_prevents_it() {
    let rig = Rig::new(1);
    let function = rig.function();
    let (clone, arena) = (function.clone(), DmaArena::new(&function).unwrap());
    let (function, error) = not_parked(function);
    assert!(
        matches!(error, ParkError::Clones { others: 2, .. }),
        "{error:?}"
    );
    drop((clone, arena));

    let bar = function.bar(0).unwrap();
    let block = bar.block::<Sample>(0).unwrap();
    drop(bar);
    let (function, error) = not_parked(function);
    assert!(
        matches!(error, ParkError::Bars { count: 1, .. }),
        "{error:?}"
    );
    drop(block);

    let own: &mut [u8] = vec![0; 3 * PAGE].leak();
    // SAFETY: the memory is never freed, and is not accessed.
    let lent = unsafe { LentMemory::new(&function, own.as_mut_ptr(), PAGE) }.unwrap();
    function.hold_mappings();
    let (function, error) = not_parked(function);
    assert!(matches!(error, ParkError::LentMemory { .. }), "{error:?}");
    assert!(
        error
            .to_string()
            .contains(&format!("{:#x}", lent.iova().0 & !0xfff))
    );
    drop(lent);
    assert_eq!(rig.double.asked(), [], "lent memory ends with its lease");

    let memory = SharedMemory::of_this_process(PAGE).unwrap();
    function.dma_map(OWN, &memory, 0, PAGE).unwrap();
    let (function, error) = not_parked(function);
    let here = OWN.0;
    assert!(
        matches!(error, ParkError::NoDescriptor { iova, bytes: PAGE, .. } if iova == here),
        "{error:?}"
    );
    function.dma_unmap(OWN, PAGE).unwrap();

    let beside = Rig::new(1);
    let other = Function::vfio_user_in(&beside.path, &function.dma_space()).unwrap();
    let (function, error) = not_parked(function);
    assert!(
        matches!(error, ParkError::Shared { functions: 2, .. }),
        "{error:?}"
    );
    drop(other);
    // The refusals have not changed the function.
    let (snapshot, descriptors) = park(function);
    let function = resume(&snapshot, descriptors);
    assert_eq!(function.enable_interrupts(1).unwrap().len(), 1);
    assert_eq!(rig.double.resets(), 0);
}

#[test]
fn a_function_that_has_refused_to_unmap_memory_is_not_parked() {
    let rig = Rig::new(1);
    let function = rig.function();
    let memory = SharedMemory::anonymous(PAGE).unwrap();
    function.dma_map(OWN, &memory, 0, PAGE).unwrap();
    rig.double.set_refuses_unmap(true);
    assert!(function.dma_unmap(OWN, PAGE).is_err());
    let (function, error) = not_parked(function);
    let here = OWN.0;
    assert!(
        matches!(error, ParkError::Kept { iova, .. } if iova == here),
        "{error:?}"
    );
    let arena = DmaArena::with_chunk_bytes(&function, PAGE).unwrap();
    drop(arena.alloc(64, 64).unwrap());
    drop(arena);
    let (_function, error) = not_parked(function);
    assert!(matches!(error, ParkError::Stopped { .. }), "{error:?}");
}

/// The memory stays mapped, and is lent memory, but its lease has ended.
#[test]
fn a_function_that_has_refused_to_unmap_lent_memory_is_stopped_and_not_parked() {
    let rig = Rig::new(1);
    let function = rig.function();
    let own: &mut [u8] = vec![0; 3 * PAGE].leak();
    // SAFETY: the memory is never freed, and is not accessed.
    let lent = unsafe { LentMemory::new(&function, own.as_mut_ptr(), PAGE) }.unwrap();
    rig.double.set_refuses_unmap(true);
    drop(lent);
    let (_function, error) = not_parked(function);
    assert!(matches!(error, ParkError::Stopped { .. }), "{error:?}");
}

/// In the next process, memory that an arena keeps for the device would have no owner.
#[test]
fn an_arena_that_keeps_memory_for_the_device_has_no_snapshot() {
    let rig = Rig::new(1);
    let arena = DmaArena::new(&rig.function()).unwrap();
    let buffer = arena.alloc(64, 64).unwrap();
    arena.downgrade().keep(buffer);
    assert_eq!(arena.snapshot(), Err(ArenaError::Kept { count: 1 }));
}

/// In a snapshot of the pool or the arena, kept memory is in use, and the next process may free it as unclaimed.
#[test]
fn a_function_whose_memory_is_kept_for_the_device_is_not_parked() {
    let rig = Rig::new(1);
    let function = rig.function();
    let pool = DmaPool::builder(&function).build(2 * PAGE).unwrap();
    let buffer = pool.alloc(64, 64).unwrap();
    function.hold_mappings();
    buffer.arena().keep(buffer);
    drop(pool);
    let (function, error) = not_parked(function);
    assert!(
        matches!(error, ParkError::KeptMemory { count: 1, .. }),
        "{error:?}"
    );
    drop(function);

    let rig = Rig::new(1);
    let function = rig.function();
    let arena = DmaArena::with_chunk_bytes(&function, CHUNK).unwrap();
    let buffer = arena.alloc(64, 64).unwrap();
    function.hold_mappings();
    arena.snapshot().unwrap();
    buffer.arena().keep(buffer);
    drop(arena);
    let (_function, error) = not_parked(function);
    assert!(
        matches!(error, ParkError::KeptMemory { count: 1, .. }),
        "{error:?}"
    );
}

/// The next process may have allocated the memory. An allocation here would clear it.
#[test]
fn a_pool_of_a_parked_function_allocates_nothing() {
    let rig = Rig::new(1);
    let function = rig.function();
    let pool = DmaPool::builder(&function).build(2 * PAGE).unwrap();
    let buffer = pool.alloc(64, 64).unwrap();
    buffer.write_bytes(0, b"filled");
    let memory = rig.double.reach(buffer.iova().0);
    drop(buffer);
    let _parked = park(function);
    let refused = pool.alloc(64, 64).unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, DmaError::Parked { .. }), "{text}");
    assert!(text.ends_with("was handed over to another process, and so was the pool's memory"));
    assert_eq!(bytes_at(&memory.0, memory.1), *b"filled");
}

/// Another process maps the memory at the same addresses. Only the window keeps them free there.
#[test]
fn a_function_with_memory_outside_the_window_of_dma_memory_is_not_parked() {
    let rig = Rig::new(1);
    let function = rig.function();
    // The window has no address with this remainder.
    let (modulus, remainder) = (1 << 45, 0x1800_0000_1000);
    let base = crate::PageSize::Base;
    let memory = SharedMemory::congruent(PAGE, modulus, remainder, base).unwrap();
    function.dma_map(OWN, &memory, 0, PAGE).unwrap();
    let (_function, error) = not_parked(function);
    let at = memory.address() as u64;
    assert!(
        matches!(error, ParkError::OutsideWindow { address, .. } if address == at),
        "{error:?}"
    );
}

/// The program may have dropped its memory, in order to claim it in another process.
#[test]
fn a_mapping_of_the_program_is_claimed_again_after_a_refused_park() {
    let rig = Rig::new(1);
    let function = rig.function();
    let memory = SharedMemory::anonymous(2 * PAGE).unwrap();
    memory.write_bytes(PAGE, b"here");
    function.dma_map(OWN, &memory, PAGE, PAGE).unwrap();
    let (iova, bytes) = (OWN.0, PAGE);
    assert_eq!(
        function.claim_mapping(OWN, PAGE).unwrap_err(),
        ClaimError::Claimed { iova, bytes }
    );
    function.hold_mappings();
    drop(memory);
    let clone = function.clone();
    let (function, _) = not_parked(function);
    drop(clone);
    for _ in 0..2 {
        let memory = function.claim_mapping(OWN, PAGE).unwrap();
        assert_eq!(bytes_at(&memory, PAGE), *b"here");
    }
    assert_eq!(function.release_mappings(), []);
    assert_eq!(rig.double.mappings(), [(OWN.0, PAGE)]);
    function.dma_unmap(OWN, PAGE).unwrap();
}

/// The program may map a page twice.
#[test]
fn mappings_of_the_program_may_overlap_in_its_memory() {
    let rig = Rig::new(1);
    let function = rig.function();
    let memory = SharedMemory::anonymous(2 * PAGE).unwrap();
    let again = Iova(OWN.0 + 0x1_0000);
    function.dma_map(OWN, &memory, 0, 2 * PAGE).unwrap();
    function.dma_map(again, &memory, PAGE, PAGE).unwrap();
    drop(memory);
    let (snapshot, fds) = park(function);
    assert_eq!(snapshot.space.memories.len(), 1);
    let function = resume(&snapshot, fds);
    let whole = function.claim_mapping(OWN, 2 * PAGE).unwrap();
    let part = function.claim_mapping(again, PAGE).unwrap();
    whole.write_bytes(PAGE, b"both");
    assert_eq!(bytes_at(&part, PAGE), *b"both");
}

/// If the function cannot be parked, the owners of its memory are made again in the same process.
#[test]
fn an_arena_is_made_again_after_a_refused_park() {
    let rig = Rig::new(1);
    let function = rig.function();
    let pool = DmaPool::builder(&function).build(5 * PAGE).unwrap();
    let of_pool = pool.alloc(10, 1).unwrap();
    let arena = DmaArena::with_chunk_bytes(&function, CHUNK).unwrap();
    let buffer = arena.alloc(200, 64).unwrap();
    buffer.write_bytes(0, b"here");
    of_pool.write_bytes(0, b"pool");
    let mappings = rig.double.mappings();
    function.hold_mappings();
    let places = [buffer.iova(), of_pool.iova()];
    let (before, pool_before) = (arena.snapshot().unwrap(), pool.snapshot());
    drop((arena, buffer, pool, of_pool));
    let clone = function.clone();
    let (function, error) = not_parked(function);
    assert!(matches!(error, ParkError::Clones { .. }), "{error:?}");
    drop(clone);
    let arena = DmaArena::resume(&function, &before).unwrap();
    let pool = DmaPool::resume(&function, &pool_before).unwrap();
    let buffer = arena.claim(places[0], 200).unwrap();
    let of_pool = pool.claim(places[1], 10).unwrap();
    assert_eq!(buffer.read_obj::<[u8; 4]>(0), *b"here");
    assert_eq!(of_pool.read_obj::<[u8; 4]>(0), *b"pool");
    assert_eq!((arena.finish(), pool.finish()), (vec![], vec![]));
    assert_eq!(function.release_mappings(), []);
    assert_eq!(rig.double.mappings(), mappings);
    assert_eq!(arena.snapshot().unwrap(), before);
    assert_eq!(pool.snapshot(), pool_before);
    drop((arena, buffer, pool, of_pool));
    assert_eq!(rig.double.mappings(), []);
}

#[test]
fn only_a_range_that_was_in_use_is_claimed_and_only_once() {
    let rig = Rig::new(1);
    let function = rig.function();
    let arena = DmaArena::with_chunk_bytes(&function, CHUNK).unwrap();
    let buffers = [100, 100, 5 * PAGE, 3 * CHUNK].map(|bytes| arena.alloc(bytes, 64).unwrap());
    let free = arena.alloc(640, 64).unwrap();
    let free_at = free.iova();
    drop(free);
    let [first, second, pages, large] = buffers.each_ref().map(|it| it.iova());
    function.hold_mappings();
    let before = arena.snapshot().unwrap();
    drop((arena, buffers));
    let arena = DmaArena::resume(&function, &before).unwrap();
    let iova = first.0;
    let claim = |iova: Iova, bytes| arena.claim(iova, bytes).map(|buffer| buffer.iova().0);
    for bytes in [1, 64, 129, 256] {
        let in_use = 128;
        assert_eq!(
            claim(first, bytes),
            Err(ClaimError::Length {
                iova,
                bytes,
                in_use
            })
        );
    }
    for (at, bytes) in [(Iova(iova + 64), 64), (free_at, 640), (Iova(iova + 1), 127)] {
        let iova = at.0;
        assert_eq!(claim(at, bytes), Err(ClaimError::NotInUse { iova, bytes }));
        assert!(arena.has(at, bytes));
    }
    for (at, bytes) in [
        (Iova(0), 64),
        (OWN, 64),
        (first, 0),
        (first, CHUNK + 1),
        (first, usize::MAX),
        (Iova(u64::MAX), 64),
    ] {
        let iova = at.0;
        assert_eq!(claim(at, bytes), Err(ClaimError::Outside { iova, bytes }));
        assert!(!arena.has(at, bytes), "{bytes} bytes at {at:?}");
    }
    // Ranges are in units of 64 bytes, so the length that the buffer had is not known exactly.
    let held = arena.claim(first, 65).unwrap();
    let bytes = 100;
    assert_eq!(claim(first, 100), Err(ClaimError::Claimed { iova, bytes }));
    // Claimed memory is an ordinary buffer: it returns to the arena.
    drop(held);
    assert_eq!(claim(first, 100), Err(ClaimError::NotInUse { iova, bytes }));
    assert_eq!(arena.alloc(100, 64).unwrap().iova(), first);
    let left = [(second, 128), (pages, 5 * PAGE), (large, 3 * CHUNK)];
    let left = left.map(|(iova, bytes)| UnclaimedMemory { iova, bytes });
    assert_eq!(arena.finish(), left);
    assert_eq!(arena.unclaimed(), []);
    // The chunk of the large buffer has no owner any more. It is unmapped when the function's mappings are released.
    assert_eq!(rig.double.mappings().len(), 2);
    assert_eq!(function.release_mappings(), left[2..]);
    assert_eq!(rig.double.mappings().len(), 1);
    drop(arena);
    assert_eq!(rig.double.mappings(), []);
}

/// A mapping has one owner at a time.
#[test]
fn an_arena_is_not_made_twice_of_the_same_mappings() {
    let rig = Rig::new(1);
    let function = rig.function();
    let arena = DmaArena::with_chunk_bytes(&function, CHUNK).unwrap();
    let buffer = arena.alloc(64, 64).unwrap();
    let before = arena.snapshot().unwrap();
    let refused = |error: ResumeError| error.to_string();
    let text = refused(DmaArena::resume(&function, &before).unwrap_err());
    assert!(text.contains("has an owner already"), "{text}");
    function.hold_mappings();
    drop((buffer, arena));
    let _arena = DmaArena::resume(&function, &before).unwrap();
    let text = refused(DmaArena::resume(&function, &before).unwrap_err());
    assert!(text.contains("has an owner already"), "{text}");
}

#[test]
fn descriptors_that_are_not_those_of_the_snapshot_are_refused_and_given_back() {
    let rig = Rig::new(1);
    let function = rig.function();
    function.enable_interrupts(2).unwrap();
    let memory = [(); 2].map(|()| SharedMemory::anonymous(PAGE).unwrap());
    for (iova, memory) in [0x1000, 0x3000].into_iter().zip(&memory) {
        function.dma_map(Iova(iova), memory, 0, PAGE).unwrap();
    }
    drop(memory);
    let (snapshot, mut fds) = park(function);
    let names: Vec<&str> = fds.iter().map(|fd| fd.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "memory-0", "memory-1", "vector-0", "vector-1", "error", "removal", "lock", "socket",
            "twin"
        ]
    );
    let count = fds.len();
    let mut error;
    for _ in 0..count {
        let taken = fds.remove(0);
        (fds, error) = refused(&snapshot, fds);
        assert!(
            matches!(&error, ResumeError::Missing { descriptor, given, .. }
                if *descriptor == taken.name && *given == count - 1),
            "{error:?}"
        );
        fds.push(taken);
    }
    for (one, other) in [(0, 1), (2, 3), (2, 4), (0, 2), (0, 6), (7, 8)] {
        let swap = |fds: &mut Vec<NamedFd>| {
            let name = std::mem::take(&mut fds[one].name);
            fds[one].name = std::mem::replace(&mut fds[other].name, name);
        };
        swap(&mut fds);
        (fds, error) = refused(&snapshot, fds);
        assert!(
            matches!(error, ResumeError::Descriptor { .. }),
            "{one} {other}: {error:?}"
        );
        swap(&mut fds);
    }
    let null = || std::fs::File::open("/dev/null").unwrap().into();
    fds.push(NamedFd {
        name: "memory-2".to_owned(),
        fd: null(),
    });
    (fds, error) = refused(&snapshot, fds);
    assert!(
        matches!(&error, ResumeError::Unknown { descriptor, .. } if descriptor == "memory-2"),
        "{error:?}"
    );
    fds[count].name = "error".to_owned();
    (fds, error) = refused(&snapshot, fds);
    assert!(
        matches!(&error, ResumeError::Repeated { descriptor, .. } if descriptor == "error"),
        "{error:?}"
    );
    fds.pop();
    let function = resume(&snapshot, fds);
    assert_eq!(rig.double.resets(), 0);
    drop(function);
    assert_eq!(rig.finished().resets(), 1);
}

#[test]
fn memory_whose_addresses_are_in_use_is_refused_with_them() {
    let rig = Rig::new(1);
    let function = rig.function();
    let arena = DmaArena::with_chunk_bytes(&function, CHUNK).unwrap();
    let buffer = arena.alloc(64, 64).unwrap();
    function.hold_mappings();
    drop(arena);
    let (snapshot, fds) = park(function);
    let (fds, error) = refused(&snapshot, fds);
    let at = buffer.address();
    assert!(
        matches!(error, ResumeError::AddressTaken { address, bytes, .. }
            if address == at && bytes == CHUNK as u64),
        "{error:?}"
    );
    // A drop of the memory's last owner in this process does not unmap it.
    let mappings = rig.double.mappings();
    drop(buffer);
    assert_eq!(rig.double.mappings(), mappings);
    drop(resume(&snapshot, fds));
    let double = rig.finished();
    assert_eq!((double.mappings(), double.resets()), (vec![], 1));
}

/// A server maps the file, as this process does, so both always have the same pages. Under memory pressure the kernel
/// drops pages that were read and never written, and these do not count as in use any more.
#[test]
fn memory_of_a_server_may_have_fewer_pages_in_use_than_before() {
    let rig = Rig::new(1);
    let function = rig.function();
    let memory = SharedMemory::anonymous(4 * PAGE).unwrap();
    memory.fill(0, 4 * PAGE, 1);
    function.dma_map(OWN, &memory, 0, 4 * PAGE).unwrap();
    drop(memory);
    let (snapshot, fds) = park(function);
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let (offset, bytes) = (4096, 4096);
    fallocate(&fds[0].fd, flags, offset, bytes).unwrap();
    let function = resume(&snapshot, fds);
    let memory = function.claim_mapping(OWN, 4 * PAGE).unwrap();
    let (theirs, at) = rig.double.reach(OWN.0 + 4096 + 7);
    memory.write_bytes(4096 + 7, b"same");
    assert_eq!(bytes_at(&theirs, at), *b"same");
}

#[test]
fn a_function_whose_registers_changed_while_parked_is_refused() {
    let rig = Rig::new(1);
    let function = rig.function();
    function.set_bus_master(true).unwrap();
    let (snapshot, mut fds) = park(function);
    let mut error;
    let direct = rig.double.function();
    for (offset, other, before) in [(4, 0, 6), (0, 0x15b3, 0), (0x2e, 7, 0)] {
        direct.config_write_u16(offset, other).unwrap();
        (fds, error) = refused(&snapshot, fds);
        assert!(matches!(error, ResumeError::Changed { .. }), "{error:?}");
        direct.config_write_u16(offset, before).unwrap();
    }
    let function = resume(&snapshot, fds);
    assert!(rig.double.is_bus_master());
    assert_eq!(rig.double.resets(), 0);
    drop(function);
}

/// A server whose end of the connection the test has too.
struct Cut {
    double: Double,
    path: PathBuf,
    _directory: TempDir,
    ends: mpsc::Receiver<UnixStream>,
    served: JoinHandle<()>,
}

impl Cut {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nic.sock");
        let double = Double::new();
        let server = Server::new(Arc::new(double.clone()), UnixListener::bind(&path).unwrap());
        let (give, ends) = mpsc::channel();
        let served = thread::spawn(move || {
            let (stream, _) = server.listener().accept().unwrap();
            give.send(stream.try_clone().unwrap()).unwrap();
            server.serve_stream(stream);
        });
        Self {
            double,
            path,
            _directory: directory,
            ends,
            served,
        }
    }
}

#[test]
fn a_lost_function_is_not_parked() {
    let cut = Cut::new();
    let function = Function::vfio_user(&cut.path).unwrap();
    let end = cut.ends.recv().unwrap();
    end.shutdown(Shutdown::Both).unwrap();
    let (function, error) = not_parked(function);
    assert!(matches!(error, ParkError::Lost { .. }), "{error:?}");
    assert!(function.lost().is_some());
    let (_function, error) = not_parked(function);
    assert!(matches!(error, ParkError::Lost { .. }), "{error:?}");
    cut.served.join().unwrap();
    assert_eq!(cut.double.resets(), 1);
}

#[test]
fn a_connection_that_ended_or_has_an_unread_message_is_refused() {
    let cut = Cut::new();
    let (snapshot, fds) = park(Function::vfio_user(&cut.path).unwrap());
    let mut end = cut.ends.recv().unwrap();
    end.write_all(&[0]).unwrap();
    let (fds, error) = refused(&snapshot, fds);
    assert!(
        matches!(&error, ResumeError::Descriptor { descriptor, .. } if descriptor == "socket"),
        "{error:?}"
    );
    assert!(error.to_string().contains("not asked for"), "{error}");
    assert_eq!(
        cut.double.resets(),
        0,
        "the server still serves the connection"
    );
    end.shutdown(Shutdown::Both).unwrap();
    cut.served.join().unwrap();
    // The server has dropped the connection. The byte that was sent is still unread.
    drop(end);
    assert_eq!(refused(&snapshot, fds).0.len(), snapshot_fds(&snapshot));
}

/// A request of a resumption that has given up waiting may be answered later. The next resumption has the same message
/// IDs, because it has the same snapshot. Each resumption leaves one reply, so there may be many.
#[test]
fn late_replies_to_an_earlier_resumption_do_not_prevent_a_later_one() {
    let cut = Cut::new();
    let (snapshot, mut fds) = park(Function::vfio_user(&cut.path).unwrap());
    let end = Socket::new(cut.ends.recv().unwrap()).unwrap();
    let BackendSnapshot::VfioUser(client) = &snapshot.backend else {
        panic!("{snapshot:?}");
    };
    for later in (0..UNCLAIMED_MESSAGES).step_by(99).cycle().take(50) {
        let id = client.next_id.wrapping_add(later);
        let header = (id, Command::DEVICE_GET_INFO.0, wire::TYPE_REPLY, 0);
        socket::send(&end, header, &[&words([16, 2, 9, 5])], &[]).unwrap();
    }
    let function = resume(&snapshot, fds);
    assert_eq!(function.config_read_u16(4).unwrap(), 0);
    let again;
    (again, fds) = park(function);
    let (before, BackendSnapshot::VfioUser(client)) = (client.next_id, &again.backend) else {
        panic!("{again:?}");
    };
    // The read above was one message, and `park` reads four registers.
    assert_eq!(client.next_id.wrapping_sub(before), RESUME_MESSAGES + 5);
    // Replies to messages before and after those of a resumption, a command, a reply whose payload is missing, and one
    // that is shorter than a header. Each has a header only, with this length in it.
    let (next, reply) = (client.next_id, wire::TYPE_REPLY);
    let mut error;
    for (id, flags, bytes) in [
        (next.wrapping_sub(1), reply, 16),
        (next.wrapping_add(UNCLAIMED_MESSAGES), reply, 16),
        (next, wire::TYPE_COMMAND, 16),
        (next, reply, 40),
        (next, reply, 0),
    ] {
        let mut header = socket::header(id, Command::DEVICE_GET_INFO.0, 0, flags, 0);
        header.size = bytes.into();
        end.send(&[header.as_bytes()], &[]).unwrap();
        (fds, error) = refused(&again, fds);
        let text = error.to_string();
        assert!(text.contains("not asked for"), "{header:?}: {text}");
        // The message is still there.
        let main = fds.iter().find(|fd| fd.name == "socket").unwrap();
        let mut main = UnixStream::from(main.fd.try_clone().unwrap());
        let mut unread = [0; HEADER_BYTES];
        main.read_exact(&mut unread).unwrap();
        assert_eq!(unread, header.as_bytes());
    }
    drop(resume(&again, fds));
    drop(end);
    cut.served.join().unwrap();
}

#[test]
fn a_connection_that_the_server_has_closed_is_refused() {
    let cut = Cut::new();
    let (snapshot, fds) = park(Function::vfio_user(&cut.path).unwrap());
    let end = cut.ends.recv().unwrap();
    end.shutdown(Shutdown::Both).unwrap();
    cut.served.join().unwrap();
    drop(end);
    let (_fds, error) = refused(&snapshot, fds);
    let text = error.to_string();
    assert!(
        text.ends_with("descriptor socket: the other side has hung up"),
        "{text}"
    );
}

/// Returns the number of descriptors of a snapshot without memory.
fn snapshot_fds(snapshot: &FunctionSnapshot) -> usize {
    let twin = match &snapshot.backend {
        BackendSnapshot::VfioUser(client) => usize::from(client.twin.is_some()),
        BackendSnapshot::Vfio(_) | BackendSnapshot::InProcess(_) => 0,
    };
    let notices = [&snapshot.error, &snapshot.removal];
    // The socket and the lock.
    2 + twin + snapshot.vectors.len() + notices.into_iter().flatten().count()
}

/// The thread that answers for lent memory ends between two messages. The next owner of the socket starts a new one.
#[test]
fn memory_is_lent_again_after_the_function_was_parked() {
    let rig = Rig::new(1);
    let own: &mut [u8] = vec![7; 3 * PAGE].leak();
    let at = own.as_mut_ptr();
    // SAFETY: the memory is never freed, and is not accessed otherwise.
    let lend = |function: &Function| unsafe { LentMemory::new(function, at, 3 * PAGE) }.unwrap();
    let mut function = rig.function();
    for _ in 0..3 {
        let lent = lend(&function);
        let mut seen = [0; 9];
        let iova = lent.iova().0;
        rig.double.asks(iova).read(iova + 5, &mut seen).unwrap();
        assert_eq!(seen, [7; 9]);
        drop(lent);
        let (snapshot, fds) = park(function);
        function = resume(&snapshot, fds);
    }
    assert_eq!(rig.double.resets(), 0);
    drop(function);
    assert_eq!(rig.finished().resets(), 1);
}

#[test]
fn a_resumption_that_is_refused_at_its_end_leaves_the_twin_socket_open() {
    let rig = Rig::new(1);
    let (mut snapshot, fds) = park(rig.function());
    snapshot.identity.class ^= 1;
    let (fds, error) = refused(&snapshot, fds);
    assert!(matches!(error, ResumeError::Changed { .. }), "{error:?}");
    snapshot.identity.class ^= 1;
    let function = resume(&snapshot, fds);
    let own: &mut [u8] = vec![1; 3 * PAGE].leak();
    // SAFETY: the memory is never freed, and is not accessed otherwise.
    let lent = unsafe { LentMemory::new(&function, own.as_mut_ptr(), PAGE) }.unwrap();
    let mut seen = [0; 4];
    let iova = lent.iova().0;
    rig.double.asks(iova).read(iova, &mut seen).unwrap();
    assert_eq!(seen, [1; 4]);
}

/// shutdown(2) ends a socket for all of its holders, so a later resumption could not use it.
#[test]
fn a_bad_reply_during_a_resumption_leaves_the_twin_socket_open() {
    let rig = Rig::new(1);
    let (snapshot, mut fds) = park(rig.function());
    // Another server answers on the main socket: the first two messages correctly, and the next one with a wrong ID.
    let (ours, theirs) = UnixStream::pair().unwrap();
    let answers = thread::spawn(move || {
        let socket = Socket::new(theirs).unwrap();
        let mut answered = Vec::new();
        while let Some(asked) = socket.receive(|| true).unwrap() {
            let Header { id, command, .. } = asked.header;
            let (id, command) = (id.get(), command.get());
            answered.push(command);
            let mut payload = asked.payload;
            let mut answer_to = id;
            match Command(command) {
                // flags, num_regions, num_irqs; index, count of MSI-X vectors.
                Command::DEVICE_GET_INFO => payload[4..16].copy_from_slice(&words([2, 9, 5])),
                Command::DEVICE_GET_IRQ_INFO => payload[12..].copy_from_slice(&words([2])),
                _ => answer_to = id.wrapping_add(1),
            }
            let header = (answer_to, command, wire::TYPE_REPLY, 0);
            socket::send(&socket, header, &[&payload], &[]).unwrap();
        }
        answered
    });
    let mut changed = snapshot.clone();
    let BackendSnapshot::VfioUser(client) = &mut changed.backend else {
        panic!("{snapshot:?}");
    };
    client.socket.inode = fstat(&ours).unwrap().st_ino;
    let main = fds.iter_mut().find(|fd| fd.name == "socket").unwrap();
    let true_main = std::mem::replace(&mut main.fd, ours.into());
    let (mut fds, error) = refused(&changed, fds);
    assert!(matches!(error, ResumeError::Query { .. }), "{error:?}");
    let main = fds.iter_mut().find(|fd| fd.name == "socket").unwrap();
    main.fd = true_main;
    let answered = answers.join().unwrap();
    assert_eq!(answered.last(), Some(&Command::REGION_READ.0));

    let function = resume(&snapshot, fds);
    let own: &mut [u8] = vec![3; 3 * PAGE].leak();
    // SAFETY: the memory is never freed, and is not accessed otherwise.
    let lent = unsafe { LentMemory::new(&function, own.as_mut_ptr(), PAGE) }.unwrap();
    let mut seen = [0; 4];
    let iova = lent.iova().0;
    rig.double.asks(iova).read(iova, &mut seen).unwrap();
    assert_eq!(seen, [3; 4]);
}

fn duplicates(fds: &[NamedFd]) -> Vec<NamedFd> {
    let duplicate = |it: &NamedFd| NamedFd {
        name: it.name.clone(),
        fd: it.fd.try_clone().unwrap(),
    };
    fds.iter().map(duplicate).collect()
}

/// The second resumption may be in another process, and from an older snapshot.
#[test]
fn a_second_resumption_is_refused_while_the_function_exists() {
    let rig = Rig::new(1);
    let (first, fds) = park(rig.function());
    let function = resume(&first, duplicates(&fds));
    let (fds, error) = refused(&first, fds);
    assert!(matches!(error, ResumeError::Resumed { .. }), "{error:?}");
    // SAFETY: the child has one thread, and takes no lock that another thread can have held at the fork. It ends by
    // `_exit`.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let resumed = Function::resume(&first, fds);
            let is_refused = matches!(&resumed, Err((_, ResumeError::Resumed { .. })));
            std::mem::forget(resumed);
            // SAFETY: the call ends the process.
            unsafe { libc::_exit(i32::from(!is_refused)) };
        }
        ForkResult::Parent { child } => {
            drop(fds);
            assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
        }
    }
    let (second, fds) = park(function);
    let function = resume(&second, duplicates(&fds));
    // The lock is the same for all snapshots of a function.
    let (fds, error) = refused(&first, fds);
    assert!(matches!(error, ResumeError::Resumed { .. }), "{error:?}");
    // A register block is enough to drive the function.
    let block = function.bar(0).unwrap().block::<Sample>(0).unwrap();
    drop(function);
    let (fds, error) = refused(&second, fds);
    assert!(matches!(error, ResumeError::Resumed { .. }), "{error:?}");
    drop(block);
    // The function that was closed has ended the twin socket.
    let (fds, error) = refused(&second, fds);
    assert!(
        matches!(&error, ResumeError::Descriptor { descriptor, .. } if descriptor == "twin"),
        "{error:?}"
    );
    drop(fds);
    assert_eq!(rig.finished().resets(), 1);
}
