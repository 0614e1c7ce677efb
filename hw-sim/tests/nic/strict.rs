//! Tests of object rules: objects that must exist, objects in use, ranges. Each rule is tested with valid and with
//! invalid commands.

use driver::Device as _;
use mlx_prm::*;
use std::time::Duration;
use zerocopy::IntoBytes;

use crate::bench::{
    Bench, Failure, READ, Resources, WRITE, cq_input, destroy_cq, destroy_mkey, destroy_qp, list,
    modest, pa_key, qp_input,
};

const NONE: u32 = 0x00de_ad00;

pub fn usable() -> (Bench, Resources) {
    Bench::usable(modest())
}

#[test]
fn numbers_are_neither_dense_nor_reused_at_once() {
    let (mut bench, _) = usable();
    let mut pd = || bench.exec(&AllocPdIn::new()).unwrap().pd();
    let (first, second) = (pd(), pd());
    assert!(first.abs_diff(second) > 1);
    let mut dealloc = DeallocPdIn::new();
    dealloc.set_pd(first);
    bench.exec(&dealloc).unwrap();
    assert_eq!(
        bench.status(&dealloc),
        CmdStatus::BAD_RESOURCE,
        "freed twice"
    );
    assert_ne!(bench.exec(&AllocPdIn::new()).unwrap().pd(), first);
}

#[test]
fn uar_pages_stay_clear_of_the_initialization_segment_and_run_out() {
    /// Number of pages of the device memory window.
    const DEVICE_MEMORY: u32 = (256 << 10) / 4096;
    let (mut bench, mut resources) = usable();
    let pages = u32::try_from(modest().bar_bytes / 4096).expect("a BAR");
    let mut seen = 0;
    loop {
        bench.drain_eq(&mut resources.eq);
        match bench.exec(&AllocUarIn::new()) {
            Ok(out) => {
                assert!(out.uar() >= 4 && out.uar() < pages);
                seen += 1;
            }
            Err(failure) => {
                assert_eq!(failure, Failure::Refused(CmdStatus::EXCEED_LIM));
                break;
            }
        }
    }
    assert_eq!(
        seen,
        pages - 5 - DEVICE_MEMORY - 1,
        "all pages of the BAR but the segment's, device memory's and the one in use"
    );
}

#[test]
fn a_referenced_object_cannot_be_destroyed() {
    let (mut bench, resources) = usable();
    let cq = bench.cq(&resources, 4);
    let key = bench.create_pa_key(resources.pd);
    let mut uar = DeallocUarIn::new();
    uar.set_uar(resources.uar);
    let mut pd = DeallocPdIn::new();
    pd.set_pd(resources.pd);
    let mut eq = DestroyEqIn::new();
    eq.set_eq_number(resources.eq.number);
    assert_eq!(bench.status(&uar), CmdStatus::BAD_RES_STATE);
    assert_eq!(bench.status(&pd), CmdStatus::BAD_RES_STATE);
    assert_eq!(bench.status(&eq), CmdStatus::BAD_RES_STATE);

    let destroy_cq = destroy_cq(cq.number);
    bench.exec(&destroy_cq).unwrap();
    bench.exec(&destroy_mkey(key >> 8)).unwrap();
    bench.exec(&pd).unwrap();
    bench.exec(&eq).unwrap();
    bench.exec(&uar).unwrap();
    assert!(bench.report().leaked.is_empty());
}

#[test]
fn destroying_what_does_not_exist_is_a_bad_resource() {
    let (mut bench, _) = usable();
    let cq = destroy_cq(NONE);
    let qp = destroy_qp(NONE);
    let key = destroy_mkey(NONE);
    let mut eq = DestroyEqIn::new();
    eq.set_eq_number(0xfe);
    let mut rmp = DestroyRmpIn::new();
    rmp.set_rmpn(NONE);
    assert_eq!(bench.status(&cq), CmdStatus::BAD_RESOURCE);
    assert_eq!(bench.status(&qp), CmdStatus::BAD_RESOURCE);
    assert_eq!(bench.status(&key), CmdStatus::BAD_RESOURCE);
    assert_eq!(bench.status(&eq), CmdStatus::BAD_RESOURCE);
    assert_eq!(bench.status(&rmp), CmdStatus::BAD_RESOURCE);
}

