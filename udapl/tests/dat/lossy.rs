//! Two endpoints over a wire that loses, duplicates, delays, reorders and corrupts frames, with many seeds.
//!
//! Both sides send, write and read at random, partly with immediate data, and add to a counter at the other side. A
//! model checks safety at every step: each DTO completes exactly once, in the order of posting, with the posted bytes.
//! After half of the DTOs, the faults stop, and then everything must complete. The same seed gives the same event log,
//! byte for byte.
//!
//! `SIM_SEED=N` runs one seed only; `cargo xtask sim --seed N` also prints the event log.

use std::collections::VecDeque;

use hw_sim::{Faults, LinkFaults};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use udapl::event::DtoDetail;
use udapl::{ConnectionEventKind, DtoCookie, DtoStatus, Event, MemPrivFlags, Timeout};

use crate::support::rdma::number;
use crate::support::{self, A, B, Buffer, NONE, Pair, PairConfig};

/// Number of DTOs that each side initiates.
const WORK: u64 = 60;
/// Maximum number of DTOs in flight for each side; each has its own slot in every buffer.
const WINDOW: usize = 8;
/// Number of receives that a side keeps posted.
const RECEIVES: usize = 16;
/// Size of a slot in bytes, and of the longest message.
const SLOT: usize = 8 * 1024;
/// Number of pumps (0.1 ms each) after which a run has failed.
const PATIENCE: usize = 400_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    Write,
    Read,
    /// Send with the DTO's number as immediate data.
    SendImmediate,
    /// RDMA Write with the DTO's number as immediate data.
    WriteImmediate,
    /// Adds one to the peer's counter.
    Count,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Send,
        Self::Write,
        Self::Read,
        Self::SendImmediate,
        Self::WriteImmediate,
        Self::Count,
    ];
}

#[derive(Clone, Copy, Debug)]
struct Work {
    number: u64,
    kind: Kind,
    bytes: usize,
}

impl Work {
    fn slot(self) -> usize {
        usize::try_from(self.number).expect("a count") % WINDOW * SLOT
    }
}

/// The DTOs that one side initiates, its buffers, and the expected results.
struct Flow {
    /// Source of sends and writes.
    source: Buffer,
    /// Destination of this side's reads.
    sink: Buffer,
    /// Destination of the peer's writes.
    written: Buffer,
    /// Source of the peer's reads.
    offered: Buffer,
    /// Destination of the peer's sends.
    inbox: Buffer,
    issued: u64,
    in_flight: VecDeque<Work>,
    /// Counter to which the peer adds.
    counter: Buffer,
    /// Number of additions by this side to the peer's counter.
    counted: u64,
    /// Expected length, detail and buffer contents of the peer's receives, oldest first.
    sent: VecDeque<(usize, DtoDetail, Vec<u8>)>,
    /// Number of this side's next receive to complete.
    next_receive: u64,
    completed: u64,
}

pub fn equal_faults(of_each: u32) -> Faults {
    Faults {
        loss_ppm: of_each,
        duplicate_ppm: of_each,
        reorder_ppm: of_each,
        corrupt_ppm: of_each,
        delay_ns: 2_000,
        jitter_ns: 3_000,
        reorder_ns: 40_000,
    }
}

/// Runs one seed to its end. Returns the event log.
fn run(seed: u64, faults: LinkFaults) -> Vec<u8> {
    let config = seeded(seed, faults);
    carried_out(Pair::unconnected(&config), seed)
}

pub fn seeded(seed: u64, faults: LinkFaults) -> PairConfig {
    let mut config = PairConfig {
        seed,
        faults,
        ..PairConfig::default()
    };
    for options in &mut config.options {
        // An ACK timeout of 4 ms instead of 537 ms: the test is about losses, not about waiting.
        options.ia.transport.ack_timeout = Some(10);
    }
    config
}

