//! Arbitrary recordings of simulated runs: a replay ends with an error, or after fewer than 2^24 records.
//!
//! The first harness uses arbitrary bytes as a file. The second harness uses a well-formed file with arbitrary bytes as
//! records. The third harness replays meaningful records in any order, without comparing results. The records describe
//! cards, their memory, registers and configuration space, time, DMA, and switches with any cabling.

use std::io::Cursor;
use std::time::Duration;

use bolero::{TypeGenerator, check, produce};
use hw_sim::record::{CableEnd, Header, Record, Replay, ReplayError, packed};
use hw_sim::switch::{Buffer, Pfc, Red, SwitchConfig, Unknown};
use hw_sim::{CardRules, Fault, Faults, LinkFaults, PortQos, Profile, Reaction};

/// One record of a recording.
#[derive(Clone, Debug, TypeGenerator)]
enum Part {
    Card {
        vectors: u16,
        bar: u8,
    },
    Link {
        ends: [u8; 2],
        loss: u32,
        delay: u64,
    },
    Outside(u8),
    Map {
        function: u8,
        page: u16,
        pages: u16,
        writable: bool,
    },
    Unmap {
        function: u8,
        page: u16,
        pages: u16,
    },
    Register {
        function: u8,
        which: u8,
        value: Vec<u8>,
    },
    /// The software enables memory access and bus mastering in the command register.
    BusMaster(u8),
    Configuration {
        function: u8,
        offset: u16,
        bytes: Vec<u8>,
    },
    Interrupts {
        function: u8,
        vectors: u16,
    },
    Fault {
        function: u8,
        which: u8,
        later: Option<u32>,
    },
    Frame {
        function: u8,
        bytes: Vec<u8>,
    },
    Time(u64),
    Waited(u64),
    Step,
    Read {
        function: u8,
        page: u16,
        bytes: Option<Vec<u8>>,
    },
    Wrote {
        writes: u64,
        sum: u32,
    },
    Log(String),
    Switch {
        ports: u8,
        rate: u64,
        buffer: u32,
        each: bool,
        drop: bool,
        pfc: Option<(u8, u16, u16, u64)>,
        kmin: Option<u16>,
    },
    Cable {
        ends: [(bool, u8, u8); 2],
        loss: u32,
        delay: u64,
    },
    FixedAddress {
        switch: u8,
        mac: u8,
        port: u8,
    },
    Qos {
        function: u8,
        priorities: [u8; 4],
        times: [u64; 3],
        rates: [u32; 5],
    },
}

