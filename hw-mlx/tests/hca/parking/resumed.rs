//! Functions that are resumed: in the states in which a function can be parked, and with snapshots that are wrong in
//! one number.

use std::fs::File;
use std::process::Command;

use hw_mlx::gsi::Gsi;
use hw_mlx::random::{Random, Variants};
use hw_mlx::window::{self, Window};
use hw_sim::Fault;
use rdma_types::WindowTarget;

use super::objects::{gsi_of, receive_mad, send_mad, taken};
use super::*;

/// Parks a function with its work.
fn park_with(hca: Hca, work: Work) -> (HcaSnapshot, Vec<NamedFd>, Parked) {
    let parking = hca.begin_parking().expect("quiet");
    let parked = work.park(&parking);
    let (snapshot, descriptors) = parking.finish().expect("parked");
    (snapshot, descriptors, parked)
}

/// All instances share QP1, so the one that has made it may have ended.
#[test]
fn qp1_goes_on_with_the_doorbells_of_an_instance_that_has_ended() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    let other = hca.opened().instance().expect("an instance");
    let mut other = other.expect("open");
    let mut gsi = gsi_of(&mut other);
    other.close().expect("closed");
    send_mad(&hca, &mut gsi, 1);
    assert_eq!(receive_mad(&mut hca, &mut gsi).mad[0], 1);
    let parking = hca.begin_parking().expect("quiet");
    let parked = gsi.park(&parking).expect("it works");
    let (snapshot, descriptors) = parking.finish().expect("parked");
    let mut hca = resume(&snapshot, descriptors);
    assert_ne!(parked.uar, hca.uar_index().get());
    let mut wrong = parked.clone();
    wrong.uar = 4000;
    let error = Gsi::resume(&mut hca, &wrong).expect_err("no such page");
    assert!(matches!(error, ResumeError::Snapshot { .. }), "{error}");
    let mut gsi = Gsi::resume(&mut hca, &parked).expect("resumed");
    hca.finish_resuming().expect("all is there");
    for byte in 2..40 {
        send_mad(&hca, &mut gsi, byte);
        assert_eq!(receive_mad(&mut hca, &mut gsi).mad[0], byte);
    }
    gsi.destroy(&mut hca).expect("destroyed");
    hca.close().expect("closed");
    assert_eq!(served.finished(before), 1);
}

/// The event comes while the function is parked. A resumption that is refused at the last question has not read it.
#[test]
fn a_resumption_that_is_refused_late_loses_no_event() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    let mut work = Work::new(&mut hca);
    served.stop_time();
    work.cq.arm(false);
    work.receive(0);
    work.send(0);
    let (snapshot, mut descriptors, parked) = park_with(hca, work);
    assert_eq!(snapshot.tables.instances[0].completions, []);
    served.go_on();
    for _ in 0..3 {
        let mut wrong = snapshot.clone();
        wrong.tables.counter_set = Some(0xee);
        let refused = Hca::resume(&wrong, descriptors).expect_err("another counter set");
        assert!(refused.touched, "{refused}");
        descriptors = refused.descriptors;
    }
    let mut hca = resume(&snapshot, descriptors);
    let mut work = parked.resume(&mut hca);
    hca.finish_resuming().expect("all is there");
    let cqn = Cqn::new(work.cq.cqn());
    assert_eq!(hca.next_completion(), Some(cqn));
    assert_eq!(cookies(&work.completions()), [0, 1000]);
    drop((work, hca));
    assert_eq!(served.finished(before), 2);
}

/// Each attempt takes room in the event queue for commands, which no attempt reads before it succeeds. The refusal that
/// names it comes before the first command.
#[test]
fn refused_resumptions_do_not_fill_the_event_queue_for_commands() {
    let served = Served::new();
    let hca = served.open();
    let before = served.resets();
    let (snapshot, mut descriptors) = park(hca);
    let mut wrong = snapshot.clone();
    wrong.tables.counter_set = Some(0xee);
    let mut refusals = [0, 0];
    for _ in 0..20 {
        let refused = Hca::resume(&wrong, descriptors).expect_err("another counter set");
        refusals[usize::from(refused.touched)] += 1;
        let text = refused.to_string();
        let is_full = text.contains("its event queue for commands has room for");
        assert_eq!(is_full, !refused.touched, "{text}");
        descriptors = refused.descriptors;
    }
    assert!(refusals.iter().all(|count| *count > 3), "{refusals:?}");
    assert_eq!(served.resets(), before);
    assert!(served.is_alive());
    drop(descriptors);
    assert_eq!(served.finished(before), 1);
}

