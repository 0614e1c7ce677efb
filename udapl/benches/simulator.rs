//! Speed of simulated functions: prints a table (`cargo bench -p udapl --bench simulator`).
//!
//! One run measures RDMA Writes between two functions of this process (`one`), the same with one pair and with two
//! pairs of functions at once (`pairs`), RDMA Writes and ping-pongs with a function of another process over
//! `link=unix:` (`two`), and transfers and ping-pongs over plain sockets (`bare`). Arguments select some of these. Each
//! figure is the best of several rounds, because other processes disturb some rounds. The second column is this
//! process's CPU time for an operation. docs/simulator.md has the figures of one machine.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use udapl::endpoint::EpAttr;
use udapl::fabric::Fabric;
use udapl::memory::{LmrHandle, RmrTriplet};
use udapl::{
    CloseFlags, CompletionFlags, ConnQual, ConnectFlags, DmaMemory, DtoCookie, DtoStatus, EpEvds,
    EpHandle, EvdFlags, EvdHandle, Event, Ia, MemPrivFlags, OpenOptions, PspFlags, Qos, Timeout,
    ia_close, ia_open,
};

const SERVICE: ConnQual = ConnQual::service_id(0x1_0000_0001);
const PATIENCE: Timeout = Timeout::from_micros(60_000_000);
const FLAGS: CompletionFlags = CompletionFlags::empty();
/// Size of the memory that each end registers, in bytes.
const MEMORY: usize = 1 << 20;
const DEPTH: usize = 16;
/// Size of a ping-pong message in bytes.
const MESSAGE: usize = 64;
const ROUNDS: usize = 5;

/// First byte of a message to the peer process: poll, sleep in a wait, send an echo, or end.
const POLL: u8 = 0;
const SLEEP: u8 = 1;
const ECHO: u8 = 2;
const END: u8 = 3;

struct End {
    ia: Ia,
    events: EvdHandle,
    ep: EpHandle,
    memory: DmaMemory,
    lmr: LmrHandle,
    remote: RmrTriplet,
}

impl End {
    fn open(name: &str) -> Self {
        Self::of(ia_open(name, &OpenOptions::default()).expect(name))
    }

    fn of(mut ia: Ia) -> Self {
        let zone = ia.pz_create().expect("a PZ");
        let flags = EvdFlags::DEFAULT - EvdFlags::ASYNC;
        let events = ia.evd_create(1024, flags).expect("an EVD");
        let attr = EpAttr {
            max_recv_dtos: 64,
            max_request_dtos: 64,
            ..EpAttr::defaults(ia.query().ia)
        };
        let ep = ia
            .ep_create(Some(zone), EpEvds::all(events), Some(&attr))
            .expect("an endpoint");
        let memory = udapl::alloc(&ia, MEMORY).expect("memory");
        let region = ia
            .lmr_create(memory.clone(), zone, MemPrivFlags::all())
            .expect("an LMR");
        let own = RmrTriplet {
            rmr_context: region.rmr_context,
            target_address: region.registered_address,
            segment_length: MEMORY as u64,
        };
        let mut end = Self {
            ia,
            events,
            ep,
            memory,
            lmr: region.lmr,
            remote: own,
        };
        (0..32).for_each(|at| end.receive(at));
        end
    }

    /// Posts a receive of `MESSAGE` bytes into the given slot of the memory.
    fn receive(&mut self, slot: usize) {
        let slice = self
            .ia
            .lmr_slice(self.lmr, (slot * MESSAGE) as u64, MESSAGE as u64);
        let cookie = DtoCookie(slot as u64);
        self.ia
            .ep_post_recv(self.ep, &[slice.expect("a slice")], cookie, FLAGS)
            .expect("a receive");
    }

    fn send(&mut self, what: u8) {
        const OUTBOX: usize = 32 * MESSAGE;
        self.memory.write_from(OUTBOX, &[what]).expect("written");
        let slice = self.ia.lmr_slice(self.lmr, OUTBOX as u64, MESSAGE as u64);
        self.ia
            .ep_post_send(
                self.ep,
                &[slice.expect("a slice")],
                DtoCookie(u64::MAX),
                FLAGS,
            )
            .expect("a Send");
    }

    fn write(&mut self, bytes: usize) {
        let remote = RmrTriplet {
            segment_length: bytes as u64,
            ..self.remote
        };
        let slice = self.ia.lmr_slice(self.lmr, 0, bytes as u64);
        self.ia
            .ep_post_rdma_write(
                self.ep,
                &[slice.expect("a slice")],
                DtoCookie(u64::MAX),
                &remote,
                FLAGS,
            )
            .expect("an RDMA Write");
    }

    fn event(&mut self, polls: bool) -> Event {
        if !polls {
            return self
                .ia
                .evd_wait(self.events, PATIENCE, 1)
                .expect("an event")
                .0;
        }
        loop {
            if let Some(event) = self.ia.evd_dequeue(self.events).expect("a look") {
                return event;
            }
        }
    }

