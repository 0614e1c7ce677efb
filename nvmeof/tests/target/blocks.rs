//! Reads and writes.

use anyhow::Result;
use nvmeof::disk::Source;
use nvmeof::model::LARGEST_TRANSFER_SHIFT;
use nvmeof::nvme::Status;
use nvmeof::nvme::command::io;
use nvmeof::nvme::identify::cns;
use nvmeof::nvme::sgl::Sgl;
use nvmeof::serve::WorkerConfig;
use zerocopy::IntoBytes;

use crate::host::{Host, Queue, command, transfer};
use crate::world::World;

/// Returns bytes that depend on their offset.
pub fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at / 256 + at) % 256).expect("a byte");
    (0..bytes).map(|at| byte(at) ^ seed).collect()
}

#[test]
fn what_is_written_is_read_from_a_block_to_the_longest_transfer() -> Result<()> {
    let mut world = World::new(1, Source::Memory(4 << 20), 9)?;
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let (mut admin, controller) = host.controller(&subsystem)?;
    let (status, said) = host.identify(&mut admin, cns::NAMESPACE, 1)?;
    assert_eq!(
        (status, &said[..8]),
        (Status::SUCCESS, &[0, 0x20, 0, 0, 0, 0, 0, 0][..])
    );
    let mut queue = host.io_queue(&subsystem, controller, 1, 64)?;
    for (first, blocks) in [(0, 1), (1, 7), (8, 8), (100, 9), (4000, 256), (8191, 1)] {
        let length = blocks * 512;
        let bytes = length as usize;
        let written = pattern(0x5a, bytes);
        host.memory.write_from(0, &written)?;
        host.memory.write_from(bytes, &vec![0; bytes])?;
        assert_eq!(
            host.write(&mut queue, first, blocks, 0, length)?,
            Status::SUCCESS
        );
        assert_eq!(
            host.read(&mut queue, first, blocks, bytes, length)?,
            Status::SUCCESS
        );
        assert_eq!(
            host.memory.read(bytes, bytes)?,
            written,
            "{blocks} blocks at {first}"
        );
    }
    // Blocks beyond the end, one block more than the longest transfer, and more data than blocks are refused.
    assert_eq!(
        host.read(&mut queue, 8192, 1, 0, 512)?,
        Status::LBA_RANGE.dnr()
    );
    assert_eq!(
        host.read(&mut queue, 8191, 2, 0, 1024)?,
        Status::LBA_RANGE.dnr()
    );
    assert_eq!(
        host.read(&mut queue, u64::MAX, 1, 0, 512)?,
        Status::LBA_RANGE.dnr()
    );
    assert_eq!(
        host.read(&mut queue, 0, 257, 0, 257 * 512)?,
        Status::INVALID_FIELD.dnr()
    );
    assert_eq!(
        host.write(&mut queue, 0, 1, 0, 1024)?,
        Status::SGL_LENGTH.dnr()
    );
    drop(host);
    let over = world.stop()?;
    assert_eq!(over[0].connections, 2);
    Ok(())
}

/// Makes a file of this size as a disk, before the simulated target exists.
fn file(bytes: u64) -> Result<(tempfile::TempDir, Source)> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("disk");
    std::fs::File::create(&path)?.set_len(bytes)?;
    Ok((folder, Source::File(path)))
}

/// Returns a range of Dataset Management.
pub fn range(first: u64, blocks: u32) -> Vec<u8> {
    let range = nvmeof::nvme::command::Range {
        attributes: 0.into(),
        blocks: blocks.into(),
        first: first.into(),
    };
    range.as_bytes().to_vec()
}

/// Returns a source range of Copy: first block, and number of blocks less one (bytes 8 and 16 of 32).
pub fn source(first: u8, blocks: u16) -> [u8; 32] {
    let mut range = [0; 32];
    range[8] = first;
    range[16] = u8::try_from(blocks - 1).expect("256 at most");
    range
}

