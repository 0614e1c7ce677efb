//! What an InfiniBand port knows of its subnet: its LID, its partitions, its GIDs.
//!
//! On a real fabric a subnet manager hands these out. The simulated subnet is managed before it
//! begins: every port has its LID from the start, derived from its GUID's low bits, the default
//! partition, and one GID, the link-local one of its port GUID. So a port with a carrier is ACTIVE
//! at once, as one whose subnet manager has been by. Nobody answers at `sm_lid`, which is zero.

use crate::profile::Profile;
use crate::wire::DEFAULT_PKEY;

/// Subnet prefix of link-local GIDs.
const LINK_LOCAL: u64 = 0xfe80_0000_0000_0000;
/// LIDs from here on are multicast (IBTA volume 1, section 4.1.3).
pub const FIRST_MULTICAST_LID: u16 = 0xc000;
/// Capability mask of PortInfo: trap support, automatic migration, SL mapping, LED info, system image
/// GUID, extended speeds, communication management, vendor class, capability mask notices, client
/// reregistration (IBTA volume 1, table "PortInfo").
const CAPABILITIES: u32 = 0x0251_4868;

/// Subnet data of an InfiniBand port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// Local identifier; unicast, never zero.
    pub lid: u16,
    /// Capability mask of PortInfo.
    pub capabilities: u32,
    /// Bits of the capability mask that software may change.
    pub writable_capabilities: u32,
    /// GID table.
    pub gids: Vec<[u8; 16]>,
    /// Partition table.
    pub pkeys: Vec<u16>,
}

impl Subnet {
    /// The port's part of the subnet after a reset. `gids` and `pkeys` are the tables' lengths.
    pub fn new(profile: &Profile, gids: usize, pkeys: usize) -> Self {
        let [_, _, _, _, high, low] = profile.mac;
        let lid = u16::from_be_bytes([high & 0x7f, low]).max(1);
        let guid = profile.port_guid();
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&LINK_LOCAL.to_be_bytes());
        gid[8..].copy_from_slice(&guid.to_be_bytes());
        let mut subnet = Self {
            lid,
            capabilities: CAPABILITIES,
            writable_capabilities: u32::MAX,
            gids: vec![[0; 16]; gids],
            pkeys: vec![0; pkeys],
        };
        if let Some(first) = subnet.gids.first_mut() {
            *first = gid;
        }
        if let Some(first) = subnet.pkeys.first_mut() {
            *first = DEFAULT_PKEY;
        }
        subnet
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ports_of_a_subnet_have_lids_and_gids_of_their_own() {
        let ports: Vec<Subnet> = [[2, 0, 0, 0, 0, 0], [2, 0, 0, 0, 0xff, 2]]
            .into_iter()
            .map(|mac| Subnet::new(&Profile::named("port", mac).infiniband(), 8, 128))
            .collect();
        assert_eq!((ports[0].lid, ports[1].lid), (1, 0x7f02));
        assert!(ports.iter().all(|port| port.lid < FIRST_MULTICAST_LID));
        assert_ne!(ports[0].gids[0], ports[1].gids[0]);
        assert_eq!(ports[0].gids[0][..2], [0xfe, 0x80]);
        assert_eq!(ports[0].pkeys[..2], [DEFAULT_PKEY, 0]);
    }
}