    /// Returns the first byte of the next received message, and posts the receive again. Returns `None` if the
    /// connection has ended.
    fn message(&mut self, polls: bool) -> Option<u8> {
        loop {
            let Event::Dto(done) = self.event(polls) else {
                return None;
            };
            if done.status == DtoStatus::ErrFlushed {
                continue;
            }
            assert_eq!(done.status, DtoStatus::Success);
            if done.cookie == DtoCookie(u64::MAX) {
                continue;
            }
            let slot = usize::try_from(done.cookie.0).expect("a slot");
            let first = self.memory.read(slot * MESSAGE, 1).expect("read")[0];
            self.receive(slot);
            return Some(first);
        }
    }

    fn completion(&mut self) {
        let Event::Dto(done) = self.event(true) else {
            panic!("no completion");
        };
        assert_eq!(done.status, DtoStatus::Success);
    }

    fn listen(&mut self) {
        self.ia
            .psp_create(SERVICE, self.events, PspFlags::CONSUMER)
            .expect("a PSP");
    }

    fn accept(&mut self) {
        let Event::ConnectionRequest(request) = self.event(false) else {
            panic!("no request");
        };
        let mut place = self.remote.rmr_context.to_be_bytes().to_vec();
        place.extend(self.remote.target_address.to_be_bytes());
        self.ia
            .cr_accept(request.cr, Some(self.ep), &place)
            .expect("accepted");
    }

    fn connect(&mut self, address: std::net::IpAddr) {
        let (best, none) = (Qos::BEST_EFFORT, ConnectFlags::empty());
        self.ia
            .ep_connect(self.ep, address, SERVICE, PATIENCE, b"", best, none)
            .expect("a connect");
    }

    fn connected(&mut self) {
        let event = self.event(false);
        assert!(matches!(event, Event::Connection(_)), "{event:?}");
        let place = self.ia.ep_private_data(self.ep).expect("a place").to_vec();
        if let Some((context, address)) = place.split_first_chunk() {
            self.remote.rmr_context = u32::from_be_bytes(*context);
            let address = address.first_chunk().expect("an address");
            self.remote.target_address = u64::from_be_bytes(*address);
        }
    }
}

/// Runs `work`. Returns the elapsed time, and the CPU time that this process used meanwhile.
fn measured(work: impl FnOnce()) -> (Duration, Duration) {
    let used = || {
        let usage = getrusage(UsageWho::RUSAGE_SELF).expect("known");
        let micros = |time: nix::sys::time::TimeVal| {
            Duration::from_secs(time.tv_sec().unsigned_abs())
                + Duration::from_micros(time.tv_usec().unsigned_abs())
        };
        micros(usage.user_time()) + micros(usage.system_time())
    };
    let (before, began) = (used(), Instant::now());
    work();
    let passed = began.elapsed();
    (passed, used() - before)
}

/// Prints the best of several rounds as a row of the table.
fn row(what: &str, operations: usize, bytes: usize, mut work: impl FnMut()) {
    let rounds: Vec<_> = (0..ROUNDS).map(|_| measured(&mut work)).collect();
    let best = |of: fn(&(Duration, Duration)) -> Duration| {
        rounds.iter().map(of).min().expect("a round").as_secs_f64()
    };
    let (passed, used) = (best(|round| round.0), best(|round| round.1));
    let per = |seconds: f64| seconds * 1e6 / operations as f64;
    let rate = if bytes == 0 {
        String::new()
    } else {
        let all = (operations * bytes) as f64;
        format!("{:.2} GB/s", all / passed / 1e9)
    };
    println!(
        "{what:<44} {:>9.2} us {:>9.2} us {rate:>10}",
        per(passed),
        per(used)
    );
}

fn writes(place: &str, end: &mut End, times: usize) {
    row(
        &format!("{place}: RDMA Write, 4 KiB, one at a time"),
        times,
        4096,
        || {
            for _ in 0..times {
                end.write(4096);
                end.completion();
            }
        },
    );
    for bytes in [4096, 64 << 10] {
        row(
            &format!("{place}: RDMA Write, {} KiB, {DEPTH} deep", bytes >> 10),
            times,
            bytes,
            || {
                (0..DEPTH).for_each(|_| end.write(bytes));
                for _ in DEPTH..times {
                    end.completion();
                    end.write(bytes);
                }
                (0..DEPTH).for_each(|_| end.completion());
            },
        );
    }
}

/// Connects server and client.
fn connected(mut server: End, mut client: End) -> [End; 2] {
    server.listen();
    client.connect(server.ia.query().ia.ia_address);
    server.accept();
    client.connected();
    server.connected();
    [server, client]
}

fn in_one_process() {
    let [server, client] = ["sim:bench-server", "sim:bench-client"].map(End::open);
    let [server, mut client] = connected(server, client);
    writes("one process", &mut client, 4096);
    ia_close(client.ia, CloseFlags::Abrupt).expect("closed");
    ia_close(server.ia, CloseFlags::Abrupt).expect("closed");
}

