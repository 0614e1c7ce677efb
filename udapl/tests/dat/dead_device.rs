//! A device that dies under load: every DTO completes once, and the adapter can be closed.

use hw_sim::Fault;
use udapl::error::ReturnType;
use udapl::{CloseFlags, CompletionFlags, ConnectionEventKind, DtoCookie, DtoStatus, Event};

use crate::support::{self, A, B, NONE, Pair};

fn kill(fault: &Fault, sends: u64) {
    let mut pair = Pair::connected();
    let (buffer, ep) = (pair.buffer(A, 4096), pair.sides[A].ep);
    for cookie in 0..5 {
        pair.sides[A]
            .ia
            .ep_post_recv(ep, &[buffer.part(0, 64)], DtoCookie(100 + cookie), NONE)
            .expect("a receive");
    }
    // After each fault except `BusError`, the device sends no packet, so the peer gets no message.
    pair.fabric.sim.inject(&pair.fabric.function(A), fault);
    for cookie in 0..sends {
        let flags = if cookie == 2 {
            CompletionFlags::SUPPRESS
        } else {
            NONE
        };
        pair.sides[A]
            .ia
            .ep_post_send(ep, &[buffer.part(0, 64)], DtoCookie(cookie), flags)
            .expect("a send");
    }
    for cookie in 0..sends {
        let done = pair.wait_request(A);
        assert_eq!(
            (done.cookie.0, done.status),
            (cookie, DtoStatus::ErrFlushed),
            "{fault:?}"
        );
    }
    for cookie in 100..105 {
        let done = pair.wait_recv(A);
        assert_eq!(
            (done.cookie.0, done.status),
            (cookie, DtoStatus::ErrFlushed),
            "{fault:?}"
        );
    }
    pair.expect_connection(A, ConnectionEventKind::Broken);
    let Event::Async(event) = pair.wait_event(A, pair.sides[A].ia.async_evd()) else {
        panic!("an asynchronous event");
    };
    assert_eq!(event.number(), 0x08002, "DAT_ASYNC_ERROR_IA_CATASTROPHIC");
    // Later posts are flushed as well; calls that need the device return an error that says so.
    pair.sides[A]
        .ia
        .ep_post_send(ep, &[buffer.part(0, 64)], DtoCookie(9), NONE)
        .expect("a post in DISCONNECTED");
    let done = pair.wait_request(A);
    assert_eq!((done.cookie.0, done.status), (9, DtoStatus::ErrFlushed));
    support::refused(pair.sides[A].ia.pz_create(), ReturnType::InternalError);
    let [a, b] = pair.sides;
    udapl::ia_close(a.ia, CloseFlags::Abrupt).expect("a dead device can be closed");
    udapl::ia_close(b.ia, CloseFlags::Abrupt).expect("its peer too");
    assert!(pair.fabric.report(B).is_clean());
}

/// A fatal health syndrome flushes all DTOs, and the adapter can be closed afterwards.
///
/// Clauses: SEND-10, SEND-28.
#[test]
fn a_fatal_health_syndrome_flushes_everything_and_leaves_an_adapter_that_closes() {
    kill(&Fault::HealthSyndrome(1), 5);
}

#[test]
fn a_function_pulled_out_flushes_everything_and_leaves_an_adapter_that_closes() {
    kill(&Fault::SurpriseRemoval, 5);
}

#[test]
fn an_error_of_the_bus_flushes_everything_and_leaves_an_adapter_that_closes() {
    // The function works until its driver stops it, so a send may still succeed.
    kill(&Fault::BusError, 0);
}

#[test]
fn a_function_that_is_wanted_back_is_given_back_in_good_order() {
    let mut pair = Pair::connected();
    let (buffer, ep) = (pair.buffer(A, 4096), pair.sides[A].ep);
    for cookie in 0..5 {
        pair.sides[A]
            .ia
            .ep_post_recv(ep, &[buffer.part(0, 64)], DtoCookie(cookie), NONE)
            .expect("a receive");
    }
    pair.fabric
        .sim
        .inject(&pair.fabric.function(A), &Fault::WantedBack);
    let Event::Async(event) = pair.wait_event(A, pair.sides[A].ia.async_evd()) else {
        panic!("an asynchronous event");
    };
    assert_eq!(event.number(), 0x08002, "DAT_ASYNC_ERROR_IA_CATASTROPHIC");
    pair.expect_connection(A, ConnectionEventKind::Disconnected);
    pair.expect_connection(B, ConnectionEventKind::Disconnected);
    for cookie in 0..5 {
        let done = pair.wait_recv(A);
        assert_eq!(
            (done.cookie.0, done.status),
            (cookie, DtoStatus::ErrFlushed)
        );
    }
    support::refused(pair.sides[A].ia.pz_create(), ReturnType::InternalError);
    let why = pair.sides[A].ia.last_device_error().expect("a reason");
    assert!(why.contains("wants the device back"), "{why}");
    // The device is alive: the teardown is complete, and no object is left on it.
    let [a, b] = pair.sides;
    let report = udapl::ia_close(a.ia, CloseFlags::Abrupt).expect("it closes");
    assert_eq!((report.dead, report.pages_not_returned), (None, 0));
    udapl::ia_close(b.ia, CloseFlags::Abrupt).expect("its peer too");
    assert!(pair.fabric.report(A).is_clean() && pair.fabric.report(B).is_clean());
}

#[test]
fn a_bar_that_reads_all_ones_flushes_everything_and_leaves_an_adapter_that_closes() {
    kill(&Fault::BarAllOnes, 5);
}
