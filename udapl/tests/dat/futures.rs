//! Futures over owned buffers: their results, and the rule that memory is not reused while the device may access it.
//!
//! Time is virtual and advances only when neither side has anything to do, so a test determines when a delayed message
//! arrives.

mod posts;

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use hw_sim::{Fault, Faults, LinkFaults};
use mlx_prm::Opcode;
use udapl::connection::EndCause;
use udapl::fabric::Fabric;
use udapl::future::{Buffer, Driver, Endpoint, Error, Listener, Pool, Progress, Transfer};
use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, ConnectionEventKind, DtoCookie, DtoStatus,
    EpEvds, EvdFlags, MemPrivFlags, Qos, Timeout,
};

use crate::support::{A, B, LONG};

const SERVICE: ConnQual = ConnQual(0x1_0000_0077);
const BYTES: u32 = 256;

/// Two drivers on one link.
struct Both {
    fabric: Fabric,
    drivers: [Driver; 2],
}

/// A waker that wakes nothing, and records that it was called.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn waker() -> (Arc<Woken>, Waker) {
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    (Arc::clone(&woken), Waker::from(woken))
}

/// Polls the future once.
fn polled<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Waits until both futures are ready, in either order. Returns both outputs.
async fn both<T, U>(one: impl Future<Output = T>, other: impl Future<Output = U>) -> (T, U) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    let (mut first, mut second) = (None, None);
    poll_fn(|cx| {
        if first.is_none()
            && let Poll::Ready(output) = one.as_mut().poll(cx)
        {
            first = Some(output);
        }
        if second.is_none()
            && let Poll::Ready(output) = other.as_mut().poll(cx)
        {
            second = Some(output);
        }
        match (first.take(), second.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (one, other) => {
                (first, second) = (one, other);
                Poll::Pending
            }
        }
    })
    .await
}

impl Both {
    fn new() -> Self {
        let fabric = Fabric::pair(1);
        let drivers = [A, B].map(|side| {
            let ia = fabric.open(side).expect("an adapter");
            Driver::new(ia, 64).expect("a driver")
        });
        Self { fabric, drivers }
    }

    /// Calls `Driver::run_once` of each driver once. If neither driver took an event, advances time by 0.1 ms.
    fn run_once(&mut self) {
        let mut idle = true;
        for driver in &mut self.drivers {
            idle &= driver.run_once().expect("the device lives") != Progress::Taken;
        }
        if idle {
            self.fabric.sim.advance(Duration::from_micros(100));
        }
    }

    fn run_times(&mut self, count: usize) {
        for _ in 0..count {
            self.run_once();
        }
    }

    /// Runs both sides until the future is ready, for at most a minute of virtual time. Returns the future's output.
    #[track_caller]
    fn run<F: Future>(&mut self, future: F) -> F::Output {
        let (woken, waker) = waker();
        let mut future = pin!(future);
        for _ in 0..600_000 {
            if woken.0.swap(false, Ordering::Relaxed)
                && let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker))
            {
                return output;
            }
            self.run_once();
        }
        panic!("the future is not ready after a minute");
    }

    fn pool(&self, side: usize, count: u32) -> Pool {
        self.drivers[side]
            .handle()
            .pool(count, BYTES, MemPrivFlags::all())
            .expect("a pool")
    }

    fn endpoint(&self, side: usize) -> Endpoint {
        self.drivers[side].handle().endpoint().expect("an endpoint")
    }

    fn listener(&self) -> Listener {
        self.drivers[B].handle().listen(SERVICE).expect("listens")
    }

    /// Connects the endpoint `from` of A to the endpoint `to` of B, with private data both ways.
    fn connect(&mut self, from: &Endpoint, to: &Endpoint) {
        let (listener, address) = (self.listener(), self.address());
        let (asked, accepted) = self.run(both(
            from.connect(address, SERVICE, LONG, b"request"),
            async {
                let request = listener.next().await?;
                assert_eq!(request.private_data()?, b"request");
                request.accept(to, b"accept").await
            },
        ));
        asked.expect("connected");
        accepted.expect("connected");
        assert_eq!(from.private_data().expect("open"), b"accept");
    }

    fn connected(&mut self) -> [Endpoint; 2] {
        let ends = [A, B].map(|side| self.endpoint(side));
        self.connect(&ends[A], &ends[B]);
        ends
    }

    fn address(&self) -> std::net::IpAddr {
        self.drivers[B].handle().address().expect("open")
    }

    /// Sets the delay of frames from now on.
    fn set_delay(&self, delay: Duration) {
        let delay_ns = u64::try_from(delay.as_nanos()).expect("not for ever");
        let faults = Faults {
            delay_ns,
            ..Faults::default()
        };
        let link = self.fabric.link;
        self.fabric.sim.set_faults(link, LinkFaults::both(faults));
    }
}

