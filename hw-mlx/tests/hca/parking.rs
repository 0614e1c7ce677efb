//! A function whose process ends: it is parked with work under way, resumed from plain data, and finishes the work.
//!
//! The simulated function is behind a vfio-user server, because a function in the process cannot be parked. The server
//! sees one client, and counts the resets.

mod changed;
mod instances;
mod objects;
mod port;
mod refused;
mod resumed;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use driver::{Clock, Device, DmaBuffer, Function, NamedFd, RealClock, VfioUserServer};
use hw_mlx::completion::{Completion, Status};
use hw_mlx::cq::{Cq, CqSnapshot};
use hw_mlx::mkey::{self, KeyRequest};
use hw_mlx::qp::control::QpRequest;
use hw_mlx::qp::{Qp, QpSnapshot};
use hw_mlx::srq::Srq;
use hw_mlx::uar::Doorbells;
use hw_mlx::{
    AsyncEvent, EqSnapshot, GidEntry, Hca, HcaConfig, HcaSnapshot, HcaTables, InstanceSnapshot,
    NotParked, ParkError, ParkingHca, ResumeError,
};
use hw_sim::{Drive, FaultCause, Profile, Sim, SimConfig, SimFunction};
use mlx_prm::{AllocPdIn, Cqn, InitSegment, NopIn};
use rdma_types::{
    Access, DataSegment, Path, Psn, QueueSizes, ReadyToReceive, ReadyToSend, RequestFlags,
    RequestOp,
};
use tempfile::TempDir;

/// Time limit of a test's waits.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time without a completion after which none is expected.
const QUIET: Duration = Duration::from_millis(300);
/// Bytes of a message.
const BYTES: u32 = 3000;
const SLOTS: u32 = 8;
const SIZES: QueueSizes = QueueSizes {
    max_requests: 16,
    max_recvs: 16,
    max_request_segments: 2,
    max_read_segments: 1,
    max_recv_segments: 2,
    binds: false,
};

/// Offset of the health counter in the initialization segment, whose upper byte is the syndrome.
const HEALTH_COUNTER: usize = core::mem::offset_of!(InitSegment, health_counter);

/// A simulated function behind a server's socket.
struct Served {
    sim: Sim,
    function: Arc<SimFunction>,
    directory: TempDir,
    /// True while the function's time stands still, so that what is posted is not done.
    stopped: Arc<Mutex<bool>>,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Served {
    #[expect(
        clippy::disallowed_methods,
        reason = "the server and its time are another process's"
    )]
    fn with(change: impl FnOnce(Profile) -> Profile) -> Self {
        let sim = Sim::new(SimConfig {
            seed: 0,
            event_log: false,
        });
        sim.set_posted_writes(true);
        let mut profile = Profile::named("served", [2, 0, 0, 0, 0, 1]);
        profile.pages.init = profile.pages.init.min(64);
        let function = sim.add_function(change(profile));
        let directory = tempfile::tempdir().expect("a directory");
        let (listener, taken) =
            driver::listen_at(&directory.path().join("served")).expect("a path");
        let device = Arc::clone(&function) as Arc<dyn Device>;
        let server = thread::spawn(move || {
            let _taken = taken;
            let served = VfioUserServer::new(device, listener).serve_next();
            served.expect("a client");
        });
        let over = Arc::new(AtomicBool::new(false));
        let (ends, moved) = (Arc::clone(&over), sim.clone());
        let stopped = Arc::new(Mutex::new(false));
        let stands = Arc::clone(&stopped);
        let mover = thread::spawn(move || {
            let clock = RealClock::new();
            while !ends.load(Ordering::Relaxed) {
                let stands = stands.lock().expect("no panic");
                if !*stands {
                    moved.advance(Duration::from_millis(1));
                }
                drop(stands);
                clock.wait(&[], clock.now() + Duration::from_millis(1));
            }
        });
        Self {
            sim,
            function,
            directory,
            stopped,
            over,
            threads: vec![server, mover],
        }
    }

    fn new() -> Self {
        Self::with(|profile| profile)
    }

    fn open(&self) -> Hca {
        self.open_with(HcaConfig::new())
    }

    fn open_with(&self, config: HcaConfig) -> Hca {
        let function = Function::vfio_user(self.directory.path().join("served"));
        Hca::open(function.expect("a server"), config).expect("bring-up")
    }

    /// Stops the function's time, and what register writes would start at once. A step that is under way ends before.
    fn stop_time(&self) {
        *self.stopped.lock().expect("no panic") = true;
        self.sim.set_drive(Drive::Stepped);
    }

    /// Lets the function do all that is posted, and its time go on.
    fn go_on(&self) {
        self.sim.set_drive(Drive::Inline);
        self.sim.advance(Duration::from_millis(100));
        *self.stopped.lock().expect("no panic") = false;
    }

    /// Returns whether the firmware reports no fatal syndrome.
    fn is_alive(&self) -> bool {
        let memory = self.function.bar(0).expect("a BAR");
        memory.load_be32(HEALTH_COUNTER) >> 24 == 0
    }

    fn resets(&self) -> u64 {
        self.sim.report(&self.function).resets
    }

    /// Ends the server, whose client is gone. Returns the number of resets since `before`.
    fn finished(mut self, before: u64) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("no panic");
        }
        let report = self.sim.report(&self.function);
        assert_eq!(report.driver_bugs, Vec::<String>::new());
        // A function that is stopped may have had packets under way.
        let mut faults = report.dma_faults.iter();
        assert!(
            faults.all(|it| it.cause == FaultCause::NotBusMaster),
            "{:?}",
            report.dma_faults
        );
        report.resets - before
    }
}