impl Part {
    fn record(self) -> Record {
        let page = |page: u16| u64::from(page) << 12;
        match self {
            Self::Card { vectors, bar } => Record::Card {
                physical: Box::new(Profile {
                    msix_vectors: vectors,
                    bar_bytes: 1_usize << (bar % 64),
                    ..Profile::default()
                }),
                virtual_functions: vectors >> 12,
                rules: CardRules::default(),
            },
            Self::Link { ends, loss, delay } => Record::Link {
                ends: ends.map(usize::from).into(),
                faults: LinkFaults::both(Faults {
                    loss_ppm: loss,
                    delay_ns: delay,
                    jitter_ns: delay,
                    ..Faults::NONE
                }),
            },
            Self::Outside(function) => Record::LinkOutside {
                function: function.into(),
                faults: LinkFaults::NONE,
            },
            Self::Map {
                function,
                page: at,
                pages,
                writable,
            } => Record::Map {
                function: function.into(),
                iova: page(at),
                bytes: page(pages),
                writable,
            },
            Self::Unmap {
                function,
                page: at,
                pages,
            } => Record::Unmap {
                function: function.into(),
                iova: page(at),
                bytes: page(pages),
            },
            Self::Register {
                function,
                which,
                value,
            } => Record::Register {
                function: function.into(),
                // The command queue's address, its doorbell, the doorbells of queues, or a register from 0xdc00 on.
                offset: match which {
                    0..60 => 0x10,
                    60..120 => 0x14,
                    120..180 => 0x18,
                    180..220 => 0x4800,
                    which => u64::from(which) << 8,
                },
                bytes: value,
            },
            Self::BusMaster(function) => Record::Configuration {
                function: function.into(),
                offset: 4,
                bytes: vec![6, 0],
            },
            Self::Configuration {
                function,
                offset,
                bytes,
            } => Record::Configuration {
                function: function.into(),
                offset,
                bytes,
            },
            Self::Interrupts { function, vectors } => Record::Interrupts {
                function: function.into(),
                vectors: vectors.into(),
            },
            Self::Fault {
                function,
                which,
                later,
            } => Record::Inject {
                function: function.into(),
                later,
                fault: match which % 6 {
                    0 => Fault::CommandSilence {
                        opcode: None,
                        count: u32::MAX,
                    },
                    1 => Fault::LostInterrupts(u32::MAX),
                    2 => Fault::PageRequest { pages: i32::MIN },
                    3 => Fault::HealthCounterStalls(Duration::MAX),
                    4 => Fault::SurpriseRemoval,
                    _ => Fault::StrayInterrupts,
                },
            },
            Self::Frame { function, bytes } => Record::Frame {
                function: function.into(),
                bytes,
            },
            Self::Time(now) => Record::Time { now },
            Self::Waited(until) => Record::Waited { until },
            Self::Step => Record::Stepping,
            Self::Read {
                function,
                page: at,
                bytes,
            } => Record::Read {
                function: function.into(),
                iova: page(at),
                bytes,
            },
            Self::Wrote { writes, sum } => Record::Wrote { writes, sum },
            Self::Log(text) => Record::Log(text),
            Self::Switch {
                ports,
                rate,
                buffer,
                each,
                drop,
                pfc,
                kmin,
            } => Record::Switch(Box::new(SwitchConfig {
                ports: ports.into(),
                rate_bps: rate,
                buffer: match each {
                    true => Buffer::PerPort(buffer as usize),
                    false => Buffer::Shared(buffer as usize),
                },
                unknown: if drop { Unknown::Drop } else { Unknown::Flood },
                pfc: pfc.map(|(priorities, xoff, xon, watchdog)| Pfc {
                    priorities,
                    xoff_bytes: xoff.into(),
                    xon_bytes: xon.into(),
                    headroom_bytes: xoff.into(),
                    watchdog: (watchdog < 1 << 40).then(|| Duration::from_nanos(watchdog)),
                }),
                ecn: kmin.map(|kmin| Red {
                    kmin_bytes: kmin.into(),
                    kmax_bytes: 2 * usize::from(kmin),
                    pmax: f64::from(kmin) / 1e4,
                }),
                ..SwitchConfig::default()
            })),
            Self::Cable { ends, loss, delay } => Record::Cable {
                ends: ends.map(|(is_function, number, port)| match is_function {
                    true => CableEnd::Function(usize::from(number % 4)),
                    false => CableEnd::Port {
                        switch: usize::from(number % 4),
                        port: usize::from(port % 8),
                    },
                }),
                faults: LinkFaults::both(Faults {
                    loss_ppm: loss,
                    delay_ns: delay,
                    ..Faults::NONE
                }),
            },
            Self::FixedAddress { switch, mac, port } => Record::FixedAddress {
                switch: usize::from(switch % 4),
                mac: [2, 0, 0, 0, 0, mac % 8],
                port: usize::from(port % 8),
            },
            Self::Qos {
                function,
                priorities: [priority, sends, answers, cnp],
                times: [time, alpha, interval],
                rates: [additive, hyper, least, gain, threshold],
            } => Record::Qos {
                function: function.into(),
                qos: Box::new(PortQos {
                    priorities: [priority % 9; 64],
                    congestion: (sends, answers),
                    cnp: (cnp % 66, priority % 9),
                    cnp_interval: Duration::from_nanos(interval),
                    reaction: Reaction {
                        time_reset: Duration::from_nanos(time),
                        alpha_time: Duration::from_nanos(alpha),
                        byte_reset: time,
                        additive_mbps: additive,
                        hyper_mbps: hyper,
                        min_mbps: least,
                        gain,
                        initial_alpha: gain,
                        threshold,
                    },
                    ..PortQos::default()
                }),
            },
        }
    }
}

/// Replays a recording to its end.
fn replay(file: Vec<u8>) {
    ended(Replay::open(Cursor::new(file)));
}

/// Opens a recording without the comparison of results, since no simulator has produced its records.
fn opened(file: Vec<u8>) -> Result<Replay, ReplayError> {
    Ok(Replay::open(Cursor::new(file))?.without_comparison())
}

