//! The simulated SSD with the driver of `hw-nvme`, and with a host that writes its registers itself.

mod host;

use std::sync::Arc;
use std::time::Duration;

use driver::{Clock, Device, DmaBuffer, Function, Instant, RealClock};
use hw_nvme::{Cause, Config, Controller, Ended, Event, Piece, QueuePair, block_command, command};
use uuid::Uuid;

use super::{Ssd, SsdConfig, SsdError};
use crate::disk::faults::{LONGEST_DELAY, Of, Orders};
use crate::disk::{Disk, Source};
use crate::model::NamespaceConfig;
use crate::nvme::Status;
use crate::nvme::command::io as opcode;

const NSID: u32 = 1;
const BYTES: u64 = 4 << 20;
const LIMIT: Duration = Duration::from_secs(60);

fn namespace(nsid: u32, source: Source, shift: u8) -> NamespaceConfig {
    NamespaceConfig {
        nsid: Some(nsid),
        uuid: Uuid::from_u128(nsid.into()),
        group: 1,
        hosts: None,
        disk: Disk::open(source, shift, false).expect("a disk"),
    }
}

fn ssd(source: Source, shift: u8) -> Arc<Ssd> {
    let name = "nqn.2026-11.test:ssd".parse().expect("a name");
    let ssd = Ssd::new(SsdConfig::new(name), [namespace(NSID, source, shift)]);
    ssd.expect("an SSD")
}

fn function(ssd: &Arc<Ssd>) -> Function {
    Function::in_process(Arc::clone(ssd) as Arc<dyn Device>).expect("a function")
}

fn open(ssd: &Arc<Ssd>) -> Controller {
    let config = Config {
        queues: 2,
        // Some tests have a disk that ends no command.
        shutdown_limit: Duration::from_millis(100),
        ..Config::default()
    };
    Controller::open(function(ssd), config).expect("it opens")
}

fn now() -> Instant {
    RealClock::new().now()
}

fn part(memory: &DmaBuffer, from: usize, bytes: usize) -> Piece {
    Piece {
        iova: memory.part(from, bytes).iova(),
        bytes: u32::try_from(bytes).expect("small"),
    }
}

/// Polls until a command ends.
fn ended(queue: &mut QueuePair) -> Result<Ended, Cause> {
    let deadline = now() + LIMIT;
    let mut place = [Ended::NONE];
    while queue.poll(&mut place)? == 0 {
        assert!(now() < deadline, "no answer");
        std::thread::yield_now();
    }
    Ok(place[0])
}

fn carried_out(queue: &mut QueuePair, sqe: crate::nvme::Sqe, data: &[Piece]) -> Status {
    queue.submit(sqe, data, 7, now()).expect("room");
    queue.ring();
    let ended = ended(queue).expect("an answer");
    assert_eq!(ended.cookie, 7);
    ended.status
}

#[test]
fn the_driver_finds_what_was_configured() {
    for (shift, bytes) in [(9, 512), (12, 4096)] {
        let ssd = ssd(Source::Memory(BYTES), shift);
        let mut controller = open(&ssd);
        let identity = controller.identity();
        assert_eq!(identity.serial, "1");
        assert_eq!(identity.model, "simulated SSD");
        assert_eq!(identity.max_transfer, 128 << 10);
        assert_eq!(controller.queues(), 2);
        assert_eq!(controller.namespaces().expect("a list"), [NSID]);
        let namespace = controller.namespace(NSID).expect("it is active");
        assert_eq!(namespace.block_bytes, bytes);
        assert_eq!(namespace.blocks, BYTES / u64::from(bytes));
    }
}

