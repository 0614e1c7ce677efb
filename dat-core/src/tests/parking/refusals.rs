//! Instances that cannot be parked, and steps that the provider refuses.

use super::everything::Everything;
use super::*;
use crate::mock::{Step, UNPARKABLE};
use crate::provider::ProviderEvent;

/// Parks an instance, which is refused. Returns the instance and the text of the reason.
fn refused(ia: Ia<Mock>) -> (Ia<Mock>, String) {
    let refused = ia.park().map(drop).expect_err("cannot be parked");
    let NotParked { mut ias, error } = *refused;
    (ias.pop().expect("the instance"), error.to_string())
}

/// Checks that a side is refused for a reason, and that it parks after `cure`.
fn assert_refused(mut side: Side, reason: &str, cure: impl FnOnce(&mut Ia<Mock>)) {
    let text;
    (side.ia, text) = refused(side.ia);
    assert!(text.contains(reason), "{text}, and not {reason}");
    cure(&mut side.ia);
    side.resumed();
}

#[test]
fn functions_of_the_program_are_refused_until_it_removes_them() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let agent = Agent::new(|_| panic!("it is not called"));
    let cno = a.ia.cno_create(Some(agent)).expect("a CNO");
    assert_refused(a, "has an agent", |ia| {
        ia.cno_modify_agent(cno, None).expect("removed");
    });
    let mut a = Side::new(&net, |_| {});
    a.ia.recorder_start();
    a.ia.recorder_keep(Box::new(|_, _| {}));
    let reason = format!("the recorder of IA {} has a keeper", a.recv.to_raw().1);
    assert_refused(a, &reason, Ia::recorder_stop);
    let a = Side::new(&net, |_| {});
    assert!(a.ia.opened().watch(Box::new(|_| {})));
    let (_, text) = refused(a.ia);
    assert_eq!(text, "the adapter has 1 watchers of events");
}

#[test]
fn a_thread_that_waits_is_refused_by_the_name_of_its_object() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let wait = a.ia.evd_wait_begin(a.recv, Timeout::INFINITE, 1);
    let wait = wait.expect("waits");
    let name = format!("a thread waits on {:?}", a.recv);
    assert_refused(a, &name, |ia| {
        ia.evd_wait_cancel(wait);
    });
    let mut a = Side::new(&net, |_| {});
    let cno = a.ia.cno_create(None).expect("a CNO");
    let wait = a.ia.cno_wait_begin(cno, Timeout::INFINITE).expect("waits");
    assert_refused(a, &format!("a thread waits on {cno:?}"), |ia| {
        ia.cno_wait_cancel(wait);
    });
}

#[test]
fn an_adapter_with_two_instances_is_refused() {
    let net = Net::default();
    let a = Side::new(&net, |_| {});
    let opened = a.ia.opened();
    let other = opened.instance(net.node(), IaConfig::default());
    assert_refused(a, "2 instances", |_| drop(other.expect("opens")));
}

#[test]
fn a_device_that_is_dead_or_wanted_back_is_refused() {
    let net = Net::default();
    let (a, b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    // Nobody has noticed it before.
    net.kill(0);
    net.report(1, ProviderEvent::DeviceRequested);
    let name = |side: &Side| side.ia.query().ia.adapter_name.clone();
    let (dead, wanted) = (name(&a), name(&b));
    let text = format!("the device of {dead} is dead");
    assert_eq!(refused(a.ia).1, text);
    let text = format!("the system wants the device back: {wanted}");
    assert_eq!(refused(b.ia).1, text);
}

#[test]
fn memory_that_another_process_cannot_have_is_refused_by_the_name_of_its_region() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let lent =
        a.ia.lmr_create((0x60_0000, UNPARKABLE), a.pz, MemPrivFlags::all());
    let lmr = lent.expect("an LMR").lmr;
    let reason =
        format!("the memory of {lmr:?} cannot be parked: not supported by the device: lent");
    assert_refused(a, &reason, |ia| ia.lmr_free(lmr).expect("freed"));
}

