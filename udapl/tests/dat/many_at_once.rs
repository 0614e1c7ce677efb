//! Several posts with one doorbell (`batch`, `srq_batch`), and several events in one call (`evd_poll`). DAT 1.2 has no
//! such calls. They have the same effects as the single calls, in the same order.

use udapl::endpoint::EpState;
use udapl::error::ReturnType;
use udapl::event::SoftwareEvent;
use udapl::{CompletionFlags, DatError, DatResult, DtoCookie, DtoStatus, EvdFlags, Event};

use crate::support::waiting::{FOREVER, se};
use crate::support::{A, B, CONN_QUAL, LONG, NONE, Pair, PairConfig};

const SUPPRESS: CompletionFlags = CompletionFlags::SUPPRESS;

fn doorbells(pair: &Pair) -> u64 {
    pair.fabric.report(A).send_doorbells
}

/// Returns the cookies and statuses of the next `count` completions.
fn completed(pair: &mut Pair, count: usize) -> Vec<(u64, DtoStatus)> {
    (0..count)
        .map(|_| pair.wait_request(A))
        .map(|done| (done.cookie.0, done.status))
        .collect()
}

#[test]
fn any_mix_of_requests_goes_out_in_its_order_behind_one_doorbell() {
    let mut pair = Pair::connected();
    let (from, to) = (pair.filled(A, 1, 4096), pair.untouched(B, 4096));
    let (near, far) = (pair.untouched(A, 512), pair.filled(B, 2, 512));
    let inbox = pair.untouched(B, 64);
    pair.post_recv(B, &[inbox.all()], 10, NONE).expect("posted");
    pair.pump();
    let before = doorbells(&pair);
    let ep = pair.sides[A].ep;
    let posted = pair.sides[A].ia.batch(ep, |batch| {
        for (piece, cookie) in (0..8).zip(0..) {
            let (from, to) = (from.part(piece * 512, 512), to.remote(piece * 512, 512));
            batch.rdma_write(&[from], DtoCookie(cookie), &to, NONE)?;
        }
        batch.rdma_read(&[near.all()], DtoCookie(8), &far.all_remote(), NONE)?;
        batch.send(&[from.part(0, 64)], DtoCookie(9), NONE)
    });
    assert_eq!(posted, Ok(()));
    pair.pump();
    assert_eq!(doorbells(&pair) - before, 1);
    let all: Vec<_> = (0..10).map(|cookie| (cookie, DtoStatus::Success)).collect();
    assert_eq!(completed(&mut pair, 10), all);
    assert_eq!(to.read(0, 4096), from.read(0, 4096));
    assert_eq!(near.read(0, 512), far.read(0, 512));
    pair.assert_no_complaints();
}

/// Posts with flags or several segments take another path, and keep their order in the batch.
#[test]
fn lists_and_flags_in_a_batch_stay_in_their_order() {
    let mut pair = Pair::connected();
    let (from, to) = (pair.filled(A, 1, 300), pair.untouched(B, 300));
    let ep = pair.sides[A].ep;
    let parts = [from.part(100, 60), from.part(160, 40)];
    let posted = pair.sides[A].ia.batch(ep, |batch| {
        batch.rdma_write(&[from.part(0, 100)], DtoCookie(1), &to.remote(0, 100), NONE)?;
        batch.rdma_write(&parts, DtoCookie(2), &to.remote(100, 100), SUPPRESS)?;
        batch.rdma_write(
            &[from.part(200, 100)],
            DtoCookie(3),
            &to.remote(200, 100),
            NONE,
        )
    });
    assert_eq!(posted, Ok(()));
    let done = [(1, DtoStatus::Success), (3, DtoStatus::Success)];
    assert_eq!(completed(&mut pair, 2), done);
    assert_eq!(to.read(0, 300), from.read(0, 300));
    pair.assert_no_complaints();
}