/// The questions about addresses are as many as the event queue for commands has room for, and a further attempt has
/// room for its own.
#[test]
fn a_function_with_many_addresses_is_resumed_after_a_late_refusal() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    for number in 1..=230_u8 {
        let address = std::net::IpAddr::from([10, 0, 0, number]);
        hca.add_address(&address.into()).expect("added");
    }
    let (snapshot, descriptors) = park(hca);
    let mut wrong = snapshot.clone();
    wrong.tables.counter_set = Some(0xee);
    let refused = Hca::resume(&wrong, descriptors).expect_err("another counter set");
    assert!(refused.touched, "{refused}");
    let hca = resume(&snapshot, refused.descriptors);
    hca.close().expect("closed");
    assert_eq!(served.finished(before), 1);
}

/// The firmware dies during the first query. A process that has not confirmed the tables does not stop the DMA.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the firmware dies in a time of its own"
)]
fn a_device_that_dies_during_the_resumption_keeps_its_bus_mastering() {
    let served = Served::new();
    let hca = served.open();
    let before = served.resets();
    let (snapshot, descriptors) = park(hca);
    let nop = mlx_prm::Opcode::NOP.0;
    let asked = || {
        let report = served.sim.report(&served.function);
        report.opcodes.get(&nop).copied().unwrap_or(0)
    };
    let first = asked();
    let silence = Fault::CommandSilence {
        opcode: Some(nop),
        count: 1,
    };
    served.sim.inject(&served.function, &silence);
    let refused = thread::scope(|threads| {
        threads.spawn(|| {
            let clock = RealClock::new();
            let deadline = clock.now() + PATIENCE;
            while asked() == first && clock.now() < deadline {
                clock.wait(&[], clock.now() + Duration::from_millis(1));
            }
            let death = Fault::HealthSyndrome(1);
            served.sim.inject(&served.function, &death);
        });
        Hca::resume(&snapshot, descriptors).expect_err("it dies")
    });
    assert!(refused.touched, "{refused}");
    let text = refused.to_string();
    assert!(text.contains("the device is dead"), "{text}");
    let mut command = [0; 2];
    served.function.config_read(4, &mut command);
    assert_eq!(command[0] & 4, 4, "{command:x?}");
    drop(refused);
    served.finished(before);
}

/// Settings of other functions change some capabilities of this one. Those that the driver does not use are not
/// compared.
#[test]
fn a_capability_is_compared_if_the_driver_uses_it() {
    type Change = fn(&mut [u8]);
    let changes: [(&str, Change); 2] = [
        // log_max_qp
        ("limits", |page| page[0x13] ^= 1),
        // umr_fence
        ("umr_fence", |page| page[0x41] ^= 0x10),
    ];
    let served = Served::new();
    let hca = served.open();
    let before = served.resets();
    let (snapshot, mut descriptors) = park(hca);
    for (words, change) in changes {
        let mut changed = snapshot.clone();
        change(&mut changed.tables.capabilities[0].bytes);
        let refused = Hca::resume(&changed, descriptors).expect_err(words);
        assert!(refused.to_string().contains(words), "{words}: {refused}");
        descriptors = refused.descriptors;
    }
    let mut changed = snapshot;
    let page = &mut changed.tables.capabilities[0].bytes;
    // lag_master and num_total_dynamic_vf_msix
    page[0x4f] ^= 0x10;
    page[0xe3] ^= 7;
    resume(&changed, descriptors).close().expect("closed");
    assert_eq!(served.finished(before), 1);
}

