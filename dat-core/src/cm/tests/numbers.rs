//! Tests of every number that a peer sets in a REQ or a REP: all values of a small field, the extremes of a wide one.

use super::strangers::{STRANGER, b_takes, drained, reject_of, reply_to, request_from, takes};
use super::wire::{PathRepr, RepRepr};
use super::*;

/// A field of a message: its name, its width in bits, and the function that sets it.
struct Field<T> {
    name: &'static str,
    bits: u32,
    set: fn(&mut T, u64),
}

/// Converts a number to the width of a field.
fn of<T: TryFrom<u64>>(value: u64) -> T {
    T::try_from(value).unwrap_or_else(|_| panic!("{value:#x} does not fit"))
}

/// Writes a number to the last eight bytes of a GID or of private data.
fn at_end(bytes: &mut [u8], value: u64) {
    let at = bytes.len() - 8;
    bytes[at..].copy_from_slice(&value.to_be_bytes());
}

/// Makes the table of a message's fields. The code does not compile if the table lacks a field of the message.
macro_rules! fields {
    ($message:ident { $($field:ident: $bits:literal, $set:expr;)* }) => {{
        #[allow(unused, reason = "it only has to compile")]
        fn is_complete(message: $message) {
            let $message { $($field),* } = message;
        }
        vec![$(Field::<$message> { name: stringify!($field), bits: $bits, set: $set }),*]
    }};
}

fn of_req() -> Vec<Field<ReqRepr>> {
    let all = fields!(ReqRepr {
        local_comm_id: 32, |it, to| it.local_comm_id = of(to);
        service_id: 64, |it, to| it.service_id = to;
        local_ca_guid: 64, |it, to| it.local_ca_guid = to;
        local_q_key: 32, |it, to| it.local_q_key = of(to);
        local_qpn: 24, |it, to| it.local_qpn = Qpn::new(of(to));
        responder_resources: 8, |it, to| it.responder_resources = of(to);
        local_eecn: 24, |it, to| it.local_eecn = of(to);
        initiator_depth: 8, |it, to| it.initiator_depth = of(to);
        remote_eecn: 24, |it, to| it.remote_eecn = of(to);
        remote_response_timeout: 5, |it, to| it.remote_response_timeout = of(to);
        transport: 2, |it, to| it.transport = of(to);
        flow_control: 1, |it, to| it.flow_control = to != 0;
        starting_psn: 24, |it, to| it.starting_psn = Psn::masked(of(to));
        local_response_timeout: 5, |it, to| it.local_response_timeout = of(to);
        retry_count: 3, |it, to| it.retry_count = of(to);
        partition_key: 16, |it, to| it.partition_key = of(to);
        mtu: 4, |it, to| it.mtu = of(to);
        rdc_exists: 1, |it, to| it.rdc_exists = to != 0;
        rnr_retry: 3, |it, to| it.rnr_retry = of(to);
        max_cm_retries: 4, |it, to| it.max_cm_retries = of(to);
        srq: 1, |it, to| it.srq = to != 0;
        extended_transport: 3, |it, to| it.extended_transport = of(to);
        primary: 0, |_, _| {};
        alternate: 20, |it, to| it.alternate.flow_label = of(to);
        private_data: 64, |it, to| at_end(&mut it.private_data, to);
    });
    let primary = fields!(PathRepr {
        local_lid: 16, |it, to| it.local_lid = of(to);
        remote_lid: 16, |it, to| it.remote_lid = of(to);
        local_gid: 64, |it, to| at_end(&mut it.local_gid, to);
        remote_gid: 64, |it, to| at_end(&mut it.remote_gid, to);
        flow_label: 20, |it, to| it.flow_label = of(to);
        packet_rate: 6, |it, to| it.packet_rate = of(to);
        traffic_class: 8, |it, to| it.traffic_class = of(to);
        hop_limit: 8, |it, to| it.hop_limit = of(to);
        sl: 4, |it, to| it.sl = of(to);
        subnet_local: 1, |it, to| it.subnet_local = to != 0;
        ack_timeout: 5, |it, to| it.ack_timeout = of(to);
    });
    assert_eq!(primary.len(), OF_PRIMARY.len());
    let all = all.into_iter().filter(|field| field.name != "primary");
    let in_path = OF_PRIMARY
        .into_iter()
        .zip(primary)
        .map(|((name, set), field)| {
            assert!(name.ends_with(field.name));
            let bits = field.bits;
            Field { name, bits, set }
        });
    all.chain(in_path).collect()
}

