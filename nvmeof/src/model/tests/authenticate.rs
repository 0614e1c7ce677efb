//! Hosts that must authenticate: number of attempts, time limit, and the cost of each message.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::span;

use super::*;
use crate::auth::Keys;
use crate::auth::cost::{self, Spent};

const KEY: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const SEND: u32 = 5;
const RECEIVE: u32 = 6;
const FAILURE1: u8 = 0xf1;

fn message(kind: u32) -> Sqe {
    sqe(0x7f, kind, [0xe901_0100, 4096, 0, 0])
}

/// Returns an AUTH_Negotiate message that offers SHA-256 and one Diffie-Hellman group.
pub(super) fn negotiation(group: u8) -> Vec<u8> {
    let mut said = vec![0; 72];
    (said[4], said[7], said[8]) = (7, 1, 1);
    (said[10], said[11], said[12], said[42]) = (1, 1, 1, group);
    said
}

/// Returns a DH-HMAC-CHAP_Reply message for this group with a wrong response.
pub(super) fn wrong_reply(group: u8) -> Vec<u8> {
    let value = [0, 256, 384, 512, 768, 1024][usize::from(group)];
    let mut said = vec![1, 2, 0, 0, 7, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    said[10..12].copy_from_slice(
        &zerocopy::little_endian::U16::new(u16::try_from(value).expect("16 bits")).to_bytes(),
    );
    said.resize(16 + 64 + value, 3);
    said
}

/// Returns the right DH-HMAC-CHAP_Reply to a challenge without a group, computed by the specification's formula.
pub(super) fn right_reply(challenge: &[u8]) -> Vec<u8> {
    use hmac::{Hmac, Mac};
    let mac = |key: &[u8], parts: &[&[u8]]| {
        let mut mac = Hmac::<sha2::Sha256>::new_from_slice(key).expect("a key");
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes()
    };
    let secret: Vec<u8> = (0..32).collect();
    let key = mac(&secret, &[HOST.as_bytes(), b"NVMe-over-Fabrics"]);
    let subsystem = disks();
    let answer = mac(
        &key,
        &[
            &challenge[16..48],
            &challenge[12..16],
            &[7, 0, 0],
            b"HostHost",
            HOST.as_bytes(),
            &[0],
            subsystem.as_str().as_bytes(),
        ],
    );
    let mut said = vec![1, 2, 0, 0, 7, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    said.extend_from_slice(&answer);
    said.resize(16 + 64, 0);
    said
}

pub(super) fn keyed() -> Model {
    let mut model = model(true);
    let keys = Keys {
        host: KEY.parse().expect("a key"),
        controller: None,
        hash: None,
        group: None,
    };
    model.set_keys(name(HOST), Some(keys));
    model
}

pub(super) fn say(model: &mut Model, (id, queue): (u16, u16), said: &[u8]) -> Answer {
    match model.authenticate(id, queue, &message(SEND), said, 0) {
        Outcome::Answered(answer) => answer,
        other @ (Outcome::Waits | Outcome::Preempted(_) | Outcome::Abort { .. }) => {
            panic!("{other:?}")
        }
    }
}

pub(super) fn hear(model: &mut Model, (id, queue): (u16, u16)) -> Answer {
    match model.authenticate(id, queue, &message(RECEIVE), &[], 4096) {
        Outcome::Answered(answer) => answer,
        other @ (Outcome::Waits | Outcome::Preempted(_) | Outcome::Abort { .. }) => {
            panic!("{other:?}")
        }
    }
}

/// Returns a controller whose host has negotiated a group, and the Authentication Receive that fetches the challenge.
pub(crate) fn authenticating(group: u8) -> (Model, u16, Sqe) {
    let mut model = keyed();
    let id = admin(&mut model, &disks(), HOST);
    assert_eq!(
        say(&mut model, (id, 0), &negotiation(group)),
        Answer::done()
    );
    (model, id, message(RECEIVE))
}

#[test]
fn a_host_that_fails_is_told_why_once_and_its_connection_ends() {
    for asks in [true, false] {
        let (mut m, id, _) = authenticating(0);
        hear(&mut m, (id, 0));
        assert_eq!(say(&mut m, (id, 0), &wrong_reply(0)), Answer::done());
        if asks {
            let said = hear(&mut m, (id, 0)).data;
            assert_eq!((said[1], said[7]), (FAILURE1, 1));
            assert_eq!(hear(&mut m, (id, 0)).status, Status::SEQUENCE.dnr());
        }
        // A host that has failed cannot try again with any message, and no other command is carried out.
        say(&mut m, (id, 0), &negotiation(0));
        assert_ne!(hear(&mut m, (id, 0)).data.get(1), Some(&1), "no challenge");
        let refused = Status::AUTHENTICATION_REQUIRED.dnr();
        assert_eq!(set(&mut m, id, 0x14, 0x0046_0001).status, refused);
        m.expire(Moment::from_millis(400));
        assert!(m.controller(id).is_some(), "the answer has time to leave");
        m.expire(Moment::from_millis(2000));
        assert_eq!(m.take_notices(), [Notice::Over { controller: id }]);
        assert!(m.is_authenticated(id, 0) && m.controller(id).is_none());
    }
}

/// A host must authenticate within 60 s. Traffic every few seconds does not extend that time.
#[test]
fn a_host_has_a_minute_to_show_who_it_is_whatever_it_says_meanwhile() {
    let (mut m, id, _) = authenticating(0);
    for second in (0..60).step_by(3) {
        m.expire(secs(second));
        let get = sqe(0x7f, 4, [0, 0x1c, 0, 0]);
        m.command(id, 0, &get, 0, secs(second));
        m.hear(id, secs(second));
        assert!(m.controller(id).is_some(), "{second} s");
    }
    assert!(m.expire(secs(59)).is_some_and(|due| due <= secs(60)));
    m.expire(secs(60));
    assert_eq!(m.take_notices(), [Notice::Over { controller: id }]);
}

/// Two connections of a host with a key reply correctly while the limit of hosts' controllers leaves one. A controller
/// counts against that limit only once it has authenticated, so the first connection succeeds and the second is
/// refused.
#[test]
fn a_place_is_looked_for_again_when_a_host_has_authenticated() {
    let mut m = keyed();
    let other = data(&disks(), OTHER, 0xffff);
    for source in 0..u8::MAX {
        let from = Place {
            source: IpAddr::from([192, 0, 3, source]),
            ..place(0)
        };
        while m.controllers().count() < 1023 && m.connect(from, asked(0), &other, secs(0)).is_ok() {
        }
    }
    assert_eq!(m.controllers().count(), 1023);
    let both = [0; 2].map(|_| {
        let id = admin(&mut m, &disks(), HOST);
        say(&mut m, (id, 0), &negotiation(0));
        let challenge = hear(&mut m, (id, 0)).data;
        assert_eq!(
            say(&mut m, (id, 0), &right_reply(&challenge)),
            Answer::done()
        );
        id
    });
    let heard = both.map(|id| hear(&mut m, (id, 0)));
    assert_eq!(
        (code(heard[0].status), heard[0].data[1]),
        (0, 3),
        "SUCCESS1"
    );
    assert!(m.is_authenticated(both[0], 0));
    // Command Interrupted: the host may try again.
    assert_eq!((code(heard[1].status), heard[1].data.len()), (0x21, 0));
    assert!(!m.is_authenticated(both[1], 0));
    let again = hear(&mut m, (both[1], 0));
    assert_eq!(code(again.status), DNR | 0x0c, "its try is over");
    m.expire(secs(1));
    assert!(m.controller(both[0]).is_some());
    assert!(m.controller(both[1]).is_none(), "its connection ends");
}

/// Lines about hosts that have authenticated have budgets of their own.
#[test]
fn strangers_do_not_silence_the_line_that_a_host_has_authenticated() {
    let mut m = keyed();
    for source in 0..64 {
        let from = IpAddr::from([192, 0, 3, source]);
        assert!(m.lines.take(from, "busy", secs(0)).is_some());
    }
    assert!(m.lines.take(place(0).source, "busy", secs(0)).is_none());
    let id = admin(&mut m, &disks(), HOST);
    say(&mut m, (id, 0), &negotiation(0));
    let challenge = hear(&mut m, (id, 0)).data;
    say(&mut m, (id, 0), &right_reply(&challenge));
    let (_, lines) = costs(|| _ = hear(&mut m, (id, 0)));
    assert!(m.is_authenticated(id, 0));
    assert_eq!(lines, 1);
}

/// An attacker may know a controller's number without the key of its host. A failed authentication on an I/O queue
/// therefore ends that queue and not the controller.
#[test]
fn a_failure_on_an_io_queue_ends_that_queue_alone() {
    let mut m = model(true);
    let id = ready(&mut m, &disks(), HOST);
    let keys = keyed().keys;
    m.keys = keys;
    let data = data(&disks(), HOST, id);
    let made = m.connect(place(1), asked(1), &data, secs(0));
    let made = made.expect("a queue");
    assert!(made.must_authenticate);
    // A command that fails on that queue does not enter the error log of the controller's host either.
    assert_eq!(hear(&mut m, (id, 1)).status, Status::SEQUENCE.dnr());
    let given_up = m.begin_step(id, 1, &message(RECEIVE), &[], 4096);
    let answer = m.abandon_step(given_up.expect("a step"));
    assert_eq!(answer.status, Status::INTERRUPTED);
    m.begin_step(id, 1, &sqe(0x7f, RECEIVE, [0; 4]), &[], 4096)
        .expect_err("another protocol");
    let flush = m.command(id, 1, &sqe(0, 1, [0; 4]), 0, secs(0));
    assert_ne!(flush, Outcome::Answered(Answer::done()));
    assert_eq!(at(&log(&mut m, id, 1, 64, 0).data, 0, 8), 0, "no entry");
    say(&mut m, (id, 1), &[0; 8]);
    for second in [3, 4] {
        m.expire(secs(second));
    }
    let told = m.take_notices();
    let over = Notice::Queue {
        connection: made.connection,
    };
    assert_eq!(told, [over], "once");
    assert!(m.controller(id).is_some());
    assert!(!m.is_authenticated(id, 1), "until the connection is gone");
    m.queue_lost(id, 1, made.connection - 1);
    assert!(!m.is_authenticated(id, 1), "the end of another connection");
    m.queue_lost(id, 1, made.connection);
    assert!(m.is_authenticated(id, 1));
}

/// A computed authentication step has no effect on another connection that has taken the queue's number meanwhile.
#[test]
fn a_step_counts_only_for_the_exchange_that_it_was_taken_from() {
    let mut m = model(true);
    let id = ready(&mut m, &disks(), HOST);
    m.keys = keyed().keys;
    let data = data(&disks(), HOST, id);
    let begin = |m: &mut Model| {
        let made = m.connect(place(1), asked(1), &data, secs(0));
        let connection = made.expect("a queue").connection;
        let step = m.begin_step(id, 1, &message(SEND), &negotiation(0), 0);
        (connection, step.expect("a step"))
    };
    let (connection, mut first) = begin(&mut m);
    let second = m.begin_step(id, 1, &message(RECEIVE), &[], 4096);
    assert_eq!(
        second.expect_err("one at a time").status,
        Status::SEQUENCE.dnr()
    );
    m.queue_lost(id, 1, connection);
    let (_, other) = begin(&mut m);
    first.work();
    let (answer, is_known) = m.finish_step(first, secs(1));
    assert_eq!((answer.status, is_known), (Status::ABORTED_QUEUE, false));
    // The step of the second connection is given up before it is computed; its host may try again.
    assert_eq!(m.abandon_step(other).status, Status::INTERRUPTED);
    assert_eq!(say(&mut m, (id, 1), &negotiation(0)), Answer::done());
    assert_eq!(hear(&mut m, (id, 1)).data[1], 1, "a challenge");
}

/// Counts the lines logged at default levels.
struct Lines(Arc<AtomicUsize>);

impl tracing::Subscriber for Lines {
    fn enabled(&self, of: &tracing::Metadata<'_>) -> bool {
        *of.level() <= tracing::Level::INFO
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Returns the cost of a function, and the number of lines that it logs.
pub(super) fn costs(act: impl FnOnce()) -> (Spent, usize) {
    let lines = Arc::new(AtomicUsize::new(0));
    let counting = Lines(Arc::clone(&lines));
    let ((), spent) = tracing::subscriber::with_default(counting, || cost::of(act));
    (spent, lines.load(Ordering::Relaxed))
}

/// Each message of a host that has not authenticated stays within its budget: exponentiations, bytes hashed, log lines.
/// A connection request costs nothing here; docs/nvmeof.md has the whole table.
#[test]
fn each_message_of_a_stranger_costs_no_more_than_its_budget() {
    let lots = negotiation(5);
    let (null, large) = (wrong_reply(0), wrong_reply(5));
    type Act<'a> = &'a dyn Fn(&mut Model, u16);
    let nothing: Act<'_> = &|_, _| {};
    let negotiated: Act<'_> = &|m, id| {
        say(m, (id, 0), &lots);
    };
    let challenged: Act<'_> = &|m, id| {
        say(m, (id, 0), &lots);
        hear(m, (id, 0));
    };
    let challenged_without: Act<'_> = &|m, id| {
        say(m, (id, 0), &negotiation(0));
        hear(m, (id, 0));
    };
    let failed: Act<'_> = &|m, id| {
        challenged(m, id);
        say(m, (id, 0), &large);
    };
    let table: [(&str, Act<'_>, Act<'_>, u32, usize, usize); 13] = [
        (
            "Connect",
            nothing,
            &|m, _| _ = admin(m, &disks(), HOST),
            0,
            0,
            1,
        ),
        (
            "Connect to discovery",
            nothing,
            &|m, _| _ = admin(m, &name(DISCOVERY), HOST),
            0,
            0,
            1,
        ),
        (
            "Property Get",
            nothing,
            &|m, id| _ = get(m, id, 0x1c, false),
            0,
            0,
            0,
        ),
        (
            "Property Set",
            nothing,
            &|m, id| _ = set(m, id, 0x14, 1),
            0,
            0,
            0,
        ),
        (
            "Identify",
            nothing,
            &|m, id| _ = command(m, id, &sqe(0x06, 0, [1, 0, 0, 0])),
            0,
            0,
            0,
        ),
        (
            "any other",
            nothing,
            &|m, id| _ = command(m, id, &sqe(0xff, 0, [0; 4])),
            0,
            0,
            0,
        ),
        ("NEGOTIATE", nothing, negotiated, 0, 0, 0),
        ("NEGOTIATE again", negotiated, negotiated, 0, 0, 1),
        (
            "CHALLENGE",
            negotiated,
            &|m, id| _ = hear(m, (id, 0)),
            1,
            0,
            0,
        ),
        (
            "CHALLENGE again",
            challenged,
            &|m, id| _ = hear(m, (id, 0)),
            0,
            0,
            0,
        ),
        (
            "REPLY",
            challenged_without,
            &|m, id| _ = say(m, (id, 0), &null),
            0,
            512,
            1,
        ),
        (
            "REPLY with a power",
            challenged,
            &|m, id| _ = say(m, (id, 0), &large),
            1,
            2048,
            1,
        ),
        (
            "REPLY again",
            failed,
            &|m, id| _ = say(m, (id, 0), &large),
            0,
            0,
            0,
        ),
    ];
    for (kind, before, act, powers, hashed, lines) in table {
        let mut m = keyed();
        let id = admin(&mut m, &disks(), HOST);
        before(&mut m, id);
        let (spent, written) = costs(|| act(&mut m, id));
        assert_eq!(spent.powers, powers, "{kind}");
        assert!(spent.hashed <= hashed, "{kind}: {spent:?}");
        assert!(written <= lines, "{kind}: {written} lines");
    }
}

