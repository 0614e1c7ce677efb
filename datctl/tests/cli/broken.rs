//! Connections that are broken in five ways, and the evidence that a person finds with the monitor, the recorder and
//! `explain`, without the source. docs/broken-connections.md shows this evidence, and these tests compare the page with
//! the output.
//!
//! With `DAT_WRITE_PAGES=1` the tests write the page and the pictures. Times are virtual and all numbers come from a
//! seed, so that only the numbers of process and instance differ from run to run; these are replaced.

use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{fs, thread};

use driver::Device as _;
use hw_sim::{Fault, Faults, LinkFaults, SimConfig};
use udapl::fabric::Fabric;
use udapl::memory::{LmrCreated, LmrTriplet, RmrTriplet};
use udapl::recorder::Dump;
use udapl::{
    Adapter, CompletionFlags, ConnQual, ConnectFlags, DmaMemory, DtoCookie, EpEvds, EpHandle,
    EvdFlags, EvdHandle, Event, Ia, MemPrivFlags, PspFlags, Qos, Timeout,
};

use crate::served::{Process, datctl};

const QUALIFIER: ConnQual = ConnQual(0x1_0000_4401);
const LONG: Timeout = Timeout::from_micros(300_000_000);
const NONE: CompletionFlags = CompletionFlags::empty();
/// An address that is added and removed until the monitor reports it.
const PROBE: &str = "198.51.100.7";

struct Side {
    ia: Ia,
    evd: EvdHandle,
    ep: EpHandle,
    region: LmrCreated,
    _memory: DmaMemory,
}

/// Two adapters with one connection, and a monitor. The first adapter keeps recordings in a folder.
struct World {
    fabric: Fabric,
    sides: [Side; 2],
    folder: tempfile::TempDir,
    monitor: Receiver<String>,
    _control: udapl::control::Service,
}

impl World {
    fn new() -> Self {
        let wire = Faults {
            delay_ns: 2_000,
            ..Faults::NONE
        };
        let config = SimConfig::seeded(1);
        let fabric = Fabric::with(config, LinkFaults::both(wire), |kind| kind);
        let folder = tempfile::tempdir().expect("a folder");
        let kept = Fabric::options(0).recorder_folder(folder.path());
        let mut here = fabric.open_with(0, &kept).expect("an adapter");
        let there = fabric.open_with(1, &Fabric::options(1).recorder(true));
        let mut there = there.expect("an adapter");
        let socket = folder.path().join("control");
        let adapter = Adapter::of(&here);
        let control = udapl::control::serve(&adapter, &socket, <_>::default());
        let control = control.expect("a socket");
        let monitor = listen(&socket, &mut here);
        // Wait until adding and removing addresses has no more effects on the network.
        for _ in 0..100 {
            fabric.sim.advance(Duration::from_millis(100));
            here.progress();
            there.progress();
        }
        let sides = [here, there].map(side);
        let mut world = Self {
            fabric,
            sides,
            folder,
            monitor,
            _control: control,
        };
        world.connect();
        world
    }

    fn pump(&mut self, of: usize) {
        self.sides[..of]
            .iter_mut()
            .for_each(|side| side.ia.progress());
        self.fabric.sim.advance(Duration::from_micros(100));
    }

    /// Returns the next event of a side. Only the first `alive` sides make progress meanwhile.
    fn event(&mut self, side: usize, alive: usize) -> Event {
        for _ in 0..1_000_000 {
            let Side { ia, evd, .. } = &mut self.sides[side];
            if let Some(event) = ia.evd_dequeue(*evd).expect("an EVD") {
                return event;
            }
            self.pump(alive);
        }
        panic!("no event")
    }

    fn connect(&mut self) {
        let address = self.sides[1].ia.query().ia.ia_address;
        let Side { ia, ep, .. } = &mut self.sides[0];
        let (best, none) = (Qos::BEST_EFFORT, ConnectFlags::empty());
        let asked = ia.ep_connect(*ep, address, QUALIFIER, LONG, b"", best, none);
        asked.expect("it starts");
        let Event::ConnectionRequest(request) = self.event(1, 2) else {
            panic!("no request");
        };
        let Side { ia, ep, .. } = &mut self.sides[1];
        ia.cr_accept(request.cr, Some(*ep), b"").expect("accepted");
        for side in [0, 1] {
            assert!(matches!(self.event(side, 2), Event::Connection(_)));
        }
        // One message arrives before anything breaks.
        self.receive(1);
        self.send(1);
        for side in [0, 1] {
            assert!(matches!(self.event(side, 2), Event::Dto(_)));
        }
    }