#[test]
fn an_eq_names_an_existing_uar_a_vector_of_the_function_and_free_event_types() {
    let (mut bench, resources) = usable();
    let (uar, vectors) = (resources.uar, u32::from(modest().msix_vectors));
    let refused = |status| Some(Failure::Refused(status));
    for (what, (uar, events, vector), failure) in [
        ("no UAR", (NONE, 0, 0), refused(CmdStatus::BAD_RESOURCE)),
        (
            "no vector",
            (uar, 0, vectors),
            refused(CmdStatus::BAD_PARAM),
        ),
        ("taken", (uar, 1 << 9, 1), refused(CmdStatus::BAD_PARAM)),
        (
            "unknown",
            (uar, 1 << 0x25, 1),
            refused(CmdStatus::BAD_PARAM),
        ),
        ("several EQs may share a vector", (uar, 0, 0), None),
    ] {
        let created = bench.create_eq_for(uar, events, vector, 6);
        assert_eq!(created.err(), failure, "{what}");
    }
}

#[test]
fn an_eq_needs_its_whole_page_list_and_mapped_memory() {
    let (mut bench, resources) = usable();
    let (_, iova) = bench.alloc(4096);
    let mut create = CreateEqIn::new();
    create
        .eq_context_entry_mut()
        .set_log_eq_size(7)
        .set_uar_page(resources.uar);
    assert_eq!(
        bench.status_with(&create, &list(&[iova])),
        CmdStatus::BAD_INPUT_LEN,
        "8 KiB in one page"
    );
    create.eq_context_entry_mut().set_log_page_size(2);
    assert_eq!(
        bench.status_with(&create, &list(&[iova])),
        CmdStatus::OK,
        "one 16 KiB page, aligned to 4 KiB"
    );
    assert_eq!(
        bench.status_with(&create, &list(&[iova + 64])),
        CmdStatus::BAD_PARAM,
        "not aligned"
    );
    assert_eq!(
        bench.status_with(&create, &list(&[0x10_0000])),
        CmdStatus::BAD_PARAM,
        "not mapped"
    );
}

#[test]
fn a_cq_names_an_existing_eq_and_uar_and_stays_within_the_limits() {
    let (mut bench, resources) = usable();
    let (page, record) = bench.ring_and_record();
    let (uar, eqn) = (resources.uar, resources.eq.number);
    let pages = list(&[page]);
    for (what, (uar, eqn, log_size, record), status) in [
        ("no EQ", (uar, 0xee, 4, record), CmdStatus::BAD_RESOURCE),
        ("no UAR", (NONE, eqn, 4, record), CmdStatus::BAD_RESOURCE),
        ("size", (uar, eqn, 23, record), CmdStatus::EXCEED_LIM),
        ("pages", (uar, eqn, 7, record), CmdStatus::BAD_INPUT_LEN),
        ("record", (uar, eqn, 4, record + 4), CmdStatus::BAD_PARAM),
    ] {
        let create = cq_input(uar, eqn, log_size, record);
        assert_eq!(bench.status_with(&create, &pages), status, "{what}");
    }
    let mut collapsed = cq_input(uar, eqn, 0, record);
    collapsed.cq_context_mut().set_cc(true).set_oi(true);
    assert_eq!(
        bench.status_with(&collapsed, &pages),
        CmdStatus::OK,
        "as Snabb creates them"
    );
}

#[test]
fn query_cq_returns_the_context_and_modify_cq_what_it_was_told() {
    let (mut bench, resources) = usable();
    let cq = bench.cq(&resources, 4);
    let mut modify = ModifyCqIn::new();
    modify.set_cqn(cq.number).set_modify_field_select(3);
    modify.cq_context_mut().set_cq_period(7).set_cq_max_count(9);
    bench.exec(&modify).unwrap();
    let context = bench.cq_context(cq.number);
    assert_eq!((context.cq_period(), context.cq_max_count()), (7, 9));
    assert_eq!(
        (context.log_cq_size(), context.uar_page(), context.st()),
        (4, resources.uar, 0),
        "the queue was never armed"
    );
}

fn mtt_key(pd: u32, start: u64, bytes: u64, log_page: u32, octowords: u32) -> CreateMkeyIn {
    let mut create = CreateMkeyIn::new();
    create
        .set_pg_access(true)
        .set_translations_octword_actual_size(octowords);
    create
        .memory_key_mkey_entry_mut()
        .set_pd(pd)
        .set_qpn(0xff_ffff)
        .set_access_mode_1_0(1)
        .set_lr(true)
        .set_start_addr(start)
        .set_len(bytes)
        .set_log_page_size(log_page)
        .set_translations_octword_size(octowords);
    create
}

