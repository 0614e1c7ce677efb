//! Tests of a physical function's driver that manages virtual functions. They run the commands of `echo 2 >
//! sriov_numvfs`, of `ip link set … vf` and of the change handler, as Linux 6.12 sends them (`sriov.c`
//! `mlx5_device_enable_sriov`, `eswitch.c` `mlx5_esw_vport_enable`, `esw_vport_change_handle_locked`, `esw/legacy.c`
//! `esw_create_legacy_fdb_table`, `fs_cmd.c`). The tests replay the commands instead of running Linux, because virtual
//! machine monitors hide the SR-IOV capability.

use super::rig::*;
use crate::bench::{Bench, entry, halves, list};
use crate::eth_support::{Side, destination, entry_input};
use hw_sim::{CardRules, VfSettings};
use mlx_prm::*;
use zerocopy::IntoBytes;

/// Levels of tables "A" and "B" of `esw/legacy.c`, and indices of B's last two entries.
const VEPA_LEVEL: u32 = 19;
const FDB_LEVEL: u32 = 21;
const LOG_SIZE: u32 = 7;
const ALL_MULTICAST_AT: u32 = (1 << LOG_SIZE) - 2;
const PROMISCUOUS_AT: u32 = (1 << LOG_SIZE) - 1;
const WIRE: u32 = 0xffff;
/// Events for unicast list, multicast list and promiscuity, as `arm_vport_context_events_cmd` selects in legacy mode.
const LEGACY_EVENTS: u32 = 0b1011;

/// The forwarding tables (FDB) of the switch's manager.
struct Fdb {
    vepa: u32,
    table: u32,
    groups: [u32; 3],
    next: u32,
}

fn waiting() -> CardRules {
    CardRules {
        virtual_functions_wait: true,
        ..CardRules::default()
    }
}

fn create_table(bench: &mut Bench, kind: FlowTableType, level: u32, vport: u32) -> u32 {
    let mut create = CreateFlowTableIn::new();
    create
        .set_table_type(kind)
        .set_other_vport(vport != 0)
        .set_vport_number(vport);
    create
        .flow_table_context_mut()
        .set_level(level)
        .set_log_size(LOG_SIZE);
    bench.exec(&create).unwrap().table_id()
}

/// A flow group: its table, criteria and range.
struct Group {
    kind: FlowTableType,
    vport: u32,
    table: u32,
    range: [u32; 2],
    enable: u32,
    criteria: FteMatchParam,
}

impl Group {
    fn create(&self, bench: &mut Bench) -> u32 {
        let mut create = CreateFlowGroupIn::new();
        create
            .set_table_type(self.kind)
            .set_other_vport(self.vport != 0)
            .set_vport_number(self.vport)
            .set_table_id(self.table)
            .set_start_flow_index(self.range[0])
            .set_end_flow_index(self.range[1])
            .set_match_criteria_enable(self.enable);
        *create.match_criteria_mut() = self.criteria.clone();
        bench.exec(&create).unwrap().group_id()
    }
}

fn dmac(mac: [u8; 6]) -> FteMatchParam {
    let (high, low) = halves(mac);
    let mut param = FteMatchParam::new();
    param
        .outer_headers_mut()
        .set_dmac_47_16(high << 16 | low >> 16)
        .set_dmac_15_0(low & 0xffff);
    param
}

fn source(port: u32) -> FteMatchParam {
    let mut param = FteMatchParam::new();
    param.misc_parameters_mut().set_source_port(port);
    param
}

impl Fdb {
    /// Creates both tables, directs misses of the first table to the second, and creates three groups in the second.
    fn create(bench: &mut Bench) -> Self {
        let vepa = create_table(bench, FlowTableType::FDB, VEPA_LEVEL, 0);
        let table = create_table(bench, FlowTableType::FDB, FDB_LEVEL, 0);
        let mut modify = ModifyFlowTableIn::new();
        modify
            .set_modify_field_select(1)
            .set_table_type(FlowTableType::FDB)
            .set_table_id(vepa);
        modify
            .flow_table_context_mut()
            .set_table_miss_action(1)
            .set_table_miss_id(table);
        bench.exec(&modify).unwrap();
        let groups = [
            (0, ALL_MULTICAST_AT - 1, 1, dmac(BROADCAST)),
            (
                ALL_MULTICAST_AT,
                ALL_MULTICAST_AT,
                1,
                dmac([1, 0, 0, 0, 0, 0]),
            ),
            (PROMISCUOUS_AT, PROMISCUOUS_AT, 2, source(0xffff)),
        ]
        .map(|(start, end, enable, criteria)| {
            let group = Group {
                kind: FlowTableType::FDB,
                vport: 0,
                table,
                range: [start, end],
                enable,
                criteria,
            };
            group.create(bench)
        });
        Self {
            vepa,
            table,
            groups,
            next: 0,
        }
    }

