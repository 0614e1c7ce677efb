//! Tests of reliable connections on a wire that loses and reorders packets: throughput, and the numbers of timeouts and
//! NAKs.
//!
//! The workload is that of a storage protocol with concurrent exchanges. An exchange is a command by Send, data by
//! Write, by Read or inside the command, and a response by Send. Time is virtual, and only reordered frames are
//! delayed. So all time that passes is waiting time for timers and reordered frames.

use hw_sim::link::{Faults, Link, LinkFaults};
use hw_sim::q_counters::QCounter;

use crate::rc_support::*;

/// Number of data bytes of one exchange.
const BYTES: u32 = 4096;
/// Number of exchanges of one run.
const EXCHANGES: usize = 2_000;
/// ACK timeout exponent: 4.096 µs · 2^17 is 537 ms. Linux' RDMA-CM uses this value on RoCE (`CMA_IBOE_PACKET_LIFETIME`
/// plus one).
const ACK_TIMEOUT: u32 = 17;

/// Way in which the data of an exchange is transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Data {
    /// The target writes the data before it responds.
    ByWrite,
    /// The target reads the data before it responds.
    ByRead,
    /// The command contains the data.
    InCommand,
}

/// Result of one run.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    /// Virtual time in ns until the last exchange was done.
    took: u64,
    done: usize,
    timeouts: u32,
    early: u32,
    sequence_naks: u32,
    implied_naks: u32,
}

impl Outcome {
    fn rate(&self) -> u64 {
        self.done as u64 * 1_000_000_000 / self.took.max(1)
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            timeouts,
            early,
            sequence_naks,
            implied_naks,
            ..
        } = self;
        write!(
            f,
            "{}/s {timeouts} {early} {sequence_naks} {implied_naks}",
            self.rate()
        )
    }
}

/// State of one run: a host (A) and a target (B).
struct World {
    pair: Pair,
    data: Data,
    depth: usize,
    /// Number of CQEs processed on each side.
    seen: [usize; 2],
    /// Number of responses received.
    done: usize,
    begun: usize,
}

impl World {
    fn new(seed: u64, faults: Faults, data: Data, depth: usize, early: bool) -> Self {
        let options = Options {
            mtu_code: 3,
            ack_timeout: ACK_TIMEOUT,
            log_sra_max: 4,
            log_rra_max: 4,
            ..Options::default()
        };
        let mut pair = Pair::with(&options);
        pair.link = Link::new(seed, LinkFaults::both(faults));
        for side in [&mut pair.a, &mut pair.b] {
            side.host.retransmits_early = early;
        }
        for _ in 0..2 * depth {
            pair.a.post_receive(&[(KEY, DATA, 64)]);
            pair.b.post_receive(&[(KEY, DATA, 64 + BYTES)]);
        }
        Self {
            pair,
            data,
            depth,
            seen: [0; 2],
            done: 0,
            begun: 0,
        }
    }

    fn begin(&mut self) {
        if self.begun == EXCHANGES {
            return;
        }
        self.begun += 1;
        let bytes = match self.data {
            Data::InCommand => 64 + BYTES,
            Data::ByWrite | Data::ByRead => 64,
        };
        self.pair.a.post(&Wqe::send(DATA, bytes).unsignalled());
    }

    fn answer(&mut self) {
        self.pair.b.post(&Wqe::send(DATA, 16).unsignalled());
    }

    /// Handles a completion at the host: a response has arrived.
    fn at_host(&mut self) {
        self.done += 1;
        self.pair.a.post_receive(&[(KEY, DATA, 64)]);
        self.begin();
    }

    /// Handles a completion at the target: a command has arrived, or a read is complete.
    fn at_target(&mut self, is_receive: bool) {
        if is_receive {
            self.pair.b.post_receive(&[(KEY, DATA, 64 + BYTES)]);
        }
        match (self.data, is_receive) {
            (Data::ByWrite, _) => {
                self.pair
                    .b
                    .place(&Wqe::write(DATA, BYTES, DATA, KEY).unsignalled());
                self.answer();
            }
            (Data::ByRead, true) => {
                self.pair.b.post(&Wqe::read(DATA, BYTES, DATA, KEY));
            }
            (Data::ByRead, false) | (Data::InCommand, _) => self.answer(),
        }
    }