/// A key with permissions in its translation entries needs the capability `pg` (Linux `mr.c` `reg_create` sets them
/// only then).
#[test]
fn permissions_in_entries_need_the_capability() {
    let (mut bench, resources) = usable();
    let entries = list(&[0x4000_0003, 0x4000_1003]);
    let create = mtt_key(resources.pd, 0x7000, 0x2000, 12, 1);
    assert_eq!(bench.status_with(&create, &entries), CmdStatus::OK);
    let mut old = modest();
    old.general.set(|caps| _ = caps.set_pg(false));
    let (mut bench, resources) = Bench::usable(old);
    let mut create = mtt_key(resources.pd, 0x7000, 0x2000, 12, 1);
    assert_eq!(
        bench.status_with(&create, &entries),
        CmdStatus::BAD_PARAM,
        "without it"
    );
    create.set_pg_access(false);
    assert_eq!(bench.status_with(&create, &entries), CmdStatus::OK);
}

#[test]
fn a_key_has_a_translation_that_covers_it() {
    let (mut bench, resources) = usable();
    let pd = resources.pd;
    let two = list(&[0x4000_0003, 0x4000_1003]);
    let odd = list(&[0x4000_1003, 0]);
    let (bad, missing) = (CmdStatus::BAD_PARAM, CmdStatus::BAD_RESOURCE);
    for (what, (pd, start, bytes, log_page, octowords), entries, status) in [
        (
            "two pages",
            (pd, 0x7000, 0x2000, 12, 1),
            &two,
            CmdStatus::OK,
        ),
        ("three pages", (pd, 0x7800, 0x2000, 12, 1), &two, bad),
        (
            "list ends",
            (pd, 0x7000, 0x2000, 12, 2),
            &two,
            CmdStatus::BAD_INPUT_LEN,
        ),
        (
            "a larger page",
            (pd, 0x7000, 0x1000, 13, 1),
            &two,
            CmdStatus::OK,
        ),
        ("unaligned", (pd, 0x7000, 0x1000, 13, 1), &odd, bad),
        ("no PD", (NONE, 0x7000, 0x2000, 12, 1), &two, missing),
        ("page size", (pd, 0x7000, 0x2000, 11, 1), &two, bad),
        ("wraps", (pd, u64::MAX, 2, 12, 1), &two, bad),
    ] {
        let create = mtt_key(pd, start, bytes, log_page, octowords);
        assert_eq!(bench.status_with(&create, entries), status, "{what}");
    }
}

#[test]
fn a_key_that_another_reaches_through_cannot_be_destroyed() {
    let (mut bench, resources) = usable();
    let inner = bench.create_pa_key(resources.pd);
    let klm = u64::from(0x100_u32) << 32 | u64::from(inner);
    let mut create = mtt_key(resources.pd, 0x9000, 0x100, 0, 1);
    create.memory_key_mkey_entry_mut().set_access_mode_1_0(2);
    let outer = bench
        .exec_with(&create, &list(&[klm, 0x4000_0000]))
        .unwrap()
        .mkey_index();
    let destroy = destroy_mkey(inner >> 8);
    assert_eq!(bench.status(&destroy), CmdStatus::BAD_RES_STATE);
    bench.exec(&destroy_mkey(outer)).unwrap();
    bench.exec(&destroy).unwrap();
    assert_eq!(
        bench.status_with(&create, &list(&[klm, 0x4000_0000])),
        CmdStatus::BAD_RESOURCE,
        "no such key now"
    );
}

#[test]
fn a_single_entry_covers_two_gigabytes() {
    let (mut bench, resources) = usable();
    let key = mtt_key(resources.pd, 0x4000_0000, 1 << 30, 31, 1);
    assert_eq!(bench.status_with(&key, &list(&[3, 0])), CmdStatus::OK);
    let key = mtt_key(resources.pd, 0, 1 << 30, 32, 1);
    assert_eq!(
        bench.status_with(&key, &list(&[3, 0])),
        CmdStatus::BAD_PARAM,
        "no sixth bit of the page size"
    );
}

#[test]
fn keys_with_features_the_function_lacks_are_refused() {
    let (mut bench, resources) = usable();
    type Edit = fn(&mut Mkc);
    let cases: [(&str, CmdStatus, Edit); 5] = [
        ("none", CmdStatus::OK, |_| {}),
        ("relaxed ordering", CmdStatus::BAD_PARAM, |mkc| {
            _ = mkc.set_relaxed_ordering_write(true)
        }),
        ("BSF", CmdStatus::BAD_PARAM, |mkc| _ = mkc.set_bsf_en(true)),
        ("access mode 4", CmdStatus::BAD_PARAM, |mkc| {
            _ = mkc.set_access_mode_4_2(1)
        }),
        ("access mode 3", CmdStatus::BAD_PARAM, |mkc| {
            _ = mkc.set_access_mode_1_0(3)
        }),
    ];
    for (what, status, edit) in cases {
        let mut create = pa_key(resources.pd);
        edit(create.memory_key_mkey_entry_mut());
        assert_eq!(bench.status(&create), status, "{what}");
    }
}