/// Contradictions inside of the snapshot are found before the device gets a command.
#[test]
fn numbers_that_need_no_command_are_checked_before_the_first_one() {
    type Change = fn(&mut HcaTables);
    let changes: [(&str, Change); 13] = [
        ("signed answers", |it| it.commands.is_signed = true),
        ("is not at index 0", |it| it.gids.entries.clear()),
        ("at index 255", |it| it.gids.entries[0].index = 255),
        ("no whole general capability page", |it| {
            it.capabilities[0].bytes.truncate(7)
        }),
        ("64 ended ones", |it| {
            it.spare = vec![it.instances[0].own; 64]
        }),
        ("0 instances", |it| it.instances.clear()),
        ("time limits", |it| {
            it.command_limit = Duration::from_secs(3601)
        }),
        ("time limits", |it| it.reclaim_limit = Duration::ZERO),
        ("is there twice", |it| it.spare = vec![it.instances[0].own]),
        ("completion queues", |it| {
            it.instances[0].completions.push(1 << 24)
        }),
        ("completion queues", |it| {
            it.shared_completions.push(1 << 24)
        }),
        ("with token 0", |it| it.commands.next_token = 0),
        ("counter set 0x100", |it| it.counter_set = Some(0x100)),
    ];
    let served = Served::new();
    let hca = served.open();
    let before = served.resets();
    let (snapshot, mut descriptors) = park(hca);
    for (words, change) in changes {
        let mut wrong = snapshot.clone();
        change(&mut wrong.tables);
        let refused = Hca::resume(&wrong, descriptors).expect_err(words);
        assert!(!refused.touched, "{words}: {refused}");
        assert!(refused.to_string().contains(words), "{words}: {refused}");
        descriptors = refused.descriptors;
    }
    resume(&snapshot, descriptors).close().expect("closed");
    assert_eq!(served.finished(before), 1);
}

/// Both queues are empty, so only the device knows which ring is whose.
#[test]
fn event_queues_whose_rings_are_exchanged_are_refused() {
    let served = Served::new();
    let hca = served.open();
    let before = served.resets();
    let other = hca.opened().instance().expect("an instance");
    other.expect("open").close().expect("closed");
    let (snapshot, descriptors) = park(hca);
    let mut wrong = snapshot.clone();
    let HcaTables {
        instances, spare, ..
    } = &mut wrong.tables;
    core::mem::swap(&mut instances[0].own.iova, &mut spare[0].iova);
    let refused = Hca::resume(&wrong, descriptors).expect_err("other rings");
    assert!(refused.to_string().contains("and not at"), "{refused}");
    resume(&snapshot, refused.descriptors)
        .close()
        .expect("closed");
    assert_eq!(served.finished(before), 1);
}

/// If one key stood for the other, the memory of the other one would be freed while peers can write to it.
#[test]
fn an_object_that_is_resumed_twice_does_not_stand_for_another_one() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    let pd = hca.exec(&AllocPdIn::new()).expect("a PD").pd();
    let buffer = hca.arena().alloc(4096, 4096).expect("memory");
    let (iova, bytes) = (buffer.iova(), buffer.len());
    let request = KeyRequest {
        pd,
        address: buffer.address(),
        bytes: 4096,
        access: Access::LOCAL_READ,
        variant: 0,
        may_have_windows: false,
    };
    let [first, second, third] =
        [(); 3].map(|()| mkey::create(&mut hca, &request, iova).expect("a key").0);
    let parking = hca.begin_parking().expect("quiet");
    drop(buffer);
    let (snapshot, descriptors) = parking.finish().expect("parked");
    let mut hca = resume(&snapshot, descriptors);
    assert_eq!(missing(&mut hca), [("mkey", 3)]);
    mkey::resume(&mut hca, first, &request, ()).expect("resumed");
    let error = mkey::resume(&mut hca, first, &request, ()).expect_err("twice");
    assert!(matches!(error, ResumeError::Snapshot { .. }), "{error}");
    assert_eq!(missing(&mut hca), [("mkey", 2)]);
    // Objects that are made and destroyed meanwhile change nothing, nor does the end of one that was not resumed.
    let (fourth, _) = mkey::create(&mut hca, &request, iova).expect("a key");
    assert_eq!(missing(&mut hca), [("mkey", 2)]);
    mkey::destroy(&mut hca, fourth).expect("destroyed");
    mkey::destroy(&mut hca, first).expect("destroyed");
    mkey::destroy(&mut hca, third).expect("destroyed");
    assert_eq!(missing(&mut hca), [("mkey", 1)]);
    mkey::resume(&mut hca, second, &request, ()).expect("resumed");
    // The memory was not claimed.
    let unclaimed = hca.finish_resuming().expect("all is there");
    let is_it = |it: &driver::UnclaimedMemory| (it.iova, it.bytes) == (iova, bytes);
    assert!(unclaimed.iter().any(is_it), "{unclaimed:?}");
    drop(hca);
    served.finished(before);
}