fn filled(pool: &Pool, bytes: &[u8]) -> Buffer {
    let mut buffer = pool.take().expect("a buffer");
    buffer.fill(bytes).expect("room");
    buffer
}

/// Returns the error of a transfer, which must have failed. Checks that the transfer returned its buffer.
#[track_caller]
fn failed((result, buffer): (Result<usize, Error>, Buffer)) -> Error {
    assert_eq!(buffer.capacity(), BYTES as usize);
    result.expect_err("it cannot have succeeded")
}

#[test]
fn messages_and_memory_go_both_ways_and_buffers_come_back() {
    let mut both_sides = Both::new();
    let pools = [A, B].map(|side| both_sides.pool(side, 2));
    let [a, b] = [A, B].map(|side| both_sides.endpoint(side));
    // The receive is posted before there is a connection.
    let hears = b.recv(pools[B].take().expect("a buffer"));
    both_sides.connect(&a, &b);

    let (sent, heard) = both_sides.run(both(a.send(filled(&pools[A], b"a message")), hears));
    assert!(matches!(sent.0, Ok(9)), "{:?}", sent.0);
    assert!(matches!(heard.0, Ok(9)), "{:?}", heard.0);
    assert_eq!(heard.1.to_vec(), b"a message");

    // A writes into the buffer in which B received the message, and reads the bytes back from this buffer.
    let target = heard.1;
    let place = target.remote();
    let (written, _) = both_sides.run(a.write(filled(&pools[A], b"directly!"), place));
    assert!(matches!(written, Ok(9)), "{written:?}");
    assert_eq!(target.to_vec(), b"directly!");
    let (read, back) = both_sides.run(a.read(pools[A].take().expect("a buffer"), place));
    assert!(matches!(read, Ok(9)), "{read:?}");
    assert_eq!(back.to_vec(), b"directly!");

    let (ended, seen) = both_sides.run(both(a.disconnect(CloseFlags::Graceful), b.disconnected()));
    for end in [ended, seen] {
        assert!(
            matches!(end, Ok(ConnectionEventKind::Disconnected)),
            "{end:?}"
        );
    }
    drop((sent, target, back));
    assert_eq!([A, B].map(|side| pools[side].available()), [2, 2]);
    for driver in both_sides.drivers {
        driver.close().expect("it closes");
    }
    assert!([A, B].map(|side| both_sides.fabric.report(side).is_clean()) == [true; 2]);
}

/// A dropped receive keeps its buffer until a message has arrived: the device still places the peer's next message in
/// the buffer, so the memory must not have another user before.
#[test]
fn a_dropped_receive_keeps_its_buffer_until_a_message_has_come() {
    let mut both_sides = Both::new();
    let pool = both_sides.pool(B, 2);
    let from = both_sides.pool(A, 1);
    let [a, b] = both_sides.connected();
    let mut hears = b.recv(pool.take().expect("a buffer"));
    assert!(polled(&mut hears).is_pending());
    drop(hears);
    both_sides.run_times(10);

    // The program uses all other buffers meanwhile.
    let mine = filled(&pool, &[0xa5; BYTES as usize]);
    assert!(pool.take().is_none(), "the card may still write the other");
    let sends = a.send(filled(&from, &[0x5a; BYTES as usize]));
    assert!(pool.take().is_none(), "its completion was not taken in");
    assert_eq!(mine.to_vec(), [0xa5; BYTES as usize]);
    let (sent, _) = both_sides.run(sends);
    assert!(matches!(sent, Ok(256)), "{sent:?}");

    both_sides.run_times(10);
    let back = pool.take().expect("the card is done with it");
    assert_eq!(
        back.to_vec(),
        [0x5a; BYTES as usize],
        "where the message went"
    );
    assert_eq!(mine.to_vec(), [0xa5; BYTES as usize]);
}

