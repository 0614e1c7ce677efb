//! Tests of simulated functions in one I/O address space.

use super::*;
use crate::double::Double;
use crate::function::Function;
use crate::{DmaArena, DmaMemory, Iova, SharedMemory};

fn beside(device: &Double, first: &Function) -> Result<Function, FunctionError> {
    Function::in_process_in(Arc::new(device.clone()), &first.dma_space())
}

#[test]
fn memory_made_for_one_function_is_reached_by_all_of_its_space_whichever_came_first() {
    let devices = [Double::new(), Double::new()];
    let first = devices[0].function();
    let arena = DmaArena::with_chunk_bytes(&first, 4096).unwrap();
    let before = arena.alloc(4096, 4096).unwrap();
    let second = beside(&devices[1], &first).unwrap();
    let after = DmaArena::with_chunk_bytes(&second, 8192).unwrap();
    let after = after.alloc(8192, 4096).unwrap();
    assert_ne!(
        before.iova(),
        after.iova(),
        "one space, one set of addresses"
    );
    for buffer in [before, after] {
        buffer.store_u8(9, 0x5a);
        for device in &devices {
            let (memory, at) = device.reach(buffer.iova().0 + 9);
            assert_eq!(memory.load_u8(at), 0x5a);
        }
        let bytes = buffer.len();
        let memory = DmaMemory::Arena {
            buffer,
            offset: 0,
            bytes,
        };
        assert!(memory.is_reached_by(&first) && memory.is_reached_by(&second));
        assert!(
            !memory.is_reached_by(&devices[0].function()),
            "another opening"
        );
    }
    assert!(first.shares_memory_with(&second));
}

#[test]
fn a_function_that_goes_leaves_the_others_their_memory_and_takes_none_along() {
    let devices = [Double::new(), Double::new()];
    let first = devices[0].function();
    let second = beside(&devices[1], &first).unwrap();
    let arena = DmaArena::with_chunk_bytes(&first, 4096).unwrap();
    let buffer = arena.alloc(4096, 4096).unwrap();
    drop((first, arena));
    assert_eq!(devices[0].mappings(), []);
    assert_eq!(devices[1].mappings(), [(buffer.iova().0, 4096)]);
    drop(buffer);
    assert_eq!(devices[1].mappings(), []);
    // A function that has left the space may join it again, or get a space of its own.
    assert!(beside(&devices[0], &second).is_ok());
}

#[test]
fn what_one_function_refuses_is_mapped_for_none() {
    let devices = [Double::new(), Double::new()];
    let first = devices[0].function();
    let _second = beside(&devices[1], &first).unwrap();
    let memory = SharedMemory::anonymous(4096).unwrap();
    devices[1].set_refuses_dma(true);
    let refused = first.dma_map(Iova(0x1000), &memory, 0, 4096);
    assert!(
        matches!(refused, Err(FunctionError::DmaRefused { .. })),
        "{refused:?}"
    );
    assert_eq!(devices[0].mappings(), []);
    devices[1].set_refuses_dma(false);
    first.dma_map(Iova(0x1000), &memory, 0, 4096).unwrap();
}

#[test]
fn a_function_that_refuses_what_is_mapped_is_no_member() {
    let devices = [Double::new(), Double::new()];
    let first = devices[0].function();
    let memory = SharedMemory::anonymous(8192).unwrap();
    first.dma_map(Iova(0x1000), &memory, 0, 4096).unwrap();
    devices[1].set_refuses_dma(true);
    assert!(beside(&devices[1], &first).is_err());
    devices[1].set_refuses_dma(false);
    first.dma_map(Iova(0x2000), &memory, 4096, 4096).unwrap();
    assert_eq!(devices[1].mappings(), []);
}

/// If one function refuses to unmap memory, all functions of the space are stopped, because each has its own keys for
/// that memory.
#[test]
fn memory_that_one_function_does_not_let_go_of_stops_them_all() {
    const BUS_MASTER: u16 = 4;
    let devices = [Double::new(), Double::new()];
    let first = devices[0].function();
    let second = beside(&devices[1], &first).unwrap();
    for function in [&first, &second] {
        function.set_bus_master(true).unwrap();
    }
    let arena = DmaArena::with_chunk_bytes(&first, 4096).unwrap();
    let kept = arena.alloc(64, 64).unwrap();
    devices[1].set_refuses_dma(true);
    drop((kept, arena));
    for function in [&first, &second] {
        assert_eq!(function.config_read_u16(4).unwrap() & BUS_MASTER, 0);
    }
}