/// The device may still write the memory of a key that was refused.
#[test]
fn memory_of_a_key_that_is_refused_stays_out_of_use() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    let work = Work::new(&mut hca);
    let (snapshot, descriptors, mut parked) = park_with(hca, work);
    let mut hca = resume(&snapshot, descriptors);
    parked.request.bytes -= 1;
    parked
        .try_resume(&mut hca)
        .map(drop)
        .expect_err("another length");
    let (start, end) = (parked.iova.0, parked.iova.0 + parked.bytes as u64);
    for _ in 0..64 {
        let other = hca.arena().alloc(parked.bytes, 4096).expect("memory");
        let (from, to) = (other.iova().0, other.iova().0 + parked.bytes as u64);
        assert!(to <= start || end <= from, "{from:#x}");
        std::mem::forget(other);
    }
    drop(hca);
    served.finished(before);
}

/// An address is removed while a queue pair sends from it. Its time ends while the function is parked, and before the
/// queue pair is resumed.
#[test]
fn a_removed_address_stays_until_its_queue_pairs_are_resumed() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    let address = "10.0.0.7".parse::<std::net::IpAddr>().expect("an address");
    let entry = hca.add_address(&address.into()).expect("added");
    let mut work = Work::new(&mut hca);
    let Work { cq, qp, .. } = &mut work;
    qp.reset(&mut hca, cq, None).expect("reset");
    connect_from(&mut hca, qp, &entry);
    hca.retire_address(address).expect("removed");
    let (mut snapshot, descriptors, parked) = park_with(hca, work);
    for entry in &mut snapshot.tables.gids.entries {
        if let Some(retiring) = &mut entry.retiring {
            retiring.since = driver::Instant(0);
        }
    }
    let mut hca = resume(&snapshot, descriptors);
    assert_eq!((hca.clear_retired(), hca.retired_at()), (None, None));
    let mut work = parked.resume(&mut hca);
    hca.finish_resuming().expect("all is there");
    assert!(hca.retired_at().is_some());
    work.receive(0);
    work.send(0);
    assert_eq!(cookies(&work.wait_for(&mut hca, 2)), [0, 1000]);
    assert_eq!(hca.clear_retired(), Some(entry));
    // The device's entry is clear now, and the queue pair still exists.
    let (snapshot, descriptors, parked) = park_with(hca, work);
    assert_eq!(parked.qp.source_gid_index, Some(entry.index));
    let mut hca = resume(&snapshot, descriptors);
    let work = parked.resume(&mut hca);
    hca.finish_resuming().expect("all is there");
    drop((work, hca));
    assert_eq!(served.finished(before), 2);
}