/// A function that writes a number into a field.
type Write<T> = fn(&mut T, u64);

/// Name and setter of each field of the primary path, as a field of the REQ.
#[rustfmt::skip]
const OF_PRIMARY: [(&str, Write<ReqRepr>); 11] = [
    ("primary.local_lid", |it, to| it.primary.local_lid = of(to)),
    ("primary.remote_lid", |it, to| it.primary.remote_lid = of(to)),
    ("primary.local_gid", |it, to| at_end(&mut it.primary.local_gid, to)),
    ("primary.remote_gid", |it, to| at_end(&mut it.primary.remote_gid, to)),
    ("primary.flow_label", |it, to| it.primary.flow_label = of(to)),
    ("primary.packet_rate", |it, to| it.primary.packet_rate = of(to)),
    ("primary.traffic_class", |it, to| it.primary.traffic_class = of(to)),
    ("primary.hop_limit", |it, to| it.primary.hop_limit = of(to)),
    ("primary.sl", |it, to| it.primary.sl = of(to)),
    ("primary.subnet_local", |it, to| it.primary.subnet_local = to != 0),
    ("primary.ack_timeout", |it, to| it.primary.ack_timeout = of(to)),
];

fn of_rep() -> Vec<Field<RepRepr>> {
    fields!(RepRepr {
        local_comm_id: 32, |it, to| it.local_comm_id = of(to);
        remote_comm_id: 32, |it, to| it.remote_comm_id = of(to);
        local_q_key: 32, |it, to| it.local_q_key = of(to);
        local_qpn: 24, |it, to| it.local_qpn = Qpn::new(of(to));
        local_eecn: 24, |it, to| it.local_eecn = of(to);
        starting_psn: 24, |it, to| it.starting_psn = Psn::masked(of(to));
        responder_resources: 8, |it, to| it.responder_resources = of(to);
        initiator_depth: 8, |it, to| it.initiator_depth = of(to);
        target_ack_delay: 5, |it, to| it.target_ack_delay = of(to);
        failover_accepted: 2, |it, to| it.failover_accepted = of(to);
        flow_control: 1, |it, to| it.flow_control = to != 0;
        rnr_retry: 3, |it, to| it.rnr_retry = of(to);
        srq: 1, |it, to| it.srq = to != 0;
        local_ca_guid: 64, |it, to| it.local_ca_guid = to;
        private_data: 64, |it, to| at_end(&mut it.private_data, to);
    })
}

/// Returns all values of a small field. For a wide field, returns 0, the two largest values, and each single bit.
fn values(bits: u32) -> Vec<u64> {
    if bits <= 8 {
        return (0..1 << bits).collect();
    }
    let most = u64::MAX >> (64 - bits);
    let bit = (0..bits).map(|place| 1 << place);
    [0, most - 1, most].into_iter().chain(bit).collect()
}

/// Returns the treatment of a field according to `PEER_NUMBERS`.
fn treatment(message: &str, field: &str) -> Treatment {
    let rows = PEER_NUMBERS.iter();
    let mut rows = rows.filter(|row| (row.message, row.field) == (message, field));
    let row = rows
        .next()
        .unwrap_or_else(|| panic!("{message} {field} has no row"));
    assert!(rows.next().is_none(), "{message} {field} has two rows");
    row.treatment
}

