//! Reservations: two hosts, and a namespace that one of them reserves.

use anyhow::Result;
use nvmeof::disk::Source;
use nvmeof::disk::faults::{LONGEST_DELAY, Of, Orders};
use nvmeof::nvme::command::{admin, io};
use nvmeof::nvme::{Sqe, Status};

use crate::host::{Host, Queue, command, transfer};
use crate::world::World;

const CONFLICT: Status = Status::RESERVATION.dnr();

/// Sends a reservation command with its keys; returns its status.
pub fn reserve(
    host: &mut Host,
    queue: &mut Queue,
    opcode: u8,
    dword: u32,
    keys: [u8; 2],
) -> Result<Status> {
    let mut data = [0; 16];
    (data[0], data[8]) = (keys[0], keys[1]);
    host.memory.write_from(0, &data)?;
    let mut sqe: Sqe = command(opcode);
    sqe.nsid = 1.into();
    sqe.cdw10 = dword.into();
    let bytes = if opcode == io::RESERVATION_RELEASE {
        8
    } else {
        16
    };
    let data = host.data(0, bytes);
    host.status(queue, sqe, data)
}

#[test]
fn a_host_that_holds_no_reservation_meets_a_conflict_and_is_told_when_it_ends() -> Result<()> {
    const DONE: Status = Status::SUCCESS;
    let mut world = World::new(1, Source::Memory(1 << 20), 9)?;
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let (_first, controller) = host.controller(&subsystem)?;
    let mut a = host.io_queue(&subsystem, controller, 1, 16)?;
    host.id = [0x22; 16];
    let (mut second, controller) = host.controller(&subsystem)?;
    let mut b = host.io_queue(&subsystem, controller, 1, 16)?;
    assert_eq!(
        reserve(&mut host, &mut a, io::RESERVATION_ACQUIRE, 1 << 8, [1, 0])?,
        CONFLICT,
        "not registered"
    );
    assert_eq!(
        reserve(&mut host, &mut a, io::RESERVATION_REGISTER, 0, [0, 1])?,
        DONE
    );
    assert_eq!(
        reserve(&mut host, &mut b, io::RESERVATION_REGISTER, 0, [0, 2])?,
        DONE
    );
    // A acquires Exclusive Access (type 2).
    assert_eq!(
        reserve(&mut host, &mut a, io::RESERVATION_ACQUIRE, 2 << 8, [1, 0])?,
        DONE
    );
    for opcode in [io::READ, io::WRITE, io::COMPARE] {
        let data = host.data(0, 512);
        assert_eq!(
            host.status(&mut a, transfer(opcode, 0, 1), data)?,
            DONE,
            "{opcode}"
        );
        assert_eq!(
            host.status(&mut b, transfer(opcode, 0, 1), data)?,
            CONFLICT,
            "{opcode}"
        );
    }
    let mut flush = command(io::FLUSH);
    flush.nsid = 1.into();
    assert_eq!(host.command(&mut b, flush)?.status(), CONFLICT);
    // The report has generation, type and number of registrants, then a structure for each registrant.
    let mut report = command(io::RESERVATION_REPORT);
    report.nsid = 1.into();
    report.cdw10 = 47.into();
    let data = host.data(4096, 192);
    assert_eq!(
        host.status(&mut b, report, data)?,
        Status::HOST_ID.dnr(),
        "identifiers of 64 bits"
    );
    report.cdw11 = 1.into();
    assert_eq!(host.status(&mut b, report, data)?, DONE);
    let said = host.memory.read(4096, 192)?;
    assert_eq!(&said[..7], [2, 0, 0, 0, 2, 2, 0]);
    let entry = |at: usize| (said[at], said[at + 2], said[at + 8], said[at + 16]);
    assert_eq!(
        (entry(64), entry(128)),
        ((0xff, 1, 1, 0x11), (0xff, 0, 2, 0x22))
    );
    // A clears the reservation and all registrations, and B gets an event.
    host.send(&mut second, command(admin::ASYNC_EVENT), &[])?;
    assert_eq!(
        reserve(&mut host, &mut a, io::RESERVATION_RELEASE, 1, [1, 0])?,
        DONE
    );
    assert_eq!(host.response(&mut second)?.result.get(), 0x0080_0006);
    let (status, page) = host.log(&mut second, 0x80, 64)?;
    assert_eq!(
        (status, page[0], page[8], page[9], page[12]),
        (DONE, 1, 3, 0, 1),
        "preempted, of namespace 1"
    );
    let (_, page) = host.log(&mut second, 0x80, 64)?;
    assert_eq!((page[0], page[8]), (1, 0), "no more");
    assert_eq!(host.write(&mut b, 0, 1, 0, 512)?, DONE);
    // Persistence through power loss is not supported, Acquire cannot ignore the existing key, and type 7 is invalid.
    let field = Status::INVALID_FIELD.dnr();
    assert_eq!(
        reserve(&mut host, &mut a, io::RESERVATION_REGISTER, 3 << 30, [0, 1])?,
        field
    );
    assert_eq!(
        reserve(
            &mut host,
            &mut a,
            io::RESERVATION_ACQUIRE,
            1 << 8 | 8,
            [0, 1]
        )?,
        field
    );
    assert_eq!(
        reserve(&mut host, &mut a, io::RESERVATION_ACQUIRE, 7 << 8, [0, 1])?,
        field
    );
    drop(host);
    world.stop()?;
    Ok(())
}