/// Nothing is in the rings, so only the device knows that they are others.
#[test]
fn an_idle_queue_pair_with_another_shape_or_place_is_refused() {
    type Change = fn(&mut QpSnapshot, &mut QpSnapshot);
    let changes: [(&str, Change); 4] = [
        ("log_rq_size", |it, _| {
            (it.recv.sizes.entries, it.recv.sizes.max_recvs) = (64, 64);
        }),
        ("log_rq_stride", |it, _| {
            (it.recv.sizes.entries, it.recv.sizes.max_recvs) = (64, 64);
            it.recv.sizes.stride *= 2;
        }),
        ("not at", |it, other| {
            core::mem::swap(&mut it.memory.iova, &mut other.memory.iova);
        }),
        ("address at index", |it, _| it.source_gid_index = Some(3)),
    ];
    for (words, change) in changes {
        let served = Served::new();
        let mut hca = served.open();
        let before = served.resets();
        // With these sizes, the doorbell record is apart from the rings.
        let sizes = QueueSizes {
            max_requests: 32,
            max_recvs: 128,
            max_request_segments: 1,
            max_recv_segments: 1,
            ..SIZES
        };
        let mut work = Work::with(&mut hca, sizes);
        let request = QpRequest {
            pd: work.request.pd,
            cqn_send: work.cq.cqn(),
            cqn_receive: work.cq.cqn(),
            srq: None,
            sizes,
            owner: 7,
        };
        let mut other = Qp::create(&mut hca, &work.doorbells, &request).expect("a queue pair");
        connect(&mut hca, &mut other);
        work.cq.arm(false);
        let parking = hca.begin_parking().expect("quiet");
        let mut other = other.park(&parking);
        let mut parked = work.park(&parking);
        let (snapshot, descriptors) = parking.finish().expect("parked");
        let mut hca = resume(&snapshot, descriptors);
        change(&mut parked.qp, &mut other);
        let error = parked.try_resume(&mut hca).map(drop).expect_err(words);
        assert!(
            matches!(error, ResumeError::Changed { .. }),
            "{words}: {error}"
        );
        assert!(error.to_string().contains(words), "{words}: {error}");
        drop(hca);
        served.finished(before);
    }
}

#[test]
fn an_idle_shared_receive_queue_in_another_place_is_refused() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    let pd = hca.exec(&AllocPdIn::new()).expect("a PD").pd();
    let [first, second] = [(); 2].map(|()| Srq::create(&mut hca, pd, 20, 2).expect("an SRQ"));
    let parking = hca.begin_parking().expect("quiet");
    let (mut first, second) = (first.park(&parking), second.park(&parking));
    let (snapshot, descriptors) = parking.finish().expect("parked");
    let mut hca = resume(&snapshot, descriptors);
    first.memory.iova = second.memory.iova;
    let error = Srq::resume(&mut hca, &first).expect_err("another ring");
    assert!(matches!(error, ResumeError::Changed { .. }), "{error}");
    drop(hca);
    served.finished(before);
}

/// The event of the last request has not come, but the snapshot says that it is noted. Its number would be counted, and
/// the device would ignore every later request.
#[test]
fn an_armed_queue_whose_event_is_noted_is_refused() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    let mut work = Work::new(&mut hca);
    work.cq.arm(false);
    let (mut snapshot, descriptors, parked) = park_with(hca, work);
    snapshot.tables.instances[0].completions.push(parked.cq.cqn);
    let mut hca = resume(&snapshot, descriptors);
    let error = parked.try_resume(&mut hca).map(drop).expect_err("no event");
    assert!(matches!(error, ResumeError::Changed { .. }), "{error}");
    drop(hca);
    served.finished(before);
}

/// A queue that was armed at its first entry and then resized looks like one that was never armed.
#[test]
fn a_first_request_is_remembered_behind_a_resize() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    let mut work = Work::new(&mut hca);
    work.cq.arm(false);
    work.cq.resize(&mut hca, 200).expect("resized");
    served.stop_time();
    work.receive(0);
    work.send(0);
    let (mut snapshot, descriptors, parked) = park_with(hca, work);
    served.go_on();
    assert_eq!((parked.cq.armed_at, parked.cq.is_disarmed), (Some(0), true));
    // An event that the snapshot does not have would never be counted.
    snapshot.tables.instances[0].own.consumer += 1;
    let refused = Hca::resume(&snapshot, descriptors).expect_err("an event is missing");
    snapshot.tables.instances[0].own.consumer -= 1;
    let mut hca = resume(&snapshot, refused.descriptors);
    let mut work = parked.resume(&mut hca);
    hca.finish_resuming().expect("all is there");
    let cqn = Cqn::new(work.cq.cqn());
    wait_for_event(&mut hca, cqn);
    work.cq.sequence().count_event();
    assert_eq!(cookies(&work.wait_for(&mut hca, 2)), [0, 1000]);
    work.cq.arm(false);
    work.receive(1);
    work.send(1);
    wait_for_event(&mut hca, cqn);
    drop((work, hca));
    assert_eq!(served.finished(before), 2);
}

