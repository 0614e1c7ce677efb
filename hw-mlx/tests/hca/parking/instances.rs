//! Functions with several instances: they are parked as a whole, and each instance goes on with what was its own.

use std::iter::zip;

use hw_mlx::gsi::Gsi;
use mlx_prm::DeallocPdIn;

use super::objects::{gsi_of, receive_mad, send_mad};
use super::*;

/// Makes another instance of a function.
pub(super) fn another(hca: &Hca) -> Hca {
    hca.opened().instance().expect("an instance").expect("open")
}

fn open(served: &Served, count: usize) -> Vec<Hca> {
    open_with(served, HcaConfig::new(), count)
}

fn open_with(served: &Served, config: HcaConfig, count: usize) -> Vec<Hca> {
    let mut instances = vec![served.open_with(config)];
    while instances.len() < count {
        instances.push(another(&instances[0]));
    }
    instances
}

fn begin(instances: Vec<Hca>) -> ParkingHca {
    Hca::begin_parking_all(instances).expect("quiet")
}

fn park_all(instances: Vec<Hca>) -> (HcaSnapshot, Vec<NamedFd>) {
    begin(instances).finish().expect("parked")
}

fn resume_all(snapshot: &HcaSnapshot, descriptors: Vec<NamedFd>) -> Vec<Hca> {
    Hca::resume(snapshot, descriptors).expect("resumed")
}

/// Parks a function with the work of its instances.
fn park_works(instances: Vec<Hca>, works: Vec<Work>) -> (HcaSnapshot, Vec<NamedFd>, Vec<Parked>) {
    let parking = begin(instances);
    let parked = works.into_iter().map(|work| work.park(&parking)).collect();
    let (snapshot, descriptors) = parking.finish().expect("parked");
    (snapshot, descriptors, parked)
}

fn resume_works(instances: &mut [Hca], parked: &[Parked]) -> Vec<Work> {
    let works = zip(parked, instances);
    works.map(|(parked, hca)| parked.resume(hca)).collect()
}

/// What tells instances apart: the function, the doorbell page, and the event queue.
fn facts(instances: &[Hca]) -> Vec<(String, u32, u8)> {
    let of = |hca: &Hca| {
        let eqn = hca.comp_eqn().get();
        let eqn = u8::try_from(eqn).expect("8 bits");
        (hca.name().to_owned(), hca.uar_index().get(), eqn)
    };
    instances.iter().map(of).collect()
}

/// Waits for the event of the queue, which is the only one that the instance has.
fn hear(hca: &mut Hca, work: &mut Work) {
    let deadline = hca.now() + PATIENCE;
    let cqn = loop {
        if let Some(cqn) = hca.next_completion() {
            break cqn;
        }
        assert!(hca.now() < deadline, "no event");
        hca.wait(deadline).expect("alive");
    };
    assert_eq!(cqn.get(), work.cq.cqn(), "another instance's queue");
    work.cq.sequence().count_event();
}

/// Posts a receive and a message to it.
fn post(work: &mut Work, slot: u32) {
    work.receive(slot);
    work.send(slot);
}

/// Takes a message and its request.
fn take(hca: &mut Hca, work: &mut Work, slot: u32) {
    let expected = [u64::from(slot), 1000 + u64::from(slot)];
    assert_eq!(cookies(&work.wait_for(hca, 2)), expected);
    work.check([slot]);
}

/// Sends a message, and sleeps until the event of its completion comes.
fn exchange(hca: &mut Hca, work: &mut Work, slot: u32) {
    work.cq.arm(false);
    post(work, slot);
    hear(hca, work);
    take(hca, work, slot);
}

/// Waits until an entry is in the queue. Another instance sleeps meanwhile, so the event is not taken in.
fn wait_for_entry(sleeper: &mut Hca, work: &mut Work) {
    let deadline = sleeper.now() + PATIENCE;
    while work.cq.peek().is_none() {
        assert!(sleeper.now() < deadline, "no completion");
        let moment = sleeper.now() + Duration::from_millis(1);
        sleeper.wait(moment).expect("alive");
    }
}

fn destroy(hca: &mut Hca, mut work: Work) {
    let Work { qp, cq, .. } = &mut work;
    qp.destroy(hca, cq, None).expect("destroyed");
    cq.destroy(hca).expect("destroyed");
    mkey::destroy(hca, work.mkey).expect("destroyed");
    let mut input = DeallocPdIn::new();
    input.set_pd(work.request.pd);
    hca.exec(&input).expect("freed");
}