/// Relaxed reads need `relaxed_ordering_read`, or both `relaxed_ordering_read_pci_enabled` and the bit Enable Relaxed
/// Ordering of PCI configuration, which is set at power-on.
#[test]
fn relaxed_reads_need_their_capability_or_the_pci_capability_and_the_pci_bit() {
    for (read, with_pci, by_pci, status) in [
        (false, false, true, CmdStatus::BAD_PARAM),
        (true, false, false, CmdStatus::OK),
        (false, true, true, CmdStatus::OK),
        (false, true, false, CmdStatus::BAD_PARAM),
    ] {
        let mut profile = modest();
        profile.general.set(|page| {
            page.set_relaxed_ordering_read(read)
                .set_relaxed_ordering_read_pci_enabled(with_pci);
        });
        let (mut bench, resources) = Bench::usable(profile);
        let mut control = [0; 2];
        bench.function.config_read(0x68, &mut control);
        assert_eq!(control[0] & 0x10, 0x10);
        if !by_pci {
            bench
                .function
                .config_write(0x68, &[control[0] & !0x10, control[1]]);
        }
        let mut create = pa_key(resources.pd);
        create
            .memory_key_mkey_entry_mut()
            .set_relaxed_ordering_read(true);
        let case = (read, with_pci, by_pci);
        assert_eq!(bench.status(&create), status, "{case:?}");
    }
}

#[test]
fn query_mkey_returns_what_was_created() {
    let (mut bench, resources) = usable();
    let mut create = mtt_key(resources.pd, 0x7000, 0x2000, 12, 1);
    create
        .memory_key_mkey_entry_mut()
        .set_mkey_7_0(0x5a)
        .set_rr(true);
    let index = bench
        .exec_with(&create, &list(&[0x4000_0003, 0x4000_1003]))
        .unwrap()
        .mkey_index();
    let mut query = QueryMkeyIn::new();
    query.set_mkey_index(index);
    let out = bench.exec(&query).unwrap();
    let context = out.memory_key_mkey_entry();
    assert_eq!(
        (context.start_addr(), context.len(), context.mkey_7_0()),
        (0x7000, 0x2000, 0x5a)
    );
    assert!(context.rr() && !context.rw());
}

/// A send queue must be at least as long as the shortest send queue of any known driver. For datagrams, rdma-core
/// `mlx5_calc_sq_size` and Linux `calc_sq_size` reserve at least 128 bytes. A connected queue pair may have one block:
/// perftest's `ib_send_bw -R` creates such a queue pair.
#[test]
fn a_send_queue_is_as_long_as_the_smallest_of_any_known_driver() {
    let (mut bench, resources) = usable();
    let cq = bench.cq(&resources, 6);
    let (page, record) = bench.ring_and_record();
    for (service, log_size, status) in [
        (ServiceType::RC, 0, CmdStatus::OK),
        (ServiceType::RC, 2, CmdStatus::OK),
        (ServiceType::UD, 0, CmdStatus::BAD_PARAM),
        (ServiceType::UD, 1, CmdStatus::OK),
        (ServiceType::QP1, 1, CmdStatus::OK),
    ] {
        let mut create = qp_input(&resources, cq.number, record);
        create
            .qpc_mut()
            .set_st(service.bits())
            .set_log_sq_size(log_size);
        let answered = bench.status_with(&create, &list(&[page]));
        assert_eq!(answered, status, "{service:?} 2^{log_size}");
    }
    let mut none = qp_input(&resources, cq.number, record);
    none.qpc_mut().set_no_sq(true).set_log_sq_size(0);
    let answered = bench.status_with(&none, &list(&[page]));
    assert_eq!(answered, CmdStatus::OK, "without a send queue");
}

