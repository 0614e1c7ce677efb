//! Parking and resuming of instances.

mod everything;
mod gap;
mod instances;
mod lies;
mod random_lies;
mod refusals;

use super::*;
use crate::handle::index_of;
use crate::mock::MockHandover;
use crate::provider::ProviderEvent;
use crate::snapshot::IaSnapshot;
use std::io::Write as _;

fn parked(ia: Ia<Mock>) -> (IaSnapshot<Mock>, MockHandover) {
    ia.park().expect("parks")
}

/// Parks and resumes an instance. Checks that the snapshot of the resumed instance is the same.
fn resumed(ia: Ia<Mock>) -> Ia<Mock> {
    let (snapshot, handover) = parked(ia);
    let ia = match Ia::resume(&snapshot, handover, &()) {
        Ok(ia) => ia,
        Err(error) => panic!("{error:?}: {snapshot:#?}"),
    };
    let (again, handover) = parked(ia);
    assert_eq!(again, snapshot);
    Ia::resume(&again, handover, &()).expect("resumes")
}

/// Environment variable of a process whose tests park and resume instances again and again. It names a file, to which
/// the process appends [`PARKED`] or [`REFUSED`] each time.
const ASKED: &str = "DAT_CORE_TESTS_PARK";
const PARKED: u8 = b'p';
const REFUSED: u8 = b'r';

/// Parks and resumes an instance in a process that is asked to, unless the test has made the instance one that cannot
/// be parked.
pub(super) fn park_if_asked(ia: &mut Ia<Mock>) {
    let Some(path) = std::env::var_os(ASKED) else {
        return;
    };
    let other = Ia::open(Net::default().node(), IaConfig::default()).expect("opens");
    let old = std::mem::replace(ia, other);
    let outcome;
    (*ia, outcome) = match old.park() {
        Ok((snapshot, handover)) => {
            let again = Ia::resume(&snapshot, handover, &());
            let again = again.unwrap_or_else(|error| panic!("{error:?}: {snapshot:#?}"));
            (resumed(again), PARKED)
        }
        Err(refused) => {
            let error = refused.error;
            assert!(is_made_by_the_test(&error), "{error}");
            let [ia] = <[Ia<Mock>; 1]>::try_from(refused.ias).expect("the instance");
            (ia, REFUSED)
        }
    };
    let file = std::fs::OpenOptions::new().append(true).open(path);
    file.expect("a file").write_all(&[outcome]).expect("room");
}

/// Returns whether a test may have made an instance one that cannot be parked for this reason.
const fn is_made_by_the_test(error: &ParkError) -> bool {
    match error {
        ParkError::Instances { .. }
        | ParkError::TooManyInstances { .. }
        | ParkError::Dead { .. }
        | ParkError::Requested { .. }
        | ParkError::EvdWaiter { .. }
        | ParkError::CnoWaiter { .. }
        | ParkError::EvdOverran { .. }
        | ParkError::EpOverran { .. }
        | ParkError::SrqError { .. }
        | ParkError::Agent { .. }
        | ParkError::Watchers { .. }
        | ParkError::Keeper { .. } => true,
        ParkError::NoInstance
        | ParkError::OtherAdapter { .. }
        | ParkError::Region { .. }
        | ParkError::Memory { .. }
        | ParkError::Tables(_)
        | ParkError::Provider(_) => false,
    }
}

/// All tests of calls, again: their instances are parked and resumed before events are dequeued, and between the steps
/// of handshakes. Measurements and records are not carried.
#[test]
fn every_test_passes_if_instances_are_parked_and_resumed_again_and_again() {
    let tests = std::env::current_exe().expect("this program");
    let outcomes = std::env::temp_dir().join(format!("dat-core-parked-{}", std::process::id()));
    std::fs::write(&outcomes, b"").expect("a file");
    let mut again = std::process::Command::new(tests);
    let again = again
        .env(ASKED, &outcomes)
        .args(["tests::", "--quiet"])
        .args([
            "--skip",
            "cm::",
            "--skip",
            "tests::parking",
            "--skip",
            "adapter::",
        ])
        .args(["--skip", "tests::latency", "--skip", "tests::recorder"]);
    let ended = again.output().expect("runs");
    let said = String::from_utf8_lossy(&ended.stdout);
    let counted = std::fs::read(&outcomes).expect("the outcomes");
    std::fs::remove_file(&outcomes).expect("removed");
    assert!(ended.status.success(), "{said}");
    let passed = said
        .split_once("ok. ")
        .and_then(|(_, said)| said.split_once(" passed"));
    let passed: u32 = passed.map_or(0, |(count, _)| count.parse().expect("a number"));
    let refused = counted
        .iter()
        .filter(|outcome| **outcome == REFUSED)
        .count();
    let parked = counted.len() - refused;
    assert!(
        passed > 200 && parked > 5_000 && refused < 100,
        "{passed} tests, {parked} instances parked, {refused} refused"
    );
}

