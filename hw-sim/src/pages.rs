//! Memory that the firmware borrows from the host, page by page.
//!
//! The firmware keeps its own data in 4 KiB pages of host memory. It reports the number of pages that it needs to boot,
//! to be initialised and later (QUERY_PAGES, or a page request event). Software gives pages with MANAGE_PAGES and takes
//! them back after TEARDOWN_HCA. Each page is owned by exactly one side at any time.
//!
//! The simulator does not need the memory. It detects errors that have worse consequences on hardware: it fills every
//! page that it is given with a pattern, and checks the pattern when it returns the page ([`PageProfile::verify`]). If
//! the driver wrote to a page that it had given, the simulator reports a driver bug. If the driver unmapped such a
//! page, the function gets health syndrome 0x0a, as after an ICM fetch that failed.
//!
//! `wanted` is the number of pages that the firmware has requested so far. Software cannot give more pages. While the
//! function is initialised, software can take back only pages beyond that number.

use crate::iommu::{Iommu, Who};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use zerocopy::IntoBytes;

/// Size of a firmware page in bytes.
pub const PAGE_BYTES: usize = 4096;

/// Numbers of pages that the firmware needs at each stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageProfile {
    /// Pages needed before any other command (QUERY_PAGES op_mod 1).
    pub boot: u32,
    /// Pages needed before INIT_HCA (op_mod 2).
    pub init: u32,
    /// Pages needed after INIT_HCA (op_mod 3).
    pub regular: u32,
    /// Pages that an event requests as soon as an EQ for page requests is armed.
    pub runtime: u32,
    /// True if the simulator fills pages with a pattern and verifies the pattern when it returns them.
    pub verify: bool,
    /// True if the pages for boot and for INIT_HCA must each come in one MANAGE_PAGES. Every stock driver does so
    /// (Linux `pagealloc.c` `give_pages`, rdma-core `mlx5_vfio_give_pages`, Snabb), but the PRM allows several
    /// commands, and Linux' VFIO self test gives 512 pages at a time to a ConnectX-7.
    pub in_one_command: bool,
    /// Maximum number of pages that one MANAGE_PAGES take returns; 0 means no limit. Drivers repeat the command until
    /// no page is left (Linux `pagealloc.c` `mlx5_reclaim_startup_pages`).
    pub given_back: u32,
}

impl PageProfile {
    /// Firmware that needs no pages.
    pub const NONE: Self = Self {
        boot: 0,
        init: 0,
        regular: 0,
        runtime: 0,
        verify: true,
        in_one_command: false,
        given_back: 0,
    };
}

/// Reason for which the firmware refused pages that software gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveError {
    /// Software gave more pages than the firmware requested.
    TooMany,
    /// Software gave only a part of the pages for a stage that must come in one command.
    Pieces {
        /// Number of pages that the firmware still needed before this command.
        missing: usize,
    },
    /// This page address is not 4 KiB aligned.
    Address(u64),
    /// The device cannot access the page at this address.
    Unreachable(u64),
    /// The page at this address was given already.
    Owned(u64),
}

/// Error found in a page that software takes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeFinding {
    /// Software wrote to the page at this address while the firmware owned it.
    Modified(u64),
    /// The device can no longer read the page at this address.
    Unreachable(u64),
}

/// Account of the pages that the firmware owns and has requested.
#[derive(Debug)]
pub struct FirmwarePages {
    profile: PageProfile,
    owned: BTreeSet<u64>,
    wanted: usize,
    /// True between INIT_HCA and TEARDOWN_HCA.
    in_use: bool,
    /// Number of pages that events have requested and software has still to give. If negative: number of pages that
    /// events have offered and software has still to take back.
    unanswered: i64,
    /// True if the event for the profile's `runtime` pages was sent.
    pub runtime_requested: bool,
}

impl FirmwarePages {
    /// Returns an account without pages.
    pub fn new(profile: PageProfile) -> Self {
        Self {
            profile,
            owned: BTreeSet::new(),
            wanted: 0,
            in_use: false,
            unanswered: 0,
            runtime_requested: false,
        }
    }

    /// Resets the account, and drops the pages without a check.
    pub fn reset(&mut self) {
        *self = Self::new(self.profile);
    }

    /// Returns the number of pages that the firmware owns.
    pub fn held(&self) -> usize {
        self.owned.len()
    }

    /// Returns the number of pages that the firmware owns and has not offered back.
    pub fn pages_not_offered(&self) -> usize {
        self.owned.len().min(self.wanted)
    }

    /// Handles QUERY_PAGES boot: returns the number of pages still missing to boot.
    pub fn query_boot(&mut self) -> u32 {
        self.want(self.profile.boot)
    }

    /// Handles QUERY_PAGES init: returns the number of pages still missing for INIT_HCA.
    pub fn query_init(&mut self) -> u32 {
        self.want(self.profile.boot + self.profile.init)
    }

