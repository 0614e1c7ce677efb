//! Tests of steering and its objects: which receive queue a frame reaches, and commands that the device refuses.

use etherparse::PacketBuilder;
use mlx_prm::*;
use zerocopy::IntoBytes;

use crate::bench::{Failure, destroy_cq, list};
use crate::eth_support::*;

/// Microsoft's RSS test key ("Verifying the RSS Hash Calculation").
const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];
const TIR: FlowDestinationType = FlowDestinationType::TIR;
const TABLE: FlowDestinationType = FlowDestinationType::FLOW_TABLE;

/// Returns a function with an Ethernet port and without steering rules.
fn side() -> Side {
    Side::alone(profile(1))
}

fn tcp(source: [u8; 4], sport: u16, destination: [u8; 4], dport: u16) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(MACS[0], MACS[1])
        .ipv4(source, destination, 64)
        .tcp(sport, dport, 1, 1024);
    let mut frame = Vec::new();
    builder.write(&mut frame, &[0; 20]).unwrap();
    frame
}

fn nothing() -> FteMatchParam {
    FteMatchParam::new()
}

fn outer(set: impl FnOnce(&mut FteMatchSetLyr24)) -> FteMatchParam {
    let mut param = nothing();
    set(param.outer_headers_mut());
    param
}

fn refused(result: Result<impl Sized, Failure>) -> CmdStatus {
    match result {
        Ok(_) => CmdStatus::OK,
        Err(Failure::Refused(status)) => status,
        Err(Failure::Delivery(status)) => panic!("{status:?}"),
    }
}

/// Creates a second receive queue and a TIR for it.
fn second(side: &mut Side) -> (ReceiveQueue, u32) {
    let rq = ReceiveQueue::new(&mut side.bench, &side.resources);
    let tir = create_tir(&mut side.bench, side.td, rq.number);
    (rq, tir)
}

#[test]
fn without_flow_tables_no_frame_reaches_software() {
    let mut side = side();
    side.post_receives(1);
    side.deliver(&plain(0, MACS[1], 64));
    assert!(side.received().is_none());
    assert_eq!(side.dropped("address of another"), 1);
}

#[test]
fn the_entry_of_the_lowest_index_counts_and_carries_its_tag() {
    let mut side = side();
    let (mut other, other_tir) = second(&mut side);
    let table = side.table(5, 4).unwrap();
    let by_type = side
        .group(table, 0, 7, &outer(|set| _ = set.set_ethertype(0xffff)))
        .unwrap();
    let rest = side.group(table, 8, 8, &nothing()).unwrap();
    let mut set = entry_input(
        table,
        by_type,
        3,
        &outer(|set| _ = set.set_ethertype(0x88b5)),
        flow_action::FWD_DEST,
        1,
    );
    set.flow_context_mut().set_flow_tag(0x1234);
    side.bench
        .exec_with(&set, &list(&[destination(TIR, other_tir)]))
        .unwrap();
    side.entry(table, rest, 8, &nothing(), &[destination(TIR, side.tir)])
        .unwrap();
    side.post_receives(1);
    other.post(&side.bench, BUFFER, side.key);
    side.deliver(&plain(0, MACS[1], 64));
    side.deliver(&tcp([10, 0, 0, 1], 1, [10, 0, 0, 2], 2));
    let (cqe, _) = other.received(&side.bench).unwrap();
    assert_eq!(cqe.qpn(), 0x1234);
    assert!(other.received(&side.bench).is_none());
    assert!(side.received().is_some() && side.received().is_none());
}