/// The instance goes on in the same process, with its adapter and its observers.
#[test]
fn an_instance_that_the_provider_refuses_goes_on() {
    for step in [Step::Begin, Step::Finish] {
        // If the peer were dropped, connections would end.
        let Everything {
            net, mut a, b: _b, ..
        } = Everything::new();
        let opened = a.ia.opened();
        let (snapshot, handover) = parked(a.ia);
        a.ia = Ia::resume(&snapshot, handover, &()).expect("resumes");
        assert_eq!(opened.counters(), None, "another adapter");
        let opened = a.ia.opened();
        net.refuse_parking(step);
        let text;
        (a.ia, text) = refused(a.ia);
        assert!(
            text.ends_with(&format!("{step:?} is refused by the test")),
            "{text}"
        );
        assert!(opened.counters().is_some(), "the same adapter");
        let (again, _) = parked(a.ia);
        assert_eq!(again, snapshot, "{step:?}");
    }
    // If it cannot be undone, the device is stopped.
    let net = Net::default();
    let a = Side::new(&net, |_| {});
    net.refuse_parking(Step::Finish);
    net.refuse_parking(Step::Cancel);
    let refused = a.ia.park().map(drop).expect_err("refused");
    assert!(refused.ias.is_empty());
}

#[test]
fn a_refused_resumption_returns_the_descriptors_as_long_as_the_device_is_unchanged() {
    let net = Net::default();
    let a = Side::new(&net, |_| {});
    let (snapshot, handover) = parked(a.ia);
    net.refuse_parking(Step::Resume);
    let refused = Ia::resume(&snapshot, handover, &())
        .map(drop)
        .expect_err("refused");
    assert!(refused.error.to_string().contains("Resume is refused"));
    let handover = refused.handover.expect("the descriptors");
    // Another IA has the number.
    let ia = Ia::resume(&snapshot, handover, &()).expect("resumes");
    let (snapshot, handover) = parked(ia);
    let mut other = snapshot.clone();
    let b = Side::new(&net, |_| {});
    other.instances[0].number = b.recv.to_raw().1;
    let refused = Ia::resume(&other, handover, &())
        .map(drop)
        .expect_err("refused");
    let number = other.instances[0].number;
    assert_eq!(refused.error, ResumeError::Number { number });
    let handover = refused.handover.expect("the descriptors");
    net.refuse_parking(Step::FinishResuming);
    let refused = Ia::resume(&snapshot, handover, &())
        .map(drop)
        .expect_err("refused");
    assert!(refused.handover.is_none(), "the device may have changed");
}

/// Numbers of IAs that are opened later.
#[test]
fn no_later_ia_gets_the_number_of_a_resumed_one() {
    let net = Net::default();
    let first = Side::new(&net, |_| {});
    let number = first.recv.to_raw().1;
    let ia = resumed(first.ia);
    let later = Side::new(&net, |_| {});
    assert_ne!(later.recv.to_raw().1, number);
    drop(ia);
}

/// Another thread resumes an instance while the first one is parked, and the parking is refused.
#[test]
fn the_number_of_an_instance_that_may_go_on_is_not_free() {
    let net = Net::default();
    let (a, b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let number = a.recv.to_raw().1;
    let (mut snapshot, handover) = parked(b.ia);
    snapshot.instances[0].number = number;
    net.refuse_parking(Step::Finish);
    net.at_step(Step::Finish, move || {
        let refused = Ia::check_all(&snapshot, handover).map(drop);
        let error = refused.expect_err("the number is taken").error;
        assert_eq!(error, ResumeError::Number { number });
    });
    let (ia, _) = refused(a.ia);
    drop(ia);
}

#[test]
fn a_snapshot_does_not_use_the_numbers_of_later_ias_up() {
    let net = Net::default();
    let (snapshot, mut handover) = parked(Side::new(&net, |_| {}).ia);
    for (number, why) in [
        (0, "its number is 0"),
        (u32::MAX, "number is 4294967295"),
        (u32::MAX >> 1, "is of another IA"),
    ] {
        let mut other = snapshot.clone();
        other.instances[0].number = number;
        let refused = Ia::check_all(&other, handover).map(drop).expect_err(why);
        let text = refused.error.to_string();
        assert!(text.contains(why), "{text}, and not {why}");
        handover = refused.handover.expect("the descriptors");
    }
    let later = Side::new(&net, |_| {});
    assert!(later.recv.to_raw().1 < u32::MAX >> 2);
}

/// The old process checks its tables, so that the next process does not find the contradiction.
#[test]
fn an_instance_that_no_process_could_resume_is_not_parked() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    a.ia.count_wakeups(1 << 57);
    let text;
    (a.ia, text) = refused(a.ia);
    assert!(text.contains("wakeups is 144115188075855872"), "{text}");
    assert_eq!(a.ia.stats().wakeups, 1 << 57);
}
