//! Events of the time in which no process has the instance.

use super::*;
use crate::mock::MockHandover;
use crate::provider::ProviderEvent;

const SECOND: u64 = 1_000_000_000;

fn resume((snapshot, handover): (IaSnapshot<Mock>, MockHandover)) -> Ia<Mock> {
    Ia::resume(&snapshot, handover, &()).expect("resumes")
}

/// The peer has answered, and so many deadlines have passed that the attempt would have been given up.
#[test]
fn an_answer_that_arrived_meanwhile_counts_although_all_deadlines_passed() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let cr = request(&mut a, &mut b, b"");
    let parked_a = parked(a.ia);
    b.ia.cr_accept(cr, Some(b.ep), b"").expect("accepts");
    net.pass(3_600 * SECOND);
    a.ia = resume(parked_a);
    a.ia.progress();
    assert_eq!(a.connection_events(), [ConnectionEventKind::Established]);
    assert_eq!(a.state(), EpState::Connected);
}

/// The peer's RTU was lost, and its first message has arrived. The deadline of the last repetition has passed.
#[test]
fn a_message_that_arrived_meanwhile_counts_although_all_deadlines_passed() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let cr = request(&mut a, &mut b, b"");
    b.post_recv(1).expect("posted");
    b.ia.cr_accept(cr, Some(b.ep), b"").expect("accepts");
    b.ia.progress();
    let mut parked_b = parked(b.ia);
    for conn in &mut parked_b.0.adapter.cm.conns {
        conn.retries = conn.max_retries;
    }
    net.drop_mads(true);
    a.ia.progress();
    a.send(1, NO_FLAGS).expect("posted");
    net.drop_mads(false);
    net.pass(3_600 * SECOND);
    b.ia = resume(parked_b);
    b.ia.progress();
    assert_eq!(b.connection_events(), [ConnectionEventKind::Established]);
    assert_eq!(b.state(), EpState::Connected);
    assert_eq!(b.completions(b.recv), [(1, DtoStatus::Success)]);
}

/// More datagrams than one call takes.
#[test]
fn all_datagrams_that_arrived_meanwhile_are_handled_first() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    a.ia.psp_create(QUAL, a.connect, PspFlags::CONSUMER)
        .expect("listens");
    let parked_a = parked(a.ia);
    for _ in 0..100 {
        let evds = EpEvds::dto(b.recv).connect(b.connect);
        b.ep = b.ia.ep_create(Some(b.pz), evds, None).expect("an EP");
        let (whom, timeout, flags) = (b.address(), Timeout::INFINITE, ConnectFlags::empty());
        let mut gid = crate::attributes::gid_of(whom);
        gid[15] -= 1;
        let whom = crate::attributes::address_of(gid);
        b.ia.ep_connect(b.ep, whom, QUAL, timeout, b"", Qos::BEST_EFFORT, flags)
            .expect("connects");
    }
    a.ia = resume(parked_a);
    assert!(!a.ia.has_more());
    assert_eq!(a.ia.cm_counters().received, 100);
}

/// As many messages arrive as the reserve says, and the next one finds no receive.
#[test]
fn the_reserve_is_what_arrives_while_no_process_has_the_instance() {
    let (_net, mut a, mut b) = connected();
    assert_eq!(a.ia.reserve().recvs, Some(0));
    (0..3).for_each(|cookie| a.post_recv(cookie).expect("posted"));
    let reserve = a.ia.reserve();
    assert_eq!(reserve.recvs, Some(3));
    let parked_a = parked(a.ia);
    (0..4).for_each(|cookie| b.send(cookie, NO_FLAGS).expect("posted"));
    a.ia = resume(parked_a);
    assert_eq!(a.completions(a.recv).len(), 3);
    assert_eq!(a.ia.reserve().recvs, Some(0));
    let left = a.ia.reserve().completions.expect("completion queues");
    assert_eq!(Some(left), reserve.completions.map(|least| least + 3));
}

#[test]
fn a_peer_that_disconnected_meanwhile_ends_the_connection() {
    let (_net, mut a, mut b) = connected();
    let parked_a = parked(a.ia);
    b.ia.ep_disconnect(b.ep, CloseFlags::Abrupt).expect("ends");
    a.ia = resume(parked_a);
    a.ia.progress();
    assert_eq!(a.connection_events(), [ConnectionEventKind::Disconnected]);
}

/// A request fails meanwhile: its completion says so.
#[test]
fn a_request_that_failed_meanwhile_breaks_its_connection() {
    let (net, mut a, _b) = connected();
    let qpn = a.qpn();
    net.hold();
    a.send(1, NO_FLAGS).expect("posted");
    let parked_a = parked(a.ia);
    net.fail_next(qpn, DtoStatus::ErrTransport);
    net.release();
    a.ia = resume(parked_a);
    assert_eq!(a.completions(a.request), [(1, DtoStatus::ErrTransport)]);
    a.ia.progress();
    assert_eq!(a.connection_events(), [ConnectionEventKind::Broken]);
}

