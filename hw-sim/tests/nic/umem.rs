//! Tests of queues in user memory, as rdma-core's VFIO driver registers it (`vfio_devx_umem_reg` in
//! providers/mlx5/mlx5_vfio.c) and as its tests use it (`Mlx5DevxRcResources` in tests/mlx5_base.py).

use mlx_prm::*;

use crate::bench::{
    Bench, Failure, Resources, cq_input, data_seg, destroy_cq, list, modest, qp_input, signalled,
};
use crate::strict::rmp_input;

fn usable() -> (Bench, Resources) {
    Bench::usable(modest().infiniband())
}

const BOTH: u64 = MTT_READ | MTT_WRITE;

fn umem_input(pages: u64, log_page_size: u32, offset: u32) -> CreateUmemIn {
    let mut create = CreateUmemIn::new();
    create
        .umem_mut()
        .set_num_of_mtt(pages)
        .set_log_page_size(log_page_size)
        .set_page_offset(offset);
    create
}

/// Creates a umem in one 4 KiB page. The umem starts at byte `offset` of the page. Returns the umem's number, and its
/// offset in the bench's memory.
fn umem(bench: &mut Bench, offset: u32, rights: u64) -> (u32, usize) {
    let (at, iova) = bench.alloc(4096);
    let create = umem_input(1, 0, offset);
    let number = bench.exec_with(&create, &list(&[iova | rights])).unwrap();
    (number.umem_id(), at + usize::try_from(offset).unwrap())
}

fn destroy(number: u32) -> DestroyUmemIn {
    let mut destroy = DestroyUmemIn::new();
    destroy.set_umem_id(number);
    destroy
}

/// The driver can create a umem with the uid 0 only if the device announces `umem_uid_0`. Without that capability,
/// rdma-core's VFIO driver fails with EOPNOTSUPP.
#[test]
fn user_memory_of_the_driver_itself_is_announced_and_refused_where_it_is_not() {
    let (mut bench, _) = usable();
    let page = bench.capability(CapType::GENERAL.current()).unwrap();
    let caps = CmdHcaCap::from_array(*page.first_chunk().unwrap());
    assert!(caps.umem_uid_0() && caps.log_max_umem() > 0);

    let mut profile = modest();
    profile
        .general
        .set(|page| _ = page.set_umem_uid_0(false).set_log_max_umem(0));
    let (mut bench, _) = Bench::usable(profile);
    let (_, iova) = bench.alloc(4096);
    let create = umem_input(1, 0, 0);
    let tail = list(&[iova | BOTH]);
    assert_eq!(bench.status_with(&create, &tail), CmdStatus::BAD_OP);
    assert_eq!(bench.status(&destroy(1)), CmdStatus::BAD_OP);
}

#[test]
fn user_memory_has_a_page_list_of_its_own_length_rights_and_an_offset_within_the_first_page() {
    let (mut bench, _) = usable();
    let (_, iova) = bench.alloc(4 * 4096);
    let mut ats = umem_input(1, 0, 0);
    ats.umem_mut().set_ats(true);
    for (what, create, pages, status) in [
        (
            "a page missing",
            umem_input(2, 0, 0),
            vec![iova | BOTH],
            CmdStatus::BAD_INPUT_LEN,
        ),
        ("no page", umem_input(0, 0, 0), vec![], CmdStatus::BAD_PARAM),
        (
            "more pages than there are bytes",
            umem_input(u64::MAX, 0, 0),
            vec![],
            CmdStatus::BAD_INPUT_LEN,
        ),
        (
            "no right",
            umem_input(1, 0, 0),
            vec![iova],
            CmdStatus::BAD_PARAM,
        ),
        (
            "a page inside a page",
            umem_input(1, 0, 0),
            vec![(iova + 8) | BOTH],
            CmdStatus::BAD_PARAM,
        ),
        (
            "an offset beyond the page",
            umem_input(1, 0, 4096),
            vec![iova | BOTH],
            CmdStatus::BAD_PARAM,
        ),
        (
            "pages of 4 GiB",
            umem_input(1, 20, 0),
            vec![iova | BOTH],
            CmdStatus::BAD_PARAM,
        ),
        ("ATS", ats, vec![iova | BOTH], CmdStatus::BAD_PARAM),
        (
            "a page as large as they come",
            umem_input(1, 19, 8),
            vec![BOTH],
            CmdStatus::OK,
        ),
    ] {
        assert_eq!(bench.status_with(&create, &list(&pages)), status, "{what}");
    }
    assert_eq!(bench.status(&destroy(0xdead)), CmdStatus::BAD_RESOURCE);
}

