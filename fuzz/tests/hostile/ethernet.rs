//! Hostile software and hostile frames on an Ethernet port.
//!
//! Two functions are connected, and each steers all arriving frames to one receive queue. Software of the first
//! function posts send WQEs with flipped bits or with arbitrary bytes, changes doorbell records, rings doorbells, and
//! changes the state of its queues. Forged frames arrive at both functions. Meanwhile the second function sends frames
//! as usual. Afterwards the firmware still runs, and the second function still receives a frame.

use crate::eth_support::*;
use crate::extent;
use crate::honest::Longest;
use crate::live::{Spoil, now_us};
use bolero::{TypeGenerator, check, produce};
use hw_sim::eth::checksum::Verdict;
use hw_sim::eth::segment::{Offload, segment};
use hw_sim::wire::frame::Headers;
use mlx_prm::*;
use std::time::Duration;
use zerocopy::IntoBytes;

/// A forged TCP or UDP frame over IPv4 or IPv6, with or without a VLAN tag.
#[derive(Clone, Debug, TypeGenerator)]
struct Frame {
    kind: u8,
    to: u8,
    payload: u16,
    spoil: Spoil,
    keep: u16,
}

impl Frame {
    fn bytes(&self) -> Vec<u8> {
        let to = match self.to {
            0..128 => MACS[1],
            128..160 => MACS[0],
            _ => BROADCAST,
        };
        let payload = usize::from(self.payload % 1_600);
        let mut frame = plain(0, to, 60 + payload);
        if self.kind & 1 != 0 {
            frame.splice(12..12, [0x81, 0, 0, 5]);
        }
        let at = frame.len() - 60 - payload;
        let behind = u16::try_from(60 + payload).unwrap_or(u16::MAX);
        let protocol = if self.kind & 2 == 0 { 6 } else { 17 };
        if self.kind & 4 == 0 {
            frame[at - 2..at].copy_from_slice(&[0x08, 0x00]);
            frame[at] = 0x45;
            frame[at + 2..at + 4].copy_from_slice(&behind.to_be_bytes());
            frame[at + 6..at + 8].fill(0);
            frame[at + 9] = protocol;
            frame[at + 32] = 0x50;
        } else {
            frame[at - 2..at].copy_from_slice(&[0x86, 0xdd]);
            frame[at] = 0x60;
            frame[at + 4..at + 6].copy_from_slice(&(behind - 40).to_be_bytes());
            frame[at + 6] = protocol;
            frame[at + 52] = 0x50;
        }
        self.spoil.apply(&mut frame);
        if self.keep < 0x4000 {
            frame.truncate(usize::from(self.keep) % frame.len());
        }
        frame
    }
}

/// One event of the test.
#[derive(Clone, Debug, TypeGenerator)]
enum Event {
    /// The first function posts a send WQE that is valid except for flipped bits.
    Send {
        frame: Frame,
        large: bool,
        mss: u16,
        checksums: u8,
        inline: u8,
        spoil: Spoil,
        doorbell: Spoil,
    },
    /// The first function posts a WQE of arbitrary bytes after a control segment, with flipped bits in both.
    Raw { bytes: Vec<u8>, spoil: Spoil },
    /// A forged frame arrives.
    Arrives { frame: Frame },
    /// A frame of arbitrary bytes arrives.
    Noise { bytes: Vec<u8> },
    /// A receive buffer of some length is posted at the attacked function or at the other one.
    Receive { at_other: bool, bytes: u16, key: u8 },
    /// The first function changes its send counter, posts a WQE of zeros, and does not ring the doorbell.
    Record { by: i16 },
    /// Software modifies the state of a queue.
    Modify { receive: bool, from: u8, to: u8 },
    /// Software polls completions.
    Poll,
}