/// Base specification, "Reservation Acquire command", Preempt and Abort: the host that has preempted another must not
/// see a write of that host after its own command has succeeded.
#[test]
fn a_preempt_and_abort_succeeds_when_no_disk_has_a_write_of_the_other_host() -> Result<()> {
    const DONE: Status = Status::SUCCESS;
    const ABORTS: u32 = 2;
    let mut world = World::new(2, Source::Faulty(1 << 20), 9)?;
    let mut host = world.host()?;
    let subsystem = world.subsystem.clone();
    let (_first, controller) = host.controller(&subsystem)?;
    let mut a = host.io_queue(&subsystem, controller, 1, 16)?;
    host.id = [0x22; 16];
    let (_second, controller) = host.controller(&subsystem)?;
    let mut b = host.io_queue(&subsystem, controller, 1, 16)?;
    let register = io::RESERVATION_REGISTER;
    assert_eq!(reserve(&mut host, &mut a, register, 0, [0, 1])?, DONE);
    assert_eq!(reserve(&mut host, &mut b, register, 0, [0, 2])?, DONE);
    // B holds a reservation of type 1, Write Exclusive.
    let acquire = io::RESERVATION_ACQUIRE;
    assert_eq!(reserve(&mut host, &mut b, acquire, 1 << 8, [2, 0])?, DONE);
    let faults = world.faults()?;
    faults.order(Some(Orders {
        of: Of::Writes,
        delay: LONGEST_DELAY,
        times: Some(1),
        ..Orders::default()
    }));
    let mut write = transfer(io::WRITE, 0, 1);
    write.sgl = host.data(4096, 512);
    host.send(&mut b, write, &[])?;
    while faults.struck() == 0 {
        std::thread::yield_now();
    }
    // A takes the reservation and B's registration away.
    host.memory.write_from(0, &[1, 0, 0, 0, 0, 0, 0, 0, 2])?;
    let mut preempt = command(acquire);
    preempt.nsid = 1.into();
    preempt.cdw10 = (1 << 8 | ABORTS).into();
    preempt.sgl = host.data(0, 16);
    host.send(&mut a, preempt, &[])?;
    // The answer to a later command of the same queue is there first.
    let mut read = transfer(io::READ, 8, 1);
    read.sgl = host.data(8192, 512);
    let sent = host.send(&mut a, read, &[])?;
    assert_eq!(host.response(&mut a)?.cid.get(), sent);
    // The disk completes the write of B, and then A has its answer.
    faults.order(None);
    assert_eq!(host.response(&mut b)?.status(), DONE);
    assert_eq!(host.response(&mut a)?.status(), DONE);
    // Without a command of B at the disk, the answer waits for nothing.
    assert_eq!(host.write(&mut b, 0, 1, 4096, 512)?, CONFLICT);
    assert_eq!(reserve(&mut host, &mut b, register, 0, [0, 2])?, DONE);
    let dword = 1 << 8 | ABORTS;
    assert_eq!(reserve(&mut host, &mut a, acquire, dword, [1, 2])?, DONE);
    drop(host);
    world.stop()?;
    Ok(())
}