#[test]
fn a_frame_goes_from_table_to_table_and_by_a_miss_to_the_table_named() {
    let mut side = side();
    let last = side.table(7, 0).unwrap();
    let misses = side.table(6, 0).unwrap();
    let mut modify = ModifyFlowTableIn::new();
    modify.set_table_id(misses).set_modify_field_select(1);
    modify
        .flow_table_context_mut()
        .set_table_miss_action(1)
        .set_table_miss_id(last);
    side.bench.exec(&modify).unwrap();
    let first = side.table(2, 0).unwrap();
    let group = side.group(first, 0, 0, &nothing()).unwrap();
    side.entry(first, group, 0, &nothing(), &[destination(TABLE, misses)])
        .unwrap();
    side.post_receives(2);
    side.deliver(&plain(0, MACS[1], 64));
    assert!(
        side.received().is_none(),
        "the last table drops what it misses"
    );
    assert_eq!(side.dropped("steering"), 1);
    let counted = side.bench.exec(&QueryVnicEnvIn::new()).unwrap();
    assert_eq!(counted.vport_env().nic_receive_steering_discard(), 1);
    let group = side.group(last, 0, 0, &nothing()).unwrap();
    side.entry(last, group, 0, &nothing(), &[destination(TIR, side.tir)])
        .unwrap();
    side.deliver(&plain(0, MACS[1], 64));
    assert!(side.received().is_some());
    // If software sets a root table, steering of frames starts in that table.
    let mut root = SetFlowTableRootIn::new();
    root.set_table_id(misses);
    side.bench.exec(&root).unwrap();
    side.deliver(&plain(0, MACS[1], 64));
    assert!(side.received().is_some());
}

#[test]
fn an_entry_without_destinations_drops_and_one_with_two_copies() {
    let mut side = side();
    let (mut other, other_tir) = second(&mut side);
    let table = side.table(5, 4).unwrap();
    let by_source = outer(|set| _ = set.set_smac_15_0(0xffff));
    let group = side.group(table, 0, 7, &by_source).unwrap();
    let one = outer(|set| _ = set.set_smac_15_0(1));
    let both = [destination(TIR, side.tir), destination(TIR, other_tir)];
    side.entry(table, group, 0, &one, &both).unwrap();
    side.entry(table, group, 1, &outer(|set| _ = set.set_smac_15_0(2)), &[])
        .unwrap();
    side.post_receives(2);
    other.post(&side.bench, BUFFER, side.key);
    side.deliver(&plain(0, MACS[1], 64));
    side.deliver(&plain(1, MACS[1], 64));
    assert!(side.received().is_some() && side.received().is_none());
    assert!(other.received(&side.bench).is_some());
    assert_eq!(side.dropped("steering"), 1);
}

/// Every field of the outer headers that network drivers match is compared: version and protocol, ports, addresses,
/// tags.
#[test]
fn every_field_of_the_outer_headers_is_compared() {
    let frame = tcp([10, 1, 2, 3], 4_000, [10, 9, 8, 7], 443);
    let mut tagged = frame.clone();
    tagged.splice(12..12, [0x81, 0x00, 0x20, 0x05]);
    let mut source = [0; 16];
    source[12..].copy_from_slice(&[10, 1, 2, 3]);
    type Set<'a> = &'a dyn Fn(&mut FteMatchSetLyr24, bool);
    let ones = |value: u32, mask: bool, all: u32| if mask { all } else { value };
    let cases: [(&str, &[u8], Set); 8] = [
        ("version", &frame, &|set, mask| {
            set.set_ip_version(ones(4, mask, 0xf));
        }),
        ("protocol", &frame, &|set, mask| {
            set.set_ip_protocol(ones(6, mask, 0xff));
        }),
        ("source port", &frame, &|set, mask| {
            set.set_tcp_sport(ones(4_000, mask, 0xffff));
        }),
        ("destination port", &frame, &|set, mask| {
            set.set_tcp_dport(ones(443, mask, 0xffff));
        }),
        ("source address", &frame, &|set, mask| {
            set.set_src_ipv4_src_ipv6(if mask { &[0xff; 16] } else { &source });
        }),
        ("destination MAC", &frame, &|set, mask| {
            set.set_dmac_47_16(ones(0x0200_0000, mask, u32::MAX));
        }),
        ("VLAN", &tagged, &|set, mask| {
            set.set_cvlan_tag(true).set_first_vid(ones(5, mask, 0xfff));
        }),
        ("ethertype behind the tag", &tagged, &|set, mask| {
            set.set_ethertype(ones(0x0800, mask, 0xffff));
        }),
    ];
    for (what, frame, set) in cases {
        let mut side = side();
        let table = side.table(5, 4).unwrap();
        let group = side
            .group(table, 0, 7, &outer(|outer| set(outer, true)))
            .unwrap();
        let to = [destination(TIR, side.tir)];
        side.entry(table, group, 0, &outer(|outer| set(outer, false)), &to)
            .unwrap();
        side.post_receives(2);
        side.deliver(frame);
        assert!(side.received().is_some(), "{what}");
        // An ARP frame to another MAC address has none of these values.
        let mut arp = plain(0, [2, 1, 0, 0, 0, 2], 46);
        arp[12..14].copy_from_slice(&[0x08, 0x06]);
        side.deliver(&arp);
        assert!(side.received().is_none(), "{what}");
    }
}

