//! Fused Compare and Write.

use anyhow::Result;
use nvmeof::disk::Source;
use nvmeof::disk::faults::{LONGEST_DELAY, Of, Orders};
use nvmeof::nvme::command::{FUSE_FIRST, FUSE_SECOND, io};
use nvmeof::nvme::sgl::Sgl;
use nvmeof::nvme::{Cqe, Sqe, Status};

use crate::blocks::{range, source};
use crate::host::{Host, Queue, command, transfer};
use crate::world::World;

const DONE: Status = Status::SUCCESS;
const FIELD: Status = Status::INVALID_FIELD.dnr();
const FAILED: Status = Status::FAILED_FUSED.dnr();
const MISSING: Status = Status::MISSING_FUSED.dnr();

fn part(opcode: u8, flags: u8, first: u64, blocks: u32, data: Sgl) -> Sqe {
    let mut sqe = transfer(opcode, first, blocks);
    sqe.flags |= flags;
    sqe.sgl = data;
    sqe
}

/// Sends a fused pair: the Compare compares a block with one part of the host's memory, and the Write writes another
/// part.
fn send(
    host: &mut Host,
    queue: &mut Queue,
    block: u64,
    old: usize,
    new: usize,
) -> Result<[u16; 2]> {
    let (compare, write) = (host.data(old, 512), host.data(new, 512));
    let first = host.send(queue, part(io::COMPARE, FUSE_FIRST, block, 1, compare), &[])?;
    let second = host.send(queue, part(io::WRITE, FUSE_SECOND, block, 1, write), &[])?;
    Ok([first, second])
}

/// Returns the statuses of commands, in the order in which they were sent.
fn answers<const N: usize>(
    host: &mut Host,
    queue: &mut Queue,
    sent: [u16; N],
) -> Result<[Status; N]> {
    let mut said: Vec<Cqe> = Vec::new();
    for _ in sent {
        said.push(host.response(queue)?);
    }
    Ok(sent.map(|cid| {
        let of = said.iter().find(|one| one.cid.get() == cid);
        of.expect("an answer of each").status()
    }))
}

fn block(host: &mut Host, queue: &mut Queue, first: u64) -> Result<u8> {
    assert_eq!(host.read(queue, first, 1, 65536, 512)?, DONE);
    Ok(host.memory.read(65536, 512)?[0])
}

#[test]
fn a_pair_is_done_or_fails_as_a_whole_and_neither_comes_alone() -> Result<()> {
    let mut world = World::new(1, Source::Memory(1 << 20), 9)?;
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let (_admin, controller) = host.controller(&subsystem)?;
    let mut queue = host.io_queue(&subsystem, controller, 1, 32)?;
    let queue = &mut queue;
    for (at, byte) in [(0, 0), (512, 1), (1024, 2)] {
        host.memory.write_from(at, &[byte; 512])?;
    }
    let sent = send(&mut host, queue, 5, 0, 512)?;
    assert_eq!(answers(&mut host, queue, sent)?, [DONE, DONE]);
    assert_eq!(block(&mut host, queue, 5)?, 1);
    let sent = send(&mut host, queue, 5, 0, 1024)?;
    assert_eq!(
        answers(&mut host, queue, sent)?,
        [Status::COMPARE.dnr(), FAILED]
    );
    assert_eq!(block(&mut host, queue, 5)?, 1);
    // In-capsule data.
    let sqe = part(io::COMPARE, FUSE_FIRST, 5, 1, Sgl::in_capsule(512));
    let first = host.send(queue, sqe, &[1; 512])?;
    let sqe = part(io::WRITE, FUSE_SECOND, 5, 1, Sgl::in_capsule(512));
    let second = host.send(queue, sqe, &[2; 512])?;
    assert_eq!(answers(&mut host, queue, [first, second])?, [DONE, DONE]);
    assert_eq!(block(&mut host, queue, 5)?, 2);
    // The first command is followed by an unfused command or by another first; then a second command has no first.
    let data = host.data(0, 512);
    let first = host.send(queue, part(io::COMPARE, FUSE_FIRST, 5, 1, data), &[])?;
    let other = host.send(queue, part(io::READ, 0, 6, 1, host.data(2048, 512)), &[])?;
    assert_eq!(answers(&mut host, queue, [first, other])?, [MISSING, DONE]);
    let first = host.send(queue, part(io::COMPARE, FUSE_FIRST, 5, 1, data), &[])?;
    let sent = send(&mut host, queue, 7, 0, 512)?;
    assert_eq!(
        answers(&mut host, queue, [first, sent[0], sent[1]])?,
        [MISSING, DONE, DONE]
    );
    assert_eq!(
        host.status(queue, part(io::WRITE, FUSE_SECOND, 5, 1, data), data)?,
        MISSING
    );
    // Other commands cannot be fused, and FUSE 11b is invalid.
    for (opcode, flags) in [
        (io::READ, 1),
        (io::WRITE, 1),
        (io::COMPARE, 2),
        (io::WRITE, 3),
    ] {
        assert_eq!(
            host.status(queue, part(opcode, flags, 5, 1, data), data)?,
            FIELD,
            "{opcode} {flags}"
        );
    }
    // Pairs of two blocks, with different blocks, with a block beyond the end, and with data of another length are
    // refused.
    let two = host.data(0, 1024);
    for (compare, write, expected) in [
        ((5, 2, two), (5, 2, two), [FIELD, FAILED]),
        ((5, 1, data), (6, 1, data), [FAILED, FIELD]),
        (
            (2048, 1, data),
            (2048, 1, data),
            [Status::LBA_RANGE.dnr(), FAILED],
        ),
        (
            (5, 1, data),
            (5, 1, two),
            [FAILED, Status::SGL_LENGTH.dnr()],
        ),
    ] {
        let first = host.send(
            queue,
            part(io::COMPARE, FUSE_FIRST, compare.0, compare.1, compare.2),
            &[],
        )?;
        let second = host.send(
            queue,
            part(io::WRITE, FUSE_SECOND, write.0, write.1, write.2),
            &[],
        )?;
        assert_eq!(
            answers(&mut host, queue, [first, second])?,
            expected,
            "{compare:?}"
        );
    }
    assert_eq!(block(&mut host, queue, 5)?, 2);
    // A first command without a second ends with its connection.
    host.send(queue, part(io::COMPARE, FUSE_FIRST, 5, 1, data), &[])?;
    drop(host);
    world.stop()?;
    Ok(())
}

