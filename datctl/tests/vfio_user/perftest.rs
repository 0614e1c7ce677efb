//! Tests of `datctl perf --perftest` against a peer that sends the recorded messages of a program of perftest, or other
//! messages.

use std::net::IpAddr;
use std::process::{Command, Output, Stdio};

use udapl::endpoint::EpAttr;
use udapl::{
    CloseFlags, ConnQual, ConnectionEventKind, DtoCookie, DtoStatus, EpEvds, EpHandle, Event,
    PspFlags,
};

use crate::served::{NONE, Served, Side};

const PORT: u64 = 18_515;
const RECEIVED: DtoCookie = DtoCookie(1);
const SENT: DtoCookie = DtoCookie(2);
const VERSION: &str = "362e3234000000000000000000000000";
const NOTHING: [u8; 56] = [0; 56];
/// Destination that the passive end sends in all handshakes but the first two, and destination that the active end
/// sends. Fields: LID, Reads, QPN, PSN, R_Key, 4 bytes of zero, address, GID, SRQ, GID index.
const PASSIVE: &str = "0000000000000001 0000006400ac7fa6 008727d400000000 000055b26c54b000 \
                       00000000000000000000ffffc0000202 0000000000000003";
const ACTIVE: &str = "0000000000000001 0000006100c111d6 008727d400000000 000055cd4814e000 \
                      00000000000000000000ffffc0000201 0000000000000003";
/// Offsets of the bytes that identify an end and its memory. They differ between ends.
const OWN: std::ops::Range<usize> = 8..48;
/// The passive end's answers to a report. The passive end has no results to send, so perftest sends whatever its memory
/// held.
const REPORTED: [&str; 5] = [
    "00007f049d2610a0",
    "0000000000000000",
    "0000000000000000",
    "0000000000000000",
    "0000000000000000",
];

fn bytes(hex: &str) -> Vec<u8> {
    let hex: String = hex.split_whitespace().collect();
    let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
    (0..hex.len()).step_by(2).map(digits).collect()
}

/// Returns all messages of the passive end of a recorded run: `ib_write_bw -R -n 5 -s 64` and the same command with the
/// peer's address, from perftest 25.01 in Debian 13.
fn write_bw() -> Vec<Vec<u8>> {
    let mut said = vec![
        bytes(VERSION),
        bytes("00001000"),
        bytes("00000040"),
        bytes("3300"),
        NOTHING.to_vec(),
        NOTHING.to_vec(),
    ];
    said.extend(std::iter::repeat_n(bytes(PASSIVE), 4));
    said.extend(REPORTED.map(bytes));
    said.push(bytes(PASSIVE));
    said
}

/// Messages that a peer received, and the output of `datctl`.
struct Met {
    heard: Vec<Vec<u8>>,
    output: Output,
}

impl Met {
    fn error(&self) -> String {
        assert_eq!(self.output.status.code(), Some(1), "{:?}", self.output);
        let error = String::from_utf8(self.output.stderr.clone()).expect("text");
        let said = error.lines().find_map(|line| line.strip_prefix("datctl: "));
        said.expect("why").to_owned()
    }
}