/// Returns a command that creates a CQ of 2^4 entries in one umem, with its doorbell record in another.
fn cq_in(resources: &Resources, ring: (u32, u64), record: (u32, u64)) -> CreateCqIn {
    let mut create = cq_input(resources.uar, resources.eq.number, 4, record.1);
    create
        .cq_context_mut()
        .set_dbr_umem_valid(true)
        .set_dbr_umem_id(record.0);
    create
        .set_cq_umem_valid(true)
        .set_cq_umem_id(ring.0)
        .set_cq_umem_offset(ring.1);
    create
}

#[test]
fn a_queue_lies_within_its_user_memory_which_it_holds() {
    let (mut bench, resources) = usable();
    let (ring, _) = umem(&mut bench, 0, BOTH);
    let (record, _) = umem(&mut bench, 8, BOTH);
    let (readable, _) = umem(&mut bench, 0, MTT_READ);
    for (what, create, status) in [
        (
            "no such memory",
            cq_in(&resources, (0xdead, 0), (record, 0)),
            CmdStatus::BAD_RESOURCE,
        ),
        (
            "no such record memory",
            cq_in(&resources, (ring, 0), (0xdead, 0)),
            CmdStatus::BAD_RESOURCE,
        ),
        (
            "beyond the end",
            cq_in(&resources, (ring, 3136), (record, 0)),
            CmdStatus::BAD_PARAM,
        ),
        (
            "an offset that wraps",
            cq_in(&resources, (ring, u64::MAX - 63), (record, 0)),
            CmdStatus::BAD_PARAM,
        ),
        (
            "a record beyond the end",
            cq_in(&resources, (ring, 0), (record, 4088)),
            CmdStatus::BAD_PARAM,
        ),
        (
            "a record not aligned",
            cq_in(&resources, (ring, 0), (record, 4)),
            CmdStatus::BAD_PARAM,
        ),
        (
            "entries across pages",
            cq_in(&resources, (ring, 32), (record, 0)),
            CmdStatus::BAD_PARAM,
        ),
        (
            "a ring that may not be written",
            cq_in(&resources, (readable, 0), (record, 0)),
            CmdStatus::BAD_PARAM,
        ),
    ] {
        assert_eq!(bench.status(&create), status, "{what}");
    }
    let create = cq_in(&resources, (ring, 3072), (readable, 0));
    let cqn = bench.exec(&create).unwrap().cqn();
    for held in [ring, readable] {
        assert_eq!(bench.status(&destroy(held)), CmdStatus::BAD_RES_STATE);
    }
    let context = bench.cq_context(cqn);
    assert_eq!(
        (
            context.dbr_umem_valid(),
            context.dbr_umem_id(),
            context.dbr_addr()
        ),
        (true, readable, 0),
        "as it was given"
    );
    let gone = destroy_cq(cqn);
    bench.exec(&gone).unwrap();
    for free in [ring, record, readable] {
        bench.exec(&destroy(free)).unwrap();
    }
}

#[test]
fn a_ring_may_move_from_a_page_list_into_user_memory_and_from_there_to_other() {
    let (mut bench, resources) = usable();
    let cq = bench.cq(&resources, 4);
    let (first, at) = umem(&mut bench, 0, BOTH);
    let (second, _) = umem(&mut bench, 0, BOTH);
    let mut resize = ModifyCqIn::new();
    resize
        .set_op_mod(1)
        .set_cqn(cq.number)
        .set_modify_field_select(7)
        .set_cq_umem_valid(true)
        .set_cq_umem_id(first);
    resize.cq_context_mut().set_log_cq_size(5);
    bench.exec(&resize).unwrap();
    assert_eq!(
        bench.memory.load_u8(cq.at + 63) >> 4,
        CqeOpcode::RESIZE_CQ.0
    );
    assert_eq!(bench.memory.load_u8(at + 63), 0, "nothing yet");
    assert_eq!(bench.status(&destroy(first)), CmdStatus::BAD_RES_STATE);
    resize.set_cq_umem_id(second);
    bench.exec(&resize).unwrap();
    bench.exec(&destroy(first)).unwrap();
    assert_eq!(bench.status(&destroy(second)), CmdStatus::BAD_RES_STATE);
}

#[test]
fn a_receive_memory_pool_lies_in_user_memory_too() {
    let (mut bench, resources) = usable();
    let (ring, _) = umem(&mut bench, 0, MTT_READ);
    let (record, _) = umem(&mut bench, 0x40, MTT_READ);
    let mut create = rmp_input(resources.pd, 8);
    create
        .ctx_mut()
        .wq_mut()
        .set_wq_umem_valid(true)
        .set_wq_umem_id(ring)
        .set_dbr_umem_valid(true)
        .set_dbr_umem_id(record);
    let rmpn = bench.exec(&create).unwrap().rmpn();
    let mut query = QueryRmpIn::new();
    query.set_rmpn(rmpn);
    let out = bench.exec(&query).unwrap();
    let wq = out.rmp_context().wq();
    assert_eq!(
        (wq.dbr_umem_valid(), wq.dbr_umem_id(), wq.dbr_addr()),
        (true, record, 8)
    );
    assert_eq!(bench.status(&destroy(ring)), CmdStatus::BAD_RES_STATE);
    let mut gone = DestroyRmpIn::new();
    gone.set_rmpn(rmpn);
    bench.exec(&gone).unwrap();
    bench.exec(&destroy(ring)).unwrap();
    bench.exec(&destroy(record)).unwrap();
}