/// 2,000 Connects from one address within two seconds log at most eight lines of each of three kinds.
#[test]
fn thousands_of_connects_of_a_source_are_a_few_lines_of_each_kind() {
    let mut m = keyed();
    let (_, lines) = costs(|| {
        for number in 0..2000 {
            let now = Moment::from_millis(number);
            let data = data(&disks(), HOST, 0xffff);
            let made = m.connect(place(0), asked(0), &data, now);
            let made = made.expect("room");
            say(&mut m, (made.controller, 0), &[0; 8]);
            m.queue_lost(made.controller, 0, made.connection);
        }
    });
    assert!(lines <= 3 * 8, "{lines}");
}

#[test]
fn a_hosts_name_is_any_text_unless_names_are_strict() {
    for (host, is_name) in [("not-a-nqn", false), (HOST, true), ("", false)] {
        for strict in [false, true] {
            let mut m = model(true);
            m.set_strict(strict);
            let mut data = data(&disks(), HOST, 0xffff);
            data.host = [0; 256];
            data.host[..host.len()].copy_from_slice(host.as_bytes());
            let made = m.connect(place(0), asked(0), &data, secs(0));
            let is_in = is_name || !strict && !host.is_empty();
            let refused = made
                .err()
                .map(|refused| (code(refused.status), refused.result));
            let expected = (!is_in).then_some((0x182 | DNR, 0x1_0200));
            assert_eq!(refused, expected, "{host:?} {strict}");
        }
    }
}