#[test]
fn a_space_without_functions_cannot_be_joined() {
    let devices = [Double::new(), Double::new()];
    let first = devices[0].function();
    let space = first.dma_space();
    assert!(space.is_open());
    drop(first);
    assert!(!space.is_open());
    let refused = Function::in_process_in(Arc::new(devices[1].clone()), &space).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "double: cannot be opened in the I/O address space of double: no function of it is open any more"
    );
    let refused = Function::vfio_in("3b:00.2", &space)
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("3b:00.2") && refused.contains("under VFIO"),
        "{refused}"
    );
}

/// Makes two functions in one space and enables their bus mastering.
fn pair() -> ([Double; 2], [Function; 2]) {
    let devices = [Double::new(), Double::new()];
    let first = devices[0].function();
    let second = beside(&devices[1], &first).unwrap();
    for function in [&first, &second] {
        function.set_bus_master(true).unwrap();
    }
    (devices, [first, second])
}

#[test]
fn addresses_of_a_mapping_that_could_not_be_rolled_back_stay_unused_and_all_are_stopped() {
    let (devices, [first, second]) = pair();
    devices[0].set_refuses_unmap(true);
    devices[1].set_refuses_dma(true);
    let arena = DmaArena::with_chunk_bytes(&first, 4096).unwrap();
    assert!(arena.alloc(64, 64).is_err());
    let [(kept, 4096)] = devices[0].mappings()[..] else {
        panic!("{:x?}", devices[0].mappings());
    };
    for device in &devices {
        assert!(!device.is_bus_master());
    }
    let next = second.space().alloc_iova(4096, 4096, 0).unwrap();
    assert_ne!(next, Iova(kept), "a device still has it mapped");
}

#[test]
fn a_function_that_keeps_a_mapping_as_it_goes_is_stopped_and_the_others_go_on() {
    let (devices, [first, second]) = pair();
    let arena = DmaArena::with_chunk_bytes(&second, 4096).unwrap();
    let buffer = arena.alloc(64, 64).unwrap();
    devices[0].set_refuses_unmap(true);
    drop(first);
    assert!(!devices[0].is_bus_master());
    assert_eq!(devices[0].resets(), 1);
    assert_eq!(devices[0].mappings().len(), 1);

    let kept = buffer.iova();
    drop((buffer, arena));
    assert_eq!(devices[1].mappings(), [], "it was asked, and complied");
    assert!(devices[1].is_bus_master());
    let arena = DmaArena::with_chunk_bytes(&second, 4096).unwrap();
    assert_ne!(arena.alloc(64, 64).unwrap().iova(), kept);
}

#[test]
fn a_function_that_keeps_a_mapping_of_a_space_that_it_could_not_join_is_stopped() {
    let (devices, [first, _second]) = pair();
    let memory = SharedMemory::anonymous(8192).unwrap();
    first.dma_map(Iova(0x1000), &memory, 0, 4096).unwrap();
    first.dma_map(Iova(0x3000), &memory, 4096, 4096).unwrap();
    let third = Double::new();
    // `third` already has a mapping at that address in its own space, so the join fails there.
    let separate = third.function();
    separate.dma_map(Iova(0x3000), &memory, 0, 4096).unwrap();
    separate.set_bus_master(true).unwrap();
    third.set_refuses_unmap(true);
    assert!(beside(&third, &first).is_err());
    assert!(!third.is_bus_master());
    assert_eq!(third.resets(), 1);
    assert!(devices[0].is_bus_master());
    first.dma_unmap(Iova(0x1000), 4096).unwrap();
    assert_eq!(devices[0].mappings(), [(0x3000, 4096)]);
}

