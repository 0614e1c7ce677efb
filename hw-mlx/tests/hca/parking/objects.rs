//! Objects of other kinds: shared receive queues, memory windows, resized completion queues.

use hw_mlx::gsi::{Gsi, GsiSnapshot, ReceivedMad};
use hw_mlx::mad::MAD_BYTES;
use hw_mlx::random::{Random, Variants};
use hw_mlx::window::{self, Window};
use mlx_prm::ToErrQpIn;
use rdma_types::{MadAddress, Qpn, WindowTarget};

use super::*;

/// Buffers of a shared receive queue are posted, in use by the device, and returned by a queue pair that is gone.
#[test]
fn a_shared_receive_queue_goes_on_with_its_buffers_in_any_order() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    let mut work = Work::new(&mut hca);
    let mut srq = Srq::create(&mut hca, work.request.pd, 20, 2).expect("an SRQ");
    let request = QpRequest {
        pd: work.request.pd,
        cqn_send: work.cq.cqn(),
        cqn_receive: work.cq.cqn(),
        srq: Some(&srq),
        sizes: SIZES,
        owner: 7,
    };
    let mut qp = Qp::create(&mut hca, &work.doorbells, &request).expect("a queue pair");
    connect(&mut hca, &mut qp);
    let mut first = core::mem::replace(&mut work.qp, qp);
    first
        .destroy(&mut hca, &mut work.cq, None)
        .expect("destroyed");
    drop(first);
    let post = |srq: &mut Srq, work: &Work, slot: u32| {
        let segment = core::iter::once(work.segment(SLOTS + slot));
        srq.post_recv(segment, 1000 + u64::from(slot))
            .expect("room");
    };
    (0..4).for_each(|slot| post(&mut srq, &work, slot));
    (0..2).for_each(|slot| work.send(slot));
    let mut done = Vec::new();
    let deadline = hca.now() + PATIENCE;
    while done.len() < 4 {
        assert!(hca.now() < deadline, "{done:?}");
        hca.wait(hca.now() + Duration::from_millis(1))
            .expect("alive");
        done.extend(taken(&mut work, &mut srq));
    }
    assert_eq!(cookies(&done), [0, 1, 1000, 1001]);
    (2..6).for_each(|slot| work.send(slot));

    let parking = hca.begin_parking().expect("quiet");
    let shared = srq.park(&parking);
    let parked = work.park(&parking);
    let (snapshot, descriptors) = parking.finish().expect("parked");
    let mut hca = resume(&snapshot, descriptors);
    let mut srq = Srq::resume(&mut hca, &shared).expect("resumed");
    let mut work = parked.resume_with(&mut hca, Some(&srq)).expect("resumed");
    hca.finish_resuming().expect("all is there");

    (4..8).for_each(|slot| post(&mut srq, &work, slot));
    (6..8).for_each(|slot| work.send(slot));
    let mut done = Vec::new();
    while done.len() < 12 {
        assert!(hca.now() < deadline, "{done:?}");
        hca.wait(hca.now() + Duration::from_millis(1))
            .expect("alive");
        done.extend(taken(&mut work, &mut srq));
    }
    let expected = [2, 3, 4, 5, 6, 7, 1002, 1003, 1004, 1005, 1006, 1007];
    assert_eq!(cookies(&done), expected);
    work.check(0..8);
    assert_eq!((srq.outstanding(), srq.unmatched_entries()), (0, 0));
    // All entries of the list are still there.
    (0..20).for_each(|slot| post(&mut srq, &work, slot % SLOTS));
    drop((work, srq, hca));
    assert_eq!(served.finished(before), 2);
}

/// Takes the completions of a queue pair with a shared receive queue.
pub(super) fn taken(work: &mut Work, srq: &mut Srq) -> Vec<Completion> {
    let mut done = Vec::new();
    while let Some(entry) = work.cq.poll() {
        done.extend(if entry.is_request() {
            work.qp.complete(&entry)
        } else {
            srq.complete(&entry)
        });
    }
    done
}