/// Returns the values in an event that come from a single field each, with the name of that field.
fn values_reported(event: &CmEvent) -> Vec<(&'static str, u64)> {
    let data = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum + u64::from(*byte));
    match event {
        CmEvent::Request { conn: _, request } => {
            let PeerRequest {
                listen: _,
                service_id,
                remote_gid: _,
                path,
                remote_qpn,
                remote_psn,
                reads_in,
                reads_out,
                mtu,
                ack_timeout,
                retry_count,
                rnr_retry,
                private_data,
                remote_port: _,
                srq,
            } = &**request;
            vec![
                ("service_id", *service_id),
                ("local_qpn", remote_qpn.get().into()),
                ("starting_psn", remote_psn.get().into()),
                ("initiator_depth", (*reads_in).into()),
                ("responder_resources", (*reads_out).into()),
                ("mtu", (*mtu).into()),
                ("primary.ack_timeout", (*ack_timeout).into()),
                ("retry_count", (*retry_count).into()),
                ("rnr_retry", (*rnr_retry).into()),
                ("srq", (*srq).into()),
                ("primary.flow_label", path.flow_label.into()),
                ("primary.traffic_class", path.traffic_class.into()),
                ("primary.sl", path.priority.into()),
                ("primary.hop_limit", path.hop_limit.into()),
                ("private_data", data(private_data)),
            ]
        }
        CmEvent::Reply {
            conn: _,
            reply:
                PeerReply {
                    remote_qpn,
                    remote_psn,
                    reads_in,
                    reads_out,
                    rnr_retry,
                    ack_timeout,
                    private_data,
                },
        } => vec![
            ("local_qpn", remote_qpn.get().into()),
            ("starting_psn", remote_psn.get().into()),
            ("initiator_depth", (*reads_in).into()),
            ("responder_resources", (*reads_out).into()),
            ("rnr_retry", (*rnr_retry).into()),
            ("target_ack_delay", (*ack_timeout).into()),
            ("private_data", data(private_data)),
        ],
        CmEvent::Established { .. }
        | CmEvent::Rejected { .. }
        | CmEvent::Unreachable { .. }
        | CmEvent::TimedOut { .. }
        | CmEvent::Disconnected { .. }
        | CmEvent::DisconnectDone { .. }
        | CmEvent::AcceptFailed { .. } => panic!("{event:?}"),
    }
}

/// Upper limit, in nanoseconds, for the time that a REQ can keep a connection that is not established.
const GONE: Nanos = 180 * SECOND;

/// Checks that a field, whatever its value, affects the event only as its row says.
#[track_caller]
fn judge(message: &str, field: &str, value: u64, usual: &CmEvent, event: Option<&CmEvent>) {
    let treatment = treatment(message, field);
    let Some(event) = event else {
        assert_eq!(
            treatment,
            Treatment::Refused,
            "{message} {field} {value:#x}"
        );
        return;
    };
    for ((name, was), (_, is)) in values_reported(usual)
        .into_iter()
        .zip(values_reported(event))
    {
        let what = format!("{message} {field} {value:#x}: {name} {is:#x}");
        if name != field {
            assert_eq!(is, was, "{what}");
            continue;
        }
        match treatment {
            Treatment::Ignored | Treatment::Name => assert_eq!(is, was, "{what}"),
            Treatment::AsItIs if field == "private_data" => {}
            Treatment::AsItIs if field == "primary.sl" => assert_eq!(is, value & 7, "{what}"),
            Treatment::AsItIs | Treatment::Refused => assert_eq!(is, value, "{what}"),
            // `tests/transport.rs` checks the limit, which is applied to the queue pair.
            Treatment::Bounded if field == "rnr_retry" => assert_eq!(is, value, "{what}"),
            Treatment::Bounded => {
                let most = Config::default().max_ack_timeout.into();
                assert!((1..=most).contains(&is), "{what}");
            }
        }
    }
}

#[test]
fn every_number_of_a_req_does_what_its_row_says_and_ends_in_time() {
    let fields = of_req();
    let rows = PEER_NUMBERS.iter().filter(|row| row.message == "REQ");
    assert_eq!(rows.count(), fields.len());
    let ask = |change: &dyn Fn(&mut ReqRepr)| {
        let mut pair = Pair::listening();
        let mad = request_from(STRANGER, 77, change);
        let answers = b_takes(&mut pair, STRANGER, &mad);
        let event = drained(&mut pair.b).pop();
        (pair, answers, event)
    };
    let (_, _, usual) = ask(&|_| {});
    let usual = usual.expect("a request");
    for field in fields {
        for value in values(field.bits) {
            let what = format!("{} {value:#x}", field.name);
            let (mut pair, answers, event) = ask(&|req| (field.set)(req, value));
            judge("REQ", field.name, value, &usual, event.as_ref());
            let Some(event) = event else {
                assert!(reject_of(&answers).is_some(), "{what}");
                assert_eq!(pair.b.connections(), 0, "{what}");
                continue;
            };
            let conn = event.conn();
            let accepted = pair.b.accept(pair.now, conn, accept_params());
            accepted.expect("a request");
            is_over_in_time(&mut pair.b, pair.now, &what);
            pair.b.release(pair.now, conn);
            assert_eq!(pair.b.connections(), 0, "{what}");
        }
    }
}

