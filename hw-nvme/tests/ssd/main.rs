//! The driver with a model of a controller, one that obeys the rules and one that breaks them.

#![expect(
    clippy::little_endian_bytes,
    reason = "registers and entries of NVMe are little-endian"
)]

mod model;
mod qemu;

use std::sync::Arc;
use std::time::Duration;

use driver::{Clock, Device, DmaBuffer, Function, Instant};
use hw_nvme::{
    Cause, Config, Controller, Ended, Event, NvmeError, Piece, PrpError, QueuePair, SubmitError,
    block_command, command, opcode,
};
use model::{BLOCK, BLOCKS, Lie, Ssd};
use nvme_types::Status;

const NSID: u32 = 1;
const NOW: Instant = Instant(0);

fn function(ssd: &Arc<Ssd>) -> Function {
    Function::in_process(Arc::clone(ssd) as Arc<dyn Device>).expect("a function")
}

fn config() -> Config {
    Config {
        queues: 2,
        entries: 16,
        ..Config::default()
    }
}

fn open(ssd: &Arc<Ssd>) -> Controller {
    Controller::open(function(ssd), config()).expect("it opens")
}

fn whole(memory: &DmaBuffer) -> Piece {
    Piece {
        iova: memory.iova(),
        bytes: u32::try_from(memory.len()).expect("small"),
    }
}

/// Polls until a command ends.
fn ended(queue: &mut QueuePair) -> Result<Ended, Cause> {
    let mut place = [Ended::NONE];
    queue.ring();
    assert_eq!(queue.poll(&mut place)?, 1, "it has an answer");
    Ok(place[0])
}

fn carried_out(
    queue: &mut QueuePair,
    opcode: u8,
    (first, blocks): (u64, u32),
    data: &[Piece],
) -> Status {
    let sqe = block_command(opcode, NSID, first, blocks, false);
    queue.submit(sqe, data, first, NOW).expect("room");
    let ended = ended(queue).expect("possible");
    assert_eq!(ended.cookie, first);
    ended.status
}

#[test]
fn a_controller_says_what_it_is_and_what_it_has() {
    let ssd = Ssd::new();
    let mut controller = open(&ssd);
    let identity = controller.identity().clone();
    assert_eq!((&*identity.serial, &*identity.model), ("S1", "model"));
    assert_eq!(identity.max_transfer, 128 << 10);
    assert!(identity.has_write_cache && identity.commands == 1 << 3);
    assert_eq!(controller.namespaces().expect("a list"), [NSID]);
    let namespace = controller.namespace(NSID).expect("it is active");
    assert_eq!(namespace.blocks, BLOCKS as u64);
    assert_eq!(namespace.block_bytes, 512);
    let refused = controller.namespace(2).expect_err("it is not active");
    assert!(
        refused.to_string().contains("namespace 2: 0 blocks"),
        "{refused}"
    );
    // Three were granted, and two were asked for.
    assert_eq!(controller.queues(), 2);
    assert_eq!(controller.create_queue().expect("the first").number(), 1);
    assert_eq!(controller.create_queue().expect("the second").number(), 2);
    let refused = controller.create_queue().expect_err("the third");
    assert!(refused.to_string().contains("queue 3 of 2"), "{refused}");
}