#[test]
fn a_hash_spreads_frames_over_the_queues_of_a_table() {
    let mut side = side();
    let mut queues: Vec<ReceiveQueue> = (0..4)
        .map(|_| ReceiveQueue::new(&mut side.bench, &side.resources))
        .collect();
    let mut create = CreateRqtIn::new();
    create
        .rqt_context_mut()
        .set_rqt_max_size(8)
        .set_rqt_actual_size(4);
    let numbers: Vec<u8> = queues
        .iter()
        .flat_map(|rq| rq.number.to_be_bytes())
        .collect();
    let rqt = side.bench.exec_with(&create, &numbers).unwrap().rqtn();
    let mut create = CreateTirIn::new();
    let context = create.ctx_mut();
    context
        .set_disp_type(1)
        .set_transport_domain(side.td)
        .set_indirect_table(rqt)
        .set_rx_hash_fn(2)
        .set_rx_hash_toeplitz_key(&KEY);
    context
        .rx_hash_field_selector_outer_mut()
        .set_selected_fields(0xf);
    let tir = side.bench.exec(&create).unwrap().tirn();
    let table = side.table(5, 0).unwrap();
    let group = side.group(table, 0, 0, &nothing()).unwrap();
    side.entry(table, group, 0, &nothing(), &[destination(TIR, tir)])
        .unwrap();
    // Microsoft's test vectors for this key.
    let rows = [
        (
            [66, 9, 149, 187],
            2_794,
            [161, 142, 100, 80],
            1_766,
            0x51cc_c178_u32,
        ),
        (
            [199, 92, 111, 2],
            14_230,
            [65, 69, 140, 83],
            4_739,
            0xc626_b0ea,
        ),
        (
            [24, 19, 198, 95],
            12_898,
            [12, 22, 207, 184],
            38_024,
            0x5c2b_394a,
        ),
        (
            [38, 27, 205, 30],
            48_228,
            [209, 142, 163, 6],
            2_217,
            0xafc7_327f,
        ),
    ];
    for rq in &mut queues {
        rq.post(&side.bench, BUFFER, side.key);
        rq.post(&side.bench, BUFFER, side.key);
    }
    for (source, sport, destination, dport, hash) in rows {
        side.deliver(&tcp(source, sport, destination, dport));
        let queue = &mut queues[(hash & 3) as usize];
        let (cqe, _) = queue.received(&side.bench).expect("its queue");
        assert_eq!(cqe.rx_hash_result(), hash);
        assert_eq!(cqe.rx_hash_type(), 1 << 2 | 1 << 6, "IPv4 and TCP");
    }
    // A change of the indirection table changes the destinations of frames.
    let mut modify = ModifyRqtIn::new();
    modify.set_rqtn(rqt).set_bitmask_rqn_list(true);
    modify.ctx_mut().set_rqt_actual_size(1);
    side.bench
        .exec_with(&modify, &queues[3].number.to_be_bytes())
        .unwrap();
    side.deliver(&tcp([66, 9, 149, 187], 2_794, [161, 142, 100, 80], 1_766));
    assert!(queues[3].received(&side.bench).is_some());
    let mut query = QueryRqtIn::new();
    query.set_rqtn(rqt);
    let output = side.bench.raw(query.as_bytes(), 0x114).unwrap();
    assert_eq!(output[0x110..], queues[3].number.to_be_bytes());
}