/// A function refuses to unmap what it has not mapped, so a repeated unmap must not ask it again.
#[test]
fn an_unmap_that_one_function_refused_is_completed_when_it_is_repeated() {
    let (devices, [first, _second]) = pair();
    let memory = SharedMemory::anonymous(4096).unwrap();
    first.dma_map(Iova(0x1000), &memory, 0, 4096).unwrap();
    devices[1].set_refuses_unmap(true);
    for _ in 0..2 {
        assert!(first.dma_unmap(Iova(0x1000), 4096).is_err());
    }
    assert_eq!(devices[0].mappings(), []);
    assert_eq!(devices[1].mappings(), [(0x1000, 4096)]);
    devices[1].set_refuses_unmap(false);
    first.dma_unmap(Iova(0x1000), 4096).unwrap();
    assert_eq!(devices[1].mappings(), []);
    first.dma_map(Iova(0x1000), &memory, 0, 4096).unwrap();
    first.dma_unmap(Iova(0x1000), 4096).unwrap();
}

#[test]
fn a_function_that_has_unmapped_what_another_kept_goes_without_being_stopped() {
    let (devices, [first, second]) = pair();
    let memory = SharedMemory::anonymous(4096).unwrap();
    first.dma_map(Iova(0x1000), &memory, 0, 4096).unwrap();
    devices[1].set_refuses_unmap(true);
    assert!(first.dma_unmap(Iova(0x1000), 4096).is_err());
    drop(first);
    assert_eq!(devices[0].resets(), 0, "it has kept nothing");
    // If it joins again, it has the mapping again.
    let again = beside(&devices[0], &second).unwrap();
    assert_eq!(devices[0].mappings(), [(0x1000, 4096)]);
    devices[1].set_refuses_unmap(false);
    again.dma_unmap(Iova(0x1000), 4096).unwrap();
    for device in &devices {
        assert_eq!(device.mappings(), []);
    }
}

#[test]
fn a_space_whose_functions_were_stopped_takes_no_function_and_no_memory() {
    let (devices, [first, second]) = pair();
    let arena = DmaArena::with_chunk_bytes(&first, 4096).unwrap();
    let kept = arena.alloc(64, 64).unwrap();
    devices[1].set_refuses_unmap(true);
    drop((kept, arena));
    devices[1].set_refuses_unmap(false);
    let memory = SharedMemory::anonymous(4096).unwrap();
    let refused = [
        second.dma_map(Iova(0x10_0000), &memory, 0, 4096),
        second.set_bus_master(true),
        beside(&Double::new(), &first).map(drop),
    ];
    for refused in refused {
        assert_eq!(
            refused.unwrap_err().to_string(),
            "double: the functions in the I/O address space of double were stopped for good, because one of them did not let go of memory: close them all and open them anew"
        );
    }
    for device in &devices {
        assert!(!device.is_bus_master());
    }
    second.set_bus_master(false).unwrap();
}

/// If the program could unmap a mapping while it is being released, one of the two unmappings would not find it. That
/// looks like a refusal of the function, and all functions would be stopped.
#[test]
fn a_mapping_that_is_released_and_unmapped_at_once_is_unmapped_once() {
    const PIECES: usize = 8;
    let device = Double::new();
    let function = device.function();
    function.set_bus_master(true).unwrap();
    let both = std::sync::Barrier::new(2);
    for turn in 0..200 {
        function.hold_mappings();
        let arenas = [(); PIECES].map(|()| DmaArena::with_chunk_bytes(&function, 4096).unwrap());
        let places = arenas
            .each_ref()
            .map(|arena| arena.alloc(64, 64).unwrap().iova());
        drop(arenas);
        assert_eq!(device.mappings().len(), PIECES);
        let counts = std::thread::scope(|scope| {
            let ours = scope.spawn(|| {
                both.wait();
                let last_first = places.iter().rev();
                let unmapped = last_first.filter(|iova| function.dma_unmap(**iova, 4096).is_ok());
                unmapped.count()
            });
            both.wait();
            let released = function.release_mappings().len();
            (ours.join().unwrap(), released)
        });
        assert_eq!(counts.0 + counts.1, PIECES, "turn {turn}: {counts:?}");
        assert!(device.is_bus_master(), "turn {turn}: {counts:?}");
        assert_eq!(device.mappings(), []);
    }
}