    fn receive(&mut self, cookie: u64) {
        let Side { ia, ep, region, .. } = &mut self.sides[1];
        let posted = ia.ep_post_recv(*ep, &[whole(region)], DtoCookie(cookie), NONE);
        posted.expect("a receive");
    }

    fn send(&mut self, cookie: u64) {
        let Side { ia, ep, region, .. } = &mut self.sides[0];
        let posted = ia.ep_post_send(*ep, &[whole(region)], DtoCookie(cookie), NONE);
        posted.expect("a Send");
    }

    fn write(&mut self, cookie: u64) {
        let region = &self.sides[1].region;
        let remote = RmrTriplet {
            rmr_context: region.rmr_context,
            target_address: region.registered_address,
            segment_length: 64,
        };
        let Side { ia, ep, region, .. } = &mut self.sides[0];
        let posted = ia.ep_post_rdma_write(*ep, &[whole(region)], DtoCookie(cookie), &remote, NONE);
        posted.expect("an RDMA Write");
    }

    /// Waits for the event of the broken connection at side 0. Only the first `alive` sides make progress meanwhile.
    fn breaks(&mut self, alive: usize) {
        loop {
            if let Event::Connection(event) = self.event(0, alive) {
                assert_eq!(event.kind, udapl::ConnectionEventKind::Broken);
                break;
            }
        }
        // The sides that are alive handle their remaining events.
        (0..20).for_each(|_| self.pump(alive));
    }

    /// Returns the path of the recording that was written when the connection broke.
    fn kept(&self) -> String {
        let entries = fs::read_dir(self.folder.path()).expect("a folder");
        let mut paths = entries.map(|entry| entry.expect("an entry").path());
        let kept = paths.find(|path| path.extension().is_some_and(|end| end == "pcapng"));
        kept.expect("it is kept").display().to_string()
    }

    fn function(&self, side: usize) -> std::sync::Arc<hw_sim::SimFunction> {
        self.fabric.function(side)
    }
}

fn whole(region: &LmrCreated) -> LmrTriplet {
    LmrTriplet {
        lmr_context: region.lmr_context,
        virtual_address: region.registered_address,
        segment_length: 64,
    }
}

fn side(mut ia: Ia) -> Side {
    let flags = EvdFlags::DTO | EvdFlags::CONNECTION | EvdFlags::CR;
    let evd = ia.evd_create(64, flags).expect("an EVD");
    let zone = ia.pz_create().expect("a PZ");
    let ep = ia.ep_create(Some(zone), EpEvds::all(evd), None);
    let listens = ia.psp_create(QUALIFIER, evd, PspFlags::CONSUMER);
    listens.expect("a service point");
    let memory = udapl::alloc(&ia, 4096).expect("memory");
    let region = ia.lmr_create(memory.clone(), zone, MemPrivFlags::all());
    Side {
        ep: ep.expect("an endpoint"),
        region: region.expect("a region"),
        ia,
        evd,
        _memory: memory,
    }
}

/// Starts a monitor, waits until it reports an event, and returns the receiver of its further lines.
fn listen(socket: &Path, ia: &mut Ia) -> Receiver<String> {
    let (to, lines) = channel();
    let mut monitor = Process::start(&["monitor", &socket.display().to_string()]);
    let reader = thread::spawn(move || {
        loop {
            let line = monitor.line();
            if line.is_empty() {
                return monitor.status();
            }
            if to.send(line).is_err() {
                return None;
            }
        }
    });
    let address: std::net::IpAddr = PROBE.parse().expect("an address");
    while let Err(none) = lines.try_recv() {
        if none == TryRecvError::Disconnected {
            let status = reader.join().expect("no panic");
            panic!("the monitor has ended before its first line, with status {status:?}");
        }
        ia.address_add(address.into()).expect("it is new");
        ia.address_remove(address).expect("it is there");
        ia.progress();
        thread::yield_now();
    }
    lines
}