/// Closes all instances, the last one with all objects of the function.
fn close_all(instances: Vec<Hca>) {
    let mut left = instances.len();
    for hca in instances {
        left -= 1;
        let closed = hca.close().expect("closed");
        assert_eq!((closed.instances_left, closed.objects_left), (left, vec![]));
    }
}

fn refused(instances: Vec<Hca>) -> (Vec<Hca>, ParkError) {
    let before = facts(&instances);
    let refused = *Hca::begin_parking_all(instances).expect_err("refused");
    let NotParked {
        instances,
        parking,
        error,
    } = refused;
    assert!(parking.is_none(), "{error}");
    assert_eq!(facts(&instances), before, "{error}");
    (instances, error)
}

fn is_signalled(hca: &Hca) -> bool {
    let own = &hca.interrupts()[..hca.vectors()];
    own.iter().any(driver::Interrupt::is_pending)
}

/// Opens a function with two vectors for completions, of which the second instance has one for itself.
fn open_with_vectors(served: &Served, count: usize) -> Vec<Hca> {
    let mut config = HcaConfig::new();
    config.completion_vectors = 2;
    open_with(served, config, count)
}

/// Waits until the interrupt of an instance's own vector is there, which follows the entry of its queue. Another
/// instance sleeps meanwhile.
fn wait_for_signal(instances: &mut [Hca], of: usize, sleeper: usize) {
    let deadline = instances[sleeper].now() + PATIENCE;
    assert_eq!(instances[of].vectors(), 3, "vector 0, its own, its wakeup");
    while !instances[of].interrupts()[1].is_pending() {
        assert!(instances[sleeper].now() < deadline, "no interrupt");
        let moment = instances[sleeper].now() + Duration::from_millis(1);
        instances[sleeper].wait(moment).expect("alive");
    }
}

/// Lets an armed completion queue have an event, and waits for its interrupt. The interrupts of earlier commands, which
/// may come after their answers, are there then, because the server signals in the order of the causes.
fn settle(served: &Served, instances: &mut [Hca], work: &mut Work, of: usize, sleeper: usize) {
    // The answer to a read of a register comes after the writes before it were done.
    let _ = instances[of].since(0);
    served.stop_time();
    served.go_on();
    post(work, 0);
    wait_for_entry(&mut instances[sleeper], work);
    wait_for_signal(instances, of, sleeper);
}

/// Returns whether the instance's wakeup is signalled, which is the last of its interrupts before the notices.
fn is_called(hca: &Hca) -> bool {
    hca.interrupts()[hca.vectors() - 1].is_pending()
}

/// The completions of each instance come while the function is parked, and each one hears of its own.
#[test]
fn instances_are_parked_together_and_each_goes_on_with_its_work() {
    for count in [2, 3] {
        let served = Served::new();
        let mut instances = open(&served, count);
        let before = served.resets();
        let own = facts(&instances);
        let mut works: Vec<Work> = instances.iter_mut().map(Work::new).collect();
        for (hca, work) in zip(&mut instances, &mut works) {
            exchange(hca, work, 0);
        }
        for _ in 0..3 {
            served.stop_time();
            for work in &mut works {
                work.cq.arm(false);
                post(work, 2);
            }
            let (snapshot, descriptors, parked) = park_works(instances, works);
            served.go_on();
            assert_eq!(snapshot.tables.instances.len(), count);
            instances = resume_all(&snapshot, descriptors);
            assert_eq!(facts(&instances), own);
            assert!(instances.iter().all(|hca| hca.instances() == count));
            // The events were drained with the resumption, so a sleep on the descriptors ends at once.
            assert!(instances.iter().all(is_called));
            works = resume_works(&mut instances, &parked);
            // The last instance finishes for all of them.
            let finishes = instances.last_mut().expect("an instance");
            finishes.finish_resuming().expect("all is there");
            for (hca, work) in zip(&mut instances, &mut works) {
                hear(hca, work);
                assert_eq!(hca.next_completion(), None);
                take(hca, work, 2);
            }
            for (hca, work) in zip(&mut instances, &mut works).rev() {
                exchange(hca, work, 4);
            }
        }
        for (hca, work) in zip(&mut instances, works) {
            assert_eq!(work.qp.unmatched_entries(), 0);
            destroy(hca, work);
        }
        assert_eq!(served.resets(), before);
        close_all(instances);
        assert_eq!(served.finished(before), 1);
    }
}