#[test]
fn what_stands_before_a_refused_request_is_posted() {
    let mut pair = Pair::connected();
    let (from, to) = (pair.filled(A, 1, 64), pair.untouched(B, 64));
    let ep = pair.sides[A].ep;
    let short = to.remote(0, 63);
    let refused = pair.sides[A].ia.batch(ep, |batch| {
        batch.rdma_write(&[from.all()], DtoCookie(1), &to.all_remote(), NONE)?;
        let wrong = batch.rdma_write(&[from.all()], DtoCookie(2), &short, NONE);
        assert_eq!(
            wrong.map_err(DatError::return_type),
            Err(ReturnType::LengthError)
        );
        batch.rdma_write(&[from.all()], DtoCookie(3), &to.all_remote(), NONE)?;
        wrong
    });
    assert_eq!(
        refused.map_err(DatError::return_type),
        Err(ReturnType::LengthError)
    );
    let done = [(1, DtoStatus::Success), (3, DtoStatus::Success)];
    assert_eq!(completed(&mut pair, 2), done);
    assert_eq!(to.read(0, 64), from.read(0, 64));
    pair.assert_no_complaints();
}

#[test]
fn a_batch_ends_where_the_queue_does() {
    let mut pair = Pair::connected_with(&PairConfig::with_attr(|attr| attr.max_request_dtos = 4));
    let (from, to) = (pair.filled(A, 1, 64), pair.untouched(B, 64));
    let ep = pair.sides[A].ep;
    let mut posted = 0;
    let refused: DatResult<()> = pair.sides[A].ia.batch(ep, |batch| {
        loop {
            batch.rdma_write(&[from.all()], DtoCookie(posted), &to.all_remote(), NONE)?;
            posted += 1;
        }
    });
    let refused = refused.map_err(DatError::return_type);
    assert_eq!(
        (posted, refused),
        (4, Err(ReturnType::InsufficientResources))
    );
    let all: Vec<_> = (0..4).map(|cookie| (cookie, DtoStatus::Success)).collect();
    assert_eq!(completed(&mut pair, 4), all);
    pair.assert_no_complaints();
}

#[test]
fn nothing_rings_for_an_empty_batch_or_one_that_nobody_takes() {
    let mut pair = Pair::connected();
    let from = pair.filled(A, 1, 64);
    let before = doorbells(&pair);
    let (ep, spare) = (pair.sides[A].ep, pair.another_ep(A));
    let elsewhere = pair.sides[B].ep;
    let ia = &mut pair.sides[A].ia;
    assert_eq!(ia.batch(ep, |_| Ok(7)), Ok(7));
    let mut send = |ep| {
        let refused = ia.batch(ep, |batch| batch.send(&[from.all()], DtoCookie(1), NONE));
        refused.map_err(DatError::return_type)
    };
    assert_eq!(send(spare), Err(ReturnType::InvalidState));
    assert_eq!(send(elsewhere), Err(ReturnType::InvalidHandle));
    ia.ep_free(spare).expect("freed");
    let gone = ia.batch(spare, |batch| batch.send(&[from.all()], DtoCookie(1), NONE));
    assert_eq!(
        gone.map_err(DatError::return_type),
        Err(ReturnType::InvalidHandle)
    );
    pair.pump();
    assert_eq!(doorbells(&pair), before);
    pair.assert_no_complaints();
}

/// Returns the cookies of the next `count` receives.
fn received(pair: &mut Pair, count: usize) -> Vec<u64> {
    (0..count).map(|_| pair.wait_recv(B).cookie.0).collect()
}

