//! Instances of one function against the scripted double: the events that each instance gets, and that none waits for
//! another's command.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hw_mlx::{AsyncEvent, Hca, HcaConfig};
use mlx_prm::{AccessRegIn, Cqn, NopIn};

use crate::double::{Action, Double};

const NOP: u16 = 0x80d;
const ACCESS_REG: u16 = 0x805;
const CREATE_EQ: u16 = 0x301;

fn opened() -> (Arc<Double>, Hca, Hca) {
    let double = Double::new();
    let first = Hca::open(double.function(), HcaConfig::new()).expect("bring-up");
    let second = first
        .opened()
        .instance()
        .expect("an instance")
        .expect("it is open");
    double.state().seen.clear();
    (double, first, second)
}

#[test]
fn a_command_that_takes_long_keeps_nobody_else_waiting() {
    let (double, mut first, mut second) = opened();
    double.rule(NOP, Action::Hold);
    let held = first.submit(&NopIn::new(), &[]).expect("posted");
    let begun = second.now();
    for _ in 0..40 {
        let mut input = AccessRegIn::new();
        input.set_register_id(0x7777);
        second.exec_reading(&input, &[0; 16], 16).expect("answered");
    }
    assert!(second.now() - begun < Duration::from_secs(1));
    let opcodes: Vec<u16> = double.state().seen.iter().map(|seen| seen.opcode).collect();
    assert_eq!((opcodes[0], opcodes.len()), (NOP, 41));
    assert!(opcodes[1..].iter().all(|opcode| *opcode == ACCESS_REG));
    // The answer comes while the second instance processes events.
    double.release(0);
    second.process_events();
    first.answer(held).expect("the held one's answer");
}

/// All commands that end one instance have the time limit of one command together. They do not shorten the limit of
/// another instance.
#[test]
fn the_time_limit_of_one_instance_is_not_anothers() {
    let (double, mut first, mut second) = opened();
    first.one_limit(true);
    let limit = HcaConfig::new().command_timeout;
    assert!(
        !second
            .wait(second.now() + limit + Duration::from_secs(1))
            .expect("alive")
    );
    second
        .exec(&NopIn::new())
        .expect("it has a time of its own");
    assert!(!second.is_dead());
    first.exec(&NopIn::new()).expect_err("its time is over");
    assert!(first.is_dead() && second.is_dead());
    drop(double);
}

#[test]
fn a_completion_event_is_its_instances_alone() {
    let (double, mut first, mut second) = opened();
    let eqn = u8::try_from(second.comp_eqn().get()).expect("8 bits");
    double.after(Duration::from_millis(3), move |state| {
        let mut eqe = [0u8; 64];
        eqe[0x3b] = 9;
        state.event_to(eqn, eqe);
    });
    assert!(
        second
            .wait(second.now() + Duration::from_secs(5))
            .expect("alive")
    );
    first.process_events();
    assert_eq!(first.next_completion(), None);
    assert_eq!(second.next_completion(), Some(Cqn::new(9)));
}

/// A call of the waker does not end a wait for a command's answer. The wait continues without spinning, and the call is
/// processed afterwards.
#[test]
fn a_call_does_not_end_the_wait_for_an_answer() {
    let (double, mut first, _second) = opened();
    double.rule(NOP, Action::Hold);
    double.after(Duration::from_millis(3), |state| state.release(0));
    let begun = first.now();
    first.waker()();
    first.exec(&NopIn::new()).expect("answered");
    assert_eq!(first.now() - begun, Duration::from_millis(3));
    // The call was not lost: it ends the next wait at once.
    let now = first.now();
    assert!(first.wait(now + Duration::from_secs(1)).expect("alive"));
    assert_eq!(first.now(), now);
}

/// An instance that processes an event wakes the others: the first takes the interrupt and the event, and signals the
/// second's wakeup.
#[test]
fn who_serves_wakes_who_sleeps() {
    let (double, mut first, mut second) = opened();
    double.after(Duration::from_millis(1), |state| {
        let mut eqe = [0u8; 64];
        // The event reports that the port is up (event type 9, sub-type 4).
        (eqe[1], eqe[3]) = (9, 4);
        state.event(eqe);
    });
    assert!(
        first
            .wait(first.now() + Duration::from_secs(1))
            .expect("alive")
    );
    let begun = second.now();
    assert!(second.wait(begun + Duration::from_secs(5)).expect("alive"));
    assert_eq!(second.now(), begun);
    assert!(first.next_async().is_some() && second.next_async().is_some());
}

