//! UMR: work requests that change a memory key (PRM "UMR WQE").
//!
//! A UMR serves three purposes: binding a memory window (an indirect key gets a range of another key), fast
//! registration (a free key gets pages and becomes usable), and local invalidation (a key becomes free). A mask selects
//! the fields of the key's context that change. The translation table changes if the request carries octowords. The
//! request is applied completely or not at all.
//!
//! Permission: the key must have `umr_en`. The key must be in the queue pair's protection domain, unless the request
//! sets the domain or comes from the kernel's own UMR queue pair, which may change keys of all domains. The key variant
//! (low 8 bits) in the work request must be the key's current one, unless the request changes the variant. If the key
//! is usable afterwards, the keys that its range reaches must exist and be usable by the queue pair. Table entries
//! behind the range are padding with arbitrary contents.
//!
//! Only the kernel's queue pairs (QPC `fre`, and the UMR queue pair) may change the memory that a key reaches: the
//! pages of a key, its entity size, its domain, and the range and rights of a key that has pages. A program's queue
//! pair may compose its indirect keys from keys of its regions, and may free keys.

use crate::host::{ANY_PD, KeyError, KeyScope, UmrRequest};
use crate::mkey::{
    ANY_QP, Klm, Mkey, Ranges, Translation, key_table_bytes, page_table_bytes, recount_targets,
    usable,
};
use crate::objects::Table;
use mlx_prm::{CmdHcaCap, Mkc, UmrCtrlSeg};

const MASK_LENGTH: u32 = 0;
const MASK_PAGE_SIZE: u32 = 1;
const MASK_START: u32 = 6;
const MASK_PD: u32 = 7;
const MASK_REMOTE_INVALIDATE: u32 = 8;
const MASK_KEY: u32 = 13;
const MASK_QPN: u32 = 14;
const MASK_LOCAL_READ: u32 = 17;
const MASK_LOCAL_WRITE: u32 = 18;
const MASK_REMOTE_READ: u32 = 19;
const MASK_REMOTE_WRITE: u32 = 20;
const MASK_ATOMIC: u32 = 21;
const MASK_RELAXED_WRITE: u32 = 25;
const MASK_FREE: u32 = 29;
const MASK_RELAXED_READ: u32 = 47;

/// Mask bits of range and rights, which limit the owner of the key. On a key with pages, only the kernel's queue pairs
/// may change these fields.
const MASKS_OF_PAGES: u64 = 1 << MASK_LENGTH
    | 1 << MASK_START
    | 1 << MASK_LOCAL_READ
    | 1 << MASK_LOCAL_WRITE
    | 1 << MASK_REMOTE_READ
    | 1 << MASK_REMOTE_WRITE
    | 1 << MASK_ATOMIC;

/// Flags in the control segment's first byte.
const CHECK_FREE: u8 = 0x20;
const CHECK_NOT_FREE: u8 = 0x40;
const OFFSET_VALID: u8 = 0x10;
const CHECK_QPN: u8 = 0x08;
/// Log2 of the smallest page or entity size, in bytes.
const LOG_MIN_PAGE: u32 = 12;
/// Log2 of the largest page size, in bytes, without the capability for a sixth bit of `log_page_size`.
const LOG_MAX_PAGE: u32 = 31;
/// Largest translation offset without `umr_extended_translation_offset`, in octowords.
const MAX_SHORT_OFFSET: usize = 0xffff;
/// Size of a translation octoword in bytes.
const OCTOWORD: usize = 16;
/// A request may fill a table up to the next multiple of this number of octowords. Linux pads the table of a key for
/// four pages (two octowords) to this unit (`mlx5r_umr_get_xlt_octo` in drivers/infiniband/hw/mlx5/umr.h).
const OCTOWORD_UNIT: usize = 4;

/// Value in the key field of the first entry which means that a repeated block follows.
const REPEATED_BLOCK: u32 = 0x400;
/// Maximum number of pieces into which a repeated block expands. The existence of a limit is inferred, its value
/// chosen.
const MOST_PIECES: u64 = 1 << 12;

/// A parsed control segment.
struct Control {
    flags: u8,
    octowords: usize,
    offset: usize,
    mask: u64,
}

impl Control {
    fn parse(segment: &[u8; 48]) -> Self {
        let flags = segment[0];
        let segment = UmrCtrlSeg::from_array(*segment);
        let offset = u64::from(segment.translation_offset_47_16()) << 16
            | u64::from(segment.translation_offset());
        let whole = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        Self {
            flags,
            octowords: whole(u64::from(segment.klm_octwords())),
            offset: if flags & OFFSET_VALID == 0 {
                0
            } else {
                whole(offset)
            },
            mask: segment.mkey_mask(),
        }
    }

    fn sets(&self, bit: u32) -> bool {
        self.mask >> bit & 1 == 1
    }
}

/// Returns whether the work request frees the key.
pub fn frees(control: &[u8; 48], context: &[u8; 64]) -> bool {
    Control::parse(control).sets(MASK_FREE) && Mkc::from_array(*context).free()
}

