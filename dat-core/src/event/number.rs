//! Event numbers and their names, for readers of logs: the numbers of DAT 1.2 with their names in `dat.h`, and those
//! that this library adds.

use super::ConnectionEventKind;

/// A `DAT_EVENT_NUMBER` with its name and meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventNumber {
    /// The number.
    pub number: u32,
    /// Name in `dat.h`. For numbers that have no name in C: the name in Rust.
    pub name: &'static str,
    /// Meaning of the event.
    pub means: &'static str,
}

const fn event(number: u32, name: &'static str, means: &'static str) -> EventNumber {
    EventNumber {
        number,
        name,
        means,
    }
}

/// All event numbers, in ascending order.
pub const EVENT_NUMBERS: [EventNumber; 27] = [
    event(
        0x00001,
        "DAT_DTO_COMPLETION_EVENT",
        "a Send, Receive, RDMA Read or RDMA Write is over; its status says how",
    ),
    event(
        0x01001,
        "DAT_RMR_BIND_COMPLETION_EVENT",
        "the bind of an RMR is over; its status says how",
    ),
    event(
        0x02001,
        "DAT_CONNECTION_REQUEST_EVENT",
        "somebody asks for a connection: accept or reject it",
    ),
    event(
        0x04001,
        "DAT_CONNECTION_EVENT_ESTABLISHED",
        "the connection is established",
    ),
    event(
        0x04002,
        "DAT_CONNECTION_EVENT_PEER_REJECTED",
        "the peer's program rejected the request; its private data may say why",
    ),
    event(
        0x04003,
        "DAT_CONNECTION_EVENT_NON_PEER_REJECTED",
        "nobody listens at the qualifier, or a connection manager on the way rejected the request",
    ),
    event(
        0x04004,
        "DAT_CONNECTION_EVENT_ACCEPT_COMPLETION_ERROR",
        "an accepted request did not become a connection: the client gave up first",
    ),
    event(
        0x04005,
        "DAT_CONNECTION_EVENT_DISCONNECTED",
        "one of the two sides ended the connection",
    ),
    event(
        0x04006,
        "DAT_CONNECTION_EVENT_BROKEN",
        "an error ended the connection: look at the first failed completion",
    ),
    event(
        0x04007,
        "DAT_CONNECTION_EVENT_TIMED_OUT",
        "the time given to the connect is over: the server's program may not look at its EVD",
    ),
    event(
        0x04008,
        "DAT_CONNECTION_EVENT_UNREACHABLE",
        "the peer does not answer: check the address, and the port of both sides",
    ),
    event(
        0x08001,
        "DAT_ASYNC_ERROR_EVD_OVERFLOW",
        "an event was lost, since its EVD was full",
    ),
    event(
        0x08002,
        "DAT_ASYNC_ERROR_IA_CATASTROPHIC",
        "the device is dead, or is wanted back: close the adapter",
    ),
    event(
        0x08003,
        "DAT_ASYNC_ERROR_EP_BROKEN",
        "an endpoint is broken beyond its connection",
    ),
    event(
        0x08004,
        "DAT_ASYNC_ERROR_TIMED_OUT",
        "a number of DAT 1.2 that this library does not use",
    ),
    event(
        0x08005,
        "DAT_ASYNC_ERROR_PROVIDER_INTERNAL_ERROR",
        "something in the provider went wrong; the handle says with what",
    ),
    event(
        0x08010,
        "DAT_EP_SOFT_HIGH_WATERMARK_NUMBER",
        "more receive buffers than its soft high watermark are at an endpoint; no error",
    ),
    event(
        0x08011,
        "DAT_SRQ_LOW_WATERMARK_NUMBER",
        "fewer buffers than its low watermark are on an SRQ; no error",
    ),
    event(0x08020, "NetworkEvent::PortDown", "the port is down"),
    event(0x08021, "NetworkEvent::PortUp", "the port is up"),
    event(
        0x08022,
        "NetworkEvent::AddressAdded",
        "the adapter has one more address",
    ),
    event(
        0x08023,
        "NetworkEvent::AddressRemoved",
        "the adapter has one address less",
    ),
    event(
        0x08024,
        "NetworkEvent::AddressDuplicate",
        "another station uses an address of ours, too",
    ),
    event(
        0x08025,
        "NetworkEvent::NeighbourMoved",
        "a neighbour has another MAC now",
    ),
    event(
        0x08026,
        "NetworkEvent::NeighbourLost",
        "a neighbour does not answer any more",
    ),
    event(
        0x08027,
        "NetworkEvent::NotJoined",
        "the adapter takes no part in the network",
    ),
    event(
        0x10001,
        "DAT_SOFTWARE_EVENT",
        "a word that a program of this process has posted",
    ),
];

impl ConnectionEventKind {
    /// Returns the name in `dat.h`.
    #[must_use]
    pub fn name(self) -> &'static str {
        let named = EVENT_NUMBERS.iter().find(|one| one.number == self.number());
        // PANIC: a test looks up the name of every kind.
        named.expect("every kind has a name").name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{AsyncEvent, NetworkEvent};

    #[test]
    fn numbers_are_in_order_and_each_kind_of_event_has_one() {
        assert!(EVENT_NUMBERS.is_sorted_by(|one, next| one.number < next.number));
        let kinds = [
            (ConnectionEventKind::Established, "ESTABLISHED"),
            (ConnectionEventKind::PeerRejected, "PEER_REJECTED"),
            (ConnectionEventKind::NonPeerRejected, "NON_PEER_REJECTED"),
            (
                ConnectionEventKind::AcceptCompletionError,
                "ACCEPT_COMPLETION_ERROR",
            ),
            (ConnectionEventKind::Disconnected, "DISCONNECTED"),
            (ConnectionEventKind::Broken, "BROKEN"),
            (ConnectionEventKind::TimedOut, "TIMED_OUT"),
            (ConnectionEventKind::Unreachable, "UNREACHABLE"),
        ];
        for (kind, name) in kinds {
            assert_eq!(kind.name(), format!("DAT_CONNECTION_EVENT_{name}"));
        }
        for event in [
            AsyncEvent::IaCatastrophic,
            AsyncEvent::ProviderInternalError,
            AsyncEvent::Network(NetworkEvent::PortDown),
        ] {
            let number = event.number();
            assert!(
                EVENT_NUMBERS.iter().any(|one| one.number == number),
                "{event:?}"
            );
        }
    }
}
