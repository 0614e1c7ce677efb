//! Tests of the range checks of commands, at the receive and at the execution.

use super::*;
use crate::nvme::log::Access;

/// Number of blocks of the disk.
const END: u64 = BYTES / BLOCK as u64;

#[test]
fn a_command_reaches_the_last_block_and_none_behind_it() {
    let mut host = Loop::new(Source::Memory(BYTES));
    assert_eq!(host.write(END - 1, &[5; BLOCK]), DONE);
    assert_eq!(host.blocks(END - 2, 2), [0, 5]);
    for (opcode, bytes) in [
        (opcode::READ, 2 * BLOCK),
        (opcode::WRITE, 2 * BLOCK),
        (opcode::COMPARE, 2 * BLOCK),
        (opcode::WRITE_ZEROES, 0),
        (opcode::VERIFY, 0),
    ] {
        let status = host.command(transfer(opcode, END - 1, 2), memory(0, bytes));
        assert_eq!(status, Status::LBA_RANGE.dnr(), "{opcode:#04x}");
    }
    // These descriptors have another length than the blocks.
    for bytes in [0, BLOCK, 3 * BLOCK] {
        let status = host.command(transfer(opcode::READ, 0, 2), memory(0, bytes));
        assert_eq!(status, Status::SGL_LENGTH.dnr(), "{bytes}");
    }
    host.assert_free();
}

/// Returns a range as it is in the data of a deallocation: attributes, number of blocks, and first block (NVM Command
/// Set, "Dataset Management").
fn range(first: u64, blocks: u32) -> [u8; 16] {
    let mut range = [0; 16];
    range[4..8].copy_from_slice(&zerocopy::little_endian::U32::new(blocks).to_bytes());
    range[8..].copy_from_slice(&zerocopy::little_endian::U64::new(first).to_bytes());
    range
}

fn deallocation(ranges: u32) -> Sqe {
    let mut sqe = command(opcode::DATASET_MANAGEMENT);
    (sqe.cdw10, sqe.cdw11) = ((ranges - 1).into(), 4.into());
    sqe
}

#[test]
fn a_deallocation_checks_all_its_ranges_before_it_begins() {
    let mut host = Loop::new(Source::Memory(BYTES));
    assert_eq!(host.write(4, &[5; 2 * BLOCK]), DONE);
    let sqe = deallocation(2);
    host.host[..32].copy_from_slice(&[range(4, 1), range(END, 1)].concat());
    let status = host.command(sqe, memory(0, 32));
    assert_eq!(status, Status::LBA_RANGE.dnr());
    assert_eq!(host.blocks(4, 2), [5, 5]);
    host.host[..32].copy_from_slice(&[range(4, 1), range(END, 0)].concat());
    assert_eq!(host.command(sqe, memory(0, 32)), DONE);
    assert_eq!(host.blocks(4, 2), [0, 5]);
    host.assert_free();
}

/// A write is refused if its namespace is removed, replaced or made inaccessible before the data arrives. It is refused
/// by a replacement of any size, since the data belongs to the former namespace.
#[test]
fn a_write_is_checked_again_when_its_data_has_come() {
    type Change = fn(&mut Loop);
    let changes: [(Change, Status); 4] = [
        (
            |host| host.remove_namespace(),
            Status::INVALID_NAMESPACE.dnr(),
        ),
        (
            |host| {
                let set = host.model.set_access(1, 1, Access::Inaccessible);
                set.expect("a group");
            },
            Status::ANA_INACCESSIBLE,
        ),
        (
            |host| {
                host.remove_namespace();
                host.add_namespace(Source::Memory(BLOCK as u64));
            },
            Status::INVALID_NAMESPACE.dnr(),
        ),
        (
            |host| {
                host.remove_namespace();
                host.add_namespace(Source::Memory(BYTES));
            },
            Status::INVALID_NAMESPACE.dnr(),
        ),
    ];
    for (change, status) in changes {
        let mut host = Loop::new(Source::Memory(BYTES));
        host.holds_fetches = true;
        let (cid, _) = host.send(transfer(opcode::WRITE, 4, 1), memory(0, BLOCK));
        change(&mut host);
        host.fetch();
        assert_eq!(host.answer(cid), status);
        host.assert_free();
    }
}

/// The blocks of a null disk read as zeros, whatever the command's memory held before.
#[test]
fn a_read_of_a_null_disk_gives_zeros() {
    for bytes in [BLOCK, 32 * BLOCK] {
        let mut host = Loop::new(Source::Null(BYTES));
        host.host[..bytes].fill(0xee);
        let blocks = u32::try_from(bytes / BLOCK).expect("few");
        let write = transfer(opcode::WRITE, 0, blocks);
        assert_eq!(host.command(write, memory(0, bytes)), DONE);
        assert_eq!(host.read(0, blocks), vec![0; bytes]);
        host.assert_free();
    }
}

