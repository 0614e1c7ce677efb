//! Identifiers of connections: ours, and the peers'.

slotmap::new_key_type! {
    /// Identifier of a connection.
    pub struct ConnId;
    /// Identifier of a listener.
    pub struct ListenId;
}

/// A communication ID or a queue pair number of a peer. The sender may claim any GUID and number, so they identify an
/// object only together with the address they came from. A number of one peer never matches that of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PeerName<N> {
    pub(super) gid: [u8; 16],
    pub(super) ca_guid: u64,
    pub(super) number: N,
}