/// A dropped RDMA Read keeps its buffer: the device writes the peer's response to the buffer long after the future was
/// dropped.
#[test]
fn a_dropped_read_keeps_its_buffer_until_the_answer_has_come() {
    let mut both_sides = Both::new();
    let (pool, theirs) = (both_sides.pool(A, 1), both_sides.pool(B, 1));
    let [a, _b] = both_sides.connected();
    let source = filled(&theirs, &[0x77; BYTES as usize]);
    both_sides.set_delay(Duration::from_millis(5));
    drop(a.read(pool.take().expect("a buffer"), source.remote()));
    both_sides.run_times(60);
    assert!(pool.take().is_none(), "the answer is on its way");
    both_sides.run_times(200);
    let back = pool.take().expect("the answer has come");
    assert_eq!(back.to_vec(), [0x77; BYTES as usize]);
}

#[test]
fn an_endpoint_that_is_dropped_ends_its_transfers_and_only_those() {
    let mut both_sides = Both::new();
    let pool = both_sides.pool(B, 4);
    let [a, b] = both_sides.connected();
    let other = both_sides.endpoint(B);
    let mut others = other.recv(pool.take().expect("a buffer"));
    let [mut waiting, dropped] = [(); 2].map(|()| b.recv(pool.take().expect("a buffer")));
    assert!(polled(&mut waiting).is_pending());
    drop(dropped);
    assert_eq!(pool.available(), 1);
    drop(b);
    let Poll::Ready(ended) = polled(&mut waiting) else {
        panic!("its endpoint is gone");
    };
    let error = failed(ended);
    let flushed = |error: &Error| matches!(error, Error::Transfer(done) if done.status == DtoStatus::ErrFlushed);
    assert!(
        matches!(error, Error::Dropped) || flushed(&error),
        "{error}"
    );
    assert_eq!(pool.available(), 3, "all but that of the other endpoint");
    assert!(polled(&mut others).is_pending());
    let ended = both_sides.run(a.disconnected());
    assert!(
        matches!(ended, Ok(ConnectionEventKind::Disconnected)),
        "{ended:?}"
    );
}

#[test]
fn buffers_stay_where_they_are_while_the_device_does_not_let_their_endpoint_end() {
    let mut both_sides = Both::new();
    let pool = both_sides.pool(B, 1);
    let [_a, b] = both_sides.connected();
    let mut hears = b.recv(pool.take().expect("a buffer"));
    let refuses = Fault::CommandFailure {
        opcode: Some(Opcode::TO_ERR_QP.0),
        status: 6,
        syndrome: 0x1234,
        count: 1,
    };
    let function = both_sides.fabric.function(B);
    both_sides.fabric.sim.inject(&function, &refuses);
    drop(b);
    assert!(polled(&mut hears).is_pending(), "the endpoint works on");
    assert_eq!(pool.available(), 0);
    // The driver tries again to free the endpoint, without a sleep that would delay the task of the receive.
    let before = both_sides.fabric.sim.clock().now();
    let ended = both_sides.drivers[B].block_on(hears);
    let (result, _) = ended.expect("the device lives");
    assert!(result.is_err(), "{result:?}");
    assert_eq!(pool.available(), 1);
    let took = both_sides.fabric.sim.clock().now().0 - before.0;
    assert!(took < 100_000_000, "{took} ns");
}