#[test]
fn receives_of_a_batch_are_told_of_at_its_end() {
    let mut pair = Pair::connected();
    let (from, inbox) = (pair.filled(A, 1, 64), pair.untouched(B, 256));
    let before = pair.fabric.report(A).transmitted.packets;
    let Pair {
        fabric,
        sides: [a, b],
        ..
    } = &mut pair;
    let posted = b.ia.batch(b.ep, |batch| {
        batch.recv(&[inbox.part(0, 64)], DtoCookie(1), NONE)?;
        batch.recv(&[inbox.part(64, 64)], DtoCookie(2), NONE)?;
        // The Send finds no receive at first, because the doorbell comes at the end of the batch. The Send is retried.
        a.ia.ep_post_send(a.ep, &[from.all()], DtoCookie(7), NONE)?;
        fabric.pass_time();
        batch.recv(&[inbox.part(128, 64)], DtoCookie(3), NONE)
    });
    assert_eq!(posted, Ok(()));
    assert_eq!(received(&mut pair, 1), [1]);
    assert_eq!(pair.fabric.report(A).transmitted.packets - before, 2);
    pair.post_send(A, &[from.all()], 8, NONE).expect("posted");
    pair.post_send(A, &[from.all()], 9, NONE).expect("posted");
    assert_eq!(received(&mut pair, 2), [2, 3]);
    assert_eq!(inbox.read(128, 64), from.read(0, 64));
    pair.assert_no_complaints();
}

/// A post with several segments takes the slow path, whose doorbell also announces the earlier posts of the batch.
#[test]
fn requests_and_receives_of_a_batch_keep_their_orders() {
    let mut pair = Pair::connected();
    let (from, inbox) = (pair.filled(A, 1, 64), pair.untouched(B, 256));
    let (back, room) = (pair.filled(B, 2, 64), pair.untouched(A, 64));
    pair.post_recv(A, &[room.all()], 30, NONE).expect("posted");
    let halves = [inbox.part(64, 32), inbox.part(96, 32)];
    let ep = pair.sides[B].ep;
    let refused = pair.sides[B].ia.batch(ep, |batch| {
        batch.recv(&[inbox.part(0, 64)], DtoCookie(1), NONE)?;
        batch.recv(&halves, DtoCookie(2), NONE)?;
        batch.send(&[back.all()], DtoCookie(20), NONE)?;
        batch.recv(&[inbox.part(128, 64)], DtoCookie(3), NONE)?;
        batch.recv(&[inbox.part(192, 64)], DtoCookie(4), SUPPRESS)
    });
    assert_eq!(
        refused.map_err(DatError::return_type),
        Err(ReturnType::InvalidParameter)
    );
    for cookie in 5..8 {
        pair.post_send(A, &[from.all()], cookie, NONE)
            .expect("posted");
    }
    assert_eq!(received(&mut pair, 3), [1, 2, 3]);
    assert_eq!(pair.wait_recv(A).cookie, DtoCookie(30));
    assert_eq!(inbox.read(64, 64), from.read(0, 64));
    assert_eq!(room.read(0, 64), back.read(0, 64));
    pair.assert_no_complaints();
}

#[test]
fn buffers_of_an_srq_come_by_many() {
    let mut pair = Pair::connected_with(&PairConfig {
        srq: Some(4),
        ..PairConfig::default()
    });
    let (from, inbox) = (pair.filled(A, 1, 64), pair.untouched(B, 64));
    let srq = pair.srq.expect("an SRQ");
    let mut posted = 0;
    let refused: DatResult<()> = pair.sides[B].ia.srq_batch(srq, |batch| {
        loop {
            batch.recv(&[inbox.all()], DtoCookie(posted))?;
            posted += 1;
        }
    });
    let refused = refused.map_err(DatError::return_type);
    assert_eq!(
        (posted, refused),
        (4, Err(ReturnType::InsufficientResources))
    );
    let elsewhere = pair.sides[A]
        .ia
        .srq_batch(srq, |batch| batch.recv(&[from.all()], DtoCookie(9)));
    assert_eq!(
        elsewhere.map_err(DatError::return_type),
        Err(ReturnType::InvalidHandle)
    );
    for cookie in 0..4 {
        pair.post_send(A, &[from.all()], cookie, NONE)
            .expect("posted");
    }
    let mut cookies = received(&mut pair, 4);
    cookies.sort_unstable();
    assert_eq!(cookies, [0, 1, 2, 3]);
    pair.assert_no_complaints();
}

/// Dequeues the events of A's request EVD with `evd_poll`, at most `room` in a call.
fn polled(pair: &mut Pair, room: usize) -> Vec<Event> {
    let evd = pair.sides[A].request;
    let mut places = vec![Event::NONE; room];
    let mut all = Vec::new();
    loop {
        let taken = pair.sides[A]
            .ia
            .evd_poll(evd, &mut places)
            .expect("it polls");
        if taken == 0 {
            return all;
        }
        all.extend_from_slice(&places[..taken]);
    }
}

