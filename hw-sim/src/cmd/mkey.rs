//! Memory key commands.

use super::{Cmd, Outcome, PAGE_LIST, Refusal, output, refuse};
use crate::mkey::{
    Access, KEY_MEMORY, Klm, Mkey, Ranges, Translation, recount_targets, release_targets,
};
use mlx_prm::{
    CreateMkeyIn, CreateMkeyOut, DestroyMkeyIn, DestroyMkeyOut, Mkc, QueryMkeyIn, QueryMkeyOut,
};
use zerocopy::IntoBytes;

const MODE_PA: u32 = 0;
const MODE_MTT: u32 = 1;
const MODE_KLM: u32 = 2;
const MODE_KSM: u32 = 3;
const MODE_MEMIC: u32 = 5;
/// Size of a translation octoword in bytes. An octoword holds two page addresses or one KLM.
const OCTOWORD: u64 = 16;
/// Log2 of the smallest page of a translation table, in bytes.
const LOG_MIN_PAGE: u32 = 12;
/// Log2 of the largest page, in bytes. The capability for a sixth bit of `log_page_size` is not simulated.
const LOG_MAX_PAGE: u32 = 31;
/// Permission bits of a translation entry.
const PAGE_PERMISSIONS: u64 = 7;

pub(super) fn create_mkey(cmd: &mut Cmd<'_>) -> Outcome {
    let input: CreateMkeyIn = cmd.read();
    let context = input.memory_key_mkey_entry();
    if input.mkey_umem_valid() || input.data_direct() {
        return Err(refuse!(BAD_PARAM, "UMEM is not supported"));
    }
    check_context(cmd, context, input.pg_access())?;
    let translation = translation(cmd, &input)?;
    let device_memory = match translation {
        Translation::Device(first) => Some(first),
        Translation::Physical
        | Translation::Pages(_)
        | Translation::Keys(_)
        | Translation::EqualKeys(_) => None,
    };
    let objects = &mut cmd.nic.objects;
    let pd = context.pd();
    if !objects.pds.contains(pd) {
        return Err(refuse!(BAD_RESOURCE, "no such PD", "{pd:#x}"));
    }
    let mkey = Mkey {
        // CAST: the field has eight bits.
        variant: u8::try_from(context.mkey_7_0()).unwrap_or(0),
        free: context.free(),
        umr_enabled: context.umr_en(),
        remote_invalidate: context.en_rinval(),
        relaxed_writes: context.relaxed_ordering_write(),
        relaxed_reads: context.relaxed_ordering_read(),
        access: Access {
            local_read: context.lr(),
            local_write: context.lw(),
            remote_read: context.rr(),
            remote_write: context.rw(),
            atomic: context.a(),
        },
        pd,
        qpn: context.qpn(),
        // Addresses in device memory count from 0 (Linux accepts such regions with IB_ZERO_BASED only).
        start: match device_memory {
            Some(_) => 0,
            None => context.start_addr(),
        },
        length: context.len(),
        unlimited: context.length64(),
        log_page: context.log_page_size(),
        page_access: input.pg_access(),
        octowords: context.translations_octword_size(),
        translation,
        held: Vec::new(),
    };
    let bytes = mkey.memory();
    if objects.key_memory + bytes > KEY_MEMORY {
        return Err(refuse!(
            NO_RESOURCES,
            "memory for keys and their tables",
            "{bytes} bytes and {} of {KEY_MEMORY}",
            objects.key_memory
        ));
    }
    let index = objects.mkeys.reserve()?;
    if let Some(first) = device_memory
        && !objects.device_memory.hold(first, context.len())
    {
        return Err(refuse!(
            BAD_RESOURCE,
            "no such device memory",
            "{first:#x}+{:#x}",
            context.len()
        ));
    }
    objects.pds.hold(pd)?;
    objects.mkeys.insert(index, mkey);
    objects.key_memory += bytes;
    recount_targets(&mut objects.mkeys, index);
    let mut out = CreateMkeyOut::new();
    out.set_mkey_index(index);
    output(&out)
}

/// Returns the access mode from its two fields.
fn access_mode(context: &Mkc) -> u32 {
    context.access_mode_4_2() << 2 | context.access_mode_1_0()
}