/// Runs `datctl perf` against a peer that accepts connections, answers each message with the next of `answers`, and
/// disconnects after the last answer.
fn meets(answers: &[Vec<u8>], arguments: &[&str]) -> Met {
    let served = Served::new(&[]);
    let mut peer = Side::open(&served.name("b"));
    let address: IpAddr = peer.ia.query().ia.ia_address;
    let events = peer.events;
    peer.ia
        .psp_create(ConnQual(PORT), events, PspFlags::CONSUMER)
        .expect("it listens");
    let (inbox, outbox) = (peer.buffer(None, 256), peer.buffer(None, 256));
    let memory = peer.buffer(None, 4096).remote();
    let control = peer.ep;
    let receive = |peer: &mut Side| {
        let place = inbox.local();
        peer.ia
            .ep_post_recv(control, &[place], RECEIVED, NONE)
            .expect("a receive");
    };
    receive(&mut peer);
    let datctl = Command::new(env!("CARGO_BIN_EXE_datctl"))
        .args(["perf", &served.name("a"), "--connect", &address.to_string()])
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let (mut heard, mut left) = (Vec::new(), answers.iter());
    let mut free = Some(control);
    let mut lane: Option<EpHandle> = None;
    loop {
        let event = peer.event();
        if let Event::ConnectionRequest(request) = &event {
            let ep = free.take().unwrap_or_else(|| {
                let attr = EpAttr::defaults(peer.ia.query().ia);
                let made = peer
                    .ia
                    .ep_create(Some(peer.pz), EpEvds::all(events), Some(&attr));
                *lane.insert(made.expect("an endpoint"))
            });
            let accepted = peer.ia.cr_accept(request.cr, Some(ep), b"");
            accepted.expect("an accept");
        } else if let Event::Connection(change) = &event {
            let is_over = change.kind != ConnectionEventKind::Established;
            if is_over && change.ep == control {
                break;
            }
            if answers.is_empty() {
                let ended = peer.ia.ep_disconnect(control, CloseFlags::Abrupt);
                ended.expect("a connection");
            }
        } else if let Event::Dto(done) = &event {
            if (done.cookie, done.status) != (RECEIVED, DtoStatus::Success) {
                continue;
            }
            let length = usize::try_from(done.transferred_length).expect("short");
            heard.push(inbox.memory.read(0, length).expect("inside"));
            let Some(answer) = left.next() else {
                let ended = peer.ia.ep_disconnect(control, CloseFlags::Abrupt);
                ended.expect("a connection");
                continue;
            };
            receive(&mut peer);
            let mut answer = answer.clone();
            if answer == bytes(PASSIVE) {
                answer[16..20].copy_from_slice(&memory.rmr_context.to_be_bytes());
                answer[24..32].copy_from_slice(&memory.target_address.to_be_bytes());
            }
            outbox.memory.write_from(0, &answer).expect("inside");
            let mut place = outbox.local();
            place.segment_length = answer.len() as u64;
            let sent = peer.ia.ep_post_send(control, &[place], SENT, NONE);
            sent.expect("a send");
            if let (0, Some(lane)) = (left.len(), lane) {
                let ended = peer.ia.ep_disconnect(lane, CloseFlags::Abrupt);
                ended.expect("a connection");
            }
        }
    }
    let output = datctl.wait_with_output().expect("it ends");
    Met { heard, output }
}

#[test]
fn what_datctl_says_is_message_for_message_what_perftest_says_in_its_place() {
    let program = ["--perftest", "ib_write_bw"];
    let few = ["--count", "5", "--bytes", "64", "--json"];
    let met = meets(&write_bw(), &[&program[..], &few].concat());
    assert!(met.output.status.success(), "{:?}", met.output);
    let figures: serde_json::Value = serde_json::from_slice(&met.output.stdout).expect("JSON");
    let perftest = serde_json::json!({ "program": "ib_write_bw", "version": "6.24" });
    assert_eq!(figures["perftest"], perftest);
    assert_eq!(figures["rows"][0]["bandwidth"]["operations"], 5);
    let mut expected = write_bw();
    for (number, message) in expected.iter_mut().enumerate() {
        if message.len() == 56 && *message != NOTHING {
            *message = bytes(ACTIVE);
        }
        // Messages 10 and 11 carry the size and the number of the test messages.
        match number {
            10 => *message = bytes("0000000000000040"),
            11 => *message = bytes("0000000000000005"),
            _ => {}
        }
    }
    assert_eq!(met.heard.len(), expected.len());
    for (number, (said, expected)) in met.heard.iter().zip(&expected).enumerate() {
        let (mut said, mut expected) = (said.clone(), expected.clone());
        match number {
            // Messages 12 to 14 carry measured rates, which vary.
            12..=14 => assert_eq!(said.len(), 8),
            _ => {
                if said.len() == 56 && said != NOTHING {
                    assert_ne!(said[16..20], [0; 4], "an R_Key");
                    for message in [&mut said, &mut expected] {
                        message[OWN].fill(0);
                        // The number of outstanding Reads and the GID index may differ.
                        message[7] = 0;
                        message[55] = 0;
                    }
                }
                assert_eq!(said, expected, "message {number}");
            }
        }
    }
    let rate =
        |message: &[u8]| f64::from_bits(u64::from_be_bytes(message.try_into().expect("8 bytes")));
    let (mib, millions) = (rate(&met.heard[13]), rate(&met.heard[14]));
    assert!(
        mib > 0.0 && (mib * f64::from(1 << 20) - millions * 64e6).abs() < 1.0,
        "{mib} {millions}"
    );
}

