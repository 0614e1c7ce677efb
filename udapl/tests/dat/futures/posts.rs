//! Every kind of post: its results and its errors.
#![expect(
    clippy::host_endian_bytes,
    reason = "atomics act on numbers as the host has them"
)]

use udapl::endpoint::EpAttr;
use udapl::error::{ReturnType, Subtype};
use udapl::event::DtoDetail;
use udapl::reactor::{Completion, File, FileOperation, Instant, Reactor};
use udapl::srq::SrqAttr;

use super::*;

/// Returns the first eight bytes of a buffer as a number in host byte order.
fn number(buffer: &Buffer) -> u64 {
    let mut bytes = [0; 8];
    buffer.read_at(0, &mut bytes).expect("eight bytes");
    u64::from_ne_bytes(bytes)
}

/// Returns the bytes and the detail of a receive, which must have succeeded.
#[track_caller]
fn heard((result, buffer): (Result<usize, Error>, Buffer)) -> (Vec<u8>, DtoDetail) {
    result.expect("received");
    let done = buffer.completion().expect("a completion");
    (buffer.to_vec(), done.detail)
}

#[test]
fn an_orderly_disconnect_of_the_peer_is_told_as_that_to_whoever_receives() {
    for flags in [CloseFlags::Graceful, CloseFlags::Abrupt] {
        let mut both_sides = Both::new();
        let pools = [A, B].map(|side| both_sides.pool(side, 1));
        let [a, b] = both_sides.connected();
        assert_eq!(b.end_cause().expect("open"), None);
        let own = a.recv(pools[A].take().expect("a buffer"));
        let hears = b.recv(pools[B].take().expect("a buffer"));
        let ((ended, heard), _) =
            both_sides.run(both(both(a.disconnect(flags), hears), b.disconnected()));
        let error = failed(both_sides.run(own));
        assert!(
            matches!(error, Error::Ended(EndCause::Disconnected)),
            "{error}"
        );
        assert!(
            matches!(ended, Ok(ConnectionEventKind::Disconnected)),
            "{ended:?}"
        );
        let error = failed(heard);
        assert!(
            matches!(error, Error::Ended(EndCause::PeerDisconnected)),
            "{error}"
        );
        assert_eq!(
            error.to_string(),
            "the connection has ended: the peer has disconnected"
        );
        let causes = [&a, &b].map(|end| end.end_cause().expect("open"));
        let expected = [EndCause::Disconnected, EndCause::PeerDisconnected].map(Some);
        assert_eq!(causes, expected);
    }
}

/// A failed request breaks the connection. Flushed transfers report the status of the failed request as the cause.
#[test]
fn what_is_flushed_behind_a_failure_names_the_failure() {
    let mut both_sides = Both::new();
    let pools = [A, B].map(|side| both_sides.pool(side, 2));
    let [a, _b] = both_sides.connected();
    let waits = a.recv(pools[A].take().expect("a buffer"));
    let mut place = pools[B].take().expect("a buffer").remote();
    place.rmr_context ^= 0xff00;
    let (refused, flushed) = both_sides.run(both(a.write(filled(&pools[A], b"no"), place), waits));
    let error = failed(refused);
    assert!(
        matches!(&error, Error::Transfer(done) if done.status == DtoStatus::ErrRemoteAccess),
        "{error}"
    );
    let error = failed(flushed);
    let cause = DtoStatus::ErrRemoteAccess;
    assert!(
        matches!(error, Error::Ended(EndCause::Dto { status, .. }) if status == cause),
        "{error}"
    );
}

