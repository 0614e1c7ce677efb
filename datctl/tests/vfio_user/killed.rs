//! Either process is killed at any moment: the other notices in bounded time, and its function is usable by the next
//! client.
//!
//! `DAT_TEST_KILLS=N` runs N rounds of each test instead of a few; a round of the first has many moments.
//!
//! The killed client is this test binary again; a variable makes it play the other side. Moments come from a seed: a
//! number of messages, then a pause that is shorter than one.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "an event that is none of the expected ones ends the test"
)]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use udapl::endpoint::EpAttr;
use udapl::event::AsyncEvent;
use udapl::{
    CloseFlags, ConnectFlags, ConnectionEventKind, DtoCookie, DtoStatus, EpEvds, Event, PspFlags,
    Qos, Timeout,
};

use crate::served::{Buffer, CONN_QUAL, LONG, Link, NONE, Process, Served, Side, connected};

/// Name of the adapter on which a child plays the echo.
const ECHO: &str = "VFIO_USER_ECHO";
/// Number of rounds.
const KILLS: &str = "DAT_TEST_KILLS";
/// Clients that are killed in a round before any peer has connected to them.
const UNBORN: u32 = 20;
/// Longest life of a connection without a peer: seven times its acknowledgement timeout, in the time of a world that
/// advances by 2 ms whenever its process has the processor.
const GIVES_UP: Timeout = Timeout::from_micros(600_000_000);
/// Cookies.
const SEND: u64 = 1;
const RECEIVE: u64 = 2;

