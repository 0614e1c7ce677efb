//! Snapshots that were changed after they were made.

use std::ops::RangeInclusive;
use std::sync::Mutex;

use rand::rngs::StdRng;
use rand::seq::IndexedMutRandom;
use rand::{Rng, SeedableRng};

use super::*;
use crate::clock::{Instant, monotonic_now};

/// Returns another number: an adjacent one, an extreme one, one with a flipped bit, or a random one.
fn twist(number: u64, random: &mut StdRng) -> u64 {
    match random.random_range(0..9) {
        0 => number.wrapping_add(1),
        1 => number.wrapping_sub(1),
        2 => number.wrapping_add(4096),
        3 => number.wrapping_sub(4096),
        4 => number ^ (1 << random.random_range(0..64)),
        5 => 0,
        6 => u64::MAX,
        7 => u64::MAX - 4095,
        _ => random.random(),
    }
}

fn twist_ranges(ranges: &mut Vec<RangeInclusive<u64>>, random: &mut StdRng) {
    if ranges.is_empty() || random.random_bool(0.2) {
        ranges.push(random.random()..=random.random());
        return;
    }
    let at = random.random_range(0..ranges.len());
    let (start, end) = (*ranges[at].start(), *ranges[at].end());
    match random.random_range(0..4) {
        0 => drop(ranges.remove(at)),
        1 => ranges[at] = twist(start, random)..=end,
        2 => ranges[at] = start..=twist(end, random),
        _ => ranges.insert(at, start..=end),
    }
}

/// Removes, repeats or moves an element.
fn twist_list<T: Clone>(list: &mut Vec<T>, random: &mut StdRng) {
    if list.is_empty() {
        return;
    }
    let at = random.random_range(0..list.len());
    let to = random.random_range(0..list.len());
    match random.random_range(0..3) {
        0 => drop(list.remove(at)),
        1 => list.insert(to, list[at].clone()),
        _ => list.swap(at, to),
    }
}

/// Changes one field or one list of a snapshot of a vfio-user function.
fn mutate(snapshot: &mut FunctionSnapshot, random: &mut StdRng) {
    let FunctionSnapshot {
        backend,
        identity,
        vectors,
        error,
        removal,
        lock,
        space,
    } = snapshot;
    let BackendSnapshot::VfioUser(client) = backend else {
        panic!("{backend:?}");
    };
    let narrow = |number: u64| u32::try_from(number & 0xffff_ffff).unwrap();
    match random.random_range(0..12) {
        0 => {
            let mut all: Vec<_> = vectors.iter_mut().collect();
            all.extend([error, removal].into_iter().flatten());
            all.extend(space.memories.iter_mut().map(|memory| &mut memory.file));
            all.push(lock);
            all.push(&mut client.socket);
            all.extend(&mut client.twin);
            let at = random.random_range(0..all.len());
            let one = &mut *all[at];
            match random.random_range(0..5) {
                0 => one.device = twist(one.device, random),
                1 => one.inode = twist(one.inode, random),
                2 => one.special = twist(one.special, random),
                3 => one.event = random.random_bool(0.5).then(|| random.random_range(0..99)),
                _ => one.name.push(char::from(random.random_range(b' '..b'~'))),
            }
        }
        1 | 2 => {
            if let Some(memory) = space.memories.choose_mut(random) {
                let number = match random.random_range(0..4) {
                    0 => &mut memory.address,
                    1 => &mut memory.file_bytes,
                    2 => &mut memory.bytes,
                    _ => &mut memory.blocks,
                };
                *number = twist(*number, random);
            }
        }
        3 | 4 => {
            if let Some(mapping) = space.mappings.choose_mut(random) {
                match random.random_range(0..5) {
                    0 => mapping.iova = twist(mapping.iova, random),
                    1 => mapping.bytes = twist(mapping.bytes, random),
                    2 => mapping.offset = twist(mapping.offset, random),
                    3 => mapping.memory = narrow(twist(mapping.memory.into(), random)),
                    _ => mapping.allocated ^= true,
                }
            }
        }
        5 => twist_ranges(&mut space.free, random),
        6 => twist_ranges(&mut space.ranges, random),
        7 => twist_ranges(&mut space.allowed, random),
        8 => match random.random_range(0..5) {
            0 => twist_list(vectors, random),
            1 => twist_list(&mut space.memories, random),
            2 => twist_list(&mut space.mappings, random),
            3 => std::mem::swap(error, removal),
            _ => *error = None,
        },
        9 => match random.random_range(0..4) {
            0 => client.max_fds = narrow(twist(client.max_fds.into(), random)),
            1 => client.most_mappings = twist(client.most_mappings, random),
            2 => client.vector_count = narrow(twist(client.vector_count.into(), random)),
            _ => client.twin = None,
        },
        10 => identity.command ^= 1 << random.random_range(0..16),
        _ => identity.device ^= 1 << random.random_range(0..32),
    }
}

