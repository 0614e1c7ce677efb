//! Device memory: taken from a window of the BAR, written by the processor, read and written through keys.
//!
//! Fields lie where Linux has them (`mlx5_ifc_alloc_memic_in_bits`, `mlx5_ifc_device_mem_cap_bits` in
//! include/linux/mlx5/mlx5_ifc.h), and ranges are whole pages as `mlx5_cmd_alloc_memic` gives them
//! (drivers/infiniband/hw/mlx5/dm.c).

use hw_sim::{Sim, SimConfig};
use mlx_prm::*;

use crate::bench::{Bench, Failure, modest};
use crate::strict_data::Side;

const PAGE: u32 = 4096;
const ANY_QP: u32 = 0xff_ffff;
/// Access mode 5 of a key, in its two fields.
const MEMIC: (u32, u32) = (1, 1);

/// Where the window begins, its bytes, and how many may be taken.
fn window(bench: &mut Bench) -> (u64, u32, u32) {
    let mut ask = QueryHcaCapIn::new();
    ask.set_op_mod(u32::from(CapType::DEV_MEM.0) << 1 | 1);
    let page = bench.raw(ask.as_array(), 0x1010).unwrap();
    assert_eq!(page[0x10], 0x80, "memic");
    let word = |at: usize| u32::from_be_bytes(page[at..at + 4].try_into().unwrap());
    assert_eq!(word(0x18), 0, "within the first 4 GiB of the BAR");
    (word(0x1c).into(), word(0x20), word(0x24))
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

/// A key of device memory, which counts from 0.
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
    // MEMIC_SIZE_LIMIT of mlxconfig; DM size of ibv_devinfo.
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
    // What does not fit is tried elsewhere: Linux goes on where it is told EAGAIN.
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
    let mut destroy = DestroyMkeyIn::new();
    destroy.set_mkey_index(index);
    bench.exec(&destroy).unwrap();
    assert_eq!(give_back(&mut bench, at, 256), CmdStatus::OK);
    assert!(bench.sim.report(&bench.function).driver_bugs.is_empty());
}

/// The processor's stores are there for the device, and the device's writes for the processor; what the next owner
/// finds are zeros.
#[test]
fn data_goes_between_device_memory_and_the_hosts() {
    let sim = Sim::new(SimConfig::seeded(5));
    let mut side = Side::with(&sim, modest(), 0, 6, |_| {});
    let own = side.qpn;
    side.connect(own, 0);
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
        let mut remote = RaddrSeg::new();
        remote.set_raddr(va).set_rkey(rkey);
        let mut data = DataSeg::new();
        data.set_byte_count(bytes)
            .set_lkey(side.key)
            .set_addr(local);
        let body = [*remote.as_array(), *data.as_array()].concat();
        side.post(opcode, 0, &body);
        side.wait_cqe().opcode()
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

    let mut destroy = DestroyMkeyIn::new();
    destroy.set_mkey_index(rkey >> 8);
    side.bench.exec(&destroy).unwrap();
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
    let bugs = bench.sim.report(&bench.function).driver_bugs;
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
    profile.general.set(|page| {
        page.set_device_memory(false);
    });
    let (mut bench, resources) = Bench::usable(profile);
    assert_eq!(bench.status(&ask(0, PAGE, 64, 0)), CmdStatus::BAD_OP);
    assert_eq!(give_back(&mut bench, 0, 64), CmdStatus::BAD_OP);
    let wanted = key(resources.pd, 0, 64);
    assert_eq!(bench.status(&wanted), CmdStatus::BAD_PARAM);
}