/// Data of each form: within a page, in two pages, and with a list of pages.
#[test]
fn what_was_written_is_read_again_wherever_the_memory_is() {
    let ssd = Ssd::new();
    let mut controller = open(&ssd);
    let mut queue = controller.create_queue().expect("a queue");
    let memory = controller.arena().alloc(1 << 17, 4096).expect("memory");
    for (offset, blocks) in [
        (0, 1),
        (512, 7),
        (512, 8),
        (0, 16),
        (1024, 16),
        (0, 256),
        (1024, 250),
    ] {
        let bytes = blocks * BLOCK;
        let data: Vec<u8> = (0..bytes)
            .map(|at| u8::try_from((at / 7 + offset) % 251).expect("a byte"))
            .collect();
        let part = memory.part(offset, bytes);
        part.write_bytes(0, &data);
        let range = (3, u32::try_from(blocks).expect("small"));
        let piece = [whole(&part)];
        assert_eq!(
            carried_out(&mut queue, opcode::WRITE, range, &piece),
            Status::SUCCESS
        );
        part.fill(0, bytes, 0);
        assert_eq!(
            carried_out(&mut queue, opcode::READ, range, &piece),
            Status::SUCCESS
        );
        let mut read = vec![0; bytes];
        part.read_bytes(0, &mut read);
        assert!(read == data, "{blocks} blocks at {offset}");
    }
    assert_eq!(ssd.lists(), 6);
    let outside = carried_out(
        &mut queue,
        opcode::READ,
        (BLOCKS as u64, 1),
        &[whole(&memory.part(0, 512))],
    );
    assert_eq!(outside, Status::LBA_RANGE.dnr());
    assert!(!hw_nvme::may_repeat(outside) && hw_nvme::may_repeat(Status::INTERRUPTED));
}

/// The pages of a command may be anywhere. Only its first piece may begin inside a page, and only its last may end
/// there.
#[test]
fn data_in_pieces_is_described_or_refused_by_its_address() {
    let ssd = Ssd::new();
    let mut controller = open(&ssd);
    let mut queue = controller.create_queue().expect("a queue");
    let memory = controller.arena().alloc(1 << 16, 4096).expect("memory");
    let piece = |at: usize, bytes: u32| Piece {
        iova: memory.iova().advance(at),
        bytes,
    };
    memory.write_bytes(0x3e00, &[7; 512]);
    memory.write_bytes(0x8000, &[8; 4096]);
    memory.write_bytes(0x1000, &[9; 512]);
    let pieces = [piece(0x3e00, 512), piece(0x8000, 4096), piece(0x1000, 512)];
    assert_eq!(
        carried_out(&mut queue, opcode::WRITE, (0, 10), &pieces),
        Status::SUCCESS
    );
    let all = [whole(&memory.part(0xa000, 5120))];
    assert_eq!(
        carried_out(&mut queue, opcode::READ, (0, 10), &all),
        Status::SUCCESS
    );
    let byte = |at: usize| memory.load_u8(0xa000 + at);
    assert_eq!([byte(0), byte(512), byte(4607), byte(4608)], [7, 8, 8, 9]);
    let mut refuse = |data: &[Piece]| {
        let sqe = block_command(opcode::READ, NSID, 0, 1, false);
        match queue.submit(sqe, data, 0, NOW) {
            Err(SubmitError::Data(error)) => error,
            other => panic!("{other:?}"),
        }
    };
    let at = |at: usize| memory.iova().advance(at).0;
    assert_eq!(refuse(&[piece(2, 512)]), PrpError::Start { iova: at(2) });
    assert_eq!(
        refuse(&[piece(0, 512), piece(0x1000, 512)]),
        PrpError::Gap { iova: at(512) }
    );
    assert_eq!(
        refuse(&[piece(0, 4096), piece(0x1200, 512)]),
        PrpError::Gap { iova: at(0x1200) }
    );
    assert_eq!(
        refuse(&[piece(0, 0)]),
        PrpError::Piece {
            iova: at(0),
            bytes: 0
        }
    );
    assert_eq!(queue.outstanding(), 0);
}

