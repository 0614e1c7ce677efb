//! Reading and writing.

use anyhow::Result;
use nvmeof::disk::Source;
use nvmeof::nvme::Status;
use nvmeof::nvme::identify::cns;

use crate::world::World;

/// Bytes that say where they are.
fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
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
    // One behind the end; the longest and one more; more data than blocks.
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