/// Checks the parts of a context that do not depend on the translation table.
fn check_context(cmd: &Cmd<'_>, context: &Mkc, pg_access: bool) -> Result<(), Refusal> {
    let caps = &cmd.nic.caps.general;
    let mode = access_mode(context);
    if mode > MODE_KSM && (mode != MODE_MEMIC || !caps.device_memory()) {
        return Err(refuse!(BAD_PARAM, "access mode", "{mode:#x}"));
    }
    // Linux checks the PCI bit because a card refuses relaxed reads without it (commit ed4b0661cce1). A real card then
    // also clears `relaxed_ordering_read_pci_enabled` (commit ccbbfe0682f2); the simulator does not. For a virtual
    // function a real card uses the bit of the physical function. The simulator refuses these reads there; Linux does
    // not request them.
    let may_relax_reads = caps.relaxed_ordering_read()
        || caps.relaxed_ordering_read_pci_enabled() && cmd.nic.config.relaxed_ordering();
    let ordering = context.relaxed_ordering_write() && !caps.relaxed_ordering_write()
        || context.relaxed_ordering_read() && !may_relax_reads;
    if ordering {
        return Err(refuse!(
            BAD_PARAM,
            "relaxed ordering that capabilities or PCI configuration do not allow"
        ));
    }
    let unsupported = context.bsf_en()
        || context.bsf_octword_size() != 0
        || context.ma_translation_mode() != 0
        || context.crossing_target_vhca_id() != 0;
    if unsupported {
        return Err(refuse!(BAD_PARAM, "key feature is not supported"));
    }
    // Linux sets `pg_access` only with this capability; Snabb and rdma-core never set it.
    if pg_access && !caps.pg() {
        return Err(refuse!(BAD_PARAM, "pg_access without the pg capability"));
    }
    if context.a() && !caps.atomic() {
        return Err(refuse!(BAD_PARAM, "atomic access without that capability"));
    }
    if context.length64() {
        return Ok(());
    }
    if context.start_addr().checked_add(context.len()).is_none() {
        return Err(refuse!(BAD_PARAM, "region wraps"));
    }
    let most = caps.log_max_mrw_sz();
    if most < 64 && context.len() > 1 << most {
        return Err(refuse!(EXCEED_LIM, "region longer than log_max_mrw_sz"));
    }
    Ok(())
}

fn translation(cmd: &Cmd<'_>, input: &CreateMkeyIn) -> Result<Translation, Refusal> {
    let context = input.memory_key_mkey_entry();
    let octowords = context.translations_octword_size();
    let present = input.translations_octword_actual_size();
    if present > octowords {
        return Err(refuse!(
            BAD_PARAM,
            "more translation entries than the table holds",
            "{present} of {octowords}"
        ));
    }
    let count = usize::try_from(present)
        .unwrap_or(usize::MAX)
        .saturating_mul(2);
    let words = cmd.list(PAGE_LIST, count)?;
    match access_mode(context) {
        MODE_MEMIC if octowords != 0 || context.length64() || context.umr_en() => {
            // Such a key is refused, because a UMR that changes its range would not release the memory that the key
            // holds.
            Err(refuse!(
                BAD_PARAM,
                "key of device memory with a table, without an end, or for UMR"
            ))
        }
        MODE_MEMIC => cmd
            .of_the_driver(true, "key of device memory")
            .map(|()| Translation::Device(context.start_addr())),
        MODE_PA if octowords != 0 => Err(refuse!(BAD_PARAM, "translation table of a PA key")),
        MODE_PA => cmd
            .of_the_driver(true, "PA key")
            .map(|()| Translation::Physical),
        MODE_MTT => pages(context, words),
        MODE_KLM | MODE_KSM => keys(cmd, context, &words),
        mode => Err(refuse!(BAD_PARAM, "access mode", "{mode}")),
    }
}

fn pages(context: &Mkc, words: Vec<u64>) -> Result<Translation, Refusal> {
    let log_page = context.log_page_size();
    if !(LOG_MIN_PAGE..=LOG_MAX_PAGE).contains(&log_page) {
        return Err(refuse!(BAD_PARAM, "page size of a key", "2^{log_page}"));
    }
    if context.length64() {
        return Err(refuse!(BAD_PARAM, "unlimited length with a page table"));
    }
    let page = 1_u64 << log_page;
    let needed = ((context.start_addr() & (page - 1)) + context.len()).div_ceil(page);
    if u64::from(context.translations_octword_size()) * OCTOWORD < needed * 8 {
        return Err(refuse!(
            BAD_PARAM,
            "translation table too small",
            "{needed} pages"
        ));
    }
    // A key in the free state may get its translation table later, by UMR.
    if !context.free() && (words.len() as u64) < needed {
        return Err(refuse!(
            BAD_PARAM,
            "translation entries are missing",
            "{} of {needed}",
            words.len()
        ));
    }
    let used = usize::try_from(needed)
        .unwrap_or(usize::MAX)
        .min(words.len());
    if words[..used]
        .iter()
        .any(|entry| entry & !PAGE_PERMISSIONS & (page - 1) != 0)
    {
        return Err(refuse!(
            BAD_PARAM,
            "page address not aligned to the page size"
        ));
    }
    Ok(Translation::Pages(words))
}