/// For QP0 and QP1, every transition must contain the port number. For other queue pairs, RST2INIT is sufficient (Linux
/// `__mlx5_ib_modify_qp`, `is_sqp`).
#[test]
fn a_special_queue_pair_names_its_port_at_every_step_and_others_once() {
    let (mut bench, resources) = usable();
    bench.enable_roce([0xfe; 16], [2, 0, 0, 0, 0, 1]);
    for (service, without) in [
        (ServiceType::QP1, CmdStatus::BAD_PARAM),
        (ServiceType::UD, CmdStatus::OK),
    ] {
        let qp = bench.qp(&resources, 6, |qpc| _ = qpc.set_st(service.bits()));
        let qpn = Qpn::new(qp.number);
        let mut init = Rst2InitQpIn::for_qp(qpn, 0);
        if service == ServiceType::QP1 {
            assert_eq!(bench.status(&init), without, "RST2INIT");
        }
        named(init.qpc_mut());
        assert_eq!(bench.status(&init), CmdStatus::OK, "RST2INIT");
        let mut rtr = Init2RtrQpIn::for_qp(qpn, 0);
        rtr.qpc_mut().set_mtu(1);
        assert_eq!(bench.status(&rtr), without, "{service:?}: INIT2RTR");
        named(rtr.qpc_mut());
        if service == ServiceType::QP1 {
            assert_eq!(bench.status(&rtr), CmdStatus::OK, "INIT2RTR");
        }
        let mut rts = Rtr2RtsQpIn::for_qp(qpn, 0);
        assert_eq!(bench.status(&rts), without, "{service:?}: RTR2RTS");
        named(rts.qpc_mut());
        if service == ServiceType::QP1 {
            assert_eq!(bench.status(&rts), CmdStatus::OK, "RTR2RTS");
        }
    }
}

pub fn named(context: &mut Qpc) {
    context.primary_address_path_mut().set_vhca_port_num(1);
}

#[test]
fn a_queue_pair_names_objects_that_exist_and_holds_them() {
    let (mut bench, resources) = usable();
    let cq = bench.cq(&resources, 6);
    let (page, record) = bench.ring_and_record();
    let pages = list(&[page]);
    type Spoil = fn(&mut Qpc);
    let missing = CmdStatus::BAD_RESOURCE;
    let cases: [(&str, CmdStatus, Spoil); 8] = [
        ("no PD", missing, |qpc| _ = qpc.set_pd(NONE)),
        ("no UAR", missing, |qpc| _ = qpc.set_uar_page(NONE)),
        ("no CQ of sends", missing, |qpc| _ = qpc.set_cqn_snd(NONE)),
        ("no CQ of receives", missing, |qpc| {
            _ = qpc.set_cqn_rcv(NONE)
        }),
        ("no DC", CmdStatus::BAD_PARAM, |qpc| _ = qpc.set_st(5)),
        ("no SRQ", missing, |qpc| _ = qpc.set_rq_type(1)),
        ("pages missing", CmdStatus::BAD_INPUT_LEN, |qpc| {
            _ = qpc.set_log_sq_size(8)
        }),
        ("signatures", CmdStatus::BAD_PARAM, |qpc| {
            _ = qpc.set_wq_signature(true)
        }),
    ];
    for (what, status, spoil) in cases {
        let mut create = qp_input(&resources, cq.number, record);
        spoil(create.qpc_mut());
        assert_eq!(bench.status_with(&create, &pages), status, "{what}");
    }

    let qpn = bench
        .exec_with(&qp_input(&resources, cq.number, record), &pages)
        .unwrap()
        .qpn();
    let destroy_cq = destroy_cq(cq.number);
    assert_eq!(bench.status(&destroy_cq), CmdStatus::BAD_RES_STATE);
    bench.exec(&destroy_qp(qpn)).unwrap();
    bench.exec(&destroy_cq).unwrap();
}

#[test]
fn init2rtr_needs_roce_switched_on() {
    let (mut bench, resources) = usable();
    let qpn = bench.qp(&resources, 6, |_| {}).number;
    let mut rtr = Init2RtrQpIn::new();
    rtr.set_qpn(qpn);
    assert_eq!(bench.status(&rtr), CmdStatus::BAD_SYS_STATE);
}

/// Remote atomics need the capability. Linux returns EOPNOTSUPP before it sends such a command
/// (`set_qpc_atomic_flags`).
#[test]
fn remote_atomics_need_the_capability() {
    for atomic in [true, false] {
        let mut profile = modest();
        profile.general.set(|caps| _ = caps.set_atomic(atomic));
        let (mut bench, resources) = Bench::usable(profile);
        let qpn = bench.qp(&resources, 6, |_| {}).number;
        let mut init = Rst2InitQpIn::for_qp(Qpn::new(qpn), 0);
        init.qpc_mut()
            .set_rae(true)
            .primary_address_path_mut()
            .set_vhca_port_num(1);
        let expected = if atomic {
            CmdStatus::OK
        } else {
            CmdStatus::BAD_PARAM
        };
        assert_eq!(bench.status(&init), expected);
    }
}