#[test]
fn immediate_data_and_what_is_invalidated_come_with_the_receive() {
    let mut both_sides = Both::new();
    let pools = [A, B].map(|side| both_sides.pool(side, 4));
    let [a, b] = both_sides.connected();
    let hear = |both_sides: &mut Both, sends: &mut dyn FnMut() -> Transfer| {
        let hears = b.recv(pools[B].take().expect("a buffer"));
        let (sent, came) = both_sides.run(both(sends(), hears));
        sent.0.expect("sent");
        heard(came)
    };
    let came = hear(&mut both_sides, &mut || {
        a.send_immediate(filled(&pools[A], b"with it"), 7)
    });
    assert_eq!(came, (b"with it".to_vec(), DtoDetail::SendImmediate(7)));
    let target = filled(&pools[B], b"........");
    let place = target.remote();
    let came = hear(&mut both_sides, &mut || {
        a.write_immediate(filled(&pools[A], b"directly"), place, 8)
    });
    assert_eq!(came, (vec![], DtoDetail::WriteImmediate(8)));
    assert_eq!(target.to_vec(), b"directly");
    // A plain message has no detail.
    let came = hear(&mut both_sides, &mut || a.send(filled(&pools[A], b"plain")));
    assert_eq!(came, (b"plain".to_vec(), DtoDetail::None));
    assert!(
        pools[B].take().expect("one").completion().is_none(),
        "none yet"
    );
    // No window has this context: the peer's device refuses the invalidation, and the connection breaks.
    let hears = b.recv(pools[B].take().expect("a buffer"));
    let sends = a.send_invalidate(filled(&pools[A], b"out"), 0x1234_5600);
    let (sent, came) = both_sides.run(both(sends, hears));
    assert!(sent.0.is_err() && came.0.is_err(), "{sent:?}, {came:?}");
}

#[test]
fn atomic_operations_bring_back_what_was_there() {
    let mut both_sides = Both::new();
    let rights = MemPrivFlags::all() | MemPrivFlags::REMOTE_ATOMIC;
    let pool = both_sides.drivers[B].handle().pool(1, 64, rights);
    let own = both_sides.pool(A, 1);
    let target = filled(&pool.expect("a pool"), &5_u64.to_ne_bytes());
    let place = target.remote();
    let [a, _b] = both_sides.connected();
    let take = || own.take().expect("a buffer");
    let (result, was) = both_sides.run(a.fetch_add(take(), place, 37));
    assert_eq!(
        (result.ok(), number(&was), number(&target)),
        (Some(8), 5, 42)
    );
    drop(was);
    for (compare, swap, left) in [(41, 1, 42), (42, 2, 2)] {
        let (result, was) = both_sides.run(a.compare_swap(take(), place, compare, swap));
        assert_eq!((result.ok(), number(&was)), (Some(8), 42));
        assert_eq!(number(&target), left);
    }
    // An atomic operand has eight bytes.
    let mut seven = place;
    seven.segment_length = 7;
    let (refused, _) = both_sides.run(a.fetch_add(take(), seven, 1));
    assert!(matches!(refused, Err(Error::Dat(_))), "{refused:?}");
}

#[test]
fn a_message_inline_takes_no_buffer() {
    let mut both_sides = Both::new();
    let pool = both_sides.pool(B, 3);
    let [a, b] = both_sides.connected();
    let hears = [(); 2].map(|()| b.recv(pool.take().expect("a buffer")));
    let [first, second] = hears;
    // The call copies the bytes before it returns.
    let mut text = *b"short";
    let sends = a.send_inline(&text);
    text.fill(0);
    let (sent, came) = both_sides.run(both(sends, first));
    assert!(matches!(sent, Ok(5)), "{sent:?}");
    assert_eq!(heard(came), (b"short".to_vec(), DtoDetail::None));
    let (sent, came) = both_sides.run(both(a.send_inline_immediate(b"", 9), second));
    assert!(matches!(sent, Ok(0)), "{sent:?}");
    assert_eq!(heard(came), (vec![], DtoDetail::SendImmediate(9)));
    // A dropped future's message is sent nevertheless.
    let hears = b.recv(pool.take().expect("a buffer"));
    drop(a.send_inline(b"dropped"));
    let came = both_sides.run(hears);
    assert_eq!(heard(came).0, b"dropped");
    let error = both_sides.run(a.send_inline(&[0; 4000])).expect_err("long");
    let Error::Dat(error) = error else {
        panic!("{error}");
    };
    assert_eq!(
        error.excess().map(|(asked, _)| asked),
        Some(4000),
        "{error}"
    );
}