fn park(hca: Hca) -> (HcaSnapshot, Vec<NamedFd>) {
    hca.park().expect("parked")
}

fn resume(snapshot: &HcaSnapshot, descriptors: Vec<NamedFd>) -> Hca {
    only(Hca::resume(snapshot, descriptors).expect("resumed"))
}

/// Returns the instance of a function that has one.
fn only(mut instances: Vec<Hca>) -> Hca {
    assert_eq!(instances.len(), 1);
    instances.remove(0)
}

/// Returns the objects without which the resumption is not finished.
fn missing(hca: &mut Hca) -> Vec<(&'static str, i64)> {
    match hca.finish_resuming() {
        Err(ResumeError::Missing { objects }) => objects,
        other => panic!("{other:?}"),
    }
}

fn not_parked(hca: Hca) -> (Hca, ParkError) {
    let NotParked {
        instances, error, ..
    } = *hca.park().expect_err("it is in use");
    (only(instances), error)
}

#[test]
fn a_parked_function_goes_on_where_it_was_and_is_not_reset() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    hca.exec(&NopIn::new()).expect("answered");
    hca.push_event(AsyncEvent::PortChange { sub_type: 9 });
    let (port, gids, pages) = (*hca.port(), hca.gids(), hca.page_counts());
    let report = hca.bringup_report().clone();
    let tallies = hca.command_tallies();
    let (snapshot, descriptors) = park(hca);
    assert_eq!(served.resets(), before);

    let mut hca = resume(&snapshot, descriptors);
    assert_eq!(
        (*hca.port(), hca.gids(), hca.page_counts()),
        (port, gids, pages)
    );
    assert_eq!(*hca.bringup_report(), report);
    let again = hca.command_tallies();
    for (opcode, tally) in tallies {
        assert!(again[&opcode].answered >= tally.answered, "{opcode:?}");
    }
    assert!(hca.wait(hca.now()).expect("alive"), "there are events");
    assert_eq!(
        hca.next_async(),
        Some(AsyncEvent::PortChange { sub_type: 9 })
    );
    assert_eq!(hca.next_async(), None);
    // The unclaimed memory is that of mailboxes, in pages of 4 KiB.
    let unclaimed = hca.finish_resuming().expect("all is there");
    assert!(unclaimed.iter().all(|it| it.bytes == 4096), "{unclaimed:?}");
    hca.exec(&NopIn::new()).expect("answered");
    let pd = hca.exec(&AllocPdIn::new()).expect("a protection domain");
    let mut input = mlx_prm::DeallocPdIn::new();
    input.set_pd(pd.pd());
    hca.exec(&input).expect("freed");
    let other = hca.opened().instance().expect("an instance").expect("open");
    assert_eq!(other.close().expect("closed").instances_left, 1);
    assert_eq!(served.resets(), before);
    let closed = hca.close().expect("closed");
    assert_eq!(
        (closed.pages_not_returned, closed.objects_left),
        (0, vec![])
    );
    assert_eq!(closed.pages_given, closed.pages_returned);
    // The end of the session.
    assert_eq!(served.finished(before), 1);
}