/// Two workers get a pair each that expects the same old value: exactly one pair succeeds, while other blocks are
/// written.
#[test]
fn of_two_pairs_at_once_that_expect_the_same_one_wins_whatever_else_is_written() -> Result<()> {
    const ROUNDS: u8 = 50;
    let mut world = World::new(2, Source::Memory(1 << 20), 9)?;
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let (_admin, controller) = host.controller(&subsystem)?;
    let mut queues = Vec::new();
    for number in 1..=3 {
        queues.push(host.io_queue(&subsystem, controller, number, 16)?);
    }
    let [a, b, c] = &mut queues[..] else {
        panic!("three");
    };
    for round in 0..ROUNDS {
        // The old value at 0; the new values of both pairs at 512 and 1024, which differ from the second byte on.
        let now = host.memory.read(65536, 512)?;
        host.memory.write_from(0, &now)?;
        for (at, who) in [(512, 1), (1024, 2)] {
            let mut new = vec![who; 512];
            new[0] = round + 1;
            host.memory.write_from(at, &new)?;
        }
        let first = send(&mut host, a, 9, 0, 512)?;
        let second = send(&mut host, b, 9, 0, 1024)?;
        // A third queue writes the blocks after the pairs' block.
        let data = host.data(4096, 1024);
        let beside = host.send(c, part(io::WRITE, 0, 10, 2, data), &[])?;
        let (first, second) = (
            answers(&mut host, a, first)?,
            answers(&mut host, b, second)?,
        );
        assert_eq!(answers(&mut host, c, [beside])?, [DONE]);
        let won = [first, second].map(|one| one == [DONE, DONE]);
        assert!(won[0] != won[1], "{round}: {first:?} {second:?}");
        assert_eq!(block(&mut host, c, 9)?, round + 1);
        assert_eq!(
            host.memory.read(65536 + 1, 1)?,
            [if won[0] { 1 } else { 2 }]
        );
    }
    drop(host);
    world.stop()?;
    Ok(())
}