/// Makes a function with memory of all kinds, and parks it.
fn parked_with_memory(rig: &Rig) -> (FunctionSnapshot, Vec<NamedFd>, ArenaSnapshot) {
    let function = rig.function();
    function.enable_interrupts(2).unwrap();
    let arena = DmaArena::with_chunk_bytes(&function, CHUNK).unwrap();
    let sizes = [64, 640, 40_000, 50_000, 100, 2 * CHUNK, 3 * CHUNK];
    let mut buffers = sizes.map(|bytes| Some(arena.alloc(bytes, 64).unwrap()));
    buffers[1] = None;
    let own = SharedMemory::anonymous(4 * PAGE).unwrap();
    function.dma_map(OWN, &own, PAGE, 2 * PAGE).unwrap();
    function
        .dma_map(Iova(OWN.0 + 0x10_0000), &own, 0, PAGE)
        .unwrap();
    function.hold_mappings();
    let before = arena.snapshot().unwrap();
    drop((buffers, arena, own));
    let (snapshot, fds) = park(function);
    (snapshot, fds, before)
}

/// A changed snapshot is refused, or the function that is resumed from it agrees with it. The mappings of the server
/// are not read, because the protocol has no message for that. So a changed mapping that the program has made may
/// differ from the device's. Mappings of arenas and pools agree with the device's.
#[test]
fn a_changed_snapshot_is_refused_or_agrees_with_the_function() {
    let rig = Rig::new(1);
    let (snapshot, mut fds, _) = parked_with_memory(&rig);
    let mappings = rig.double.mappings();
    let (of_arena, of_program): (Vec<_>, Vec<_>) = mappings
        .iter()
        .copied()
        .partition(|&(iova, _)| iova < OWN.0);
    let mut counts = [0, 0];
    let mut untrue = 0;
    for seed in 0..1000 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut changed = snapshot.clone();
        for _ in 0..random.random_range(1..3) {
            mutate(&mut changed, &mut random);
        }
        match Function::resume(&changed, fds) {
            Err((given_back, error)) => {
                assert!(!error.to_string().is_empty());
                fds = given_back;
                counts[0] += 1;
            }
            Ok(function) => {
                let again;
                (again, fds) = park(function.go_on(&Claimed::by_caller()));
                assert_eq!(comparable(&again), comparable(&changed), "seed {seed}");
                assert_eq!(mapped(&changed, true), of_arena, "seed {seed}");
                let ours = mapped(&changed, false);
                untrue += usize::from(ours != of_program);
                counts[1] += 1;
            }
        }
    }
    assert!(counts[0] > 500 && counts[1] > 10, "{counts:?}");
    assert!(untrue < counts[1], "{untrue} of {counts:?}");
    // The refused and the resumed functions have changed nothing at the device.
    assert_eq!(rig.double.mappings(), mappings);
    assert_eq!(rig.double.resets(), 0);
    let (again, _fds) = park(resume(&snapshot, fds));
    assert_eq!(comparable(&again), comparable(&snapshot));
}

/// Returns I/O address and length of the mappings of a snapshot whose addresses were allocated, or of the others.
fn mapped(snapshot: &FunctionSnapshot, allocated: bool) -> Vec<(u64, usize)> {
    let mappings = snapshot.space.mappings.iter();
    let mappings = mappings.filter(|mapping| mapping.allocated == allocated);
    let place = |mapping: &MappingSnapshot| (mapping.iova, usize::try_from(mapping.bytes).unwrap());
    mappings.map(place).collect()
}

/// The server refuses to unmap a mapping that it does not have. The resumption itself does not notice it.
#[test]
fn a_mapping_unknown_to_the_device_stops_the_function_when_it_is_unmapped() {
    let rig = Rig::new(1);
    let function = rig.function();
    function.set_bus_master(true).unwrap();
    let own = SharedMemory::anonymous(PAGE).unwrap();
    function.dma_map(OWN, &own, 0, PAGE).unwrap();
    drop(own);
    let (mut snapshot, fds) = park(function);
    snapshot.space.mappings[0].iova += 0x1_0000;
    let function = resume(&snapshot, fds);
    assert!(rig.double.is_bus_master());
    assert_eq!(function.release_mappings(), []);
    assert!(!rig.double.is_bus_master());
}

/// A change of a snapshot.
type Change = fn(&mut FunctionSnapshot);