/// Measures one pair alone, and then two pairs at once, each with its own thread and its own simulator.
fn pairs() {
    const TIMES: usize = 16_384;
    let fabrics = [1, 2].map(Fabric::pair);
    let mut pairs = fabrics.each_ref().map(|fabric| {
        let [server, client] = [0, 1].map(|side| End::of(fabric.open(side).expect("an IA")));
        connected(server, client)
    });
    fn run([_, client]: &mut [End; 2]) {
        (0..DEPTH).for_each(|_| client.write(4096));
        for _ in DEPTH..TIMES {
            client.completion();
            client.write(4096);
        }
        (0..DEPTH).for_each(|_| client.completion());
    }
    row("one pair: RDMA Write, 4 KiB, 16 deep", TIMES, 4096, || {
        run(&mut pairs[0]);
    });
    row(
        "two pairs: RDMA Write, 4 KiB, 16 deep",
        2 * TIMES,
        4096,
        || {
            thread::scope(|scope| {
                for pair in &mut pairs {
                    scope.spawn(|| run(pair));
                }
            });
        },
    );
    for end in pairs.into_iter().flatten() {
        ia_close(end.ia, CloseFlags::Abrupt).expect("closed");
    }
}

fn name(side: &str, number: u8, wire: &Path) -> String {
    let wire = wire.display();
    format!("sim:{side},mac=02:00:00:00:09:0{number},link=unix:{wire}")
}

/// Runs the peer process (`--peer`): accepts the connection, and obeys messages until it ends.
fn peer(wire: &Path) {
    let mut end = End::open(&name("peer", 2, wire));
    end.listen();
    println!("{}", end.ia.query().ia.ia_address);
    end.accept();
    end.connected();
    let mut polls = false;
    loop {
        match end.message(polls) {
            Some(POLL) => polls = true,
            Some(SLEEP) => polls = false,
            Some(ECHO) => end.send(ECHO),
            Some(_) | None => break,
        }
    }
    let _ = ia_close(end.ia, CloseFlags::Abrupt);
}

struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

fn between_processes() {
    use std::io::BufRead as _;
    let folder = tempfile::tempdir().expect("a folder");
    let wire = folder.path().join("wire");
    let child = Command::new(std::env::current_exe().expect("a name"))
        .arg("--peer")
        .arg(&wire)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("a process");
    let mut peer = Peer(child);
    let mut address = String::new();
    let said = peer.0.stdout.take().expect("a pipe");
    std::io::BufReader::new(said)
        .read_line(&mut address)
        .expect("an address");
    let mut end = End::open(&name("here", 1, &wire));
    end.connect(address.trim().parse().expect("an address"));
    end.connected();
    writes("two processes", &mut end, 512);
    for (how, polls) in [("asleep", false), ("polled", true)] {
        end.send(if polls { POLL } else { SLEEP });
        let times = 256;
        row(
            &format!("two processes: ping-pong, 64 bytes, {how}"),
            times,
            0,
            || {
                for _ in 0..times {
                    end.send(ECHO);
                    end.message(polls).expect("an answer");
                }
            },
        );
    }
    end.send(END);
    let _over = peer.0.wait();
}

fn bare_sockets() {
    let (one, other) = UnixDatagram::pair().expect("sockets");
    let times = 4096;
    row(
        "bare sockets: ping-pong, 64 bytes, asleep",
        times,
        0,
        || {
            thread::scope(|scope| {
                let echo = other.try_clone().expect("a descriptor");
                scope.spawn(move || {
                    let mut bytes = [0; MESSAGE];
                    for _ in 0..times {
                        echo.recv(&mut bytes).expect("received");
                        echo.send(&bytes).expect("sent");
                    }
                });
                let mut bytes = [0; MESSAGE];
                for _ in 0..times {
                    one.send(&bytes).expect("sent");
                    one.recv(&mut bytes).expect("received");
                }
            });
        },
    );
    row("bare sockets: 4 KiB, one way", times, 4096, || {
        thread::scope(|scope| {
            let ours = other.try_clone().expect("a descriptor");
            scope.spawn(move || {
                let mut bytes = [0; 4096];
                (0..times).for_each(|_| {
                    ours.recv(&mut bytes).expect("received");
                });
            });
            (0..times).for_each(|_| {
                one.send(&[1; 4096]).expect("sent");
            });
        });
    });
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, wire] = &arguments[..]
        && flag == "--peer"
    {
        return peer(Path::new(wire));
    }
    let wanted = |what: &str| {
        let mut named = arguments.iter().filter(|word| !word.starts_with("--"));
        named.clone().next().is_none() || named.any(|word| word == what)
    };
    println!("{:<44} {:>12} {:>12} {:>10}", "", "each", "processor", "");
    if wanted("one") {
        in_one_process();
    }
    if wanted("pairs") {
        pairs();
    }
    if wanted("two") {
        between_processes();
    }
    if wanted("bare") {
        bare_sockets();
    }
}