/// Returns a command that creates a receive memory pool of 32 WQEs of 64 bytes.
pub fn rmp_input(pd: u32, record: u64) -> CreateRmpIn {
    let mut create = CreateRmpIn::new();
    create.ctx_mut().set_state(1);
    create
        .ctx_mut()
        .wq_mut()
        .set_pd(pd)
        .set_dbr_addr(record)
        .set_log_wq_stride(6)
        .set_log_wq_sz(5);
    create
}

#[test]
fn an_rmp_is_a_linked_list_or_a_ring_with_a_limit_inside_it() {
    let (mut bench, resources) = usable();
    let (page, record) = bench.ring_and_record();
    let pages = list(&[page]);
    let good = rmp_input(resources.pd, record);
    let rmpn = bench.exec_with(&good, &pages).unwrap().rmpn();
    type Spoil = fn(&mut Rmpc);
    let cases: [(&str, CmdStatus, Spoil); 5] = [
        ("type", CmdStatus::BAD_PARAM, |rmp| {
            _ = rmp.wq_mut().set_wq_type(2)
        }),
        ("state", CmdStatus::BAD_PARAM, |rmp| _ = rmp.set_state(3)),
        ("PD", CmdStatus::BAD_RESOURCE, |rmp| {
            _ = rmp.wq_mut().set_pd(NONE)
        }),
        ("size", CmdStatus::EXCEED_LIM, |rmp| {
            _ = rmp.wq_mut().set_log_wq_sz(16)
        }),
        ("stride", CmdStatus::BAD_PARAM, |rmp| {
            _ = rmp.wq_mut().set_log_wq_stride(4)
        }),
    ];
    for (what, status, spoil) in cases {
        let mut create = good.clone();
        spoil(create.ctx_mut());
        assert_eq!(bench.status_with(&create, &pages), status, "{what}");
    }

    let mut modify = ModifyRmpIn::new();
    modify.set_rmpn(rmpn).set_rmp_state(1).set_bitmask_lwm(true);
    modify.ctx_mut().set_state(1).wq_mut().set_lwm(3);
    bench.exec(&modify).unwrap();
    modify.ctx_mut().wq_mut().set_lwm(32);
    assert_eq!(bench.status(&modify), CmdStatus::BAD_PARAM);
    modify.set_rmp_state(3);
    assert_eq!(bench.status(&modify), CmdStatus::BAD_RES_STATE);
}

#[test]
fn arming_a_limit_that_is_undercut_already_fires_at_once() {
    let (mut bench, mut resources) = usable();
    let (page, record) = bench.ring_and_record();
    let create = rmp_input(resources.pd, record);
    let rmpn = bench.exec_with(&create, &list(&[page])).unwrap().rmpn();
    bench.drain_eq(&mut resources.eq);
    let mut modify = ModifyRmpIn::new();
    modify.set_rmpn(rmpn).set_rmp_state(1).set_bitmask_lwm(true);
    modify.ctx_mut().set_state(1).wq_mut().set_lwm(3);
    bench.exec(&modify).unwrap();
    assert_eq!(
        bench.drain_eq(&mut resources.eq),
        [EventType::CMD, EventType::SRQ_RQ_LIMIT],
        "after the answer"
    );
}

#[test]
fn a_roce_address_has_an_index_a_mac_and_a_version_that_agree() {
    let (mut bench, _) = usable();
    let link_local = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let ipv4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
    let set = |gid: [u8; 16], version: u32, l3: u32, index: u32, mac: u32| {
        let mut set = SetRoceAddressIn::new();
        set.set_roce_address_index(index).set_vhca_port_num(1);
        set.roce_address_mut()
            .set_source_l3_address(&gid)
            .set_source_mac_47_32(mac)
            .set_source_mac_31_0(1)
            .set_roce_version(version)
            .set_roce_l3_type(l3);
        set
    };
    let bad = CmdStatus::BAD_PARAM;
    for (what, (gid, version, l3, index, mac), status) in [
        ("v2", (link_local, 2, 1, 0, 0x0200), CmdStatus::OK),
        (
            "v1 has L3 type 0 and the raw GID",
            (link_local, 0, 0, 1, 0x0200),
            CmdStatus::OK,
        ),
        ("IPv4", (ipv4, 2, 0, 2, 0x0200), CmdStatus::OK),
        ("IPv4 as IPv6", (ipv4, 2, 1, 2, 0x0200), bad),
        ("IPv6 as IPv4", (link_local, 2, 0, 2, 0x0200), bad),
        ("version code 1", (link_local, 1, 0, 2, 0x0200), bad),
        ("index", (link_local, 2, 1, 255, 0x0200), bad),
        ("multicast MAC", (link_local, 2, 1, 2, 0x0100), bad),
    ] {
        let set = set(gid, version, l3, index, mac);
        assert_eq!(bench.status(&set), status, "{what}");
    }
    let mut query = QueryRoceAddressIn::new();
    query.set_roce_address_index(2).set_vhca_port_num(1);
    let out = bench.exec(&query).unwrap();
    assert_eq!(out.roce_address().source_l3_address(), &ipv4);
    assert_eq!(
        bench.status(&set([0; 16], 0, 0, 2, 0)),
        CmdStatus::OK,
        "a zero GID deletes"
    );
    assert_eq!(
        bench
            .exec(&query)
            .unwrap()
            .roce_address()
            .source_l3_address(),
        &[0; 16]
    );
}