/// Returns whether a function with these capabilities is unable to execute a work request (Linux `umr_check_mkey_mask`
/// and `mlx5r_umr_can_load_pas`, drivers/infiniband/hw/mlx5/umr.c and umr.h).
pub fn is_disabled(caps: &CmdHcaCap, control: &[u8; 48]) -> bool {
    let control = Control::parse(control);
    control.sets(MASK_PAGE_SIZE) && caps.umr_modify_entity_size_disabled()
        || control.sets(MASK_ATOMIC) && caps.umr_modify_atomic_disabled()
        || control.sets(MASK_RELAXED_WRITE) && !caps.relaxed_ordering_write_umr()
        || control.sets(MASK_RELAXED_READ) && !caps.relaxed_ordering_read_umr()
        || control.offset > MAX_SHORT_OFFSET && !caps.umr_extended_translation_offset()
}

/// Change of a key's translation table.
enum Change {
    /// Pages that replace those from this index on.
    Pages(usize, Vec<u64>),
    /// Table that replaces the whole old one.
    Whole(Translation),
}

/// Executes a UMR work request. The key's table may grow by at most `room` bytes.
///
/// # Errors
/// [`KeyError`] if the key does not exist or the request may not change it, if the new domain does not exist, or if the
/// key cannot have the new translation. The key is then unchanged.
pub fn apply(
    keys: &mut Table<Mkey>,
    pds: &mut Table<()>,
    request: &UmrRequest<'_>,
    room: usize,
) -> Result<(), KeyError> {
    let key = request.key;
    let control = Control::parse(request.control);
    let context = Mkc::from_array(*request.context);
    let current = keys.get(key >> 8).ok_or(KeyError::Missing { key })?;
    permitted(current, &control, request)?;
    let translation = translation(keys, current, &control, request, room)?;
    if current.is_indirect() {
        check_reached(
            keys,
            current,
            &control,
            &context,
            &translation,
            request.scope,
        )?;
    }
    if control.sets(MASK_PD) && !pds.contains(context.pd()) {
        return Err(KeyError::ProtectionDomain { key });
    }
    let Some(mkey) = keys.get_mut(key >> 8) else {
        return Err(KeyError::Missing { key });
    };
    if control.sets(MASK_PD) && mkey.pd != context.pd() {
        pds.release(mkey.pd);
        // This cannot fail: the domain was checked above.
        let _ = pds.hold(context.pd());
        mkey.pd = context.pd();
    }
    change(mkey, &control, &context);
    match (translation, &mut mkey.translation) {
        (Some(Change::Whole(new)), old) => *old = new,
        (Some(Change::Pages(first, new)), Translation::Pages(table)) => {
            let end = first + new.len();
            if table.len() < end / 2 {
                // `vec!` allocates zeroed memory, whose pages the operating system provides only when they are written.
                let mut longer = vec![0; end];
                longer[..table.len()].copy_from_slice(table);
                *table = longer;
            } else if table.len() < end {
                table.resize(end, 0);
            }
            table[first..end].copy_from_slice(&new);
        }
        (Some(Change::Pages(..)) | None, _) => {}
    }
    recount_targets(keys, key >> 8);
    Ok(())
}

/// Checks the entries that the key's range reaches after the request. The check is made if the key is not free then,
/// and the request carries entries, moves the range or makes the key usable. Entries behind the range are padding and
/// not checked: Linux rounds the number of octowords up to a multiple of four (`mlx5r_umr_get_xlt_octo`), but copies
/// only the real entries into the work request (`set_reg_wr` in drivers/infiniband/hw/mlx5/wr.c). The bytes behind them
/// are old contents of the ring.
fn check_reached(
    keys: &Table<Mkey>,
    current: &Mkey,
    control: &Control,
    context: &Mkc,
    translation: &Option<Change>,
    scope: KeyScope,
) -> Result<(), KeyError> {
    let mut next = current.clone();
    change(&mut next, control, context);
    let becomes_usable = current.free && !next.free;
    let entries = match translation {
        Some(Change::Whole(translation)) => Some(translation),
        Some(Change::Pages(..)) | None => None,
    };
    let moves_range =
        control.sets(MASK_LENGTH) || control.sets(MASK_START) || control.sets(MASK_PAGE_SIZE);
    if next.free || entries.is_none() && !becomes_usable && !moves_range {
        return Ok(());
    }
    if let Some(entries) = entries {
        next.translation.clone_from(entries);
    }
    for entry in next.reached() {
        usable(keys, entry.key, scope)?;
    }
    Ok(())
}

