//! Snapshots that were changed: each is refused, or the function works all the same.

use std::time::Duration;

use hw_mlx::random::Random;
use hw_mlx::ring::RingSnapshot;

use super::*;

/// A number of a snapshot.
enum Number<'a> {
    Byte(&'a mut u8),
    Half(&'a mut u16),
    Word(&'a mut u32),
    Long(&'a mut u64),
    Count(&'a mut i64),
    Bit(&'a mut bool),
    Time(&'a mut Duration),
}

impl Number<'_> {
    /// Changes the number, mostly to an unlucky one.
    #[expect(clippy::cast_possible_truncation, reason = "any bits will do")]
    fn twist(self, random: &mut Random) {
        let mut change = |number: u64, bits: u64| match random.number() % 8 {
            0 => number.wrapping_add(1),
            1 => number.wrapping_sub(1),
            2 => number ^ 1 << (random.number() % bits),
            3 => 0,
            4 => u64::MAX,
            5 => number.wrapping_add(4096),
            6 => number.wrapping_mul(2),
            _ => random.number(),
        };
        match self {
            Self::Byte(it) => *it = change((*it).into(), 8) as u8,
            Self::Half(it) => *it = change((*it).into(), 16) as u16,
            Self::Word(it) => *it = change((*it).into(), 32) as u32,
            Self::Long(it) => *it = change(*it, 64),
            Self::Count(it) => *it = change(it.cast_unsigned(), 64).cast_signed(),
            Self::Bit(it) => *it = !*it,
            Self::Time(it) => *it = Duration::from_nanos(change(it.as_nanos() as u64, 64)),
        }
    }
}

/// Removes, repeats or moves an element.
fn twist_list<T: Clone>(list: &mut Vec<T>, random: &mut Random) {
    if list.is_empty() {
        return;
    }
    let mut place = || usize::try_from(random.number() % list.len() as u64).expect("an index");
    let (at, to) = (place(), place());
    match random.number() % 3 {
        0 => drop(list.remove(at)),
        1 => list.insert(to, list[at].clone()),
        _ => list.swap(at, to),
    }
}

fn choose<T>(mut list: Vec<T>, random: &mut Random) -> T {
    let at = usize::try_from(random.number() % list.len() as u64).expect("an index");
    list.swap_remove(at)
}

fn of_eq(eq: &mut EqSnapshot) -> [Number<'_>; 6] {
    [
        Number::Word(&mut eq.eqn),
        Number::Word(&mut eq.uar),
        Number::Word(&mut eq.vector),
        Number::Long(&mut eq.iova),
        Number::Word(&mut eq.log_entries),
        Number::Word(&mut eq.consumer),
    ]
}

fn of_ring(ring: &mut RingSnapshot) -> [Number<'_>; 4] {
    [
        Number::Long(&mut ring.iova),
        Number::Long(&mut ring.bytes),
        Number::Word(&mut ring.log_page),
        Number::Long(&mut ring.record),
    ]
}

/// Changes one thing in the tables of a function.
fn change_tables(tables: &mut HcaTables, random: &mut Random) {
    match random.number() % 18 {
        0 => return twist_list(&mut tables.capabilities, random),
        1 => return twist_list(&mut tables.pages.chunks, random),
        2 => return twist_list(&mut choose(holders(tables), random).pages, random),
        3 => return twist_list(&mut tables.objects, random),
        4 => return twist_list(&mut tables.gids.entries, random),
        5 => return twist_list(&mut tables.arena.chunks, random),
        6 => return twist_list(&mut tables.commands.tallies, random),
        7 => {
            let own = tables.instances.iter().map(|it| it.own).collect();
            tables.spare.push(choose(own, random));
            return;
        }
        8 => return twist_list(&mut tables.instances, random),
        9 => return exchange(&mut tables.instances, random),
        _ => {}
    }
    let HcaTables {
        arena,
        device_id,
        revision,
        firmware,
        embedded_cpu,
        shows_queue,
        capabilities,
        commands,
        pages,
        event_queues,
        instances,
        spare,
        shared_completions,
        objects,
        counter_set,
        link_up,
        port,
        gids,
        neighbours: _,
        report: _,
        command_limit,
        reclaim_limit,
    } = tables;
    let mut all = vec![
        Number::Half(device_id),
        Number::Byte(revision),
        Number::Half(&mut firmware.2),
        Number::Bit(embedded_cpu),
        Number::Bit(shows_queue),
        Number::Long(&mut commands.iova),
        Number::Word(&mut commands.log_size),
        Number::Word(&mut commands.log_stride),
        Number::Byte(&mut commands.next_token),
        Number::Long(&mut commands.posted),
        Number::Bit(&mut commands.is_signed),
        Number::Long(&mut pages.counts.given),
        Number::Long(&mut pages.counts.returned),
        Number::Long(&mut pages.counts.refused),
        Number::Long(&mut pages.counts.foreign),
        Number::Bit(link_up),
        Number::Word(&mut port.mtu),
        Number::Bit(&mut port.link_up),
        Number::Long(&mut port.node_guid),
        Number::Word(&mut gids.next),
        Number::Time(command_limit),
        Number::Time(reclaim_limit),
        Number::Long(&mut arena.chunk_bytes),
    ];
    all.extend(port.mac.iter_mut().map(Number::Byte));
    all.extend(counter_set.as_mut().map(Number::Word));
    all.extend(pages.budget.as_mut().map(Number::Long));
    for eq in event_queues.iter_mut().chain(spare) {
        all.extend(of_eq(eq));
    }
    for instance in instances {
        let InstanceSnapshot {
            own,
            completions,
            events: _,
            events_lost,
        } = instance;
        all.extend(of_eq(own));
        all.extend(completions.iter_mut().map(Number::Word));
        all.push(Number::Long(events_lost));
    }
    for page in capabilities {
        all.push(Number::Word(&mut page.op_mod));
        let at = usize::try_from(random.number()).unwrap_or(0) % page.bytes.len();
        all.push(Number::Byte(&mut page.bytes[at]));
    }
    for chunk in &mut pages.chunks {
        all.push(Number::Long(&mut chunk.iova));
        all.push(Number::Word(&mut chunk.pages));
    }
    for holder in &mut pages.holders {
        all.push(Number::Half(&mut holder.function));
        all.extend(holder.pages.first_mut().map(Number::Long));
    }
    for tally in &mut commands.tallies {
        all.push(Number::Half(&mut tally.opcode));
        all.push(Number::Long(&mut tally.answered));
        all.push(Number::Long(&mut tally.refused));
        all.push(Number::Long(&mut tally.unanswered));
        all.push(Number::Time(&mut tally.time));
    }
    for object in objects {
        all.push(Number::Half(&mut object.creates));
        all.push(Number::Count(&mut object.count));
    }
    for gid in &mut gids.entries {
        all.push(Number::Byte(&mut gid.index));
        all.extend(gid.address.prefix.as_mut().map(Number::Byte));
    }
    for chunk in &mut arena.chunks {
        all.push(Number::Long(&mut chunk.iova));
        all.push(Number::Long(&mut chunk.bytes));
        all.push(Number::Long(&mut chunk.used_below));
        for lease in &mut chunk.leases {
            all.push(Number::Long(&mut lease.offset));
            all.push(Number::Long(&mut lease.bytes));
        }
    }
    all.extend(shared_completions.iter_mut().map(Number::Word));
    choose(all, random).twist(random);
}

/// Exchanges the event queues of the first instance and of another one, or what the first one has heard.
fn exchange(instances: &mut [InstanceSnapshot], random: &mut Random) {
    let Some((first, others)) = instances.split_first_mut() else {
        return;
    };
    let other = choose(others.iter_mut().collect(), random);
    match random.number() % 3 {
        0 => core::mem::swap(&mut first.own, &mut other.own),
        1 => core::mem::swap(&mut first.completions, &mut other.completions),
        _ => core::mem::swap(&mut first.own.uar, &mut other.own.uar),
    }
}

fn holders(tables: &mut HcaTables) -> Vec<&mut hw_mlx::pages::PageHolder> {
    tables.pages.holders.iter_mut().collect()
}

/// Parks a function with two instances, whose work has left traces in all tables.
fn parked_after_use(served: &Served) -> (HcaSnapshot, Vec<NamedFd>) {
    let mut hca = served.open();
    let ended = super::instances::another(&hca);
    let second = super::instances::another(&hca);
    ended.close().expect("closed");
    let address = "10.0.0.7".parse::<std::net::IpAddr>().expect("an address");
    hca.add_address(&address.into()).expect("added");
    let mut work = Work::new(&mut hca);
    work.cq.arm(false);
    work.receive(0);
    work.send(0);
    let deadline = hca.now() + PATIENCE;
    while work.cq.peek().is_none() {
        assert!(hca.now() < deadline, "no completion");
        hca.wait(hca.now() + Duration::from_millis(1))
            .expect("alive");
    }
    hca.process_events();
    let Work { qp, cq, .. } = &mut work;
    qp.destroy(&mut hca, cq, None).expect("destroyed");
    cq.destroy(&mut hca).expect("destroyed");
    mkey::destroy(&mut hca, work.mkey).expect("destroyed");
    drop(work);
    let parking = Hca::begin_parking_all(vec![hca, second]).expect("quiet");
    parking.finish().expect("parked")
}

/// Counts the events of the queue that have come, arms it, and waits for the event of one more exchange.
fn arm_and_exchange(hca: &mut Hca, work: &mut Work, slot: u32) {
    hca.process_events();
    let cqn = Cqn::new(work.cq.cqn());
    while hca.next_completion() == Some(cqn) {
        work.cq.sequence().count_event();
    }
    work.cq.arm(false);
    work.receive(slot);
    work.send(slot);
    wait_for_event(hca, cqn);
}

/// A function with changed tables is refused, or works.
#[test]
fn tables_that_were_changed_are_refused_or_harmless() {
    let mut counts = [0, 0, 0];
    let mut seeds = 0..250_u64;
    'worlds: loop {
        let served = Served::new();
        let (snapshot, mut descriptors) = parked_after_use(&served);
        let before = served.resets();
        for seed in seeds.by_ref() {
            let mut random = Random::new(Some(seed)).expect("a seed");
            let mut changed = snapshot.clone();
            change_tables(&mut changed.tables, &mut random);
            match Hca::resume(&changed, descriptors) {
                Err(refused) => {
                    assert!(!refused.error.to_string().is_empty());
                    assert!(!refused.descriptors.is_empty(), "seed {seed}: {refused}");
                    assert_eq!(served.resets(), before, "seed {seed}");
                    descriptors = refused.descriptors;
                    counts[usize::from(refused.touched)] += 1;
                    if refused.touched {
                        // The device has had commands that the snapshot does not know.
                        drop(descriptors);
                        served.finished(before);
                        continue 'worlds;
                    }
                }
                Ok(mut instances) => {
                    counts[2] += 1;
                    let finished = instances[0].finish_resuming();
                    for mut hca in instances {
                        hca.exec(&NopIn::new()).expect("answered");
                        while hca.next_async().is_some() {}
                        // The new queue may have the number of one that is gone.
                        while hca.next_completion().is_some() {}
                        let mut work = Work::new(&mut hca);
                        work.receive(0);
                        work.send(0);
                        assert_eq!(
                            cookies(&work.wait_for(&mut hca, 2)),
                            [0, 1000],
                            "seed {seed}"
                        );
                        arm_and_exchange(&mut hca, &mut work, 1);
                        let Work { qp, cq, .. } = &mut work;
                        qp.destroy(&mut hca, cq, None).expect("destroyed");
                        cq.destroy(&mut hca).expect("destroyed");
                        mkey::destroy(&mut hca, work.mkey).expect("destroyed");
                    }
                    drop(finished);
                    served.finished(before);
                    continue 'worlds;
                }
            }
        }
        drop(descriptors);
        served.finished(before);
        break;
    }
    assert!(counts.iter().all(|count| *count > 5), "{counts:?}");
}

/// The initialization segment is compared before the device has a command, and the refusal has both values.
#[test]
fn a_function_that_is_another_model_or_has_other_firmware_is_refused_untouched() {
    let served = Served::new();
    let before = served.resets();
    let (snapshot, mut descriptors) = parked_after_use(&served);
    let changes: [fn(&mut HcaTables); 4] = [
        |tables| tables.device_id ^= 1,
        |tables| tables.revision ^= 1,
        |tables| tables.firmware.2 ^= 1,
        |tables| tables.embedded_cpu ^= true,
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut changed = snapshot.clone();
        change(&mut changed.tables);
        let refused = Hca::resume(&changed, descriptors).expect_err("another device");
        let error = refused.error.to_string();
        assert!(
            error.contains("device ID, revision, firmware and embedded_cpu are"),
            "{at}: {error}"
        );
        assert!(!refused.touched, "{at}");
        descriptors = refused.descriptors;
    }
    drop(Hca::resume(&snapshot, descriptors).expect("the same device"));
    served.finished(before);
}

/// A function with work under way that was parked. The completion queue was armed at its first entry and has had an
/// event. If `rearms` is true, it was armed again.
fn parked_at_work(served: &Served, rearms: bool) -> (HcaSnapshot, Vec<NamedFd>, Parked) {
    let mut hca = served.open();
    let mut work = Work::new(&mut hca);
    work.cq.arm(false);
    (0..4).for_each(|slot| work.receive(slot));
    (0..2).for_each(|slot| work.send(slot));
    let done = work.wait_for(&mut hca, 4);
    assert_eq!(cookies(&done), [0, 1, 1000, 1001]);
    wait_for_event(&mut hca, Cqn::new(work.cq.cqn()));
    work.cq.sequence().count_event();
    if rearms {
        work.cq.arm(false);
    }
    (2..6).for_each(|slot| work.send(slot));
    let parking = hca.begin_parking().expect("quiet");
    let parked = work.park(&parking);
    let (snapshot, descriptors) = parking.finish().expect("parked");
    (snapshot, descriptors, parked)
}

/// Changes one thing in the snapshots of a completion queue and a queue pair. Returns whether work may be missing.
fn change_work(work: &mut Parked, random: &mut Random) -> bool {
    match random.number() % 9 {
        0 => {
            twist_list(&mut work.qp.send.requests, random);
            return true;
        }
        1 => {
            twist_list(&mut work.qp.recv.receives, random);
            return true;
        }
        2 => {
            work.cq.armed_at = None;
            work.cq.sequence = 0;
            return false;
        }
        _ => {}
    }
    let Parked {
        cq,
        qp,
        mkey,
        request,
        ..
    } = work;
    let mut all = vec![
        Number::Word(&mut cq.cqn),
        Number::Word(&mut cq.entries),
        Number::Word(&mut cq.batch),
        Number::Long(&mut cq.taken),
        Number::Byte(&mut cq.sequence),
        Number::Bit(&mut cq.is_disarmed),
        Number::Word(&mut qp.qpn),
        Number::Word(&mut qp.pd),
        Number::Word(&mut qp.cqn_send),
        Number::Word(&mut qp.cqn_receive),
        Number::Word(&mut qp.owner),
        Number::Bit(&mut qp.in_reset),
        Number::Long(&mut qp.unmatched),
        Number::Word(&mut qp.send.sizes.max_requests),
        Number::Word(&mut qp.send.sizes.wqe_blocks),
        Number::Word(&mut qp.send.sizes.ring_blocks),
        Number::Half(&mut qp.send.producer),
        Number::Half(&mut qp.send.announced),
        Number::Long(&mut qp.send.posted),
        Number::Long(&mut qp.send.bytes),
        Number::Word(&mut qp.send.unreported),
        Number::Bit(&mut qp.send.is_behind_bind),
        Number::Long(&mut qp.send.unmatched),
        Number::Word(&mut qp.recv.sizes.max_recvs),
        Number::Word(&mut qp.recv.sizes.entries),
        Number::Word(&mut qp.recv.sizes.stride),
        Number::Word(&mut qp.recv.posted),
        Number::Half(&mut qp.recv.announced),
        Number::Long(&mut qp.recv.done),
        Number::Long(&mut qp.recv.bytes),
        Number::Long(&mut qp.recv.unmatched),
        Number::Word(mkey),
        Number::Word(&mut request.pd),
        Number::Long(&mut request.address),
        Number::Long(&mut request.bytes),
    ];
    all.extend(cq.armed_at.as_mut().map(Number::Byte));
    all.extend(qp.source_gid_index.as_mut().map(Number::Byte));
    all.extend(of_ring(&mut cq.memory));
    all.extend(of_ring(&mut qp.memory));
    for request in &mut qp.send.requests {
        all.push(Number::Half(&mut request.index));
        all.push(Number::Word(&mut request.bytes));
        all.push(Number::Bit(&mut request.is_bind));
        all.push(Number::Bit(&mut request.is_own));
    }
    for receive in &mut qp.recv.receives {
        all.push(Number::Word(&mut receive.bytes));
    }
    choose(all, random).twist(random);
    false
}

/// Changed snapshots of queues are refused, or each request and receive that they have completes once.
#[test]
fn queues_that_were_changed_are_refused_or_complete_their_work_once() {
    let mut counts = [0, 0];
    for seed in 0..150 {
        let served = Served::new();
        let (snapshot, descriptors, mut parked) = parked_at_work(&served, seed % 2 == 1);
        let before = served.resets();
        let mut hca = resume(&snapshot, descriptors);
        let mut random = Random::new(Some(seed)).expect("a seed");
        let may_lack = change_work(&mut parked, &mut random);
        match parked.try_resume(&mut hca) {
            Err(error) => {
                assert!(!error.to_string().is_empty());
                hca.exec(&NopIn::new()).expect("answered");
                counts[0] += 1;
            }
            Ok(mut work) => {
                counts[1] += 1;
                let mut done = work.completions_until_quiet(&mut hca, 4);
                (4..6).for_each(|slot| work.receive(slot));
                done.extend(work.completions_until_quiet(&mut hca, 8 - done.len()));
                let mut found = cookies(&done);
                let mut expected = vec![2, 3, 4, 5, 1002, 1003, 1004, 1005];
                if may_lack {
                    let all = found.len();
                    found.dedup();
                    assert_eq!(found.len(), all, "seed {seed}: one completed twice");
                    expected.retain(|cookie| found.contains(cookie));
                }
                assert_eq!(found, expected, "seed {seed}");
                arm_and_exchange(&mut hca, &mut work, 6);
                drop(work);
            }
        }
        drop(hca);
        served.finished(before);
    }
    assert!(counts.iter().all(|count| *count > 20), "{counts:?}");
}

/// The arm request at the first entry is a word of zeros, as if there was none.
#[test]
fn a_completion_queue_that_has_had_an_event_does_not_pass_for_one_that_was_never_armed() {
    let served = Served::new();
    let before = served.resets();
    let (snapshot, descriptors, mut parked) = parked_at_work(&served, false);
    let mut hca = resume(&snapshot, descriptors);
    (parked.cq.armed_at, parked.cq.sequence) = (None, 0);
    let error = parked
        .try_resume(&mut hca)
        .map(drop)
        .expect_err("a wrong count");
    assert!(matches!(error, ResumeError::Changed { .. }), "{error}");
    drop(hca);
    served.finished(before);
}

/// A count of events that is wrong would make the device ignore each arm request, without an error.
#[test]
fn a_completion_queue_whose_count_of_events_is_wrong_is_refused() {
    // Never armed; armed; fired, and the event waits; fired, and the event was counted.
    for (state, off) in (0..4).flat_map(|state| (1..4).map(move |off| (state, off))) {
        let served = Served::new();
        let mut hca = served.open();
        let before = served.resets();
        let mut work = Work::new(&mut hca);
        let armed = |work: &mut Work, hca: &mut Hca, slot| {
            work.cq.arm(false);
            work.receive(slot);
            work.send(slot);
            let cqn = Cqn::new(work.cq.cqn());
            let deadline = hca.now() + PATIENCE;
            while hca.next_completion() != Some(cqn) {
                assert!(hca.now() < deadline, "no event");
                hca.wait(deadline).expect("alive");
            }
            work.cq.sequence().count_event();
            work.wait_for(hca, 2);
        };
        // The number of events is not 0 in states 1 to 3.
        (0..state).for_each(|slot| armed(&mut work, &mut hca, slot));
        match state {
            1 => work.cq.arm(false),
            2 => {
                work.cq.arm(false);
                work.receive(7);
                work.send(7);
                let deadline = hca.now() + PATIENCE;
                while work.cq.peek().is_none() {
                    assert!(hca.now() < deadline, "no completion");
                    hca.wait(hca.now() + Duration::from_millis(1))
                        .expect("alive");
                }
            }
            _ => {}
        }
        let parking = hca.begin_parking().expect("quiet");
        let parked = work.park(&parking);
        let (snapshot, descriptors) = parking.finish().expect("parked");
        let mut hca = resume(&snapshot, descriptors);
        let doorbells = Doorbells::new(hca.uar().clone());
        let mut wrong = parked.cq;
        wrong.sequence = (wrong.sequence + off) & 3;
        let error = Cq::resume(&mut hca, &doorbells, &wrong).expect_err("a wrong count");
        let is_right = match error {
            ResumeError::Changed { .. } => true,
            // A queue that was never armed had no event.
            ResumeError::Snapshot { .. } => state == 0,
            ResumeError::Function(_)
            | ResumeError::Claim { .. }
            | ResumeError::Missing { .. }
            | ResumeError::Device(_) => false,
        };
        assert!(is_right, "{state}, {off}: {error}");
        drop((doorbells, hca));
        served.finished(before);
    }
}
