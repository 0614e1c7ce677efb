//! Tests of user contexts: ownership of objects, and operations that are forbidden.

use mlx_prm::*;

use crate::bench::{Bench, Failure, Resources, cq_input, destroy_mkey, list, modest};

/// Right to send raw frames, which Linux gives to contexts of programs with CAP_NET_RAW.
const RAW_TX: u32 = 1;
/// The uid of objects that the driver shares with all contexts.
const SHARED: u32 = 0xffff;

fn usable() -> (Bench, Resources) {
    Bench::usable(modest().devx())
}

fn context(bench: &mut Bench, rights: u32) -> u32 {
    let mut create = CreateUctxIn::new();
    create.uctx_mut().set_cap(rights);
    bench.exec(&create).unwrap().uid()
}

fn destroy(uid: u32) -> DestroyUctxIn {
    let mut destroy = DestroyUctxIn::new();
    destroy.set_uid(uid);
    destroy
}

fn pd(bench: &mut Bench, uid: u32) -> u32 {
    let mut alloc = AllocPdIn::new();
    alloc.set_uid(uid);
    bench.exec(&alloc).unwrap().pd()
}

fn dealloc_pd(uid: u32, pd: u32) -> DeallocPdIn {
    let mut dealloc = DeallocPdIn::new();
    dealloc.set_uid(uid).set_pd(pd);
    dealloc
}

#[test]
fn a_context_has_no_right_that_the_device_does_not_announce() {
    let (mut bench, _) = usable();
    let mut create = CreateUctxIn::new();
    create.uctx_mut().set_cap(4);
    assert_eq!(bench.status(&create), CmdStatus::BAD_PARAM);
    let (mut bench, _) = Bench::usable(modest());
    assert_eq!(bench.status(&CreateUctxIn::new()), CmdStatus::BAD_OP);
    let mut alloc = AllocPdIn::new();
    alloc.set_uid(SHARED);
    assert_eq!(
        bench.status(&alloc),
        CmdStatus::BAD_RESOURCE,
        "nobody shares anything where there are no contexts"
    );
}

#[test]
fn an_object_of_one_context_is_hidden_from_another_but_not_from_the_driver() {
    let (mut bench, resources) = usable();
    let (one, other) = (context(&mut bench, 0), context(&mut bench, 0));
    let mine = pd(&mut bench, one);
    assert_eq!(
        bench.status(&dealloc_pd(other, mine)),
        CmdStatus::BAD_RESOURCE
    );
    // A user context cannot destroy the driver's object either.
    assert_eq!(
        bench.status(&dealloc_pd(one, resources.pd)),
        CmdStatus::BAD_RESOURCE
    );
    assert_eq!(bench.status(&dealloc_pd(0, mine)), CmdStatus::OK);
}

#[test]
fn a_context_neither_names_nor_queries_foreign_objects() {
    let (mut bench, resources) = usable();
    let uid = context(&mut bench, 0);
    let (ring, record) = bench.ring_and_record();
    // The doorbell page and the event queue belong to the driver.
    let mut create = cq_input(resources.uar, resources.eq.number, 4, record);
    let pages = list(&[ring]);
    let drivers = bench.exec_with(&create, &pages).unwrap().cqn();
    create.set_uid(uid);
    assert_eq!(bench.status_with(&create, &pages), CmdStatus::BAD_RESOURCE);
    let mut query = QueryCqIn::new();
    query.set_cqn(drivers);
    assert_eq!(bench.status(&query), CmdStatus::OK);
    assert_eq!(
        bench.raw_as(uid, query.as_array(), QueryCqOut::SIZE),
        Err(Failure::Refused(CmdStatus::BAD_RESOURCE))
    );
}