/// Events that were taken in and not fetched stay with their instance.
#[test]
fn events_that_were_not_fetched_stay_with_their_instance() {
    let served = Served::new();
    let mut instances = open_with_vectors(&served, 3);
    let before = served.resets();
    let event = AsyncEvent::PortChange { sub_type: 9 };
    let mut work = Work::new(&mut instances[1]);
    work.cq.arm(false);
    post(&mut work, 0);
    wait_for_entry(&mut instances[0], &mut work);
    wait_for_signal(&mut instances, 1, 0);
    for hca in &mut instances {
        while hca.next_async().is_some() {}
    }
    instances[2].push_event(event);
    assert_eq!(instances[0].next_async(), Some(event));
    let cqn = work.cq.cqn();
    let (snapshot, descriptors, parked) = park_works(instances, vec![work]);
    let of = |it: &InstanceSnapshot| (it.completions.clone(), it.events.clone(), it.events_lost);
    let expected = [
        (vec![], vec![], 0),
        (vec![cqn], vec![event], 0),
        (vec![], vec![event], 0),
    ];
    let found: Vec<_> = snapshot.tables.instances.iter().map(of).collect();
    assert_eq!(found, expected);

    let mut instances = resume_all(&snapshot, descriptors);
    let mut work = parked[0].resume(&mut instances[1]);
    instances[0].finish_resuming().expect("all is there");
    let fetched: Vec<_> = instances.iter_mut().map(Hca::next_async).collect();
    assert_eq!(fetched, [None, Some(event), Some(event)]);
    let heard: Vec<_> = instances.iter_mut().map(Hca::next_completion).collect();
    assert_eq!(heard, [None, Some(Cqn::new(cqn)), None]);
    work.cq.sequence().count_event();
    take(&mut instances[1], &mut work, 0);
    exchange(&mut instances[1], &mut work, 2);
    destroy(&mut instances[1], work);
    close_all(instances);
    assert_eq!(served.finished(before), 1);
}

/// A list that is not all instances of one function is refused, and all given instances come back in their order.
#[test]
fn a_function_is_parked_only_with_all_of_its_instances_and_no_other() {
    let (served, elsewhere) = (Served::new(), Served::new());
    let mut instances = open(&served, 3);
    let foreign = elsewhere.open();
    let (before, before_elsewhere) = (served.resets(), elsewhere.resets());

    let (none, error) = refused(Vec::new());
    assert!(none.is_empty() && matches!(error, ParkError::NoInstance));

    let middle = instances.remove(1);
    let (mut instances, error) = refused(instances);
    let is_it = matches!(error, ParkError::Instances { count: 3, given: 2 });
    assert!(is_it, "{error}");
    let (middle, error) = refused(vec![middle]);
    let is_it = matches!(error, ParkError::Instances { count: 3, given: 1 });
    assert!(is_it, "{error}");
    instances.splice(1..1, middle);

    instances.push(foreign);
    let (mut instances, error) = refused(instances);
    let is_it = matches!(&error, ParkError::OtherFunction { .. });
    assert!(is_it, "{error}");
    let foreign = instances.pop().expect("the other function's");
    instances.insert(0, foreign);
    let (mut instances, error) = refused(instances);
    let is_it = matches!(&error, ParkError::OtherFunction { .. });
    assert!(is_it, "{error}");
    // As many as the function has, and one of them is another's.
    let last = instances.pop().expect("the last one");
    let (mut instances, error) = refused(instances);
    let is_it = matches!(&error, ParkError::OtherFunction { .. });
    assert!(is_it, "{error}");
    instances.push(last);
    let foreign = instances.remove(0);

    instances[1].one_limit(true);
    let (mut instances, error) = refused(instances);
    assert!(matches!(error, ParkError::Limited), "{error}");
    instances[1].one_limit(false);

    let pending = instances[2].submit(&NopIn::new(), &[]).expect("posted");
    let (mut instances, error) = refused(instances);
    assert!(matches!(error, ParkError::Commands { .. }), "{error}");
    instances[2].answer(pending).expect("answered");

    for hca in &mut instances {
        let mut work = Work::new(hca);
        exchange(hca, &mut work, 0);
        destroy(hca, work);
    }
    // The order is the caller's.
    instances.rotate_left(1);
    let own = facts(&instances);
    let (snapshot, descriptors) = park_all(instances);
    let mut instances = resume_all(&snapshot, descriptors);
    assert_eq!(facts(&instances), own);
    instances[0].finish_resuming().expect("all is there");
    close_all(instances);
    assert_eq!(served.finished(before), 1);
    foreign.close().expect("closed");
    assert_eq!(elsewhere.finished(before_elsewhere), 1);
}

