//! Tests of Compare, and of compare and write.

use super::*;
use crate::disk::faults::Of;
use crate::nvme::command::{FUSE_FIRST, FUSE_SECOND};

const FAILED: Status = Status::FAILED_FUSED.dnr();

/// Sends a fused pair: block 9 is compared with bytes of value `old`, and written with bytes of value `new`.
fn pair(host: &mut Loop, old: u8, new: u8) -> [u16; 2] {
    host.host[..BLOCK].fill(old);
    host.host[BLOCK..2 * BLOCK].fill(new);
    let mut compare = transfer(opcode::COMPARE, 9, 1);
    let mut write = transfer(opcode::WRITE, 9, 1);
    compare.flags |= FUSE_FIRST;
    write.flags |= FUSE_SECOND;
    let first = host.send(compare, memory(0, BLOCK));
    let second = host.send(write, memory(BLOCK, BLOCK));
    [first.0, second.0]
}

fn answers(host: &mut Loop, sent: [u16; 2]) -> [Status; 2] {
    sent.map(|cid| host.answer(cid))
}

#[test]
fn a_comparison_tells_equal_blocks_from_others_also_behind_the_first_chunk() {
    for source in [Source::Memory(BYTES), Source::Null(BYTES)] {
        let mut host = Loop::new(source);
        let mut data = vec![0; 2 * BLOCK];
        host.host[..2 * BLOCK].copy_from_slice(&data);
        let sqe = transfer(opcode::COMPARE, 4, 2);
        assert_eq!(host.command(sqe, memory(0, 2 * BLOCK)), DONE);
        data[2 * BLOCK - 1] = 1;
        host.host[..2 * BLOCK].copy_from_slice(&data);
        let status = host.command(sqe, memory(0, 2 * BLOCK));
        assert_eq!(status, Status::COMPARE.dnr());
        host.assert_free();
    }
}

#[test]
fn a_pair_writes_what_it_found_equal_and_fails_as_a_whole_otherwise() {
    let mut host = Loop::new(Source::Memory(BYTES));
    let sent = pair(&mut host, 0, 1);
    assert_eq!(answers(&mut host, sent), [DONE, DONE]);
    assert_eq!(host.blocks(9, 1), [1]);
    let sent = pair(&mut host, 0, 2);
    assert_eq!(answers(&mut host, sent), [Status::COMPARE.dnr(), FAILED]);
    assert_eq!(host.blocks(9, 1), [1]);
    // This is the first of a pair, and no second follows.
    let mut compare = transfer(opcode::COMPARE, 9, 1);
    compare.flags |= FUSE_FIRST;
    let (alone, _) = host.send(compare, memory(0, BLOCK));
    assert_eq!(host.blocks(9, 1), [1]);
    assert_eq!(host.answer(alone), Status::MISSING_FUSED.dnr());
    host.assert_free();
}

/// A pair is executed when the data of both commands has arrived, whichever arrives first.
#[test]
fn a_pair_waits_for_the_data_of_both_in_either_order() {
    for is_reversed in [false, true] {
        let mut host = Loop::new(Source::Memory(BYTES));
        host.holds_fetches = true;
        let sent = pair(&mut host, 0, 1);
        host.run_once();
        assert!(host.answers.is_empty());
        if is_reversed {
            host.fetches.reverse();
        }
        host.fetch();
        assert_eq!(answers(&mut host, sent), [DONE, DONE], "{is_reversed}");
        host.holds_fetches = false;
        assert_eq!(host.blocks(9, 1), [1]);
        host.assert_free();
    }
}

/// While a pair is between its comparison and its write, a write to its block and a second pair wait. A write to the
/// next block does not.
#[test]
fn a_pair_keeps_writes_and_other_pairs_away_from_its_block_and_from_no_other() {
    let mut host = Loop::new(Source::Faulty(BYTES));
    let namespace = host.namespace();
    let faults = host.hold_next(Of::Reads);
    let first = pair(&mut host, 0, 1);
    host.run_once();
    assert_eq!(namespace.locks(), [9]);
    assert_eq!(host.write(10, &[3; BLOCK]), DONE);
    host.host[8192..8192 + BLOCK].fill(4);
    let write = transfer(opcode::WRITE, 9, 1);
    let (blocked, at) = host.send(write, memory(8192, BLOCK));
    assert_eq!(host.commands.ios[at as usize].state(), State::Blocked);
    let second = pair(&mut host, 1, 2);
    faults.order(None);
    assert_eq!(answers(&mut host, first), [DONE, DONE]);
    // The write has waited longer than the second pair, which then finds other content than it expects.
    assert_eq!(host.answer(blocked), DONE);
    assert_eq!(answers(&mut host, second), [Status::COMPARE.dnr(), FAILED]);
    assert_eq!(host.blocks(9, 1), [4]);
    assert_eq!(host.blocks(10, 1), [3]);
    assert_eq!(namespace.locks(), Vec::<u64>::new());
    host.assert_free();
}

