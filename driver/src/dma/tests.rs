//! Tests of the arena with the device double.

use std::os::fd::BorrowedFd;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::double::Double;
use crate::error::ClaimError;
use crate::iova::Iova;
use crate::page::GIB;

fn blocks(fd: BorrowedFd<'_>) -> i64 {
    nix::sys::stat::fstat(fd).unwrap().st_blocks
}

#[test]
fn addresses_are_aligned_and_congruent_and_the_device_sees_the_same_bytes() {
    let device = Double::new();
    let arena = DmaArena::new(&device.function()).unwrap();
    let mut held = Vec::new();
    for (bytes, align) in [
        (1, 1),
        (64, 64),
        (4096, 4096),
        (100, 1 << 16),
        (5 << 20, 2 << 20),
        (70 << 20, 4096),
    ] {
        let buffer = arena.alloc(bytes, align).unwrap();
        let iova = buffer.iova().0;
        assert_eq!(buffer.len(), bytes);
        assert_ne!(iova, 0);
        assert_eq!(
            iova % align as u64,
            0,
            "{bytes:#x} bytes aligned to {align:#x}"
        );
        assert_eq!(iova % GIB as u64, buffer.address() % GIB as u64);
        buffer.store_u8(bytes - 1, 0xc3);
        let (memory, at) = device.reach(iova + bytes as u64 - 1);
        assert_eq!(memory.load_u8(at), 0xc3);
        held.push(buffer);
    }
    assert_eq!(
        device.mappings().len(),
        2,
        "one chunk, and one for what exceeds it"
    );
}

#[test]
fn memory_given_back_is_zeroed_when_given_out_again() {
    let arena = DmaArena::with_chunk_bytes(&Double::new().function(), 8192).unwrap();
    let first = arena.alloc(4096, 4096).unwrap();
    let address = first.address();
    first.fill(0, 4096, 0xee);
    drop(first);
    let second = arena.alloc(8192, 4096).unwrap();
    assert_eq!(second.address(), address);
    let mut bytes = vec![1; 8192];
    second.read_bytes(0, &mut bytes);
    assert!(bytes.iter().all(|&byte| byte == 0));
}

#[test]
fn memory_returns_with_the_last_clone_only() {
    let arena = DmaArena::with_chunk_bytes(&Double::new().function(), 4096).unwrap();
    let first = arena.alloc(4096, 4096).unwrap();
    let clone = first.clone();
    let address = first.address();
    drop(first);
    let other = arena.alloc(64, 64).unwrap();
    assert_ne!(other.address(), address);
    clone.write_bytes(0, b"still here");
    drop(clone);
    assert_eq!(arena.alloc(4096, 4096).unwrap().address(), address);
}

#[test]
fn a_chunk_is_unmapped_when_arena_and_buffers_are_gone() {
    let device = Double::new();
    let function = device.function();
    let arena = DmaArena::new(&function).unwrap();
    let buffer = arena.alloc(4096, 4096).unwrap();
    drop(arena);
    assert_eq!(device.mappings(), vec![(CHUNK_BYTES as u64, CHUNK_BYTES)]);
    buffer.store_be64(0, 1);
    drop(buffer);
    assert_eq!(device.mappings(), vec![]);
    // The chunk's I/O addresses are free again, too.
    let again = DmaArena::new(&function).unwrap().alloc(64, 64).unwrap();
    assert_eq!(again.iova(), Iova(CHUNK_BYTES as u64));
}

#[test]
fn a_sparse_gigabyte_is_one_aligned_mapping_and_costs_no_pages() {
    let device = Double::new();
    let arena = DmaArena::new(&device.function()).unwrap();
    let small = arena.alloc(4096, 4096).unwrap();
    let buffer = arena.alloc(GIB, 4096).unwrap();
    assert_eq!(buffer.iova().0 % GIB as u64, 0);
    assert_eq!(buffer.address() % GIB as u64, 0);
    let memory = buffer.lease.chunk.mapped.memory().clone();
    if let Some(fd) = memory.as_fd() {
        assert_eq!(blocks(fd), 0);
        buffer.store_u8(GIB - 1, 1);
        assert!(blocks(fd) > 0, "the test looks at the wrong file");
    }
    drop((buffer, small));
    assert_eq!(
        device.mappings().len(),
        1,
        "the gigabyte went with its buffer, the chunk stays"
    );
}