#[test]
fn a_batch_goes_in_its_order_and_each_of_its_transfers_says_what_came_of_it() {
    let mut both_sides = Both::new();
    let pools = [A, B].map(|side| both_sides.pool(side, 6));
    let [a, b] = both_sides.connected();
    let target = filled(&pools[B], b"........");
    let place = target.remote();
    let mut outside = place;
    outside.segment_length = 9999;
    let hears = b.batch(|batch| [(); 2].map(|()| batch.recv(pools[B].take().expect("a buffer"))));
    let (written, sent, refused, last) = a.batch(|batch| {
        // The program may take and drop other buffers of the pool while it fills the batch.
        drop(pools[A].take());
        (
            batch.write(filled(&pools[A], b"directly"), place),
            batch.send_immediate(filled(&pools[A], b"one"), 1),
            batch.read(pools[A].take().expect("a buffer"), outside),
            batch.send(filled(&pools[A], b"two")),
        )
    });
    let [first, second] = hears;
    let (sent, came) = both_sides.run(both(sent, first));
    sent.0.expect("sent");
    // When the message arrives, the bytes written before it are in place.
    assert_eq!(target.to_vec(), b"directly");
    assert_eq!(heard(came), (b"one".to_vec(), DtoDetail::SendImmediate(1)));
    let (last, came) = both_sides.run(both(last, second));
    last.0.expect("sent");
    assert_eq!(heard(came).0, b"two");
    both_sides.run(written).0.expect("written");
    let error = failed(both_sides.run(refused));
    assert!(
        matches!(error, Error::Bounds { bytes: 9999, .. }),
        "{error}"
    );
    drop((sent.1, last.1));
    // The transfer of a refused post returns the error. The other posts of the batch are posted.
    let idle = both_sides.endpoint(A);
    let (sends, mut hears) = idle.batch(|batch| {
        let early = batch.send(filled(&pools[A], b"early"));
        (early, batch.recv(pools[A].take().expect("a buffer")))
    });
    let error = failed(both_sides.run(sends));
    let Error::Dat(error) = error else {
        panic!("{error}");
    };
    assert_eq!(error.return_type(), ReturnType::InvalidState, "{error}");
    assert!(polled(&mut hears).is_pending());
    drop((idle, hears));
    assert_eq!(pools[A].available(), 6);
}

/// A batch whose futures are dropped, or whose driver is dropped meanwhile, returns its buffers, but not before the
/// device has finished with them.
#[test]
fn a_batch_whose_futures_are_dropped_or_whose_driver_ends_in_it_gives_its_buffers_back() {
    let mut both_sides = Both::new();
    let pools = [A, B].map(|side| both_sides.pool(side, 2));
    let [a, b] = both_sides.connected();
    let hears = b.recv(pools[B].take().expect("a buffer"));
    a.batch(|batch| drop(batch.send(filled(&pools[A], b"dropped"))));
    assert_eq!(pools[A].available(), 1, "the card has it");
    assert_eq!(heard(both_sides.run(hears)).0, b"dropped");
    both_sides.run_times(10);
    assert_eq!(pools[A].available(), 2);
    // The driver is dropped while a batch is filled.
    let [driver, _other] = both_sides.drivers;
    let mut driver = Some(driver);
    let mut send = a.batch(|batch| {
        let send = batch.send(filled(&pools[A], b"late"));
        drop(driver.take());
        send
    });
    let Poll::Ready(ended) = polled(&mut send) else {
        panic!("the driver is gone");
    };
    assert!(matches!(failed(ended), Error::Closed));
    assert_eq!(pools[A].available(), 2);
}