/// The driver shares an object by creating it with the uid 0xffff (Linux `MLX5_SHARED_RESOURCE_UID`): every context may
/// name a shared event queue in its completion queues, and no other event queue of the driver. Linux creates its
/// completion event queues like that (`create_map_eq` in drivers/net/ethernet/mellanox/mlx5/core/eq.c). Other objects
/// can be shared too.
#[test]
fn event_queues_that_the_driver_shares_are_named_by_every_context() {
    let (mut bench, resources) = usable();
    let (ring, record) = bench.ring_and_record();
    let mut create = CreateEqIn::new();
    create.set_uid(SHARED);
    create
        .eq_context_entry_mut()
        .set_log_eq_size(6)
        .set_uar_page(resources.uar)
        .set_intr(1);
    let shared = bench.exec_with(&create, &list(&[ring])).unwrap();
    let mut alloc = AllocQCounterIn::new();
    alloc.set_uid(SHARED);
    let set = bench.exec(&alloc).unwrap().counter_set_id();
    let mut query = QueryQCounterIn::new();
    query.set_counter_set_id(set);
    for _ in 0..2 {
        let uid = context(&mut bench, 0);
        let mut alloc = AllocUarIn::new();
        alloc.set_uid(uid);
        let uar = bench.exec(&alloc).unwrap().uar();
        for (eqn, status) in [
            (shared.eq_number(), CmdStatus::OK),
            (resources.eq.number, CmdStatus::BAD_RESOURCE),
        ] {
            let mut create = cq_input(uar, eqn, 4, record);
            create.set_uid(uid);
            assert_eq!(bench.status_with(&create, &list(&[ring])), status);
        }
        let asked = bench.raw_as(uid, query.as_array(), QueryQCounterOut::SIZE);
        assert!(asked.is_ok(), "a shared set of counters");
    }
}

/// With user contexts, a write of the rest of a WQE to a doorbell register is no driver bug: programs that drive queues
/// themselves copy whole WQEs to BlueFlame registers.
#[test]
fn the_rest_of_a_wqe_in_a_doorbell_register_is_no_driver_bug_with_user_contexts() {
    for (profile, mistakes) in [(modest(), 1), (modest().devx(), 0)] {
        let (bench, resources) = Bench::usable(profile);
        bench.write64(u64::from(resources.uar) << 12 | 0xa08, 0);
        let log = bench.log();
        assert_eq!(log.matches("which is no doorbell").count(), mistakes);
    }
}

#[test]
fn raw_frames_are_a_right_of_their_own() {
    let (mut bench, _) = usable();
    for (rights, status) in [(0, CmdStatus::BAD_PARAM), (RAW_TX, CmdStatus::BAD_RESOURCE)] {
        let uid = context(&mut bench, rights);
        let mut create = CreateSqIn::new();
        create.set_uid(uid);
        // If the right is granted, the command fails later, because the completion queue does not exist.
        assert_eq!(bench.status(&create), status, "{rights:#x}");
    }
}

/// A user context cannot create queue pairs of the services QP1 and REG_UMR, queues with the reserved lkey or with
/// `fre`, or keys of DMA addresses, because these could access memory of other programs.
#[test]
fn no_context_reaches_memory_without_a_region() {
    let (mut bench, resources) = usable();
    let uid = context(&mut bench, RAW_TX);
    let domain = pd(&mut bench, uid);
    for service in [ServiceType::QP1, ServiceType::REG_UMR] {
        let mut create = CreateQpIn::new();
        create.set_uid(uid).qpc_mut().set_st(service.bits());
        assert_eq!(bench.status(&create), CmdStatus::BAD_PARAM, "{service:?}");
    }
    assert_eq!(
        bench
            .log()
            .matches("service type QP0, QP1 or REG_UMR")
            .count(),
        2
    );
    for (rlky, fre) in [(true, false), (false, true)] {
        let mut create = CreateQpIn::new();
        create.set_uid(uid).qpc_mut().set_rlky(rlky).set_fre(fre);
        assert_eq!(bench.status(&create), CmdStatus::BAD_PARAM);
    }
    assert_eq!(bench.log().matches("QP with ").count(), 2);
    let mut sq = CreateSqIn::new();
    sq.set_uid(uid).ctx_mut().set_rlky(true);
    assert_eq!(bench.status(&sq), CmdStatus::BAD_PARAM);
    let mut rq = CreateRqIn::new();
    rq.set_uid(uid).ctx_mut().set_rlky(true);
    assert_eq!(bench.status(&rq), CmdStatus::BAD_PARAM);
    assert_eq!(bench.log().matches("Q with the reserved lkey").count(), 2);
    for (user, pd, status) in [
        (uid, domain, CmdStatus::BAD_PARAM),
        (0, resources.pd, CmdStatus::OK),
    ] {
        let mut key = CreateMkeyIn::new();
        key.set_uid(user)
            .memory_key_mkey_entry_mut()
            .set_pd(pd)
            .set_length64(true)
            .set_qpn(0xff_ffff);
        assert_eq!(bench.status(&key), status);
    }
}