/// An event of the device reports the stop, or the event was lost. The queue pair has no work that could fail.
#[test]
fn a_queue_pair_that_stopped_meanwhile_breaks_its_connection() {
    for event in [5, 0] {
        let (net, mut a, _b) = connected();
        let parked_a = parked(a.ia);
        net.stop_qp(0);
        if event != 0 {
            net.report(0, ProviderEvent::QpError { owner: 0, event });
        }
        a.ia = resume(parked_a);
        a.ia.progress();
        assert_eq!(a.connection_events(), [ConnectionEventKind::Broken]);
        let cause = a.ia.ep_end_cause(a.ep).expect("exists");
        assert_eq!(cause, Some(EndCause::QueuePair(event)));
    }
}

/// The last request is done, and its success was suppressed, so the device has no work to flush.
#[test]
fn a_queue_pair_that_stopped_after_its_requests_were_done_breaks_its_connection() {
    let (net, mut a, mut b) = connected();
    for cookie in 1..=2 {
        b.post_recv(cookie).expect("posted");
    }
    a.send(1, NO_FLAGS).expect("posted");
    assert_eq!(a.completions(a.request), [(1, DtoStatus::Success)]);
    a.send(2, CompletionFlags::SUPPRESS).expect("posted");
    let stats = a.ia.ep_stats(a.ep).expect("exists");
    assert_eq!(stats.requests_outstanding, 1);
    let parked_a = parked(a.ia);
    net.stop_qp(0);
    let sent = net.mads().len();
    a.ia = resume(parked_a);
    assert_eq!(net.mads().len(), sent, "the resumption sends nothing");
    a.ia.progress();
    assert_eq!(a.connection_events(), [ConnectionEventKind::Broken]);
    let cause = a.ia.ep_end_cause(a.ep).expect("exists");
    assert_eq!(cause, Some(EndCause::QueuePair(0)));
}

/// The program resets the endpoint and connects it again before anything else.
#[test]
fn the_end_of_a_broken_connection_does_not_end_the_next_one() {
    let (net, mut a, mut b) = connected();
    let parked_a = parked(a.ia);
    net.stop_qp(0);
    a.ia = resume(parked_a);
    a.ia.ep_disconnect(a.ep, CloseFlags::Abrupt).expect("ends");
    a.ia.ep_reset(a.ep).expect("reset");
    b.ia.progress();
    b.ia.ep_reset(b.ep).expect("reset");
    b.connection_events();
    let cr = request(&mut a, &mut b, b"");
    b.ia.cr_accept(cr, Some(b.ep), b"").expect("accepts");
    progress_both(&mut a, &mut b);
    assert_eq!(a.state(), EpState::Connected);
}

/// The probe that is due at the resumption is sent, and its failure ends the connection.
#[test]
fn a_keep_alive_check_that_became_due_meanwhile_is_made() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let transport = Some(EpTransport {
        keep_alive: Some(core::time::Duration::from_secs(1)),
        ..EpTransport::default()
    });
    let change = EpChange {
        transport,
        ..EpChange::default()
    };
    a.ia.ep_modify(a.ep, &change).expect("kept alive");
    connect(&mut a, &mut b);
    let (qpn, parked_a) = (a.qpn(), parked(a.ia));
    let posted = net.posted(qpn);
    net.pass(10 * SECOND);
    a.ia = resume(parked_a);
    assert_eq!(net.posted(qpn), posted);
    a.ia.progress();
    assert_eq!(net.posted(qpn), posted + 1, "the probe");
}

/// The device's report of entries was lost with the process, and the queue is polled nevertheless.
#[test]
fn the_requests_of_a_graceful_disconnect_that_ended_meanwhile_end_it() {
    let (net, mut a, mut b) = connected();
    b.post_recv(1).expect("posted");
    net.hold();
    a.send(1, NO_FLAGS).expect("posted");
    a.ia.ep_disconnect(a.ep, CloseFlags::Graceful)
        .expect("ends");
    assert_eq!(a.state(), EpState::DisconnectPending);
    let parked_a = parked(a.ia);
    net.release();
    a.ia = resume(parked_a);
    a.ia.progress();
    assert_eq!(a.state(), EpState::Disconnected);
    assert_eq!(a.completions(a.request), [(1, DtoStatus::Success)]);
}

#[test]
fn a_wait_finds_what_arrived_meanwhile() {
    let (_net, mut a, mut b) = connected();
    let cno = a.ia.cno_create(None).expect("a CNO");
    a.ia.evd_modify_cno(a.recv, Some(cno)).expect("attached");
    a.post_recv(1).expect("posted");
    a.post_recv(2).expect("posted");
    let parked_a = parked(a.ia);
    b.send(1, NO_FLAGS).expect("posted");
    a.ia = resume(parked_a);
    assert_eq!(a.ia.cno_wait(cno, Timeout::ZERO), Ok(Some(a.recv)));
    assert_eq!(a.completions(a.recv), [(1, DtoStatus::Success)]);
    // And a wait that sleeps is woken.
    let (snapshot, handover) = parked(a.ia);
    a.ia = resume((snapshot, handover));
    let wait = a.ia.evd_wait_begin(a.recv, Timeout::INFINITE, 1);
    let wait = match a.ia.evd_wait_check(wait.expect("waits")) {
        Ok(EvdWaitStatus::Pending(wait, _)) => wait,
        other => panic!("{other:?}"),
    };
    b.send(2, NO_FLAGS).expect("posted");
    assert!(matches!(
        a.ia.evd_wait_check(wait),
        Ok(EvdWaitStatus::Ready(..))
    ));
}
