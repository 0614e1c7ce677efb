//! Names of connections: ours, and the peers'.

slotmap::new_key_type! {
    /// Names a connection.
    pub struct ConnId;
    /// Names a listener.
    pub struct ListenId;
}

/// A communication ID or a queue pair as a peer names it. GUID and number are claims of the sender, so they name
/// something only together with the address they came from. Numbers of one peer are never taken for another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PeerName {
    pub(super) gid: [u8; 16],
    pub(super) ca_guid: u64,
    pub(super) number: u32,
}