    fn entry(
        &self,
        index: u32,
        value: &FteMatchParam,
        vports: &[u32],
    ) -> (SetFlowTableEntryIn, Vec<u8>) {
        let group = match index {
            ALL_MULTICAST_AT => self.groups[1],
            PROMISCUOUS_AT => self.groups[2],
            _ => self.groups[0],
        };
        let action = flow_action::FWD_DEST;
        let mut set = entry_input(self.table, group, index, value, action, vports.len());
        set.set_table_type(FlowTableType::FDB);
        let to: Vec<u64> = vports
            .iter()
            .map(|&vport| destination(FlowDestinationType::VPORT, vport))
            .collect();
        (set, list(&to))
    }

    /// Sets a rule, as `__esw_fdb_set_vport_rule` does.
    fn rule(&self, bench: &mut Bench, index: u32, value: &FteMatchParam, vports: &[u32]) {
        let (set, to) = self.entry(index, value, vports);
        bench.exec_with(&set, &to).unwrap();
    }

    /// Adds a rule for an address. Returns its index.
    fn address(&mut self, bench: &mut Bench, mac: [u8; 6], vports: &[u32]) -> u32 {
        let index = self.next;
        self.next += 1;
        self.rule(bench, index, &dmac(mac), vports);
        index
    }

    fn remove(&self, bench: &mut Bench, index: u32) {
        let mut delete = DeleteFlowTableEntryIn::new();
        delete
            .set_table_type(FlowTableType::FDB)
            .set_table_id(self.table)
            .set_flow_index(index);
        bench.exec(&delete).unwrap();
    }

    /// Destroys the groups, resets the first table's miss action and destroys the tables, as at the end of
    /// `mlx5_eswitch_disable_sriov`.
    fn destroy(self, bench: &mut Bench) {
        for group in self.groups {
            let mut destroy = DestroyFlowGroupIn::new();
            destroy
                .set_table_type(FlowTableType::FDB)
                .set_table_id(self.table)
                .set_group_id(group);
            bench.exec(&destroy).unwrap();
        }
        let mut modify = ModifyFlowTableIn::new();
        modify
            .set_modify_field_select(1)
            .set_table_type(FlowTableType::FDB)
            .set_table_id(self.vepa);
        bench.exec(&modify).unwrap();
        for table in [self.table, self.vepa] {
            let mut destroy = DestroyFlowTableIn::new();
            destroy
                .set_table_type(FlowTableType::FDB)
                .set_table_id(table);
            bench.exec(&destroy).unwrap();
        }
    }
}

fn arm(bench: &mut Bench, vport: u32, events: u32) {
    let mut modify = ModifyNicVportContextIn::new();
    modify
        .set_other_vport(vport != 0)
        .set_vport_number(vport)
        .field_select_mut()
        .set_change_event(true);
    modify
        .nic_vport_context_mut()
        .set_arm_change_event(true)
        .set_event_on_uc_address_change(events & 1 != 0)
        .set_event_on_mc_address_change(events & 2 != 0)
        .set_event_on_promisc_change(events & 8 != 0);
    bench.exec(&modify).unwrap();
}

/// Consumes events, and returns the vports whose context has changed.
fn changed(side: &mut Side) -> Vec<u16> {
    let events = side.bench.take_events(&mut side.resources.eq).into_iter();
    events
        .filter(|eqe| eqe.event_type() == EventType::NIC_VPORT_CHANGE.0)
        .map(|eqe| u16::from_be_bytes([eqe.event_data()[2], eqe.event_data()[3]]))
        .collect()
}

/// Reads the unicast list of a vport, as the manager does.
fn unicast_list(bench: &mut Bench, vport: u32) -> Vec<u64> {
    let mut query = QueryNicVportContextIn::new();
    query.set_other_vport(true).set_vport_number(vport);
    let out = bench.raw(query.as_bytes(), 0x110 + 8 * 4).unwrap();
    let (context, rest) =
        <QueryNicVportContextOut as zerocopy::FromBytes>::read_from_prefix(&out).unwrap();
    let size = context.nic_vport_context().allowed_list_size();
    let words = rest
        .chunks(8)
        .map(|word| u64::from_be_bytes(word.try_into().unwrap()));
    words.take(usize::try_from(size).unwrap()).collect()
}