/// SET_ROCE_ADDRESS must name the port if and only if `num_vhca_ports` is not 0 (Linux `lib/gid.c`
/// `mlx5_core_roce_gid_set`).
#[test]
fn an_address_names_its_port_where_there_are_ports_to_name() {
    for ports in [0, 1] {
        let mut profile = modest();
        profile
            .general
            .set(|caps| _ = caps.set_num_vhca_ports(ports));
        let (mut bench, _) = Bench::usable(profile);
        for named in 0..3 {
            let mut query = QueryRoceAddressIn::new();
            query.set_vhca_port_num(named);
            let mut set = SetRoceAddressIn::new();
            set.set_vhca_port_num(named);
            let expected = if named == ports {
                CmdStatus::OK
            } else {
                CmdStatus::BAD_PARAM
            };
            let case = format!("port {named} of {ports}");
            assert_eq!(bench.status(&set), expected, "{case}");
            assert_eq!(bench.status(&query), expected, "{case}");
        }
    }
}

#[test]
fn registers_of_the_port_answer_and_events_follow_the_answer() {
    let (mut bench, mut resources) = usable();
    let mut paos = Paos::new();
    paos.set_local_port(1).set_admin_status(2).set_ase(true);
    bench.drain_eq(&mut resources.eq);
    bench
        .register(RegisterId::PAOS, WRITE, paos.as_bytes())
        .unwrap();
    assert_eq!(
        bench.drain_eq(&mut resources.eq),
        [EventType::CMD, EventType::PORT_CHANGE]
    );
    let state = bench.exec(&QueryVportStateIn::new()).unwrap();
    assert_eq!(state.state(), 0);
    paos.set_admin_status(1);
    bench
        .register(RegisterId::PAOS, WRITE, paos.as_bytes())
        .unwrap();
    // One second is longer than link training.
    bench.sleep(Duration::from_secs(1));
    assert_eq!(bench.exec(&QueryVportStateIn::new()).unwrap().state(), 1);

    let mut pmtu = Pmtu::new();
    pmtu.set_local_port(1).set_admin_mtu(4300);
    bench
        .register(RegisterId::PMTU, WRITE, pmtu.as_bytes())
        .unwrap();
    let read = bench
        .register(RegisterId::PMTU, READ, pmtu.as_bytes())
        .unwrap();
    assert_eq!(
        u16::from_be_bytes([read[0x0c], read[0x0d]]),
        4300,
        "oper_mtu"
    );
    pmtu.set_admin_mtu(0xffff);
    let refused = |status| Err(Failure::Refused(status));
    assert_eq!(
        bench.register(RegisterId::PMTU, WRITE, pmtu.as_bytes()),
        refused(CmdStatus::BAD_PARAM)
    );
    assert_eq!(
        bench.register(RegisterId::PMTU, WRITE, &[0; 8]),
        refused(CmdStatus::BAD_INPUT_LEN)
    );
    pmtu.set_local_port(2);
    assert_eq!(
        bench.register(RegisterId::PMTU, READ, pmtu.as_bytes()),
        refused(CmdStatus::BAD_PARAM)
    );
    assert_eq!(
        bench.register(RegisterId(0x5fff), READ, &[0; 16]),
        refused(CmdStatus::BAD_PARAM)
    );
    assert!(
        bench
            .register(RegisterId::HOST_ENDIANNESS, WRITE, &[0; 16])
            .is_ok()
    );
    let mut ppcnt = Ppcnt::new();
    ppcnt.set_local_port(1);
    assert!(
        bench
            .register(RegisterId::PPCNT, READ, ppcnt.as_bytes())
            .is_ok()
    );
}

