//! A host that writes registers and queue entries itself, and does what no driver does.

use std::sync::atomic::{Ordering, fence};

use driver::{Bar, Block, DmaArena, Le32};
use zerocopy::IntoBytes;

use super::*;
use crate::nvme::command::admin;
use crate::nvme::identify::{self, cns};
use crate::nvme::{Cqe, Sqe};

/// Number of entries of each queue.
const ENTRIES: u32 = 16;

/// A register or a doorbell.
#[derive(zerocopy::FromBytes)]
#[repr(C)]
struct Word {
    value: driver::Rw<Le32>,
}

/// A pair of queues.
struct Pair {
    number: u16,
    submission: DmaBuffer,
    completion: DmaBuffer,
    tail: u32,
    /// Number of entries of the completion queue.
    completions: u32,
    /// Number of completions taken.
    taken: u32,
}

impl Pair {
    fn new(arena: &DmaArena, number: u16) -> Self {
        let alloc = |bytes| arena.alloc(bytes, 4096).expect("memory");
        let pair = Self {
            number,
            submission: alloc(ENTRIES as usize * 64),
            completion: alloc(ENTRIES as usize * 16),
            tail: 0,
            completions: ENTRIES,
            taken: 0,
        };
        pair.completion.fill(0, pair.completion.len(), 0);
        pair
    }
}

struct Host {
    bar: Bar,
    arena: DmaArena,
    /// `None` only while a command is under way.
    admin: Option<Pair>,
    data: DmaBuffer,
    cid: u16,
}

impl Host {
    fn new(ssd: &Arc<Ssd>) -> Self {
        let function = function(ssd);
        function.set_bus_master(true).expect("bus master");
        let arena = DmaArena::new(&function).expect("memory");
        let mut host = Self {
            bar: function.bar(0).expect("a BAR"),
            admin: None,
            data: arena.alloc(8192, 4096).expect("memory"),
            arena,
            cid: 0,
        };
        host.enable();
        host
    }

    fn word(&self, at: u64) -> Block<Word> {
        self.bar.block(at).expect("a register")
    }

    fn write(&self, at: u64, value: u32) {
        let register = self.word(at).register(|word| &word.value);
        register.write(Le32::new(value));
    }

    fn read(&self, at: u64) -> u32 {
        self.word(at).read(|word| &word.value).get()
    }

    fn enable(&mut self) {
        let admin = Pair::new(&self.arena, 0);
        self.write(0x24, (ENTRIES - 1) << 16 | (ENTRIES - 1));
        for (at, queue) in [(0x28, &admin.submission), (0x30, &admin.completion)] {
            let address = queue.iova().0;
            let low = u32::try_from(address & 0xffff_ffff).expect("a half");
            self.write(at, low);
            self.write(at + 4, u32::try_from(address >> 32).expect("a half"));
        }
        self.admin = Some(admin);
        self.write(0x14, 0x0046_0001);
        self.wait_for_status(1);
    }

    /// Waits until CSTS has this value.
    fn wait_for_status(&self, wanted: u32) {
        let deadline = now() + LIMIT;
        while self.read(0x1c) != wanted {
            assert!(now() < deadline, "CSTS is {:#x}", self.read(0x1c));
            std::thread::yield_now();
        }
    }

    /// Carries out an admin command. Returns its status.
    fn command(&mut self, sqe: Sqe) -> Status {
        let mut admin = self.admin.take().expect("enabled");
        let status = self.command_of(&mut admin, sqe);
        self.admin = Some(admin);
        status
    }

    fn submit(&mut self, pair: &mut Pair, mut sqe: Sqe) -> u16 {
        self.cid += 1;
        sqe.cid = self.cid.into();
        let at = pair.tail as usize * 64;
        pair.submission.write_bytes(at, sqe.as_bytes());
        pair.tail = (pair.tail + 1) % ENTRIES;
        self.write(0x1000 + 8 * u64::from(pair.number), pair.tail);
        self.cid
    }

    fn completion(&self, pair: &mut Pair) -> Option<Cqe> {
        let at = (pair.taken % pair.completions) as usize * 16;
        let phase = u8::from((pair.taken / pair.completions).is_multiple_of(2));
        if pair.completion.load_u8(at + 14) & 1 != phase {
            return None;
        }
        fence(Ordering::Acquire);
        let cqe = pair.completion.read_obj(at);
        pair.taken += 1;
        let head = pair.taken % pair.completions;
        self.write(0x1004 + 8 * u64::from(pair.number), head);
        Some(cqe)
    }