/// If such a snapshot were accepted, addresses would have two owners, or the process would panic when memory is freed.
#[test]
fn numbers_of_a_snapshot_that_contradict_each_other_are_refused() {
    let rig = Rig::new(1);
    let (snapshot, mut fds, _) = parked_with_memory(&rig);
    let contradictions: [(&str, Change); 18] = [
        ("some of the mapped I/O addresses", |it| {
            it.space.free = vec![1..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff];
        }),
        (
            "can be allocated, which the function does not reach",
            |it| {
                it.space.free.push(0x90_0000_0000..=0x90_0000_0fff);
                it.space.allowed.push(0x90_0000_0000..=0x90_0000_0fff);
            },
        ),
        ("those free and those mapped are", |it| {
            // The addresses of an arena's mapping would be lost.
            it.space.mappings[0].allocated = false;
        }),
        ("those free and those mapped are", |it| {
            it.space.free.pop();
        }),
        ("memories 0 and 1 are one file", |it| {
            let name = it.space.memories[1].file.name.clone();
            it.space.memories[1].file = it.space.memories[0].file.clone();
            it.space.memories[1].file.name = name;
        }),
        ("is that of an arena or a pool, and has 2 mappings", |it| {
            let mut again = it.space.mappings[0];
            again.iova = OWN.0 + 0x20_0000;
            again.allocated = false;
            it.space.mappings.push(again);
        }),
        ("are not inside the window of DMA memory", |it| {
            // The program's own memory, whose mappings have no congruence.
            it.space.memories.last_mut().unwrap().address = 0x7000_0000_0000;
        }),
        ("free I/O addresses", |it| it.space.free.reverse()),
        ("free I/O addresses", |it| it.space.allowed = vec![]),
        ("begins below the end of the one before", |it| {
            it.space.mappings[1] = it.space.mappings[0];
        }),
        ("begins below the end of the one before", |it| {
            it.space.mappings.swap(0, 1);
            it.space.memories.swap(0, 1);
            let names = [0, 1].map(|at: usize| format!("memory-{at}"));
            for (memory, name) in it.space.memories.iter_mut().zip(names) {
                memory.file.name = name;
            }
            it.space.mappings[0].memory = 0;
            it.space.mappings[1].memory = 1;
        }),
        ("memory 99 of", |it| it.space.mappings[0].memory = 99),
        ("is mapped behind a later one", |it| {
            it.space.mappings[0].memory = 1;
            it.space.mappings[0].allocated = false;
        }),
        ("does not reach the mapping", |it| {
            it.space.mappings.last_mut().unwrap().iova = 1 << 40;
        }),
        ("are mapped at IOVA 0x1000000001", |it| {
            it.space.mappings.last_mut().unwrap().iova = OWN.0 + 1;
        }),
        ("of a memory of", |it| {
            it.space.mappings[0].bytes += 4096;
        }),
        ("memories of", |it| {
            it.space.mappings.retain(|mapping| mapping.iova < OWN.0);
        }),
        ("17 descriptors in a message", |it| {
            if let BackendSnapshot::VfioUser(client) = &mut it.backend {
                client.max_fds = 17;
            }
        }),
    ];
    let mut error;
    for (words, contradict) in contradictions {
        let mut changed = snapshot.clone();
        contradict(&mut changed);
        (fds, error) = refused(&changed, fds);
        let text = error.to_string();
        assert!(
            matches!(error, ResumeError::Snapshot { .. }) && text.contains(words),
            "{words}: {text}"
        );
    }
    resume(&snapshot, fds);
}

/// Returns a snapshot without the numbers that change in use: the ID of the next message, and the blocks of memory.
fn comparable(snapshot: &FunctionSnapshot) -> FunctionSnapshot {
    let mut snapshot = snapshot.clone();
    if let BackendSnapshot::VfioUser(client) = &mut snapshot.backend {
        client.next_id = 0;
    }
    for memory in &mut snapshot.space.memories {
        memory.blocks = 0;
    }
    snapshot
}

fn mutate_arena(snapshot: &mut ArenaSnapshot, random: &mut StdRng) {
    let ArenaSnapshot {
        chunk_bytes,
        chunks,
    } = snapshot;
    if random.random_bool(0.1) {
        *chunk_bytes = twist(*chunk_bytes, random);
        return;
    }
    if random.random_bool(0.1) {
        twist_list(chunks, random);
        return;
    }
    let Some(chunk) = chunks.choose_mut(random) else {
        return;
    };
    match random.random_range(0..6) {
        0 => chunk.iova = twist(chunk.iova, random),
        1 => chunk.bytes = twist(chunk.bytes, random),
        2 => chunk.used_below = twist(chunk.used_below, random),
        3 => chunk.is_dedicated ^= true,
        4 => twist_list(&mut chunk.leases, random),
        _ => {
            if let Some(lease) = chunk.leases.choose_mut(random) {
                let number = if random.random_bool(0.5) {
                    &mut lease.offset
                } else {
                    &mut lease.bytes
                };
                // Numbers that are near are more often possible.
                *number = match random.random_range(0..3) {
                    0 => number.wrapping_add(64),
                    1 => number.wrapping_sub(64),
                    _ => twist(*number, random),
                };
            }
        }
    }
}