/// Blocks at places, in lengths and from offsets of all kinds come back as they were written, with lists of pages, too.
#[test]
fn what_is_written_is_read() {
    for shift in [9, 12] {
        let ssd = ssd(Source::Memory(BYTES), shift);
        let mut controller = open(&ssd);
        let mut queues = [(); 2].map(|()| controller.create_queue().expect("a queue"));
        let memory = controller.arena().alloc(512 << 10, 4096).expect("memory");
        let block = 1_usize << shift;
        let most = (128 << 10) / block;
        for (round, blocks) in (0_u8..).zip([1, 2, 3, most / 2, most - 1, most]) {
            let bytes = blocks * block;
            // Offsets in a page, at multiples of 4, so that the first page is not whole.
            let from = usize::from(round) * 516;
            let pattern: Vec<u8> = (0..=250)
                .cycle()
                .take(bytes)
                .map(|byte| byte ^ round)
                .collect();
            memory.write_bytes(from, &pattern);
            let first = u64::from(round) * 17;
            let length = u32::try_from(blocks).expect("small");
            let write = block_command(opcode::WRITE, NSID, first, length, round % 2 == 0);
            let data = [part(&memory, from, bytes)];
            assert_eq!(carried_out(&mut queues[0], write, &data), Status::SUCCESS);
            let read = block_command(opcode::READ, NSID, first, length, false);
            let to = (256 << 10) + 4 * usize::from(round);
            let data = [part(&memory, to, bytes)];
            assert_eq!(carried_out(&mut queues[1], read, &data), Status::SUCCESS);
            let mut back = vec![0; bytes];
            memory.read_bytes(to, &mut back);
            assert!(back == pattern, "{blocks} blocks of {block}");
        }
        let flush = command(opcode::FLUSH, NSID);
        assert_eq!(carried_out(&mut queues[0], flush, &[]), Status::SUCCESS);
        let zeroes = block_command(opcode::WRITE_ZEROES, NSID, 0, 4, false);
        assert_eq!(carried_out(&mut queues[0], zeroes, &[]), Status::SUCCESS);
        let read = block_command(opcode::READ, NSID, 0, 1, false);
        let data = [part(&memory, 0, block)];
        assert_eq!(carried_out(&mut queues[0], read, &data), Status::SUCCESS);
        let mut back = vec![1; block];
        memory.read_bytes(0, &mut back);
        assert!(back.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn what_cannot_be_done_is_refused_with_the_status_of_the_specification() {
    let ssd = ssd(Source::Memory(BYTES), 9);
    let mut controller = open(&ssd);
    let mut queue = controller.create_queue().expect("a queue");
    let memory = controller.arena().alloc(4096, 4096).expect("memory");
    let data = [part(&memory, 0, 512)];
    for (sqe, status) in [
        (
            block_command(opcode::READ, NSID, BYTES / 512, 1, false),
            Status::LBA_RANGE,
        ),
        (
            block_command(opcode::READ, 2, 0, 1, false),
            Status::INVALID_NAMESPACE,
        ),
        (
            block_command(0x55, NSID, 0, 1, false),
            Status::INVALID_OPCODE,
        ),
    ] {
        assert_eq!(carried_out(&mut queue, sqe, &data), status.dnr(), "{sqe:?}");
    }
    // Memory that no mapping has.
    let nowhere = Piece {
        iova: driver::Iova(1 << 40),
        bytes: 512,
    };
    for opcode in [opcode::READ, opcode::WRITE] {
        let sqe = block_command(opcode, NSID, 0, 1, false);
        let status = carried_out(&mut queue, sqe, &[nowhere]);
        assert_eq!(status, Status::DATA_TRANSFER);
    }
}

/// More commands than the table has places for: they wait in their queue.
#[test]
fn every_command_of_full_queues_ends_once() {
    let ssd = ssd(Source::Memory(BYTES), 9);
    let mut controller = open(&ssd);
    let mut queues = [(); 2].map(|()| controller.create_queue().expect("a queue"));
    let memory = controller.arena().alloc(64 << 10, 4096).expect("memory");
    for round in 0..20 {
        let mut submitted = 0;
        for queue in &mut queues {
            let bytes = if round % 2 == 0 { 512 } else { 64 << 10 };
            let blocks = u32::try_from(bytes / 512).expect("small");
            let read = block_command(opcode::READ, NSID, 0, blocks, false);
            let data = [part(&memory, 0, bytes)];
            while queue.submit(read, &data, submitted, now()).is_ok() {
                submitted += 1;
            }
            queue.ring();
        }
        let mut cookies = Vec::new();
        for queue in &mut queues {
            while queue.outstanding() > 0 {
                let ended = ended(queue).expect("an answer");
                assert_eq!(ended.status, Status::SUCCESS);
                cookies.push(ended.cookie);
            }
        }
        cookies.sort_unstable();
        assert!(cookies.iter().copied().eq(0..submitted), "{submitted}");
    }
}

/// Base specification 2.0, "Delete I/O Submission Queue": the identifier is free afterwards.
#[test]
fn the_number_of_a_deleted_queue_is_used_again() {
    let ssd = ssd(Source::Memory(BYTES), 9);
    let mut controller = open(&ssd);
    let memory = controller.arena().alloc(4096, 4096).expect("memory");
    let data = [part(&memory, 0, 512)];
    let read = block_command(opcode::READ, NSID, 0, 1, false);
    let mut first = controller.create_queue().expect("a queue");
    let second = controller.create_queue().expect("a queue");
    let refused = controller.create_queue().expect_err("two were granted");
    assert!(refused.to_string().contains("queue 3 of 2"), "{refused}");
    for _ in 0..3 {
        assert_eq!(carried_out(&mut first, read, &data), Status::SUCCESS);
        let number = first.number();
        controller
            .delete_queue(first)
            .expect("nothing is outstanding");
        first = controller.create_queue().expect("a queue");
        assert_eq!(first.number(), number);
    }
    first.submit(read, &data, 1, now()).expect("room");
    let busy = controller.delete_queue(first).expect_err("a command");
    assert!(busy.to_string().contains("1 outstanding"), "{busy}");
    controller
        .delete_queue(second)
        .expect("nothing is outstanding");
}

#[test]
fn a_namespace_that_is_added_is_an_event_for_the_driver() {
    let ssd = ssd(Source::Memory(BYTES), 9);
    let mut controller = open(&ssd);
    assert_eq!(controller.next_event().expect("possible"), None);
    for nsid in [2, 5] {
        ssd.with(|model, name| {
            let config = namespace(nsid, Source::Memory(BYTES), 12);
            assert_eq!(model.add_namespace(name, config), Ok(nsid));
        });
        let began = std::time::Instant::now();
        let mut event = None;
        while event.is_none() && began.elapsed() < std::time::Duration::from_secs(60) {
            event = controller.next_event().expect("possible");
            std::thread::yield_now();
        }
        let changed = Some(vec![nsid]);
        assert_eq!(event, Some(Event::Namespaces { changed }));
    }
}

#[test]
fn a_failing_disk_fails_the_command_and_no_other() {
    let ssd = ssd(Source::Faulty(BYTES), 9);
    let mut controller = open(&ssd);
    let mut queue = controller.create_queue().expect("a queue");
    let memory = controller.arena().alloc(4096, 4096).expect("memory");
    let data = [part(&memory, 0, 512)];
    ssd.with(|model, name| {
        let namespace = model.namespace(name, NSID).expect("it is there");
        let faults = namespace.disk().faults().expect("a faulty disk");
        faults.order(Some(Orders {
            of: Of::Reads,
            error: Some(nix::errno::Errno::EIO),
            times: Some(1),
            ..Orders::default()
        }));
    });
    let read = block_command(opcode::READ, NSID, 0, 1, false);
    let status = carried_out(&mut queue, read, &data);
    assert_eq!(status, Status::UNRECOVERED_READ.dnr());
    assert_eq!(carried_out(&mut queue, read, &data), Status::SUCCESS);
}

/// A read whose disk is slow is under way when the driver stops the controller. The memory of its data is the driver's
/// again, and stays as it is when the disk has ended the read.
#[test]
fn nothing_is_written_to_memory_after_the_controller_was_stopped() {
    let ssd = ssd(Source::Faulty(BYTES), 9);
    let mut controller = open(&ssd);
    let mut queue = controller.create_queue().expect("a queue");
    let arena = controller.arena().clone();
    let memory = arena.alloc(4096, 4096).expect("memory");
    memory.fill(0, 4096, 7);
    let faults = ssd.with(|model, name| {
        let namespace = model.namespace(name, NSID).expect("it is there");
        Arc::clone(namespace.disk().faults().expect("a faulty disk"))
    });
    faults.order(Some(Orders {
        of: Of::Reads,
        delay: LONGEST_DELAY,
        times: Some(1),
        ..Orders::default()
    }));
    let read = block_command(opcode::READ, NSID, 0, 1, false);
    queue
        .submit(read, &[part(&memory, 0, 512)], 9, now())
        .expect("room");
    queue.ring();
    let (function, unanswered) = controller.stop(vec![queue]).expect("stopped");
    assert_eq!(unanswered, [[9]]);
    // The delay ends, and the next controller carries out its own commands.
    faults.order(None);
    let mut controller = Controller::open(function, Config::default()).expect("it opens");
    let mut queue = controller.create_queue().expect("a queue");
    let other = controller.arena().alloc(4096, 4096).expect("memory");
    let status = carried_out(&mut queue, read, &[part(&other, 0, 512)]);
    assert_eq!(status, Status::SUCCESS);
    let mut back = [0; 4096];
    memory.read_bytes(0, &mut back);
    assert!(back.iter().all(|byte| *byte == 7));
}

#[test]
fn a_removed_function_reads_as_ones_and_its_commands_have_no_answer() {
    let ssd = ssd(Source::Memory(BYTES), 9);
    let mut controller = open(&ssd);
    let mut queue = controller.create_queue().expect("a queue");
    assert_eq!(controller.check(), None);
    ssd.remove();
    assert_eq!(controller.check(), Some(Cause::Gone));
    let sqe = command(opcode::FLUSH, NSID);
    assert!(queue.submit(sqe, &[], 1, now()).is_err());
}

#[test]
fn the_number_of_queues_is_bounded() {
    for queues in [0, super::MOST_QUEUES + 1] {
        let name = "nqn.2026-11.test:ssd".parse().expect("a name");
        let config = SsdConfig {
            queues,
            ..SsdConfig::new(name)
        };
        let refused = Ssd::new(config, []).map(|_| ());
        assert!(matches!(refused, Err(SsdError::Queues { .. })), "{queues}");
    }
}