/// One doorbell for all commands of a call, and no more commands than the queue has entries but one.
#[test]
fn a_queue_goes_around_and_is_full_before_it_overruns() {
    let ssd = Ssd::new();
    let mut controller = open(&ssd);
    let mut queue = controller.create_queue().expect("a queue");
    let memory = controller.arena().alloc(512, 512).expect("memory");
    let data = [whole(&memory)];
    let mut places = [Ended::NONE; 16];
    for round in 0..20_u64 {
        let sqe = block_command(opcode::READ, NSID, 0, 1, false);
        for cookie in 0..15 {
            queue
                .submit(sqe, &data, round << 8 | cookie, NOW)
                .expect("room");
        }
        assert_eq!(queue.submit(sqe, &data, 0, NOW), Err(SubmitError::Full));
        assert_eq!(queue.poll(&mut places), Ok(0));
        let doorbells = ssd.doorbells();
        queue.ring();
        queue.ring();
        assert_eq!(ssd.doorbells(), doorbells + 1);
        assert_eq!(queue.poll(&mut places[..7]), Ok(7));
        assert_eq!(queue.poll(&mut places[7..]), Ok(8));
        let cookies: Vec<u64> = places[..15].iter().map(|it| it.cookie & 0xff).collect();
        assert_eq!(cookies, (0..15).collect::<Vec<_>>());
    }
    let interrupt = queue.interrupt().expect("its vector");
    assert!(interrupt.take() > 0);
    assert_eq!(ssd.done().len(), 300);
    let flush = command(opcode::FLUSH, NSID);
    queue.submit(flush, &[], 1, NOW).expect("room");
    assert_eq!(ended(&mut queue).expect("possible").status, Status::SUCCESS);
}

/// An impossible completion ends the controller. No command ends by it, and each ends once by the stop.
#[test]
fn a_lying_controller_is_not_believed() {
    for lie in [
        Lie::UnknownCommand,
        Lie::OtherQueue,
        Lie::HeadBeyond,
        Lie::HeadAhead,
        Lie::Twice,
    ] {
        let ssd = Ssd::new();
        let mut controller = open(&ssd);
        let mut queue = controller.create_queue().expect("a queue");
        let memory = controller.arena().alloc(512, 512).expect("memory");
        ssd.lie(lie);
        let sqe = block_command(opcode::READ, NSID, 0, 1, false);
        for cookie in [11, 12] {
            queue
                .submit(sqe, &[whole(&memory)], cookie, NOW)
                .expect("room");
        }
        queue.ring();
        let mut taken = Vec::new();
        let mut causes = Vec::new();
        for _ in 0..4 {
            let mut places = [Ended::NONE; 4];
            match queue.poll(&mut places) {
                Ok(count) => taken.extend(places[..count].iter().map(|it| it.cookie)),
                Err(cause) => causes.push(cause),
            }
        }
        let cause = *causes.first().expect("it is not believed");
        assert!(
            matches!(cause, Cause::Impossible { queue: 1, .. }),
            "{lie:?}: {cause}"
        );
        assert_eq!(controller.check(), Some(cause));
        let refused = queue.submit(sqe, &[whole(&memory)], 13, NOW);
        assert_eq!(refused, Err(SubmitError::Ended(cause)));
        let (_, drained) = controller.stop(vec![queue]).expect("it stops");
        assert!(!ssd.is_running());
        // The first of the two had its one true completion, if they come twice.
        let (true_ones, left): (&[u64], &[u64]) = match lie {
            // The head that is ahead of the first one is possible.
            Lie::Twice | Lie::HeadAhead => (&[11], &[12]),
            Lie::UnknownCommand
            | Lie::OtherQueue
            | Lie::HeadBeyond
            | Lie::NeverReady
            | Lie::FatalAtEnable
            | Lie::Silent
            | Lie::NoShutdown => (&[], &[11, 12]),
        };
        assert_eq!((&taken[..], &drained[0][..]), (true_ones, left), "{lie:?}");
    }
}

#[test]
fn commands_of_a_silent_controller_end_by_its_stop() {
    let ssd = Ssd::new();
    let mut controller = open(&ssd);
    let mut queue = controller.create_queue().expect("a queue");
    let memory = controller.arena().alloc(512, 512).expect("memory");
    ssd.lie(Lie::Silent);
    let began = ssd.clock.now();
    let sqe = block_command(opcode::WRITE, NSID, 0, 1, true);
    queue
        .submit(sqe, &[whole(&memory)], 5, began)
        .expect("room");
    queue.ring();
    let limit = Duration::from_secs(30);
    assert_eq!(controller.check_time(&queue, began + limit, limit), None);
    let late = began + limit + Duration::from_nanos(1);
    let cause = controller.check_time(&queue, late, limit);
    let silent = Cause::Silent {
        queue: 1,
        opcode: opcode::WRITE,
        limit,
    };
    assert_eq!(cause, Some(silent));
    let (function, drained) = controller.stop(vec![queue]).expect("it stops");
    assert_eq!(drained, [[5]]);
    // The same function again.
    ssd.lie(Lie::Twice);
    let controller = Controller::open(function, config()).expect("it opens again");
    assert_eq!(controller.check(), None);
}