#[test]
fn a_function_is_parked_again_and_again_and_grows_no_memory() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    let mut mapped = None;
    for _ in 0..5 {
        let (snapshot, descriptors) = park(hca);
        hca = resume(&snapshot, descriptors);
        hca.finish_resuming().expect("all is there");
        hca.exec(&NopIn::new()).expect("answered");
        let bytes = hca.arena().mapped_bytes();
        assert_eq!(*mapped.get_or_insert(bytes), bytes);
    }
    hca.close().expect("closed");
    assert_eq!(served.finished(before), 1);
}

/// Numbers and places of the objects of a test.
struct Work {
    request: KeyRequest,
    mkey: u32,
    memory: DmaBuffer,
    doorbells: Doorbells,
    cq: Cq,
    qp: Qp,
}

impl Work {
    /// Creates a queue pair that is connected to itself.
    fn new(hca: &mut Hca) -> Self {
        Self::with(hca, SIZES)
    }

    fn with(hca: &mut Hca, sizes: QueueSizes) -> Self {
        let doorbells = Doorbells::new(hca.uar().clone());
        let pd = hca.exec(&AllocPdIn::new()).expect("a PD").pd();
        let bytes = 2 * SLOTS as usize * 4096;
        let memory = hca.arena().alloc(bytes, 4096).expect("memory");
        let request = KeyRequest {
            pd,
            address: memory.address(),
            bytes: bytes as u64,
            access: Access::LOCAL_READ | Access::LOCAL_WRITE,
            variant: 0,
            may_have_windows: sizes.binds,
        };
        let (mkey, _) = mkey::create(hca, &request, memory.iova()).expect("a key");
        let cq = Cq::create(hca, &doorbells, 64).expect("a completion queue");
        let qp_request = QpRequest {
            pd,
            cqn_send: cq.cqn(),
            cqn_receive: cq.cqn(),
            srq: None,
            sizes,
            owner: 7,
        };
        let mut qp = Qp::create(hca, &doorbells, &qp_request).expect("a queue pair");
        connect(hca, &mut qp);
        Self {
            request,
            mkey,
            memory,
            doorbells,
            cq,
            qp,
        }
    }

    fn segment(&self, slot: u32) -> DataSegment {
        DataSegment {
            lmr_context: self.mkey << 8 | u32::from(self.request.variant),
            address: self.memory.address() + u64::from(slot) * 4096,
            bytes: BYTES,
        }
    }

    fn receive(&mut self, slot: u32) {
        let segment = self.segment(SLOTS + slot);
        let cookie = 1000 + u64::from(slot);
        let posted = self.qp.post_recv(core::iter::once(segment), cookie, false);
        posted.expect("room");
    }

    fn send(&mut self, slot: u32) {
        let bytes = pattern(slot);
        self.memory.write_bytes(slot as usize * 4096, &bytes);
        let segment = core::iter::once(self.segment(slot));
        let flags = RequestFlags {
            unsignalled: slot % 2 == 1,
            ..RequestFlags::NONE
        };
        let posted = self
            .qp
            .post_request(RequestOp::Send, segment, slot.into(), flags);
        posted.expect("room");
    }

