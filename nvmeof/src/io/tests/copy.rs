//! Tests of Copy.

use super::*;
use crate::disk::faults::Of;

/// Makes a source range: the first block is at byte 8, the number of blocks less one at byte 16 (NVM Command Set,
/// "Copy", format 0).
fn range(first: u8, blocks: u8) -> [u8; 32] {
    let mut range = [0; 32];
    (range[8], range[16]) = (first, blocks - 1);
    range
}

fn copy(to: u64, ranges: u32) -> Sqe {
    let mut sqe = transfer(opcode::COPY, to, 1);
    sqe.cdw12 = (ranges - 1).into();
    sqe
}

/// Makes a [`Loop`] on whose disk blocks 8 to 23 are filled with their own numbers.
fn numbered(source: Source) -> Loop {
    let mut host = Loop::new(source);
    for block in 8..24 {
        assert_eq!(host.write(block.into(), &[block; BLOCK]), DONE);
    }
    host
}

#[test]
fn a_copy_copies_the_ranges_that_were_checked_whatever_its_memory_holds_later() {
    let mut host = numbered(Source::Faulty(BYTES));
    let faults = host.hold_next(Of::Reads);
    assert_eq!(host.write(64, &[0xee; 8 * BLOCK]), DONE);
    host.host[..32].copy_from_slice(&range(8, 1));
    let (cid, at) = host.send(copy(64, 1), memory(0, 32));
    assert_eq!(host.commands.ios[at as usize].state(), State::Executing);
    // The range was checked, and its block is being read. Now the memory changes to a range of four blocks. If the new
    // range were used, the rest of the buffer, with data of other commands, would be written after the one block.
    let (buffer, place) = host.commands.memory.at(DataBuffer::Page(at));
    buffer.write_bytes(place, &range(16, 4));
    faults.order(None);
    assert_eq!(host.answer(cid), DONE);
    let e = 0xee;
    assert_eq!(host.blocks(64, 8), [8, e, e, e, e, e, e, e]);
    host.assert_free();
}

#[test]
fn a_copy_puts_its_ranges_behind_each_other_and_refuses_those_that_reach_outside() {
    let mut host = numbered(Source::Memory(BYTES));
    host.host[..64].copy_from_slice(&[range(20, 3), range(8, 2)].concat());
    assert_eq!(host.command(copy(64, 2), memory(0, 64)), DONE);
    assert_eq!(host.blocks(63, 7), [0, 20, 21, 22, 8, 9, 0]);
    let last = u8::try_from(BYTES / 512 / 8 - 1).expect("255");
    let mut outside = range(0, 2);
    // The range begins at block 2,047, which is the last one.
    (outside[8], outside[9]) = (last, 7);
    host.host[..64].copy_from_slice(&[range(8, 1), outside].concat());
    let status = host.command(copy(128, 2), memory(0, 64));
    assert_eq!(status, Status::LBA_RANGE.dnr());
    assert_eq!(host.blocks(128, 2), [0, 0]);
    let status = host.command(copy(128, 129), memory(0, 129 * 32));
    assert_eq!(status, Status::COPY_SIZE.dnr());
    host.assert_free();
}

/// Each piece of a Copy, of up to 128 KiB, is checked, so a replaced namespace is not written.
#[test]
fn a_copy_does_not_go_on_to_another_namespace_of_the_same_number() {
    let mut host = numbered(Source::Faulty(BYTES));
    let before = host.namespace();
    let faults = host.hold_next(Of::Reads);
    host.host[..32].copy_from_slice(&range(8, 1));
    let (cid, _) = host.send(copy(64, 1), memory(0, 32));
    host.remove_namespace();
    let now = host.add_namespace(Source::Memory(BYTES));
    faults.order(None);
    assert_eq!(host.answer(cid), Status::INVALID_NAMESPACE.dnr());
    assert_eq!(host.blocks(64, 1), [0]);
    assert_ne!(before.serial(), now.serial());
    host.assert_free();
}