/// The window is bound while the function is parked. The request behind the bind carries a fence, so that it does not
/// use the key before it has changed; a snapshot that has lost this is refused.
#[test]
fn a_bind_that_is_under_way_takes_effect_once() {
    for forgets in [false, true] {
        let served = Served::new();
        let mut hca = served.open();
        let before = served.resets();
        let mut work = Work::with(
            &mut hca,
            QueueSizes {
                binds: true,
                ..SIZES
            },
        );
        let order = Variants::new(Random::new(Some(3)).expect("seeded")).order();
        let mut window = window::create(&mut hca, work.request.pd, order).expect("a window");
        let segment = work.segment(SLOTS);
        let target = WindowTarget {
            lmr_context: segment.lmr_context,
            address: segment.address,
            bytes: BYTES.into(),
            access: Access::REMOTE_WRITE,
        };
        served.stop_time();
        let key = work
            .qp
            .post_bind(&mut window, &target, 77, RequestFlags::NONE)
            .expect("room");
        let parking = hca.begin_parking().expect("quiet");
        let window = window.park(&parking);
        let mut parked = work.park(&parking);
        let (snapshot, descriptors) = parking.finish().expect("parked");
        served.go_on();
        assert!(parked.qp.send.is_behind_bind && parked.qp.send.requests[0].is_bind);
        let mut hca = resume(&snapshot, descriptors);
        let window = Window::resume(&mut hca, &window, 1).expect("resumed");
        assert_eq!(window.key(), key);
        if forgets {
            parked.qp.send.is_behind_bind = false;
            let error = parked.try_resume(&mut hca).map(drop).expect_err("no fence");
            assert!(matches!(error, ResumeError::Snapshot { .. }), "{error}");
            drop(hca);
            served.finished(before);
            continue;
        }
        let mut work = parked.resume(&mut hca);
        hca.finish_resuming().expect("all is there");
        let done = work.wait_for(&mut hca, 1);
        assert_eq!((cookies(&done), done[0].bind), (vec![77], true));
        work.memory.write_bytes(0, &pattern(0));
        let write = RequestOp::RdmaWrite {
            address: segment.address,
            rmr_context: key,
        };
        let local = core::iter::once(work.segment(0));
        work.qp
            .post_request(write, local, 78, RequestFlags::NONE)
            .expect("room");
        assert_eq!(cookies(&work.wait_for(&mut hca, 1)), [78]);
        work.check([0]);
        drop((work, hca));
        assert_eq!(served.finished(before), 2);
    }
}

/// A request that is called a bind, or suppressed, would complete in another way than its WQE.
#[test]
fn requests_that_are_of_another_kind_than_their_wqes_are_refused() {
    type Change = fn(&mut QpSnapshot);
    let changes: [(&str, Change); 7] = [
        ("is_bind", |it| it.send.requests[1].is_bind = true),
        ("is_own", |it| it.send.requests[1].is_own = true),
        ("is_suppressed", |it| {
            it.send.requests[1].is_suppressed = true
        }),
        ("behind a bind", |it| it.send.is_behind_bind = true),
        ("requests since the last", |it| it.send.unreported = 1),
        ("the WQE there", |it| it.send.requests[1].index += 1),
        ("SendSizes", |it| it.send.sizes.wqe_blocks = 0),
    ];
    for (words, change) in changes {
        let served = Served::new();
        let mut hca = served.open();
        let before = served.resets();
        let mut work = Work::new(&mut hca);
        (0..3).for_each(|slot| work.send(slot));
        let (snapshot, descriptors, mut parked) = park_with(hca, work);
        let mut hca = resume(&snapshot, descriptors);
        change(&mut parked.qp);
        let error = parked.try_resume(&mut hca).map(drop).expect_err(words);
        assert!(
            matches!(error, ResumeError::Snapshot { .. }),
            "{words}: {error}"
        );
        assert!(error.to_string().contains(words), "{words}: {error}");
        drop(hca);
        served.finished(before);
    }
}