    /// Takes the completions that are there.
    fn completions(&mut self) -> Vec<Completion> {
        let mut done = Vec::new();
        while let Some(entry) = self.cq.poll() {
            assert_eq!(entry.owner(), 7);
            done.extend(self.qp.complete(&entry));
        }
        done
    }

    fn wait_for(&mut self, hca: &mut Hca, count: usize) -> Vec<Completion> {
        let deadline = hca.now() + PATIENCE;
        let mut done = self.completions();
        while done.len() < count {
            assert!(hca.now() < deadline, "{} of {count}", done.len());
            hca.wait(hca.now() + Duration::from_millis(1))
                .expect("alive");
            done.extend(self.completions());
        }
        done
    }

    /// Takes completions until there are `count`, or no further one comes for a while.
    fn completions_until_quiet(&mut self, hca: &mut Hca, count: usize) -> Vec<Completion> {
        let mut done = self.completions();
        let mut quiet_at = hca.now() + QUIET;
        while done.len() < count && hca.now() < quiet_at {
            hca.wait(hca.now() + Duration::from_millis(1))
                .expect("alive");
            let more = self.completions();
            if !more.is_empty() {
                quiet_at = hca.now() + QUIET;
            }
            done.extend(more);
        }
        done
    }

    /// Checks that each of these messages has come.
    fn check(&self, slots: impl IntoIterator<Item = u32>) {
        for slot in slots {
            let mut bytes = vec![0; BYTES as usize];
            let at = (SLOTS + slot) as usize * 4096;
            self.memory.read_bytes(at, &mut bytes);
            assert_eq!(bytes, pattern(slot), "slot {slot}");
        }
    }

    /// Parks all objects, and drops the memory.
    fn park(self, parking: &ParkingHca) -> Parked {
        Parked {
            request: self.request,
            mkey: self.mkey,
            iova: self.memory.iova(),
            bytes: self.memory.len(),
            cq: self.cq.park(parking),
            qp: self.qp.park(parking),
        }
    }
}

/// Snapshots and numbers of [`Work`] while its function is parked.
#[derive(Clone)]
struct Parked {
    request: KeyRequest,
    mkey: u32,
    iova: driver::Iova,
    bytes: usize,
    cq: CqSnapshot,
    qp: QpSnapshot,
}

impl Parked {
    fn try_resume(&self, hca: &mut Hca) -> Result<Work, ResumeError> {
        self.resume_with(hca, None)
    }

    fn resume_with(&self, hca: &mut Hca, srq: Option<&Srq>) -> Result<Work, ResumeError> {
        let memory = hca.arena().claim(self.iova, self.bytes).expect("memory");
        let memory = mkey::resume(hca, self.mkey, &self.request, memory)?;
        let doorbells = Doorbells::new(hca.uar().clone());
        let cq = Cq::resume(hca, &doorbells, &self.cq)?;
        let qp = Qp::resume(hca, &doorbells, &self.qp, srq, None)?;
        Ok(Work {
            request: self.request,
            mkey: self.mkey,
            memory,
            doorbells,
            cq,
            qp,
        })
    }

    fn resume(&self, hca: &mut Hca) -> Work {
        self.try_resume(hca).expect("resumed")
    }
}

fn pattern(slot: u32) -> Vec<u8> {
    (0..BYTES)
        .map(|at| u8::try_from((at * 7 + slot * 31) % 251).expect("a byte"))
        .collect()
}

/// Moves a queue pair from INIT to RTS, connected to itself by our own address.
fn connect(hca: &mut Hca, qp: &mut Qp) {
    let own = *hca.gids().first().expect("an address");
    connect_from(hca, qp, &own);
}

/// Does the same with another of our addresses.
fn connect_from(hca: &mut Hca, qp: &mut Qp, own: &GidEntry) {
    let receive = ReadyToReceive {
        path: Path {
            source_gid_index: own.index,
            gid: own.gid,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            priority: 0,
        },
        remote_qpn: qp.number(),
        receive_psn: Psn::masked(0xff_fffe),
        mtu: hca.port().path_mtu,
        reads_in: 1,
        min_rnr_timer: 12,
    };
    qp.ready_to_receive(hca, &receive, own.mac, None)
        .expect("RTR");
    let send = ReadyToSend {
        send_psn: Psn::masked(0xff_fffe),
        reads_out: 1,
        retry_count: 7,
        rnr_retry: 7,
        ack_timeout: 14,
    };
    qp.ready_to_send(hca, &send).expect("RTS");
}

