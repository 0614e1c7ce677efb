//! Recordings of worlds from anybody: a replay of one ends, with an error or without, and its memory is bounded.
//!
//! The first harness has any bytes as a file. The second has a file whose form is good, with any bytes in it where
//! records are. The third has records that mean something: a card, its memory, registers, configuration space, time,
//! and what DMA is said to have found, in any order.

use std::io::Cursor;
use std::time::Duration;

use bolero::{TypeGenerator, check, produce};
use hw_sim::record::{Header, Record, Replay, packed};
use hw_sim::{CardRules, Fault, Faults, LinkFaults, Profile};

/// Something in a recording.
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
    /// The function may reach memory.
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
                // The command queue's address, its doorbell, doorbells of queues; or anything.
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
        }
    }
}

/// Replays to the end.
fn replay(file: Vec<u8>) {
    match Replay::open(Cursor::new(file)).and_then(|mut replay| replay.run(None)) {
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
            // Most of it needs a card.
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
                replay(file);
            }
        });
}