/// A refused parking has taken events in. A program that sleeps on an instance's descriptors is still woken.
#[test]
fn events_of_a_refused_parking_are_signalled_to_each_instance() {
    let served = Served::new();
    let mut instances = open_with_vectors(&served, 2);
    let before = served.resets();
    let mut work = Work::new(&mut instances[1]);
    work.cq.arm(false);
    settle(&served, &mut instances, &mut work, 1, 0);
    assert!(instances[1].woken(), "its vector");
    assert!(!is_signalled(&instances[1]));
    instances[0].one_limit(true);
    let (mut instances, error) = refused(instances);
    assert!(matches!(error, ParkError::Limited), "{error}");
    instances[0].one_limit(false);
    assert!(is_signalled(&instances[1]));
    hear(&mut instances[1], &mut work);
    take(&mut instances[1], &mut work, 0);
    destroy(&mut instances[1], work);
    close_all(instances);
    assert_eq!(served.finished(before), 1);
}

/// Numbers of instances are compared with each other and with the device's.
#[test]
fn numbers_of_instances_that_are_wrong_are_refused() {
    type Change = fn(&mut HcaTables);
    /// Exchanges a number of the event queues of the second and third instance.
    fn swap(tables: &mut HcaTables, number: fn(&mut EqSnapshot) -> &mut u32) {
        let [_, second, third] = &mut tables.instances[..] else {
            panic!("three instances");
        };
        core::mem::swap(number(&mut second.own), number(&mut third.own));
    }
    let in_tables: [(&str, Change); 14] = [
        ("0 instances and 0 ended", |it| it.instances.clear()),
        ("61 instances and 0 ended", |it| {
            it.instances = vec![it.instances[0].clone(); 61];
        }),
        ("58 ended", |it| it.spare = vec![it.instances[0].own; 58]),
        ("is there twice", |it| {
            it.instances[1] = it.instances[2].clone()
        }),
        ("is there twice", |it| {
            it.instances[1].own.eqn = it.event_queues[2].eqn;
        }),
        ("5 event queues, and the device has 6", |it| {
            it.instances.truncate(2)
        }),
        ("two instances have doorbell page", |it| {
            it.instances[1].own.uar = it.instances[2].own.uar;
        }),
        ("an event queue", |it| it.instances[1].own.vector = 2000),
        ("an event queue", |it| it.instances[1].own.uar = 1 << 24),
        ("an event queue", |it| it.instances[1].own.log_entries = 30),
        ("memory of an event queue", |it| {
            it.instances[1].own.iova = it.instances[2].own.iova;
        }),
        ("completion queues", |it| {
            it.instances[1].completions.push(1 << 24)
        }),
        ("0 dropped", |it| {
            it.instances[2].events.push(AsyncEvent::DeviceRequested)
        }),
        ("dropped: too many", |it| {
            it.instances[2].events_lost = u64::MAX
        }),
    ];
    let asked: [(&str, Change); 6] = [
        ("QUERY_EQ", |it| it.instances[1].own.eqn = 0xee),
        ("uar_page", |it| swap(it, |eq| &mut eq.uar)),
        ("is at", |it| swap(it, |eq| &mut eq.eqn)),
        ("is at", |it| {
            let first = it.instances[1].own.iova;
            it.instances[1].own.iova = it.instances[2].own.iova;
            it.instances[2].own.iova = first;
        }),
        ("intr", |it| it.instances[1].own.vector = 0),
        ("consumer counter", |it| it.instances[2].own.consumer += 1),
    ];
    let served = Served::new();
    let instances = open(&served, 3);
    let before = served.resets();
    let own = facts(&instances);
    let (snapshot, mut descriptors) = park_all(instances);
    let all = zip(in_tables, [false; 14]).chain(zip(asked, [true; 6]));
    for ((words, change), asks) in all {
        let mut wrong = snapshot.clone();
        change(&mut wrong.tables);
        let refused = Hca::resume(&wrong, descriptors).expect_err(words);
        assert!(refused.to_string().contains(words), "{words}: {refused}");
        assert_eq!(refused.touched, asks, "{words}: {refused}");
        descriptors = refused.descriptors;
    }
    let mut instances = resume_all(&snapshot, descriptors);
    assert_eq!(facts(&instances), own);
    instances[2].finish_resuming().expect("all is there");
    for hca in &mut instances {
        let mut work = Work::new(hca);
        exchange(hca, &mut work, 0);
        destroy(hca, work);
    }
    close_all(instances);
    assert_eq!(served.finished(before), 1);
}