/// A key of a user context references the keys that its table names, although they belong to the driver. Linux creates
/// the MRs of programs under uid 0 (`reg_create` in drivers/infiniband/hw/mlx5/mr.c), and DevX sets the context's uid
/// in each command (devx.c, method OBJ_CREATE). A referenced key cannot be destroyed (status 0x09).
#[test]
fn a_key_of_a_context_holds_the_drivers_keys_that_it_names() {
    const KLM: u32 = 2;
    const KSM: u32 = 3;
    let mut profile = modest().devx();
    profile
        .general
        .set(|page| _ = page.set_fixed_buffer_size(true));
    let (mut bench, _) = Bench::usable(profile);
    let uid = context(&mut bench, 0);
    let domain = pd(&mut bench, uid);
    for mode in [KLM, KSM] {
        let region = bench.create_pa_key(domain);
        let mut create = CreateMkeyIn::new();
        create
            .set_uid(uid)
            .memory_key_mkey_entry_mut()
            .set_access_mode_1_0(mode)
            .set_lr(true)
            .set_qpn(0xff_ffff)
            .set_pd(domain)
            .set_len(4096)
            .set_log_page_size(12)
            .set_translations_octword_size(4);
        create.set_translations_octword_actual_size(1);
        let entry = [4096 << 32 | u64::from(region), 0];
        let indirect = bench
            .exec_with(&create, &list(&entry))
            .unwrap()
            .mkey_index();
        let destroy = destroy_mkey(region >> 8);
        assert_eq!(
            bench.status(&destroy),
            CmdStatus::BAD_RES_STATE,
            "access mode {mode}"
        );
        let mut first = destroy_mkey(indirect);
        first.set_uid(uid);
        assert_eq!(bench.status(&first), CmdStatus::OK);
        assert_eq!(bench.status(&destroy), CmdStatus::OK);
    }
}

#[test]
fn function_port_and_switch_are_the_drivers() {
    let (mut bench, _) = usable();
    let uid = context(&mut bench, RAW_TX);
    for input in [
        SetHcaCapIn::new().as_array().as_slice(),
        CreateUctxIn::new().as_array().as_slice(),
        ModifyNicVportContextIn::new().as_array().as_slice(),
        SetRoceAddressIn::new().as_array().as_slice(),
        SetFlowTableRootIn::new().as_array().as_slice(),
    ] {
        assert_eq!(
            bench.raw_as(uid, input, 16),
            Err(Failure::Refused(CmdStatus::BAD_PARAM)),
            "{input:x?}"
        );
    }
}

#[test]
fn a_context_is_destroyed_when_it_owns_nothing() {
    let (mut bench, _) = usable();
    let uid = context(&mut bench, 0);
    let own = pd(&mut bench, uid);
    assert_eq!(bench.status(&destroy(uid)), CmdStatus::BAD_RES_STATE);
    assert_eq!(bench.status(&dealloc_pd(uid, own)), CmdStatus::OK);
    assert_eq!(bench.status(&destroy(uid)), CmdStatus::OK);
    assert_eq!(bench.status(&destroy(uid)), CmdStatus::BAD_RESOURCE);
    assert_eq!(bench.status(&destroy(0)), CmdStatus::BAD_RESOURCE);
}

