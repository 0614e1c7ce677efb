//! Tests of how a card's switch forwards frames: rules from address lists, the forwarding table, misses, spoof check,
//! VLAN.

use super::rig::*;
use hw_sim::wire::Vlan;
use hw_sim::{CardRules, VfSettings};
use mlx_prm::*;

/// No frame received by the PF, VF 0, VF 1 and the far end.
const NOBODY: [usize; 4] = [0; 4];

/// Unicast frames reach a virtual function that lists their address, and no other function. Linux `eswitch.c`
/// `esw_add_uc_addr` makes rules only from the vport's own unicast list. It makes none from the address that the
/// administrator gave (`mlx5_esw_set_vport_mac_locked` writes only address and GUID), and none from the RoCE address
/// table.
#[test]
fn unicast_reaches_a_virtual_function_that_lists_its_address_and_no_other() {
    let mut rig = Rig::new();
    rig.pf.bench.announce(PF_MAC);
    let given = VfSettings {
        mac: Some(VF_MACS[0]),
        ..VfSettings::default()
    };
    rig.set_vf(0, given);
    let gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    rig.vfs[0].bench.set_gid(gid, VF_MACS[0]);
    send(&mut rig.far, &frame(FAR_MAC, VF_MACS[0]));
    assert_eq!(rig.received(), NOBODY, "from the wire");
    send(&mut rig.pf, &frame(PF_MAC, VF_MACS[0]));
    assert_eq!(
        rig.received(),
        NOBODY,
        "unknown to the switch: out on the wire, and lost there"
    );
    rig.vfs[0].bench.announce(VF_MACS[0]);
    send(&mut rig.far, &frame(FAR_MAC, VF_MACS[0]));
    send(&mut rig.pf, &frame(PF_MAC, VF_MACS[0]));
    send(&mut rig.vfs[1], &frame(VF_MACS[1], VF_MACS[0]));
    assert_eq!(rig.received(), [0, 3, 0, 0]);
    rig.vfs[0].bench.list_addresses(0, &[]);
    send(&mut rig.far, &frame(FAR_MAC, VF_MACS[0]));
    assert_eq!(rig.received(), NOBODY, "an empty list takes the rule away");
}

/// A frame to another function of the same card does not leave the card, because the switch is inside the card (Linux
/// commit "Add SR-IOV (FDB) support", 2015).
#[test]
fn a_frame_for_another_function_of_the_card_does_not_leave_it() {
    let mut rig = Rig::announced();
    let before = rig.far.bench.report().dropped;
    send(&mut rig.vfs[0], &frame(VF_MACS[0], VF_MACS[1]));
    send(&mut rig.vfs[0], &frame(VF_MACS[0], PF_MAC));
    assert_eq!(rig.received(), [1, 0, 1, 0]);
    assert_eq!(rig.far.bench.report().dropped, before);
}

/// A frame of a vport that matches no rule is sent to the wire. A frame from the wire that matches no rule is delivered
/// to the physical function.
#[test]
fn a_miss_leaves_by_the_wire_or_goes_to_the_physical_function() {
    let mut rig = Rig::announced();
    send(&mut rig.vfs[0], &frame(VF_MACS[0], FAR_MAC));
    assert_eq!(rig.received(), [0, 0, 0, 1]);
    // The forwarding table has an entry for this address, but no vport lists it. So the frame goes to the physical
    // function.
    rig.pf.bench.let_in(5, UNKNOWN_MAC);
    set_promiscuity(&mut rig.pf, [true, false, false]);
    send(&mut rig.far, &frame(FAR_MAC, UNKNOWN_MAC));
    assert_eq!(rig.received(), [1, 0, 0, 0]);
}

/// A unicast frame from the wire is dropped if its address is not in the port's forwarding table (Linux `lib/mpfs.c`).
/// The firmware option UNKNOWN_UPLINK_MAC_FLOOD is off by default.
#[test]
fn unicast_from_the_wire_to_an_unannounced_address_is_dropped() {
    let mut rig = Rig::announced();
    send(&mut rig.far, &frame(FAR_MAC, UNKNOWN_MAC));
    assert_eq!(rig.received(), NOBODY);
    assert_eq!(rig.pf.dropped("unannounced address"), 1);
    // If the physical function writes the table itself, an address list alone creates no entry.
    rig.pf.bench.list_addresses(0, &[PF_MAC, UNKNOWN_MAC]);
    send(&mut rig.far, &frame(FAR_MAC, UNKNOWN_MAC));
    assert_eq!(rig.received(), NOBODY);
    rig.pf.bench.let_in(1, UNKNOWN_MAC);
    send(&mut rig.far, &frame(FAR_MAC, UNKNOWN_MAC));
    assert_eq!(rig.received(), [1, 0, 0, 0]);
    let mut delete = DeleteL2TableEntryIn::new();
    delete.set_table_index(1);
    rig.pf.bench.exec(&delete).unwrap();
    send(&mut rig.far, &frame(FAR_MAC, UNKNOWN_MAC));
    assert_eq!(rig.received(), NOBODY);
}

