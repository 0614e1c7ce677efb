//! Limits of namespaces: the worker keeps commands back, and lets them go when their time has come, when the target is
//! held, and when the connection ends.

use std::time::Duration;

use anyhow::Result;
use nvmeof::disk::Source;
use nvmeof::model::Limit;
use nvmeof::nvme::Status;
use nvmeof::nvme::command::{admin, io};

use crate::held::Turns;
use crate::host::{Queue, command, transfer};

const DONE: Status = Status::SUCCESS;
/// Bytes of a command.
const BYTES: u32 = 128 << 10;
const COMMANDS: usize = 30;
/// Size of the disk. To read all of it takes four minutes at the least rate.
const DISK: u64 = 32 << 20;

/// Makes a namespace with a limit, at a target with this many workers, that a Verify of the whole disk has used up for
/// four minutes, so that no test is slow enough to see its end.
fn limited(workers: usize) -> Result<(Turns, Queue)> {
    let mut turns = Turns::new(workers, Source::Memory(DISK))?;
    let subsystem = turns.subsystem.clone();
    let limit = Limit {
        ios_per_second: None,
        bytes_per_second: Some(Limit::LEAST_BYTES),
        burst: Duration::ZERO,
    };
    turns
        .target()
        .with(|model| model.set_limit(&subsystem, 1, Some(limit)))?;
    let mut queue = turns.queue(1)?;
    let verify = transfer(io::VERIFY, 0, 65_536);
    let verified = turns.host.command(&mut queue, verify)?;
    assert_eq!(verified.status(), DONE);
    Ok((turns, queue))
}

fn send(turns: &mut Turns, queue: &mut Queue) -> Result<Vec<u16>> {
    let mut sent = Vec::new();
    for _ in 0..COMMANDS {
        let mut sqe = transfer(io::READ, 0, BYTES >> 9);
        sqe.sgl = turns.host.data(0, BYTES);
        sent.push(turns.host.send(queue, sqe, &[])?);
    }
    turns.pass_enough()?;
    Ok(sent)
}

/// Returns how many reads are done, and how many commands had to wait.
fn done(turns: &Turns) -> Result<(u64, u64)> {
    let subsystem = &turns.subsystem;
    let namespace = turns.target().with(|model| model.namespace(subsystem, 1))?;
    Ok((namespace.done().reads, namespace.done().limited))
}

#[test]
fn commands_beyond_the_limit_wait_until_their_time_has_come() -> Result<()> {
    let (mut turns, mut queue) = limited(1)?;
    let sent = send(&mut turns, &mut queue)?;
    assert_eq!(done(&turns)?, (0, 30));
    turns.target().advance(Duration::from_secs(3600));
    assert_eq!(turns.answers(&mut queue, &sent)?, [DONE; COMMANDS]);
    turns.end()
}

#[test]
fn a_hold_lets_commands_go_on_that_wait() -> Result<()> {
    let (mut turns, mut queue) = limited(1)?;
    let sent = send(&mut turns, &mut queue)?;
    assert_eq!(done(&turns)?, (0, 30));
    turns.target().hold();
    turns.until_quiet()?;
    turns.target().release();
    assert_eq!(turns.answers(&mut queue, &sent)?, [DONE; COMMANDS]);
    turns.end()
}

/// The end of the test checks that no entry and no buffer is occupied.
#[test]
fn commands_that_wait_end_with_their_connection_and_go_on_if_the_worker_stops() -> Result<()> {
    let (mut turns, mut queue) = limited(1)?;
    send(&mut turns, &mut queue)?;
    turns.host.disconnect(&queue)?;
    turns.pass_enough()?;
    let mut queue = turns.queue(2)?;
    let sent = send(&mut turns, &mut queue)?;
    assert_eq!(done(&turns)?, (0, 60));
    turns.target().stop();
    assert_eq!(turns.answers(&mut queue, &sent)?, [DONE; COMMANDS]);
    turns.end()
}

/// Base specification, "Abort command": bit 0 of the result is clear if the command was aborted. With two workers, one
/// has the admin queue and the other one the I/O queue.
#[test]
fn an_abort_finds_a_command_that_waits_and_an_event_request() -> Result<()> {
    for workers in [1, 2] {
        let (mut turns, mut queue) = limited(workers)?;
        let sent = send(&mut turns, &mut queue)?;
        let abort = |turns: &mut Turns, queue: u32, cid: u16| -> Result<u64> {
            let mut sqe = command(admin::ABORT);
            sqe.cdw10 = (queue | u32::from(cid) << 16).into();
            let sent = turns.host.send(&mut turns.admin, sqe, &[])?;
            loop {
                let cqe = turns.host.response(&mut turns.admin)?;
                if cqe.cid.get() == sent {
                    assert_eq!(cqe.status(), DONE);
                    return Ok(cqe.result.get());
                }
                assert_eq!(cqe.status(), Status::ABORTED, "the event request");
            }
        };
        let wanted = sent[COMMANDS / 2];
        assert_eq!(abort(&mut turns, 1, wanted)?, 0);
        assert_eq!(turns.answers(&mut queue, &[wanted])?, [Status::ABORTED]);
        assert_eq!(abort(&mut turns, 1, wanted)?, 1, "it has ended");
        assert_eq!(abort(&mut turns, 2, sent[0])?, 1, "there is no such queue");
        let event = command(admin::ASYNC_EVENT);
        let event = turns.host.send(&mut turns.admin, event, &[])?;
        turns.pass_enough()?;
        assert_eq!(abort(&mut turns, 0, event)?, 0);
        assert_eq!(abort(&mut turns, 0, event)?, 1);
        // Four requests may wait, so the aborted one counts no longer.
        for _ in 0..4 {
            let event = command(admin::ASYNC_EVENT);
            turns.host.send(&mut turns.admin, event, &[])?;
        }
        turns.pass_enough()?;
        let none = turns.host.ia.evd_dequeue(turns.admin.events)?;
        assert!(none.is_none(), "{none:?}");
        turns.target().advance(Duration::from_secs(3600));
        let left: Vec<u16> = sent.into_iter().filter(|cid| *cid != wanted).collect();
        assert_eq!(turns.answers(&mut queue, &left)?, [DONE; COMMANDS - 1]);
        turns.end()?;
    }
    Ok(())
}