/// Connects a pair and executes the seed's actions. Returns the event log.
pub fn carried_out(mut pair: Pair, seed: u64) -> Vec<u8> {
    pair.connect();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut flows = [A, B].map(|side| {
        let [source, sink, written, offered] = [0; 4].map(|_| pair.buffer(side, WINDOW * SLOT));
        let inbox = pair.buffer(side, RECEIVES * SLOT);
        let pz = pair.sides[side].pz;
        let mut rights = MemPrivFlags::all();
        if pair.sides[side].ia.has_atomics() {
            rights |= MemPrivFlags::REMOTE_ATOMIC;
        }
        let counter = pair.buffer_in(side, 8, pz, rights);
        counter.write(0, &[0; 8]);
        for (buffer, salt) in [(&source, 1), (&offered, 2)] {
            buffer.write(
                0,
                &support::pattern(seed ^ (salt << 32) ^ side as u64, WINDOW * SLOT),
            );
        }
        Flow {
            source,
            sink,
            written,
            offered,
            inbox,
            issued: 0,
            in_flight: VecDeque::new(),
            counter,
            counted: 0,
            sent: VecDeque::new(),
            next_receive: 0,
            completed: 0,
        }
    });
    for side in [A, B] {
        for number in 0..RECEIVES as u64 {
            post_receive(&mut pair, side, &flows[side], number);
        }
    }
    for turn in 0.. {
        assert!(
            turn < PATIENCE,
            "stuck: {:?}",
            flows
                .each_ref()
                .map(|flow| (flow.completed, &flow.in_flight))
        );
        for side in [A, B] {
            issue(&mut pair, side, &mut flows, &mut random);
            take_completions(&mut pair, side, &mut flows);
        }
        if flows.iter().map(|flow| flow.completed).sum::<u64>() >= WORK {
            pair.fabric.sim.heal();
        }
        if flows
            .iter()
            .all(|flow| flow.completed == WORK && flow.in_flight.is_empty())
            && flows.iter().all(|flow| flow.sent.is_empty())
        {
            break;
        }
        pair.pump();
    }
    pair.disconnect();
    pair.assert_no_complaints();
    pair.fabric.sim.event_log()
}

fn post_receive(pair: &mut Pair, side: usize, flow: &Flow, number: u64) {
    let slot = usize::try_from(number).expect("a count") % RECEIVES * SLOT;
    let ep = pair.sides[side].ep;
    pair.sides[side]
        .ia
        .ep_post_recv(ep, &[flow.inbox.part(slot, SLOT)], DtoCookie(number), NONE)
        .expect("a receive");
}

fn issue(pair: &mut Pair, side: usize, flows: &mut [Flow; 2], random: &mut ChaCha8Rng) {
    while flows[side].issued < WORK && flows[side].in_flight.len() < WINDOW {
        let mut kind = Kind::ALL[random.random_range(0..Kind::ALL.len())];
        if kind == Kind::Count && !pair.sides[side].ia.has_atomics() {
            kind = Kind::Read;
        }
        let bytes = match random.random_range(0..8) {
            _ if kind == Kind::Count => 8,
            0 => 0,
            1 => 1,
            2 => 1023,
            3 => 1024,
            4 => 1025,
            _ => random.random_range(0..=SLOT),
        };
        let work = Work {
            number: flows[side].issued,
            kind,
            bytes,
        };
        let (own, peer) = (&flows[side], &flows[1 - side]);
        let ep = pair.sides[side].ep;
        let ia = &mut pair.sides[side].ia;
        let (target, origin) = (
            peer.written.remote(work.slot(), bytes),
            peer.offered.remote(work.slot(), bytes),
        );
        let from = [own.source.part(work.slot(), bytes)];
        let immediate = u32::try_from(work.number).expect("a count");
        match kind {
            Kind::Send => ia.ep_post_send(ep, &from, DtoCookie(work.number), NONE),
            Kind::Write => ia.ep_post_rdma_write(ep, &from, DtoCookie(work.number), &target, NONE),
            Kind::SendImmediate => {
                ia.ep_post_send_immediate(ep, &from, DtoCookie(work.number), immediate, NONE)
            }
            Kind::WriteImmediate => {
                let cookie = DtoCookie(work.number);
                ia.ep_post_rdma_write_immediate(ep, &from, cookie, &target, immediate, NONE)
            }
            Kind::Count => {
                let (result, there) = (own.sink.part(work.slot(), 8), peer.counter.remote(0, 8));
                ia.ep_post_fetch_add(ep, &[result], DtoCookie(work.number), &there, 1, NONE)
            }
            Kind::Read => ia.ep_post_rdma_read(
                ep,
                &[own.sink.part(work.slot(), bytes)],
                DtoCookie(work.number),
                &origin,
                NONE,
            ),
        }
        .expect("a post");
        let flow = &mut flows[side];
        let sent = flow.source.read(work.slot(), bytes);
        flow.sent.extend(match kind {
            Kind::Send => Some((bytes, DtoDetail::None, sent)),
            Kind::SendImmediate => Some((bytes, DtoDetail::SendImmediate(immediate), sent)),
            Kind::WriteImmediate => Some((bytes, DtoDetail::WriteImmediate(immediate), Vec::new())),
            Kind::Write | Kind::Read | Kind::Count => None,
        });
        flow.in_flight.push_back(work);
        flow.issued += 1;
    }
}