/// If a disk already has a write to the block, a pair compares after that write.
#[test]
fn a_pair_waits_for_a_write_that_a_disk_has_already() {
    let mut host = Loop::new(Source::Faulty(BYTES));
    let faults = host.hold_next(Of::Writes);
    host.host[8192..8192 + BLOCK].fill(1);
    let (write, _) = host.send(transfer(opcode::WRITE, 9, 1), memory(8192, BLOCK));
    let sent = pair(&mut host, 1, 2);
    for _ in 0..100 {
        host.run_once();
    }
    assert_eq!(host.fences.len(), 1, "the lock is not passed");
    faults.order(None);
    assert_eq!(host.answer(write), DONE);
    assert_eq!(answers(&mut host, sent), [DONE, DONE]);
    assert_eq!(host.blocks(9, 1), [2]);
    host.assert_free();
}

/// If the namespace is removed between comparison and write, the write fails with Invalid Namespace, and the comparison
/// with Command Aborted due to Failed Fused Command.
#[test]
fn a_pair_whose_namespace_goes_after_the_comparison_names_the_write_as_the_cause() {
    let mut host = Loop::new(Source::Faulty(BYTES));
    let faults = host.hold_next(Of::Reads);
    let sent = pair(&mut host, 0, 1);
    host.run_once();
    host.remove_namespace();
    faults.order(None);
    assert_eq!(
        answers(&mut host, sent),
        [FAILED, Status::INVALID_NAMESPACE.dnr()]
    );
    host.assert_free();
}

/// A write that waits for a locked block is refused if its namespace is removed or replaced, and freed if its
/// connection ends.
#[test]
fn a_write_that_waits_for_a_block_ends_with_its_namespace_or_its_connection() {
    for (ends, is_replaced) in [(false, false), (false, true), (true, false)] {
        let mut host = Loop::new(Source::Faulty(BYTES));
        let faults = host.hold_next(Of::Reads);
        let sent = pair(&mut host, 0, 1);
        host.run_once();
        let write = transfer(opcode::WRITE, 9, 1);
        let blocked = [
            host.send(write, memory(8192, BLOCK)),
            host.send(write, memory(8192, BLOCK)),
        ];
        for (_, at) in blocked {
            assert_eq!(host.commands.ios[at as usize].state(), State::Blocked);
        }
        if ends {
            assert!(host.commands.orphan(blocked[0].1));
            host.carry_out(blocked[0].1, Do::Drop);
        }
        host.remove_namespace();
        if is_replaced {
            host.add_namespace(Source::Memory(BYTES));
        }
        faults.order(None);
        assert_eq!(
            answers(&mut host, sent),
            [FAILED, Status::INVALID_NAMESPACE.dnr()]
        );
        if !ends {
            assert_eq!(host.answer(blocked[0].0), Status::INVALID_NAMESPACE.dnr());
        }
        assert_eq!(host.answer(blocked[1].0), Status::INVALID_NAMESPACE.dnr());
        assert_eq!(host.commands.take_lost(), []);
        host.assert_free();
    }
}

/// If a connection ends while its pair waits for a lock, the lock is released.
#[test]
fn a_pair_whose_connection_ends_gives_its_lock_back() {
    let mut host = Loop::new(Source::Memory(BYTES));
    let _ = pair(&mut host, 0, 1);
    let namespace = host.namespace();
    assert_eq!(namespace.locks(), [9]);
    for at in 0..COMMANDS {
        if host.commands.orphan(at) {
            host.carry_out(at, Do::Drop);
        }
    }
    host.run_once();
    assert_eq!(namespace.locks(), Vec::<u64>::new());
    assert!(host.answers.is_empty());
    host.assert_free();
    assert_eq!(host.blocks(9, 1), [0]);
}