#[test]
fn numbers_of_a_shared_receive_queue_that_contradict_the_ring_are_refused() {
    type Change = fn(&mut hw_mlx::srq::SrqSnapshot);
    let changes: [(&str, Change); 9] = [
        ("entries are missing", |it| it.free.truncate(5)),
        ("entries are missing", |it| it.free.push(it.free[0])),
        ("entries are missing", |it| it.buffers[0].index = 900),
        ("its link is", |it| it.free.swap(1, 2)),
        ("has no tail", |it| it.free.clear()),
        ("buffers posted", |it| it.posted += 3),
        ("in the doorbell record", |it| it.announced += 1),
        ("is to be returned", |it| it.returns.push(it.free[0])),
        ("RMP", |it| it.sizes.entries *= 2),
    ];
    for (words, change) in changes {
        let served = Served::new();
        let mut hca = served.open();
        let before = served.resets();
        let pd = hca.exec(&AllocPdIn::new()).expect("a PD").pd();
        let mut srq = Srq::create(&mut hca, pd, 20, 2).expect("an SRQ");
        let nothing = core::iter::empty::<DataSegment>;
        (0..2).for_each(|cookie| srq.post_recv(nothing(), cookie).expect("room"));
        let parking = hca.begin_parking().expect("quiet");
        let mut shared = srq.park(&parking);
        let (snapshot, descriptors) = parking.finish().expect("parked");
        let mut hca = resume(&snapshot, descriptors);
        change(&mut shared);
        let error = Srq::resume(&mut hca, &shared).expect_err(words);
        assert!(error.to_string().contains(words), "{words}: {error}");
        drop(hca);
        served.finished(before);
    }
}

#[test]
fn a_memory_window_keeps_the_order_of_its_keys() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    assert!(window::supported(&hca));
    let pd = hca.exec(&AllocPdIn::new()).expect("a PD").pd();
    let order = Variants::new(Random::new(Some(3)).expect("seeded")).order();
    let window = window::create(&mut hca, pd, order).expect("a window");
    let (key, next) = (window.key(), window.next_key());
    let parking = hca.begin_parking().expect("quiet");
    let parked = window.park(&parking);
    let (snapshot, descriptors) = parking.finish().expect("parked");
    let mut hca = resume(&snapshot, descriptors);
    let mut wrong = parked.clone();
    wrong.binds += 1;
    let error = Window::resume(&mut hca, &wrong, 0).expect_err("another key");
    assert!(matches!(error, ResumeError::Changed { .. }), "{error}");
    wrong.order[7] = wrong.order[8];
    let error = Window::resume(&mut hca, &wrong, 0).expect_err("a variant twice");
    assert!(matches!(error, ResumeError::Snapshot { .. }), "{error}");
    let mut window = Window::resume(&mut hca, &parked, 0).expect("resumed");
    assert_eq!((window.key(), window.next_key()), (key, next));
    hca.finish_resuming().expect("all is there");
    let nothing = WindowTarget {
        lmr_context: 0,
        address: 0,
        bytes: 0,
        access: Access::empty(),
    };
    assert!(!window.body(&nothing).units().is_empty());
    window::destroy(&mut hca, &mut window).expect("destroyed");
    hca.close().expect("closed");
    assert_eq!(served.finished(before), 1);
}

#[test]
fn a_completion_queue_that_was_resized_is_resumed_and_its_events_come() {
    for armed in [false, true] {
        let served = Served::new();
        let mut hca = served.open();
        let before = served.resets();
        let mut work = Work::new(&mut hca);
        if armed {
            work.cq.arm(false);
        }
        work.cq.resize(&mut hca, 200).expect("resized");
        let parking = hca.begin_parking().expect("quiet");
        let parked = work.park(&parking);
        let (snapshot, descriptors) = parking.finish().expect("parked");
        let mut hca = resume(&snapshot, descriptors);
        let mut work = parked.resume(&mut hca);
        hca.finish_resuming().expect("all is there");
        assert!(!work.cq.is_armed());
        let cqn = Cqn::new(work.cq.cqn());
        while hca.next_completion() == Some(cqn) {
            work.cq.sequence().count_event();
        }
        work.cq.arm(false);
        work.receive(0);
        work.send(0);
        let deadline = hca.now() + PATIENCE;
        while hca.next_completion() != Some(cqn) {
            assert!(hca.now() < deadline, "no event");
            hca.wait(deadline).expect("alive");
        }
        assert_eq!(cookies(&work.wait_for(&mut hca, 2)), [0, 1000]);
        drop((work, hca));
        assert_eq!(served.finished(before), 2);
    }
}

