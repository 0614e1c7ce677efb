//! Disks that fail.

use std::os::fd::AsRawFd;
use std::path::PathBuf;

use anyhow::Result;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nvmeof::disk::Source;
use nvmeof::disk::faults::{Of, Orders};
use nvmeof::nvme::Status;
use nvmeof::nvme::command::io;
use nvmeof::nvme::sgl::Sgl;

use crate::host::{command, transfer};
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
    // The file is truncated under the target.
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
    // The error log has each failure, the last one first; the status is at byte 12.
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

/// Bit 25 of dword 12 is DEAC, and bit 30 is FUA: the zeros must be on the medium before the response.
#[test]
fn write_zeroes_that_is_forced_ends_with_a_flush_and_fails_with_it() -> Result<()> {
    const MAY_DEALLOCATE: u32 = 1 << 25;
    const FORCED: u32 = 1 << 30;
    let mut world = World::new(1, Source::Faulty(1 << 20), 9)?;
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let (_admin, controller) = host.controller(&subsystem)?;
    let mut queue = host.io_queue(&subsystem, controller, 1, 16)?;
    let faults = world.faults()?;
    let none = Sgl::keyed(0, 0, 0, false);
    let failed = Orders {
        of: Of::Flushes,
        error: Some(Errno::EIO),
        ..Orders::default()
    };
    for (flags, flushes, with_fault) in [
        (0, 0, Status::SUCCESS),
        (MAY_DEALLOCATE, 0, Status::SUCCESS),
        (FORCED, 1, Status::WRITE_FAULT.dnr()),
        (FORCED | MAY_DEALLOCATE, 1, Status::WRITE_FAULT.dnr()),
    ] {
        let mut zero = transfer(io::WRITE_ZEROES, 8, 1);
        zero.cdw12 = (zero.cdw12.get() | flags).into();
        for (orders, wanted) in [(Some(failed), with_fault), (None, Status::SUCCESS)] {
            host.memory.write_from(0, &[0x5a; 512])?;
            assert_eq!(host.write(&mut queue, 8, 1, 0, 512)?, Status::SUCCESS);
            let struck = faults.struck();
            faults.order(orders);
            assert_eq!(host.status(&mut queue, zero, none)?, wanted, "{flags:#x}");
            let flushes = if orders.is_some() { flushes } else { 0 };
            assert_eq!(faults.struck() - struck, flushes, "{flags:#x}");
            faults.order(None);
            assert_eq!(host.read(&mut queue, 8, 1, 0, 512)?, Status::SUCCESS);
            assert_eq!(host.memory.read(0, 512)?, [0; 512], "{flags:#x}");
        }
    }
    drop(host);
    world.stop()?;
    Ok(())
}

#[test]
fn each_error_of_a_disk_is_told_as_what_it_is_and_the_next_command_is_none_the_worse() -> Result<()>
{
    let mut world = World::new(1, Source::Faulty(1 << 20), 9)?;
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let (_admin, controller) = host.controller(&subsystem)?;
    let mut queue = host.io_queue(&subsystem, controller, 1, 16)?;
    let faults = world.faults()?;
    let none = Sgl::keyed(0, 0, 0, false);
    let mut struck = 0;
    let (read, write) = (Status::UNRECOVERED_READ.dnr(), Status::WRITE_FAULT.dnr());
    let (protected, again) = (Status::WRITE_PROTECTED.dnr(), Status::INTERNAL);
    for (error, of_read, of_write) in [
        (Errno::EIO, read, write),
        (Errno::ENODATA, read, write),
        (Errno::ENODEV, read, write),
        (
            Errno::ENOSPC,
            Status::CAPACITY.dnr(),
            Status::CAPACITY.dnr(),
        ),
        (Errno::EROFS, protected, protected),
        (Errno::ENOMEM, again, again),
    ] {
        let data = host.data(0, 512);
        let mut flush = command(io::FLUSH);
        flush.nsid = 1.into();
        for (of, sqe, data, wanted) in [
            (Of::Reads, transfer(io::READ, 8, 1), data, of_read),
            (Of::Reads, transfer(io::COMPARE, 8, 1), data, of_read),
            (Of::Reads, transfer(io::VERIFY, 8, 1), none, of_read),
            (Of::Writes, transfer(io::WRITE, 8, 1), data, of_write),
            (Of::Writes, transfer(io::WRITE_ZEROES, 8, 1), none, of_write),
            (Of::Flushes, flush, none, of_write),
        ] {
            faults.order(Some(Orders {
                of,
                error: Some(error),
                times: Some(1),
                ..Orders::default()
            }));
            let said = host.status(&mut queue, sqe, data)?;
            assert_eq!(said, wanted, "{error} of {:#x}", sqe.opcode);
            struck += 1;
            assert_eq!(host.read(&mut queue, 8, 1, 0, 512)?, Status::SUCCESS);
        }
    }
    assert_eq!(faults.struck(), struck);
    drop(host);
    world.stop()?;
    Ok(())
}