    fn wait(&self, pair: &mut Pair) -> Cqe {
        let deadline = now() + LIMIT;
        loop {
            if let Some(cqe) = self.completion(pair) {
                return cqe;
            }
            assert!(now() < deadline, "no completion");
            std::thread::yield_now();
        }
    }

    fn command_of(&mut self, pair: &mut Pair, sqe: Sqe) -> Status {
        let cid = self.submit(pair, sqe);
        let cqe = self.wait(pair);
        assert_eq!((cqe.cid.get(), cqe.sqid.get()), (cid, pair.number));
        Status::of_field(cqe.status.get() & !1)
    }

    /// Creates a pair of I/O queues.
    fn pair(&mut self, number: u16) -> Pair {
        self.pair_of(number, ENTRIES)
    }

    /// Creates a pair whose completion queue has this many entries.
    fn pair_of(&mut self, number: u16, completions: u32) -> Pair {
        let mut pair = Pair::new(&self.arena, number);
        pair.completions = completions;
        let at = pair.completion.iova().0;
        let sqe = create(admin::CREATE_COMPLETION_QUEUE, number, (completions, 0), at);
        assert_eq!(self.command(sqe), Status::SUCCESS);
        self.create_submission(&mut pair);
        pair
    }

    fn create_submission(&mut self, pair: &mut Pair) {
        let (number, at) = (pair.number, pair.submission.iova().0);
        let sqe = create(
            admin::CREATE_SUBMISSION_QUEUE,
            number,
            (ENTRIES, number),
            at,
        );
        assert_eq!(self.command(sqe), Status::SUCCESS);
        pair.tail = 0;
    }

    /// Sends an admin command. [`Self::admin_completion`] returns its completion.
    fn send(&mut self, sqe: Sqe) -> u16 {
        let mut admin = self.admin.take().expect("enabled");
        let cid = self.submit(&mut admin, sqe);
        self.admin = Some(admin);
        cid
    }

    fn admin_completion(&mut self) -> Cqe {
        let mut admin = self.admin.take().expect("enabled");
        let cqe = self.wait(&mut admin);
        self.admin = Some(admin);
        cqe
    }
}

/// Makes a command that creates a queue in contiguous memory. `of`: the completion queue of a submission queue.
fn create(opcode: u8, number: u16, (entries, of): (u32, u16), at: u64) -> Sqe {
    let mut sqe = Sqe::of(opcode);
    sqe.cdw10 = ((entries - 1) << 16 | u32::from(number)).into();
    sqe.cdw11 = (u32::from(of) << 16 | 1).into();
    sqe.set_prp([at, 0]);
    sqe
}

fn delete(opcode: u8, number: u16) -> Sqe {
    let mut sqe = Sqe::of(opcode);
    sqe.cdw10 = u32::from(number).into();
    sqe
}

fn identify(host: &Host, what: u8) -> Sqe {
    let mut sqe = Sqe::of(admin::IDENTIFY);
    sqe.cdw10 = u32::from(what).into();
    sqe.set_prp([host.data.iova().0, 0]);
    sqe
}

fn flush() -> Sqe {
    command(opcode::FLUSH, NSID)
}

/// Base specification 2.0, "Create I/O Completion Queue" and the commands after it: command specific status values.
#[test]
fn queues_are_created_and_deleted_by_the_rules() {
    const CQ: u8 = admin::CREATE_COMPLETION_QUEUE;
    const SQ: u8 = admin::CREATE_SUBMISSION_QUEUE;
    let ssd = ssd(Source::Memory(BYTES), 9);
    let mut host = Host::new(&ssd);
    let _pair = host.pair(1);
    let at = host.data.iova().0;
    let mut far_vector = create(CQ, 2, (16, 9), at);
    far_vector.cdw11 = (9 << 16 | 0b11).into();
    let mut scattered = create(CQ, 2, (16, 0), at);
    scattered.cdw11 = 0.into();
    for (sqe, status) in [
        (create(CQ, 0, (16, 0), at), Status::QUEUE_IDENTIFIER),
        (create(CQ, 1, (16, 0), at), Status::QUEUE_IDENTIFIER),
        (create(CQ, 9, (16, 0), at), Status::QUEUE_IDENTIFIER),
        (create(CQ, 2, (1, 0), at), Status::QUEUE_SIZE),
        (create(CQ, 2, (129, 0), at), Status::QUEUE_SIZE),
        (create(CQ, 2, (16, 0), at + 8), Status::PRP_OFFSET),
        (far_vector, Status::VECTOR),
        (scattered, Status::INVALID_FIELD),
        (create(SQ, 2, (16, 2), at), Status::COMPLETION_QUEUE),
        (create(SQ, 2, (16, 0), at), Status::COMPLETION_QUEUE),
        (create(SQ, 1, (16, 1), at), Status::QUEUE_IDENTIFIER),
        (
            delete(admin::DELETE_COMPLETION_QUEUE, 1),
            Status::QUEUE_DELETION,
        ),
        (
            delete(admin::DELETE_COMPLETION_QUEUE, 2),
            Status::QUEUE_IDENTIFIER,
        ),
        (
            delete(admin::DELETE_SUBMISSION_QUEUE, 0),
            Status::QUEUE_IDENTIFIER,
        ),
    ] {
        assert_eq!(host.command(sqe), status.dnr(), "{sqe:?}");
    }
    for sqe in [
        delete(admin::DELETE_SUBMISSION_QUEUE, 1),
        delete(admin::DELETE_COMPLETION_QUEUE, 1),
    ] {
        assert_eq!(host.command(sqe), Status::SUCCESS);
    }
    let mut pair = host.pair(1);
    assert_eq!(host.command_of(&mut pair, flush()), Status::SUCCESS);
}