    /// Handles QUERY_PAGES regular: returns the number of additional pages that the firmware requests.
    pub fn query_regular(&mut self) -> u32 {
        self.want(self.profile.boot + self.profile.init + self.profile.regular)
    }

    /// Returns whether the boot pages have been given.
    pub fn booted(&self) -> bool {
        self.owned.len() >= self.profile.boot as usize
    }

    /// Returns whether the pages for INIT_HCA have been given.
    pub fn ready_to_init(&self) -> bool {
        self.owned.len() >= (self.profile.boot + self.profile.init) as usize
    }

    /// Handles INIT_HCA: marks the given pages as in use.
    pub fn initialised(&mut self) {
        self.wanted = self.wanted.max(self.owned.len());
        self.in_use = true;
    }

    /// Handles TEARDOWN_HCA: marks all pages as no longer in use.
    pub fn torn_down(&mut self) {
        self.wanted = 0;
        self.in_use = false;
        self.unanswered = 0;
        self.runtime_requested = false;
    }

    /// Counts a page request event for `pages` pages; a negative number offers pages back.
    pub fn request(&mut self, pages: i32) {
        self.unanswered += i64::from(pages);
        if let Ok(more) = usize::try_from(pages) {
            self.wanted += more;
        } else {
            self.wanted = self.wanted.saturating_sub(pages.unsigned_abs() as usize);
        }
    }

    /// Returns whether software still has to give pages that an event requested.
    pub fn starving(&self) -> bool {
        self.unanswered > 0
    }

    /// Handles MANAGE_PAGES op_mod 0: software cannot give the pages that an event requested.
    pub fn cannot_give(&mut self) {
        if self.unanswered > 0 {
            let missing = usize::try_from(self.unanswered).unwrap_or(0);
            self.wanted = self.wanted.saturating_sub(missing);
            self.unanswered = 0;
        }
    }

    /// Handles MANAGE_PAGES give: accepts all pages or none.
    ///
    /// # Errors
    /// [`GiveError`]: software gave more pages than requested, or a part of pages that must come in one command, or a
    /// page that is not aligned, already given, or not accessible to the device. The first such page is reported.
    pub fn give(&mut self, iommu: &mut Iommu, addresses: &[u64]) -> Result<(), GiveError> {
        if self.owned.len() + addresses.len() > self.wanted {
            return Err(GiveError::TooMany);
        }
        let missing = self.wanted - self.owned.len();
        if self.profile.in_one_command && !self.in_use && addresses.len() < missing {
            return Err(GiveError::Pieces { missing });
        }
        let mut fresh = BTreeSet::new();
        for &address in addresses {
            // Zero is a valid address; rdma-core's driver gives it as its first page.
            if address % PAGE_BYTES as u64 != 0 {
                return Err(GiveError::Address(address));
            }
            if self.owned.contains(&address) || !fresh.insert(address) {
                return Err(GiveError::Owned(address));
            }
            if !iommu.reaches(address, PAGE_BYTES) {
                return Err(GiveError::Unreachable(address));
            }
        }
        if self.profile.verify {
            for &address in &fresh {
                iommu
                    .write(address, pattern(address).as_bytes(), Who::FirmwarePage)
                    .map_err(|_| GiveError::Unreachable(address))?;
            }
        }
        self.unanswered = (self.unanswered - addresses.len() as i64).max(self.unanswered.min(0));
        self.owned.append(&mut fresh);
        Ok(())
    }

    /// Handles MANAGE_PAGES take: returns at most `most` pages and the errors found in them. Returns fewer pages if the
    /// firmware needs the others, or if the profile limits the number per command.
    pub fn take(
        &mut self,
        iommu: &mut Iommu,
        most: usize,
        in_use: bool,
    ) -> (Vec<u64>, Vec<TakeFinding>) {
        let spare = if in_use {
            self.owned.len().saturating_sub(self.wanted)
        } else {
            self.owned.len()
        };
        let most = match self.profile.given_back {
            0 => most,
            limit => most.min(limit as usize),
        };
        let taken: Vec<u64> = self
            .owned
            .iter()
            .rev()
            .take(most.min(spare))
            .copied()
            .collect();
        let mut findings = Vec::new();
        for address in &taken {
            self.owned.remove(address);
            if self.profile.verify {
                findings.extend(verify(iommu, *address));
            }
        }
        if self.unanswered < 0 {
            self.unanswered = (self.unanswered + taken.len() as i64).min(0);
        }
        (taken, findings)
    }

    fn want(&mut self, total: u32) -> u32 {
        self.wanted = self.wanted.max(total as usize);
        total.saturating_sub(u32::try_from(self.owned.len()).unwrap_or(u32::MAX))
    }
}