/// The requests of a queue pair in error were flushed, and the first completions were taken. The oldest outstanding
/// request is then anywhere in a row of suppressed ones.
#[test]
fn a_queue_pair_in_error_reports_the_rest_of_its_flushed_requests_once() {
    for (suppress, taken) in [(true, 1), (true, 5), (false, 3)] {
        let served = Served::new();
        let mut hca = served.open();
        let before = served.resets();
        let sizes = QueueSizes {
            max_requests: 32,
            ..SIZES
        };
        let mut work = Work::with(&mut hca, sizes);
        // No receive is posted, so the requests wait. The eighth asks for a completion.
        for cookie in 0..8 {
            let segment = core::iter::once(work.segment(0));
            let flags = RequestFlags {
                suppress,
                ..RequestFlags::NONE
            };
            let posted = work
                .qp
                .post_request(RequestOp::Send, segment, cookie, flags);
            posted.expect("room");
        }
        let mut command = ToErrQpIn::new();
        command.set_qpn(work.qp.number().get());
        hca.exec(&command).expect("in error");
        let deadline = hca.now() + PATIENCE;
        let mut done = Vec::new();
        while done.len() < taken {
            assert!(hca.now() < deadline, "{done:?}");
            match work.cq.poll() {
                Some(entry) => done.extend(work.qp.complete(&entry)),
                None => {
                    hca.wait(hca.now() + Duration::from_millis(1))
                        .expect("alive");
                }
            }
        }
        let parking = hca.begin_parking().expect("quiet");
        let parked = work.park(&parking);
        assert_eq!(parked.qp.send.requests.len(), 8 - taken);
        let (snapshot, descriptors) = parking.finish().expect("parked");
        let mut hca = resume(&snapshot, descriptors);
        let mut work = parked.resume(&mut hca);
        hca.finish_resuming().expect("all is there");
        done.extend(work.wait_for(&mut hca, 8 - taken));
        let found: Vec<_> = done.iter().map(|it| (it.cookie, it.status)).collect();
        let expected: Vec<_> = (0..8).map(|cookie| (cookie, Status::Flushed)).collect();
        assert_eq!(found, expected);
        assert_eq!(work.completions(), []);
        assert_eq!(work.qp.unmatched_entries(), 0);
        drop((work, hca));
        assert_eq!(served.finished(before), 2);
    }
}

/// The request is that of the previous process: a message without the bit causes no event, the next one does.
#[test]
fn a_queue_that_is_armed_for_solicited_entries_stays_so() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    let mut work = Work::new(&mut hca);
    work.cq.arm(true);
    let parking = hca.begin_parking().expect("quiet");
    let parked = work.park(&parking);
    let (snapshot, descriptors) = parking.finish().expect("parked");
    let mut hca = resume(&snapshot, descriptors);
    let mut work = parked.resume(&mut hca);
    hca.finish_resuming().expect("all is there");
    assert!(work.cq.is_armed());
    work.receive(0);
    work.send(0);
    assert_eq!(cookies(&work.wait_for(&mut hca, 2)), [0, 1000]);
    hca.process_events();
    assert_eq!(hca.next_completion(), None);
    work.receive(1);
    let segment = core::iter::once(work.segment(1));
    let flags = RequestFlags {
        solicited: true,
        ..RequestFlags::NONE
    };
    let posted = work.qp.post_request(RequestOp::Send, segment, 1, flags);
    posted.expect("room");
    wait_for_event(&mut hca, Cqn::new(work.cq.cqn()));
    assert_eq!(cookies(&work.wait_for(&mut hca, 2)), [1, 1001]);
    drop((work, hca));
    assert_eq!(served.finished(before), 2);
}

/// A card may answer the query of a queue without its page list. The place of the ring is then not compared.
#[test]
fn queues_are_resumed_on_a_device_that_returns_no_page_lists() {
    let served = Served::with(|mut profile| {
        profile.hides_page_lists = true;
        profile
    });
    let mut hca = served.open();
    let before = served.resets();
    let mut work = Work::new(&mut hca);
    let srq = Srq::create(&mut hca, work.request.pd, 20, 2).expect("an SRQ");
    (0..4).for_each(|slot| work.receive(slot));
    (0..2).for_each(|slot| work.send(slot));
    assert_eq!(cookies(&work.wait_for(&mut hca, 4)), [0, 1, 1000, 1001]);
    let parking = hca.begin_parking().expect("quiet");
    let shared = srq.park(&parking);
    let parked = work.park(&parking);
    let (snapshot, descriptors) = parking.finish().expect("parked");
    let mut hca = resume(&snapshot, descriptors);
    let srq = Srq::resume(&mut hca, &shared).expect("resumed");
    let mut work = parked.resume(&mut hca);
    hca.finish_resuming().expect("all is there");
    (2..4).for_each(|slot| work.send(slot));
    assert_eq!(cookies(&work.wait_for(&mut hca, 4)), [2, 3, 1002, 1003]);
    drop((work, srq, hca));
    assert_eq!(served.finished(before), 2);
}