impl Event {
    fn happen(&self, a: &mut Side, b: &mut Side) {
        match self {
            Self::Send {
                frame,
                large,
                mss,
                checksums,
                inline,
                spoil,
                doorbell,
            } => {
                let how = SendOptions {
                    opcode: if *large {
                        WqeOpcode::LSO
                    } else {
                        WqeOpcode::SEND
                    },
                    checksums: *checksums,
                    mss: *mss,
                    inline: usize::from(*inline),
                    ..SendOptions::default()
                };
                let mut wqe = a.wqe(&frame.bytes(), how);
                spoil.apply(&mut wqe);
                a.post(&wqe);
                doorbell.apply(&mut a.sq.last);
                a.ring();
            }
            Self::Raw { bytes, spoil } => {
                let segments = bytes.len().div_ceil(16).clamp(1, 63);
                let mut wqe = a.control(WqeOpcode::SEND, segments, 2).as_bytes().to_vec();
                wqe.extend(bytes);
                wqe.resize(segments * 16, 0);
                spoil.apply(&mut wqe);
                a.post(&wqe);
                a.ring();
            }
            Self::Arrives { frame } => {
                let bytes = frame.bytes();
                a.deliver(&bytes);
                b.deliver(&bytes);
            }
            Self::Noise { bytes } => {
                a.deliver(bytes);
                b.deliver(bytes);
            }
            Self::Receive {
                at_other,
                bytes,
                key,
            } => {
                let side = if *at_other { b } else { a };
                let wrong = u32::from(*key < 16);
                let bytes = usize::from(*bytes) % BUFFER + 1;
                side.rq.post(&side.bench, bytes, side.key ^ wrong);
            }
            Self::Record { by } => {
                a.sq.posted = a.sq.posted.wrapping_add_signed(*by);
                a.post(&[0; 64]);
            }
            Self::Modify { receive, from, to } => {
                let (from, to) = (u32::from(*from % 5), u32::from(*to % 5));
                if *receive {
                    a.modify_rq(from, to);
                } else {
                    a.modify_sq(from, to);
                }
            }
            Self::Poll => {
                while a.sent().is_some() {}
                while a.received().is_some() {}
                while b.received().is_some() {}
            }
        }
    }
}

/// Upper bound, in virtual microseconds, on the time until the other function has sent a frame.
const MOST_US: u64 = 1;

/// Under any traffic on an Ethernet port, the firmware keeps running and the other function keeps working.
#[test]
fn a_hostile_ethernet_driver_hurts_only_itself() {
    static BESIDE: Longest = Longest::new("a hostile Ethernet driver", "us", MOST_US);
    let (iterations, time) = extent(600, 5);
    check!()
        .with_generator(produce::<Vec<Event>>().with().len(0..40_usize))
        .with_iterations(iterations)
        .with_test_time(time)
        .for_each(|events| {
            let (sim, mut a, mut b) = pair();
            a.post_receives(4);
            b.post_receives(4);
            for event in events {
                event.happen(&mut a, &mut b);
                b.send(&plain(1, MACS[0], 100), SendOptions::default());
                let sent = || b.sent().is_some_and(|sent| sent.op_own() >> 4 == 0);
                let now = || now_us(&sim);
                BESIDE.wait(now, sent, || a.bench.sleep(Duration::from_micros(1)));
            }
            for side in [&mut a, &mut b] {
                assert_eq!(
                    side.bench.read32(0x23c) >> 16 & 0xff,
                    0,
                    "the firmware died"
                );
            }
            // The second function may have receives with a wrong key, which a reset of its receive queue drops. After
            // the reset the second function receives a frame.
            let state = b.rq_state();
            assert_eq!(b.modify_rq(state, RESET), CmdStatus::OK);
            assert_eq!(b.modify_rq(RESET, READY), CmdStatus::OK);
            while b.received().is_some() {}
            b.rq.posted = 0;
            b.post_receives(1);
            let frame = plain(0, MACS[1], 100);
            b.deliver(&frame);
            let last = std::iter::from_fn(|| b.received()).last().expect("a frame");
            assert_eq!(last.1, frame);
        });
    BESIDE.report();
}

/// Parsing, checksums and segmentation never panic on a frame of arbitrary bytes.
#[test]
fn frames_of_any_bytes_are_looked_at_and_cut() {
    let (iterations, time) = extent(20_000, 3);
    check!()
        .with_type::<(Vec<u8>, u16, u16, u8)>()
        .with_iterations(iterations)
        .with_test_time(time)
        .for_each(|(bytes, header, mss, checksums)| {
            if let Some(headers) = Headers::of(bytes) {
                let _ = Verdict::of(bytes, &headers, checksums & 1 == 1);
            }
            let (header, data) = bytes.split_at(usize::from(*header) % (bytes.len() + 1));
            let offload = Offload {
                network: checksums & 2 != 0,
                transport: checksums & 4 != 0,
            };
            let mss = usize::from(*mss);
            if let Some(frames) = segment(header, data, mss, offload) {
                let cut: usize = frames.iter().map(|frame| frame.len() - header.len()).sum();
                assert_eq!(cut, data.len());
            }
        });
}
