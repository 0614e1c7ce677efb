//! Handling of the numbers that a peer sets in its messages.
//!
//! Each field of a REQ and of a REP is a row of [`PEER_NUMBERS`]. A test goes through the table with every value of
//! small fields and with the extreme values of wide ones (`cm/tests/numbers.rs`). It also compares the table with
//! `docs/decisions/strangers.md`.

/// Treatment of a field of a received message by the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// The field is not read.
    Ignored,
    /// The field is an identifier. It has a meaning only together with the sender's address.
    Name,
    /// The value is used unchanged.
    AsItIs,
    /// The value is used up to a limit that we set.
    Bounded,
    /// Some values make us refuse the whole message.
    Refused,
}

/// A field of a message.
#[derive(Clone, Copy, Debug)]
pub struct PeerNumber {
    /// Name of the message, "REQ" or "REP".
    pub message: &'static str,
    /// Name of the field in [`ReqRepr`](super::wire::ReqRepr) or [`RepRepr`](super::wire::RepRepr).
    pub field: &'static str,
    /// Treatment of the field.
    pub treatment: Treatment,
    /// Use of the field, and the reason why no value of it does harm.
    pub why: &'static str,
}

const fn row(
    message: &'static str,
    field: &'static str,
    treatment: Treatment,
    why: &'static str,
) -> PeerNumber {
    PeerNumber {
        message,
        field,
        treatment,
        why,
    }
}

use Treatment::{AsItIs, Bounded, Ignored, Name, Refused};

/// The fields of a REQ and of a REP.
#[rustfmt::skip]
pub const PEER_NUMBERS: &[PeerNumber] = &[
    row("REQ", "local_comm_id", Name, "means a connection only together with the source address and the GUID"),
    row("REQ", "service_id", Refused, "without a listener there: reason 8"),
    row("REQ", "local_ca_guid", Name, "means an adapter only together with the source address"),
    row("REQ", "local_q_key", Ignored, "of datagram services"),
    row("REQ", "local_qpn", AsItIs, "our packets go to that queue pair of the source address, and to no other address"),
    row("REQ", "responder_resources", AsItIs, "RDMA Reads outstanding here: the endpoint's own number, if that is smaller"),
    row("REQ", "local_eecn", Ignored, "of reliable datagrams"),
    row("REQ", "initiator_depth", AsItIs, "told to the program; the endpoint's own number goes into the queue pair"),
    row("REQ", "remote_eecn", Ignored, "of reliable datagrams"),
    row("REQ", "remote_response_timeout", Bounded, "how long we let it wait before an MRA, and how long a refusal is remembered: 8.6 s at most (code 21)"),
    row("REQ", "transport", Refused, "if not RC: reason 9"),
    row("REQ", "flow_control", Ignored, "queue pairs here have no end-to-end credits"),
    row("REQ", "starting_psn", AsItIs, "24 bits, of which every value is good"),
    row("REQ", "local_response_timeout", Bounded, "how long we wait for an RTU: 8.6 s at most (code 21) for each repetition"),
    row("REQ", "retry_count", AsItIs, "0 to 7 repetitions of a packet, which end; the endpoint's own setting goes before"),
    row("REQ", "partition_key", Ignored, "RoCE has the default partition"),
    row("REQ", "mtu", Refused, "if not 1 to that of our port: reason 26"),
    row("REQ", "rdc_exists", Ignored, "of reliable datagrams"),
    row("REQ", "rnr_retry", Bounded, "by the adapter's `rnr_retry`, 6 by default; the endpoint's own setting goes before, and only it can say 7, for ever"),
    row("REQ", "max_cm_retries", AsItIs, "0 to 15 repetitions of our REP, each of a bounded time"),
    row("REQ", "srq", AsItIs, "told to the program"),
    row("REQ", "extended_transport", Ignored, "means something with transport 3 only, which is refused"),
    row("REQ", "primary.local_lid", Ignored, "RoCE has no LIDs"),
    row("REQ", "primary.remote_lid", Ignored, "RoCE has no LIDs"),
    row("REQ", "primary.local_gid", Refused, "if it is not the source address: reason 12"),
    row("REQ", "primary.remote_gid", Ignored, "the datagram's own destination counts"),
    row("REQ", "primary.flow_label", AsItIs, "of our packets to it; the endpoint's own setting goes before"),
    row("REQ", "primary.packet_rate", Ignored, "the queue pair has the port's"),
    row("REQ", "primary.traffic_class", AsItIs, "of our packets to it; the endpoint's own setting goes before"),
    row("REQ", "primary.hop_limit", Ignored, "that of the datagram counts, as with Linux"),
    row("REQ", "primary.sl", AsItIs, "its lower three bits are the priority of our packets to it; the endpoint's own setting goes before"),
    row("REQ", "primary.subnet_local", Ignored, "the hop limit says it"),
    row("REQ", "primary.ack_timeout", Bounded, "by `max_ack_timeout`, 17 s (code 22); 0, for ever, is that too; the endpoint's own setting goes before"),
    row("REQ", "alternate", Ignored, "there is no path migration"),
    row("REQ", "private_data", AsItIs, "told to the program; the RDMA CM's header is refused with an unknown version or another source address"),
    row("REP", "local_comm_id", Name, "means a connection only together with the source address and the GUID"),
    row("REP", "remote_comm_id", Refused, "if it is not ours of a request to that address: reason 6"),
    row("REP", "local_q_key", Ignored, "of datagram services"),
    row("REP", "local_qpn", AsItIs, "our packets go to that queue pair of the source address, and to no other address"),
    row("REP", "local_eecn", Ignored, "of reliable datagrams"),
    row("REP", "starting_psn", AsItIs, "24 bits, of which every value is good"),
    row("REP", "responder_resources", AsItIs, "RDMA Reads outstanding here: the endpoint's own number, if that is smaller"),
    row("REP", "initiator_depth", AsItIs, "not used: the endpoint's own number goes into the queue pair"),
    row("REP", "target_ack_delay", Bounded, "the ACK timeout made of it is at most `max_ack_timeout`, 17 s (code 22)"),
    row("REP", "failover_accepted", Ignored, "there is no path migration"),
    row("REP", "flow_control", Ignored, "queue pairs here have no end-to-end credits"),
    row("REP", "rnr_retry", Bounded, "as in the REQ"),
    row("REP", "srq", Ignored, "it is the peer's business"),
    row("REP", "local_ca_guid", Name, "means an adapter only together with the source address"),
    row("REP", "private_data", AsItIs, "told to the program"),
];
