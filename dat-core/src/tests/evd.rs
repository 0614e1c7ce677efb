//! EVDs: length, order, waiting, notification.

use super::*;
use crate::mock::POLL_OTHERS_EVERY;

const EXPIRED: DatError = DatError::new(ReturnType::TimeoutExpired, Subtype::None);

fn se(ia: &mut Ia<Mock>, evd: EvdHandle, word: u64) {
    ia.evd_post_se(evd, SoftwareEvent(word)).expect("posts");
}

#[test]
fn creation_checks_length_and_flags() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    assert_eq!(
        a.ia.evd_create(0, EvdFlags::DTO),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg2))
    );
    assert_eq!(
        a.ia.evd_create(1, EvdFlags::empty()),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg4))
    );
    assert_eq!(
        a.ia.evd_create(1, EvdFlags::from_bits_retain(0x2)),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg4))
    );
    let too_long = a.ia.evd_create(1025, EvdFlags::SOFTWARE);
    let too_long = too_long.expect_err("more than a queue holds");
    assert_eq!(too_long, DatError::resources(Subtype::ResourceTevd));
    assert_eq!(
        too_long.excess(),
        Some((1025, a.ia.query().ia.max_evd_qlen.into()))
    );
    let evd =
        a.ia.evd_create(5, EvdFlags::DEFAULT)
            .expect("the default flags");
    let param = a.ia.evd_query(evd).expect("exists");
    assert!(param.qlen >= 5);
    assert_eq!(param.flags.bits(), 0x1f0);
    assert_eq!(
        param.state,
        EvdState::ENABLED | EvdState::WAITABLE | EvdState::CONFIG_THRESHOLD
    );
}

#[test]
fn an_evd_is_freed_when_nothing_feeds_it() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let busy = Err(DatError::state(Subtype::StateEvdInUse));
    let psp =
        a.ia.psp_create(QUAL, a.connect, PspFlags::CONSUMER)
            .expect("listens");
    assert_eq!(
        [a.recv, a.request, a.connect, a.ia.async_evd()].map(|evd| a.ia.evd_free(evd)),
        [busy; 4]
    );
    a.ia.ep_free(a.ep).expect("frees");
    assert_eq!(a.ia.evd_free(a.connect), busy, "the PSP");
    a.ia.psp_free(psp).expect("frees");
    assert_eq!(
        [a.recv, a.request, a.connect].map(|evd| a.ia.evd_free(evd)),
        [Ok(()); 3]
    );
    assert_eq!(a.ia.evd_free(a.recv), Err(DatError::handle(Subtype::None)));
    assert_eq!(
        a.ia.evd_dequeue(a.recv),
        Err(DatError::handle(Subtype::None))
    );
}

#[test]
fn requests_in_a_freed_evd_are_refused() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let evd = b.ia.evd_create(4, EvdFlags::CR).expect("an EVD");
    let psp =
        b.ia.psp_create(QUAL, evd, PspFlags::CONSUMER)
            .expect("listens");
    a.ia.ep_connect(
        a.ep,
        b.address(),
        QUAL,
        Timeout::INFINITE,
        b"",
        Qos::BEST_EFFORT,
        ConnectFlags::empty(),
    )
    .expect("starts");
    progress_both(&mut a, &mut b);
    b.ia.psp_free(psp).expect("frees");
    b.ia.evd_free(evd).expect("frees");
    progress_both(&mut a, &mut b);
    assert_eq!(
        a.connection_events(),
        [ConnectionEventKind::NonPeerRejected]
    );
}

#[test]
fn software_events_come_out_in_order_and_a_full_queue_says_so() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let evd = a.ia.evd_create(3, EvdFlags::SOFTWARE).expect("an EVD");
    (0..3).for_each(|word| se(&mut a.ia, evd, word));
    assert_eq!(
        a.ia.evd_post_se(evd, SoftwareEvent(3)),
        Err(DatError::new(ReturnType::QueueFull, Subtype::None))
    );
    assert_eq!(a.events(a.ia.async_evd()), [], "no overflow");
    assert_eq!(
        a.events(evd),
        [0, 1, 2].map(|word| Event::Software(SoftwareEvent(word)))
    );
    assert_eq!(a.ia.evd_dequeue(evd), Ok(None));
    assert_eq!(
        a.ia.evd_post_se(a.recv, SoftwareEvent(0)),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg1))
    );
}