    /// Processes one completion as the host's or target's program would. Returns false if there is none.
    fn attend(&mut self) -> bool {
        let (a, b) = (&self.pair.a.host.completions, &self.pair.b.host.completions);
        if let Some((_, cqe, _)) = a.get(self.seen[0]) {
            assert_eq!(result(cqe).1, 0);
            self.seen[0] += 1;
            self.at_host();
        } else if let Some((queue, cqe, _)) = b.get(self.seen[1]) {
            assert_eq!(result(cqe).1, 0);
            let is_receive = *queue == CQN_RECEIVE;
            self.seen[1] += 1;
            self.at_target(is_receive);
        } else {
            return false;
        }
        true
    }

    fn run(mut self) -> Outcome {
        for _ in 0..self.depth {
            self.begin();
        }
        while self.done < EXCHANGES {
            self.pair.run_until_idle();
            while self.attend() {}
            if self.pair.a.qp.pending() || self.pair.b.qp.pending() {
                continue;
            }
            if let Some(next) = self.pair.next_event() {
                self.pair.run_until(next);
            }
        }
        let count = |what| {
            let hosts = [&self.pair.a.host, &self.pair.b.host];
            let all = hosts.iter().flat_map(|host| &host.counted);
            all.filter(|&(&(_, counter), _)| counter == what)
                .map(|(_, &times)| times)
                .sum()
        };
        Outcome {
            took: self.pair.now,
            done: self.done,
            timeouts: count(QCounter::LocalAckTimeoutErr),
            early: count(QCounter::RoceAdpRetransTo),
            sequence_naks: count(QCounter::PacketSeqErr),
            implied_naks: count(QCounter::ImpliedNakSeqErr),
        }
    }
}

const LOSS: Faults = Faults {
    loss_ppm: 10_000,
    ..Faults::NONE
};
const REORDER: Faults = Faults {
    reorder_ppm: 10_000,
    reorder_ns: 50_000,
    ..Faults::NONE
};
const BOTH: Faults = Faults {
    loss_ppm: 10_000,
    ..REORDER
};

/// On a lossy wire, a timeout takes milliseconds with adaptive retransmission and half a second without. With one
/// exchange at a time, no packet follows a lost command or response, so only a timer detects the loss. With 16
/// concurrent exchanges, usually the next packet reveals the loss.
#[test]
fn a_wire_of_losses_costs_milliseconds_with_adaptive_retransmission_and_half_seconds_without() {
    println!(
        "faults, data, depth: exchanges a second, ACK time-outs, early ones, sequence NAKs, implied NAKs"
    );
    for (name, faults) in [("loss", LOSS), ("reordering", REORDER), ("both", BOTH)] {
        for data in [Data::ByWrite, Data::ByRead, Data::InCommand] {
            for depth in [1, 16] {
                let [without, with] =
                    [false, true].map(|early| World::new(1, faults, data, depth, early).run());
                println!("{name}, {data:?}, {depth}: {without} -> {with}");
                assert_eq!(with.timeouts, 0, "{name} {data:?} {depth}");
                assert_eq!(without.early, 0);
                assert!(with.took <= without.took);
            }
        }
    }
}

/// Most losses with 16 concurrent exchanges are recovered by NAKs: the packet after a lost packet causes the NAK.
#[test]
fn most_losses_among_many_packets_are_recovered_by_naks() {
    for data in [Data::ByWrite, Data::ByRead, Data::InCommand] {
        let outcome = World::new(1, LOSS, data, 16, true).run();
        let naks = outcome.sequence_naks + outcome.implied_naks;
        assert!(naks > 20 * outcome.early, "{data:?}: {outcome}");
    }
}