/// The evidence of a broken connection.
struct Seen {
    monitor: String,
    decode: String,
    svg: String,
}

/// Collects the evidence of a broken connection. `peer` is true if the peer's recorder can still be read.
fn collect_evidence(world: &mut World, peer: bool) -> Seen {
    let monitor = loop {
        let line = world.monitor.recv_timeout(Duration::from_secs(300));
        let line = line.expect("the monitor tells of it");
        if line.contains(" connection Broken") {
            break line;
        }
    };
    let (_, monitor) = monitor.split_once(" connection ").expect("a connection");
    let here = world.kept();
    let svg = world.folder.path().join("ladder.svg");
    let [there, drawn] =
        [world.folder.path().join("there"), svg.clone()].map(|path| path.display().to_string());
    let mut arguments = vec!["decode", &here, "--svg", &drawn];
    if peer {
        let dump = Dump::of(&world.sides[1].ia).expect("it records");
        let file = fs::File::create(&there).expect("a file");
        dump.write_pcapng(file).expect("written");
        arguments.extend(["--peer", &there]);
    }
    let output = datctl(&arguments);
    assert!(output.status.success(), "{output:?}");
    let decode = String::from_utf8(output.stdout).expect("text");
    let svg = fs::read_to_string(svg).expect("a picture");
    let same = |text: &str| {
        let own = world.sides[0].ia.number();
        text.replace(&format!("instance {own} "), "instance 1 ")
            .replace(&format!("process {}", std::process::id()), "process 4711")
    };
    Seen {
        monitor: format!("connection {monitor}"),
        decode: same(decode.trim_end()),
        svg: same(&svg),
    }
}

/// Checks that Wireshark dissects the file, and warns only about the UDP checksum, which RoCE v2 omits.
fn dissected(file: &str) {
    const WARNING: u32 = 0x0060_0000;
    let fields = [
        "frame.protocols",
        "infiniband.mad.attributeid",
        "udp.checksum",
        "_ws.expert.severity",
    ];
    let mut tshark = Command::new("tshark");
    tshark.args(["-r", file, "-T", "fields"]);
    let output = tshark
        .args(fields.map(|field| ["-e", field]).concat())
        .output();
    let Ok(output) = output else {
        println!("tshark is not installed: nobody else reads the dumps");
        return;
    };
    let text = String::from_utf8(output.stdout).expect("text");
    let (mut messages, mut notes) = (Vec::new(), 0);
    for line in text.lines() {
        let [protocols, attribute, checksum, severities] = line.split('\t').collect::<Vec<_>>()[..]
        else {
            panic!("{line}");
        };
        notes += usize::from(protocols.ends_with(":json"));
        messages.extend((!attribute.is_empty()).then_some(attribute));
        let complains = severities.split(',').any(|severity| {
            let severity = severity.parse::<u32>();
            severity.is_ok_and(|severity| severity >= WARNING)
        });
        assert!(!complains || checksum == "0x0000", "{line}");
        assert!(!protocols.contains("malformed"), "{line}");
    }
    // The attribute IDs of REQ, REP and RTU (IBTA volume 1, chapter 16, "Attributes").
    assert_eq!(messages, ["0x0010", "0x0013", "0x0014"]);
    assert!(notes > 10, "{text}");
}

fn explained(word: &str) -> String {
    let output = datctl(&["explain", word]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    text.trim_end().to_owned()
}

static PAGE: Mutex<()> = Mutex::new(());

/// Compares the evidence with the page and the picture of this cause, or writes them.
fn is_on_the_page(cause: &str, word: &str, seen: &Seen) {
    let _alone = PAGE.lock().unwrap_or_else(PoisonError::into_inner);
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let (page, picture) = (
        docs.join("broken-connections.md"),
        docs.join(format!("pictures/{cause}.svg")),
    );
    let writes = std::env::var_os("DAT_WRITE_PAGES").is_some();
    let explain = explained(word);
    let blocks = [
        ("monitor", &seen.monitor),
        ("explain", &explain),
        ("decode", &seen.decode),
    ];
    let mut text = fs::read_to_string(&page).expect("the page");
    for (what, lines) in blocks {
        let begin = format!("```text {cause} {what}\n");
        let (before, rest) = text.split_once(&begin).expect(&begin);
        let (there, after) = rest.split_once("\n```").expect("its end");
        if !writes {
            assert_eq!(
                there, lines,
                "{cause}: {what} (DAT_WRITE_PAGES=1 writes it)"
            );
        }
        text = format!("{before}{begin}{lines}\n```{after}");
    }
    if writes {
        fs::write(&page, text).expect("the page");
        fs::write(&picture, &seen.svg).expect("the picture");
    }
    let there = fs::read_to_string(&picture).expect("the picture");
    assert!(there == seen.svg, "{} is another one", picture.display());
}

/// Checks that the text contains all of these words.
fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is missing: {text}");
    }
}