/// If there are enough vectors, a sleeping instance is not woken by events of another instance's queues. If there are
/// fewer, the instances share them evenly.
#[test]
fn instances_have_vectors_of_their_own_where_there_are_enough() {
    for (there, vectors) in [
        (64, [1, 2, 3, 1, 2]),
        (3, [1, 2, 1, 2, 1]),
        (1, [0, 0, 0, 0, 0]),
    ] {
        let double = Double::new();
        double.set_vectors(there);
        let mut config = HcaConfig::new();
        config.completion_vectors = 3;
        let first = Hca::open(double.function(), config).expect("bring-up");
        let mut instances = vec![first];
        for _ in 1..5 {
            let another = instances[0].opened().instance().expect("an instance");
            instances.push(another.expect("it is open"));
        }
        let made: Vec<u8> = {
            let state = double.state();
            let queues = state.seen.iter().filter(|seen| seen.opcode == CREATE_EQ);
            queues.map(|seen| seen.input[0x27]).collect()
        };
        // The first three event queues are shared by all instances.
        assert_eq!(made[..3], [0; 3]);
        assert_eq!(made[3..], vectors);
        // An instance waits for vector 0, for its own vector if it has one, and for its wakeup.
        for (hca, vector) in instances.iter().zip(vectors) {
            assert_eq!(hca.vectors(), 2 + usize::from(vector != 0));
        }
        if there < 4 {
            continue;
        }
        // Signals of bring-up events are cleared.
        for hca in &mut instances {
            hca.woken();
        }
        let eqn = u8::try_from(instances[1].comp_eqn().get()).expect("8 bits");
        let mut eqe = [0u8; 64];
        eqe[0x3b] = 9;
        double.state().event_to(eqn, eqe);
        let woken: Vec<bool> = instances
            .iter()
            .map(|hca| {
                let own = &hca.interrupts()[..hca.vectors()];
                own.iter().any(driver::Interrupt::is_pending)
            })
            .collect();
        // The second and the fifth instance have the same vector.
        assert_eq!(woken, [false, true, false, false, true]);
    }
}

#[test]
fn an_instance_without_a_page_of_its_own_changes_nothing() {
    let (double, first, second) = opened();
    drop(second);
    // The next instance gets the UAR page and event queue of the second one. A further one needs a new page, which the
    // device refuses.
    let again = first
        .opened()
        .instance()
        .expect("an instance")
        .expect("it is open");
    double.rule(0x802, Action::Refuse(0x08, 0));
    let refused = first.opened().instance();
    assert!(refused.is_err(), "ALLOC_UAR is refused");
    assert_eq!(first.instances(), 2);
    drop((again, refused));
    let report = first.close().expect("closed");
    assert_eq!((report.instances_left, report.objects_left), (0, vec![]));
}

#[test]
fn a_closed_function_has_no_more_instances() {
    let (_double, first, second) = opened();
    let function = first.opened();
    let report = first.close().expect("closed");
    assert_eq!(report.instances_left, 1);
    assert_eq!(second.close().expect("closed").instances_left, 0);
    assert!(function.instance().expect("no error").is_none());
}

#[test]
fn a_function_that_its_last_instance_is_about_to_close_has_no_counters() {
    let (_double, mut first, second) = opened();
    let function = first.opened();
    drop(second);
    assert!(matches!(function.counters(), Ok(Some(_))));
    assert!(first.retire());
    let counters = function.counters();
    assert!(matches!(counters, Ok(None)), "{counters:?}");
    // What needs no command is there until the close.
    assert!(function.commands().is_some() && function.recorder().is_some());
    assert_eq!(first.close().expect("closed").instances_left, 0);
    assert!(matches!(function.counters(), Ok(None)));
    assert!(function.commands().is_none() && function.recorder().is_none());
}

/// An event that came while an instance waited for an answer is still signalled to a program that then sleeps on the
/// descriptors.
#[test]
fn what_comes_during_a_command_is_not_slept_over_behind_it() {
    let (double, mut first, _second) = opened();
    let eqn = u8::try_from(first.comp_eqn().get()).expect("8 bits");
    double.rule(NOP, Action::Hold);
    double.after(Duration::from_millis(1), move |state| {
        let mut eqe = [0u8; 64];
        eqe[0x3b] = 9;
        state.event_to(eqn, eqe);
    });
    double.after(Duration::from_millis(3), |state| state.release(0));
    let pending = |hca: &Hca| {
        let own = &hca.interrupts()[..hca.vectors()];
        own.iter().any(driver::Interrupt::is_pending)
    };
    first.exec(&NopIn::new()).expect("answered");
    assert!(pending(&first), "a completion event lies there");
    first.process_events();
    assert_eq!(first.next_completion(), Some(Cqn::new(9)));
    assert!(!pending(&first), "it has looked");
}

