//! Tests of device memory (MEMIC): allocations from a window of the BAR, writes by the processor, and reads and writes
//! through keys.
//!
//! The fields have the offsets of Linux (`mlx5_ifc_alloc_memic_in_bits`, `mlx5_ifc_device_mem_cap_bits` in
//! include/linux/mlx5/mlx5_ifc.h). The ranges are whole pages, as in `mlx5_cmd_alloc_memic`
//! (drivers/infiniband/hw/mlx5/dm.c).

use driver::Device;
use hw_sim::profile::RawPage;
use hw_sim::{Fault, Profile};
use mlx_prm::*;

use crate::bench::{Bench, Failure, data_seg, destroy_mkey, list, modest, raddr_seg};
use crate::side::Side;

const PAGE: u32 = 4096;
const ANY_QP: u32 = 0xff_ffff;
/// Access mode 5 of a key (device memory), as its two fields: bits 1:0 and bits 4:2.
const MEMIC: (u32, u32) = (1, 1);
/// Access modes of keys that consist of other keys.
const KLM: u32 = 2;
const KSM: u32 = 3;
/// Optional parameter of a QP transition: permission for remote atomics (Linux `MLX5_QP_OPTPAR_RAE`).
const OPT_RAE: u32 = 1 << 2;

/// Operand of the fetch-and-add operations.
const ADD: u64 = 3;

/// Returns the start of the device memory window in the BAR, its size, and the largest allocation, in bytes.
fn window(bench: &mut Bench) -> (u64, u32, u32) {
    let page = bench.capability(CapType::DEV_MEM.current()).unwrap();
    assert_eq!(page[0], 0x80, "memic");
    let word = |at: usize| u32::from_be_bytes(page[at..at + 4].try_into().unwrap());
    assert_eq!(word(0x08), 0, "within the first 4 GiB of the BAR");
    (word(0x0c).into(), word(0x10), word(0x14))
}

fn ask(start: u64, range: u32, bytes: u32, alignment: u32) -> AllocMemicIn {
    let mut alloc = AllocMemicIn::new();
    alloc
        .set_range_start_addr(start)
        .set_range_size(range)
        .set_memic_size(bytes)
        .set_log_memic_addr_alignment(alignment);
    alloc
}

fn give_back(bench: &mut Bench, at: u64, bytes: u32) -> CmdStatus {
    let mut dealloc = DeallocMemicIn::new();
    dealloc.set_memic_start_addr(at).set_memic_size(bytes);
    bench.status(&dealloc)
}

/// Returns a command that creates a key of device memory. The key's addresses start at 0.
fn key(pd: u32, at: u64, bytes: u64) -> CreateMkeyIn {
    let mut create = CreateMkeyIn::new();
    create
        .memory_key_mkey_entry_mut()
        .set_access_mode_1_0(MEMIC.0)
        .set_access_mode_4_2(MEMIC.1)
        .set_lr(true)
        .set_lw(true)
        .set_rr(true)
        .set_rw(true)
        .set_qpn(ANY_QP)
        .set_pd(pd)
        .set_start_addr(at)
        .set_len(bytes);
    create
}