/// Each ring has been filled several times, so that indices, owner bits and laps are not those of the beginning.
#[test]
fn rings_that_have_wrapped_go_on_in_the_middle_of_a_lap() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    let mut work = Work::new(&mut hca);
    let exchange = |work: &mut Work, hca: &mut Hca, count: u32| {
        for _ in 0..count {
            work.receive(0);
            work.send(0);
            assert_eq!(cookies(&work.wait_for(hca, 2)), [0, 1000]);
        }
    };
    // 64 and 128 entries; the numbers are no multiples.
    exchange(&mut work, &mut hca, 203);
    for round in 0..3 {
        served.stop_time();
        (0..3).for_each(|slot| work.receive(slot));
        (0..5).for_each(|slot| work.send(slot));
        let (snapshot, descriptors, parked) = park_with(hca, work);
        assert!(parked.cq.taken > 2 * u64::from(parked.cq.entries));
        assert!(parked.qp.send.posted > 2 * u64::from(parked.qp.send.sizes.ring_blocks));
        assert!(parked.qp.recv.posted > 2 * parked.qp.recv.sizes.entries);
        served.go_on();
        hca = resume(&snapshot, descriptors);
        work = parked.resume(&mut hca);
        hca.finish_resuming().expect("all is there");
        (3..5).for_each(|slot| work.receive(slot));
        let expected = [0, 1, 2, 3, 4, 1000, 1001, 1002, 1003, 1004];
        assert_eq!(cookies(&work.wait_for(&mut hca, 10)), expected);
        work.check(0..5);
        exchange(&mut work, &mut hca, 11 * (round + 1));
    }
    assert_eq!(work.qp.unmatched_entries(), 0);
    drop((work, hca));
    assert_eq!(served.finished(before), 2);
}

/// Two messages have come whose completions were discarded with their queue pair.
#[test]
fn buffers_that_a_queue_pair_has_returned_are_posted_again() {
    let served = Served::new();
    let mut hca = served.open();
    let before = served.resets();
    let mut work = Work::new(&mut hca);
    let mut srq = Srq::create(&mut hca, work.request.pd, 20, 2).expect("an SRQ");
    let mut receives = Cq::create(&mut hca, &work.doorbells, 64).expect("a completion queue");
    let post = |srq: &mut Srq, work: &Work, slot: u32| {
        let segment = core::iter::once(work.segment(SLOTS + slot));
        srq.post_recv(segment, 1000 + u64::from(slot))
    };
    let with_srq = |hca: &mut Hca, work: &Work, srq: &Srq, cqn_receive| {
        let request = QpRequest {
            pd: work.request.pd,
            cqn_send: work.cq.cqn(),
            cqn_receive,
            srq: Some(srq),
            sizes: SIZES,
            owner: 7,
        };
        let mut qp = Qp::create(hca, &work.doorbells, &request).expect("a queue pair");
        connect(hca, &mut qp);
        qp
    };
    let ended = with_srq(&mut hca, &work, &srq, receives.cqn());
    let mut first = core::mem::replace(&mut work.qp, ended);
    first
        .destroy(&mut hca, &mut work.cq, None)
        .expect("destroyed");
    (0..4).for_each(|slot| post(&mut srq, &work, slot).expect("room"));
    (0..2).for_each(|slot| work.send(slot));
    assert_eq!(cookies(&work.wait_for(&mut hca, 2)), [0, 1]);
    let qp = with_srq(&mut hca, &work, &srq, work.cq.cqn());
    let mut ended = core::mem::replace(&mut work.qp, qp);
    ended
        .destroy(&mut hca, &mut work.cq, Some(&mut receives))
        .expect("destroyed");
    receives.destroy(&mut hca).expect("destroyed");
    drop((first, ended, receives));

    let parking = hca.begin_parking().expect("quiet");
    let shared = srq.park(&parking);
    let parked = work.park(&parking);
    let (snapshot, descriptors) = parking.finish().expect("parked");
    let mut returns = shared.returns.clone();
    returns.sort_unstable();
    assert_eq!(returns, [0, 1]);
    let mut hca = resume(&snapshot, descriptors);
    let mut srq = Srq::resume(&mut hca, &shared).expect("resumed");
    let mut work = parked.resume_with(&mut hca, Some(&srq)).expect("resumed");
    hca.finish_resuming().expect("all is there");
    // Two of the four posted buffers come back when the others are not enough.
    for slot in 0..18 {
        post(&mut srq, &work, slot % SLOTS).expect("room");
    }
    post(&mut srq, &work, 0).expect_err("all are posted");
    (2..6).for_each(|slot| work.send(slot));
    let deadline = hca.now() + PATIENCE;
    let mut done = Vec::new();
    while done.len() < 8 {
        assert!(hca.now() < deadline, "{done:?}");
        hca.wait(hca.now() + Duration::from_millis(1))
            .expect("alive");
        done.extend(taken(&mut work, &mut srq));
    }
    assert_eq!(cookies(&done), [2, 3, 4, 5, 1000, 1001, 1002, 1003]);
    drop((work, srq, hca));
    assert_eq!(served.finished(before), 2);
}