/// A doorbell of a queue that is not there, or with a value behind the end of its queue, has no meaning. A register
/// that cannot be written keeps its value.
#[test]
fn wrong_doorbells_and_registers_change_nothing() {
    let ssd = ssd(Source::Memory(BYTES), 9);
    let mut host = Host::new(&ssd);
    let mut pair = host.pair(3);
    let fixed = [0x0, 0x4, 0x8, 0x1c];
    let before = fixed.map(|at| host.read(at));
    for at in fixed.into_iter().chain([0x1008, 0x1010, 0x1ffc]) {
        host.write(at, 5);
    }
    host.write(0x1000 + 8 * 3, ENTRIES);
    host.write(0x1004 + 8 * 3, 0xffff);
    assert_eq!(fixed.map(|at| host.read(at)), before);
    assert_eq!(host.command_of(&mut pair, flush()), Status::SUCCESS);
}

/// As many commands as the queue holds, three times; their completions are taken afterwards.
#[test]
fn completions_that_are_not_taken_are_not_overwritten() {
    let ssd = ssd(Source::Memory(BYTES), 9);
    let mut host = Host::new(&ssd);
    let mut pair = host.pair(1);
    for _ in 0..3 {
        let cids: Vec<u16> = (1..ENTRIES)
            .map(|_| host.submit(&mut pair, flush()))
            .collect();
        let taken = (1..ENTRIES).map(|_| host.wait(&mut pair).cid.get());
        let mut taken: Vec<u16> = taken.collect();
        taken.sort_unstable();
        assert_eq!(taken, cids);
    }
    assert!(host.completion(&mut pair).is_none());
}

/// Identify Controller has no fields of fabrics. A host that wants them gets the events of its namespaces (Base
/// specification 2.0, "Asynchronous Event Configuration", bit 8).
#[test]
fn an_event_request_is_answered_when_a_namespace_is_added() {
    let ssd = ssd(Source::Memory(BYTES), 9);
    let mut host = Host::new(&ssd);
    let sqe = identify(&host, cns::CONTROLLER);
    assert_eq!(host.command(sqe), Status::SUCCESS);
    let page: identify::Controller = host.data.read_obj(0);
    assert_eq!((page.sgl.get(), page.command_capsule.get()), (0, 0));
    assert_eq!((page.kind, page.submission_entry), (1, 0x66));
    let mut sqe = Sqe::of(admin::SET_FEATURES);
    (sqe.cdw10, sqe.cdw11) = (0x0b.into(), (1 << 8).into());
    assert_eq!(host.command(sqe), Status::SUCCESS);
    let mut admin = host.admin.take().expect("enabled");
    let cid = host.submit(&mut admin, Sqe::of(admin::ASYNC_EVENT));
    ssd.with(|model, name| {
        let added = model.add_namespace(name, namespace(2, Source::Memory(BYTES), 12));
        assert_eq!(added, Ok(2));
    });
    let cqe = host.wait(&mut admin);
    // Type 2 (notice), information 0, log page 04h (changed namespaces).
    assert_eq!((cqe.cid.get(), cqe.result.get()), (cid, 0x0004_0002));
    host.admin = Some(admin);
    let sqe = identify(&host, cns::ACTIVE_NAMESPACES);
    assert_eq!(host.command(sqe), Status::SUCCESS);
    let list: [zerocopy::little_endian::U32; 3] = host.data.read_obj(0);
    assert_eq!(list.map(|nsid| nsid.get()), [1, 2, 0]);
}