#[test]
fn memory_is_taken_in_the_range_that_software_gives_and_no_other() {
    let (mut bench, _) = Bench::usable(modest());
    let (start, size, most) = window(&mut bench);
    // Size: MEMIC_SIZE_LIMIT of mlxconfig. Largest allocation: DM size of ibv_devinfo.
    assert_eq!((size, most), (256 << 10, 128 << 10));
    let place =
        |bench: &mut Bench, ask: &AllocMemicIn| bench.exec(ask).map(|out| out.memic_start_addr());
    let first = place(&mut bench, &ask(start + 0x1000, PAGE, 64, 0)).unwrap();
    assert!(
        (start + 0x1000..start + 0x2000).contains(&first),
        "{first:#x}"
    );
    let second = place(&mut bench, &ask(start + 0x1000, PAGE, 256, 2)).unwrap();
    assert!(second.is_multiple_of(256) && second != first, "{second:#x}");
    // Linux converts this status to EAGAIN, and then tries the next range.
    let full = ask(start + 0x1000, PAGE, PAGE, 0);
    assert_eq!(bench.status(&full), CmdStatus::NO_RESOURCES);
    assert_eq!(
        place(&mut bench, &ask(start + 0x2000, PAGE, PAGE, 0)),
        Ok(start + 0x2000)
    );
    for (wrong, why) in [
        (ask(start, PAGE, 0, 0), "nothing"),
        (ask(start, PAGE, 32, 0), "less than a unit"),
        (ask(start, PAGE, PAGE + 64, 0), "more than the range"),
        (ask(start, PAGE, 64, 9), "alignment beyond the capability"),
        (ask(start - 0x1000, PAGE, 64, 0), "before the window"),
        (ask(start + u64::from(size), PAGE, 64, 0), "behind it"),
        (ask(start + 64, PAGE, 64, 0), "inside of a page"),
        (ask(u64::MAX - 0xfff, PAGE, 64, 0), "round the end"),
    ] {
        assert_eq!(bench.status(&wrong), CmdStatus::BAD_PARAM, "{why}");
    }
    let rest = ask(start + 0x3000, most, most - PAGE, 0);
    assert_eq!(
        bench.status(&rest),
        CmdStatus::EXCEED_LIM,
        "more than there is"
    );
    assert_eq!(
        give_back(&mut bench, second, 64),
        CmdStatus::BAD_RESOURCE,
        "another size"
    );
    assert_eq!(give_back(&mut bench, second, 256), CmdStatus::OK);
    assert_eq!(
        give_back(&mut bench, second, 256),
        CmdStatus::BAD_RESOURCE,
        "twice"
    );
}

#[test]
fn a_key_of_device_memory_lies_inside_of_it_and_keeps_it() {
    let (mut bench, resources) = Bench::usable(modest());
    let (start, ..) = window(&mut bench);
    let at = bench
        .exec(&ask(start, PAGE, 256, 0))
        .unwrap()
        .memic_start_addr();
    let pd = resources.pd;
    let index = bench.exec(&key(pd, at + 64, 192)).unwrap().mkey_index();
    for (wrong, why) in [
        (key(pd, at, 257), "beyond its end"),
        (key(pd, at - 64, 64), "before it"),
        (key(pd, start + 0x1000, 64), "where nothing was taken"),
    ] {
        assert_eq!(bench.status(&wrong), CmdStatus::BAD_RESOURCE, "{why}");
    }
    let mut paged = key(pd, at, 64);
    paged
        .memory_key_mkey_entry_mut()
        .set_translations_octword_size(4);
    assert_eq!(bench.status(&paged), CmdStatus::BAD_PARAM, "with a table");
    let mut endless = key(pd, at, 0);
    endless.memory_key_mkey_entry_mut().set_length64(true);
    assert_eq!(
        bench.status(&endless),
        CmdStatus::BAD_PARAM,
        "without an end"
    );
    let mut query = QueryMkeyIn::new();
    query.set_mkey_index(index);
    let told = bench.exec(&query).unwrap();
    let told = told.memory_key_mkey_entry();
    assert_eq!((told.start_addr(), told.len()), (at + 64, 192));
    assert_eq!((told.access_mode_1_0(), told.access_mode_4_2()), MEMIC);

    assert_eq!(
        give_back(&mut bench, at, 256),
        CmdStatus::BAD_RES_STATE,
        "a key is on it"
    );
    let destroy = destroy_mkey(index);
    bench.exec(&destroy).unwrap();
    assert_eq!(give_back(&mut bench, at, 256), CmdStatus::OK);
    assert!(bench.driver_bugs().is_empty());
}