/// Checks that the queue pair may change the key in its current state.
fn permitted(mkey: &Mkey, control: &Control, request: &UmrRequest<'_>) -> Result<(), KeyError> {
    let (key, scope) = (request.key, request.scope);
    if !mkey.umr_enabled {
        return Err(KeyError::Unsupported);
    }
    if !request.fast && scope.pd != ANY_PD && needs_fast_registration(mkey, control) {
        return Err(KeyError::FastRegistration { key });
    }
    if !control.sets(MASK_KEY) && u32::from(mkey.variant) != key & 0xff {
        return Err(KeyError::Variant { key });
    }
    if control.flags & CHECK_FREE != 0 && !mkey.free
        || control.flags & CHECK_NOT_FREE != 0 && mkey.free
    {
        return Err(KeyError::Free { key });
    }
    if !control.sets(MASK_PD) && mkey.pd != scope.pd && scope.pd != ANY_PD {
        return Err(KeyError::ProtectionDomain { key });
    }
    let context = Mkc::from_array(*request.context);
    let sizes = if matches!(mkey.translation, Translation::Keys(_)) {
        0..=LOG_MAX_PAGE
    } else {
        LOG_MIN_PAGE..=LOG_MAX_PAGE
    };
    if control.sets(MASK_PAGE_SIZE) && !sizes.contains(&context.log_page_size()) {
        return Err(KeyError::Unsupported);
    }
    // The check also passes for a key that all queue pairs may use: rdma-core frees keys of mlx5dv_create_mkey with
    // this flag.
    if control.flags & CHECK_QPN != 0 && mkey.qpn != ANY_QP && mkey.qpn != scope.qpn {
        return Err(KeyError::QueuePair { key });
    }
    Ok(())
}

/// Returns whether the request changes the memory that the key reaches, which needs `fre`. Linux sets `fre` only for
/// its own queue pairs (`_create_kernel_qp` in drivers/infiniband/hw/mlx5/qp.c). rdma-core changes only keys that are
/// made of other keys (`set_bind_wr`, `umr_sg_list_create`).
fn needs_fast_registration(mkey: &Mkey, control: &Control) -> bool {
    let has_entities = !matches!(mkey.translation, Translation::Keys(_));
    control.sets(MASK_PD)
        || has_entities && control.sets(MASK_PAGE_SIZE)
        || !mkey.is_indirect() && (control.octowords != 0 || control.mask & MASKS_OF_PAGES != 0)
}

/// Returns the change of the translation table, or `None` if the request carries no octowords.
fn translation(
    keys: &Table<Mkey>,
    mkey: &Mkey,
    control: &Control,
    request: &UmrRequest<'_>,
    room: usize,
) -> Result<Option<Change>, KeyError> {
    if control.octowords == 0 {
        return Ok(None);
    }
    let key = request.key;
    let range = KeyError::Range {
        key,
        va: 0,
        bytes: (control.octowords * OCTOWORD) as u64,
    };
    let declared = usize::try_from(mkey.octowords).unwrap_or(usize::MAX);
    let end = control.offset.saturating_add(control.octowords);
    if end > declared.next_multiple_of(OCTOWORD_UNIT) {
        return Err(range);
    }
    let bytes = if mkey.is_indirect() {
        key_table_bytes(end)
    } else {
        page_table_bytes(end.saturating_mul(2))
    };
    let bytes = bytes.saturating_sub(mkey.table_bytes());
    if bytes > room {
        return Err(KeyError::Memory { key, bytes });
    }
    let bytes = request
        .entries
        .get(..control.octowords * OCTOWORD)
        .ok_or(range)?;
    let entries = bytes.as_chunks::<OCTOWORD>().0;
    match &mkey.translation {
        Translation::Physical | Translation::Device(_) => Err(KeyError::Unsupported),
        Translation::Pages(_) => {
            let pages = bytes.as_chunks::<8>().0;
            let pages = pages.iter().map(|&page| u64::from_be_bytes(page)).collect();
            Ok(Some(Change::Pages(2 * control.offset, pages)))
        }
        Translation::Keys(_) => {
            let table = klms(keys, mkey, control, entries, request.scope)?;
            Ok(Some(Change::Whole(Translation::Keys(Ranges::new(table)))))
        }
        Translation::EqualKeys(_) => {
            let table = klms(keys, mkey, control, entries, request.scope)?;
            Ok(Some(Change::Whole(Translation::EqualKeys(table))))
        }
    }
}

fn klms(
    keys: &Table<Mkey>,
    mkey: &Mkey,
    control: &Control,
    entries: &[[u8; OCTOWORD]],
    scope: KeyScope,
) -> Result<Vec<Klm>, KeyError> {
    if let Some((first, strips)) = entries.split_first()
        && halves(first)[1] == REPEATED_BLOCK
        && control.offset == 0
    {
        return repeated(keys, first, strips, scope);
    }
    let mut table = mkey.entries().to_vec();
    let nothing = Klm {
        bytes: 0,
        key: 0,
        va: 0,
    };
    table.resize(table.len().max(control.offset + entries.len()), nothing);
    for (slot, entry) in table[control.offset..].iter_mut().zip(entries) {
        let [bytes, key] = halves(entry);
        let klm = Klm {
            bytes,
            key,
            va: word(&entry[8..]),
        };
        *slot = klm;
    }
    Ok(table)
}

