//! Counters.

/// Reason why a frame was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub enum Refusal {
    /// Shorter than its own length fields, or a field has an illegal value.
    Malformed,
    /// A checksum is wrong.
    Checksum,
    /// A router has forwarded a message that must stay on the link (RFC 4861, 7.1).
    HopLimit,
    /// A fragment of a packet.
    Fragment,
    /// Of a kind that is not handled: another protocol, router advertisements, redirects, errors.
    Kind,
    /// For another station, or for a group that we have not joined.
    Elsewhere,
    /// In a VLAN in which we have no address.
    Vlan,
    /// About an address that is not ours, not yet ours, or not ours in this VLAN.
    Address,
    /// From an address that cannot be a sender's, or with a MAC that is not one station's.
    Sender,
    /// From our own MAC: our own frame has come back, or another node uses our MAC.
    Ourselves,
    /// About a neighbour that we did not ask for, or an echo reply that we do not expect.
    Unasked,
    /// The link is down.
    LinkDown,
}

/// Number of reasons.
const REFUSALS: usize = Refusal::LinkDown as usize + 1;

/// Counters since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames received.
    pub received: u64,
    /// ARP requests among these, including probes and announcements.
    pub arp_requests: u64,
    /// ARP replies.
    pub arp_replies: u64,
    /// Neighbour solicitations.
    pub solicitations: u64,
    /// Neighbour advertisements.
    pub advertisements: u64,
    /// Echo requests.
    pub echo_requests: u64,
    /// Echo replies.
    pub echo_replies: u64,
    /// Queries of MLDv2.
    pub queries: u64,
    refused: [u64; REFUSALS],

    /// Requests sent to all, by broadcast or multicast.
    pub asked_all: u64,
    /// Requests sent by unicast to a neighbour with a known MAC.
    pub asked_one: u64,
    /// Requests delayed by the rate limit.
    pub asks_put_off: u64,
    /// Replies sent to requests for our addresses.
    pub answered: u64,
    /// Echo replies sent.
    pub echoed: u64,
    /// Requests not answered, because of the rate limit or because the reply would have been too long.
    pub unanswered: u64,
    /// Announcements of our addresses.
    pub announced: u64,
    /// Probes that check whether an address of ours is in use.
    pub probed: u64,
    /// Announcements that defend an address of ours against another user.
    pub defended: u64,
    /// Reports of our groups sent.
    pub reported: u64,

    /// Frames and requests that claim an address of ours for another node.
    pub conflicts: u64,
    /// Messages with another MAC than the neighbour's known one.
    pub contradicted: u64,
    /// Neighbours that were found to have another MAC.
    pub moved: u64,
    /// Neighbours dropped from the full table.
    pub evicted: u64,
    /// Current number of neighbours in the table; this counter also decreases.
    pub neighbours: u64,
    /// Frames not sent, because the queue was full or the caller's buffer was too short.
    pub frames_lost: u64,
    /// Events lost because the caller did not fetch them in time.
    pub events_lost: u64,
}

impl Counters {
    /// Returns the number of frames refused for this reason.
    #[must_use]
    pub const fn refused(&self, why: Refusal) -> u64 {
        self.refused[why as usize]
    }

    pub(crate) const fn refuse(&mut self, why: Refusal) {
        self.refused[why as usize] += 1;
    }
}