/// Lets all timers of a connection manager expire, with a silent peer. Checks that this takes less than `GONE`.
fn is_over_in_time(cm: &mut Cm, begun: Nanos, what: &str) {
    let mut now = begun;
    while let Some(at) = cm.next_timeout() {
        now = at;
        cm.handle_timeout(at);
        while cm.poll_transmit().is_some() {}
    }
    assert!(now - begun < GONE, "{what}: {} s", (now - begun) / SECOND);
}

#[test]
fn every_number_of_a_rep_does_what_its_row_says() {
    let fields = of_rep();
    let rows = PEER_NUMBERS.iter().filter(|row| row.message == "REP");
    assert_eq!(rows.count(), fields.len());
    let answered = |change: &dyn Fn(&mut RepRepr)| {
        let mut pair = Pair::listening();
        pair.connect(connect_params());
        let (_, mad) = pair.a.poll_transmit().expect("a REQ");
        let Ok((tid, Message::Rep(mut rep))) = Message::parse(&reply_to(&mad, 16)) else {
            panic!("a REP")
        };
        change(&mut rep);
        let now = pair.now;
        let answers = takes(&mut pair.a, now, B.gid(), &Message::Rep(rep).to_mad(tid), 1);
        (answers, drained(&mut pair.a).pop())
    };
    let (_, usual) = answered(&|_| {});
    let usual = usual.expect("a reply");
    for field in fields {
        for value in values(field.bits) {
            let (answers, event) = answered(&|rep| (field.set)(rep, value));
            judge("REP", field.name, value, &usual, event.as_ref());
            assert_eq!(
                event.is_none(),
                reject_of(&answers).is_some(),
                "{}",
                field.name
            );
        }
    }
}

/// A peer cannot keep an accepted request for long by answering each repetition of our reply with an MRA, even if the
/// MRA names the longest service timeout (31, 2.4 hours).
#[test]
fn receipt_acknowledgements_do_not_keep_an_accepted_request_for_long() {
    let mut pair = Pair::listening();
    let mad = request_from(STRANGER, 77, |req| {
        req.local_response_timeout = 31;
        req.max_cm_retries = 15;
    });
    b_takes(&mut pair, STRANGER, &mad);
    let [CmEvent::Request { conn, .. }] = drained(&mut pair.b)[..] else {
        panic!("one request")
    };
    let accepted = pair.b.accept(pair.now, conn, accept_params());
    accepted.expect("a request");
    let (ours, theirs) = {
        let it = &pair.b.conns[conn];
        (it.local_id, it.remote_id.expect("it said so"))
    };
    let mra = Message::Mra(wire::MraRepr {
        local_comm_id: theirs,
        remote_comm_id: ours,
        acknowledged: wire::Rejected::Rep,
        service_timeout: 31,
    });
    let begun = pair.now;
    while matches!(
        pair.b.state(conn),
        Some(State::RepSent | State::RepAcknowledged)
    ) {
        while pair.b.poll_transmit().is_some() {}
        // The MRA arrives just before the deadline, which prolongs the request the most.
        let until = pair.b.next_timeout().expect("it ends");
        pair.now = until - 1;
        b_takes(&mut pair, STRANGER, &mra.to_mad(1));
        pair.now = pair.b.next_timeout().expect("it ends").max(until);
        pair.b.handle_timeout(pair.now);
    }
    let took = (pair.now - begun) / SECOND;
    assert!(took < 210, "{took} s");
    assert_eq!(drained(&mut pair.b), [CmEvent::AcceptFailed { conn }]);
}

/// The table in `docs/decisions/strangers.md` has the same rows as `PEER_NUMBERS`.
#[test]
fn the_table_is_that_of_the_page() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../docs/decisions/strangers.md"
    );
    let page = std::fs::read_to_string(path).expect("a page");
    for row in PEER_NUMBERS {
        let what = match row.treatment {
            Treatment::Ignored => "ignored",
            Treatment::Name => "a name",
            Treatment::AsItIs => "as it is",
            Treatment::Bounded => "bounded",
            Treatment::Refused => "refused",
        };
        let line = format!(
            "| {} | `{}` | {what} | {} |",
            row.message, row.field, row.why
        );
        assert!(page.contains(&line), "{line}");
    }
    let is_row = |line: &&str| line.starts_with("| REQ |") || line.starts_with("| REP |");
    assert_eq!(page.lines().filter(is_row).count(), PEER_NUMBERS.len());
}