#[test]
fn a_wait_checks_its_threshold_and_the_waitable_bit() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let evd = a.ia.evd_create(3, EvdFlags::SOFTWARE).expect("an EVD");
    let wait = |a: &mut Side, threshold| {
        a.ia.evd_wait(evd, Timeout::ZERO, threshold)
            .map_err(|error| error.error)
    };
    assert_eq!(
        wait(&mut a, 0),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg3))
    );
    assert_eq!(
        wait(&mut a, 4),
        Err(DatError::new(ReturnType::InvalidParameter, Subtype::Arg3))
    );
    assert_eq!(wait(&mut a, 3), Err(EXPIRED));
    a.ia.evd_set_unwaitable(evd).expect("sets");
    assert_eq!(
        wait(&mut a, 1),
        Err(DatError::state(Subtype::StateEvdUnwaitable))
    );
    assert!(
        a.ia.evd_query(evd)
            .expect("exists")
            .state
            .contains(EvdState::UNWAITABLE)
    );
    se(&mut a.ia, evd, 1);
    assert_eq!(
        a.ia.evd_dequeue(evd),
        Ok(Some(Event::Software(SoftwareEvent(1)))),
        "dequeue does not care"
    );
    a.ia.evd_clear_unwaitable(evd).expect("clears");
    assert_eq!(wait(&mut a, 1), Err(EXPIRED));
}

#[test]
fn a_wait_counts_what_is_there_and_what_is_left() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let evd = a.ia.evd_create(8, EvdFlags::SOFTWARE).expect("an EVD");
    (0..2).for_each(|word| se(&mut a.ia, evd, word));
    let expired =
        a.ia.evd_wait(evd, Timeout::from_micros(2500), 3)
            .expect_err("two are not three");
    assert_eq!((expired.error, expired.nmore), (EXPIRED, 2));
    assert_eq!(now(&a), 2_500_000, "waited as long as asked");
    se(&mut a.ia, evd, 2);
    assert_eq!(
        a.ia.evd_wait(evd, Timeout::ZERO, 3),
        Ok((Event::Software(SoftwareEvent(0)), 2))
    );
    assert_eq!(
        a.ia.evd_wait(evd, Timeout::ZERO, 1),
        Ok((Event::Software(SoftwareEvent(1)), 1))
    );
}

#[test]
fn completions_count_towards_the_threshold_before_they_are_dequeued() {
    let (_net, mut a, b) = connected();
    let iov = [a.triplet(0, 8)];
    for cookie in 0..3 {
        a.ia.ep_post_rdma_write(a.ep, &iov, DtoCookie(cookie), &b.remote(8), NO_FLAGS)
            .expect("posts");
    }
    let expired =
        a.ia.evd_wait(a.request, Timeout::from_micros(10), 4)
            .expect_err("three are not four");
    assert_eq!(expired.nmore, 3);
    let (event, left) =
        a.ia.evd_wait(a.request, Timeout::from_micros(10), 3)
            .expect("three");
    assert_eq!((dtos(&[event]), left), (vec![(0, DtoStatus::Success)], 2));
    assert_eq!(
        a.completions(a.request),
        [(1, DtoStatus::Success), (2, DtoStatus::Success)]
    );
}

#[test]
fn a_sleeping_wait_is_ended_by_a_message() {
    let (net, mut a, mut b) = connected();
    net.hold();
    b.post_recv(1).expect("posts");
    a.send(2, NO_FLAGS).expect("posts");
    let expired =
        b.ia.evd_wait(b.recv, Timeout::from_micros(50), 1)
            .expect_err("nothing yet");
    assert_eq!(expired.nmore, 0);
    net.release();
    let before = now(&b);
    b.ia.evd_wait(b.recv, Timeout::INFINITE, 1)
        .expect("a message");
    assert_eq!(now(&b), before, "no time passed");
}

#[test]
fn unsignalled_completions_are_queued_but_end_no_wait() {
    let (net, mut a, b) =
        connected_with(|attr| attr.request_completion_flags = CompletionFlags::UNSIGNALLED);
    net.hold();
    let iov = [a.triplet(0, 8)];
    let wait = |a: &mut Side| a.ia.evd_wait(a.request, Timeout::from_micros(100), 1);
    let post = |a: &mut Side, cookie, flags| {
        a.ia.ep_post_rdma_write(a.ep, &iov, cookie, &b.remote(8), flags)
            .expect("posts")
    };

    // The completion arrives while nobody waits. It is not a notification event, but it is counted, so the next wait
    // returns at once.
    post(&mut a, DtoCookie(1), CompletionFlags::UNSIGNALLED);
    let started = now(&a);
    a.ia.evd_wait(a.request, Timeout::from_micros(100), 1)
        .expect_err("held");
    net.release();
    net.hold();
    let (event, left) = wait(&mut a).expect("there when the wait begins, so it returns at once");
    assert_eq!((dtos(&[event]), left), (vec![(1, DtoStatus::Success)], 0));
    assert_eq!(now(&a) - started, 100_000);
    assert_eq!(
        a.ia.evd_query(a.request).expect("exists").state & EvdState::CONFIG_THRESHOLD,
        EvdState::CONFIG_NOTIFY
    );
}