#[test]
fn doorbells_that_name_nothing_are_ignored_and_noted() {
    let (mut bench, resources) = usable();
    let uar = u64::from(resources.uar) << 12;
    let cq = bench.cq(&resources, 4);
    let other = bench.exec(&AllocUarIn::new()).unwrap().uar();
    bench.write32(uar | 0x40, 0xee << 24);
    bench.write64(uar | 0x20, u64::from(NONE));
    bench.write64(uar | 0x800, u64::from(NONE) << 8);
    bench.write32(0x3ff << 12 | 0x40, 0);
    bench.write64(u64::from(other) << 12 | 0x20, u64::from(cq.number));
    bench.write32(uar | 0x40, resources.eq.number << 24 | 77);
    let bugs = bench.driver_bugs();
    assert_eq!(bugs.len(), 6, "{bugs:#?}");
}

#[test]
fn a_cq_armed_without_its_record_is_noted() {
    let (mut bench, resources) = usable();
    let cq = bench.cq(&resources, 4);
    let arm = u64::from(resources.uar) << 12 | 0x20;
    bench.memory.store_be32(cq.record + 4, 1 << 24);
    bench.write64(arm, 1 << 56 | u64::from(cq.number));
    assert!(bench.driver_bugs().is_empty());
    bench.write64(arm, u64::from(cq.number));
    assert_eq!(bench.driver_bugs().len(), 1);
}

#[test]
fn an_eight_byte_doorbell_may_come_in_two_halves_low_address_first() {
    let (mut bench, mut resources) = usable();
    let cq = bench.cq(&resources, 4);
    let arm = u64::from(resources.uar) << 12 | 0x20;
    bench.write32(arm, 0);
    bench.write32(arm + 4, cq.number);
    assert_eq!(bench.cq_context(cq.number).st(), 9, "armed");
    assert!(bench.driver_bugs().is_empty());
    bench.drain_eq(&mut resources.eq);
}

#[test]
fn a_whole_doorbell_discards_the_first_half_of_an_earlier_one() {
    let (mut bench, resources) = usable();
    let cq = bench.cq(&resources, 4);
    let arm = u64::from(resources.uar) << 12 | 0x20;
    bench.write32(arm, 0);
    bench.write64(arm, u64::from(cq.number));
    assert!(bench.driver_bugs().is_empty());
    bench.write32(arm + 4, cq.number);
    let bugs = bench.driver_bugs();
    assert_eq!(bugs.len(), 1, "a second half alone: {bugs:#?}");
}

#[test]
fn gen_eqe_writes_the_given_entry() {
    let (mut bench, mut resources) = usable();
    bench.drain_eq(&mut resources.eq);
    let mut input = GenEqeIn::new();
    input.set_eq_number(resources.eq.number);
    input.eqe_mut()[1] = EventType::PATH_MIG.0;
    bench.exec(&input).unwrap();
    assert_eq!(
        bench.drain_eq(&mut resources.eq),
        [EventType::CMD, EventType::PATH_MIG]
    );
}

#[test]
fn an_async_eq_that_overruns_is_fatal() {
    let mut bench = Bench::initialised(modest());
    let uar = bench.exec(&AllocUarIn::new()).unwrap().uar();
    bench.create_eq(uar, 1, 0, 2).unwrap();
    for _ in 0..4 {
        bench.exec(&NopIn::new()).unwrap();
    }
    assert_eq!(bench.bar.load_u8(0x23d), 0);
    let submission = bench.prepare(NopIn::new().as_bytes(), 16);
    bench.submit(&submission);
    assert_eq!(bench.bar.load_u8(0x23d), HealthSyndrome::ASYNC_EQ_OVERRUN.0);
}

/// SET_ROCE_ADDRESS with a RoCE version that the device does not support is refused, even if the command clears the
/// entry. Linux mlx5_ib `set_roce_addr`: a command that clears an entry also has a version, and 0 is RoCE v1. A
/// function without v1 refuses this command with syndrome 0x12822d (linux-rdma, April 2021).
#[test]
fn an_address_of_a_version_that_the_device_lacks_is_refused_also_where_it_is_cleared() {
    let mut profile = modest();
    profile.roce.set(|caps| _ = caps.set_roce_version(1 << 2));
    let (mut bench, _) = Bench::usable(profile);
    for (version, expected) in [(0, CmdStatus::BAD_PARAM), (2, CmdStatus::OK)] {
        let mut clear = SetRoceAddressIn::new();
        clear.set_vhca_port_num(1);
        clear.roce_address_mut().set_roce_version(version);
        assert_eq!(bench.status(&clear), expected, "version {version}");
    }
    let refusal = "RoCE version that the device does not have";
    assert_eq!(hw_sim::cmd::syndrome_of(refusal), 0x12_822d);
}
