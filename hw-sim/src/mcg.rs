//! Multicast groups: the datagram queue pairs that receive a group's packets.
//!
//! A queue pair joins a group by ATTACH_TO_MCG. A datagram for the group is a RoCE or InfiniBand packet for queue pair
//! 0xffffff whose destination GID is the group's. Each member gets a copy and checks it by its own Q_Key. Packets that
//! a function sends to a group also return to the function's own members, the sender included (Linux
//! `ipoib_ib_handle_rx_wc` drops "multicast packets that the HCA has replicated"). Members that block loopback
//! (`block_lb_mc`) do not get them. The receiving member decides on loopback, as on the older mlx4 devices
//! (`MGM_BLCK_LB_BIT` of their groups).
//!
//! The e-switch forwards a group's frame to a vport only if the group's MAC address is in the vport's list, or the
//! vport receives all multicast. The port itself accepts the frames of its groups.

use std::collections::{BTreeMap, BTreeSet};

/// Address of a multicast group.
pub type Mgid = [u8; 16];

/// The multicast groups of a function, with their members.
#[derive(Debug, Default)]
pub struct Groups {
    members: BTreeMap<Mgid, BTreeSet<u32>>,
}

impl Groups {
    /// Returns the number of groups that have members.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns whether no group has a member.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns whether the group has members.
    pub fn contains(&self, group: &Mgid) -> bool {
        self.members.contains_key(group)
    }

    /// Returns the QP numbers of the members of a group.
    pub fn members(&self, group: &Mgid) -> impl Iterator<Item = u32> {
        self.members.get(group).into_iter().flatten().copied()
    }

    /// Adds a queue pair to a group; returns false if it is a member already.
    pub fn join(&mut self, group: Mgid, qpn: u32) -> bool {
        self.members.entry(group).or_default().insert(qpn)
    }

    /// Removes a queue pair from a group; returns false if it is no member.
    pub fn leave(&mut self, group: &Mgid, qpn: u32) -> bool {
        let Some(members) = self.members.get_mut(group) else {
            return false;
        };
        let was = members.remove(&qpn);
        if members.is_empty() {
            self.members.remove(group);
        }
        was
    }

    /// Removes every group.
    pub fn clear(&mut self) {
        self.members.clear();
    }
}

/// Returns whether a GID is a multicast group's: an IPv6 multicast address, or an IPv4 multicast address in its GID
/// form (Linux `rdma_is_multicast_addr`).
pub fn is_group(gid: &Mgid) -> bool {
    let [first, .., a, _, _, _] = *gid;
    let mapped = gid.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    first == 0xff || mapped && a >> 4 == 0xe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_ipv6_multicast_and_ipv4_multicast_in_its_gid_form() {
        let mapped = |a| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, 1, 2, 3];
        assert!(is_group(&[0xff; 16]));
        assert!(is_group(&mapped(224)) && is_group(&mapped(239)));
        assert!(!is_group(&mapped(223)) && !is_group(&mapped(240)));
        let mut link_local = [0; 16];
        link_local[..2].copy_from_slice(&[0xfe, 0x80]);
        assert!(!is_group(&link_local));
    }

    #[test]
    fn a_group_is_as_long_as_it_has_members() {
        let (mut groups, group) = (Groups::default(), [0xff; 16]);
        assert!(groups.join(group, 1) && groups.join(group, 2) && !groups.join(group, 1));
        assert_eq!(groups.members(&group).collect::<Vec<_>>(), [1, 2]);
        assert!(groups.leave(&group, 1) && !groups.leave(&group, 1));
        assert!(groups.contains(&group) && groups.leave(&group, 2));
        assert_eq!((groups.len(), groups.leave(&group, 2)), (0, false));
    }
}