/// An event that another instance is said to have would never be counted.
#[test]
fn a_queue_whose_event_another_instance_has_is_refused() {
    let served = Served::new();
    let mut instances = open_with_vectors(&served, 2);
    let before = served.resets();
    let mut work = Work::new(&mut instances[1]);
    work.cq.arm(false);
    post(&mut work, 0);
    wait_for_entry(&mut instances[0], &mut work);
    wait_for_signal(&mut instances, 1, 0);
    let (mut snapshot, descriptors, parked) = park_works(instances, vec![work]);
    let noted = core::mem::take(&mut snapshot.tables.instances[1].completions);
    assert_eq!(noted, [parked[0].cq.cqn]);
    snapshot.tables.instances[0].completions = noted;
    let mut instances = resume_all(&snapshot, descriptors);
    let error = parked[0].try_resume(&mut instances[1]).map(drop);
    let error = error.expect_err("its event is missing");
    assert!(matches!(error, ResumeError::Changed { .. }), "{error}");
    drop(instances);
    served.finished(before);
}

/// The doorbells of a queue are on the page of its instance, and its events come to the queue of its instance.
#[test]
fn queues_are_resumed_by_the_instance_that_had_them() {
    for takes_cq in [true, false] {
        let served = Served::new();
        let mut instances = open(&served, 2);
        let before = served.resets();
        let work = Work::new(&mut instances[0]);
        let (snapshot, descriptors, parked) = park_works(instances, vec![work]);
        let mut instances = resume_all(&snapshot, descriptors);
        let [first, second] = &mut instances[..] else {
            panic!("two instances");
        };
        let of = |hca: &Hca| Doorbells::new(hca.uar().clone());
        let (own, wrong) = (of(first), of(second));
        let error = if takes_cq {
            Cq::resume(second, &wrong, &parked[0].cq).map(drop)
        } else {
            let _cq = Cq::resume(first, &own, &parked[0].cq).expect("its own");
            Qp::resume(second, &wrong, &parked[0].qp, None, None).map(drop)
        };
        drop((own, wrong));
        let error = error.expect_err("another instance's");
        assert!(matches!(error, ResumeError::Changed { .. }), "{error}");
        drop(instances);
        served.finished(before);
    }
}

/// Keys and shared receive queues belong to no instance.
#[test]
fn keys_and_shared_receive_queues_are_resumed_by_any_instance() {
    let served = Served::new();
    let mut instances = open(&served, 2);
    let before = served.resets();
    let work = Work::new(&mut instances[0]);
    let srq = Srq::create(&mut instances[0], work.request.pd, 20, 2).expect("an SRQ");
    let parking = begin(instances);
    let (shared, parked) = (srq.park(&parking), work.park(&parking));
    let (snapshot, descriptors) = parking.finish().expect("parked");
    let mut instances = resume_all(&snapshot, descriptors);
    let srq = Srq::resume(&mut instances[1], &shared).expect("resumed");
    let arena = instances[1].arena().clone();
    let memory = arena.claim(parked.iova, parked.bytes).expect("memory");
    let memory = mkey::resume(&mut instances[1], parked.mkey, &parked.request, memory);
    let memory = memory.expect("resumed");
    assert_eq!(missing(&mut instances[1]), [("CQ", 1), ("QP", 1)]);
    drop((srq, memory, arena, instances));
    served.finished(before);
}

