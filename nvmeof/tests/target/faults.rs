//! Disks that fail.

use std::os::fd::AsRawFd;
use std::path::PathBuf;

use anyhow::Result;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nvmeof::disk::Source;
use nvmeof::nvme::Status;
use nvmeof::nvme::command::io;
use nvmeof::nvme::sgl::Sgl;

use crate::host::transfer;
use crate::world::World;

#[test]
fn a_file_that_becomes_shorter_ends_where_it_ends_and_one_that_is_sealed_takes_nothing()
-> Result<()> {
    let memory = memfd_create(c"disk", MFdFlags::MFD_ALLOW_SEALING)?;
    let file = std::fs::File::from(memory);
    file.set_len(1 << 20)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let mut world = World::new(1, Source::File(path), 9)?;
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let (mut admin, controller) = host.controller(&subsystem)?;
    let mut queue = host.io_queue(&subsystem, controller, 1, 16)?;
    let none = Sgl::keyed(0, 0, 0, false);
    assert_eq!(host.write(&mut queue, 1024, 8, 0, 4096)?, Status::SUCCESS);
    // Under way: nobody has told the target.
    file.set_len(1 << 19)?;
    let past = Status::LBA_RANGE.dnr();
    assert_eq!(host.read(&mut queue, 1023, 2, 0, 1024)?, past);
    let data = host.data(0, 1024);
    assert_eq!(
        host.status(&mut queue, transfer(io::COMPARE, 1024, 2), data)?,
        past
    );
    assert_eq!(
        host.status(&mut queue, transfer(io::VERIFY, 0, 2048), none)?,
        past
    );
    assert_eq!(host.read(&mut queue, 1022, 2, 0, 1024)?, Status::SUCCESS);
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_FUTURE_WRITE))?;
    let refused = Status::WRITE_PROTECTED.dnr();
    assert_eq!(host.write(&mut queue, 0, 1, 0, 512)?, refused);
    assert_eq!(
        host.status(&mut queue, transfer(io::WRITE_ZEROES, 0, 1), none)?,
        refused
    );
    // Each is in the error log, the last one first: status at byte 12.
    let (status, log) = host.log(&mut admin, 1, 64 * 5)?;
    assert_eq!(status, Status::SUCCESS);
    let field = |entry: &[u8]| u16::from(entry[12]) | u16::from(entry[13]) << 8;
    let codes: Vec<u16> = log
        .chunks(64)
        .map(|entry| field(entry) >> 1 & 0x7ff)
        .collect();
    assert_eq!(codes, [0x20, 0x20, 0x80, 0x80, 0x80]);
    drop(host);
    world.stop()?;
    Ok(())
}