/// One lost command is found although another completion can always be taken.
#[test]
fn a_completion_that_is_not_taken_hides_no_lost_command() {
    let ssd = Ssd::new();
    let mut controller = open(&ssd);
    let mut queue = controller.create_queue().expect("a queue");
    let began = ssd.clock.now();
    let flush = command(opcode::FLUSH, NSID);
    queue.submit(flush, &[], 1, began).expect("room");
    queue.ring();
    let limit = Duration::from_secs(30);
    let moment = Duration::from_nanos(1);
    for age in [limit + moment, 2 * limit] {
        assert_eq!(controller.check_time(&queue, began + age, limit), None);
    }
    let late = began + 2 * limit + moment;
    let silent = Cause::Silent {
        queue: 1,
        opcode: opcode::FLUSH,
        limit,
    };
    assert_eq!(controller.check_time(&queue, late, limit), Some(silent));
}

/// The model checks that the pin is masked.
#[test]
fn a_controller_without_interrupts_is_polled() {
    let ssd = Ssd::new();
    let config = Config {
        has_interrupts: false,
        ..config()
    };
    let mut controller = Controller::open(function(&ssd), config).expect("it opens");
    let mut queue = controller.create_queue().expect("a queue");
    assert!(queue.interrupt().is_none());
    let flush = command(opcode::FLUSH, NSID);
    queue.submit(flush, &[], 1, NOW).expect("room");
    let answer = ended(&mut queue).expect("possible");
    assert_eq!((answer.cookie, answer.status), (1, Status::SUCCESS));
}

#[test]
fn a_controller_that_is_not_ready_in_its_time_is_refused_and_reaches_nothing() {
    for (lie, wanted) in [
        (Lie::NeverReady, "CSTS.RDY has not become 1 within 2000 ms"),
        (Lie::FatalAtEnable, "CSTS.CFS"),
    ] {
        let ssd = Ssd::new();
        ssd.lie(lie);
        let refused = Controller::open(function(&ssd), config()).expect_err("not ready");
        assert!(refused.to_string().contains(wanted), "{refused}");
        assert!(!ssd.is_running());
    }
}

#[test]
fn a_controller_that_is_removed_ends_with_its_commands() {
    let ssd = Ssd::new();
    let mut controller = open(&ssd);
    let mut queue = controller.create_queue().expect("a queue");
    let memory = controller.arena().alloc(512, 512).expect("memory");
    let sqe = block_command(opcode::READ, NSID, 0, 1, false);
    queue.submit(sqe, &[whole(&memory)], 9, NOW).expect("room");
    ssd.remove();
    queue.ring();
    assert_eq!(queue.poll(&mut [Ended::NONE]), Ok(0));
    assert_eq!(controller.check(), Some(Cause::Gone));
    assert_eq!(queue.poll(&mut [Ended::NONE]), Err(Cause::Gone));
    let (_, drained) = controller.stop(vec![queue]).expect("it stops");
    assert_eq!(drained, [[9]]);
    let refused = Controller::open(function(&ssd), config()).expect_err("it is gone");
    assert!(
        matches!(
            refused,
            NvmeError::Ended {
                cause: Cause::Gone,
                ..
            }
        ),
        "{refused}"
    );
}

