//! What happened, in numbers.

/// Why a frame was not looked at further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub enum Refusal {
    /// Too short for what it says it is, or a field has what it must not have.
    Malformed,
    /// A checksum is wrong.
    Checksum,
    /// A router has forwarded what must not be forwarded (RFC 4861, 7.1).
    HopLimit,
    /// A part of a packet.
    Fragment,
    /// Nothing that we take: another protocol, router advertisements, redirects, errors.
    Kind,
    /// For another station, or for a group that we are not in.
    Elsewhere,
    /// In a VLAN in which we have no address.
    Vlan,
    /// About an address that is not ours, or not yet, or not in this VLAN.
    Address,
    /// From an address that nobody can send from, or with a MAC that is not one station's.
    Sender,
    /// From our own MAC: our own frame has come back, or somebody pretends to be us.
    Ourselves,
    /// About a neighbour that we do not ask for, or an echo that we do not wait for.
    Unasked,
    /// The link is down.
    LinkDown,
}

/// How many there are.
const REFUSALS: usize = Refusal::LinkDown as usize + 1;

/// What happened since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that came.
    pub received: u64,
    /// Among these: ARP requests, probes and announcements included.
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

    /// Questions that we sent to all.
    pub asked_all: u64,
    /// Questions that we sent to one neighbour that had a MAC.
    pub asked_one: u64,
    /// Questions that were put off, since there were too many.
    pub asks_put_off: u64,
    /// Answers to who asked for us.
    pub answered: u64,
    /// Echoes.
    pub echoed: u64,
    /// Requests that had no answer, since there were too many, or since the answer would have been too long.
    pub unanswered: u64,
    /// Announcements of our addresses.
    pub announced: u64,
    /// Questions whether an address of ours is somebody else's.
    pub probed: u64,
    /// Announcements against somebody else who uses an address of ours.
    pub defended: u64,
    /// Reports of our groups.
    pub reported: u64,

    /// Frames and questions with an address of ours in another's name.
    pub conflicts: u64,
    /// Times that somebody said another MAC than a neighbour's.
    pub contradicted: u64,
    /// Neighbours that turned out to have another MAC.
    pub moved: u64,
    /// Neighbours that made room for others.
    pub evicted: u64,
    /// Neighbours that are in the table now. This one goes down, too.
    pub neighbours: u64,
    /// Frames of ours that were not sent, since too many waited or the caller's buffer was too short.
    pub frames_lost: u64,
    /// Events that nobody has fetched in time.
    pub events_lost: u64,
}

impl Counters {
    /// How many frames were refused for this reason.
    #[must_use]
    pub const fn refused(&self, why: Refusal) -> u64 {
        self.refused[why as usize]
    }

    pub(crate) const fn refuse(&mut self, why: Refusal) {
        self.refused[why as usize] += 1;
    }
}