fn wait_for_event(hca: &mut Hca, cqn: Cqn) {
    let deadline = hca.now() + PATIENCE;
    while hca.next_completion() != Some(cqn) {
        assert!(hca.now() < deadline, "no event");
        hca.wait(deadline).expect("alive");
    }
}

/// Cookies of successful completions, sorted.
fn cookies(done: &[Completion]) -> Vec<u64> {
    assert!(
        done.iter().all(|it| it.status == Status::Success),
        "{done:?}"
    );
    let mut cookies: Vec<u64> = done.iter().map(|it| it.cookie).collect();
    cookies.sort_unstable();
    cookies
}

/// Some messages are done and taken, some are done and not taken, some wait for receives that are posted after the
/// resumption.
#[test]
fn work_under_way_completes_exactly_once_after_the_function_was_parked() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    let mut work = Work::new(&mut hca);
    (0..4).for_each(|slot| work.receive(slot));
    (0..2).for_each(|slot| work.send(slot));
    assert_eq!(cookies(&work.wait_for(&mut hca, 4)), [0, 1, 1000, 1001]);
    work.cq.arm(false);
    (2..6).for_each(|slot| work.send(slot));

    let parking = hca.begin_parking().expect("quiet");
    let parked = work.park(&parking);
    let (snapshot, descriptors) = parking.finish().expect("parked");
    let mut hca = resume(&snapshot, descriptors);
    assert_eq!(missing(&mut hca), [("mkey", 1), ("CQ", 1), ("QP", 1)]);
    let mut work = parked.resume(&mut hca);
    hca.finish_resuming().expect("all is there");

    let cqn = Cqn::new(work.cq.cqn());
    let deadline = hca.now() + PATIENCE;
    loop {
        if hca.next_completion() == Some(cqn) {
            break;
        }
        assert!(hca.now() < deadline, "no event");
        hca.wait(deadline).expect("alive");
    }
    work.cq.sequence().count_event();
    let mut done = work.wait_for(&mut hca, 4);
    (4..8).for_each(|slot| work.receive(slot));
    done.extend(work.wait_for(&mut hca, 4));
    let expected = [2, 3, 4, 5, 1002, 1003, 1004, 1005];
    assert_eq!(cookies(&done), expected);
    work.check(0..6);
    (6..8).for_each(|slot| work.send(slot));
    // The queue is armed again: its event comes.
    work.cq.arm(false);
    assert!(work.cq.is_armed());
    while hca.next_completion() != Some(cqn) {
        assert!(hca.now() < deadline, "no event");
        hca.wait(deadline).expect("alive");
    }
    assert_eq!(cookies(&work.wait_for(&mut hca, 4)), [6, 7, 1006, 1007]);
    work.check(6..8);
    assert_eq!((work.qp.unmatched_entries(), served.resets()), (0, before));
    let counts = work.qp.counts();
    assert_eq!((counts.requests, counts.recvs), (8, 8));
    let Work { qp, cq, .. } = &mut work;
    qp.destroy(&mut hca, cq, None).expect("destroyed");
    cq.destroy(&mut hca).expect("destroyed");
    drop((work, hca));
    assert_eq!(served.finished(before), 2);
}