fn ended(replay: Result<Replay, ReplayError>) {
    match replay.and_then(|mut replay| replay.run(None)) {
        Ok(end) => assert!(end.records < 1 << 24),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

#[test]
fn any_bytes_are_a_recording_or_are_refused() {
    check!()
        .with_iterations(20_000)
        .with_test_time(Duration::from_secs(2))
        .for_each(|bytes: &[u8]| replay(bytes.to_vec()));
}

#[test]
fn any_bytes_where_records_are_end_with_an_error() {
    check!()
        .with_iterations(20_000)
        .with_test_time(Duration::from_secs(2))
        .for_each(|bytes: &[u8]| {
            replay(packed(&Header::default(), bytes).expect("a file"));
        });
}

#[test]
fn records_of_any_history_are_carried_out_or_refused() {
    check!()
        .with_generator(produce::<Vec<Part>>().with().len(0..40_usize))
        .with_iterations(2_000)
        .with_test_time(Duration::from_secs(5))
        .for_each(|parts| {
            let mut records = Vec::new();
            // Most records refer to a card.
            let card = Part::Card {
                vectors: 8,
                bar: 20,
            };
            for part in [card.clone(), card]
                .into_iter()
                .chain(parts.iter().cloned())
            {
                let record = postcard::to_stdvec(&part.record()).expect("encoded");
                records.extend(record);
            }
            if let Ok(file) = packed(&Header::default(), &records) {
                ended(opened(file));
            }
        });
}

/// Returns the error with which a replay of these records ends.
fn refused(records: &[Record]) -> String {
    let encoded: Vec<u8> = records
        .iter()
        .flat_map(|record| postcard::to_stdvec(record).expect("encoded"))
        .collect();
    let file = packed(&Header::default(), &encoded).expect("a file");
    let error = opened(file).and_then(|mut replay| replay.run(None));
    error.expect_err("it cannot be").to_string()
}

fn switch(change: impl FnOnce(&mut SwitchConfig)) -> Record {
    let mut config = SwitchConfig::default();
    change(&mut config);
    Record::Switch(Box::new(config))
}

fn cable(ends: [(usize, usize); 2]) -> Record {
    Record::Cable {
        ends: ends.map(|(switch, port)| CableEnd::Port { switch, port }),
        faults: LinkFaults::NONE,
    }
}

#[test]
fn switches_that_cannot_be_are_refused_with_their_record() {
    let plain = || switch(|_| {});
    let fixed = |mac: u8, port| Record::FixedAddress {
        switch: 0,
        mac: [2, 0, 0, 0, 0, mac],
        port,
    };
    let qos = |change: &dyn Fn(&mut PortQos)| {
        let mut qos = PortQos::default();
        change(&mut qos);
        let qos = Box::new(qos);
        Record::Qos { function: 0, qos }
    };
    let card = || {
        let card = Part::Card {
            vectors: 8,
            bar: 20,
        };
        card.record()
    };
    let huge = || switch(|config| config.buffer = Buffer::Shared(1 << 29));
    for (records, number, why) in [
        (vec![switch(|config| config.rate_bps = 0)], 1, "0 bit/s"),
        (vec![switch(|config| config.ports = 65)], 1, "2 to 64 ports"),
        (
            vec![switch(|config| config.buffer = Buffer::PerPort(usize::MAX))],
            1,
            "at most 1073741824 bytes",
        ),
        (vec![huge(), huge(), huge()], 3, "switches at most"),
        (
            vec![switch(|config| {
                config.pfc = Some(Pfc {
                    watchdog: Some(Duration::ZERO),
                    ..Pfc::of(1)
                });
            })],
            1,
            "a watchdog of no time",
        ),
        (vec![plain(), cable([(0, 0), (1, 0)])], 2, "no switch 1"),
        (vec![plain(), cable([(0, 0), (0, 4)])], 2, "no such port"),
        (vec![plain(), cable([(0, 0), (0, 0)])], 2, "no such port"),
        (
            vec![plain(), cable([(0, 0), (0, 1)])],
            2,
            "a flood would never end",
        ),
        (
            vec![
                plain(),
                switch(|config| config.unknown = Unknown::Drop),
                cable([(0, 0), (1, 0)]),
                cable([(1, 1), (0, 1)]),
            ],
            4,
            "a flood would never end",
        ),
        (vec![plain(), fixed(1, 4)], 2, "no such port"),
        (vec![qos(&|_| {})], 1, "no function 0"),
        (
            vec![card(), qos(&|qos| qos.priorities[7] = 8)],
            2,
            "no priority 8",
        ),
        (
            vec![card(), qos(&|qos| qos.cnp.0 = 64)],
            2,
            "no code point 64",
        ),
        (vec![card(), qos(&|qos| qos.trust.0 = 3)], 2, "goes by no"),
        (
            vec![plain(), Record::Time { now: u64::MAX }, Record::Idle],
            2,
            "too late",
        ),
    ] {
        let error = refused(&records);
        let record = format!("record {number},");
        assert!(error.starts_with(&record) && error.contains(why), "{error}");
    }
}