#[test]
fn commands_wait_for_buffers_and_go_on_in_order() {
    let mut host = Loop::new(Source::Memory(BYTES));
    host.holds_fetches = true;
    let bytes = 16 * BLOCK;
    let sent: Vec<_> = (0..12)
        .map(|number| {
            let write = transfer(opcode::WRITE, 16 * number, 16);
            host.send(write, memory(0, bytes))
        })
        .collect();
    let waiting = sent
        .iter()
        .filter(|(_, at)| host.commands.ios[*at as usize].state() == State::NeedBuffer);
    assert_ne!(waiting.count(), 0);
    for at in 0..sent.len() {
        host.fetch();
        assert_eq!(host.answer(sent[at].0), DONE);
        // Commands behind the first one that waits for a buffer are not answered.
        let states: Vec<State> = sent[at..]
            .iter()
            .map(|(_, number)| host.commands.ios[*number as usize].state())
            .collect();
        let first_waiting = states.iter().position(|state| *state == State::NeedBuffer);
        let from = first_waiting.unwrap_or(states.len());
        assert!(
            states[from..]
                .iter()
                .all(|state| *state == State::NeedBuffer),
            "{states:?}"
        );
    }
    host.assert_free();
}

/// A disk that hangs would otherwise keep many operations of one command.
#[test]
fn a_deallocation_has_one_operation_at_the_disk_at_a_time() {
    let mut host = Loop::new(Source::Faulty(BYTES));
    assert_eq!(host.write(0, &[5; 8 * BLOCK]), DONE);
    let faults = host.hold_next(Of::Writes);
    host.host[..48].copy_from_slice(&[range(0, 2), range(3, 1), range(6, 2)].concat());
    let (cid, at) = host.send(deallocation(3), memory(0, 48));
    host.run_once();
    let io = &host.commands.ios[at as usize];
    assert_eq!((io.state(), io.pending), (State::Executing, 1));
    assert_eq!(host.blocks(2, 6), [5; 6]);
    faults.order(None);
    assert_eq!(host.answer(cid), DONE);
    assert_eq!(host.blocks(0, 8), [0, 0, 5, 0, 5, 5, 0, 0]);
    host.assert_free();
}

/// If the namespace changes between two ranges, the command fails, and the ranges that are left stay as they are.
#[test]
fn each_range_of_a_deallocation_is_checked_when_its_turn_comes() {
    type Change = fn(&mut Loop);
    let changes: [(Change, Status); 2] = [
        (
            |host| {
                host.remove_namespace();
                host.add_namespace(Source::Memory(BYTES));
            },
            Status::INVALID_NAMESPACE.dnr(),
        ),
        (
            |host| {
                let set = host.model.set_access(1, 1, Access::Inaccessible);
                set.expect("a group");
            },
            Status::ANA_INACCESSIBLE,
        ),
    ];
    for (change, status) in changes {
        let mut host = Loop::new(Source::Faulty(BYTES));
        assert_eq!(host.write(0, &[5; 8 * BLOCK]), DONE);
        let faults = host.hold_next(Of::Writes);
        host.host[..32].copy_from_slice(&[range(0, 1), range(4, 1)].concat());
        let (cid, _) = host.send(deallocation(2), memory(0, 32));
        host.run_once();
        change(&mut host);
        faults.order(None);
        assert_eq!(host.answer(cid), status);
        if status == Status::ANA_INACCESSIBLE {
            let set = host.model.set_access(1, 1, Access::Optimized);
            set.expect("a group");
            assert_eq!(host.blocks(0, 8), [0, 5, 5, 5, 5, 5, 5, 5]);
        }
        host.assert_free();
    }
}

/// A write that waits for a buffer belongs to the namespace at its arrival.
#[test]
fn writes_that_wait_for_buffers_do_not_reach_a_namespace_that_replaced_theirs() {
    let mut host = Loop::new(Source::Memory(BYTES));
    host.holds_fetches = true;
    let sent: Vec<_> = (0..12)
        .map(|number| {
            host.send(
                transfer(opcode::WRITE, 16 * number, 16),
                memory(0, 16 * BLOCK),
            )
        })
        .collect();
    let (_, last) = sent[11];
    assert_eq!(host.commands.ios[last as usize].state(), State::NeedBuffer);
    host.remove_namespace();
    host.add_namespace(Source::Memory(BYTES));
    for (cid, _) in sent {
        host.run_once();
        host.fetch();
        assert_eq!(host.answer(cid), Status::INVALID_NAMESPACE.dnr());
    }
    host.assert_free();
}

#[test]
fn a_flush_and_a_verification_are_done_and_an_unknown_command_is_refused() {
    let mut host = Loop::new(Source::Memory(BYTES));
    assert_eq!(host.command(command(opcode::FLUSH), no_data()), DONE);
    let mut all = command(opcode::FLUSH);
    all.nsid = u32::MAX.into();
    assert_eq!(host.command(all, no_data()), DONE);
    let verify = transfer(opcode::VERIFY, 0, 1024);
    assert_eq!(host.command(verify, no_data()), DONE);
    let status = host.command(command(0xc0), no_data());
    assert_eq!(status, Status::INVALID_OPCODE.dnr());
    host.assert_free();
}