fn all_end_with_closed(end: impl FnOnce(Driver)) {
    let Both { fabric, drivers } = {
        let mut both_sides = Both::new();
        let _ends = both_sides.connected();
        both_sides
    };
    let [_a, b] = drivers;
    let handle = b.handle();
    let pool = handle.pool(2, BYTES, MemPrivFlags::all()).expect("a pool");
    let listener = handle.listen(ConnQual(SERVICE.0 + 1)).expect("listens");
    let endpoint = handle.endpoint().expect("an endpoint");
    let [mut hears, dropped] = [(); 2].map(|()| endpoint.recv(pool.take().expect("a buffer")));
    drop(dropped);
    // The link-local address contains the MAC, so the driver sends a request at once. No station answers.
    let nobody = "fe80::5eff:fe10:77".parse().expect("an address");
    let mut connecting = endpoint.connect(nobody, SERVICE, LONG, b"");
    let (mut asks, mut ended) = (listener.next(), endpoint.disconnected());
    assert!(polled(&mut connecting).is_pending());
    assert!(polled(&mut asks).is_pending() && polled(&mut ended).is_pending());
    let (woken, waker) = waker();
    woken.0.store(false, Ordering::Relaxed);
    assert!(
        Pin::new(&mut hears)
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );

    end(b);
    assert!(woken.0.load(Ordering::Relaxed), "its task is woken");
    let Poll::Ready(heard) = polled(&mut hears) else {
        panic!("still waiting");
    };
    assert!(matches!(failed(heard), Error::Closed));
    assert_eq!(pool.available(), 2);
    assert!(matches!(polled(&mut asks), Poll::Ready(Err(Error::Closed))));
    assert!(matches!(
        polled(&mut ended),
        Poll::Ready(Err(Error::Closed))
    ));
    assert!(matches!(
        polled(&mut connecting),
        Poll::Ready(Err(Error::Closed))
    ));
    let mut late = endpoint.recv(pool.take().expect("a buffer"));
    let Poll::Ready(refused) = polled(&mut late) else {
        panic!("nobody is there to post it");
    };
    assert!(matches!(failed(refused), Error::Closed));
    assert!(matches!(handle.endpoint(), Err(Error::Closed)));
    assert!(matches!(handle.address(), Err(Error::Closed)));
    drop((listener, endpoint, handle, pool));
    drop(fabric);
}

#[test]
fn a_driver_that_is_closed_ends_everything_that_is_waited_for() {
    all_end_with_closed(|driver| {
        let report = driver.close().expect("it closes");
        assert_eq!(report.instances_left, 0);
        assert_eq!(report.objects_left, []);
    });
}

#[test]
fn a_driver_that_is_dropped_ends_everything_that_is_waited_for() {
    all_end_with_closed(drop);
}

#[test]
fn calls_on_an_endpoint_of_a_closed_driver_return_closed() {
    let mut both_sides = Both::new();
    let (listener, address) = (both_sides.listener(), both_sides.address());
    let [a, b] = [A, B].map(|side| both_sides.endpoint(side));
    let _connecting = a.connect(address, SERVICE, LONG, b"");
    let request = both_sides.run(listener.next()).expect("a request");
    let [_a, closed] = both_sides.drivers;
    closed.close().expect("it closes");
    assert!(matches!(b.private_data(), Err(Error::Closed)));
    assert!(matches!(b.end_cause(), Err(Error::Closed)));
    assert!(matches!(b.ep(), Err(Error::Closed)));
    let is_closed = |polled: Poll<Result<(), Error>>| {
        assert!(matches!(polled, Poll::Ready(Err(Error::Closed))));
    };
    is_closed(polled(&mut b.connect(address, SERVICE, LONG, b"")));
    is_closed(polled(&mut request.accept(&b, b"")));
    let mut ends = b.disconnect(CloseFlags::Abrupt);
    is_closed(polled(&mut ends).map(|end| end.map(drop)));
}

#[test]
fn a_device_that_dies_fails_what_is_in_flight_and_then_the_driver() {
    let mut both_sides = Both::new();
    let pool = both_sides.pool(B, 1);
    let [_a, b] = both_sides.connected();
    let listener = both_sides.drivers[B]
        .handle()
        .listen(ConnQual(SERVICE.0 + 1))
        .expect("listens");
    let (hears, mut asks, ended) = (
        b.recv(pool.take().expect("a buffer")),
        listener.next(),
        b.disconnected(),
    );
    assert!(polled(&mut asks).is_pending());
    let function = both_sides.fabric.function(B);
    both_sides
        .fabric
        .sim
        .inject(&function, &Fault::HealthSyndrome(1));
    let driver = &mut both_sides.drivers[B];
    let (heard, ended) = driver
        .block_on(both(hears, ended))
        .expect("there is something to tell");
    let error = failed(heard);
    assert!(
        matches!(error, Error::Ended(EndCause::AdapterDead)),
        "{error}"
    );
    assert!(
        matches!(ended, Ok(ConnectionEventKind::Broken)),
        "{ended:?}"
    );
    assert!(matches!(polled(&mut asks), Poll::Ready(Err(Error::Dead))));
    let error = driver
        .block_on(std::future::pending::<()>())
        .expect_err("it is dead");
    assert!(matches!(error, Error::Dead), "{error}");
    assert_eq!(pool.available(), 1);
}