#[test]
fn senseless_requests_are_refused() {
    let function = Double::new().function();
    let arena = DmaArena::new(&function).unwrap();
    for (bytes, align) in [(0, 1), (1, 0), (1, 3), (1, 2 * GIB), (usize::MAX, 1)] {
        let refused = arena.alloc(bytes, align);
        assert!(
            matches!(refused, Err(DmaError::Request { .. })),
            "{bytes:#x} {align:#x}: {refused:?}"
        );
    }
    assert!(matches!(
        arena.alloc(usize::MAX / 2, 1),
        Err(DmaError::Iova(_))
    ));
    assert!(DmaArena::with_chunk_bytes(&function, 5000).is_err());
    assert!(DmaArena::with_chunk_bytes(&function, 2048).is_err());
}

#[test]
fn a_mapping_the_function_refuses_leaves_nothing_behind() {
    let device = Double::new();
    let function = device.function();
    let arena = DmaArena::new(&function).unwrap();
    device.set_refuses_dma(true);
    assert!(matches!(arena.alloc(64, 64), Err(DmaError::Function(_))));
    device.set_refuses_dma(false);
    assert_eq!(
        arena.alloc(64, 64).unwrap().iova(),
        Iova(CHUNK_BYTES as u64)
    );
}

#[test]
fn addresses_the_function_will_not_unmap_are_not_used_again() {
    let device = Double::new();
    let function = device.function();
    let first = DmaArena::new(&function).unwrap().alloc(64, 64).unwrap();
    let iova = first.iova();
    device.set_refuses_dma(true);
    drop(first);
    device.set_refuses_dma(false);
    let next = function.space().alloc_iova(CHUNK_BYTES, CHUNK_BYTES, 0);
    assert_ne!(next.unwrap(), iova);
}

/// If the device refuses an unmap, its bus mastering is disabled, so the device cannot access the memory any more. Lent
/// memory, for example, returns to its owner in any case.
#[test]
fn memory_that_stays_mapped_stops_the_device() {
    const BUS_MASTER: u16 = 4;
    let device = Double::new();
    let function = device.function();
    function.set_bus_master(true).unwrap();
    let kept = DmaArena::new(&function).unwrap().alloc(64, 64).unwrap();
    device.set_refuses_dma(true);
    drop(kept);
    assert_eq!(function.config_read_u16(4).unwrap() & BUS_MASTER, 0);
}

#[test]
fn random_buffers_are_zero_disjoint_and_keep_their_bytes() {
    for seed in 0..8 {
        let mut random = StdRng::seed_from_u64(seed);
        let arena = DmaArena::with_chunk_bytes(&Double::new().function(), 1 << 16).unwrap();
        let mut held: Vec<(DmaBuffer, u8)> = Vec::new();
        for _ in 0..300 {
            if random.random_bool(0.55) {
                let bytes = random.random_range(1..20_000);
                let align = 1 << random.random_range(0..14);
                let buffer = arena.alloc(bytes, align).unwrap();
                assert_eq!(buffer.address() % align as u64, 0);
                let mut read = vec![1; bytes];
                buffer.read_bytes(0, &mut read);
                assert!(
                    read.iter().all(|&byte| byte == 0),
                    "seed {seed}: {buffer:?} is not zero"
                );
                let value = random.random_range(1..=255);
                buffer.fill(0, bytes, value);
                held.push((buffer, value));
            } else if !held.is_empty() {
                let (buffer, value) = held.swap_remove(random.random_range(0..held.len()));
                let mut read = vec![0; buffer.len()];
                buffer.read_bytes(0, &mut read);
                assert!(
                    read.iter().all(|&byte| byte == value),
                    "seed {seed}: {buffer:?} was overwritten"
                );
            }
        }
    }
}

#[test]
fn a_region_of_a_buffer_has_the_addresses_of_its_part() {
    let arena = DmaArena::new(&Double::new().function()).unwrap();
    let buffer = arena.alloc(8192, 4096).unwrap();
    let memory = |offset, bytes| DmaMemory::Arena {
        buffer: buffer.clone(),
        offset,
        bytes,
    };
    let part = memory(100, 50);
    assert_eq!(part.iova(), buffer.iova().advance(100));
    assert_eq!(part.address(), buffer.address() + 100);
    assert_eq!(part.len(), 50);
    assert!(!part.is_empty());
    assert!(
        memory(8192, 1).is_empty(),
        "a part outside its buffer is no memory"
    );
}