#[test]
fn a_function_in_use_is_not_parked_says_why_and_stays_usable() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();

    let other = hca.opened().instance().expect("an instance").expect("open");
    let (again, error) = not_parked(hca);
    assert!(
        matches!(error, ParkError::Instances { count: 2, given: 1 }),
        "{error}"
    );
    hca = again;
    drop(other);

    hca.one_limit(true);
    let (again, error) = not_parked(hca);
    assert!(matches!(error, ParkError::Limited), "{error}");
    hca = again;
    hca.one_limit(false);

    let pending = hca.submit(&NopIn::new(), &[]).expect("posted");
    let (again, error) = not_parked(hca);
    assert!(matches!(error, ParkError::Commands { .. }), "{error}");
    hca = again;
    hca.answer(pending).expect("answered");

    let function = hca.function().clone();
    let (again, error) = not_parked(hca);
    let is_clone = matches!(
        error,
        ParkError::Function(driver::ParkError::Clones { others: 1, .. })
    );
    assert!(is_clone, "{error}");
    hca = again;
    drop(function);
    hca.exec(&NopIn::new()).expect("answered");
    let (again, error) = not_parked(hca);
    assert!(matches!(error, ParkError::Unfinished), "{error}");
    hca = again;
    hca.finish_resuming().expect("all is there");

    // Doorbells of a queue that was not dropped.
    let mut work = Work::new(&mut hca);
    work.receive(0);
    let parking = hca.begin_parking().expect("quiet");
    let doorbells = work.doorbells.clone();
    let parked = work.park(&parking);
    let NotParked { parking, error, .. } = *parking.finish().expect_err("a register is in use");
    let is_bar = matches!(
        error,
        ParkError::Function(driver::ParkError::Bars { count: 1, .. })
    );
    assert!(is_bar, "{error}");
    drop(doorbells);
    let parking = parking.expect("unfinished");
    hca = only(parking.cancel().expect("driven again"));
    let mut work = parked.resume(&mut hca);
    hca.finish_resuming().expect("all is there");
    work.send(0);
    assert_eq!(cookies(&work.wait_for(&mut hca, 2)), [0, 1000]);

    assert!(hca.retire());
    let (hca, error) = not_parked(hca);
    assert!(matches!(error, ParkError::Closed), "{error}");
    assert_eq!(served.resets(), before);
    drop((work, hca));
    assert_eq!(served.finished(before), 2);
}

/// A buffer that is still there would be another owner of memory that the next process claims.
#[test]
fn a_parking_is_finished_or_cancelled_after_all_buffers_are_dropped() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    for cancels in [true, false] {
        let buffer = hca.arena().alloc(100, 64).expect("memory");
        let place = (buffer.iova(), buffer.len());
        buffer.write_bytes(0, b"mine");
        let parking = hca.begin_parking().expect("quiet");
        let NotParked { parking, error, .. } = *parking.finish().expect_err("in use");
        assert!(
            matches!(error, ParkError::MemoryInUse { count: 1 }),
            "{error}"
        );
        drop(buffer);
        let parking = parking.expect("unfinished");
        hca = if cancels {
            only(parking.cancel().expect("driven again"))
        } else {
            let (snapshot, descriptors) = parking.finish().expect("parked");
            resume(&snapshot, descriptors)
        };
        let buffer = hca.arena().claim(place.0, place.1).expect("still there");
        assert_eq!(buffer.read_obj::<[u8; 4]>(0), *b"mine");
        hca.finish_resuming().expect("all is there");
        hca.exec(&NopIn::new()).expect("answered");
    }
    assert_eq!(served.resets(), before);
    hca.close().expect("closed");
    assert_eq!(served.finished(before), 1);
}

/// The device may still write the memory of a queue that was dropped without being parked.
#[test]
fn a_function_is_not_parked_after_a_queue_was_dropped_that_was_not_parked() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    let work = Work::new(&mut hca);
    let parking = hca.begin_parking().expect("quiet");
    drop(work);
    let NotParked { parking, error, .. } = *parking.finish().expect_err("kept memory");
    assert!(matches!(error, ParkError::Arena(_)), "{error}");
    drop(parking);
    served.finished(before);
}

#[test]
fn a_dead_function_is_not_parked() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    hca.stop("of a test");
    let (hca, error) = not_parked(hca);
    assert!(matches!(error, ParkError::Dead(_)), "{error}");
    drop(hca);
    served.finished(before);
}
