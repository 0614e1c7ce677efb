//! Memory keys: context and commands (PRM "Memory Keys").
//!
//! lkey and rkey are the same number: the index that the device assigned, shifted left by 8, plus a variant byte that
//! software chooses.

use layout::layout;

use super::command::command;
use super::{CmdStatus, Opcode};

layout! {
    /// Memory key context (PRM "Memory Key Context").
    pub struct Mkc(0x40) {
        /// Set: the key is allocated but free, so that only UMR can use it (as its target).
        free: 0x00[30],
        /// High bits of the access mode; 0 for physical, MTT, KLM and KSM.
        access_mode_4_2: 0x00[28:26],
        /// Set: relaxed ordering of writes. Requires the capability of the same name.
        relaxed_ordering_write: 0x00[18],
        /// Always 0 in CREATE_MKEY; only UMR can change it (mask bit 23).
        small_fence_on_rdma_read_response: 0x00[16],
        /// UMR may modify this key. Linux sets it on reusable MRs and on MWs, not on the PA key; rdma-core's VFIO
        /// driver does not set it.
        umr_en: 0x00[15],
        /// Right: remote atomic.
        a: 0x00[14],
        /// Right: remote write.
        rw: 0x00[13],
        /// Right: remote read.
        rr: 0x00[12],
        /// Right: local write.
        lw: 0x00[11],
        /// Right: local read; drivers always set it.
        lr: 0x00[10],
        /// Low bits of the access mode: 0 physical, 1 MTT, 2 KLM, 3 KSM.
        access_mode_1_0: 0x00[9:8],
        /// Nonzero: the device uses PCIe ATS.
        ma_translation_mode: 0x00[5:4],
        /// Number of the queue pair that may use the key; 0xffffff is any.
        qpn: 0x04[31:8],
        /// Variant: the low byte of the key.
        mkey_7_0: 0x04[7:0],
        /// Set: the key covers the whole 64-bit address space, and `len` is ignored.
        length64: 0x0c[31],
        /// Set: the key has a signature descriptor (BSF).
        bsf_en: 0x0c[30],
        sync_umr: 0x0c[29],
        expected_sigerr_count: 0x0c[26],
        /// Set: a peer's Send with invalidate may invalidate the key (type-2 MW, FRWR).
        en_rinval: 0x0c[24],
        pd: 0x0c[23:0],
        /// Virtual address of the first byte of the key's memory.
        start_addr: 0x10 u64,
        /// Length of the key's memory in bytes.
        len: 0x18 u64,
        /// Always 0.
        bsf_octword_size: 0x20 u32,
        /// Always 0.
        crossing_target_vhca_id: 0x30[31:16],
        /// Length of the translation table in 16-byte units.
        translations_octword_size: 0x34 u32,
        /// Set: relaxed ordering of reads. Requires the capability of the same name.
        relaxed_ordering_read: 0x38[6],
        /// log2 of the page or entry size of the translation table in bytes; 0 for physical keys.
        log_page_size: 0x38[5:0],
    }
}

command! {
    CREATE_MKEY: CreateMkeyIn(0x110) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        /// "Page access" flag. Linux sets it only with capability `pg`, rdma-core's VFIO driver always for MTT keys.
        pg_access: 0x0c[31],
        /// Set: the translation list is in a umem. 0: the list follows inline.
        mkey_umem_valid: 0x0c[30],
        data_direct: 0x0c[29],
        memory_key_mkey_entry: 0x10 Mkc,
        /// Size of the translation list in the command, in 16-byte units.
        translations_octword_actual_size: 0x60 u32,
    } -> CreateMkeyOut(0x10) {
        /// Index of the key: lkey = rkey = index << 8 | mkey_7_0.
        mkey_index: 0x08[23:0],
    }

    /// Destroys a memory key; mkey_index = lkey >> 8.
    DESTROY_MKEY: DestroyMkeyIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        mkey_index: 0x08[23:0],
    } -> DestroyMkeyOut(0x10) {}

    QUERY_MKEY: QueryMkeyIn(0x10) {
        mkey_index: 0x08[23:0],
        pg_access: 0x0c[31],
    } -> QueryMkeyOut(0x130) {
        memory_key_mkey_entry: 0x10 Mkc,
        bsf0_klm0_pas_mtt0_1: 0x110 [u8; 16],
        bsf1_klm1_pas_mtt2_3: 0x120 [u8; 16],
    }
}