#[test]
fn every_command_of_the_set_does_what_it_says_and_answers_with_its_status() -> Result<()> {
    let (_folder, disk) = file(1 << 20)?;
    for disk in [disk, Source::Memory(1 << 20)] {
        let mut world = World::new(1, disk, 9)?;
        let mut host = world.host()?;
        let subsystem = world.subsystem.clone();
        let (_admin, controller) = host.controller(&subsystem)?;
        let mut queue = host.io_queue(&subsystem, controller, 1, 64)?;
        let queue = &mut queue;
        const SPARE: usize = 1 << 19;
        let good = Status::SUCCESS;
        let past = Status::LBA_RANGE.dnr();
        let blocks = |host: &mut Host, queue: &mut Queue, first, count: u32| -> Result<Vec<u8>> {
            host.memory
                .write_from(SPARE, &vec![0xee; count as usize * 512])?;
            let status = host.read(queue, first, count, SPARE, count * 512)?;
            anyhow::ensure!(status.is_success(), "{status}");
            Ok(host.memory.read(SPARE, count as usize * 512)?)
        };
        let written = pattern(1, 64 * 512);
        host.memory.write_from(0, &written)?;
        assert_eq!(host.write(queue, 0, 64, 0, 64 * 512)?, good);
        // Write Zeroes, with and without permission to deallocate.
        let none = Sgl::keyed(0, 0, 0, false);
        for (first, flags) in [(1, 0), (5, 1 << 25)] {
            let mut sqe = transfer(io::WRITE_ZEROES, first, 2);
            sqe.cdw12 = (sqe.cdw12.get() | flags).into();
            assert_eq!(host.status(queue, sqe, none)?, good);
        }
        assert_eq!(
            host.status(queue, transfer(io::WRITE_ZEROES, 2047, 2), none)?,
            past
        );
        let mut now = written.clone();
        now[512..3 * 512].fill(0);
        now[5 * 512..7 * 512].fill(0);
        assert_eq!(blocks(&mut host, queue, 0, 64)?, now);
        // Deallocate takes two ranges. Hints have no effect. If a range exceeds the end, nothing changes.
        let mut list = range(8, 8);
        list.extend(range(32, 1));
        host.memory.write_from(SPARE, &list)?;
        let data = host.data(SPARE, 4096);
        let deallocate = |ranges: u32, attribute: u32| {
            let mut sqe = command(io::DATASET_MANAGEMENT);
            sqe.nsid = 1.into();
            (sqe.cdw10, sqe.cdw11) = ((ranges - 1).into(), attribute.into());
            sqe
        };
        assert_eq!(host.status(queue, deallocate(2, 3), data)?, good);
        assert_eq!(blocks(&mut host, queue, 0, 64)?, now);
        host.memory.write_from(SPARE, &list)?;
        assert_eq!(host.status(queue, deallocate(2, 4), data)?, good);
        now[8 * 512..16 * 512].fill(0);
        now[32 * 512..33 * 512].fill(0);
        assert_eq!(blocks(&mut host, queue, 0, 64)?, now);
        list.extend(range(2048, 1));
        host.memory.write_from(SPARE, &list)?;
        assert_eq!(host.status(queue, deallocate(3, 4), data)?, past);
        let short = host.data(SPARE, 32);
        assert_eq!(
            host.status(queue, deallocate(3, 4), short)?,
            Status::SGL_LENGTH.dnr()
        );
        // Compare, and Verify.
        host.memory.write_from(0, &now)?;
        let data = host.data(0, 64 * 512);
        assert_eq!(
            host.status(queue, transfer(io::COMPARE, 0, 64), data)?,
            good
        );
        host.memory
            .write_from(64 * 512 - 1, &[!now[64 * 512 - 1]])?;
        assert_eq!(
            host.status(queue, transfer(io::COMPARE, 0, 64), data)?,
            Status::COMPARE.dnr()
        );
        assert_eq!(
            host.status(queue, transfer(io::VERIFY, 0, 2048), none)?,
            good
        );
        assert_eq!(
            host.status(queue, transfer(io::VERIFY, 1, 2048), none)?,
            past
        );
        // Copy of two source ranges, the second within the first: the data of both is written to consecutive blocks.
        let copy = |ranges: u32, first: u32| {
            let mut sqe = command(io::COPY);
            sqe.nsid = 1.into();
            (sqe.cdw10, sqe.cdw12) = (first.into(), (ranges - 1).into());
            sqe
        };
        let list = [source(16, 10), source(20, 3)].concat();
        host.memory.write_from(SPARE, &list)?;
        let data = host.data(SPARE, 64);
        assert_eq!(host.status(queue, copy(2, 100), data)?, good);
        let expected = [&now[16 * 512..26 * 512], &now[20 * 512..23 * 512]].concat();
        assert_eq!(blocks(&mut host, queue, 100, 13)?, expected);
        host.memory.write_from(SPARE, &list)?;
        assert_eq!(host.status(queue, copy(2, 2040), data)?, past);
        assert_eq!(
            host.status(queue, copy(129, 100), data)?,
            Status::COPY_SIZE.dnr()
        );
        let mut other = copy(2, 100);
        other.cdw12 = (other.cdw12.get() | 1 << 8).into();
        assert_eq!(
            host.status(queue, other, data)?,
            Status::INVALID_FIELD.dnr(),
            "format 1"
        );
        // Flush of one namespace, of all, and of a missing one.
        for (nsid, status) in [
            (1, good),
            (u32::MAX, good),
            (2, Status::INVALID_NAMESPACE.dnr()),
        ] {
            let mut sqe = command(io::FLUSH);
            sqe.nsid = nsid.into();
            assert_eq!(host.status(queue, sqe, none)?, status, "{nsid:#x}");
        }
        // A Write with in-capsule data succeeds, also with FUA. In-capsule data is refused if the capsule has fewer
        // bytes, or if the command is a Read.
        let mut sqe = transfer(io::WRITE, 200, 1);
        sqe.cdw12 = (sqe.cdw12.get() | 1 << 30).into();
        sqe.sgl = Sgl::in_capsule(512);
        host.send(queue, sqe, &written[..512])?;
        assert_eq!(host.response(queue)?.status(), good);
        assert_eq!(blocks(&mut host, queue, 200, 1)?, written[..512]);
        host.send(queue, sqe, &written[..256])?;
        assert_eq!(host.response(queue)?.status(), Status::SGL_OFFSET.dnr());
        let mut sqe = transfer(io::READ, 200, 1);
        sqe.sgl = Sgl::in_capsule(512);
        host.send(queue, sqe, &written[..512])?;
        assert_eq!(host.response(queue)?.status(), Status::INVALID_FIELD.dnr());
        for opcode in [0x04, 0x18, 0x79, 0xff] {
            assert_eq!(
                host.status(queue, transfer(opcode, 0, 1), none)?,
                Status::INVALID_OPCODE.dnr()
            );
        }
        drop(host);
        world.stop()?;
    }
    Ok(())
}