fn set_state(bench: &mut Bench, vport: u32, state: u32) {
    let mut modify = ModifyVportStateIn::new();
    modify.set_op_mod(1);
    modify
        .set_other_vport(true)
        .set_vport_number(vport)
        .set_admin_state(state);
    bench.exec(&modify).unwrap();
}

fn set_address(bench: &mut Bench, vport: u32, mac: [u8; 6], node_guid: u64) {
    let mut modify = ModifyNicVportContextIn::new();
    modify.set_other_vport(true).set_vport_number(vport);
    modify
        .field_select_mut()
        .set_permanent_address(true)
        .set_node_guid(true);
    let (high, low) = halves(mac);
    modify
        .nic_vport_context_mut()
        .set_node_guid(node_guid)
        .permanent_address_mut()
        .set_mac_addr_47_32(high)
        .set_mac_addr_31_0(low);
    bench.exec(&modify).unwrap();
}

/// If an FDB exists, only the manager's rules determine forwarding; the address lists are only input for the manager
/// (Linux `esw_vport_setup` and the change handler).
#[test]
fn with_an_fdb_the_managers_rules_decide_and_lists_are_what_it_reads() {
    let mut rig = Rig::new();
    let mut fdb = Fdb::create(&mut rig.pf.bench);
    for vport in 1..=2 {
        set_state(&mut rig.pf.bench, vport, 2);
        set_address(&mut rig.pf.bench, vport, [0; 6], 0);
        arm(&mut rig.pf.bench, vport, LEGACY_EVENTS);
    }
    rig.vfs[0].bench.announce(VF_MACS[0]);
    send(&mut rig.pf, &frame(PF_MAC, VF_MACS[0]));
    assert_eq!(
        rig.received(),
        [0; 4],
        "nobody has made a rule of the list yet"
    );
    assert_eq!(changed(&mut rig.pf), [1]);
    assert_eq!(unicast_list(&mut rig.pf.bench, 1), [entry(VF_MACS[0])]);
    let index = fdb.address(&mut rig.pf.bench, VF_MACS[0], &[1]);
    rig.pf.bench.let_in(3, VF_MACS[0]);
    send(&mut rig.pf, &frame(PF_MAC, VF_MACS[0]));
    send(&mut rig.far, &frame(FAR_MAC, VF_MACS[0]));
    assert_eq!(rig.received(), [0, 2, 0, 0]);
    // The broadcast rule has as destinations the vports that list the address, and the wire.
    fdb.address(&mut rig.pf.bench, BROADCAST, &[1, 2, WIRE]);
    send(&mut rig.vfs[0], &frame(VF_MACS[0], BROADCAST));
    assert_eq!(rig.received(), [0, 0, 1, 1]);
    // A second vport lists the same address: the manager replaces the destinations of the entry.
    rig.vfs[1].bench.list_addresses(0, &[VF_MACS[0]]);
    let (mut set, to) = fdb.entry(index, &dmac(VF_MACS[0]), &[1, 2]);
    set.set_op_mod(1);
    set.set_modify_enable_mask(4);
    rig.pf.bench.exec_with(&set, &to).unwrap();
    send(&mut rig.far, &frame(FAR_MAC, VF_MACS[0]));
    assert_eq!(rig.received(), [0, 1, 1, 0]);
    for entry in [index, 1] {
        fdb.remove(&mut rig.pf.bench, entry);
    }
    send(&mut rig.pf, &frame(PF_MAC, VF_MACS[0]));
    assert_eq!(rig.received(), [0; 4]);
    rig.vfs[1].bench.list_addresses(0, &[]);
    fdb.destroy(&mut rig.pf.bench);
    send(&mut rig.pf, &frame(PF_MAC, VF_MACS[0]));
    assert_eq!(
        rig.received(),
        [0, 1, 0, 0],
        "without an FDB the card makes the rule itself"
    );
}