/// QP1 rings the doorbells of the instance that has made it, and another instance goes on with it.
#[test]
fn qp1_of_one_instance_is_resumed_by_another_one() {
    let served = Served::new();
    let mut instances = open(&served, 3);
    let before = served.resets();
    let mut gsi = gsi_of(&mut instances[2]);
    send_mad(&instances[0], &mut gsi, 1);
    assert_eq!(receive_mad(&mut instances[0], &mut gsi).mad[0], 1);
    let page = instances[2].uar_index().get();
    let parking = begin(instances);
    let parked = gsi.park(&parking).expect("it works");
    let (snapshot, descriptors) = parking.finish().expect("parked");
    assert_eq!(parked.uar, page);
    let mut instances = resume_all(&snapshot, descriptors);
    let mut wrong = parked.clone();
    wrong.uar = snapshot.tables.event_queues[0].uar + 100;
    let error = Gsi::resume(&mut instances[0], &wrong).expect_err("no such page");
    assert!(error.to_string().contains("no instance has had"), "{error}");
    let mut gsi = Gsi::resume(&mut instances[0], &parked).expect("resumed");
    instances[0].finish_resuming().expect("all is there");
    for byte in 2..20 {
        let hca = &mut instances[usize::from(byte) % 3];
        send_mad(hca, &mut gsi, byte);
        assert_eq!(receive_mad(hca, &mut gsi).mad[0], byte);
    }
    gsi.destroy(&mut instances[1]).expect("destroyed");
    drop(instances);
    served.finished(before);
}

/// A parking is refused while a buffer exists, and is finished or cancelled without it. It can also be cancelled after
/// the tables were ended.
#[test]
fn a_parking_with_several_instances_is_finished_or_cancelled() {
    let served = Served::new();
    let mut instances = open(&served, 3);
    let before = served.resets();
    let own = facts(&instances);
    let mut works: Vec<Work> = instances.iter_mut().map(Work::new).collect();
    for round in ["cancelled", "cancelled without tables", "finished"] {
        let buffer = instances[1].arena().alloc(100, 64).expect("memory");
        let place = (buffer.iova(), buffer.len());
        let function = instances[0].function().clone();
        for work in &mut works {
            work.cq.arm(false);
            post(work, 0);
        }
        let parking = begin(instances);
        let parked: Vec<Parked> = works.into_iter().map(|work| work.park(&parking)).collect();
        let refused = *parking.finish().expect_err("in use");
        let is_memory = matches!(refused.error, ParkError::MemoryInUse { count: 1 });
        assert!(is_memory, "{}", refused.error);
        assert!(refused.instances.is_empty());
        drop(buffer);
        let mut parking = refused.parking.expect("unfinished");
        if round == "cancelled without tables" {
            let refused = *parking.finish().expect_err("a clone");
            let is_clone = matches!(
                refused.error,
                ParkError::Function(driver::ParkError::Clones { others: 1, .. })
            );
            assert!(is_clone, "{}", refused.error);
            parking = refused.parking.expect("unfinished");
        }
        drop(function);
        instances = if round == "finished" {
            let (snapshot, descriptors) = parking.finish().expect("parked");
            resume_all(&snapshot, descriptors)
        } else {
            parking.cancel().expect("driven again")
        };
        assert_eq!(facts(&instances), own, "{round}");
        let claimed = instances[2].arena().claim(place.0, place.1);
        drop(claimed.expect("still there"));
        works = resume_works(&mut instances, &parked);
        instances[1].finish_resuming().expect("all is there");
        for (hca, work) in zip(&mut instances, &mut works) {
            hear(hca, work);
            take(hca, work, 0);
            exchange(hca, work, 2);
        }
    }
    for (hca, work) in zip(&mut instances, works) {
        destroy(hca, work);
    }
    assert_eq!(served.resets(), before);
    close_all(instances);
    assert_eq!(served.finished(before), 1);
}

/// The doorbell page of an instance that has ended is kept for the next one, in the next process, too.
#[test]
fn a_page_of_an_ended_instance_is_there_for_a_new_one_afterwards() {
    let served = Served::new();
    let mut instances = open(&served, 3);
    let before = served.resets();
    let own = facts(&instances);
    drop(instances.remove(1));
    let (snapshot, descriptors) = park_all(instances);
    let tables = &snapshot.tables;
    assert_eq!((tables.instances.len(), tables.spare.len()), (2, 1));
    let mut instances = resume_all(&snapshot, descriptors);
    assert_eq!(facts(&instances), [own[0].clone(), own[2].clone()]);
    instances[0].finish_resuming().expect("all is there");
    instances.insert(1, another(&instances[0]));
    assert_eq!(facts(&instances), own);
    for hca in &mut instances {
        let mut work = Work::new(hca);
        exchange(hca, &mut work, 0);
        destroy(hca, work);
    }
    close_all(instances);
    assert_eq!(served.finished(before), 1);
}