/// Expands a repeated block into entries. Each repetition has the block's strips of memory in turn; every strip
/// advances by its stride from one repetition to the next (rdma-core `umr_strided_seg_create` in providers/mlx5/qp.c).
fn repeated(
    keys: &Table<Mkey>,
    block: &[u8; OCTOWORD],
    strips: &[[u8; OCTOWORD]],
    scope: KeyScope,
) -> Result<Vec<Klm>, KeyError> {
    let [_, _, _, _, _, _, _, _, a, b, c, d, _, _, e, f] = *block;
    let (times, count) = (u32::from_be_bytes([a, b, c, d]), u16::from_be_bytes([e, f]));
    let strips = strips
        .get(..usize::from(count))
        .ok_or(KeyError::Unsupported)?;
    if u64::from(times) * u64::from(count) > MOST_PIECES {
        return Err(KeyError::Unsupported);
    }
    let mut table = Vec::new();
    for time in 0..u64::from(times) {
        for strip in strips {
            let [sizes, key] = halves(strip);
            usable(keys, key, scope)?;
            let (stride, bytes) = (u64::from(sizes >> 16), sizes & 0xffff);
            table.push(Klm {
                bytes,
                key,
                va: word(&strip[8..]).wrapping_add(time * stride),
            });
        }
    }
    Ok(table)
}

/// Returns the first two dwords of an entry.
const fn halves(entry: &[u8; OCTOWORD]) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h, ..] = *entry;
    [
        u32::from_be_bytes([a, b, c, d]),
        u32::from_be_bytes([e, f, g, h]),
    ]
}