/// Posts an RDMA operation. Returns the opcode of its completion.
fn request(side: &mut Side, opcode: WqeOpcode, remote: (u64, u32), local: (u64, u32)) -> CqeOpcode {
    side.post_rdma(opcode, remote, local);
    side.wait_cqe().opcode()
}

/// Data can be copied between device memory and host memory: the device sees the processor's stores and the processor
/// sees the device's writes. After a new allocation, the memory is zero.
#[test]
fn data_goes_between_device_memory_and_the_hosts() {
    let mut side = Side::looped(modest(), |_| {});
    let (start, ..) = window(&mut side.bench);
    let at = side
        .bench
        .exec(&ask(start, PAGE, 128, 0))
        .unwrap()
        .memic_start_addr();
    let pd = side.resources.pd;
    let rkey = side.bench.exec(&key(pd, at, 128)).unwrap().mkey_index() << 8;
    side.bench.write32(at + 8, 0x1122_3344);
    side.bench.write64(at + 16, 0x5566_7788_99aa_bbcc);

    let (memory, iova) = side.data;
    let post = |side: &mut Side, opcode, va: u64, local: u64, bytes: u32| {
        request(side, opcode, (va, rkey), (local, bytes))
    };
    let done = post(&mut side, WqeOpcode::RDMA_READ, 8, iova, 16);
    assert_eq!(done, CqeOpcode::REQ);
    let mut read = [0; 16];
    side.bench.memory.read_bytes(memory, &mut read);
    assert_eq!(read[..4], [0x11, 0x22, 0x33, 0x44]);
    assert_eq!(read[8..], 0x5566_7788_99aa_bbcc_u64.to_be_bytes());

    side.bench.memory.write_bytes(memory + 64, &[0xa5; 64]);
    let done = post(&mut side, WqeOpcode::RDMA_WRITE, 64, iova + 64, 64);
    assert_eq!(done, CqeOpcode::REQ);
    assert_eq!(
        side.bench.read32(usize::try_from(at).unwrap() + 124),
        0xa5a5_a5a5
    );
    let done = post(&mut side, WqeOpcode::RDMA_WRITE, 65, iova, 64);
    assert_eq!(done, CqeOpcode::REQ_ERR, "beyond the key");

    side.bench.exec(&destroy_mkey(rkey >> 8)).unwrap();
    assert_eq!(give_back(&mut side.bench, at, 128), CmdStatus::OK);
    let again = side
        .bench
        .exec(&ask(start, PAGE, 128, 0))
        .unwrap()
        .memic_start_addr();
    assert_eq!(again, at);
    assert_eq!(side.bench.read32(usize::try_from(at).unwrap() + 124), 0);
}

#[test]
fn a_store_to_device_memory_that_nobody_has_taken_is_a_drivers_mistake() {
    let (mut bench, _) = Bench::usable(modest());
    let (start, ..) = window(&mut bench);
    bench.write32(start + 0x1000, 1);
    let bugs = bench.driver_bugs();
    assert_eq!(bugs.len(), 1, "{bugs:?}");
    assert!(bugs[0].contains("device memory"), "{bugs:?}");
}

#[test]
fn no_doorbell_page_lies_in_the_window() {
    let mut bench = Bench::initialised(modest());
    let (start, size, _) = window(&mut bench);
    loop {
        match bench.exec(&AllocUarIn::new()) {
            Ok(out) => {
                let at = u64::from(out.uar()) << 12;
                assert!(!(start..start + u64::from(size)).contains(&at), "{at:#x}");
            }
            Err(error) => {
                assert_eq!(error, Failure::Refused(CmdStatus::EXCEED_LIM));
                break;
            }
        }
    }
}

#[test]
fn without_the_capability_there_is_no_device_memory() {
    let mut profile = modest();
    profile
        .general
        .set(|page| _ = page.set_device_memory(false));
    let (mut bench, resources) = Bench::usable(profile);
    assert_eq!(bench.status(&ask(0, PAGE, 64, 0)), CmdStatus::BAD_OP);
    assert_eq!(give_back(&mut bench, 0, 64), CmdStatus::BAD_OP);
    let wanted = key(resources.pd, 0, 64);
    assert_eq!(bench.status(&wanted), CmdStatus::BAD_PARAM);
}