#[test]
fn an_object_in_use_is_not_destroyed() {
    let mut side = side();
    side.steer_everything();
    let mut table = QueryFlowTableIn::new();
    // Find the number of the only flow table.
    let number = (0xd1..0x1_0000)
        .find(|&number| side.bench.exec(table.set_table_id(number)).is_ok())
        .unwrap();
    let (tir, rq, tis, td) = (side.tir, side.rq.number, side.tis, side.td);
    let cqs = [side.sq.cq.number, side.rq.cq.number];
    let pd = side.resources.pd;
    let bench = &mut side.bench;
    let mut destroy_tir = DestroyTirIn::new();
    destroy_tir.set_tirn(tir);
    let mut destroy_rq = DestroyRqIn::new();
    destroy_rq.set_rqn(rq);
    let mut destroy_tis = DestroyTisIn::new();
    destroy_tis.set_tisn(tis);
    let mut dealloc_td = DeallocTransportDomainIn::new();
    dealloc_td.set_transport_domain(td);
    let mut dealloc_pd = DeallocPdIn::new();
    dealloc_pd.set_pd(pd);
    let mut destroy_table = DestroyFlowTableIn::new();
    destroy_table.set_table_id(number);
    let mut destroy_group = DestroyFlowGroupIn::new();
    destroy_group.set_table_id(number).set_group_id(1);
    let referenced = CmdStatus::BAD_RES_STATE;
    assert_eq!(bench.status(&destroy_tir), referenced);
    assert_eq!(bench.status(&destroy_rq), referenced);
    assert_eq!(bench.status(&destroy_tis), referenced);
    assert_eq!(bench.status(&dealloc_td), referenced);
    assert_eq!(bench.status(&dealloc_pd), referenced);
    assert_eq!(bench.status(&destroy_table), referenced);
    assert_eq!(bench.status(&destroy_group), referenced);
    for cqn in cqs {
        let destroy = destroy_cq(cqn);
        assert_eq!(bench.status(&destroy), referenced);
    }
    // In this order all objects of Ethernet can be destroyed. Only the bench's objects and the memory key remain.
    let mut delete = DeleteFlowTableEntryIn::new();
    delete.set_table_id(number);
    let mut destroy_sq = DestroySqIn::new();
    destroy_sq.set_sqn(side.sq.number);
    bench.exec(&delete).unwrap();
    bench.exec(&destroy_group).unwrap();
    bench.exec(&destroy_table).unwrap();
    bench.exec(&destroy_tir).unwrap();
    bench.exec(&destroy_rq).unwrap();
    bench.exec(&destroy_sq).unwrap();
    bench.exec(&destroy_tis).unwrap();
    bench.exec(&dealloc_td).unwrap();
    for cqn in cqs {
        let destroy = destroy_cq(cqn);
        bench.exec(&destroy).unwrap();
    }
    let left = bench.report().objects;
    let kinds: Vec<_> = left.into_keys().collect();
    assert_eq!(kinds, ["EQ", "PD", "UAR", "mkey"]);
}

#[test]
fn flow_objects_keep_to_their_ranges_levels_and_kinds() {
    let mut shallow = profile(1);
    shallow.flow_table.set(|page| {
        page.flow_table_properties_nic_receive_mut()
            .set_max_ft_level(64);
    });
    let mut side = Side::alone(shallow);
    let bad = CmdStatus::BAD_PARAM;
    assert_eq!(refused(side.table(65, 4)), bad, "level");
    assert_eq!(refused(side.table(5, 17)), CmdStatus::EXCEED_LIM, "size");
    let mut other_type = CreateFlowTableIn::new();
    other_type.set_table_type(FlowTableType::NIC_TX);
    assert_eq!(side.bench.status(&other_type), bad);
    let table = side.table(5, 4).unwrap();
    let lower = side.table(5, 0).unwrap();
    assert_eq!(
        refused(side.group(table, 4, 16, &nothing())),
        bad,
        "beyond the table"
    );
    assert_eq!(
        refused(side.group(table, 4, 3, &nothing())),
        bad,
        "backwards"
    );
    let group = side.group(table, 4, 7, &nothing()).unwrap();
    assert_eq!(
        refused(side.group(table, 7, 9, &nothing())),
        bad,
        "another's range"
    );
    let mut inner = CreateFlowGroupIn::new();
    inner
        .set_table_id(table)
        .set_match_criteria_enable(match_criteria::INNER_HEADERS);
    assert_eq!(side.bench.status(&inner), bad, "inner headers");
    let to_tir = [destination(TIR, side.tir)];
    assert_eq!(
        refused(side.entry(table, group, 3, &nothing(), &to_tir)),
        bad,
        "index"
    );
    let missing = CmdStatus::BAD_RESOURCE;
    assert_eq!(
        refused(side.entry(table, group + 1, 4, &nothing(), &to_tir)),
        missing
    );
    let nowhere = [destination(TIR, 0xfff)];
    assert_eq!(
        refused(side.entry(table, group, 4, &nothing(), &nowhere)),
        missing
    );
    let down = [destination(TABLE, lower)];
    assert_eq!(
        refused(side.entry(table, group, 4, &nothing(), &down)),
        bad,
        "level"
    );
    let vport = [destination(FlowDestinationType::VPORT, 0)];
    assert_eq!(
        refused(side.entry(table, group, 4, &nothing(), &vport)),
        bad,
        "vport"
    );
    let count = entry_input(table, group, 4, &nothing(), flow_action::COUNT, 0);
    assert_eq!(side.bench.status(&count), bad, "counting");
    let many = vec![to_tir[0]; 33];
    assert_eq!(
        refused(side.entry(table, group, 4, &nothing(), &many)),
        CmdStatus::EXCEED_LIM,
        "more than 2^log_max_destination"
    );
    side.entry(table, group, 4, &nothing(), &to_tir).unwrap();
    assert_eq!(
        refused(side.entry(table, group, 4, &nothing(), &to_tir)),
        bad,
        "taken"
    );
    // An existing entry can be changed in place.
    let mut change = entry_input(table, group, 4, &nothing(), flow_action::DROP, 0);
    change.set_op_mod(1).set_modify_enable_mask(0b101);
    side.bench.exec(&change).unwrap();
    let mut destroy = DestroyTirIn::new();
    destroy.set_tirn(side.tir);
    assert_eq!(
        side.bench.status(&destroy),
        CmdStatus::OK,
        "no longer referred to"
    );
}