/// Base specification 2.0, figures of "Asynchronous Event Request": type in bits 2:0, information in 15:8, log page in
/// 23:16.
#[test]
fn events_are_read_with_their_log_pages_and_the_next_one_is_asked_for() {
    let ssd = Ssd::new();
    let mut controller = open(&ssd);
    assert_eq!(ssd.events(), 0x11f);
    assert_eq!(controller.next_event().expect("possible"), None);
    let list = |numbers: &[u32]| -> Vec<u8> {
        numbers.iter().flat_map(|nsid| nsid.to_le_bytes()).collect()
    };
    let changed = |changed| Event::Namespaces { changed };
    for (result, page, wanted) in [
        (0x0004_0002, list(&[1, 7]), changed(Some(vec![1, 7]))),
        (0x0004_0002, list(&[u32::MAX]), changed(None)),
        (0x0002_0101, vec![0x02], Event::Health { warnings: 2 }),
        (0x0001_0200, vec![0; 64], Event::Error { information: 2 }),
        (
            0x0003_0102,
            vec![0; 64],
            Event::Other {
                kind: 2,
                information: 1,
                page: 3,
            },
        ),
    ] {
        ssd.report(result, page);
        assert_eq!(controller.next_event().expect("possible"), Some(wanted));
        assert_eq!(controller.next_event().expect("possible"), None);
    }
    // An event that comes during another admin command waits.
    ssd.report(0x0002_0001, vec![0]);
    let _queue = controller.create_queue().expect("a queue");
    let healthy = Some(Event::Health { warnings: 0 });
    assert_eq!(controller.next_event().expect("possible"), healthy);
    // The event names a page that the controller does not have.
    ssd.report(0x0080_0006, Vec::new());
    ssd.forget_log();
    assert!(matches!(
        controller.next_event(),
        Err(NvmeError::Status { .. })
    ));
    ssd.report(0x0002_0001, vec![0]);
    assert_eq!(controller.next_event().expect("possible"), healthy);
}

/// Base specification 2.0, "Controller Shutdown": a controller that is not told loses what is in its cache, or counts
/// an unsafe shutdown. One that was found enabled is not told, because the completion could go to unknown memory.
#[test]
fn a_controller_is_shut_down_before_it_is_stopped() {
    const NORMAL: u32 = 1;
    const ABRUPT: u32 = 2;
    let ssd = Ssd::new();
    ssd.leave_enabled();
    let mut controller = open(&ssd);
    assert_eq!(ssd.shutdowns(), []);
    let queue = controller.create_queue().expect("a queue");
    controller.stop(vec![queue]).expect("it stops");
    assert_eq!(ssd.shutdowns(), [NORMAL]);
    // With an outstanding command.
    ssd.lie(Lie::Silent);
    let mut controller = open(&ssd);
    let mut queue = controller.create_queue().expect("a queue");
    let flush = command(opcode::FLUSH, NSID);
    queue.submit(flush, &[], 1, NOW).expect("room");
    queue.ring();
    controller.stop(vec![queue]).expect("it stops");
    assert_eq!(ssd.shutdowns(), [NORMAL, ABRUPT]);
    // One that does not end its shutdown is stopped all the same, after 5 s by its clock.
    ssd.lie(Lie::NoShutdown);
    let controller = open(&ssd);
    let began = ssd.clock.now();
    controller.stop(Vec::new()).expect("it stops");
    let took = ssd.clock.now().since(began);
    assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(6));
    assert!(!ssd.is_running());
}

/// The memory of a queue that is dropped is not given to others as long as the controller runs.
#[test]
fn a_dropped_queue_keeps_its_memory_and_a_dropped_controller_is_stopped() {
    let ssd = Ssd::new();
    let mut controller = open(&ssd);
    let queue = controller.create_queue().expect("a queue");
    let at = ssd.submission(1);
    drop(queue);
    let arena = controller.arena().clone();
    let others: Vec<DmaBuffer> = (0..100)
        .map(|_| arena.alloc(4096, 4096).expect("memory"))
        .collect();
    assert!(others.iter().all(|one| one.iova().0 != at));
    assert!(ssd.is_running());
    drop(controller);
    assert!(!ssd.is_running());
}