#[test]
fn a_peer_that_is_no_program_of_perftest_is_told_with_what_it_says() {
    let error = meets(
        &[b"datctl 2 or so..".to_vec()],
        &["--perftest", "ib_write_bw"],
    )
    .error();
    assert_eq!(
        error,
        "no program of perftest: it says [64, 61, 74, 63, 74, 6c, 20, 32, 20, 6f, 72, 20, 73, 6f, 2e, 2e] where its \
         version should be; the peer should run ib_write_bw -R -s 65536"
    );
    let error = meets(&[b"6.24".to_vec()], &["--perftest", "ib_read_lat"]).error();
    assert!(
        error.starts_with("a message of 4 bytes, not 16, as its version: [36, 2e, 32, 34]; the"),
        "{error}"
    );
}

#[test]
fn a_version_that_is_not_known_is_told_with_those_that_are() {
    let version = b"7.10\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    let error = meets(&[version], &["--perftest", "ib_send_lat"]).error();
    assert!(
        error.starts_with("perftest 7.10 speaks a language that is not known here: 5.70 to"),
        "{error}"
    );
    let command = "the peer should run ib_send_lat -R -s 2 -n 1000";
    assert!(error.ends_with(command), "{error}");
}

#[test]
fn a_peer_that_leaves_is_told_with_what_it_should_have_said() {
    let answers = write_bw();
    for (number, what) in [
        (0, "its version"),
        (1, "the size of its buffer"),
        (3, "its MTU"),
        (5, "a handshake"),
        (12, "its report"),
    ] {
        let program = ["--perftest", "ib_write_bw", "--bytes", "64", "--count", "5"];
        let error = meets(&answers[..number], &program).error();
        let expected = format!(
            "the peer hung up where {what} should have come; the peer should run ib_write_bw -R -s 64"
        );
        assert_eq!(error, expected);
    }
}

#[test]
fn a_port_at_which_nobody_listens_is_named() {
    let served = Served::new(&[]);
    let mut peer = Side::open(&served.name("b"));
    let address: IpAddr = peer.ia.query().ia.ia_address;
    let mut datctl = Command::new(env!("CARGO_BIN_EXE_datctl"))
        .args(["perf", &served.name("a"), "--connect", &address.to_string()])
        .args(["--perftest", "ib_read_bw", "--qualifier", "7000"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    // The peer's connection manager makes progress only during a wait.
    let moment = udapl::Timeout::from_micros(1_000);
    while datctl.try_wait().expect("a child").is_none() {
        let event = peer.ia.evd_wait(peer.events, moment, 1);
        assert!(event.is_err(), "{event:?}");
    }
    let output = datctl.wait_with_output().expect("it ends");
    let error = String::from_utf8(output.stderr).expect("text");
    let expected = format!(
        "datctl: nobody listens at port 7000 of {address}; the peer should run ib_read_bw -R -s 65536 -p 7000\n"
    );
    assert!(error.ends_with(&expected), "{error}");
}