/// Returns a queue pair that is connected to itself, and the address of 128 bytes of device memory.
fn looped(profile: Profile, change: impl FnOnce(&mut Qpc)) -> (Side, u64) {
    let mut side = Side::looped(profile, change);
    let (start, ..) = window(&mut side.bench);
    let taken = side.bench.exec(&ask(start, PAGE, 128, 0)).unwrap();
    (side, taken.memic_start_addr())
}

#[test]
fn atomic_operations_reach_device_memory() {
    let (mut side, at) = looped(modest(), |qpc| _ = qpc.set_atomic_mode(1));
    let mut rights = Rts2RtsQpIn::for_qp(Qpn::new(side.qp.number), OPT_RAE);
    rights.qpc_mut().set_rae(true).set_atomic_mode(1);
    side.bench.exec(&rights).unwrap();
    let mut create = key(side.resources.pd, at, 128);
    create.memory_key_mkey_entry_mut().set_a(true);
    let rkey = side.bench.exec(&create).unwrap().mkey_index() << 8;
    side.bench
        .write64(at + 8, 0x1122_3344_5566_7788_u64.swap_bytes());
    let mut atomic = AtomicSeg::new();
    atomic.set_swap_add(ADD);
    let (remote, data) = (raddr_seg(8, rkey), data_seg(side.key, side.data.1, 8));
    let body = [*remote.as_array(), *atomic.as_array(), *data.as_array()].concat();
    side.post(WqeOpcode::ATOMIC_FA, 0, &body);
    assert_eq!(side.wait_cqe().opcode(), CqeOpcode::REQ);
    let low = usize::try_from(at).unwrap() + 8;
    let now = [side.bench.read32(low), side.bench.read32(low + 4)];
    assert_eq!(now, [0x8b77_6655, 0x4433_2211], "the host's byte order");
}

/// A key of other keys cannot refer to a key of device memory. Inferred: Linux creates no such key.
#[test]
fn no_key_of_other_keys_reaches_device_memory() {
    for mode in [KLM, KSM] {
        let mut profile = modest();
        profile
            .general
            .set(|page| _ = page.set_fixed_buffer_size(true));
        let (mut side, at) = looped(profile, |_| {});
        let inner = side.bench.exec(&key(side.resources.pd, at, 128)).unwrap();
        let inner = inner.mkey_index() << 8;
        let mut create = key(side.resources.pd, 0, 64);
        create
            .memory_key_mkey_entry_mut()
            .set_access_mode_1_0(mode)
            .set_access_mode_4_2(0)
            .set_log_page_size(12)
            .set_translations_octword_size(4);
        create.set_translations_octword_actual_size(1);
        let entry = [64 << 32 | u64::from(inner), 0];
        let outer = side.bench.exec_with(&create, &list(&entry)).unwrap();
        let outer = outer.mkey_index() << 8;
        let local = (side.data.1, 64);
        let direct = request(&mut side, WqeOpcode::RDMA_WRITE, (0, inner), local);
        assert_eq!(direct, CqeOpcode::REQ);
        let through = request(&mut side, WqeOpcode::RDMA_WRITE, (0, outer), local);
        assert_eq!(through, CqeOpcode::REQ_ERR, "access mode {mode}");
        let report = side.bench.report();
        assert_eq!(report.dma_faults.len(), 0, "access mode {mode}");
    }
}

