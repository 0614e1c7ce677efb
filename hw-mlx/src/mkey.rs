//! Memory keys: the memory that the device may access, and for whom.
//!
//! A key (PRM "Memory Key Context") consists of a range of virtual addresses, a protection domain, access
//! rights, and a table that translates each page of the range to a DMA address. Pages may be as large
//! as the device's field allows. They need not be backed by memory as a whole, because the device checks
//! start and length first. The table needs one entry for each page that the region spans, whatever the
//! system's page size is. A region that lies in one page needs one entry
//! (`calc_spanning_page_size` in providers/mlx5/mlx5_vfio.c of rdma-core).
//!
//! Virtual address and I/O address must be equal modulo the page size. In the arena they are equal modulo 1 GiB, and
//! in lent memory modulo the page size that spans it. So one page is enough for any region that crosses no multiple of
//! 1 GiB; any other region needs an entry for each gigabyte that it touches.
//!
//! Per-page permissions: an entry's two low bits are "readable" and "writable" when the command sets
//! `pg_access`, and address bits otherwise. The field belongs to on-demand paging; Linux sets it only
//! where the capability `pg` is on (drivers/infiniband/hw/mlx5/mr.c), rdma-core's VFIO driver always.
//! We do as Linux does: with the capability, both bits are set on every page, because the key holds the
//! access rights; without the capability, entries are plain addresses.
//!
//! A key's value is `index << 8 | variant`. The firmware chooses the index, and may give it to the next region as soon
//! as it is free. The driver chooses the variant at random, different from the last few. So a stale key does not match,
//! and a peer cannot compute other keys from one key.

mod parking;

use core::ops::RangeInclusive;

use driver::Iova;
use rdma_types::Access;

use crate::device::Hca;
use crate::error::{CmdError, MlxError};
use mlx_prm::{CmdHcaCap, CreateMkeyIn, DestroyMkeyIn, Mkc};
pub use parking::{confirm, query, resume};

/// Maximum bytes of a key's translation table. It bounds the mailboxes of one command. A region of 2^38 bytes needs 2
/// KiB of table with pages of 1 GiB.
pub const MAX_TABLE_BYTES: u64 = 1 << 16;
/// `mkc.access_mode_1_0` of a key with a page table.
const ACCESS_MODE_MTT: u32 = 1;
/// `mkc.qpn` of a key that any queue pair may use.
pub(crate) const ANY_QPN: u32 = 0xff_ffff;
/// Permission bits "readable" and "writable" of a translation entry with `pg_access`.
const PAGE_READ_WRITE: u64 = 3;

/// Translation of a region's virtual addresses to I/O addresses, in pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// log2 of the page size.
    pub log_page: u32,
    /// I/O address of the first page.
    pub first: u64,
    /// Number of pages.
    pub pages: u64,
}

impl Translation {
    /// Returns the translation with the smallest page size that holds the whole region in one page, or with the largest
    /// possible page size if none does. Returns `None` for an empty region, for one that exceeds the address space, and
    /// for addresses that differ below the smallest page size.
    #[must_use]
    pub fn of(
        address: u64,
        iova: Iova,
        bytes: u64,
        log_pages: RangeInclusive<u32>,
    ) -> Option<Self> {
        let last = address.checked_add(bytes.checked_sub(1)?)?;
        iova.0.checked_add(bytes - 1)?;
        // A page may be at most as large as the lowest bit in which the two addresses differ.
        let agree = (address ^ iova.0).trailing_zeros().min(63);
        let limit = agree.min(*log_pages.end());
        if limit < *log_pages.start() {
            return None;
        }
        let span = u64::BITS - (address ^ last).leading_zeros();
        let log_page = span.clamp(*log_pages.start(), limit);
        Some(Self {
            log_page,
            first: iova.0 >> log_page << log_page,
            pages: (last >> log_page) - (address >> log_page) + 1,
        })
    }

    /// Returns the number of 16-byte units of the table. Each unit holds two entries; the last one may be half empty.
    #[must_use]
    pub fn octwords(&self) -> u64 {
        self.pages.div_ceil(2)
    }

    /// Returns the table as CREATE_MKEY expects it.
    #[must_use]
    pub fn table(&self, pg_access: bool) -> Vec<u8> {
        let permission = if pg_access { PAGE_READ_WRITE } else { 0 };
        let mut table: Vec<u8> = (0..self.pages)
            .flat_map(|page| ((self.first + (page << self.log_page)) | permission).to_be_bytes())
            .collect();
        table.resize(table.len().next_multiple_of(16), 0);
        table
    }
}