#[test]
fn only_notification_events_wake_a_sleeper() {
    // The mock releases the held request while the waiter sleeps.
    for (flags, slept) in [(CompletionFlags::UNSIGNALLED, 100_000), (NO_FLAGS, 40_000)] {
        let (net, mut a, b) =
            connected_with(|attr| attr.request_completion_flags = CompletionFlags::UNSIGNALLED);
        net.hold();
        a.ia.ep_post_rdma_write(a.ep, &[a.triplet(0, 8)], DtoCookie(1), &b.remote(8), flags)
            .expect("posts");
        net.release_at(40_000);
        let (event, _) =
            a.ia.evd_wait(a.request, Timeout::from_micros(100), 1)
                .expect("at the end the count decides");
        assert_eq!(dtos(&[event]), [(1, DtoStatus::Success)]);
        assert_eq!(now(&a), slept, "{flags:?}");
    }
}

#[test]
fn with_solicited_waits_the_senders_flag_decides() {
    for (flags, slept) in [
        (NO_FLAGS, 100_000),
        (CompletionFlags::SOLICITED_WAIT, 40_000),
    ] {
        let (net, mut a, mut b) =
            connected_with(|attr| attr.recv_completion_flags = CompletionFlags::SOLICITED_WAIT);
        b.post_recv(1).expect("posts");
        net.hold();
        a.send(0, flags).expect("posts");
        net.release_at(40_000);
        b.ia.evd_wait(b.recv, Timeout::from_micros(100), 1)
            .expect("at the end the count decides");
        assert_eq!(now(&b), slept, "{flags:?}");
    }
}

#[test]
fn a_failure_wakes_whatever_was_asked() {
    let (net, mut a, mut b) =
        connected_with(|attr| attr.recv_completion_flags = CompletionFlags::SOLICITED_WAIT);
    b.ia.ep_post_recv(b.ep, &[b.triplet(0, 1)], DtoCookie(1), NO_FLAGS)
        .expect("posts");
    net.hold();
    a.send(0, NO_FLAGS).expect("posts");
    net.release_at(40_000);
    let (event, _) =
        b.ia.evd_wait(b.recv, Timeout::from_micros(100), 1)
            .expect("too long");
    assert_eq!(
        (dtos(&[event]), now(&b)),
        (vec![(1, DtoStatus::ErrLocalLength)], 40_000)
    );
}

#[test]
fn where_the_consumer_controls_notification_the_threshold_is_one() {
    let (_net, mut a, _b) = connected_with(|attr| {
        attr.request_completion_flags = CompletionFlags::UNSIGNALLED;
        attr.recv_completion_flags = CompletionFlags::SOLICITED_WAIT;
    });
    let (request, recv, connect) = (a.request, a.recv, a.connect);
    let mut wait = |evd| {
        a.ia.evd_wait(evd, Timeout::ZERO, 2)
            .map_err(|error| error.error)
    };
    assert_eq!(
        wait(request),
        Err(DatError::state(Subtype::StateEvdConfigNotify))
    );
    assert_eq!(
        wait(recv),
        Err(DatError::state(Subtype::StateEvdConfigSolicited))
    );
    assert_eq!(wait(connect), Err(EXPIRED));
}

#[test]
fn an_event_that_does_not_fit_is_lost_and_reported() {
    let net = Net::default();
    let (mut a, mut b) = (Side::new(&net, |_| {}), Side::new(&net, |_| {}));
    let one = a.ia.evd_create(1, EvdFlags::CONNECTION).expect("an EVD");
    a.ep =
        a.ia.ep_create(
            Some(a.pz),
            EpEvds::NONE.recv(a.recv).request(a.request).connect(one),
            None,
        )
        .expect("an EP");
    let cr = request(&mut a, &mut b, b"");
    b.ia.cr_accept(cr, Some(b.ep), b"").expect("accepts");
    progress_both(&mut a, &mut b);
    a.ia.ep_disconnect(a.ep, CloseFlags::Abrupt)
        .expect("disconnects");
    assert_eq!(kinds(&a.events(one)), [ConnectionEventKind::Established]);
    assert_eq!(
        a.events(a.ia.async_evd()),
        [Event::Async(AsyncEvent::EvdOverflow(one))]
    );
    assert_eq!(
        a.state(),
        EpState::Disconnected,
        "the state changes all the same"
    );
}