#[test]
fn a_changed_snapshot_of_an_arena_is_refused_or_agrees_with_the_arena() {
    let rig = Rig::new(1);
    let (snapshot, fds, before) = parked_with_memory(&rig);
    let function = resume(&snapshot, fds);
    let mut counts = [0, 0];
    for seed in 0..5000 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut changed = before.clone();
        for _ in 0..random.random_range(1..3) {
            mutate_arena(&mut changed, &mut random);
        }
        match DmaArena::resume(&function, &changed) {
            Err(error) => {
                assert!(!error.to_string().is_empty());
                counts[0] += 1;
            }
            Ok(arena) => {
                assert_eq!(arena.snapshot().as_ref(), Ok(&changed), "seed {seed}");
                // Each range in use is freed once.
                let used = arena.finish().len();
                let leases = changed.chunks.iter().map(|chunk| chunk.leases.len());
                assert_eq!(used, leases.sum::<usize>(), "seed {seed}");
                counts[1] += 1;
            }
        }
    }
    assert!(counts[0] > 1000 && counts[1] > 100, "{counts:?}");
    let arena = DmaArena::resume(&function, &before).unwrap();
    assert_eq!(arena.snapshot().as_ref(), Ok(&before));
}

/// A process may die, or give up, between two parts of a reply. The rest would end the connection for the process that
/// has parked the function.
#[test]
fn a_reply_on_a_shared_socket_is_received_as_a_whole_or_not_at_all() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (socket, peer) = (Socket::new(ours).unwrap(), Socket::new(theirs).unwrap());
    socket.set_shared(true);
    let header = socket::header(7, Command::DEVICE_GET_INFO.0, 16, wire::TYPE_REPLY, 0);
    socket::send(
        &peer,
        (7, Command::DEVICE_GET_INFO.0, wire::TYPE_REPLY, 0),
        &[&words([16, 2, 9, 5])],
        &[],
    )
    .unwrap();
    let whole = socket.receive(|| false).unwrap().unwrap();
    assert_eq!(whole.payload, words([16, 2, 9, 5]));
    socket.check_quiet().unwrap();
    peer.send(&[header.as_bytes(), &[1; 15]], &[]).unwrap();
    drop(peer);
    let error = socket.receive(|| false).err().unwrap();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    let mut unread = Vec::new();
    let mut stream = UnixStream::from(socket.as_fd().try_clone_to_owned().unwrap());
    stream.read_to_end(&mut unread).unwrap();
    assert_eq!(unread.len(), HEADER_BYTES + 15);
}

/// A server, and the parts of its reply that are still to be sent, last part first.
static LATER: Mutex<Option<(Socket, Vec<Vec<u8>>)>> = Mutex::new(None);

/// A clock whose reader gets one more part of the reply.
fn with_the_next_part() -> Instant {
    let mut later = LATER.lock().unwrap();
    if let Some((server, parts)) = &mut *later
        && let Some(part) = parts.pop()
    {
        server.send(&[&part], &[]).unwrap();
    }
    monotonic_now()
}

/// A server may send header and payload in two writes.
#[test]
fn a_reply_on_a_shared_socket_may_arrive_in_parts() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let socket = Socket::new(ours).unwrap().by(with_the_next_part);
    socket.set_shared(true);
    let header = socket::header(7, Command::DEVICE_GET_INFO.0, 16, wire::TYPE_REPLY, 0);
    let payload = words([16, 2, 9, 5]);
    let whole = [header.as_bytes(), &payload].concat();
    let server = Socket::new(theirs).unwrap();
    server.send(&[&whole[..3]], &[]).unwrap();
    let later = [HEADER_BYTES + 5..whole.len(), 3..HEADER_BYTES + 5];
    let later = later.map(|part| whole[part].to_vec());
    *LATER.lock().unwrap() = Some((server, later.to_vec()));
    let received = socket.receive(|| false).unwrap().unwrap();
    assert_eq!(received.payload, payload);
    socket.check_quiet().unwrap();
    *LATER.lock().unwrap() = None;
}