/// The promiscuous rule matches only frames from the wire. Linux `esw_apply_vport_rx_mode` makes one rule that sends
/// frames to all groups to the vport and the wire, and one for frames from the wire that match no other rule.
#[test]
fn the_promiscuous_rule_matches_what_the_wire_brings_alone() {
    let mut rig = Rig::new();
    let fdb = Fdb::create(&mut rig.pf.bench);
    let multicast = dmac([1, 0, 0, 0, 0, 0]);
    set_promiscuity(&mut rig.vfs[1], [true; 3]);
    fdb.rule(&mut rig.pf.bench, ALL_MULTICAST_AT, &multicast, &[2, WIRE]);
    fdb.rule(&mut rig.pf.bench, PROMISCUOUS_AT, &source(0xffff), &[2]);
    rig.pf.bench.let_in(0, UNKNOWN_MAC);
    send(&mut rig.far, &frame(FAR_MAC, UNKNOWN_MAC));
    send(&mut rig.far, &frame(FAR_MAC, GROUP));
    assert_eq!(rig.received(), [0, 0, 2, 0]);
    send(&mut rig.vfs[0], &frame(VF_MACS[0], UNKNOWN_MAC));
    assert_eq!(rig.received()[2], 0, "a neighbour's frame goes to the wire");
}

/// A change of a vport's lists causes one event per arming, and no change is lost. Linux reads the lists and then arms
/// (`esw_vport_change_handle_locked`). A change between two armings is reported at the second one, unless the card does
/// not remember changes.
#[test]
fn a_change_is_reported_once_for_each_arming_and_none_is_lost() {
    for remembers_changes in [true, false] {
        let mut rig = Rig::with(CardRules {
            remembers_changes,
            ..CardRules::default()
        });
        arm(&mut rig.pf.bench, 2, LEGACY_EVENTS);
        let bench = &mut rig.vfs[1].bench;
        bench.list_addresses(0, &[VF_MACS[1]]);
        bench.list_addresses(0, &[]);
        assert_eq!(changed(&mut rig.pf), [2], "armed once");
        arm(&mut rig.pf.bench, 2, LEGACY_EVENTS);
        let expected: &[u16] = if remembers_changes { &[2] } else { &[] };
        assert_eq!(changed(&mut rig.pf), expected);
        arm(&mut rig.pf.bench, 2, 0);
        rig.vfs[1].bench.list_addresses(0, &[VF_MACS[1]]);
        assert_eq!(changed(&mut rig.pf), [], "disarmed");
    }
}

/// The manager can set a virtual function's address, GUID and link state, as `ip link set … vf 0 mac` and `state` do
/// (Linux `mlx5_esw_set_vport_mac_locked`, `mlx5_modify_vport_admin_state`).
#[test]
fn the_manager_gives_address_guid_and_state() {
    let mut rig = Rig::new();
    let mac = [0x52, 0x54, 0, 0, 0, 1];
    set_address(&mut rig.pf.bench, 1, mac, 0x5254_00ff_fe00_0001);
    let out = rig.vfs[0]
        .bench
        .exec(&QueryNicVportContextIn::new())
        .unwrap();
    let context = out.nic_vport_context();
    assert_eq!(context.permanent_address().mac_addr_31_0(), 1);
    assert_eq!(context.node_guid(), 0x5254_00ff_fe00_0001);
    set_state(&mut rig.pf.bench, 1, 0);
    assert_eq!(port_events(&mut rig.vfs[0]), [PortChange::DOWN]);
    assert!(!link_is_up(&mut rig.vfs[0]));
    let mut query = QueryVportStateIn::new();
    query.set_op_mod(1);
    query.set_other_vport(true).set_vport_number(1);
    let state = rig.pf.bench.exec(&query).unwrap();
    assert_eq!((state.admin_state(), state.state()), (0, 0));
    query.set_vport_number(3);
    assert_eq!(
        rig.pf.bench.status(&query),
        CmdStatus::BAD_PARAM,
        "there are two"
    );
}

/// Creates an access list of a vport. Each rule has its criteria, value and action, and a group of its own.
fn create_access_list(
    bench: &mut Bench,
    kind: FlowTableType,
    vport: u32,
    rules: &[(FteMatchParam, FteMatchParam, u32)],
) {
    let table = create_table(bench, kind, 0, vport);
    for (index, (criteria, value, action)) in (0..).zip(rules) {
        let group = Group {
            kind,
            vport,
            table,
            range: [index; 2],
            enable: u32::from(criteria.as_bytes().iter().any(|&byte| byte != 0)),
            criteria: criteria.clone(),
        };
        let group = group.create(bench);
        let mut set = entry_input(table, group, index, value, *action, 0);
        set.set_table_type(kind)
            .set_other_vport(true)
            .set_vport_number(vport);
        bench.exec(&set).unwrap();
    }
}