#[test]
fn receives_of_an_srq_serve_all_its_endpoints_and_say_which() {
    let mut both_sides = Both::new();
    let pools = [A, B].map(|side| both_sides.pool(side, 4));
    let handle = both_sides.drivers[B].handle();
    let attr = SrqAttr {
        max_recv_dtos: 8,
        max_recv_iov: 1,
        low_watermark: 0,
    };
    let srq = handle.srq(attr).expect("an SRQ");
    let ep_attr = {
        let ia = udapl::ia_open("sim:srq-attributes", &udapl::OpenOptions::default());
        EpAttr::defaults(ia.expect("an adapter").query().ia)
    };
    let made = both_sides.drivers[A]
        .handle()
        .endpoint_with_srq(&srq, &ep_attr);
    let Err(Error::Dat(error)) = made else {
        panic!("{made:?}");
    };
    assert_eq!(
        (error.return_type(), error.subtype()),
        (ReturnType::InvalidHandle, Subtype::HandleSrq)
    );
    let froms = [(); 2].map(|()| both_sides.endpoint(A));
    let ends = [(); 2].map(|()| {
        handle
            .endpoint_with_srq(&srq, &ep_attr)
            .expect("an endpoint")
    });
    for (from, to) in froms.iter().zip(&ends) {
        both_sides.connect(from, to);
    }
    for which in [1, 0, 1] {
        let hears = srq.recv(pools[B].take().expect("a buffer"));
        let text = [b'0' + u8::try_from(which).expect("small")];
        let sends = froms[which].send(filled(&pools[A], &text));
        let (sent, (result, buffer)) = both_sides.run(both(sends, hears));
        sent.0.expect("sent");
        assert!(matches!(result, Ok(1)), "{result:?}");
        assert_eq!(buffer.to_vec(), text);
        let done = buffer.completion().expect("a completion");
        assert_eq!(done.ep, ends[which].ep().expect("open"));
    }
    // The SRQ exists until the last of its endpoints is dropped. Then its receives end.
    let mut waits = srq.recv(pools[B].take().expect("a buffer"));
    drop(srq);
    let [one, other] = ends;
    drop(one);
    both_sides.run_times(10);
    assert!(polled(&mut waits).is_pending(), "the other has it");
    drop(other);
    let error = failed(both_sides.run(waits));
    assert!(matches!(error, Error::Dropped), "{error}");
    assert_eq!(pools[B].available(), 4);
    drop(froms);
    for driver in both_sides.drivers {
        driver.close().expect("it closes");
    }
    assert!([A, B].map(|side| both_sides.fabric.report(side).is_clean()) == [true; 2]);
}

/// Received data is written from its buffer to a file, and read back into another buffer, without a copy.
#[test]
fn a_buffer_goes_to_a_file_and_comes_from_one_without_a_copy() {
    let mut both_sides = Both::new();
    let pages = |side: usize| {
        both_sides.drivers[side]
            .handle()
            .pool(2, 4096, MemPrivFlags::all())
    };
    let pools = [A, B].map(|side| pages(side).expect("a pool"));
    let [a, b] = both_sides.connected();
    let hears = b.recv(pools[B].take().expect("a buffer"));
    let page: Vec<u8> = (0..=250).cycle().take(4096).collect();
    let (_, (_, came)) = both_sides.run(both(a.send(filled(&pools[A], &page)), hears));

    let file = tempfile::NamedTempFile::new().expect("a file");
    let disk = File::from_std(file.reopen().expect("a file"), file.path());
    let mut reactor = Reactor::new(8).expect("a ring");
    let write = FileOperation::write_through(4096, came.bytes());
    reactor.submit(&disk, write, 1).expect("queued");
    let far = Instant(u64::MAX);
    let ended = reactor.wait_all(far).expect("a ring");
    assert!(
        matches!(
            ended[..],
            [Completion {
                result: Ok(4096),
                ..
            }]
        ),
        "{ended:?}"
    );
    let mut back = pools[B].take().expect("a buffer");
    back.set_len(4096).expect("room");
    let read = FileOperation::read(4096, back.bytes());
    reactor.submit(&disk, read, 2).expect("queued");
    reactor.wait_all(far).expect("a ring");
    assert!(back.to_vec() == page, "the page comes back");
    let on_pages = |buffer: &Buffer| buffer.remote().target_address.is_multiple_of(4096);
    assert!(on_pages(&came) && on_pages(&back), "as O_DIRECT asks for");
}