/// MDTS is at byte 77 of Identify Controller, in units of 4 KiB (CAP.MPSMIN), as a power of two. A Compare needs two
/// buffers, and a Verify and a Copy take steps of a buffer each.
#[test]
fn a_port_can_have_transfers_of_a_mebibyte() -> Result<()> {
    const MOST: u32 = 1 << 20;
    for source in [Source::Memory(8 << 20), Source::Null(8 << 20)] {
        let is_null = matches!(source, Source::Null(_));
        let config = WorkerConfig {
            buffers: 3,
            transfer_shift: LARGEST_TRANSFER_SHIFT,
            ..WorkerConfig::default()
        };
        let mut world = World::with(1, source, 9, config)?;
        let mut host = world.host()?;
        let subsystem = world.subsystem.clone();
        let (mut admin, controller) = host.controller(&subsystem)?;
        let (_, said) = host.identify(&mut admin, cns::CONTROLLER, 0)?;
        assert_eq!(4096 << said[77], MOST);
        let mut queue = host.io_queue(&subsystem, controller, 1, 64)?;
        let bytes = MOST as usize;
        let written = if is_null {
            vec![0; bytes]
        } else {
            pattern(0x3c, bytes)
        };
        host.memory.write_from(0, &written)?;
        let done = Status::SUCCESS;
        assert_eq!(host.write(&mut queue, 2048, 2048, 0, MOST)?, done);
        let data = host.data(0, MOST);
        let compared = host.status(&mut queue, transfer(io::COMPARE, 2048, 2048), data)?;
        assert_eq!(compared, done);
        let none = Sgl::keyed(0, 0, 0, false);
        let verified = host.status(&mut queue, transfer(io::VERIFY, 0, 16384), none)?;
        assert_eq!(verified, done);
        host.memory.write_from(0, &vec![0xff; bytes])?;
        assert_eq!(host.read(&mut queue, 2048, 2048, 0, MOST)?, done);
        assert_eq!(host.memory.read(0, bytes)?, written);
        // One block more than MDTS.
        let longer = host.data(0, MOST);
        let refused = host.status(&mut queue, transfer(io::READ, 0, 2049), longer)?;
        assert_eq!(refused, Status::INVALID_FIELD.dnr());
        drop(host);
        world.stop()?;
    }
    Ok(())
}
