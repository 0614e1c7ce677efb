//! Tests of the limits on memory keys of programs: registration of pages by UMR, keys of other programs, and memory for
//! keys.

use mlx_prm::*;

use crate::bench::{BASE, destroy_mkey, list, modest};
use crate::side::Side;

const MASK_PAGE_SIZE: u64 = 1 << 1;
const MASK_PD: u64 = 1 << 7;
const MASK_KEY: u64 = 1 << 13;
const MASK_REMOTE_WRITE: u64 = 1 << 20;
const MASK_RELAXED_WRITE: u64 = 1 << 25;
const MASK_FREE: u64 = 1 << 29;
const MASK_RELAXED_READ: u64 = 1 << 47;
const MODE_MTT: u32 = 1;
const ANY_QP: u32 = 0xff_ffff;

/// Returns a function whose queue pair is connected to itself.
fn looped(change: impl FnOnce(&mut Qpc)) -> Side {
    let mut profile = modest();
    profile
        .general
        .set(|page| _ = page.set_umr_extended_translation_offset(true));
    Side::looped(profile, change)
}

/// Creates a key of one page that a UMR may change.
fn region(side: &mut Side, pd: u32) -> u32 {
    let mut create = CreateMkeyIn::new();
    create
        .memory_key_mkey_entry_mut()
        .set_access_mode_1_0(MODE_MTT)
        .set_umr_en(true)
        .set_lr(true)
        .set_lw(true)
        .set_rr(true)
        .set_qpn(ANY_QP)
        .set_pd(pd)
        .set_len(4096)
        .set_log_page_size(12)
        .set_translations_octword_size(4);
    create.set_translations_octword_actual_size(1);
    let tail = list(&[side.data.1, 0]);
    side.bench.exec_with(&create, &tail).unwrap().mkey_index() << 8
}

/// Posts a UMR that changes a key. Returns the opcode of its CQE.
fn umr(side: &mut Side, key: u32, mask: u64, context: &Mkc, entries: &[u8]) -> CqeOpcode {
    let mut control = UmrCtrlSeg::new();
    control
        .set_inline(true)
        .set_mkey_mask(mask)
        .set_klm_octwords(u32::try_from(entries.len() / 16).unwrap());
    let body = [control.as_array(), context.as_array().as_slice(), entries].concat();
    side.post(WqeOpcode::UMR, key, &body);
    side.wait_cqe().opcode()
}

/// Only a queue pair with `fre` can register pages by a UMR. Linux sets `fre` only for the kernel's queue pairs
/// (`_create_kernel_qp` in drivers/infiniband/hw/mlx5/qp.c).
#[test]
fn pages_are_registered_fast_by_queue_pairs_with_fre_alone() {
    for (fre, expected) in [(false, CqeOpcode::REQ_ERR), (true, CqeOpcode::REQ)] {
        let table = list(&[BASE, 0, 0, 0, 0, 0, 0, 0]);
        let mut rights = Mkc::new();
        rights.set_rw(true).set_log_page_size(13);
        for (mask, entries) in [
            (0, table.as_slice()),
            (MASK_PAGE_SIZE, &[]),
            (MASK_REMOTE_WRITE, &[]),
        ] {
            let mut side = looped(|qpc| _ = qpc.set_fre(fre));
            let pd = side.resources.pd;
            let key = region(&mut side, pd);
            let done = umr(&mut side, key, mask, &rights, entries);
            assert_eq!(done, expected, "fre {fre}, mask {mask:#x}");
        }
    }
}

#[test]
fn a_key_of_another_domain_is_not_fetched_by_a_queue_pair_without_fre() {
    for (fre, expected) in [(false, CqeOpcode::REQ_ERR), (true, CqeOpcode::REQ)] {
        let mut side = looped(|qpc| _ = qpc.set_fre(fre));
        let foreign = side.bench.exec(&AllocPdIn::new()).unwrap().pd();
        let key = region(&mut side, foreign);
        let mut context = Mkc::new();
        context.set_pd(side.resources.pd).set_mkey_7_0(7);
        let done = umr(&mut side, key, MASK_PD | MASK_KEY, &context, &[]);
        assert_eq!(done, expected, "fre {fre}");
    }
}