#[test]
fn what_cannot_be_posted_says_why_and_gives_the_buffer_back() {
    let fabric = Fabric::pair(1);
    let mut driver = Driver::new(fabric.open(A).expect("an adapter"), 2).expect("a driver");
    let handle = driver.handle();
    let pool = handle
        .pool(3, BYTES, MemPrivFlags::LOCAL_READ)
        .expect("a pool");
    let endpoint = handle.endpoint().expect("an endpoint");
    // The region is not writable.
    let (result, buffer) = driver
        .block_on(endpoint.recv(pool.take().expect("a buffer")))
        .expect("the device lives");
    assert!(matches!(result, Err(Error::Dat(_))), "{result:?}");
    let (result, buffer) = driver
        .block_on(endpoint.send(buffer))
        .expect("the device lives");
    assert!(
        matches!(result, Err(Error::Dat(_))),
        "no connection: {result:?}"
    );
    let mut place = buffer.remote();
    place.segment_length = u64::from(BYTES) + 1;
    let (result, _) = driver
        .block_on(endpoint.read(buffer, place))
        .expect("the device lives");
    let too_long = Error::Bounds {
        offset: 0,
        bytes: 257,
        capacity: 256,
    };
    assert_eq!(
        result.expect_err("too long").to_string(),
        too_long.to_string()
    );

    let pool = handle.pool(3, BYTES, MemPrivFlags::all()).expect("a pool");
    let hears = [(); 3].map(|()| endpoint.recv(pool.take().expect("a buffer")));
    let [one, other, third] = hears;
    let (result, _) = driver.block_on(third).expect("the device lives");
    assert!(matches!(result, Err(Error::Full(2))), "{result:?}");
    drop((one, other));
    assert!(matches!(
        pool.take().map(|mut buffer| buffer.fill(&[0; 257])),
        Some(Err(Error::Bounds { .. }))
    ));
    let mut buffer = pool.take().expect("a buffer");
    assert!(matches!(
        buffer.write_at(255, &[1, 2]),
        Err(Error::Bounds { .. })
    ));
    buffer.set_len(4).expect("room");
    assert!(matches!(
        buffer.read_at(3, &mut [0; 2]),
        Err(Error::Bounds { .. })
    ));
    assert!(driver.close().is_ok());
}

#[test]
fn a_request_that_nobody_takes_is_rejected_and_so_is_one_that_is_dropped() {
    let mut both_sides = Both::new();
    let listener = both_sides.listener();
    let (first, second) = (both_sides.endpoint(A), both_sides.endpoint(A));
    let address = both_sides.address();
    let asks_from = both_sides.drivers[A].handle().address().expect("open");
    let (refused, ()) = both_sides.run(both(first.connect(address, SERVICE, LONG, b""), async {
        let request = listener.next().await.expect("a request");
        assert_eq!(request.peer().expect("it is there"), asks_from);
        request.reject();
    }));
    let rejected = |result: &Result<(), Error>| {
        matches!(
            result,
            Err(Error::Connection(
                ConnectionEventKind::PeerRejected | ConnectionEventKind::NonPeerRejected
            ))
        )
    };
    assert!(rejected(&refused), "{refused:?}");
    let connecting = second.connect(address, SERVICE, LONG, b"");
    both_sides.run_times(10);
    drop(listener);
    let refused = both_sides.run(connecting);
    assert!(rejected(&refused), "{refused:?}");
}

/// A task that makes a call on the instance ends the sleep of the driver: the call may consume an event, and the sleep
/// would miss that event.
#[test]
fn whoever_uses_the_instance_ends_the_sleep_of_its_driver() {
    let mut both_sides = Both::new();
    let handle = both_sides.drivers[A].handle();
    let sleeps = AtomicU32::new(0);
    let (woken, waker) = waker();
    let mut cx = Context::from_waker(&waker);
    let mut runs = pin!(both_sides.drivers[A].run(|longest| {
        assert!(longest <= Duration::from_secs(1));
        sleeps.fetch_add(1, Ordering::Relaxed);
        std::future::pending::<()>()
    }));
    for _ in 0..100 {
        assert!(runs.as_mut().poll(&mut cx).is_pending());
    }
    assert_eq!(
        sleeps.load(Ordering::Relaxed),
        1,
        "it sleeps, and goes on sleeping"
    );
    woken.0.store(false, Ordering::Relaxed);
    handle.address().expect("a question only");
    assert!(!woken.0.load(Ordering::Relaxed));
    let _endpoint = handle.endpoint().expect("an endpoint");
    assert!(woken.0.load(Ordering::Relaxed));
    for _ in 0..100 {
        assert!(runs.as_mut().poll(&mut cx).is_pending());
    }
    assert_eq!(sleeps.load(Ordering::Relaxed), 2);
}