/// Played by a child: accepts one connection and echoes messages, until it is killed.
#[test]
fn the_echo_of_a_child() {
    let Ok(name) = std::env::var(ECHO) else {
        return; // not a child
    };
    let mut side = Side::open(&name);
    let buffer = side.buffer(None, 64);
    side.ia
        .ep_post_recv(side.ep, &[buffer.local()], DtoCookie(RECEIVE), NONE)
        .expect("a receive");
    side.ia
        .psp_create(CONN_QUAL, side.events, PspFlags::CONSUMER)
        .expect("a PSP");
    println!("\nlistening");
    loop {
        match side.event() {
            Event::ConnectionRequest(request) => side
                .ia
                .cr_accept(request.cr, Some(side.ep), b"")
                .expect("an accept"),
            Event::Dto(done) if done.cookie.0 == RECEIVE => {
                side.ia
                    .ep_post_recv(side.ep, &[buffer.local()], DtoCookie(RECEIVE), NONE)
                    .expect("a receive");
                side.ia
                    .ep_post_send(side.ep, &[buffer.local()], DtoCookie(SEND), NONE)
                    .expect("a send");
            }
            Event::Dto(_) | Event::Connection(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the number of rounds: `usual`, unless the environment has another.
fn rounds(usual: u32) -> u32 {
    let asked = std::env::var(KILLS).ok();
    asked.map_or(usual, |asked| asked.parse().expect("a number"))
}

/// Returns the number of a server's descriptors.
fn descriptors(link: &Link) -> Option<usize> {
    let pid = link.server()?;
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"));
    Some(open.expect("a process of ours").count())
}

/// Starts a child that plays the echo.
fn echo(name: &str) -> Process {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command
        .args(["--exact", "killed::the_echo_of_a_child", "--nocapture"])
        .env(ECHO, name)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    Process::start(&mut command)
}

fn listens(echo: &mut Process) {
    // The child's test harness prints first.
    while echo.line() != "listening" {}
}

/// Pauses for less time than any step takes.
fn while_away(random: &mut ChaCha8Rng) {
    let until = Instant::now() + Duration::from_micros(random.random_range(0..500));
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

/// This process's side.
struct Caller {
    side: Side,
    outbox: Buffer,
    inbox: Buffer,
}

impl Caller {
    fn open(name: &str) -> Self {
        let mut side = Side::open(name);
        let (outbox, inbox) = (side.buffer(Some(&[5; 64]), 64), side.buffer(None, 64));
        Self {
            side,
            outbox,
            inbox,
        }
    }

    /// Connects a new endpoint with the child.
    fn call(&mut self, peer: std::net::IpAddr) {
        let Side { ia, pz, events, ep } = &mut self.side;
        let attr = EpAttr::defaults(ia.query().ia);
        let (zone, evd) = (Some(*pz), Some(*events));
        *ep = ia
            .ep_create(
                zone,
                EpEvds {
                    recv: evd,
                    request: evd,
                    connect: evd,
                },
                Some(&attr),
            )
            .expect("an endpoint");
        ia.ep_connect(
            *ep,
            peer,
            CONN_QUAL,
            LONG,
            b"",
            Qos::BEST_EFFORT,
            ConnectFlags::empty(),
        )
        .expect("a connect");
        self.side.established();
    }

    fn post_receive(&mut self) {
        self.side
            .ia
            .ep_post_recv(
                self.side.ep,
                &[self.inbox.local()],
                DtoCookie(RECEIVE),
                NONE,
            )
            .expect("a receive");
    }

    fn post_send(&mut self) {
        self.side
            .ia
            .ep_post_send(self.side.ep, &[self.outbox.local()], DtoCookie(SEND), NONE)
            .expect("a send");
    }

    /// Sends a message and checks its echo.
    fn trip(&mut self) {
        self.post_receive();
        self.post_send();
        for _ in 0..2 {
            match self.side.event() {
                Event::Dto(done) => assert_eq!(done.status, DtoStatus::Success, "{done:?}"),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Sends until a message fails: the function may still accept one for a process that has ended, but a connection
    /// without traffic stays as it is. Then the receive is flushed and the connection broken, each once.
    fn until_broken(&mut self) {
        self.post_receive();
        self.post_send();
        let (mut failed, mut flushed, mut broken) = (false, false, false);
        while !(failed && flushed && broken) {
            let waited = self.side.ia.evd_wait(self.side.events, GIVES_UP, 1);
            let (event, _left) = waited.unwrap_or_else(|error| {
                let status = self.side.ia.ep_get_status(self.side.ep);
                let left = self.side.ia.evd_dequeue(self.side.events);
                panic!(
                    "{error:?}: failed {failed}, flushed {flushed}, broken {broken}; {status:?}; in the EVD {left:?}"
                )
            });
            match event {
                Event::Dto(done) if done.cookie.0 == SEND => {
                    if done.status == DtoStatus::Success {
                        self.post_send();
                    } else {
                        assert!(!std::mem::replace(&mut failed, true), "{done:?}");
                    }
                }
                Event::Dto(done) => {
                    assert_eq!(done.status, DtoStatus::ErrFlushed, "{done:?}");
                    assert!(!std::mem::replace(&mut flushed, true), "{done:?}");
                }
                Event::Connection(ended) => {
                    assert_eq!(ended.kind, ConnectionEventKind::Broken);
                    assert!(!std::mem::replace(&mut broken, true), "{ended:?}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Returns the link-local address of a function, which follows from its number on the link.
fn address(name: &str) -> std::net::IpAddr {
    let adapter = Side::open(name);
    let address = adapter.ia.query().ia.ia_address;
    adapter.close();
    address
}

#[test]
fn a_client_killed_at_any_moment_breaks_its_connection_and_leaves_the_function_to_the_next() {
    let link = Link::new();
    let peer = address(link.name(0));
    let mut caller = Caller::open(link.name(1));
    let mut random = ChaCha8Rng::seed_from_u64(41);
    let mut usual = None;
    let (begun, rounds) = (Instant::now(), rounds(6));
    for _ in 0..rounds {
        // During its bring-up, before it, or after it.
        for _ in 0..UNBORN {
            let mut unborn = echo(link.name(0));
            for _ in 0..random.random_range(0..40) {
                while_away(&mut random);
            }
            unborn.kill();
        }

        let mut child = echo(link.name(0));
        listens(&mut child);
        caller.call(peer);
        // With the same two clients the server has the same number of descriptors, whichever clients were killed
        // before.
        let now = descriptors(&link);
        assert_eq!(*usual.get_or_insert(now), now);
        for _ in 0..random.random_range(0..60) {
            caller.trip();
        }
        while_away(&mut random);
        child.kill();
        caller.until_broken();
        let ep = caller.side.ep;
        let state = caller.side.ia.ep_query(ep).expect("it").state;
        assert_eq!(state, udapl::endpoint::EpState::Disconnected);
        caller.side.ia.ep_free(ep).expect("it is free");
        let nothing = caller.side.ia.evd_dequeue(caller.side.events);
        assert_eq!(nothing, Ok(None));
    }
    let killed = rounds * (UNBORN + 1);
    println!("{killed} clients killed in {:?}", begun.elapsed());
    // Afterwards everything works as before.
    let mut child = echo(link.name(0));
    listens(&mut child);
    caller.call(peer);
    caller.trip();
    caller.trip();
    drop((caller.outbox, caller.inbox));
    caller.side.close();
}

#[test]
fn a_server_killed_at_any_moment_is_a_catastrophe_told_and_not_a_hang() {
    let mut random = ChaCha8Rng::seed_from_u64(42);
    let (begun, rounds) = (Instant::now(), rounds(5));
    for _ in 0..rounds {
        let mut served = Served::new(&[]);
        let [mut a, mut b] = connected(&served);
        let (from, to) = (a.buffer(Some(&[5; 64]), 64), b.buffer(None, 64));
        for message in 0..random.random_range(0..60) {
            b.ia.ep_post_recv(b.ep, &[to.local()], DtoCookie(message), NONE)
                .expect("a receive");
            a.ia.ep_post_send(a.ep, &[from.local()], DtoCookie(message), NONE)
                .expect("a send");
            a.completes(message);
            b.completes(message);
        }
        b.ia.ep_post_recv(b.ep, &[to.local()], DtoCookie(100), NONE)
            .expect("a receive");
        a.ia.ep_post_send(a.ep, &[from.local()], DtoCookie(100), NONE)
            .expect("a send");
        while_away(&mut random);
        served.server.kill();
        drop((from, to));
        for mut side in [a, b] {
            let Event::Async(event) = side
                .ia
                .evd_wait(side.ia.async_evd(), LONG, 1)
                .expect("the catastrophe in time")
                .0
            else {
                panic!("an asynchronous event");
            };
            assert_eq!(event, AsyncEvent::IaCatastrophic);
            // The DTO completes or is flushed, and the connection breaks, each once.
            let (mut ended, mut broken) = (0, 0);
            for _ in 0..2 {
                match side.event() {
                    Event::Dto(done) => {
                        let status = done.status;
                        assert!(
                            matches!(status, DtoStatus::Success | DtoStatus::ErrFlushed),
                            "{done:?}"
                        );
                        ended += u32::from(done.cookie.0 == 100);
                    }
                    Event::Connection(event) => {
                        broken += u32::from(event.kind == ConnectionEventKind::Broken);
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!((ended, broken), (1, 1));
            let nothing = side.ia.evd_wait(side.events, Timeout::from_micros(0), 1);
            assert!(nothing.is_err(), "{nothing:?}");
            let report = udapl::ia_close(side.ia, CloseFlags::Abrupt).expect("it is gone");
            assert!(report.dead.is_some(), "{report:?}");
        }
    }
    println!("{rounds} servers killed in {:?}", begun.elapsed());
}