fn word(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn change(mkey: &mut Mkey, control: &Control, context: &Mkc) {
    if control.sets(MASK_LENGTH) {
        mkey.length = context.len();
        mkey.unlimited = context.length64();
    }
    if control.sets(MASK_PAGE_SIZE) {
        mkey.log_page = context.log_page_size();
    }
    if control.sets(MASK_START) {
        mkey.start = context.start_addr();
    }
    if control.sets(MASK_REMOTE_INVALIDATE) {
        mkey.remote_invalidate = context.en_rinval();
    }
    if control.sets(MASK_KEY) {
        // CAST: the field has 8 bits.
        mkey.variant = u8::try_from(context.mkey_7_0()).unwrap_or(0);
    }
    if control.sets(MASK_QPN) {
        mkey.qpn = context.qpn();
    }
    let writes = context.relaxed_ordering_write();
    let reads = context.relaxed_ordering_read();
    let access = &mut mkey.access;
    for (bit, field, value) in [
        (MASK_LOCAL_READ, &mut access.local_read, context.lr()),
        (MASK_LOCAL_WRITE, &mut access.local_write, context.lw()),
        (MASK_REMOTE_READ, &mut access.remote_read, context.rr()),
        (MASK_REMOTE_WRITE, &mut access.remote_write, context.rw()),
        (MASK_ATOMIC, &mut access.atomic, context.a()),
        (MASK_RELAXED_WRITE, &mut mkey.relaxed_writes, writes),
        (MASK_FREE, &mut mkey.free, context.free()),
        (MASK_RELAXED_READ, &mut mkey.relaxed_reads, reads),
    ] {
        if control.sets(bit) {
            *field = value;
        }
    }
}

/// Frees a key on behalf of a peer's SEND with Invalidate.
///
/// # Errors
/// [`KeyError`] if the queue pair may not use the key, for example a key of another protection domain.
/// [`KeyError::Access`] if the key does not permit remote invalidation.
pub fn invalidate(keys: &mut Table<Mkey>, key: u32, scope: KeyScope) -> Result<(), KeyError> {
    if !usable(keys, key, scope)?.remote_invalidate {
        return Err(KeyError::Access { key });
    }
    if let Some(mkey) = keys.get_mut(key >> 8) {
        mkey.free = true;
        recount_targets(keys, key >> 8);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mkey::{Access, KEY_MEMORY};

    const BIND: u64 = 1 << MASK_LENGTH
        | 1 << MASK_START
        | 1 << MASK_KEY
        | 1 << MASK_REMOTE_WRITE
        | 1 << MASK_QPN
        | 1 << MASK_FREE;
    const FREE: u64 = 1 << MASK_FREE;

    fn scope() -> KeyScope {
        KeyScope {
            pd: 1,
            qpn: 0x58,
            remote: false,
            atomic: false,
            rlky: false,
        }
    }

    fn mkey(translation: Translation, free: bool) -> Mkey {
        Mkey {
            variant: 7,
            free,
            umr_enabled: true,
            remote_invalidate: true,
            relaxed_writes: false,
            relaxed_reads: false,
            access: Access {
                local_read: true,
                local_write: true,
                ..Access::default()
            },
            pd: 1,
            qpn: ANY_QP,
            start: 0,
            length: 0x1000,
            unlimited: false,
            log_page: 12,
            page_access: false,
            octowords: 4,
            translation,
            held: Vec::new(),
        }
    }

    /// Returns the tables of keys and protection domains, the key of a region, and the key of a window.
    fn world() -> (Table<Mkey>, Table<()>, u32, u32) {
        let mut keys = Table::new("mkey", 0x100, 0x1ff, 64);
        let region = keys
            .create(mkey(Translation::Pages(vec![0x10000]), false))
            .unwrap()
            << 8
            | 7;
        let window = keys
            .create(mkey(Translation::Keys(Ranges::default()), true))
            .unwrap()
            << 8
            | 7;
        let mut pds = Table::new("PD", 1, 4, 4);
        pds.create(()).unwrap();
        (keys, pds, region, window)
    }

    /// Returns a UMR that changes nothing, from a queue pair with `fre`.
    fn request<'a>(key: u32) -> UmrRequest<'a> {
        UmrRequest {
            key,
            scope: scope(),
            fast: true,
            control: &[0; 48],
            context: &[0; 64],
            entries: &[],
        }
    }

    fn control(flags: u8, octowords: u8, mask: u64) -> [u8; 48] {
        let mut control = [0; 48];
        control[0] = flags;
        control[5] = octowords;
        control[8..16].copy_from_slice(&mask.to_be_bytes());
        control
    }

    fn window_context(variant: u32) -> [u8; 64] {
        let mut context = Mkc::new();
        context
            .set_start_addr(0x9000)
            .set_len(0x100)
            .set_mkey_7_0(variant)
            .set_qpn(0x58)
            .set_rw(true);
        *context.as_array()
    }

    fn bind(
        (keys, pds): (&mut Table<Mkey>, &mut Table<()>),
        window: u32,
        region: u32,
        scope: KeyScope,
    ) -> Result<(), KeyError> {
        let mut entries = [0; 64];
        entries[..4].copy_from_slice(&0x100_u32.to_be_bytes());
        entries[4..8].copy_from_slice(&region.to_be_bytes());
        entries[14..16].copy_from_slice(&0x0800_u16.to_be_bytes());
        let request = UmrRequest {
            scope,
            control: &control(CHECK_FREE, 4, BIND),
            context: &window_context(8),
            entries: &entries,
            ..request(window)
        };
        apply(keys, pds, &request, KEY_MEMORY)
    }

    /// A repeated block expands to its strips, each advanced by its stride per repetition. The entries have the layout
    /// of rdma-core's `umr_strided_seg_create`: the block, then its strips, and padding.
    #[test]
    fn a_repeated_block_is_its_strips_a_stride_further_each_time() {
        let (mut keys, mut pds, region, window) = world();
        keys.get_mut(window >> 8).unwrap().octowords = 4;
        let mut ask = |times: u32, strips: u16| {
            let mut entries = [0; 64];
            entries[4..8].copy_from_slice(&REPEATED_BLOCK.to_be_bytes());
            entries[8..12].copy_from_slice(&times.to_be_bytes());
            entries[14..16].copy_from_slice(&strips.to_be_bytes());
            for (at, va) in [(16, 0x100_u64), (32, 0x800)] {
                entries[at..at + 4].copy_from_slice(&[0, 0x20, 0, 8]);
                entries[at + 4..at + 8].copy_from_slice(&region.to_be_bytes());
                entries[at + 8..at + 16].copy_from_slice(&va.to_be_bytes());
            }
            let request = UmrRequest {
                control: &control(0, 4, FREE),
                entries: &entries,
                ..request(window)
            };
            apply(&mut keys, &mut pds, &request, KEY_MEMORY)
        };
        assert_eq!(ask(u32::MAX, 2), Err(KeyError::Unsupported));
        assert_eq!(ask(2, 4), Err(KeyError::Unsupported), "three follow");
        ask(2, 2).unwrap();
        let Translation::Keys(table) = &keys.get(window >> 8).unwrap().translation else {
            panic!("another kind of table");
        };
        let pieces: Vec<_> = table
            .entries()
            .iter()
            .map(|klm| (klm.va, klm.bytes))
            .collect();
        assert_eq!(pieces, [(0x100, 8), (0x800, 8), (0x120, 8), (0x820, 8)]);
    }

    #[test]
    fn a_key_of_every_queue_pair_is_freed_by_any_that_has_to_be_the_keys() {
        for (qpn, expected) in [(ANY_QP, true), (0x58, true), (0x59, false)] {
            let (mut keys, mut pds, region, _) = world();
            keys.get_mut(region >> 8).unwrap().qpn = qpn;
            let mut context = Mkc::new();
            context.set_free(true);
            let request = UmrRequest {
                control: &control(CHECK_QPN, 0, FREE),
                context: context.as_array(),
                ..request(region)
            };
            let done = apply(&mut keys, &mut pds, &request, KEY_MEMORY);
            assert_eq!(done.is_ok(), expected, "{qpn:#x}");
        }
    }

    /// A UMR may write up to the key's table size, rounded up to four octowords. Linux' key of four pages has two
    /// octowords, and its UMR carries four, of which the last two are zero.
    #[test]
    fn a_table_is_filled_up_by_four_octowords_and_by_no_more() {
        let mut keys = Table::new("mkey", 0x100, 0x1ff, 64);
        let mut cached = mkey(Translation::Pages(Vec::new()), true);
        cached.octowords = 2;
        let key = keys.create(cached).unwrap() << 8 | 7;
        let mut pds = Table::new("PD", 1, 4, 4);
        let mut entries = [0; 128];
        entries[..8].copy_from_slice(&0x7000_u64.to_be_bytes());
        let mut ask = |octowords| {
            let request = UmrRequest {
                control: &control(0, octowords, FREE),
                entries: &entries,
                ..request(key)
            };
            apply(&mut keys, &mut pds, &request, KEY_MEMORY)
        };
        assert!(matches!(ask(8), Err(KeyError::Range { .. })));
        ask(4).unwrap();
        let filled = keys.get(key >> 8).unwrap();
        assert!(matches!(&filled.translation, Translation::Pages(table) if table[0] == 0x7000));
    }

    /// A UMR can write at an offset above 16 bits if `umr_extended_translation_offset` is set. Linux registers 512 MiB
    /// of small pages in pieces with such offsets (`mlx5r_umr_update_offset`).
    #[test]
    fn a_long_table_is_written_in_pieces_behind_each_other() {
        let mut keys = Table::new("mkey", 0x100, 0x1ff, 64);
        let mut long = mkey(Translation::Pages(Vec::new()), false);
        long.octowords = 0x2_0000;
        let key = keys.create(long).unwrap() << 8 | 7;
        let mut pds = Table::new("PD", 1, 4, 4);
        let mut segment = UmrCtrlSeg::new();
        segment
            .set_translation_offset_en(true)
            .set_klm_octwords(4)
            .set_translation_offset(0x8)
            .set_translation_offset_47_16(1);
        let mut entries = [0; 64];
        entries[..8].copy_from_slice(&0x7000_u64.to_be_bytes());
        let request = UmrRequest {
            control: segment.as_array(),
            entries: &entries,
            ..request(key)
        };
        apply(&mut keys, &mut pds, &request, KEY_MEMORY).unwrap();
        let Translation::Pages(table) = &keys.get(key >> 8).unwrap().translation else {
            panic!("another kind of table");
        };
        assert_eq!(table[0x2_0010], 0x7000);
        let mut caps = CmdHcaCap::new();
        assert!(is_disabled(&caps, segment.as_array()));
        caps.set_umr_extended_translation_offset(true);
        assert!(!is_disabled(&caps, segment.as_array()));
    }

    /// A UMR cannot change the fields that the capabilities disable or do not offer (Linux `umr_check_mkey_mask` in
    /// drivers/infiniband/hw/mlx5/umr.c).
    #[test]
    fn capabilities_tell_which_fields_a_umr_cannot_change() {
        let mut caps = CmdHcaCap::new();
        let changing = |bit: u32| control(0, 0, 1 << bit);
        let [atomic, size] = [MASK_ATOMIC, MASK_PAGE_SIZE].map(changing);
        let [writes, reads] = [MASK_RELAXED_WRITE, MASK_RELAXED_READ].map(changing);
        assert!(!is_disabled(&caps, &atomic) && !is_disabled(&caps, &size));
        assert!(is_disabled(&caps, &writes) && is_disabled(&caps, &reads));
        caps.set_relaxed_ordering_write_umr(true);
        assert!(!is_disabled(&caps, &writes) && is_disabled(&caps, &reads));
        caps.set_relaxed_ordering_read_umr(true);
        assert!(!is_disabled(&caps, &writes) && !is_disabled(&caps, &reads));
        caps.set_umr_modify_atomic_disabled(true);
        assert!(is_disabled(&caps, &atomic) && !is_disabled(&caps, &size));
        caps.set_umr_modify_atomic_disabled(false)
            .set_umr_modify_entity_size_disabled(true);
        assert!(!is_disabled(&caps, &atomic) && is_disabled(&caps, &size));
    }

    /// A queue pair without `fre` cannot change the entity size, not even that of its own key: the entities of a KSM
    /// key would then be at other addresses.
    #[test]
    fn the_entity_size_changes_with_fre_alone() {
        let (mut keys, mut pds, ..) = world();
        let equal = mkey(Translation::EqualKeys(Vec::new()), false);
        let key = keys.create(equal).unwrap() << 8 | 7;
        let mut context = Mkc::new();
        context.set_log_page_size(13);
        for (fast, expected) in [
            (false, Err(KeyError::FastRegistration { key })),
            (true, Ok(())),
        ] {
            let request = UmrRequest {
                fast,
                control: &control(0, 0, 1 << MASK_PAGE_SIZE),
                context: context.as_array(),
                ..request(key)
            };
            assert_eq!(apply(&mut keys, &mut pds, &request, KEY_MEMORY), expected);
        }
    }

    /// The device's UMR queue pair can change keys of every protection domain.
    #[test]
    fn the_umr_queue_pair_reaches_keys_of_every_domain() {
        let (mut keys, mut pds, region, window) = world();
        let foreign = KeyScope { pd: 2, ..scope() };
        let refused = bind((&mut keys, &mut pds), window, region, foreign);
        assert!(matches!(refused, Err(KeyError::ProtectionDomain { .. })));
        let umr = KeyScope {
            pd: ANY_PD,
            ..scope()
        };
        bind((&mut keys, &mut pds), window, region, umr).unwrap();
    }

    #[test]
    fn a_bind_gives_the_window_range_rights_and_a_new_variant() {
        let (mut keys, mut pds, region, window) = world();
        bind((&mut keys, &mut pds), window, region, scope()).unwrap();
        let bound = keys.get(window >> 8).unwrap();
        assert_eq!(
            (bound.variant, bound.free, bound.start, bound.length),
            (8, false, 0x9000, 0x100)
        );
        assert!(bound.access.remote_write && bound.qpn == 0x58);
        assert_eq!(
            keys.references(region >> 8),
            1,
            "the region cannot be destroyed now"
        );
        let again = bind((&mut keys, &mut pds), window, region, scope());
        assert_eq!(
            again,
            Err(KeyError::Free { key: window }),
            "it is not free any more"
        );
    }

    #[test]
    fn a_bind_to_a_missing_key_or_one_of_another_domain_changes_nothing() {
        let (mut keys, mut pds, region, window) = world();
        let missing = bind((&mut keys, &mut pds), window, 0x1_ff07, scope());
        assert_eq!(missing, Err(KeyError::Missing { key: 0x1_ff07 }));
        let foreign = bind(
            (&mut keys, &mut pds),
            window,
            region,
            KeyScope { pd: 2, ..scope() },
        );
        assert_eq!(foreign, Err(KeyError::ProtectionDomain { key: window }));
        assert!(keys.get(window >> 8).unwrap().free);
    }

    /// A key becomes usable only if the entries that its range reaches are usable. A free key can have arbitrary
    /// entries, and a UMR that changes only the `free` bit leaves the entries unchanged.
    #[test]
    fn a_key_becomes_usable_only_if_what_its_range_reaches_is() {
        let (mut keys, mut pds, region, window) = world();
        let klm = |bytes, key| Klm { bytes, key, va: 0 };
        let reserved = 0x8f00;
        for (translation, length, expected) in [
            (
                Translation::Keys(Ranges::new(vec![klm(8, region), klm(8, reserved)])),
                16,
                false,
            ),
            (
                Translation::Keys(Ranges::new(vec![klm(8, region), klm(8, reserved)])),
                8,
                true,
            ),
            (Translation::EqualKeys(vec![klm(0, reserved)]), 8, false),
            (
                Translation::EqualKeys(vec![klm(0, region), klm(0, 0)]),
                8,
                true,
            ),
        ] {
            let free = keys.get_mut(window >> 8).unwrap();
            (free.translation, free.length, free.free) = (translation, length, true);
            let request = UmrRequest {
                fast: false,
                control: &control(0, 0, FREE),
                ..request(window)
            };
            let done = apply(&mut keys, &mut pds, &request, KEY_MEMORY);
            assert_eq!(done.is_ok(), expected, "{done:?}");
            assert_eq!(keys.get(window >> 8).unwrap().free, !expected);
        }
    }

    /// The padding behind the entries of a range is not checked. Linux' request of one entry counts four octowords
    /// (`ALIGN(bytes, 64) / 16`). On the second pass through the ring, old contents follow the entry: the control
    /// segment of an earlier request, then the beginning of a context.
    #[test]
    fn padding_behind_the_entries_of_a_range_is_not_checked() {
        /// Control segment of the earlier request: inline, for a free key, four octowords, with the mask of Linux'
        /// `frwr_mkey_mask` (`set_reg_umr_seg` in drivers/infiniband/hw/mlx5/wr.c).
        const BEFORE: [u8; OCTOWORD] = [
            0xa0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0x20, 0x9e, 0x21, 0x43,
        ];
        const LENGTH: u64 = 1 << MASK_LENGTH;
        let bytes = 0x1000_u32;
        for kind in [
            Translation::Keys(Ranges::default()),
            Translation::EqualKeys(Vec::new()),
        ] {
            let (mut keys, mut pds, region, window) = world();
            // The padding happens to contain the number of this key. The key must get no reference from it, because a
            // referenced key cannot be destroyed.
            let other = keys.create(mkey(Translation::Physical, false)).unwrap() << 8 | 7;
            keys.get_mut(window >> 8).unwrap().translation = kind;
            let mut entries = [0; 64];
            entries[..4].copy_from_slice(&bytes.to_be_bytes());
            entries[4..8].copy_from_slice(&region.to_be_bytes());
            entries[16..32].copy_from_slice(&BEFORE);
            entries[32..36].copy_from_slice(&bytes.to_be_bytes());
            entries[36..40].copy_from_slice(&other.to_be_bytes());
            let mut register = |keys: &mut Table<Mkey>, reached: u32| {
                let mut context = Mkc::new();
                context.set_len(u64::from(reached) * u64::from(bytes));
                let request = UmrRequest {
                    control: &control(CHECK_FREE, 4, FREE | LENGTH),
                    context: context.as_array(),
                    entries: &entries,
                    ..request(window)
                };
                apply(keys, &mut pds, &request, KEY_MEMORY)
            };
            let reached = Err(KeyError::Missing { key: 0x0004_0000 });
            assert_eq!(register(&mut keys, 2), reached, "it is an entry then");
            assert_eq!(register(&mut keys, 1), Ok(()));
            assert_eq!(keys.references(region >> 8), 1);
            assert_eq!(keys.references(other >> 8), 0);
            // A later request without entries extends the range into the padding, and fails.
            let mut context = Mkc::new();
            context.set_len(2 * u64::from(bytes));
            let longer = UmrRequest {
                control: &control(0, 0, LENGTH),
                context: context.as_array(),
                ..request(window)
            };
            assert_eq!(apply(&mut keys, &mut pds, &longer, KEY_MEMORY), reached);
        }
    }

    /// An entry that refers to a key of another domain holds no reference to that key. A reference would keep the owner
    /// from destroying the key.
    #[test]
    fn a_key_of_another_domain_is_not_held() {
        let (mut keys, mut pds, region, window) = world();
        keys.get_mut(region >> 8).unwrap().pd = 2;
        let entry = Klm {
            bytes: 1,
            key: region,
            va: 0,
        };
        let named = keys.get_mut(window >> 8).unwrap();
        // A command can create this state, because it does not check who owns the keys in the table.
        named.translation = Translation::Keys(Ranges::new(vec![entry]));
        named.free = false;
        let request = UmrRequest {
            fast: false,
            control: &control(0, 0, 0),
            ..request(window)
        };
        apply(&mut keys, &mut pds, &request, KEY_MEMORY).unwrap();
        assert!(!keys.get(window >> 8).unwrap().free);
        assert_eq!(keys.references(region >> 8), 0);
    }

    /// A translation table grows only as far as the function has memory for keys. The key declares 2^32 - 1 octowords,
    /// and the UMR writes entries near the end of that table.
    #[test]
    fn a_table_grows_as_far_as_there_is_memory_for_the_functions_keys() {
        let (mut keys, mut pds, region, window) = world();
        let mut segment = UmrCtrlSeg::new();
        segment
            .set_translation_offset_en(true)
            .set_klm_octwords(4)
            .set_translation_offset(0xfff0)
            .set_translation_offset_47_16(0xffff);
        // The region's table has one entry of eight bytes.
        for (key, room, fits) in [
            (region, KEY_MEMORY, false),
            (window, KEY_MEMORY, false),
            (region, 56, true),
        ] {
            keys.get_mut(key >> 8).unwrap().octowords = u32::MAX;
            if fits {
                segment
                    .set_translation_offset(0)
                    .set_translation_offset_47_16(0);
            }
            let request = UmrRequest {
                control: segment.as_array(),
                entries: &[0; 64],
                ..request(key)
            };
            let done = apply(&mut keys, &mut pds, &request, room);
            let refused = matches!(done, Err(KeyError::Memory { .. }));
            assert_eq!((done.is_ok(), refused), (fits, !fits), "{done:?}");
        }
        let grown = keys.get(region >> 8).unwrap();
        assert_eq!(grown.table_bytes(), 64);
    }

    #[test]
    fn local_invalidation_needs_the_current_variant_and_umr_en() {
        let (mut keys, mut pds, region, _) = world();
        let mut context = Mkc::new();
        context.set_free(true);
        let mut invalidate = |keys: &mut Table<Mkey>, key| {
            let request = UmrRequest {
                control: &control(0, 0, FREE),
                context: context.as_array(),
                ..request(key)
            };
            apply(keys, &mut pds, &request, KEY_MEMORY)
        };
        assert_eq!(
            invalidate(&mut keys, region ^ 1),
            Err(KeyError::Variant { key: region ^ 1 })
        );
        assert_eq!(invalidate(&mut keys, region), Ok(()));
        assert!(keys.get(region >> 8).unwrap().free);
        keys.get_mut(region >> 8).unwrap().umr_enabled = false;
        assert_eq!(invalidate(&mut keys, region), Err(KeyError::Unsupported));
    }

    #[test]
    fn a_table_has_room_for_what_it_was_created_with() {
        let (mut keys, mut pds, region, _) = world();
        let request = UmrRequest {
            control: &control(0, 5, FREE),
            entries: &[0; 80],
            ..request(region)
        };
        assert!(matches!(
            apply(&mut keys, &mut pds, &request, KEY_MEMORY),
            Err(KeyError::Range { .. })
        ));
    }

    #[test]
    fn a_peer_frees_a_key_only_if_the_key_allows_it() {
        let (mut keys, _, region, _) = world();
        let peer = KeyScope {
            remote: true,
            ..scope()
        };
        assert_eq!(invalidate(&mut keys, region, peer), Ok(()));
        assert_eq!(
            invalidate(&mut keys, region, peer),
            Err(KeyError::Free { key: region })
        );
        let (mut keys, _, region, _) = world();
        keys.get_mut(region >> 8).unwrap().remote_invalidate = false;
        assert_eq!(
            invalidate(&mut keys, region, peer),
            Err(KeyError::Access { key: region })
        );
    }
}