/// A message is transferred through queues that are all in user memory. The queue pair is on an InfiniBand port and
/// connected to itself.
#[test]
fn a_message_loops_through_queues_that_all_lie_in_user_memory() {
    let (mut bench, resources) = usable();
    let (cq_ring, cq_at) = umem(&mut bench, 0, BOTH);
    let (cq_record, _) = umem(&mut bench, 0x20, BOTH);
    let cqn = bench
        .exec(&cq_in(&resources, (cq_ring, 0), (cq_record, 0)))
        .unwrap()
        .cqn();
    for entry in 0..16 {
        bench.memory.store_u8(cq_at + entry * 64 + 63, 0xf1);
    }
    // The queue starts inside its first page, 64-byte aligned, and continues in the second page, which is not adjacent.
    let (low, low_iova) = bench.alloc(4096);
    let (_, _) = bench.alloc(4096);
    let (high, high_iova) = bench.alloc(4096);
    let create = umem_input(2, 0, 0xf80);
    let pages = list(&[high_iova | BOTH, low_iova | BOTH]);
    let ring = bench.exec_with(&create, &pages).unwrap().umem_id();
    let (record, record_at) = umem(&mut bench, 0x108, BOTH);
    let mut create = qp_input(&resources, cqn, 0);
    create
        .set_wq_umem_valid(true)
        .set_wq_umem_id(ring)
        .set_wq_umem_offset(0x40);
    create
        .qpc_mut()
        .set_dbr_umem_valid(true)
        .set_dbr_umem_id(record);
    let qpn = bench.exec(&create).unwrap().qpn();
    assert_eq!(bench.status(&destroy(ring)), CmdStatus::BAD_RES_STATE);
    // The commands have no migration state, as in rdma-core's test.
    bench.ready_to_send(qpn, |qpc| {
        qpc.set_pm_state(0)
            .set_remote_qpn(qpn)
            .primary_address_path_mut()
            .set_rlid(1);
    });

    let key = bench.create_pa_key(resources.pd);
    let (text_at, text) = bench.alloc(4096);
    bench
        .memory
        .write_obj(text_at, &CtrlSeg::from_array(*b"sixteen bytes, 1"));
    // The receive queue has 256 bytes and starts at 0xfc0 of the first page: four entries are in that page, the others
    // in the second.
    bench
        .memory
        .write_obj(high + 0xfc0, &data_seg(key, text + 0x100, 16));
    bench.memory.store_be32(record_at, 1);
    // The send queue follows the receive queue.
    let mut control = signalled(WqeOpcode::SEND);
    control.set_qp_or_sq(qpn).set_ds(2);
    bench.memory.write_obj(low + 0xc0, &control);
    bench.memory.write_obj(low + 0xd0, &data_seg(key, text, 16));
    bench.memory.store_be32(record_at + 4, 1);
    bench.ring(resources.uar, control.as_array());
    let opcodes: Vec<u8> = (0..3)
        .map(|entry| bench.memory.load_u8(cq_at + entry * 64 + 63))
        .collect();
    assert_eq!(
        opcodes,
        [0x20, 0x00, 0xf1],
        "a receive, a send, nothing more"
    );
    let arrived: CtrlSeg = bench.memory.read_obj(text_at + 0x100);
    assert_eq!(arrived.as_array(), b"sixteen bytes, 1");
}

/// A command with the uid of a user context that does not exist is refused. The layouts define which commands have a
/// `uid`; queries may carry a uid although they have no field for it.
#[test]
fn a_command_on_behalf_of_a_user_context_that_does_not_exist_is_refused() {
    let (mut bench, resources) = usable();
    let mut pd = AllocPdIn::new();
    pd.set_uid(7);
    assert_eq!(bench.status(&pd), CmdStatus::BAD_RESOURCE);
    let mut dealloc = DeallocPdIn::new();
    dealloc.set_uid(7).set_pd(resources.pd);
    assert_eq!(bench.status(&dealloc), CmdStatus::BAD_RESOURCE);
    let query = bench.raw_as(7, QueryHcaCapIn::new().as_array(), 16);
    assert_eq!(query, Err(Failure::Refused(CmdStatus::BAD_RESOURCE)));
    // SET_ISSI has no uid field: these bits are reserved.
    assert!(bench.raw_as(7, SetIssiIn::new().as_array(), 16).is_err());
}