#[test]
fn events_come_by_many_as_they_come_one_by_one() {
    for room in [1, 3, 16, 64] {
        let mut pair = Pair::connected();
        let (from, to) = (pair.filled(A, 1, 64), pair.untouched(B, 64));
        assert_eq!(polled(&mut pair, room), []);
        for cookie in 0..20 {
            // Two of every four are suppressed.
            let flags = if cookie % 4 < 2 { SUPPRESS } else { NONE };
            pair.post_write(A, &[from.all()], cookie, &to.all_remote(), flags)
                .expect("posted");
        }
        // The last request breaks the connection.
        pair.post_write(A, &[from.all()], 20, &to.remote(0, 64 + 4096), NONE)
            .expect("posted");
        for _ in 0..100 {
            pair.pump();
        }
        let cookies: Vec<u64> = polled(&mut pair, room)
            .into_iter()
            .map(|event| match event {
                Event::Dto(done) => done.cookie.0,
                Event::RmrBind(_)
                | Event::ConnectionRequest(_)
                | Event::Connection(_)
                | Event::Async(_)
                | Event::Software(_) => panic!("{event:?}"),
            })
            .collect();
        assert_eq!(cookies[..10], [2, 3, 6, 7, 10, 11, 14, 15, 18, 19]);
    }
}

#[test]
fn events_in_software_come_by_many_too_and_what_has_no_room_stays() {
    let mut pair = Pair::connected();
    let evd = pair.evd(8, EvdFlags::SOFTWARE);
    pair.post_se(evd, 1..=5);
    let side = &mut pair.sides[A];
    let mut places = [Event::NONE; 3];
    assert_eq!(side.ia.evd_poll(evd, &mut places), Ok(3));
    assert_eq!(places, [se(1), se(2), se(3)]);
    assert_eq!(side.ia.evd_poll(evd, &mut places), Ok(2));
    assert_eq!(places, [se(4), se(5), se(3)]);
    assert_eq!(side.ia.evd_poll(evd, &mut places), Ok(0));
    assert_eq!(side.ia.evd_poll(evd, &mut []), Ok(0));
    assert_eq!(Event::NONE, Event::Software(SoftwareEvent(0)));
}

#[test]
fn who_waits_is_not_polled_away_from() {
    let mut pair = Pair::connected();
    let ia = &mut pair.sides[A].ia;
    let evd = pair.sides[A].request;
    let _wait = ia.evd_wait_begin(evd, FOREVER, 1).expect("it waits");
    let refused = ia.evd_poll(evd, &mut [Event::NONE; 4]);
    assert_eq!(
        refused.map_err(DatError::return_type),
        Err(ReturnType::InvalidState)
    );
    let elsewhere = pair.sides[B].request;
    let refused = ia.evd_poll(elsewhere, &mut [Event::NONE; 4]);
    assert_eq!(
        refused.map_err(DatError::return_type),
        Err(ReturnType::InvalidHandle)
    );
}

/// `evd_poll` of an empty queue makes progress with connections, as single dequeues do.
#[test]
fn who_only_polls_an_empty_queue_still_connects() {
    let mut pair = Pair::connected();
    let (ours, theirs) = (pair.another_ep(A), pair.another_ep(B));
    pair.start(A, ours, CONN_QUAL, LONG, b"").expect("starts");
    let cr = pair.request(B);
    let accepted = pair.sides[B].ia.cr_accept(cr, Some(theirs), b"");
    accepted.expect("accepted");
    pair.fabric.pass_time();
    let evd = pair.sides[A].request;
    for _ in 0..1_000 {
        let polled = pair.sides[A].ia.evd_poll(evd, &mut [Event::NONE; 4]);
        assert_eq!(polled, Ok(0));
    }
    assert_eq!(pair.state_of(A, ours), EpState::Connected);
    pair.assert_no_complaints();
}