fn keys(cmd: &Cmd<'_>, context: &Mkc, words: &[u64]) -> Result<Translation, Refusal> {
    let log_most = cmd.nic.caps.general.log_max_klm_list_size();
    if u64::from(context.translations_octword_size()) > 1 << log_most.min(63) {
        return Err(refuse!(
            EXCEED_LIM,
            "KLM list longer than log_max_klm_list_size"
        ));
    }
    let entries: Vec<Klm> = words
        .as_chunks::<2>()
        .0
        .iter()
        .map(|&[head, va]| {
            let [a, b, c, d, e, f, g, h] = head.to_be_bytes();
            Klm {
                bytes: u32::from_be_bytes([a, b, c, d]),
                key: u32::from_be_bytes([e, f, g, h]),
                va,
            }
        })
        .collect();
    let is_ksm = context.access_mode_1_0() == MODE_KSM;
    if !context.free() {
        // The owner of the keys that the entries name is not checked, because Linux creates user MRs under its own uid.
        // The check of the protection domain protects these keys.
        let missing = |entry: &&Klm| {
            entry.names_key(is_ksm) && cmd.nic.objects.mkeys.get(entry.key >> 8).is_none()
        };
        if let Some(entry) = entries.iter().find(missing) {
            return Err(refuse!(BAD_RESOURCE, "no such key", "{:#x}", entry.key));
        }
    }
    if !is_ksm {
        return Ok(Translation::Keys(Ranges::new(entries)));
    }
    if !cmd.nic.caps.general.fixed_buffer_size() {
        return Err(refuse!(
            BAD_PARAM,
            "KSM without the fixed_buffer_size capability"
        ));
    }
    let log_size = context.log_page_size();
    if !(LOG_MIN_PAGE..=LOG_MAX_PAGE).contains(&log_size) {
        return Err(refuse!(BAD_PARAM, "entity size of a key", "2^{log_size}"));
    }
    Ok(Translation::EqualKeys(entries))
}

pub(super) fn destroy_mkey(cmd: &mut Cmd<'_>) -> Outcome {
    let index = cmd.read::<DestroyMkeyIn>().mkey_index();
    let objects = &mut cmd.nic.objects;
    let key = objects.mkeys.remove(index)?;
    objects.key_memory -= key.memory();
    release_targets(&mut objects.mkeys, &key.held);
    objects.pds.release(key.pd);
    if let Translation::Device(first) = key.translation {
        objects.device_memory.release(first);
    }
    output(&DestroyMkeyOut::new())
}

pub(super) fn query_mkey(cmd: &mut Cmd<'_>) -> Outcome {
    let index = cmd.read::<QueryMkeyIn>().mkey_index();
    let Some(key) = cmd.nic.objects.mkeys.named(index) else {
        return Err(refuse!(BAD_RESOURCE, "no such key", "{index:#x}"));
    };
    let mut entries = [0; 32];
    let mut start = key.start;
    let mode = match &key.translation {
        Translation::Device(first) => {
            start = *first;
            MODE_MEMIC
        }
        Translation::Physical => MODE_PA,
        Translation::Pages(table) => {
            for (out, entry) in entries.chunks_exact_mut(8).zip(table) {
                out.copy_from_slice(&entry.to_be_bytes());
            }
            MODE_MTT
        }
        Translation::Keys(_) => MODE_KLM,
        Translation::EqualKeys(_) => MODE_KSM,
    };
    let mut out = QueryMkeyOut::new();
    out.memory_key_mkey_entry_mut()
        .set_free(key.free)
        .set_umr_en(key.umr_enabled)
        .set_a(key.access.atomic)
        .set_rw(key.access.remote_write)
        .set_rr(key.access.remote_read)
        .set_lw(key.access.local_write)
        .set_lr(key.access.local_read)
        .set_access_mode_1_0(mode & 3)
        .set_access_mode_4_2(mode >> 2)
        .set_qpn(key.qpn)
        .set_mkey_7_0(u32::from(key.variant))
        .set_length64(key.unlimited)
        .set_en_rinval(key.remote_invalidate)
        .set_relaxed_ordering_write(key.relaxed_writes)
        .set_relaxed_ordering_read(key.relaxed_reads)
        .set_pd(key.pd)
        .set_start_addr(start)
        .set_len(key.length)
        .set_translations_octword_size(key.octowords)
        .set_log_page_size(key.log_page);
    out.as_mut_bytes()[0x110..0x130].copy_from_slice(&entries);
    output(&out)
}