#[test]
fn events_of_an_evd_of_another_ia_are_not_to_be_had() {
    let (_net, mut a, b) = connected();
    assert_eq!(
        a.ia.evd_dequeue(b.recv),
        Err(DatError::handle(Subtype::None))
    );
    let wait =
        a.ia.evd_wait(b.recv, Timeout::ZERO, 1)
            .expect_err("foreign");
    assert_eq!(wait.return_type(), ReturnType::InvalidHandle);
    assert_eq!(wait.subtype(), Subtype::None);
    assert_eq!(DatError::from(wait), wait.error);
}

#[test]
fn a_threshold_that_the_queue_cannot_hold_is_refused_with_both_numbers() {
    let net = Net::default();
    let mut a = Side::new(&net, |_| {});
    let evd = a.ia.evd_create(64, EvdFlags::SOFTWARE).expect("an EVD");
    let most = a.ia.evd_query(evd).expect("is there").qlen;
    let wait = a.ia.evd_wait(evd, Timeout::ZERO, most + 1);
    let refused = wait.expect_err("too large");
    assert_eq!(
        (refused.return_type(), refused.subtype()),
        (ReturnType::InvalidParameter, Subtype::Arg3)
    );
    let (asked, text) = (u64::from(most) + 1, refused.to_string());
    assert_eq!(refused.error.excess(), Some((asked, most.into())));
    assert!(
        text.ends_with(&format!("{asked} asked for, {most} at most")),
        "{text}"
    );
    let none = a.ia.evd_wait(evd, Timeout::ZERO, 0).expect_err("none");
    assert!(none.to_string().contains("1 is the least"), "{none}");
}

#[test]
fn event_numbers_are_those_of_the_header() {
    let (_net, a, b) = connected();
    let connection = |kind| {
        Event::Connection(ConnectionEvent {
            kind,
            ep: a.ep,
            private_data_size: 0,
        })
        .number()
    };
    use ConnectionEventKind as K;
    let kinds = [
        K::Established,
        K::PeerRejected,
        K::NonPeerRejected,
        K::AcceptCompletionError,
        K::Disconnected,
        K::Broken,
        K::TimedOut,
        K::Unreachable,
    ];
    assert_eq!(
        kinds.map(connection),
        [
            0x4001, 0x4002, 0x4003, 0x4004, 0x4005, 0x4006, 0x4007, 0x4008
        ]
    );
    assert_eq!(Event::Software(SoftwareEvent(0)).number(), 0x10001);
    assert_eq!(
        Event::Async(AsyncEvent::EvdOverflow(b.recv)).number(),
        0x8001
    );
    assert_eq!(Event::Async(AsyncEvent::IaCatastrophic).number(), 0x8002);
}

/// A post that finds the queue full polls completions, including the completion at which other work is due. The other
/// work must still be done.
#[test]
fn a_consumer_that_keeps_its_queue_full_and_takes_one_by_one_looks_after_connections() {
    let net = Net::default();
    let [mut a, mut b, mut c] =
        [4, 1, 1].map(|requests| Side::new(&net, |attr| attr.max_request_dtos = requests));
    connect(&mut a, &mut b);
    a.ia.psp_create(QUAL, a.connect, PspFlags::CONSUMER)
        .expect("listens");
    let (nothing, remote): ([LmrTriplet; 0], _) = ([], b.remote(0));
    let keep_full = |side: &mut Side| {
        let post = |ia: &mut Ia<Mock>, ep| {
            ia.ep_post_rdma_write(ep, &nothing, DtoCookie(0), &remote, NO_FLAGS)
        };
        while post(&mut side.ia, side.ep).is_ok() {}
    };
    keep_full(&mut a);
    let (address, infinite, qos) = (a.address(), Timeout::INFINITE, Qos::BEST_EFFORT);
    c.ia.ep_connect(
        c.ep,
        address,
        QUAL,
        infinite,
        b"",
        qos,
        ConnectFlags::empty(),
    )
    .expect("connects");
    for _ in 0..2 * POLL_OTHERS_EVERY {
        let event = a.ia.evd_dequeue(a.request);
        assert!(matches!(event, Ok(Some(Event::Dto(_)))), "{event:?}");
        keep_full(&mut a);
    }
    assert!(a.ia.requests() != 0, "the request was not seen");
}