/// A UMR changes each bit of relaxed ordering alone (`MLX5_MKEY_MASK_RELAXED_ORDERING_WRITE` and `_READ` of Linux),
/// if the device has the capability for it (Linux `umr_check_mkey_mask`).
#[test]
fn a_umr_changes_the_relaxed_ordering_of_a_key() {
    let mut profile = modest();
    profile.general.set(|page| {
        page.set_relaxed_ordering_write_umr(true)
            .set_relaxed_ordering_read_umr(true);
    });
    let mut side = Side::looped(profile, |qpc| _ = qpc.set_fre(true));
    let pd = side.resources.pd;
    let key = region(&mut side, pd);
    let mut query = QueryMkeyIn::new();
    query.set_mkey_index(key >> 8);
    for (mask, relaxed, expected) in [
        (MASK_RELAXED_WRITE, true, (true, false)),
        (MASK_RELAXED_READ, true, (true, true)),
        (MASK_RELAXED_WRITE, false, (false, true)),
        (MASK_RELAXED_READ, false, (false, false)),
    ] {
        let mut context = Mkc::new();
        context
            .set_relaxed_ordering_write(relaxed)
            .set_relaxed_ordering_read(relaxed);
        let done = umr(&mut side, key, mask, &context, &[]);
        assert_eq!(done, CqeOpcode::REQ, "{mask:#x}");
        let out = side.bench.exec(&query).unwrap();
        let context = out.memory_key_mkey_entry();
        let found = (
            context.relaxed_ordering_write(),
            context.relaxed_ordering_read(),
        );
        assert_eq!(found, expected, "{mask:#x}, {relaxed}");
    }
}

/// Any queue pair of the protection domain can free a region: a program frees a region that it registered
/// (`IBV_WR_LOCAL_INV` in rdma-core).
#[test]
fn every_queue_pair_of_its_domain_can_free_a_region() {
    let mut side = looped(|_| {});
    let pd = side.resources.pd;
    let key = region(&mut side, pd);
    let mut context = Mkc::new();
    context.set_free(true);
    let done = umr(&mut side, key, MASK_FREE, &context, &[]);
    assert_eq!(done, CqeOpcode::REQ);
}

/// A key uses memory only for the translation entries that were written, and frees this memory when it is destroyed.
/// Linux' cache creates keys with long tables and without entries.
#[test]
fn keys_take_memory_for_what_is_there_and_give_it_back() {
    let mut side = looped(|qpc| _ = qpc.set_fre(true));
    let mut create = CreateMkeyIn::new();
    create
        .memory_key_mkey_entry_mut()
        .set_access_mode_1_0(MODE_MTT)
        .set_free(true)
        .set_umr_en(true)
        .set_qpn(ANY_QP)
        .set_pd(side.resources.pd)
        .set_log_page_size(12)
        .set_translations_octword_size(u32::MAX);
    // A UMR that writes the last of 2^21 octwords allocates a table of 32 MiB. Sixteen tables of this size do not fit
    // into the memory for keys.
    let grow_by = |side: &mut Side, index: u32, offset: u32| {
        let mut control = UmrCtrlSeg::new();
        control
            .set_inline(true)
            .set_translation_offset_en(true)
            .set_translation_offset(offset & 0xffff)
            .set_translation_offset_47_16(offset >> 16)
            .set_klm_octwords(4);
        let body = [
            control.as_array(),
            Mkc::new().as_array().as_slice(),
            &[0; 64],
        ]
        .concat();
        side.post(WqeOpcode::UMR, index << 8, &body);
        side.wait_cqe().opcode()
    };
    let grow = |side: &mut Side, index: u32| grow_by(side, index, 0x1f_fffc);
    let keys: Vec<u32> = (0..17)
        .map(|_| side.bench.exec(&create).unwrap().mkey_index())
        .collect();
    for &key in &keys[..15] {
        assert_eq!(grow(&mut side, key), CqeOpcode::REQ);
    }
    let destroy = destroy_mkey(keys[0]);
    side.bench.exec(&destroy).unwrap();
    assert_eq!(grow(&mut side, keys[15]), CqeOpcode::REQ);
    // This table is 64 KiB shorter. It fits, and keys that are created with a table of 2 KiB use up the rest.
    let done = grow_by(&mut side, keys[16], 0x1f_fffc - 4096);
    assert_eq!(done, CqeOpcode::REQ);
    const ENTRIES: usize = 256;
    let octwords = u32::try_from(ENTRIES / 2).unwrap();
    create
        .memory_key_mkey_entry_mut()
        .set_free(false)
        .set_lr(true)
        .set_len(4096 * u64::try_from(ENTRIES).unwrap())
        .set_translations_octword_size(octwords);
    create.set_translations_octword_actual_size(octwords);
    let table = list(&[side.data.1; ENTRIES]);
    let make = |side: &mut Side| side.bench.exec_with(&create, &table);
    let mut made = Vec::new();
    while let Ok(out) = make(&mut side) {
        made.push(out.mkey_index());
        assert!(made.len() < 32, "keys take memory without an end");
    }
    let refused = side.bench.status_with(&create, &table);
    assert_eq!(refused, CmdStatus::NO_RESOURCES);
    assert!(made.len() > 16, "{}", made.len());
    side.bench.exec(&destroy_mkey(made[0])).unwrap();
    make(&mut side).unwrap();
    make(&mut side).unwrap_err();
    assert_eq!(grow(&mut side, keys[16]), CqeOpcode::REQ_ERR);
}