/// Linux aborts a command that takes too long. One that waits is found: here an event request. One that a disk has is
/// not, and ends as usual.
#[test]
fn an_abort_finds_an_event_request_and_no_command_of_a_disk() {
    let ssd = ssd(Source::Faulty(BYTES), 9);
    let mut host = Host::new(&ssd);
    let abort = |queue: u32, cid: u16| {
        let mut sqe = Sqe::of(admin::ABORT);
        sqe.cdw10 = (queue | u32::from(cid) << 16).into();
        sqe
    };
    let request = host.send(Sqe::of(admin::ASYNC_EVENT));
    let asked = host.send(abort(0, request));
    let ended = host.admin_completion();
    assert_eq!(
        (ended.cid.get(), ended.status()),
        (request, Status::ABORTED)
    );
    let done = host.admin_completion();
    assert_eq!((done.cid.get(), done.result.get()), (asked, 0));
    host.send(abort(0, request));
    assert_eq!(host.admin_completion().result.get(), 1, "it has ended");
    let mut pair = host.pair(1);
    faults(&ssd).order(Some(late_flushes()));
    let slow = host.submit(&mut pair, flush());
    while faults(&ssd).struck() == 0 {
        std::thread::yield_now();
    }
    host.send(abort(1, slow));
    assert_eq!(host.admin_completion().result.get(), 1);
    faults(&ssd).order(None);
    let cqe = host.wait(&mut pair);
    assert_eq!((cqe.cid.get(), cqe.status()), (slow, Status::SUCCESS));
}

/// An event that comes before its request is answered with it.
#[test]
fn an_event_waits_for_its_request() {
    let ssd = ssd(Source::Memory(BYTES), 9);
    let mut host = Host::new(&ssd);
    let mut sqe = Sqe::of(admin::SET_FEATURES);
    (sqe.cdw10, sqe.cdw11) = (0x0b.into(), (1 << 8).into());
    assert_eq!(host.command(sqe), Status::SUCCESS);
    ssd.with(|model, name| {
        let added = model.add_namespace(name, namespace(2, Source::Memory(BYTES), 12));
        assert_eq!(added, Ok(2));
    });
    let cid = host.send(Sqe::of(admin::ASYNC_EVENT));
    let cqe = host.admin_completion();
    assert_eq!((cqe.cid.get(), cqe.result.get()), (cid, 0x0004_0002));
}

/// The controller stops fetching from a queue whose completion queue is full.
#[test]
fn commands_stay_in_their_queue_while_completions_are_not_taken() {
    let ssd = ssd(Source::Memory(BYTES), 9);
    let mut host = Host::new(&ssd);
    let mut pair = host.pair_of(1, 2);
    let cids: Vec<u16> = (1..ENTRIES)
        .map(|_| host.submit(&mut pair, flush()))
        .collect();
    let mut taken = Vec::new();
    for number in 1..ENTRIES {
        let cqe = host.wait(&mut pair);
        // One completion is in the queue, and two wait or are under way.
        let head = u32::from(cqe.sq_head.get());
        assert!(head <= number + 3, "{head} are fetched, {number} are taken");
        taken.push(cqe.cid.get());
    }
    taken.sort_unstable();
    assert_eq!(taken, cids);
}

/// A completion that was not written when its submission queue was deleted is not that of the next queue of the same
/// number.
#[test]
fn completions_of_a_deleted_queue_do_not_reach_the_next_one() {
    let ssd = ssd(Source::Memory(BYTES), 9);
    let mut host = Host::new(&ssd);
    let mut pair = host.pair_of(1, 2);
    let cids: Vec<u16> = (0..3).map(|_| host.submit(&mut pair, flush())).collect();
    let first = host.wait(&mut pair).cid.get();
    assert!(cids.contains(&first));
    assert_eq!(
        host.command(delete(admin::DELETE_SUBMISSION_QUEUE, 1)),
        Status::SUCCESS
    );
    // One more may have been written before the deletion.
    let written = host.completion(&mut pair).map(|cqe| cqe.cid.get());
    assert!(written.is_none_or(|cid| cids.contains(&cid)));
    host.create_submission(&mut pair);
    assert_eq!(host.command_of(&mut pair, flush()), Status::SUCCESS);
}

fn faults(ssd: &Ssd) -> Arc<crate::disk::faults::Faults> {
    ssd.with(|model, name| {
        let namespace = model.namespace(name, NSID).expect("it is there");
        Arc::clone(namespace.disk().faults().expect("a faulty disk"))
    })
}

fn late_flushes() -> Orders {
    Orders {
        of: Of::Flushes,
        delay: LONGEST_DELAY,
        ..Orders::default()
    }
}