fn smac(mac: [u8; 6]) -> FteMatchParam {
    let (high, low) = halves(mac);
    let mut param = FteMatchParam::new();
    param
        .outer_headers_mut()
        .set_smac_47_16(high << 16 | low >> 16)
        .set_smac_15_0(low & 0xffff);
    param
}

/// An ingress access list filters the frames of its vport before the switch. The list is that of a vport with the spoof
/// check: it allows one source address and drops all other frames (Linux `esw/acl/ingress_lgcy.c`).
#[test]
fn an_ingress_access_list_filters_the_frames_of_its_vport_alone() {
    let mut rig = Rig::announced();
    let nothing = FteMatchParam::new();
    let rules = [
        (smac(BROADCAST), smac(VF_MACS[0]), flow_action::ALLOW),
        (nothing.clone(), nothing, flow_action::DROP),
    ];
    let ingress = FlowTableType::ESW_INGRESS_ACL;
    create_access_list(&mut rig.pf.bench, ingress, 1, &rules);
    send(&mut rig.vfs[0], &frame(VF_MACS[0], FAR_MAC));
    assert_eq!(rig.received(), [0, 0, 0, 1]);
    send(&mut rig.vfs[0], &frame(UNKNOWN_MAC, FAR_MAC));
    assert_eq!(rig.received(), [0; 4]);
    assert_eq!(rig.vfs[0].dropped("access list of its vport"), 1);
    send(&mut rig.vfs[1], &frame(UNKNOWN_MAC, FAR_MAC));
    assert_eq!(rig.received(), [0, 0, 0, 1], "it is that vport's list");
}

/// An egress access list filters the frames to its vport behind the switch. The list is that of a vport in a VLAN: it
/// allows frames of the VLAN and drops all other frames (Linux `esw/acl/egress_lgcy.c`).
#[test]
fn an_egress_access_list_filters_the_frames_to_its_vport_alone() {
    let mut rig = Rig::announced();
    let nothing = FteMatchParam::new();
    let vlan = |tag: u32| {
        let mut param = FteMatchParam::new();
        param
            .outer_headers_mut()
            .set_cvlan_tag(true)
            .set_first_vid(tag);
        param
    };
    let rules = [
        (vlan(0xfff), vlan(100), flow_action::ALLOW),
        (nothing.clone(), nothing, flow_action::DROP),
    ];
    let egress = FlowTableType::ESW_EGRESS_ACL;
    create_access_list(&mut rig.pf.bench, egress, 1, &rules);
    send(&mut rig.far, &tagged(FAR_MAC, VF_MACS[0], 100, 0));
    let (cqe, _) = rig.vfs[0].received().expect("of its VLAN");
    assert_eq!(cqe.vlan_info(), 100, "taken off by its receive queue");
    send(&mut rig.far, &tagged(FAR_MAC, VF_MACS[0], 101, 0));
    send(&mut rig.pf, &frame(PF_MAC, VF_MACS[0]));
    send(&mut rig.vfs[1], &frame(VF_MACS[1], VF_MACS[0]));
    assert_eq!(rig.received(), [0; 4], "of another VLAN, or of none");
    // A drop is counted at the sender, and at the physical function for a frame from the wire.
    let dropped = [&rig.pf, &rig.vfs[1]].map(|side| side.dropped("access list of its vport"));
    assert_eq!(dropped, [2, 1]);
    send(&mut rig.pf, &frame(PF_MAC, VF_MACS[1]));
    send(&mut rig.vfs[0], &frame(VF_MACS[0], FAR_MAC));
    assert_eq!(
        rig.received(),
        [0, 0, 1, 1],
        "to another vport, and from its own vport"
    );
}