/// Parameters of a new memory key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRequest {
    /// Protection domain.
    pub pd: u32,
    /// First virtual address.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Access rights.
    pub access: Access,
    /// Low byte of the key, which the driver chooses.
    pub variant: u8,
    /// True if memory windows may be bound to the key. Peers may then write through the windows.
    pub may_have_windows: bool,
}

/// Memory accesses that the function may reorder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relaxed {
    /// The device's writes may pass earlier writes.
    pub write: bool,
    /// Read data may arrive at the device before its earlier writes are done.
    pub read: bool,
}

impl Relaxed {
    /// Returns the abilities of a function with these capabilities. `by_pci` is the bit Enable Relaxed Ordering of its
    /// PCI configuration. Reads need this bit if the device has only `relaxed_ordering_read_pci_enabled` (Linux
    /// `mr.c` `set_mkc_access_pd_addr_fields`). The driver reads the bit once, at bring-up.
    #[must_use]
    pub fn of(general: &CmdHcaCap, by_pci: bool) -> Self {
        Self {
            write: general.relaxed_ordering_write(),
            read: general.relaxed_ordering_read()
                || general.relaxed_ordering_read_pci_enabled() && by_pci,
        }
    }
}

impl KeyRequest {
    /// Returns the fixed part of CREATE_MKEY. The translation table follows it in the command.
    ///
    /// # Panics
    /// When the table is longer than the field that counts it. [`create`] refuses tables that are much shorter.
    #[must_use]
    pub fn command(
        &self,
        translation: &Translation,
        pg_access: bool,
        relaxed: Relaxed,
    ) -> CreateMkeyIn {
        // PANIC: 2^32 octwords translate 2^45 bytes even at the smallest page.
        let octwords = u32::try_from(translation.octwords())
            .expect("more translation entries than a key holds");
        let mut command = CreateMkeyIn::new();
        command
            .set_pg_access(pg_access)
            .set_translations_octword_actual_size(octwords);
        let context = command.memory_key_mkey_entry_mut();
        *context = self.context(translation, octwords);
        if self.may_be_relaxed() {
            context
                .set_relaxed_ordering_write(relaxed.write)
                .set_relaxed_ordering_read(relaxed.read);
        }
        command
    }

    /// Returns whether the device may write the region out of order. The device always writes the completion after the
    /// data. A peer's writes must become visible in order, since a program may poll their last byte. A peer writes
    /// through the region's own key, or through a window, which needs only the local write right of the key.
    fn may_be_relaxed(&self) -> bool {
        let by_peers = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let by_windows = self.may_have_windows && self.access.contains(Access::LOCAL_WRITE);
        !self.access.intersects(by_peers) && !by_windows
    }

    fn context(&self, translation: &Translation, octwords: u32) -> Mkc {
        let mut context = Mkc::new();
        context
            .set_access_mode_1_0(ACCESS_MODE_MTT)
            // The key always grants local read. The code that posts requests checks this right in software.
            .set_lr(true)
            .set_lw(self.access.contains(Access::LOCAL_WRITE))
            .set_rr(self.access.contains(Access::REMOTE_READ))
            .set_rw(self.access.contains(Access::REMOTE_WRITE))
            .set_a(self.access.contains(Access::REMOTE_ATOMIC))
            .set_qpn(ANY_QPN)
            .set_mkey_7_0(u32::from(self.variant))
            .set_pd(self.pd)
            .set_start_addr(self.address)
            .set_len(self.bytes)
            .set_translations_octword_size(octwords)
            .set_log_page_size(translation.log_page);
        context
    }
}