thread_local! {
    /// Objects that a waker of the test drops.
    static HELD: RefCell<Option<(Endpoint, Transfer)>> = const { RefCell::new(None) };
}

/// A waker that drops an endpoint and a transfer of the driver, as a runtime does with an aborted task.
struct Drops;

impl Wake for Drops {
    fn wake(self: Arc<Self>) {
        drop(HELD.take());
    }
}

#[test]
fn a_task_that_is_woken_may_use_the_driver_at_once() {
    let mut both_sides = Both::new();
    let (pool, from) = (both_sides.pool(B, 2), both_sides.pool(A, 1));
    let [a, b] = both_sides.connected();
    let mut hears = b.recv(pool.take().expect("a buffer"));
    let waker = Waker::from(Arc::new(Drops));
    assert!(
        Pin::new(&mut hears)
            .poll(&mut Context::from_waker(&waker))
            .is_pending()
    );
    let other = b.recv(pool.take().expect("a buffer"));
    HELD.set(Some((b, other)));
    let (sent, _) = both_sides.run(a.send(filled(&from, b"wake up")));
    assert!(matches!(sent, Ok(7)), "{sent:?}");
    let (heard, buffer) = both_sides.run(hears);
    assert!(matches!(heard, Ok(7)), "{heard:?}");
    drop(buffer);
    assert_eq!(pool.available(), 2);
}

#[test]
fn a_region_ends_with_the_last_of_its_buffers() {
    let mut both_sides = Both::new();
    let mut kept = Vec::new();
    for _ in 0..4 {
        let pool = both_sides.pool(A, 2);
        kept.push(pool.take().expect("a buffer"));
    }
    let contexts: Vec<u32> = kept
        .iter()
        .map(|buffer| buffer.remote().rmr_context)
        .collect();
    both_sides.run_times(2);
    let target = kept.remove(0);
    drop(kept);
    both_sides.run_times(2);
    let [_a, b] = both_sides.connected();
    // The LMR of `target` still exists. The other LMRs are freed.
    let from = both_sides.pool(B, 1);
    let (written, buffer) = both_sides.run(b.write(filled(&from, b"there"), target.remote()));
    assert!(matches!(written, Ok(5)), "{written:?}");
    let mut gone = target.remote();
    gone.rmr_context = contexts[1];
    let (written, _) = both_sides.run(b.write(buffer, gone));
    let error = written.expect_err("that region is gone");
    assert!(
        matches!(&error, Error::Transfer(done) if done.status == DtoStatus::ErrRemoteAccess),
        "{error}"
    );
}

/// One driver connects two endpoints of one adapter, sleeps by the device's clock, and sends a thousand messages from
/// one endpoint to the other. All buffers come back.
#[test]
fn a_driver_of_one_adapter_connects_it_with_itself_and_sleeps_by_its_clock() {
    let fabric = Fabric::pair(1);
    let mut driver = Driver::new(fabric.open(A).expect("an adapter"), 64).expect("a driver");
    let handle = driver.handle();
    let pool = handle.pool(4, BYTES, MemPrivFlags::all()).expect("a pool");
    let listener = handle.listen(SERVICE).expect("listens");
    let [from, to] = [(); 2].map(|()| handle.endpoint().expect("an endpoint"));
    let address = handle.address().expect("open");
    let patience = Timeout::from_micros(10_000_000);
    let talks = async {
        let (asked, accepted) = both(from.connect(address, SERVICE, patience, b""), async {
            listener.next().await?.accept(&to, b"").await
        })
        .await;
        asked?;
        accepted?;
        for number in 0..1_000_u32 {
            let hears = to.recv(pool.take().expect("a buffer"));
            let (sent, heard) = both(from.send(filled(&pool, &number.to_be_bytes())), hears).await;
            assert_eq!((sent.0?, heard.0?), (4, 4));
            assert_eq!(heard.1.to_vec(), number.to_be_bytes());
        }
        Ok::<(), Error>(())
    };
    driver
        .block_on(talks)
        .expect("the device lives")
        .expect("it works");
    assert_eq!(pool.available(), 4);
}