/// The firmware refuses an invalid rule, because Linux `fs_cmd.c` checks nothing. Cases: a vport that does not exist, a
/// command from a virtual function, a receive queue as destination.
#[test]
fn an_impossible_rule_of_the_switch_is_refused() {
    let mut rig = Rig::new();
    let fdb = Fdb::create(&mut rig.pf.bench);
    let (set, to) = fdb.entry(0, &dmac(VF_MACS[0]), &[3]);
    assert_eq!(rig.pf.bench.status_with(&set, &to), CmdStatus::BAD_PARAM);
    let tir = list(&[destination(FlowDestinationType::TIR, rig.pf.tir)]);
    assert_eq!(rig.pf.bench.status_with(&set, &tir), CmdStatus::BAD_PARAM);
    let mut create = CreateFlowTableIn::new();
    create.set_table_type(FlowTableType::FDB);
    create.flow_table_context_mut().set_level(FDB_LEVEL);
    assert_eq!(rig.vfs[0].bench.status(&create), CmdStatus::BAD_OP);
    create
        .set_table_type(FlowTableType::ESW_INGRESS_ACL)
        .set_other_vport(true)
        .set_vport_number(9);
    assert_eq!(rig.pf.bench.status(&create), CmdStatus::BAD_PARAM);
}

/// `initializing` of a virtual function is cleared only after its manager has enabled the function and given pages for
/// it. Linux: `sriov.c` `mlx5_device_enable_sriov`, and the comment in `ecpf.c`. The firmware requests these pages from
/// the manager (`pagealloc.c` `req_pages_handler`).
#[test]
fn a_virtual_function_boots_once_its_manager_has_enabled_it_and_given_pages() {
    let sim = hw_sim::Sim::new(hw_sim::SimConfig::seeded(1));
    let card = card(&sim, waiting());
    let mut pf = Side::on(Bench::of(&sim, card.physical()));
    let vf = Bench::of(&sim, card.virtual_function(0).expect("two of them"));
    sim.advance(std::time::Duration::from_secs(1));
    assert_eq!(vf.read32(0x1fc) >> 31, 1, "initializing");
    let mut enable = EnableHcaIn::new();
    enable.set_function_id(1);
    pf.bench.exec(&enable).unwrap();
    assert_eq!(pf.bench.status(&enable), CmdStatus::BAD_RES_STATE, "twice");
    let pages = page_request(&mut pf).expect("the function needs memory");
    assert_eq!(pages.0, 1, "of function 1");
    sim.advance(std::time::Duration::from_secs(1));
    assert_eq!(vf.read32(0x1fc) >> 31, 1, "it waits for its pages");
    give_pages(&mut pf, pages.1);
    sim.advance(std::time::Duration::from_secs(1));
    assert_eq!(vf.read32(0x1fc) >> 31, 0, "it has booted");

    let mut disable = DisableHcaIn::new();
    disable.set_function_id(1);
    pf.bench.exec(&disable).unwrap();
    assert_eq!(vf.read32(0x1fc) >> 31, 1, "it is taken away");
    let back = page_request(&mut pf).expect("its memory goes back");
    assert_eq!(back, (1, -pages.1));
    assert_eq!(take_pages(&mut pf, pages.1), pages.1);
    assert_eq!(pf.bench.status(&disable), CmdStatus::BAD_RES_STATE, "twice");
    assert_eq!(vf.report().resets, 0, "those of its manager do not count");
}

/// A reset of a virtual function returns its pages to the physical function's driver (measured in the commit of Linux'
/// `release_all_pages`). The next INIT_HCA of the virtual function waits until that driver has given pages again
/// (`pagealloc.c` `req_pages_handler`), or fails if it cannot.
#[test]
fn a_reset_gives_a_virtual_functions_pages_back_and_its_next_start_takes_new_ones() {
    let sim = hw_sim::Sim::new(hw_sim::SimConfig::seeded(1));
    let card = card(&sim, waiting());
    let mut pf = Side::on(Bench::of(&sim, card.physical()));
    let mut enable = EnableHcaIn::new();
    enable.set_function_id(1);
    pf.bench.exec(&enable).unwrap();
    let (_, wanted) = page_request(&mut pf).expect("the function needs memory");
    give_pages(&mut pf, wanted);
    sim.advance(std::time::Duration::from_secs(1));
    let mut vf = Bench::of(&sim, card.virtual_function(0).expect("two of them"));
    for _ in 0..2 {
        driver::Device::reset(&*vf.function);
        assert_eq!(page_request(&mut pf), Some((1, -wanted)));
        assert_eq!(take_pages(&mut pf, wanted), wanted);
        driver::Device::reset(&*vf.function);
        assert_eq!(page_request(&mut pf), None, "it holds nothing any more");
        let slot = begin_init(&mut vf);
        sim.advance(std::time::Duration::from_secs(1));
        assert!(vf.entry(slot).ownership(), "it waits for its manager");
        assert_eq!(page_request(&mut pf), Some((1, wanted)));
        give_pages(&mut pf, wanted);
        assert_eq!(ended(&vf, slot), CmdStatus::OK);
        assert_eq!(page_request(&mut pf), None);
    }
    // A manager that has no memory reports this to the device.
    driver::Device::reset(&*vf.function);
    assert_eq!(page_request(&mut pf), Some((1, -wanted)));
    assert_eq!(take_pages(&mut pf, wanted), wanted);
    let slot = begin_init(&mut vf);
    assert_eq!(page_request(&mut pf), Some((1, wanted)));
    let mut cannot = ManagePagesIn::new();
    cannot.set_function_id(1);
    pf.bench.exec(&cannot).unwrap();
    assert_eq!(ended(&vf, slot), CmdStatus::NO_RESOURCES);
}