#[test]
fn a_peer_that_was_killed_answers_nothing_and_says_no_goodbye() {
    let mut world = World::new();
    // The kernel resets the function of a dead process.
    world.function(1).reset();
    world.write(2);
    world.breaks(1);
    let seen = collect_evidence(&mut world, false);
    says(&seen.monitor, &["DAT_DTO_ERR_TRANSPORT", "syndrome 0x15"]);
    says(
        &seen.decode,
        &["-> RDMA Write posted, 64 bytes", "DAT_DTO_ERR_TRANSPORT"],
    );
    assert!(!seen.decode.contains("DREQ "), "{}", seen.decode);
    assert!(!seen.decode.contains("the port is down"), "{}", seen.decode);
    says(&seen.svg, &["no answer"]);
    is_on_the_page("peer-killed", "0x15", &seen);
}

#[test]
fn a_link_that_was_cut_is_seen_before_the_request_that_fails() {
    let mut world = World::new();
    let function = world.function(0);
    world.fabric.sim.inject(&function, &Fault::LinkDown);
    world.pump(2);
    world.write(2);
    world.breaks(2);
    let seen = collect_evidence(&mut world, true);
    says(&seen.monitor, &["DAT_DTO_ERR_TRANSPORT"]);
    says(&seen.decode, &["the port is down", "DAT_DTO_ERR_TRANSPORT"]);
    is_on_the_page("link-cut", "0x15", &seen);
}

#[test]
fn a_region_that_was_revoked_is_refused_by_the_peer() {
    let mut world = World::new();
    let Side { ia, region, .. } = &mut world.sides[1];
    ia.lmr_free(region.lmr).expect("it is gone");
    world.write(2);
    world.breaks(2);
    let seen = collect_evidence(&mut world, true);
    dissected(&world.kept());
    says(&seen.monitor, &["DAT_DTO_ERR_REMOTE_ACCESS"]);
    says(&seen.decode, &["rmr_context ", "DAT_DTO_ERR_REMOTE_ACCESS"]);
    says(&seen.svg, &["refused"]);
    is_on_the_page("rkey-revoked", "DAT_DTO_ERR_REMOTE_ACCESS", &seen);
}

#[test]
fn a_receiver_that_is_never_ready_has_posted_no_receive() {
    let mut world = World::new();
    world.send(2);
    world.breaks(2);
    let seen = collect_evidence(&mut world, true);
    says(&seen.monitor, &["DAT_DTO_ERR_RECEIVER_NOT_READY"]);
    says(&seen.decode, &["DAT_DTO_ERR_RECEIVER_NOT_READY"]);
    assert_eq!(
        seen.decode.matches("receive posted").count(),
        1,
        "one for two Sends: {}",
        seen.decode
    );
    is_on_the_page(
        "receiver-not-ready",
        "DAT_DTO_ERR_RECEIVER_NOT_READY",
        &seen,
    );
}

#[test]
fn a_function_that_was_removed_takes_its_connections_with_it() {
    let mut world = World::new();
    let function = world.function(0);
    world.fabric.sim.inject(&function, &Fault::SurpriseRemoval);
    world.write(2);
    world.breaks(2);
    let seen = collect_evidence(&mut world, true);
    says(&seen.monitor, &["the adapter is dead"]);
    says(&seen.decode, &["the device is dead", "the adapter is dead"]);
    is_on_the_page("function-removed", "DAT_DTO_ERR_FLUSHED", &seen);
}