/// Sends a datagram of QP1 to ourselves.
pub(super) fn send_mad(hca: &Hca, gsi: &mut Gsi, byte: u8) {
    let gids = hca.gids();
    let own = gids.first().expect("an address");
    let to = MadAddress {
        path: Path {
            source_gid_index: own.index,
            gid: own.gid,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            priority: 0,
        },
        qpn: Qpn::GSI,
    };
    gsi.send(&to, own.mac, &[byte; MAD_BYTES]).expect("a slot");
}

pub(super) fn receive_mad(hca: &mut Hca, gsi: &mut Gsi) -> ReceivedMad {
    let deadline = hca.now() + PATIENCE;
    loop {
        while let Some(cqn) = hca.next_shared_completion() {
            assert_eq!(cqn.get(), gsi.cqn());
            gsi.notified();
        }
        if let Some(mad) = gsi.receive() {
            return mad;
        }
        assert!(hca.now() < deadline, "no datagram");
        hca.wait(deadline).expect("alive");
    }
}

pub(super) fn gsi_of(hca: &mut Hca) -> Gsi {
    let pd = hca.exec(&AllocPdIn::new()).expect("a PD").pd();
    let doorbells = Doorbells::new(hca.uar().clone());
    Gsi::create(hca, &doorbells, pd).expect("QP1")
}

/// One datagram is in a receive slot, another one was taken in and not fetched.
#[test]
fn qp1_goes_on_with_the_datagrams_that_came_meanwhile() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    let mut gsi = gsi_of(&mut hca);
    (1..3).for_each(|byte| send_mad(&hca, &mut gsi, byte));
    assert_eq!(receive_mad(&mut hca, &mut gsi).mad, [1; MAD_BYTES]);
    send_mad(&hca, &mut gsi, 3);
    let parking = hca.begin_parking().expect("quiet");
    let parked = gsi.park(&parking).expect("it works");
    let (snapshot, descriptors) = parking.finish().expect("parked");
    let mut hca = resume(&snapshot, descriptors);
    let mut gsi = Gsi::resume(&mut hca, &parked).expect("resumed");
    hca.finish_resuming().expect("all is there");
    for byte in 2..4 {
        assert_eq!(receive_mad(&mut hca, &mut gsi).mad, [byte; MAD_BYTES]);
    }
    // Each slot is used again, and each event comes.
    for round in 0..600_u32 {
        let byte = u8::try_from(round % 251).expect("a byte");
        send_mad(&hca, &mut gsi, byte);
        assert_eq!(receive_mad(&mut hca, &mut gsi).mad, [byte; MAD_BYTES]);
    }
    gsi.destroy(&mut hca).expect("destroyed");
    drop(hca);
    assert_eq!(served.finished(before), 2);
}

#[test]
fn cookies_of_qp1_that_are_no_slots_are_refused() {
    type Change = fn(&mut GsiSnapshot);
    let changes: [Change; 5] = [
        |it| it.queue.recv.receives.swap(0, 1),
        |it| it.queue.recv.receives[0].cookie = 512,
        |it| it.queue.recv.receives[0].cookie = u64::MAX,
        |it| it.queue.recv.receives[1].cookie = it.queue.recv.receives[0].cookie,
        |it| it.queue.recv.sizes.max_recvs = 7,
    ];
    for change in changes {
        let served = Served::new();
        let mut hca = served.open();
        let before = served.resets();
        let gsi = gsi_of(&mut hca);
        let parking = hca.begin_parking().expect("quiet");
        let mut parked = gsi.park(&parking).expect("it works");
        let (snapshot, descriptors) = parking.finish().expect("parked");
        let mut hca = resume(&snapshot, descriptors);
        change(&mut parked);
        let error = Gsi::resume(&mut hca, &parked).expect_err("other slots");
        assert!(matches!(error, ResumeError::Snapshot { .. }), "{error}");
        drop(hca);
        served.finished(before);
    }
}