/// Runs a function's driver up to INIT_HCA, and does not wait for the result of INIT_HCA. Returns the command's slot.
fn begin_init(vf: &mut Bench) -> usize {
    vf.start();
    vf.exec(&EnableHcaIn::new()).unwrap();
    let init = vf.prepare(InitHcaIn::new().as_bytes(), InitHcaOut::SIZE);
    vf.submit(&init);
    init.slot
}

/// Waits for the command in a slot. Returns its status.
fn ended(vf: &Bench, slot: usize) -> CmdStatus {
    let (_, output) = vf.collect(slot).expect("an answer");
    CmdStatus(output[0])
}

/// Gives pages to function 1, as its manager.
fn give_pages(pf: &mut Side, pages: i32) {
    let given: Vec<u64> = (0..pages).map(|_| pf.bench.alloc(4096).1).collect();
    let mut give = ManagePagesIn::new();
    give.set_op_mod(1);
    give.set_function_id(1)
        .set_input_num_entries(u32::try_from(pages).unwrap());
    pf.bench.exec_with(&give, &list(&given)).unwrap();
}

/// Takes pages back from function 1, as its manager. Returns their number.
fn take_pages(pf: &mut Side, pages: i32) -> i32 {
    let mut take = ManagePagesIn::new();
    take.set_op_mod(2);
    take.set_function_id(1)
        .set_input_num_entries(u32::try_from(pages).unwrap());
    let room = 16 + 8 * usize::try_from(pages).unwrap();
    let out = pf.bench.raw(take.as_bytes(), room).unwrap();
    i32::from_be_bytes(out[8..12].try_into().unwrap())
}

/// The manager can size the interrupt table of a virtual function from a pool. Linux `pci_irq.c`
/// `mlx5_set_msix_vec_count` reads the maximum page of the virtual function, changes `dynamic_msix_table_size`, and
/// writes the whole page. Configuration space has the new size before a driver is bound.
#[test]
fn the_manager_sizes_the_interrupt_table_of_a_virtual_function_out_of_a_pool() {
    let sim = hw_sim::Sim::new(hw_sim::SimConfig::seeded(1));
    let mut physical = profile("card", PF_MAC);
    physical.general.set(|caps| {
        caps.set_num_total_dynamic_vf_msix(40)
            .set_min_dynamic_vf_msix_table_size(2)
            .set_max_dynamic_vf_msix_table_size(30);
    });
    let card = sim.add_card(&hw_sim::CardConfig::new(physical, 2));
    let mut pf = Side::on(Bench::of(&sim, card.physical()));
    let mut size = |function: u32, vectors: u32| {
        let mut query = QueryHcaCapIn::new();
        query.set_op_mod(CapType::GENERAL.max());
        query.set_other_function(true).set_function_id(function);
        let mut page = *pf.bench.exec(&query).unwrap().capability();
        let (mut caps, _) = <CmdHcaCap as zerocopy::FromBytes>::read_from_prefix(&page).unwrap();
        caps.set_dynamic_msix_table_size(vectors);
        page[..CmdHcaCap::SIZE].copy_from_slice(caps.as_bytes());
        let mut set = SetHcaCapIn::new();
        set.set_op_mod(CapType::GENERAL.set());
        set.set_other_function(true)
            .set_function_id(function)
            .set_capability(&page);
        pf.bench.status(&set)
    };
    let [one, other] = [0, 1].map(|index| card.virtual_function(index).expect("two of them"));
    assert_eq!(driver::Device::interrupt_count(&*one), 12);
    assert_eq!(size(1, 21), CmdStatus::OK);
    assert_eq!(driver::Device::interrupt_count(&*one), 21);
    let mut control = [0; 2];
    driver::Device::config_read(&*one, 0x9e, &mut control);
    assert_eq!(u16::from_be_bytes([control[1], control[0]]) & 0x7ff, 20);
    assert_eq!(driver::Device::interrupt_count(&*other), 12);
    assert_eq!(size(2, 20), CmdStatus::NO_RESOURCES, "21 of 40 are taken");
    assert_eq!(size(2, 1), CmdStatus::BAD_PARAM, "too few");
    assert_eq!(size(2, 31), CmdStatus::BAD_PARAM, "too many");
    assert_eq!(size(2, 19), CmdStatus::OK);
    let mut vf = Bench::of(&sim, one);
    vf.start();
    vf.exec(&EnableHcaIn::new()).unwrap();
    assert_eq!(size(1, 12), CmdStatus::BAD_RES_STATE, "it has a driver");
}