/// A queue that a program still has after the stop rings no doorbell of the next controller.
#[test]
fn a_queue_that_outlives_its_controller_does_nothing() {
    let ssd = Ssd::new();
    let mut controller = open(&ssd);
    let mut queue = controller.create_queue().expect("a queue");
    let memory = controller.arena().alloc(512, 512).expect("memory");
    let sqe = block_command(opcode::READ, NSID, 0, 1, false);
    let data = [whole(&memory)];
    queue.submit(sqe, &data, 3, NOW).expect("room");
    queue.ring();
    queue.submit(sqe, &data, 5, NOW).expect("room");
    assert_eq!(queue.unanswered(), None);
    let (function, none) = controller.stop(Vec::new()).expect("it stops");
    assert!(none.is_empty());
    let mut controller = Controller::open(function, config()).expect("it opens again");
    let _other = controller.create_queue().expect("a queue");
    let doorbells = ssd.doorbells();
    queue.ring();
    // Its completion is there. The model panics if the head of the other controller's queue moves.
    let answered = ended(&mut queue).expect("possible");
    assert_eq!((answered.cookie, answered.status), (3, Status::SUCCESS));
    let refused = queue.submit(sqe, &data, 4, NOW);
    assert_eq!(refused, Err(SubmitError::Ended(Cause::Stopped)));
    assert_eq!(ssd.doorbells(), doorbells);
    assert_eq!(queue.unanswered(), Some(vec![5]));
    assert_eq!(queue.unanswered(), Some(vec![]));
}

/// Data longer than a command may have is refused before it touches the list of another command.
#[test]
fn too_much_data_is_refused_and_leaves_other_commands_alone() {
    let ssd = Ssd::new();
    let mut controller = open(&ssd);
    let mut queue = controller.create_queue().expect("a queue");
    let memory = controller.arena().alloc(1 << 20, 4096).expect("memory");
    let longest = [whole(&memory.part(0, 128 << 10))];
    let write = block_command(opcode::WRITE, NSID, 0, 256, false);
    for cookie in 0..3 {
        queue.submit(write, &longest, cookie, NOW).expect("room");
    }
    let refused = queue.submit(write, &[whole(&memory)], 9, NOW);
    let most = 32;
    assert_eq!(refused, Err(SubmitError::Data(PrpError::Pages { most })));
    queue.ring();
    let mut places = [Ended::NONE; 8];
    assert_eq!(queue.poll(&mut places), Ok(3));
}

#[test]
fn a_function_that_is_no_nvme_controller_is_left_alone() {
    let ssd = Ssd::new();
    ssd.set_class([0x00, 0x00, 0x02]);
    let refused = Controller::open(function(&ssd), config()).expect_err("a network card");
    let why = refused.to_string();
    assert!(why.contains("class code 020000"), "{why}");
    assert_eq!(ssd.resets(), 0);
}

#[test]
fn a_controller_that_was_left_enabled_is_disabled_first() {
    let ssd = Ssd::new();
    ssd.leave_enabled();
    let mut controller = open(&ssd);
    assert_eq!(controller.namespaces().expect("a list"), [NSID]);
}

/// Doorbells far apart, the fewest entries, and a BAR without room for the doorbells.
#[test]
fn capabilities_are_taken_as_they_are_or_refused() {
    let cap = |entries: u64, stride: u64| 1 << 37 | 3 << 24 | stride << 32 | (entries - 1);
    let ssd = Ssd::new();
    ssd.set_cap(cap(2, 0));
    let mut controller = open(&ssd);
    let mut queue = controller.create_queue().expect("a queue of two entries");
    let flush = command(opcode::FLUSH, NSID);
    for _ in 0..5 {
        queue.submit(flush, &[], 1, NOW).expect("room");
        assert_eq!(queue.submit(flush, &[], 2, NOW), Err(SubmitError::Full));
        assert_eq!(ended(&mut queue).expect("possible").cookie, 1);
    }
    let ssd = Ssd::new();
    ssd.set_cap(cap(1, 0));
    let refused = open(&ssd)
        .create_queue()
        .expect_err("no room for a command");
    assert!(refused.to_string().contains("CAP.MQES is 0"), "{refused}");
    let ssd = Ssd::new();
    ssd.set_cap(cap(256, 15));
    let refused = Controller::open(function(&ssd), config()).expect_err("no such doorbells");
    assert!(refused.to_string().starts_with("BAR 0: "), "{refused}");
    assert!(!ssd.is_running());
}
