//! The command trace, compared with that of mlx5_core for the bring-up of a real ConnectX-4 Lx.
//!
//! This is a separate test program, because `tracing` caches for the whole process whether an event is enabled. In a
//! common program it might cache the answer of a thread without a subscriber.

#[path = "hca/double/mod.rs"]
#[allow(
    dead_code,
    reason = "shared with the program `hca`, which uses all of it"
)]
mod double;

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use hw_mlx::{Hca, HcaConfig};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use double::Double;

/// A subscriber that keeps the messages of the command trace.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").expect("a string");
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "hw_mlx::cmd"
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().expect("not poisoned").push(message.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Start of the recorded trace (snabbco/snabb, `src/apps/mellanox/trace-mlx5_core.txt.gz`), without the kernel's
/// time stamps, its `MLX5_CMD_OP_` prefixes and empty lines. Our trace differs in two points: ENABLE_HCA has
/// an answer of 12 bytes instead of 16, which changes the signature accordingly, and our mailbox has another
/// address.
const RECORDED: [&str; 16] = [
    "dump command ENABLE_HCA(0x104) INPUT",
    "000: 07000000 00000010 00000000 00000000",
    "010: 01040000 00000000 00000000 00000000",
    "020: 00000000 00000000 00000000 00000000",
    "030: 00000000 00000000 00000010 01fd0001",
    "writing 0x1 to command doorbell",
    "dump command ENABLE_HCA(0x104) OUTPUT",
    "000: 07000000 00000010 00000000 00000000",
    "010: 01040000 00000000 00000000 00000000",
    "020: 00000000 00000000 00000000 00000000",
    "030: 00000000 00000000 00000010 01fd0000",
    "dump command QUERY_ISSI(0x10a) INPUT",
    "000: 07000000 00000010 00000000 00000000",
    "010: 010a0000 00000000 00000000 00000000",
    "020: 00000000 00000000 00000000 00000000",
    "030: 00000007 ab0fe400 00000070 02d70001",
];

#[test]
fn the_trace_of_bring_up_begins_like_the_recorded_one() {
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), || {
        Hca::open(Double::new().function(), HcaConfig::new()).expect("bring-up");
    });
    let lines = lines.0.lock().expect("not poisoned");
    for (number, (ours, recorded)) in lines.iter().zip(RECORDED).enumerate() {
        let expected = match number {
            4 => recorded.replace("00000010 01fd", "0000000c 01e1"),
            10 => recorded.replace("00000010 01fd", "0000000c 01e1"),
            15 => {
                // Except for the mailbox's address and the signature, the words are the recorded ones.
                let words: Vec<&str> = ours.split(' ').collect();
                assert_eq!(
                    (words[0], words[3], &words[4][..2], &words[4][4..]),
                    ("030:", "00000070", "02", "0001")
                );
                continue;
            }
            _ => recorded.to_owned(),
        };
        assert_eq!(*ours, expected, "line {number}");
    }
    // The offsets of the first mailbox continue after the entry's 64 bytes: from 0x40 up to 0x40 + 0x240.
    let block = lines
        .iter()
        .position(|line| line == "command block:")
        .expect("a mailbox");
    assert!(lines[block + 1].starts_with("040: ") && lines[block + 36].starts_with("270: "));
}