/// Each instance has a wakeup of its own, and sleeps on the vector that it had. Two of three share one.
#[test]
fn each_instance_is_woken_by_its_own_vector_and_wakeup_afterwards() {
    let served = Served::new();
    let mut instances = open_with_vectors(&served, 3);
    let before = served.resets();
    let mut works: Vec<Work> = instances.iter_mut().map(Work::new).collect();
    let vectors: Vec<usize> = instances.iter().map(Hca::vectors).collect();
    let (snapshot, descriptors, parked) = {
        for work in &mut works {
            work.cq.arm(false);
        }
        park_works(instances, works)
    };
    let of = |it: &InstanceSnapshot| it.own.vector;
    let own: Vec<u32> = snapshot.tables.instances.iter().map(of).collect();
    assert_eq!(own, [1, 2, 1]);
    let mut instances = resume_all(&snapshot, descriptors);
    works = resume_works(&mut instances, &parked);
    instances[0].finish_resuming().expect("all is there");
    let again: Vec<usize> = instances.iter().map(Hca::vectors).collect();
    assert_eq!(again, vectors);
    // What came with the resumption is handled, and nothing is signalled any more.
    settle(&served, &mut instances, &mut works[1], 1, 0);
    hear(&mut instances[1], &mut works[1]);
    take(&mut instances[1], &mut works[1], 0);
    for hca in &mut instances {
        while hca.wait(hca.now()).expect("alive") {}
        hca.woken();
        hca.process_events();
    }
    let signalled =
        |instances: &[Hca]| -> Vec<bool> { instances.iter().map(is_signalled).collect() };
    assert_eq!(signalled(&instances), [false; 3]);
    for at in 0..3 {
        instances[at].waker()();
        let expected: Vec<bool> = (0..3).map(|other| other == at).collect();
        assert_eq!(signalled(&instances), expected);
        let now = instances[at].now();
        assert!(instances[at].wait(now).expect("alive"));
        assert_eq!(signalled(&instances), [false; 3]);
    }
    // The event of the third one ends the sleep of its own, though the first one takes the interrupt.
    post(&mut works[2], 0);
    wait_for_signal(&mut instances, 0, 1);
    assert!(instances[0].woken());
    instances[0].process_events();
    assert_eq!(instances[0].next_completion(), None);
    hear(&mut instances[2], &mut works[2]);
    take(&mut instances[2], &mut works[2], 0);
    // A further instance gets the vector that fewer have.
    let further = another(&instances[0]);
    let parking = begin(instances.into_iter().chain([further]).collect());
    let last = parking.tables().instances.last().expect("instances");
    assert_eq!(last.own.vector, 2);
    drop((parking, works));
    served.finished(before);
}

/// The questions about all event queues have room in the event queue for commands, and those of a second attempt.
#[test]
fn a_function_is_parked_with_at_most_60_instances() {
    let served = Served::new();
    let instances = open(&served, 60);
    let before = served.resets();
    let own = facts(&instances);
    let (snapshot, descriptors) = park_all(instances);
    let mut wrong = snapshot.clone();
    wrong.tables.counter_set = Some(0xee);
    let refused_late = Hca::resume(&wrong, descriptors).expect_err("another counter set");
    assert!(refused_late.touched, "{refused_late}");
    let mut instances = resume_all(&snapshot, refused_late.descriptors);
    assert_eq!(facts(&instances), own);
    instances[59].finish_resuming().expect("all is there");
    for at in [0, 31, 59] {
        let mut work = Work::new(&mut instances[at]);
        exchange(&mut instances[at], &mut work, 0);
        destroy(&mut instances[at], work);
    }
    instances.push(another(&instances[0]));
    let check = |error: &ParkError, (now, kept): (usize, usize)| {
        let is_it = matches!(
            *error,
            ParkError::TooManyInstances { count, ended, most: 60 } if (count, ended) == (now, kept)
        );
        assert!(is_it, "{error}");
    };
    let (mut instances, error) = refused(instances);
    check(&error, (61, 0));
    // Its page is kept.
    drop(instances.pop());
    let (instances, error) = refused(instances);
    check(&error, (60, 1));
    assert!(served.is_alive());
    close_all(instances);
    assert_eq!(served.finished(before), 1);
}