/// Commands that write the block of a pair wait for the end of the pair: Copy, which names the block in SLBA,
/// Deallocate, which names it in a list, and Write Zeroes.
#[test]
fn a_copy_and_a_deallocation_onto_the_block_of_a_pair_wait_until_it_is_written() -> Result<()> {
    const BLOCK: u64 = 9;
    let mut world = World::new(2, Source::Faulty(1 << 20), 9)?;
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let (_admin, controller) = host.controller(&subsystem)?;
    let mut pairs = host.io_queue(&subsystem, controller, 1, 16)?;
    let mut writers = Vec::new();
    for number in 2..=3 {
        writers.push(host.io_queue(&subsystem, controller, number, 16)?);
    }
    let faults = world.faults()?;
    // In host memory: the old value, and the pair's data. On the disk, at block 20: the data of Copy.
    host.memory.write_from(512, &[1; 512])?;
    host.memory.write_from(1024, &[2; 512])?;
    assert_eq!(host.write(&mut pairs, 20, 1, 1024, 512)?, DONE);
    let mut copy = command(io::COPY);
    (copy.nsid, copy.cdw10) = (1.into(), 9.into());
    host.memory.write_from(2048, &source(20, 1))?;
    copy.sgl = host.data(2048, 32);
    let mut deallocate = command(io::DATASET_MANAGEMENT);
    (deallocate.nsid, deallocate.cdw11) = (1.into(), 4.into());
    host.memory.write_from(4096, &range(BLOCK, 1))?;
    deallocate.sgl = host.data(4096, 16);
    let mut zero = transfer(io::WRITE_ZEROES, BLOCK, 1);
    zero.sgl = Sgl::keyed(0, 0, 0, false);
    for (sqe, content) in [(copy, 2), (deallocate, 0), (zero, 0)] {
        for writer in &mut writers {
            // Connect has overwritten the memory of the pair's data.
            host.memory.write_from(0, &[0; 512])?;
            host.memory.write_from(65536, &[0; 512])?;
            assert_eq!(host.write(writer, BLOCK, 1, 65536, 512)?, DONE);
            // The pair's read of the block is delayed until the orders change.
            let struck = faults.struck();
            faults.order(Some(Orders {
                of: Of::Reads,
                delay: LONGEST_DELAY,
                times: Some(1),
                ..Orders::default()
            }));
            let pair = send(&mut host, &mut pairs, BLOCK, 0, 512)?;
            while faults.struck() == struck {
                std::thread::yield_now();
            }
            let waits = host.send(writer, sqe, &[])?;
            for _ in 0..64 {
                let data = host.data(8192, 512);
                let read = host.send(writer, part(io::READ, 0, 30, 1, data), &[])?;
                let answer = host.response(writer)?;
                assert_eq!(answer.cid.get(), read, "{:#x} met no lock", sqe.opcode);
            }
            faults.order(None);
            assert_eq!(answers(&mut host, &mut pairs, pair)?, [DONE, DONE]);
            assert_eq!(answers(&mut host, writer, [waits])?, [DONE]);
            assert_eq!(
                block(&mut host, writer, BLOCK)?,
                content,
                "{:#x}",
                sqe.opcode
            );
        }
    }
    drop(host);
    world.stop()?;
    Ok(())
}

/// A worker ends although the disk of a pair hangs, for example because its port is removed. The block is unlocked:
/// a write that waits for it, and a later one, are executed by the worker of the other port.
#[test]
fn the_block_of_a_pair_is_unlocked_when_the_pairs_worker_has_ended() -> Result<()> {
    const BLOCK: u64 = 9;
    let mut world = World::new(1, Source::Faulty(1 << 20), 9)?;
    let (mut host, mut other) = (world.host()?, world.second_path()?);
    let subsystem = world.subsystem.clone();
    let (_admin, controller) = host.controller(&subsystem)?;
    let mut pairs = host.io_queue(&subsystem, controller, 1, 16)?;
    let (_admin, controller) = other.controller(&subsystem)?;
    let mut writer = other.io_queue(&subsystem, controller, 1, 16)?;
    let faults = world.faults()?;
    faults.order(Some(Orders {
        of: Of::Reads,
        delay: LONGEST_DELAY,
        ..Orders::default()
    }));
    send(&mut host, &mut pairs, BLOCK, 0, 512)?;
    while faults.struck() == 0 {
        std::thread::yield_now();
    }
    let data = other.data(0, 512);
    let waits = other.send(&mut writer, part(io::WRITE, 0, BLOCK, 1, data), &[])?;
    assert_eq!(other.write(&mut writer, BLOCK + 1, 1, 0, 512)?, DONE);
    world.target.stop_worker(0);
    while world.target.done().contains_key(&0) {
        std::thread::yield_now();
    }
    faults.order(None);
    assert_eq!(answers(&mut other, &mut writer, [waits])?, [DONE]);
    assert_eq!(other.write(&mut writer, BLOCK, 1, 0, 512)?, DONE);
    drop((host, other));
    let over = world.end()?;
    assert_eq!(over[0].ios_left, 1, "the Compare is at the disk");
    Ok(())
}