impl Side {
    /// Parks and resumes the side's instance.
    fn resumed(self) -> Self {
        let Self {
            ia,
            pz,
            lmr,
            recv,
            request,
            connect,
            ep,
        } = self;
        Self {
            ia: resumed(ia),
            pz,
            lmr,
            recv,
            request,
            connect,
            ep,
        }
    }
}

/// The device does not go on with a completion queue that overran, so no process could resume the instance.
#[test]
fn an_evd_whose_completion_queue_overran_is_refused_until_it_is_freed() {
    let (net, mut a, mut b) = connected();
    let owner = index_of(a.request.key);
    net.report(0, ProviderEvent::CqError { owner });
    progress_both(&mut a, &mut b);
    let refused = a.ia.park().err().expect("it overran");
    let wanted = format!(
        "the completion queue of {:?} has overrun: free the EVD before the parking",
        a.request
    );
    assert_eq!(refused.error.to_string(), wanted);
    [a.ia] = <[Ia<Mock>; 1]>::try_from(refused.ias).expect("the instance");
    a.ia.ep_free(a.ep).expect("freed");
    a.ia.evd_free(a.request).expect("unused");
    let evd = a.ia.evd_create(8, EvdFlags::DTO).expect("a new one");
    assert_eq!(index_of(evd.key), owner, "the place of the freed one");
    a.ia = resumed(a.ia);
}

#[test]
fn an_srq_in_error_is_refused_until_it_is_freed() {
    let (net, _a, mut b, srq) = srq::connected_srq();
    let owner = index_of(srq.key);
    net.report(1, ProviderEvent::SrqError { owner });
    b.ia.progress();
    let refused = b.ia.park().err().expect("it is in error");
    let wanted = format!("{srq:?} is in error: free it before the parking");
    assert_eq!(refused.error.to_string(), wanted);
    [b.ia] = <[Ia<Mock>; 1]>::try_from(refused.ias).expect("the instance");
    b.ia.ep_free(b.ep).expect("freed");
    b.ia.srq_free(srq).expect("unused");
    b.ia = resumed(b.ia);
}

/// 2^56 bytes take 67 days at 100 Gb/s.
#[test]
fn an_instance_that_has_moved_more_than_two_to_the_56_bytes_is_resumed() {
    let (_net, a, _b) = connected();
    let (mut snapshot, handover) = parked(a.ia);
    snapshot.instances[0].ended.request_bytes = (1 << 56) + 1;
    snapshot.instances[0].eps.objects[0].counts.shared_bytes = (1 << 56) + 1;
    Ia::resume(&snapshot, handover, &()).expect("resumes");
}

/// A completion outlives its endpoint and the SRQ.
#[test]
fn a_completion_of_a_freed_srq_that_was_not_dequeued_is_there_after_the_resumption() {
    let (_net, mut a, mut b, srq) = srq::connected_srq();
    let iov = [b.triplet(0, 64)];
    b.ia.srq_post_recv(srq, &iov, DtoCookie(5)).expect("posts");
    a.send(1, NO_FLAGS).expect("posts");
    b.ia.srq_query(srq).expect("polls");
    b.ia.ep_free(b.ep).expect("freed");
    b.ia.srq_free(srq).expect("freed");
    b.ia = resumed(b.ia);
    assert_eq!(b.completions(b.recv), [(5, DtoStatus::Success)]);
}

#[test]
fn a_connection_with_posted_and_unpolled_work_goes_on_after_it_was_parked_and_resumed() {
    let (net, mut a, mut b) = connected();
    for cookie in 1..=3 {
        b.post_recv(cookie).expect("posts");
    }
    a.send(11, NO_FLAGS).expect("posts");
    let (mut a, mut b) = (a.resumed(), b.resumed());
    assert_eq!(
        (a.state(), b.state()),
        (EpState::Connected, EpState::Connected)
    );
    // The first Send was carried out before, and nobody has polled it.
    a.send(12, NO_FLAGS).expect("posts");
    let success = |cookie| (cookie, DtoStatus::Success);
    assert_eq!(a.completions(a.request), [success(11), success(12)]);
    assert_eq!(b.completions(b.recv), [success(1), success(2)]);
    // A Send that is carried out while both are parked.
    net.hold();
    a.send(13, NO_FLAGS).expect("posts");
    let (snapshot_a, handover_a) = parked(a.ia);
    let (snapshot_b, handover_b) = parked(b.ia);
    net.release();
    a.ia = Ia::resume(&snapshot_a, handover_a, &()).expect("resumes");
    b.ia = Ia::resume(&snapshot_b, handover_b, &()).expect("resumes");
    assert_eq!(a.completions(a.request), [success(13)]);
    assert_eq!(b.completions(b.recv), [success(3)]);
    a.ia.ep_disconnect(a.ep, CloseFlags::Graceful)
        .expect("ends");
    progress_both(&mut a, &mut b);
    let gone = [ConnectionEventKind::Disconnected];
    assert_eq!(
        (a.connection_events(), b.connection_events()),
        (gone.to_vec(), gone.to_vec())
    );
}