/// Creates a key. Returns its index and the key itself, which serves as local and remote key.
///
/// # Errors
/// Addresses that cannot be translated, a translation table that is too large, or device refusal.
pub fn create(hca: &mut Hca, request: &KeyRequest, iova: Iova) -> Result<(u32, u32), MlxError> {
    let limits = hca.caps().limits();
    let Some(translation) = Translation::of(
        request.address,
        iova,
        request.bytes,
        limits.log_min_mkey_page..=limits.log_max_mkey_page,
    ) else {
        return Err(MlxError::Untranslatable {
            address: request.address,
            iova: iova.0,
            bytes: request.bytes,
            log_min_page: limits.log_min_mkey_page,
        });
    };
    let table_bytes = translation.octwords() * 16;
    if table_bytes > MAX_TABLE_BYTES {
        return Err(MlxError::TranslationTooLarge {
            bytes: request.bytes,
            asked: table_bytes,
            limit: MAX_TABLE_BYTES,
        });
    }
    let pg_access = hca.caps().general().pg();
    let relaxed = Relaxed::of(hca.caps().general(), hca.pci_relaxed_ordering());
    let command = request.command(&translation, pg_access, relaxed);
    let answer = hca.exec_with(&command, &translation.table(pg_access))?;
    let index = answer.mkey_index();
    Ok((index, index << 8 | u32::from(request.variant)))
}