/// Frames to the factory address need an entry in the forwarding table, unless the card always accepts this address. No
/// source documents which cards need the entry. By default a simulated card needs it.
#[test]
fn the_factory_address_needs_an_entry_unless_the_card_has_one() {
    for (passes, expected) in [(false, 0), (true, 1)] {
        let mut rig = Rig::with(CardRules {
            factory_address_passes: passes,
            ..CardRules::default()
        });
        send(&mut rig.far, &frame(FAR_MAC, PF_MAC));
        assert_eq!(rig.received(), [expected, 0, 0, 0]);
    }
}

/// Frames of a vport to a group go to the vports that list the group and to the wire. Frames from the wire go only to
/// these vports (Linux `eswitch.c` `esw_add_mc_addr`, `update_allmulti_vports`). The broadcast address is a group
/// (`en_fs.c` `mlx5e_fill_addr_array` puts it first in the list).
#[test]
fn groups_and_broadcast_reach_the_vports_that_list_them() {
    let mut rig = Rig::announced();
    for group in [GROUP, BROADCAST] {
        send(&mut rig.far, &frame(FAR_MAC, group));
        let [_, vf0, vf1, _] = rig.received();
        assert_eq!([vf0, vf1], [0, 0], "nobody lists {group:02x?}");
        rig.vfs[1].bench.list_addresses(1, &[group]);
        send(&mut rig.vfs[0], &frame(VF_MACS[0], group));
        let [pf, vf0, vf1, far] = rig.received();
        assert_eq!([pf, vf0, vf1], [0, 0, 1], "{group:02x?}");
        assert_eq!(
            far,
            usize::from(group == BROADCAST),
            "its port takes what it lists"
        );
        send(&mut rig.far, &frame(FAR_MAC, group));
        assert_eq!(
            rig.received()[1..],
            [0, 1, 0],
            "nothing goes back to the wire"
        );
    }
}

/// Promiscuity has an effect only on a trusted vport, and never delivers frames between other functions. Linux
/// `eswitch.c` `esw_update_vport_rx_mode` clears the bits of an untrusted vport. For a trusted vport,
/// `esw_apply_vport_rx_mode` makes two rules: for all groups, and for frames from the wire that match no other rule.
#[test]
fn promiscuity_counts_with_trust_and_never_shows_a_neighbours_frames() {
    let mut rig = Rig::announced();
    set_promiscuity(&mut rig.vfs[0], [true; 3]);
    send(&mut rig.far, &frame(FAR_MAC, UNKNOWN_MAC));
    send(&mut rig.far, &frame(FAR_MAC, GROUP));
    assert_eq!(rig.received()[1], 0, "it is not trusted");
    let trusted = VfSettings {
        trust: true,
        ..VfSettings::default()
    };
    rig.set_vf(0, trusted);
    send(&mut rig.far, &frame(FAR_MAC, UNKNOWN_MAC));
    send(&mut rig.far, &frame(FAR_MAC, GROUP));
    assert_eq!(
        rig.received()[1],
        2,
        "the promiscuous vport opens the forwarding table, too"
    );
    send(&mut rig.far, &frame(FAR_MAC, VF_MACS[1]));
    send(&mut rig.pf, &frame(PF_MAC, VF_MACS[1]));
    assert_eq!(
        rig.received()[1..3],
        [0, 2],
        "what matched a rule is not shown"
    );
    send(&mut rig.pf, &frame(PF_MAC, UNKNOWN_MAC));
    assert_eq!(rig.received()[1], 0, "only what the wire brought is");
    set_promiscuity(&mut rig.vfs[0], [true, false, false]);
    send(&mut rig.far, &frame(FAR_MAC, UNKNOWN_MAC));
    assert_eq!(
        rig.received()[1],
        0,
        "there is no rule of promiscuous unicast alone"
    );
}

/// If two functions list the same address, both get every frame to it: Linux `fs_core.c` joins the destinations of one
/// match.
#[test]
fn an_address_in_two_lists_is_delivered_twice() {
    let mut rig = Rig::announced();
    rig.vfs[1].bench.list_addresses(0, &[VF_MACS[0]]);
    send(&mut rig.far, &frame(FAR_MAC, VF_MACS[0]));
    assert_eq!(rig.received(), [0, 1, 1, 0]);
}

/// A function's own frames loop back only if local loopback is enabled. Linux `main.c` `mlx5_core_set_hca_defaults`
/// disables it with `disable_uc_local_lb`.
#[test]
fn own_frames_loop_back_only_where_permitted() {
    let mut rig = Rig::announced();
    rig.vfs[0].allow_loopback(3);
    send(&mut rig.vfs[0], &frame(VF_MACS[0], VF_MACS[0]));
    assert_eq!(rig.received(), [0, 1, 0, 0]);
    let mut modify = ModifyNicVportContextIn::new();
    modify.field_select_mut().set_disable_uc_local_lb(true);
    modify.nic_vport_context_mut().set_disable_uc_local_lb(true);
    rig.vfs[0].bench.exec(&modify).unwrap();
    send(&mut rig.vfs[0], &frame(VF_MACS[0], VF_MACS[0]));
    assert_eq!(rig.received(), NOBODY);
    assert_eq!(rig.vfs[0].dropped("own frame"), 1);
}

