//! Counters of frames, requests and events, and the reasons why frames are ignored.

/// Reason why a frame was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub enum Refusal {
    /// The frame is shorter than its own length fields say, or a field has an illegal value.
    Malformed,
    /// A checksum is wrong.
    Checksum,
    /// A message that must stay on the link has another hop limit (RFC 4861, 7.1; RFC 3810, 6.2), or an MLD query lacks
    /// the router alert.
    HopLimit,
    /// The packet is a fragment.
    Fragment,
    /// The message is of a kind that is not handled: another protocol, router advertisements, redirects, errors.
    Kind,
    /// The frame is for another station, or for a group that we have not joined.
    Elsewhere,
    /// The frame is in a VLAN in which we have no address.
    Vlan,
    /// The message is about an address that is not ours, not yet ours, or not ours in this VLAN.
    Address,
    /// The sender's IP address is not legal as the source of this message, or its MAC is not an individual address.
    Sender,
    /// The sender's MAC is ours, or the source of an IPv6 or echo message is our IP address: our own frame has come
    /// back, or another node uses our MAC or address.
    Ourselves,
    /// The message is about a neighbour that is not in the table or is static, an advertisement without a MAC is about
    /// a neighbour with no known MAC, or an echo reply does not answer our outstanding request.
    Unasked,
    /// The link is down.
    LinkDown,
}

/// Number of variants of [`Refusal`].
const REFUSALS: usize = Refusal::LinkDown as usize + 1;

impl Refusal {
    /// All reasons, in order.
    const ALL: [Self; REFUSALS] = [
        Self::Malformed,
        Self::Checksum,
        Self::HopLimit,
        Self::Fragment,
        Self::Kind,
        Self::Elsewhere,
        Self::Vlan,
        Self::Address,
        Self::Sender,
        Self::Ourselves,
        Self::Unasked,
        Self::LinkDown,
    ];
}

/// Counters since the module was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counters {
    /// Number of frames received.
    pub received: u64,
    /// Number of ARP requests among these frames, including probes and announcements.
    pub arp_requests: u64,
    /// Number of ARP replies among these frames.
    pub arp_replies: u64,
    /// Number of neighbour solicitations among these frames.
    pub solicitations: u64,
    /// Number of neighbour advertisements among these frames.
    pub advertisements: u64,
    /// Number of echo requests among these frames.
    pub echo_requests: u64,
    /// Number of echo replies among these frames.
    pub echo_replies: u64,
    /// Number of MLDv2 queries among these frames.
    pub queries: u64,
    /// Number of frames refused for each reason, in the order of the variants of [`Refusal`].
    refused: [u64; REFUSALS],

    /// Number of requests sent to all nodes, by broadcast or multicast.
    pub asked_all: u64,
    /// Number of requests sent by unicast to a neighbour with a known MAC.
    pub asked_one: u64,
    /// Number of requests that the rate limit delayed.
    pub asks_put_off: u64,
    /// Number of replies sent to requests for our addresses.
    pub answered: u64,
    /// Number of echo replies sent.
    pub echoed: u64,
    /// Number of received requests without a reply: the rate limit or the quota of the queue was used up, or the reply
    /// would be too long.
    pub unanswered: u64,
    /// Number of announcements of our addresses.
    pub announced: u64,
    /// Number of probes that check whether another node uses an address of ours.
    pub probed: u64,
    /// Number of announcements that defend an address of ours against another node.
    pub defended: u64,
    /// Number of reports of our groups sent.
    pub reported: u64,

    /// Number of frames and requests in which another node claims an address of ours.
    pub conflicts: u64,
    /// Number of messages with another MAC than the known MAC of the neighbour.
    pub contradicted: u64,
    /// Number of neighbours whose MAC was found to have changed.
    pub moved: u64,
    /// Number of neighbours dropped because the table was full.
    pub evicted: u64,
    /// Current number of neighbours in the table; this counter also decreases.
    pub neighbours: u64,
    /// Number of frames not sent, because the queue was full, the link went down, or the caller's buffer was too short.
    pub frames_lost: u64,
    /// Number of events dropped because the event queue was full.
    pub events_lost: u64,
}

impl Counters {
    /// Returns the number of frames refused for this reason.
    #[must_use]
    pub const fn refused(&self, why: Refusal) -> u64 {
        self.refused[why as usize]
    }

    /// Returns the number of refused frames for each reason.
    pub fn refusals(&self) -> impl Iterator<Item = (Refusal, u64)> {
        let of_each = Refusal::ALL.into_iter();
        of_each.map(|why| (why, self.refused(why)))
    }

    /// Returns the counters with these numbers of refused frames; the number is 0 for a reason that `refusals` lacks.
    /// So a layer that writes a snapshot down can make the counters again.
    #[must_use]
    pub fn with_refusals(mut self, refusals: impl IntoIterator<Item = (Refusal, u64)>) -> Self {
        self.refused = [0; REFUSALS];
        for (why, times) in refusals {
            self.refused[why as usize] = times;
        }
        self
    }

    pub(crate) const fn refuse(&mut self, why: Refusal) {
        self.refused[why as usize] += 1;
    }

    /// Returns all counters with their names.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let Self {
            received,
            arp_requests,
            arp_replies,
            solicitations,
            advertisements,
            echo_requests,
            echo_replies,
            queries,
            refused,
            asked_all,
            asked_one,
            asks_put_off,
            answered,
            echoed,
            unanswered,
            announced,
            probed,
            defended,
            reported,
            conflicts,
            contradicted,
            moved,
            evicted,
            neighbours,
            frames_lost,
            events_lost,
        } = *self;
        let named = [
            ("received", received),
            ("arp_requests", arp_requests),
            ("arp_replies", arp_replies),
            ("solicitations", solicitations),
            ("advertisements", advertisements),
            ("echo_requests", echo_requests),
            ("echo_replies", echo_replies),
            ("queries", queries),
            ("asked_all", asked_all),
            ("asked_one", asked_one),
            ("asks_put_off", asks_put_off),
            ("answered", answered),
            ("echoed", echoed),
            ("unanswered", unanswered),
            ("announced", announced),
            ("probed", probed),
            ("defended", defended),
            ("reported", reported),
            ("conflicts", conflicts),
            ("contradicted", contradicted),
            ("moved", moved),
            ("evicted", evicted),
            ("neighbours", neighbours),
            ("frames_lost", frames_lost),
            ("events_lost", events_lost),
        ];
        named
            .into_iter()
            .chain(refused.map(|number| ("refused", number)))
    }
}
