//! Refusals by name, with a worker that has no connection.

use udapl::{EpHandle, OpenOptions, ia_open};

use super::snapshot::ArrivedSnapshot;
use super::*;
use crate::serve::{Target, WorkerConfig};

fn parked(name: &str) -> (Target, Ia, WorkerSnapshot) {
    let adapter = ia_open(&format!("sim:{name}"), &OpenOptions::default());
    let config = WorkerConfig {
        ios: 16,
        buffers: 2,
        ..WorkerConfig::default()
    };
    let target = Target::default();
    let worker = Worker::new(&target, adapter.expect("an adapter"), config).expect("a worker");
    let refused = worker.park().expect_err("it is not held");
    assert!(
        matches!(refused.1, WorkerParkError::NotHeld { .. }),
        "{}",
        refused.1
    );
    target.hold();
    let Ok((ia, snapshot)) = refused.0.park() else {
        panic!("a worker that is quiet");
    };
    (target, ia, snapshot)
}

/// Changes a snapshot, tries to resume it, and returns the instance and the refusal.
fn refusal(
    (target, ia, snapshot): (&Target, Ia, &WorkerSnapshot),
    change: impl FnOnce(&mut WorkerSnapshot),
) -> (Ia, WorkerResumeError) {
    let mut changed = snapshot.clone();
    change(&mut changed);
    match Worker::resume(target, ia, &changed) {
        Ok(_) => panic!("it is resumed"),
        Err(refused) => *refused,
    }
}

const fn arrived(slot: u32, ep: EpHandle) -> ArrivedSnapshot {
    ArrivedSnapshot {
        slot,
        ep,
        bytes: Some(64),
    }
}

#[test]
fn a_command_slot_in_two_places_or_in_none_is_refused_by_name() {
    let (target, ia, snapshot) = parked("slots");
    let ep = EpHandle::from_raw(1, 1);
    let (ia, error) = refusal((&target, ia, &snapshot), |changed| {
        changed.arrived = vec![arrived(7, ep), arrived(8, ep), arrived(7, ep)];
    });
    assert_eq!(error.to_string(), "command slot 7 is in two places");
    // The receive of the slot is posted, too.
    let (ia, error) = refusal((&target, ia, &snapshot), |changed| {
        changed.arrived = vec![arrived(7, ep)];
    });
    let WorkerResumeError::Receives { receives, slots } = error else {
        panic!("{error}");
    };
    assert_eq!(receives, slots + 1);
    let (ia, error) = refusal((&target, ia, &snapshot), |changed| {
        changed.arrived = vec![arrived(u32::MAX, ep)];
    });
    assert!(matches!(error, WorkerResumeError::Range { .. }), "{error}");
    assert!(Worker::resume(&target, ia, &snapshot).is_ok());
}

#[test]
fn objects_and_numbers_that_are_not_the_workers_are_refused_by_name() {
    let (target, ia, snapshot) = parked("objects");
    let mut ia = Some(ia);
    let mut said = |change: &dyn Fn(&mut WorkerSnapshot)| {
        let (back, error) = refusal((&target, ia.take().expect("given back"), &snapshot), change);
        ia = Some(back);
        error.to_string()
    };
    assert_eq!(
        said(&|one| one.regions.swap(0, 1)),
        "a region of the instance is not the worker's"
    );
    assert_eq!(
        said(&|one| one.psp = None),
        "the PSP of the instance is not the worker's"
    );
    assert_eq!(
        said(&|one| one.config.ios = 17),
        "the SRQ of the instance is not the worker's"
    );
    assert_eq!(
        said(&|one| one.id = 1),
        "no worker 1 is parked at the target"
    );
    assert_eq!(
        said(&|one| one.untimed = 0),
        "the next timed command is 0; 1 to 64 are possible"
    );
    let ia = ia.take().expect("given back");
    assert!(Worker::resume(&target, ia, &snapshot).is_ok());
}

#[test]
fn a_parked_worker_that_is_forgotten_or_unknown_is_not_resumed() {
    let (target, ia, snapshot) = parked("forgotten");
    target.forget_worker(snapshot.worker());
    assert!(target.parked_workers().is_empty());
    let (_, error) = refusal((&target, ia, &snapshot), |_| ());
    assert!(
        matches!(error, WorkerResumeError::Unknown { worker: 0 }),
        "{error}"
    );
}

/// A worker that has not heard of the release yet is quiet for the ended hold only.
#[test]
fn a_worker_that_was_quiet_in_an_earlier_hold_must_become_quiet_again() {
    let adapter = ia_open("sim:holds", &OpenOptions::default());
    let target = Target::default();
    let config = WorkerConfig::default();
    let worker = Worker::new(&target, adapter.expect("an adapter"), config);
    let mut worker = worker.expect("a worker");
    target.hold();
    for _ in 0..3 {
        worker.run_once().expect("runs");
    }
    assert!(target.is_all_quiet());
    target.release();
    worker.run_once().expect("runs");
    target.hold();
    assert!(!target.is_all_quiet());
    for _ in 0..3 {
        worker.run_once().expect("runs");
    }
    assert!(target.is_all_quiet());
}

#[test]
fn a_target_is_not_parked_while_a_parked_worker_has_messages() {
    let (target, ia, snapshot) = parked("messages");
    assert!(target.park().is_ok());
    target.stop_worker(snapshot.worker());
    let error = target.park().expect_err("it would not be stopped");
    assert_eq!(
        error.to_string(),
        "parked worker 0 has messages: it must be resumed, and parked again"
    );
    let worker = Worker::resume(&target, ia, &snapshot);
    assert!(worker.is_ok());
}