/// With the spoof check, the switch drops frames whose source is not the address that the administrator gave. If no
/// address was given, it drops all frames (Linux `esw/acl/ingress_lgcy.c`).
#[test]
fn a_spoofed_source_address_is_dropped() {
    let mut rig = Rig::announced();
    let checked = VfSettings {
        mac: Some(VF_MACS[0]),
        spoof_check: true,
        ..VfSettings::default()
    };
    rig.set_vf(0, checked);
    send(&mut rig.vfs[0], &frame(VF_MACS[0], FAR_MAC));
    assert_eq!(rig.received(), [0, 0, 0, 1]);
    send(&mut rig.vfs[0], &frame(UNKNOWN_MAC, FAR_MAC));
    assert_eq!(rig.received(), NOBODY);
    assert_eq!(rig.vfs[0].dropped("source address is not the vport's"), 1);
    rig.set_vf(
        0,
        VfSettings {
            mac: None,
            ..checked
        },
    );
    send(&mut rig.vfs[0], &frame(VF_MACS[0], FAR_MAC));
    assert_eq!(rig.received(), NOBODY, "without an address it is mute");
}

/// A virtual function in a VLAN does not see the VLAN tag. The switch inserts and strips the tag, and drops frames of
/// other VLANs (Linux `esw/acl/egress_lgcy.c` and `eswitch.c` `modify_esw_vport_cvlan`).
#[test]
fn a_virtual_function_in_a_vlan_does_not_see_its_tag() {
    let mut rig = Rig::announced();
    let in_vlan = VfSettings {
        vlan: Some(Vlan {
            id: 100,
            priority: 3,
        }),
        ..VfSettings::default()
    };
    rig.set_vf(0, in_vlan);
    send(&mut rig.vfs[0], &frame(VF_MACS[0], FAR_MAC));
    let (cqe, bytes) = rig.far.received().expect("it arrives");
    assert_eq!(
        cqe.vlan_info(),
        3 << 13 | 100,
        "taken off by its receive queue"
    );
    assert_eq!(bytes[12..14], [0x88, 0xb5]);
    send(&mut rig.vfs[0], &tagged(VF_MACS[0], FAR_MAC, 7, 0));
    assert_eq!(rig.received(), NOBODY, "it may not bring a tag of its own");
    send(&mut rig.far, &tagged(FAR_MAC, VF_MACS[0], 100, 0));
    let (_, bytes) = rig.vfs[0].received().expect("of its VLAN");
    assert_eq!(bytes[..14], frame(FAR_MAC, VF_MACS[0])[..14]);
    send(&mut rig.far, &tagged(FAR_MAC, VF_MACS[0], 101, 0));
    send(&mut rig.far, &frame(FAR_MAC, VF_MACS[0]));
    send(&mut rig.vfs[1], &frame(VF_MACS[1], VF_MACS[0]));
    assert_eq!(rig.received(), NOBODY, "of another VLAN, or of none");
}

/// A vport carries frames up to its MTU. mlx5e writes the same MTU for port and vport: 22 bytes more than IP's MTU
/// (`en_main.c` `mlx5e_set_mtu`, `MLX5E_SW2HW_MTU`).
#[test]
fn a_vport_carries_frames_up_to_its_mtu() {
    let mut rig = Rig::announced();
    let context = |side: &mut crate::eth_support::Side| {
        let out = side.bench.exec(&QueryNicVportContextIn::new()).unwrap();
        out.nic_vport_context().mtu()
    };
    assert_eq!(
        context(&mut rig.vfs[0]),
        1522,
        "Ethernet header, tag and check sequence included"
    );
    let mut modify = ModifyNicVportContextIn::new();
    modify.field_select_mut().set_mtu(true);
    modify.nic_vport_context_mut().set_mtu(1000);
    rig.vfs[1].bench.exec(&modify).unwrap();
    // The MTU of 1000 includes the header of 14 bytes and the check sequence of 4 bytes.
    send(
        &mut rig.vfs[0],
        &frame_of(VF_MACS[0], VF_MACS[1], 1000 - 18),
    );
    assert_eq!(rig.received(), [0, 0, 1, 0]);
    send(
        &mut rig.vfs[0],
        &frame_of(VF_MACS[0], VF_MACS[1], 1000 - 17),
    );
    send(
        &mut rig.vfs[1],
        &frame_of(VF_MACS[1], VF_MACS[0], 1000 - 17),
    );
    assert_eq!(rig.received(), NOBODY);
    assert_eq!(rig.vfs[0].dropped("larger than the vport's MTU"), 1);
    assert_eq!(rig.vfs[1].dropped("larger than the vport's MTU"), 1);
}