/// Destroys the key with an index.
///
/// # Errors
/// Device refusal.
pub fn destroy(hca: &mut Hca, index: u32) -> Result<(), CmdError> {
    let mut command = DestroyMkeyIn::new();
    command.set_mkey_index(index);
    hca.exec(&command).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn of(address: u64, iova: u64, bytes: u64) -> Translation {
        Translation::of(address, Iova(iova), bytes, 12..=31).expect("translatable")
    }

    #[test]
    fn a_region_inside_one_page_takes_one_entry_of_the_smallest_spanning_size() {
        assert_eq!(
            of(0x7f00_0000_1010, 0x1010, 0x20),
            Translation {
                log_page: 12,
                first: 0x1000,
                pages: 1
            }
        );
        // 0x1ff0..0x2010 crosses a 4 KiB and an 8 KiB boundary. A page of 16 KiB holds all of it.
        assert_eq!(
            of(0x7f00_0000_1ff0, 0x4000_1ff0, 0x20),
            Translation {
                log_page: 14,
                first: 0x4000_0000,
                pages: 1
            }
        );
        assert_eq!(
            of(0x7f00_0000_0000, GIB, GIB),
            Translation {
                log_page: 30,
                first: GIB,
                pages: 1
            }
        );
    }

    #[test]
    fn a_region_over_a_boundary_of_the_congruence_takes_one_entry_per_page() {
        // Both addresses are 0x3fff_f000 modulo 1 GiB, and differ in the next bit.
        let translation = of(0x7f00_7fff_f000, 0x3fff_f000, 0x2000);
        assert_eq!(
            translation,
            Translation {
                log_page: 30,
                first: 0,
                pages: 2
            }
        );
        assert_eq!(translation.octwords(), 1);
        let mut expected = [0_u8; 16];
        expected[8..].copy_from_slice(&[0, 0, 0, 0, 0x40, 0, 0, 0]);
        assert_eq!(translation.table(false), expected);
        expected[7] = 3;
        expected[15] = 3;
        assert_eq!(translation.table(true), expected);
    }

    #[test]
    fn an_odd_table_is_padded_to_sixteen_bytes() {
        let translation = of(0x7f00_0000_0000, 2 * GIB, 3 * GIB);
        assert_eq!(
            (
                translation.log_page,
                translation.pages,
                translation.octwords()
            ),
            (31, 2, 1)
        );
        let translation =
            Translation::of(0x7f00_0000_0000, Iova(0x4000_0000), 3 * GIB, 12..=30).unwrap();
        assert_eq!(
            (
                translation.pages,
                translation.octwords(),
                translation.table(false).len()
            ),
            (3, 2, 32)
        );
    }

    #[test]
    fn a_device_with_small_pages_gets_more_entries() {
        let translation = Translation::of(0x7f00_0000_0000, Iova(GIB), 1 << 20, 12..=16).unwrap();
        assert_eq!(
            translation,
            Translation {
                log_page: 16,
                first: GIB,
                pages: 16
            }
        );
    }

    #[test]
    fn what_cannot_be_translated_is_refused() {
        assert_eq!(
            Translation::of(0x1000, Iova(0x1000), 0, 12..=31),
            None,
            "empty"
        );
        assert_eq!(
            Translation::of(u64::MAX - 4, Iova(u64::MAX - 4), 8, 12..=31),
            None,
            "past the end"
        );
        assert_eq!(
            Translation::of(0x1000, Iova(0x1800), 8, 12..=31),
            None,
            "not congruent within a page"
        );
    }

    #[test]
    fn every_address_of_a_region_translates_to_the_byte_it_names() {
        // This is the device's arithmetic (PRM "Memory Translation Table"), written independently of `Translation`.
        let (address, iova, bytes) = (0x7f12_3456_7abc_u64, 0x5_3456_7abc_u64, 0x1_2345_6789_u64);
        for max in [12, 20, 26, 30, 31] {
            let translation = Translation::of(address, Iova(iova), bytes, 12..=max).unwrap();
            let page = 1_u64 << translation.log_page;
            for offset in [0, 1, 0xfff, page - 1, page, bytes / 2, bytes - 1]
                .into_iter()
                .filter(|&offset| offset < bytes)
            {
                let va = address + offset;
                let index = va / page - address / page;
                assert!(index < translation.pages);
                assert_eq!(
                    translation.first + index * page + va % page,
                    iova + offset,
                    "page 2^{}",
                    translation.log_page
                );
            }
        }
    }

    #[test]
    fn rights_of_the_key_are_the_ones_asked_for() {
        let request = KeyRequest {
            pd: 0x1234,
            address: 0x1000,
            bytes: 0x100,
            access: Access::LOCAL_READ | Access::REMOTE_WRITE,
            variant: 0x5a,
            may_have_windows: false,
        };
        let command = request.command(&of(0x1000, 0x1000, 0x100), false, Relaxed::default());
        let context = command.memory_key_mkey_entry();
        assert_eq!(
            (
                context.lr(),
                context.lw(),
                context.rr(),
                context.rw(),
                context.a()
            ),
            (true, false, false, true, false)
        );
        assert_eq!(
            (context.qpn(), context.mkey_7_0(), context.pd()),
            (0xff_ffff, 0x5a, 0x1234)
        );
        assert!(!command.pg_access() && !context.free() && !context.length64());
    }

    /// Relaxed ordering is set only for regions that peers cannot write, and only if the device supports it. Linux sets
    /// both bits if `IB_ACCESS_RELAXED_ORDERING` is requested and the device has them (mlx5_ib
    /// `set_mkc_access_pd_addr_fields`).
    #[test]
    fn order_is_relaxed_where_peers_may_not_write_and_the_device_can() {
        let both = Relaxed {
            write: true,
            read: true,
        };
        let local = Access::LOCAL_READ | Access::LOCAL_WRITE;
        for (access, windows, relaxed, expected) in [
            (local, false, both, (true, true)),
            (local | Access::REMOTE_READ, false, both, (true, true)),
            (local, true, both, (false, false)),
            (Access::LOCAL_READ, true, both, (true, true)),
            (local | Access::REMOTE_WRITE, false, both, (false, false)),
            (local | Access::REMOTE_ATOMIC, false, both, (false, false)),
            (local, false, Relaxed::default(), (false, false)),
            (
                local,
                false,
                Relaxed {
                    read: false,
                    ..both
                },
                (true, false),
            ),
        ] {
            let request = KeyRequest {
                pd: 1,
                address: 0x1000,
                bytes: 0x100,
                access,
                variant: 0,
                may_have_windows: windows,
            };
            let command = request.command(&of(0x1000, 0x1000, 0x100), false, relaxed);
            let context = command.memory_key_mkey_entry();
            let set = (
                context.relaxed_ordering_write(),
                context.relaxed_ordering_read(),
            );
            assert_eq!(set, expected, "{access:?}, windows {windows}, {relaxed:?}");
        }
    }

    /// Relaxed reads need the capability `relaxed_ordering_read`, or both `relaxed_ordering_read_pci_enabled` and the
    /// bit of PCI configuration. Relaxed writes need their own capability only.
    #[test]
    fn relaxed_reads_need_their_capability_or_that_of_pci_with_its_bit() {
        for (write, read, with_pci, by_pci, expected) in [
            (false, false, false, true, (false, false)),
            (true, false, false, false, (true, false)),
            (false, true, false, false, (false, true)),
            (false, false, true, false, (false, false)),
            (false, false, true, true, (false, true)),
            (true, true, true, false, (true, true)),
        ] {
            let mut general = CmdHcaCap::new();
            general
                .set_relaxed_ordering_write(write)
                .set_relaxed_ordering_read(read)
                .set_relaxed_ordering_read_pci_enabled(with_pci);
            let relaxed = Relaxed::of(&general, by_pci);
            let case = (write, read, with_pci, by_pci);
            assert_eq!((relaxed.write, relaxed.read), expected, "{case:?}");
        }
    }
}