fn take_completions(pair: &mut Pair, side: usize, flows: &mut [Flow; 2]) {
    while let Ok(Some(Event::Dto(done))) = {
        let evd = pair.sides[side].request;
        pair.sides[side].ia.evd_dequeue(evd)
    } {
        let work = flows[side]
            .in_flight
            .pop_front()
            .unwrap_or_else(|| panic!("{done:?} completes nothing"));
        assert_eq!(
            (done.cookie.0, done.status),
            (work.number, DtoStatus::Success),
            "{work:?} {done:?}"
        );
        assert_eq!(done.transferred_length, work.bytes as u64);
        let (own, peer) = (&flows[side], &flows[1 - side]);
        match work.kind {
            Kind::Send | Kind::SendImmediate => {}
            Kind::Count => {
                // Each addition is executed once, and in order: the previous value is the number of earlier additions.
                let before = number(own.counted);
                assert_eq!(own.sink.read(work.slot(), 8), before, "{work:?}");
                flows[side].counted += 1;
            }
            Kind::Write | Kind::WriteImmediate => assert_eq!(
                peer.written.read(work.slot(), work.bytes),
                own.source.read(work.slot(), work.bytes),
                "{work:?}"
            ),
            Kind::Read => assert_eq!(
                own.sink.read(work.slot(), work.bytes),
                peer.offered.read(work.slot(), work.bytes),
                "{work:?}"
            ),
        }
        flows[side].completed += 1;
    }
    while let Ok(Some(Event::Dto(done))) = {
        let evd = pair.sides[side].recv;
        pair.sides[side].ia.evd_dequeue(evd)
    } {
        let number = flows[side].next_receive;
        assert_eq!(
            (done.cookie.0, done.status),
            (number, DtoStatus::Success),
            "{done:?}"
        );
        let (bytes, detail, expected) = flows[1 - side]
            .sent
            .pop_front()
            .unwrap_or_else(|| panic!("{done:?} was never sent"));
        assert_eq!(
            (done.transferred_length, done.detail),
            (bytes as u64, detail)
        );
        let slot = usize::try_from(number).expect("a count") % RECEIVES * SLOT;
        assert_eq!(
            flows[side].inbox.read(slot, expected.len()),
            expected,
            "receive {number}"
        );
        flows[side].next_receive += 1;
        post_receive(pair, side, &flows[side], number + RECEIVES as u64);
    }
}

/// Returns up to two more seeds from the commit in `SIM_COMMIT`, which `cargo xtask test` sets.
fn seeds_of_the_commit() -> Vec<u64> {
    let commit = std::env::var("SIM_COMMIT").unwrap_or_default();
    let word = |at: usize| u64::from_str_radix(commit.get(at..at + 8)?, 16).ok();
    [0, 8].into_iter().filter_map(word).collect()
}

/// Runs the body for each seed (or only for `SIM_SEED`) and names the seed that fails.
fn for_seeds(count: u64, body: impl Fn(u64)) {
    let seeds: Vec<u64> = match std::env::var("SIM_SEED") {
        Ok(seed) => vec![seed.parse().expect("SIM_SEED is a number")],
        Err(_) => (0..count).chain(seeds_of_the_commit()).collect(),
    };
    for seed in seeds {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(seed)));
        if let Err(panic) = outcome {
            eprintln!("replay with: cargo xtask sim --seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Clauses: SEND-R4, RECV-R5, READ-11, WRITE-7, SRQ-21.
#[test]
fn dtos_complete_once_in_order_and_whole_over_a_wire_with_five_percent_of_every_fault() {
    let wire = LinkFaults {
        a_to_b: equal_faults(50_000),
        b_to_a: equal_faults(50_000),
    };
    for_seeds(64, |seed| {
        let log = run(seed, wire);
        if let Ok(path) = std::env::var("SIM_LOG") {
            std::fs::write(path, &log).expect("the event log is written");
        }
    });
}

#[test]
fn the_same_seed_gives_the_same_event_log_and_another_seed_another() {
    let wire = LinkFaults {
        a_to_b: equal_faults(50_000),
        b_to_a: equal_faults(20_000),
    };
    let (one, again, other) = (run(1, wire), run(1, wire), run(2, wire));
    assert!(one.len() > 10_000, "the log says something");
    assert!(one == again, "seed 1 gave two different logs");
    assert!(one != other, "seeds 1 and 2 gave the same log");
}

#[test]
fn a_wire_that_dies_breaks_both_ends_within_the_retries() {
    let mut pair = Pair::connected();
    let (from, ep) = (pair.buffer(A, 64), pair.sides[A].ep);
    let dead = Faults {
        loss_ppm: 1_000_000,
        ..Faults::NONE
    };
    pair.fabric.sim.set_faults(
        pair.fabric.link,
        LinkFaults {
            a_to_b: dead,
            b_to_a: dead,
        },
    );
    pair.sides[A]
        .ia
        .ep_post_send(ep, &[from.all()], DtoCookie(9), NONE)
        .expect("a post");
    let done = pair.wait_request(A);
    assert_eq!((done.cookie.0, done.status), (9, DtoStatus::ErrTransport));
    pair.expect_connection(A, ConnectionEventKind::Broken);
    assert!(
        pair.sides[A]
            .ia
            .evd_wait(pair.sides[A].connect, Timeout::from_micros(1000), 1)
            .is_err()
    );
}