/// Returns the function number and the page count of the next page request.
fn page_request(side: &mut Side) -> Option<(u16, i32)> {
    let eq = &mut side.resources.eq;
    let eqe = std::iter::from_fn(|| side.bench.next_eqe(eq))
        .find(|eqe| eqe.event_type() == EventType::PAGE_REQUEST.0)?;
    side.bench.arm_eq(eq);
    let data = eqe.event_data();
    let function = u16::from_be_bytes([data[2], data[3]]);
    let pages = i32::from_be_bytes([data[4], data[5], data[6], data[7]]);
    Some((function, pages))
}

/// The manager can read the counters and capabilities of a virtual function. Linux `eswitch.c`
/// `mlx5_eswitch_get_vport_stats` sums the counters of its vport, and `vport.c` `mlx5_vport_get_other_func_cap` queries
/// its maximum capabilities.
#[test]
fn the_manager_reads_counters_and_capabilities_of_its_virtual_functions() {
    let mut rig = Rig::announced();
    send(&mut rig.vfs[0], &frame(VF_MACS[0], VF_MACS[1]));
    let mut query = QueryVportCounterIn::new();
    query.set_other_vport(true);
    let mut packets = |vport: u32| {
        query.set_vport_number(vport);
        let out = rig.pf.bench.exec(&query).unwrap();
        let sent = out.transmitted_eth_unicast().packets();
        (sent, out.received_eth_unicast().packets())
    };
    assert_eq!(
        [packets(1), packets(2), packets(0)],
        [(1, 0), (0, 1), (0, 0)]
    );
    let mut caps = QueryHcaCapIn::new();
    caps.set_op_mod(CapType::GENERAL.max());
    caps.set_other_function(true).set_function_id(2);
    let out = rig.pf.bench.exec(&caps).unwrap();
    let (general, _) =
        <CmdHcaCap as zerocopy::FromBytes>::read_from_prefix(out.capability()).unwrap();
    assert!(!general.eswitch_manager() && general.roce());
}

/// The manager can put a virtual function into a VLAN, as `ip link set … vf 0 vlan 100 qos 3` does where access lists
/// cannot push and pop tags (Linux `eswitch.c` `modify_esw_vport_cvlan`).
#[test]
fn the_manager_puts_a_virtual_function_into_a_vlan() {
    let mut rig = Rig::announced();
    let mut modify = ModifyEswVportContextIn::new();
    modify.set_other_vport(true).set_vport_number(1);
    modify
        .field_select_mut()
        .set_vport_cvlan_strip(true)
        .set_vport_cvlan_insert(true);
    modify
        .esw_vport_context_mut()
        .set_vport_cvlan_strip(true)
        .set_vport_cvlan_insert(1)
        .set_cvlan_pcp(3)
        .set_cvlan_id(100);
    rig.pf.bench.exec(&modify).unwrap();
    let settings: VfSettings = rig.card.vf(0).expect("a virtual function");
    assert_eq!(
        settings.vlan.map(|vlan| (vlan.id, vlan.priority)),
        Some((100, 3))
    );
    send(&mut rig.vfs[0], &frame(VF_MACS[0], VF_MACS[1]));
    assert_eq!(
        rig.received(),
        [0, 0, 1, 0],
        "with its tag, for who has no VLAN"
    );
    *modify.esw_vport_context_mut() = EswVportContext::new();
    rig.pf.bench.exec(&modify).unwrap();
    assert_eq!(rig.card.vf(0).and_then(|settings| settings.vlan), None);
}