#[test]
fn memory_that_is_kept_is_not_given_out_again_and_goes_with_the_arena() {
    let device = Double::new();
    let arena = DmaArena::with_chunk_bytes(&device.function(), 8192).unwrap();
    let buffer = arena.alloc(4096, 4096).unwrap();
    let (address, owner) = (buffer.address(), buffer.arena());
    owner.keep(buffer);
    let other = arena.alloc(4096, 4096).unwrap();
    assert_ne!(other.address(), address);
    assert_eq!(device.mappings().len(), 1);
    drop((other, arena));
    assert_eq!(
        device.mappings(),
        [],
        "the arena's owner had stopped the device"
    );
}

#[test]
fn memory_kept_after_its_arena_has_gone_is_freed() {
    let device = Double::new();
    let function = device.function();
    let arena = DmaArena::with_chunk_bytes(&function, 8192).unwrap();
    let buffer = arena.alloc(4096, 4096).unwrap();
    drop(arena);
    assert_eq!(device.mappings().len(), 1, "the buffer is in use");
    buffer.arena().keep(buffer);
    assert_eq!(device.mappings(), []);
}

/// A chunk is rounded up to pages of the system, so it may be longer than what was asked for (64 KiB on some machines).
#[test]
fn an_arena_counts_the_bytes_that_are_mapped_for_it() {
    let device = Double::new();
    let arena = DmaArena::with_chunk_bytes(&device.function(), 4096).unwrap();
    assert_eq!(arena.mapped_bytes(), 0);
    let _held = [(); 2].map(|()| arena.alloc(4096, 4096).unwrap());
    let mapped: usize = device.mappings().iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(arena.mapped_bytes(), mapped);
}

#[test]
fn memory_that_outlives_its_function_is_not_mapped_for_it_any_more() {
    let device = Double::new();
    let arena = DmaArena::with_chunk_bytes(&device.function(), 8192).unwrap();
    let buffer = arena.alloc(4096, 4096).unwrap();
    drop(arena);
    assert_eq!(device.mappings(), []);
    buffer.store_u8(0, 1);
    // The next arena is mapped at the same I/O address.
    let again = DmaArena::with_chunk_bytes(&device.function(), 8192).unwrap();
    let other = again.alloc(4096, 4096).unwrap();
    assert_eq!(other.iova(), buffer.iova());
    drop(buffer);
    assert_eq!(
        device.mappings().len(),
        1,
        "which is not the first one's to take back"
    );
}

/// As for a program that still has a buffer when its function is to be parked.
#[test]
fn buffers_dropped_since_a_snapshot_are_taken_back_beside_those_that_exist() {
    let device = Double::new();
    let function = device.function();
    let arena = DmaArena::with_chunk_bytes(&function, 8192).unwrap();
    // The last one is longer than a chunk, so it has one of its own.
    let [kept, first, second, long] =
        [64, 4096, 100, 9000].map(|bytes| arena.alloc(bytes, 64).unwrap());
    first.write_bytes(0, b"first");
    long.write_bytes(8990, b"long");
    function.hold_mappings();
    let before = arena.snapshot().unwrap();
    let places = [first.iova(), second.iova(), long.iova()];
    drop((first, second, long));
    arena.take_back(&before).unwrap();
    assert_eq!(arena.unclaimed().len(), 3);
    let [first, _second, long] = [0, 1, 2].map(|at| {
        let bytes = [4096, 100, 9000][at];
        arena.claim(places[at], bytes).unwrap()
    });
    assert_eq!(first.read_obj::<[u8; 5]>(0), *b"first");
    assert_eq!(long.read_obj::<[u8; 4]>(8990), *b"long");
    let refused = arena.claim(kept.iova(), 64).unwrap_err();
    assert!(matches!(refused, ClaimError::Claimed { .. }), "{refused}");
    assert_eq!(arena.snapshot().unwrap(), before);
    assert_eq!(arena.finish(), []);
}

#[test]
fn a_range_that_was_allocated_again_is_not_taken_back() {
    let function = Double::new().function();
    let arena = DmaArena::with_chunk_bytes(&function, 8192).unwrap();
    let first = arena.alloc(4096, 64).unwrap();
    function.hold_mappings();
    let before = arena.snapshot().unwrap();
    drop(first);
    let _other = arena.alloc(64, 64).unwrap();
    let refused = arena.take_back(&before).unwrap_err().to_string();
    assert!(refused.contains("was allocated again"), "{refused}");
}