/// Memory of the previous process that this one does not claim is freed at the end, and reported.
#[test]
fn memory_that_is_not_claimed_is_freed_at_the_end() {
    let served = Served::new();
    let hca = served.open();
    let before = served.resets();
    let buffers = [100, 70_000].map(|bytes| hca.arena().alloc(bytes, 64).expect("memory"));
    let places = buffers
        .each_ref()
        .map(|it| (it.iova(), it.len().next_multiple_of(64)));
    let parking = hca.begin_parking().expect("quiet");
    drop(buffers);
    let (snapshot, descriptors) = parking.finish().expect("parked");
    let mut hca = resume(&snapshot, descriptors);
    let claimed = hca.arena().claim(places[0].0, 100).expect("still there");
    let unclaimed = hca.finish_resuming().expect("all is there");
    let has = |place| unclaimed.iter().any(|it| (it.iova, it.bytes) == place);
    assert_eq!(places.map(has), [false, true], "{unclaimed:?}");
    drop(claimed);
    hca.close().expect("closed");
    assert_eq!(served.finished(before), 1);
}

/// Name of the environment variable that tells the test below that it has a process of its own.
const ALONE: &str = "HW_MLX_FEW_DESCRIPTORS";

/// Duplicates of the descriptors are made when a resumption is refused. If the system then had none left, the function
/// would be closed. The limit is that of a process, so the test runs in one of its own.
#[test]
fn a_refused_resumption_gives_the_descriptors_back_where_they_are_scarce() {
    if std::env::var_os(ALONE).is_none() {
        let name = "parking::resumed::a_refused_resumption_gives_the_descriptors_back_where_they_are_scarce";
        let itself = std::env::current_exe().expect("a path");
        let shell = Command::new("sh")
            .args([
                "-c",
                "ulimit -n 256; exec \"$0\" --exact \"$1\" --nocapture",
            ])
            .arg(itself)
            .arg(name)
            .env(ALONE, "1")
            .output()
            .expect("a shell");
        let text = String::from_utf8_lossy(&shell.stdout);
        assert!(
            shell.status.success() && text.contains("1 passed"),
            "{shell:?}"
        );
        return;
    }
    let served = Served::new();
    let hca = served.open();
    let before = served.resets();
    let (snapshot, mut descriptors) = park(hca);
    let mut wrong = snapshot.clone();
    wrong.tables.counter_set = Some(0xee);
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    // From no descriptor at all to as many as it takes: each time, the function is there afterwards.
    let mut touched = 0;
    while touched < 3 {
        let refused = Hca::resume(&wrong, descriptors).expect_err("another counter set");
        assert!(
            !refused.descriptors.is_empty(),
            "{} files: {refused}",
            files.len()
        );
        descriptors = refused.descriptors;
        touched += u32::from(refused.touched);
        files.pop().expect("files");
    }
    drop(files);
    assert_eq!(served.resets(), before);
    let hca = resume(&snapshot, descriptors);
    hca.close().expect("closed");
    assert_eq!(served.finished(before), 1);
}