/// The disk still has a command of the queue. Its deletion is answered afterwards, and no queue has its number before.
#[test]
fn a_deletion_is_answered_when_the_disk_has_ended_the_commands() {
    let ssd = ssd(Source::Faulty(BYTES), 9);
    let mut host = Host::new(&ssd);
    let mut pair = host.pair(1);
    let faults = faults(&ssd);
    faults.order(Some(late_flushes()));
    host.submit(&mut pair, flush());
    let deletion = host.send(delete(admin::DELETE_SUBMISSION_QUEUE, 1));
    let sqe = create(
        admin::CREATE_SUBMISSION_QUEUE,
        1,
        (ENTRIES, 1),
        pair.submission.iova().0,
    );
    assert_eq!(host.command(sqe), Status::QUEUE_IDENTIFIER.dnr());
    faults.order(None);
    let cqe = host.admin_completion();
    assert_eq!((cqe.cid.get(), cqe.status.get() >> 1), (deletion, 0));
    host.create_submission(&mut pair);
}

/// CSTS.SHST is 01b (occurring) until the disks have ended all commands and are flushed.
#[test]
fn a_shutdown_waits_for_the_disks() {
    let ssd = ssd(Source::Faulty(BYTES), 9);
    let host = Host::new(&ssd);
    let faults = faults(&ssd);
    faults.order(Some(late_flushes()));
    host.write(0x14, 0x0046_4001);
    host.wait_for_status(0b0101);
    faults.order(None);
    host.wait_for_status(0b1001);
}

/// A controller that was disabled is ready again only after the disk has ended its commands: a late write must not
/// follow a new one.
#[test]
fn a_controller_is_ready_again_after_the_disk_has_ended_its_commands() {
    let ssd = ssd(Source::Faulty(BYTES), 9);
    let mut host = Host::new(&ssd);
    let mut pair = host.pair(1);
    let faults = faults(&ssd);
    faults.order(Some(late_flushes()));
    host.submit(&mut pair, flush());
    // The flush is under way: an admin command that follows it is answered.
    let sqe = identify(&host, cns::CONTROLLER);
    assert_eq!(host.command(sqe), Status::SUCCESS);
    host.write(0x14, 0);
    host.wait_for_status(0);
    host.write(0x14, 0x0046_0001);
    assert_eq!(host.read(0x1c), 0);
    faults.order(None);
    host.wait_for_status(1);
}

/// A host enables the controller again and again with admin queues of one entry, which is an error.
#[test]
fn failed_enables_use_nothing_up() {
    let ssd = ssd(Source::Memory(BYTES), 9);
    let mut host = Host::new(&ssd);
    for _ in 0..1100 {
        host.write(0x14, 0);
        host.wait_for_status(0);
        host.write(0x24, 0);
        host.write(0x14, 0x0046_0001);
        host.wait_for_status(0b10);
    }
    host.write(0x14, 0);
    host.wait_for_status(0);
    host.enable();
}

/// Base specification 2.0, CC.SHN: CSTS.SHST says that the shutdown is complete.
#[test]
fn a_shutdown_completes_and_the_controller_can_be_enabled_again() {
    let ssd = ssd(Source::Memory(BYTES), 9);
    let mut host = Host::new(&ssd);
    let _pair = host.pair(1);
    host.write(0x14, 0x0046_4001);
    host.wait_for_status(0b1001);
    host.write(0x14, 0x0046_0000);
    host.wait_for_status(0);
    host.enable();
    let mut pair = host.pair(1);
    assert_eq!(host.command_of(&mut pair, flush()), Status::SUCCESS);
}

/// CSTS.CFS: an error that no completion can report.
#[test]
fn queues_without_memory_and_a_wrong_configuration_are_fatal_errors() {
    let ssd = ssd(Source::Memory(BYTES), 9);
    let mut host = Host::new(&ssd);
    let at = 1 << 40;
    for opcode in [
        admin::CREATE_COMPLETION_QUEUE,
        admin::CREATE_SUBMISSION_QUEUE,
    ] {
        let sqe = create(opcode, 1, (ENTRIES, 1), at);
        assert_eq!(host.command(sqe), Status::SUCCESS, "it is not accessed yet");
    }
    host.write(0x1008, 1);
    host.wait_for_status(0b11);
    // A shutdown does not end the error.
    host.write(0x14, 0x0046_4001);
    host.wait_for_status(0b1011);
    host.write(0x14, 0);
    host.wait_for_status(0);
    // Pages of 8 KiB.
    host.write(0x14, 0x0046_0081);
    host.wait_for_status(0b10);
    host.write(0x14, 0);
    host.wait_for_status(0);
    host.enable();
}