/// A receive that an RDMA Write with immediate data consumes has length 0: the peer's bytes are at the target of the
/// RDMA Write, and the old bytes of the receive's buffer are no message.
#[test]
fn a_receive_that_a_write_with_immediate_data_uses_up_has_no_bytes() {
    let fabric = Fabric::pair(1);
    let mut ia = fabric.open(A).expect("an adapter");
    let mut driver = Driver::new(fabric.open(B).expect("an adapter"), 64).expect("a driver");
    let handle = driver.handle();
    let pool = handle.pool(2, BYTES, MemPrivFlags::all()).expect("a pool");
    let endpoint = handle.endpoint().expect("an endpoint");
    let listener = handle.listen(SERVICE).expect("listens");

    let zone = ia.pz_create().expect("a PZ");
    let evd = ia.evd_create(16, EvdFlags::DTO | EvdFlags::CONNECTION);
    let evd = evd.expect("an EVD");
    let ep = ia.ep_create(Some(zone), EpEvds::all(evd), None);
    let ep = ep.expect("an EP");
    let memory = udapl::alloc(&ia, 64).expect("memory");
    let lmr = ia.lmr_create(memory, zone, MemPrivFlags::LOCAL_READ);
    let six = ia
        .lmr_slice(lmr.expect("an LMR").lmr, 0, 6)
        .expect("inside");
    let address = handle.address().expect("open");
    let (best, none) = (Qos::BEST_EFFORT, ConnectFlags::empty());
    ia.ep_connect(ep, address, SERVICE, LONG, b"", best, none)
        .expect("begins");

    let (_, waker) = waker();
    let mut cx = Context::from_waker(&waker);
    let mut accepts = Box::pin(async {
        let request = listener.next().await?;
        request.accept(&endpoint, b"").await
    });
    let mut run_once = |driver: &mut Driver| {
        let _woken = driver.run_once().expect("the device lives");
        fabric.sim.advance(Duration::from_micros(100));
        ia.evd_dequeue(evd).expect("an EVD")
    };
    let mut accepted = false;
    while !accepted {
        run_once(&mut driver);
        accepted = accepts.as_mut().poll(&mut cx).is_ready();
    }
    drop(accepts);
    let secret = filled(&pool, b"secret");
    let to = secret.remote();
    drop(secret);
    let mut buffers = [pool.take(), pool.take()].map(|buffer| buffer.expect("a buffer"));
    let at = buffers.iter().position(|buffer| buffer.remote() != to);
    let other = buffers[at.expect("two places")].remote();
    buffers.sort_by_key(|buffer| buffer.remote() != to);
    let [had_the_secret, elsewhere] = buffers;
    let mut hears = pin!(endpoint.recv(had_the_secret));
    assert!(hears.as_mut().poll(&mut cx).is_pending());
    for _ in 0..10 {
        run_once(&mut driver);
    }
    ia.ep_post_rdma_write_immediate(
        ep,
        &[six],
        DtoCookie(1),
        &other,
        7,
        CompletionFlags::empty(),
    )
    .expect("posted");
    let heard = (0..1000).find_map(|_| {
        let _woken = driver.run_once().expect("the device lives");
        fabric.sim.advance(Duration::from_micros(100));
        match hears.as_mut().poll(&mut cx) {
            Poll::Ready(heard) => Some(heard),
            Poll::Pending => None,
        }
    });
    let (result, buffer) = heard.expect("used up");
    assert_eq!((result.ok(), buffer.to_vec()), (Some(0), Vec::new()));
    drop(elsewhere);
}

/// A dropped future removes its waker. As in a server, the test repeatedly polls and drops a future for the next
/// request and a future for the end of the connection.
#[test]
fn a_future_that_is_dropped_takes_its_waker_along() {
    let both_sides = Both::new();
    let listener = both_sides.listener();
    let ends = [A, B].map(|side| both_sides.endpoint(side));
    let (woken, waker) = waker();
    let mut cx = Context::from_waker(&waker);
    for _ in 0..3 {
        let mut ended = ends[A].disconnected();
        let mut asked = listener.next();
        for _ in 0..2 {
            assert!(Pin::new(&mut ended).poll(&mut cx).is_pending());
            assert!(Pin::new(&mut asked).poll(&mut cx).is_pending());
        }
        assert_eq!(Arc::strong_count(&woken), 2 + 2, "one for each future");
    }
    assert_eq!(Arc::strong_count(&woken), 2, "this one and its waker");
}
