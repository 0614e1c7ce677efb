//! Kills the server or a client at any moment. The other process must notice in bounded time, and the next client must
//! be able to use the function.
//!
//! `DAT_TEST_KILLS=N` runs N rounds of each test instead of a few. A round of the first test kills many clients.
//!
//! The killed client is this test binary, started again; an environment variable makes it run the other side. A seed
//! determines the moments: a number of messages, then a pause that is shorter than one message takes.

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

/// Environment variable with the name of the adapter on which a child echoes messages.
const ECHO: &str = "VFIO_USER_ECHO";
/// Environment variable with the number of rounds.
const KILLS: &str = "DAT_TEST_KILLS";
/// Number of clients per round that are killed before any peer has connected to them.
const EARLY_KILLS: u32 = 20;
/// Time limit for a connection without a peer to break, in microseconds: seven times its acknowledgement timeout. The
/// timeout is in virtual time, which advances by 2 ms each time the serving process gets the processor.
const BREAK_TIMEOUT: Timeout = Timeout::from_micros(600_000_000);
/// Cookies of the DTOs.
const SEND: u64 = 1;
const RECEIVE: u64 = 2;

/// Runs in a child: accepts one connection and echoes messages until the child is killed.
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

/// Returns the number of rounds from the environment variable `KILLS`, or `usual` if the variable is not set.
fn rounds(usual: u32) -> u32 {
    let asked = std::env::var(KILLS).ok();
    asked.map_or(usual, |asked| asked.parse().expect("a number"))
}

/// Returns the number of descriptors that the server has open, if this process started the server.
fn descriptors(link: &Link) -> Option<usize> {
    let pid = link.server()?;
    let open = std::fs::read_dir(format!("/proc/{pid}/fd"));
    Some(open.expect("a process of ours").count())
}

/// Starts a child that echoes messages.
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
    // The child's test harness prints other lines first.
    while echo.line() != "listening" {}
}

/// Spins for up to 500 us, which is shorter than any step of a client.
fn spin_randomly(random: &mut ChaCha8Rng) {
    let until = Instant::now() + Duration::from_micros(random.random_range(0..500));
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

/// The side of the connection in this process.
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

    /// Sends messages until one fails, then waits until the receive is flushed and the connection breaks, each once.
    /// Sends are needed because a connection without traffic does not notice the end of its peer. The peer's function
    /// may still acknowledge a message after its process has ended.
    fn until_broken(&mut self) {
        self.post_receive();
        self.post_send();
        let (mut failed, mut flushed, mut broken) = (false, false, false);
        while !(failed && flushed && broken) {
            let waited = self.side.ia.evd_wait(self.side.events, BREAK_TIMEOUT, 1);
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

/// Returns the link-local address of a function.
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
        // These clients are killed before, during or after their bring-up.
        for _ in 0..EARLY_KILLS {
            let mut unborn = echo(link.name(0));
            for _ in 0..random.random_range(0..40) {
                spin_randomly(&mut random);
            }
            unborn.kill();
        }

        let mut child = echo(link.name(0));
        listens(&mut child);
        caller.call(peer);
        // The same two clients cost the server the same number of descriptors in each round, whichever clients were
        // killed before.
        let now = descriptors(&link);
        assert_eq!(*usual.get_or_insert(now), now);
        for _ in 0..random.random_range(0..60) {
            caller.trip();
        }
        spin_randomly(&mut random);
        child.kill();
        caller.until_broken();
        let ep = caller.side.ep;
        let state = caller.side.ia.ep_query(ep).expect("it").state;
        assert_eq!(state, udapl::endpoint::EpState::Disconnected);
        caller.side.ia.ep_free(ep).expect("it is free");
        let nothing = caller.side.ia.evd_dequeue(caller.side.events);
        assert_eq!(nothing, Ok(None));
    }
    let killed = rounds * (EARLY_KILLS + 1);
    println!("{killed} clients killed in {:?}", begun.elapsed());
    // After all kills, a new connection carries messages as before.
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
        spin_randomly(&mut random);
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
            // The DTO completes or is flushed once, and the connection breaks once.
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