/// A user context can neither allocate device memory nor create a key of it. ALLOC_MEMIC has no field for a user
/// context (`mlx5_ifc_alloc_memic_in_bits`).
#[test]
fn a_user_context_takes_no_device_memory_and_makes_no_key_of_it() {
    let (mut bench, resources) = Bench::usable(modest().devx());
    let uid = bench.exec(&CreateUctxIn::new()).unwrap().uid();
    let (start, ..) = window(&mut bench);
    let bytes = ask(start, PAGE, 64, 0);
    let refused = Err(Failure::Refused(CmdStatus::BAD_PARAM));
    let asked = bench.raw_as(uid, bytes.as_array(), AllocMemicOut::SIZE);
    assert_eq!(asked, refused);
    let taken = bench.exec(&ask(start, PAGE, 64, 0)).unwrap();
    let mut create = key(resources.pd, taken.memic_start_addr(), 64);
    create.set_uid(uid);
    assert_eq!(bench.status(&create), CmdStatus::BAD_PARAM);
}

#[test]
fn the_page_of_device_memory_tells_the_simulators_window_and_not_a_recorded_ones() {
    let mut profile = modest();
    let recorded = vec![0xff; 0x1000];
    let page = RawPage {
        max: recorded.clone(),
        current: recorded,
    };
    profile.other_pages.insert(CapType::DEV_MEM.0, page);
    let bar = profile.bar_bytes as u64;
    let (mut bench, _) = Bench::usable(profile);
    let (start, size, _) = window(&mut bench);
    assert_eq!(start + u64::from(size), bar);
    let taken = bench.exec(&ask(start, PAGE, 64, 0)).unwrap();
    assert_eq!(taken.memic_start_addr(), start);
}

#[test]
fn a_reset_empties_device_memory_after_it_was_silent() {
    let (mut side, at) = looped(modest(), |_| {});
    let low = usize::try_from(at).unwrap();
    let bench = &mut side.bench;
    bench.write32(at, 0x1122_3344);
    bench.function.reset();
    assert_eq!(bench.read32(low), u32::MAX, "silent");
    bench.write32(at, 0x5566_7788);
    assert_eq!(bench.read32(low), u32::MAX, "a store is lost");
    let bugs = bench.driver_bugs();
    assert_eq!(bugs.len(), 1, "{bugs:?}");
    assert!(bugs[0].contains("is lost"), "{bugs:?}");
    bench.start();
    assert_eq!(bench.read32(low), 0);
    let objects = bench.report().objects;
    assert!(!objects.contains_key("device memory"), "{objects:?}");
}

#[test]
fn device_memory_of_a_device_that_is_gone_reads_as_ones() {
    for fault in [Fault::BarAllOnes, Fault::SurpriseRemoval] {
        let (mut side, at) = looped(modest(), |_| {});
        let low = usize::try_from(at).unwrap();
        let bench = &mut side.bench;
        bench.write32(at, 0x1122_3344);
        bench.sim.inject(&bench.function, &fault);
        assert_eq!(bench.read32(low), u32::MAX, "{fault:?}");
        bench.write32(at, 0x5566_7788);
        assert_eq!(bench.read32(low), u32::MAX, "{fault:?}");
    }
}

/// The device reads the value of a processor's store only after the call that reports the store, because a recording
/// contains the store at that point.
#[test]
fn a_store_that_was_not_reported_yet_is_hidden_from_the_device() {
    let (mut side, at) = looped(modest(), |_| {});
    let low = usize::try_from(at).unwrap();
    let rkey = side.bench.exec(&key(side.resources.pd, at, 128)).unwrap();
    let rkey = rkey.mkey_index() << 8;
    side.bench.bar.store_be32(low, 0x1122_3344);
    let (memory, iova) = side.data;
    let read = |side: &mut Side| {
        let done = request(side, WqeOpcode::RDMA_READ, (0, rkey), (iova, 4));
        assert_eq!(done, CqeOpcode::REQ);
        side.bench.memory.load_be32(memory)
    };
    assert_eq!(read(&mut side), 0);
    let bytes = 0x1122_3344_u32.to_be_bytes();
    side.bench.function.bar_written(0, at, &bytes);
    assert_eq!(read(&mut side), 0x1122_3344);
}