/// An instance that takes in its own answer, or an event of a completion queue that it polls itself next, does not wake
/// the others. Otherwise each command of one instance would wake all sleeping instances.
#[test]
fn an_answer_and_a_look_around_wake_nobody_whom_they_do_not_concern() {
    let (double, mut first, second) = opened();
    let wakeup = second.interrupts()[second.vectors() - 1].clone();
    first.exec(&NopIn::new()).expect("answered");
    assert!(!wakeup.is_pending());
    // The event is of a completion queue that all instances share. An instance that processes events polls that queue
    // next.
    let shared = u8::try_from(second.comp_eqn().get() - 2).expect("8 bits");
    let mut eqe = [0u8; 64];
    eqe[0x3b] = 9;
    double.state().event_to(shared, eqe);
    assert!(first.process_events(), "it is to look");
    assert!(!wakeup.is_pending());
    // An instance that waits for an answer does not poll the queue until the answer comes, so it wakes the others.
    double.rule(NOP, Action::Hold);
    let held = first.submit(&NopIn::new(), &[]).expect("posted");
    double.state().event_to(shared, eqe);
    double.after(Duration::from_millis(3), |state| state.release(0));
    first.answer(held).expect("in the end");
    assert!(wakeup.is_pending());
}

/// If a command of one instance times out, the owner of another command still gets the answer to that command. The
/// owner is woken when the answer comes, and not before.
#[test]
fn a_command_that_times_out_leaves_the_answer_of_another_instance_to_its_owner() {
    let (double, mut first, mut second) = opened();
    double.rule(NOP, Action::Hold);
    double.rule(NOP, Action::Hold);
    let held = first.submit(&NopIn::new(), &[]).expect("posted");
    let wakeup = first.interrupts()[first.vectors() - 1].clone();
    second
        .exec(&NopIn::new())
        .expect_err("the device is silent");
    assert!(!wakeup.is_pending(), "its answer has not come");
    first.process_events();
    double.release(0);
    second.process_events();
    assert!(wakeup.is_pending(), "its answer has come");
    first.answer(held).expect("it is there");
}

/// A late answer frees the slot of an abandoned command. Whichever instance reads it wakes the one that waits for a
/// slot.
#[test]
fn a_slot_that_a_late_answer_frees_wakes_the_instance_that_waits_for_one() {
    let (double, mut first, mut second) = opened();
    for _ in 0..31 {
        double.rule(NOP, Action::Hold);
        second
            .exec(&NopIn::new())
            .expect_err("the device is silent");
    }
    let begun = first.now();
    let second = Arc::new(Mutex::new(second));
    let (device, other) = (Arc::clone(&double), Arc::clone(&second));
    double.meanwhile(Duration::from_millis(3), move || {
        // The other instance also sleeps. It takes the interrupt of the late answer before the first one sees it.
        device.after(Duration::from_millis(1), |state| state.release(0));
        let mut other = other.lock().expect("unpoisoned");
        let limit = other.now() + Duration::from_millis(2);
        assert!(other.wait(limit).expect("alive"));
    });
    first.exec(&NopIn::new()).expect("answered");
    assert_eq!(first.now() - begun, Duration::from_millis(4));
}

/// After a loss of events an instance is told again whether the port is up, because one of the lost events may have
/// been about the port.
#[test]
fn the_state_of_the_port_follows_a_loss_of_events() {
    let (double, mut first, _second) = opened();
    // A port event is type 9, with sub-type 4 for up and 1 for down.
    for (sub_type, told) in [(1, AsyncEvent::PortDown), (4, AsyncEvent::PortUp)] {
        while first.next_async().is_some() {}
        for _ in 0..1 << 16 {
            first.push_event(AsyncEvent::PortChange { sub_type: 0 });
        }
        let mut eqe = [0u8; 64];
        (eqe[1], eqe[3]) = (9, sub_type);
        double.state().event(eqe);
        first.process_events();
        let kept = std::iter::from_fn(|| first.next_async());
        let rest: Vec<AsyncEvent> = kept.skip(1 << 16).collect();
        assert_eq!(rest, [AsyncEvent::EventsLost { count: 1 }, told]);
    }
}