#[test]
fn queues_are_created_with_what_exists_and_what_the_device_has() {
    let mut side = side();
    let (page, record) = side.bench.ring_and_record();
    let create = rq_input(side.rq.cq.number, side.resources.pd, record, [5, 4]);
    let pages = list(&[page]);
    assert_eq!(side.bench.status_with(&create, &pages), CmdStatus::OK);
    let bad = CmdStatus::BAD_PARAM;
    type Spoil = fn(&mut Rqc);
    let cases: [(&str, CmdStatus, Spoil); 8] = [
        ("CQ", CmdStatus::BAD_RESOURCE, |rq| _ = rq.set_cqn(0xfff)),
        ("PD", CmdStatus::BAD_RESOURCE, |rq| {
            _ = rq.wq_mut().set_pd(0xfff)
        }),
        ("type", bad, |rq| _ = rq.wq_mut().set_wq_type(3)),
        ("stride", bad, |rq| _ = rq.wq_mut().set_log_wq_stride(3)),
        ("size", CmdStatus::EXCEED_LIM, |rq| {
            _ = rq.wq_mut().set_log_wq_sz(16)
        }),
        ("pages", CmdStatus::BAD_INPUT_LEN, |rq| {
            _ = rq.wq_mut().set_log_wq_sz(9)
        }),
        ("record", bad, |rq| _ = rq.wq_mut().set_dbr_addr(0x1234)),
        ("state", bad, |rq| _ = rq.set_state(READY)),
    ];
    for (what, status, spoil) in cases {
        let mut create = create.clone();
        spoil(create.ctx_mut());
        assert_eq!(side.bench.status_with(&create, &pages), status, "{what}");
    }
    assert_eq!(
        side.modify_rq(RESET, READY),
        CmdStatus::BAD_RES_STATE,
        "it is ready"
    );
    assert_eq!(side.modify_sq(READY, 2), bad, "no such state");
}

#[test]
fn a_table_of_a_user_context_is_no_root_unless_the_driver_sets_it() {
    let mut side = Side::alone(profile(1).devx());
    let uid = side.bench.exec(&CreateUctxIn::new()).unwrap().uid();
    let mut create = CreateFlowTableIn::new();
    create.set_uid(uid);
    let table = side.bench.exec(&create).unwrap().table_id();
    let group = side.group(table, 0, 0, &nothing()).unwrap();
    let to = destination(TIR, side.tir);
    side.entry(table, group, 0, &nothing(), &[to]).unwrap();
    side.post_receives(1);
    side.deliver(&plain(0, MACS[1], 64));
    assert!(side.received().is_none());
    let mut root = SetFlowTableRootIn::new();
    root.set_table_id(table);
    side.bench.exec(&root).unwrap();
    side.deliver(&plain(0, MACS[1], 64));
    assert!(side.received().is_some());
}