/// Returns the contents of a page while the firmware owns it: one repeated word that depends on the page's address.
fn pattern(address: u64) -> [u64; PAGE_BYTES / 8] {
    [(address.rotate_left(23) ^ 0x5a5a_a5a5_c3c3_3c3c).to_be(); PAGE_BYTES / 8]
}

fn verify(iommu: &mut Iommu, address: u64) -> Option<TakeFinding> {
    let mut page = [0_u64; PAGE_BYTES / 8];
    if iommu
        .read(address, page.as_mut_bytes(), Who::FirmwarePage)
        .is_err()
    {
        return Some(TakeFinding::Unreachable(address));
    }
    (page != pattern(address)).then_some(TakeFinding::Modified(address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use driver::SharedMemory;

    fn firmware() -> (FirmwarePages, Iommu, SharedMemory) {
        let memory = SharedMemory::anonymous(8 * PAGE_BYTES).unwrap();
        let mut iommu = Iommu::default();
        iommu.set_bus_master(true);
        iommu
            .map(0x1000, memory.clone(), 0, 8 * PAGE_BYTES)
            .unwrap();
        let profile = PageProfile {
            boot: 2,
            init: 2,
            regular: 0,
            runtime: 0,
            verify: true,
            in_one_command: false,
            given_back: 0,
        };
        (FirmwarePages::new(profile), iommu, memory)
    }

    #[test]
    fn pages_beyond_the_request_are_refused() {
        let (mut pages, mut iommu, _memory) = firmware();
        assert_eq!(
            pages.give(&mut iommu, &[0x1000]),
            Err(GiveError::TooMany),
            "nothing was asked for"
        );
        assert_eq!(pages.query_boot(), 2);
        assert_eq!(
            pages.give(&mut iommu, &[0x1000, 0x2000, 0x3000]),
            Err(GiveError::TooMany)
        );
        assert_eq!(pages.give(&mut iommu, &[0x1000, 0x2000]), Ok(()));
        assert_eq!(pages.query_boot(), 0);
    }

    /// If all pages of a stage must come in one command, the firmware refuses a part of them. No stock driver splits
    /// the pages for a stage.
    #[test]
    fn a_part_of_the_missing_pages_is_refused_if_all_must_come_at_once() {
        let (mut pages, mut iommu, _memory) = firmware();
        pages.profile.in_one_command = true;
        pages.query_boot();
        assert_eq!(
            pages.give(&mut iommu, &[0x1000]),
            Err(GiveError::Pieces { missing: 2 })
        );
        assert_eq!(pages.give(&mut iommu, &[0x1000, 0x2000]), Ok(()));
        pages.query_init();
        assert_eq!(pages.give(&mut iommu, &[0x3000, 0x4000]), Ok(()));
        pages.initialised();
        pages.request(2);
        assert_eq!(
            pages.give(&mut iommu, &[0x5000]),
            Ok(()),
            "at run time in any number"
        );
    }

    #[test]
    fn bad_addresses_are_refused_and_nothing_is_kept() {
        let (mut pages, mut iommu, _memory) = firmware();
        pages.query_boot();
        assert_eq!(
            pages.give(&mut iommu, &[0x1000, 0]),
            Err(GiveError::Unreachable(0)),
            "an address, but nothing is there"
        );
        assert_eq!(
            pages.give(&mut iommu, &[0x1000, 0x2800]),
            Err(GiveError::Address(0x2800))
        );
        assert_eq!(
            pages.give(&mut iommu, &[0x1000, 0x1000]),
            Err(GiveError::Owned(0x1000))
        );
        assert_eq!(
            pages.give(&mut iommu, &[0x1000, 0x90_0000]),
            Err(GiveError::Unreachable(0x90_0000))
        );
        assert_eq!(pages.held(), 0);
    }

    #[test]
    fn a_write_into_a_firmware_page_is_detected_when_it_is_taken_back() {
        let (mut pages, mut iommu, memory) = firmware();
        pages.query_boot();
        pages.give(&mut iommu, &[0x1000, 0x2000]).unwrap();
        memory.store_u8(PAGE_BYTES + 7, 0);
        let (taken, findings) = pages.take(&mut iommu, 100, false);
        assert_eq!(taken, [0x2000, 0x1000]);
        assert_eq!(findings, [TakeFinding::Modified(0x2000)]);
    }

    #[test]
    fn only_spare_pages_can_be_taken_while_in_use() {
        let (mut pages, mut iommu, _memory) = firmware();
        pages.query_init();
        pages
            .give(&mut iommu, &[0x1000, 0x2000, 0x3000, 0x4000])
            .unwrap();
        pages.initialised();
        assert!(pages.take(&mut iommu, 4, true).0.is_empty());
        pages.request(-1);
        assert_eq!(pages.take(&mut iommu, 4, true).0.len(), 1);
        pages.torn_down();
        assert_eq!(pages.take(&mut iommu, 4, false).0.len(), 3);
    }
}