/// A context can be destroyed while it has doorbell pages. Its number is not reused until the pages are freed. Linux
/// 6.12 destroys the context of a program before its mapped doorbell page.
#[test]
fn a_context_is_destroyed_before_its_doorbell_pages_and_has_its_number_until_they_are_gone() {
    let (mut bench, _) = usable();
    let uid = context(&mut bench, 0);
    let mut alloc = AllocUarIn::new();
    alloc.set_uid(uid);
    let pages = [(); 2].map(|()| bench.exec(&alloc).unwrap().uar());
    assert_eq!(bench.status(&destroy(uid)), CmdStatus::OK);
    assert_eq!(
        bench.status(&destroy(uid)),
        CmdStatus::BAD_RESOURCE,
        "twice"
    );
    assert_eq!(bench.status(&alloc), CmdStatus::BAD_RESOURCE, "no more");
    let next = context(&mut bench, 0);
    assert_ne!(next, uid);
    for page in pages {
        let mut dealloc = DeallocUarIn::new();
        dealloc.set_uar(page).set_uid(next);
        assert_ne!(bench.status(&dealloc), CmdStatus::OK, "another's");
        dealloc.set_uid(uid);
        assert_eq!(bench.status(&dealloc), CmdStatus::OK);
    }
    let mut again = DeallocUarIn::new();
    again.set_uar(pages[0]).set_uid(uid);
    assert_eq!(bench.status(&again), CmdStatus::BAD_RESOURCE);
    assert!(bench.log().contains("no such user context"));
}

/// A destroyed context frees its number with its last doorbell page. Regression test: the number was never freed.
#[test]
fn a_destroyed_context_frees_its_number_with_its_last_page() {
    let mut profile = modest().devx();
    profile.general.set(|caps| _ = caps.set_log_max_uctx(1));
    let (mut bench, _) = Bench::usable(profile);
    let first = context(&mut bench, 0);
    context(&mut bench, 0);
    let mut alloc = AllocUarIn::new();
    alloc.set_uid(first);
    let page = bench.exec(&alloc).unwrap().uar();
    assert_eq!(bench.status(&destroy(first)), CmdStatus::OK);
    assert_ne!(
        bench.status(&CreateUctxIn::new()),
        CmdStatus::OK,
        "reserved"
    );
    let mut dealloc = DeallocUarIn::new();
    dealloc.set_uar(page);
    assert_eq!(bench.status(&dealloc), CmdStatus::OK, "by the driver");
    assert_eq!(bench.status(&CreateUctxIn::new()), CmdStatus::OK);
}

#[test]
fn a_context_asks_about_the_ports_counters_and_does_not_clear_them() {
    let mut profile = modest().devx();
    profile
        .general
        .set(|page| _ = page.set_cc_query_allowed(true).set_vport_counters(true));
    let (mut bench, _) = Bench::usable(profile);
    let uid = context(&mut bench, 0);
    let mut traffic = QueryVportCounterIn::new();
    let mut congestion = QueryCongStatisticsIn::new();
    for (clear, answer) in [
        (false, Ok(())),
        (true, Err(Failure::Refused(CmdStatus::BAD_PARAM))),
    ] {
        traffic.set_clear(clear);
        congestion.set_clear(clear);
        for (input, output) in [
            (traffic.as_array().as_slice(), QueryVportCounterOut::SIZE),
            (
                congestion.as_array().as_slice(),
                QueryCongStatisticsOut::SIZE,
            ),
        ] {
            assert!(bench.raw(input, output).is_ok(), "the driver may");
            let asked = bench.raw_as(uid, input, output);
            assert_eq!(asked.map(drop), answer, "{input:x?}");
        }
    }
}
