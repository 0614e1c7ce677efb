//! Memory windows: keys for a part of a region that are given to peers and can be revoked at once.
//!
//! A window is an indirect key (PRM "Memory Key Context", KLM access mode): its table names a range of a region's key.
//! A command creates it free, that is without a range. A work request on a send queue (UMR) binds it. The request sets
//! range, rights and table at once, and gives the key a new variant, which invalidates the context that peers had
//! before. Binding it to nothing makes the key free again. `set_bind_wr` in providers/mlx5/qp.c of rdma-core sends the
//! same for its windows of type 1, which any queue pair of the protection domain may use.
//!
//! A device may start the work request after a UMR before the key has changed, unless that request carries a fence
//! (`umr_fence` of the capabilities). Peers learn a new context by a later message, so the fence is always needed,
//! except on a device that reports that it keeps the order itself. Linux has two kinds of this fence, "initiator small"
//! and "strong ordering". For a request that must also wait for RDMA Reads it uses the combined mode 4 in either case
//! (`get_fence` in drivers/infiniband/hw/mlx5/wr.c). This driver always uses mode 4.
//!
//! If a key has `en_rinval` set, a peer may invalidate the key by a Send that names it; the key is then free. Linux
//! sets the flag for its windows of type 2 and for keys of fast registration (`mlx5_ib_alloc_mw` in
//! drivers/infiniband/hw/mlx5/mr.c, `set_reg_mkey_seg` in wr.c). Any queue pair of the protection domain may use keys
//! of fast registration, like our windows. A bind states whether peers may invalidate the window. If no bind of the
//! window has ever allowed it, the bind leaves the flag out, and the work request is that of a window of type 1.
//!
//! One entry of the table covers less than 2 GiB. We use 1 GiB per entry, and the work request carries four entries, so
//! a window has at most 4 GiB.

mod parking;

use rdma_types::{Access, WindowTarget};
use zerocopy::IntoBytes;

use crate::device::Hca;
use crate::error::CmdError;
use crate::mkey;
use crate::wqe::{UNIT_BYTES, Unit};
use mlx_prm::{CreateMkeyIn, Klm, Mkc, UmrCtrlSeg};
pub use parking::WindowSnapshot;

/// Number of entries of a window's table, which take 64 bytes of a work request.
const ENTRIES: u32 = 4;
/// Maximum number of bytes that we let one entry cover. The length field of the device has 31 bits.
const ENTRY_BYTES: u64 = 1 << 30;
/// Maximum size of a window in bytes.
pub const MAX_BYTES: u64 = ENTRIES as u64 * ENTRY_BYTES;
/// `mkc.access_mode_1_0` of a key whose table names other keys.
const ACCESS_MODE_KLM: u32 = 2;
/// Maximum number of send queue blocks of a bind.
pub const BLOCKS: u16 = 3;
/// `umr_fence` of a device that keeps the order by itself (`MLX5_CAP_UMR_FENCE_NONE` in Linux).
const UMR_FENCE_NONE: u32 = 2;
/// Number of units of a UMR work request after its control segment if it binds to nothing: UMR control and key context
/// only, as in `set_bind_wr` of rdma-core.
const UNBIND_UNITS: usize = 7;
/// Number of units of a UMR work request after its control segment if it binds to a range: as above, and a table of
/// four units.
const BIND_UNITS: usize = UNBIND_UNITS + ENTRIES as usize;

/// Bits of `mkey_mask`: the fields of the key's context that a UMR changes (`MLX5_MKEY_MASK_*` in Linux
/// include/linux/mlx5/device.h).
mod mask {
    pub const LENGTH: u64 = 1 << 0;
    pub const START: u64 = 1 << 6;
    pub const REMOTE_INVALIDATE: u64 = 1 << 8;
    pub const KEY: u64 = 1 << 13;
    pub const LOCAL_WRITE: u64 = 1 << 18;
    pub const REMOTE_READ: u64 = 1 << 19;
    pub const REMOTE_WRITE: u64 = 1 << 20;
    pub const FREE: u64 = 1 << 29;
}

/// Units of a bind's work request behind its control segment.
#[derive(Clone, Copy, Debug)]
pub struct Body {
    units: [Unit; BIND_UNITS],
    count: usize,
}

impl Body {
    /// Returns the units in use.
    #[must_use]
    pub fn units(&self) -> &[Unit] {
        &self.units[..self.count]
    }
}

/// A memory window.
#[derive(Debug)]
pub struct Window {
    index: u32,
    /// Low bytes of the window's keys, in order of use. The order has all 256 values, so that an old key does not come
    /// again soon. It is random, so that a peer that had one key cannot predict the next one.
    order: Box<[u8; 256]>,
    /// Number of binds so far, modulo 256.
    binds: u8,
    /// True if the request after a bind must carry a fence.
    needs_fence: bool,
    /// True if some bind has allowed peers to invalidate the window. Each later bind then states whether they may.
    has_been_invalidatable: bool,
    /// True if the device has destroyed the window.
    gone: bool,
}

impl Window {
    /// Returns the window's current remote key.
    #[must_use]
    pub fn key(&self) -> u32 {
        self.key_after(self.binds)
    }

    /// Returns the remote key that the window has after the next bind.
    #[must_use]
    pub fn next_key(&self) -> u32 {
        self.key_after(self.binds.wrapping_add(1))
    }

    fn key_after(&self, binds: u8) -> u32 {
        self.index << 8 | u32::from(self.order[usize::from(binds)])
    }

    /// Updates the window's state after a bind to `target` was posted.
    pub(crate) fn advance(&mut self, target: &WindowTarget) {
        self.has_been_invalidatable |= may_be_invalidated(target);
        self.binds = self.binds.wrapping_add(1);
    }

    pub(crate) fn needs_fence(&self) -> bool {
        self.needs_fence
    }

    /// Returns the work request, without its control segment, that binds the window to `target`. A target of no bytes
    /// means that the window is bound to nothing.
    #[must_use]
    pub fn body(&self, target: &WindowTarget) -> Body {
        let mut control = UmrCtrlSeg::new();
        let mut context = Mkc::new();
        let mut table = [0_u8; ENTRIES as usize * UNIT_BYTES];
        control.set_inline(true).set_translation_offset_en(true);
        context.set_mkey_7_0(self.next_key() & 0xff);
        if target.bytes == 0 {
            control.set_mkey_mask(mask::FREE | mask::KEY);
            context.set_free(true);
        } else {
            control.set_klm_octwords(ENTRIES).set_mkey_mask(
                mask::LENGTH
                    | mask::START
                    | mask::KEY
                    | mask::LOCAL_WRITE
                    | mask::REMOTE_READ
                    | mask::REMOTE_WRITE
                    | mask::FREE
                    | if self.has_been_invalidatable || may_be_invalidated(target) {
                        mask::REMOTE_INVALIDATE
                    } else {
                        0
                    },
            );
            context
                .set_en_rinval(may_be_invalidated(target))
                .set_rr(target.access.contains(Access::REMOTE_READ))
                .set_rw(target.access.contains(Access::REMOTE_WRITE))
                .set_qpn(mkey::ANY_QPN)
                .set_start_addr(target.address)
                .set_len(target.bytes);
            let mut address = target.address;
            let mut left = target.bytes;
            for slot in table.as_chunks_mut::<UNIT_BYTES>().0 {
                let bytes = left.min(ENTRY_BYTES);
                if bytes == 0 {
                    break;
                }
                let mut entry = Klm::new();
                // CAST: `bytes` is at most 2^30.
                entry
                    .set_byte_count(bytes as u32)
                    .set_mkey(target.lmr_context)
                    .set_address(address);
                slot.copy_from_slice(entry.as_bytes());
                address += bytes;
                left -= bytes;
            }
        }
        let mut units = [Unit::from_bytes([0; UNIT_BYTES]); BIND_UNITS];
        let parts = [control.as_bytes(), context.as_bytes(), &table]
            .into_iter()
            .flat_map(|segment| segment.as_chunks::<UNIT_BYTES>().0);
        for (unit, part) in units.iter_mut().zip(parts) {
            *unit = Unit::from_bytes(*part);
        }
        let count = if target.bytes == 0 {
            UNBIND_UNITS
        } else {
            BIND_UNITS
        };
        Body { units, count }
    }
}

/// Returns whether peers may invalidate a window that is bound to `target`.
fn may_be_invalidated(target: &WindowTarget) -> bool {
    target.bytes != 0 && target.access.contains(Access::REMOTE_INVALIDATE)
}

/// Returns whether the device supports windows as we use them: it has windows, UMR may change indirect keys, and tables
/// of `ENTRIES` entries are possible.
#[must_use]
pub fn supported(hca: &Hca) -> bool {
    let general = hca.caps().general();
    hca.caps().memory_windows()
        && !general.umr_indirect_mkey_disabled()
        && general.max_indirection() >= 1
        && general.log_max_klm_list_size() >= ENTRIES.ilog2()
}

/// Returns whether the request after a bind must carry a fence.
pub(crate) fn needs_fence(hca: &Hca) -> bool {
    hca.caps().general().umr_fence() != UMR_FENCE_NONE
}

/// Creates a window that is bound to nothing.
///
/// # Errors
/// Device refusal.
pub fn create(hca: &mut Hca, pd: u32, order: Box<[u8; 256]>) -> Result<Window, CmdError> {
    let mut window = Window {
        index: 0,
        order,
        binds: 0,
        needs_fence: needs_fence(hca),
        has_been_invalidatable: false,
        gone: false,
    };
    let mut command = CreateMkeyIn::new();
    command
        .memory_key_mkey_entry_mut()
        .set_free(true)
        .set_umr_en(true)
        .set_access_mode_1_0(ACCESS_MODE_KLM)
        .set_lr(true)
        .set_qpn(mkey::ANY_QPN)
        .set_mkey_7_0(window.key())
        .set_pd(pd)
        .set_translations_octword_size(ENTRIES);
    window.index = hca.exec(&command)?.mkey_index();
    Ok(window)
}

/// Destroys a window, whether or not it is bound. A second call does nothing.
///
/// # Errors
/// Device refusal; the window is unchanged.
pub fn destroy(hca: &mut Hca, window: &mut Window) -> Result<(), CmdError> {
    if !window.gone {
        mkey::destroy(hca, window.index)?;
        window.gone = true;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a window whose first key ends in 0xff and whose second key ends in 0x07.
    fn window() -> Window {
        let mut order = Box::new(core::array::from_fn(|at| u8::try_from(at).expect("a byte")));
        order.swap(0, 0xff);
        order.swap(1, 7);
        Window {
            index: 0x12_3456,
            order,
            binds: 0,
            needs_fence: true,
            has_been_invalidatable: false,
            gone: false,
        }
    }

    fn bytes_of(target: &WindowTarget) -> Vec<u8> {
        window().body(target).units().as_bytes().to_vec()
    }

    /// A bind has the bytes of the documented segments, field by field as `set_umr_control_seg`, `set_umr_mkey_seg` and
    /// `set_umr_data_seg` of providers/mlx5/qp.c in rdma-core set them for a window of type 1.
    #[test]
    fn a_bind_has_the_bytes_of_the_documented_segments() {
        let bytes = bytes_of(&WindowTarget {
            lmr_context: 0x0a0b_0c0d,
            address: 0x7f00_1122_3344,
            bytes: 0x5566,
            access: Access::REMOTE_READ | Access::LOCAL_WRITE,
        });
        assert_eq!(bytes.len(), 176);
        let mut expected = [0_u8; 176];
        expected[0] = 0x90; // inline, translation offset
        expected[5] = 4; // octowords
        // The mask lacks the atomic bit, which a device with umr_modify_atomic_disabled refuses.
        expected[8..16].copy_from_slice(&0x201c_2041_u64.to_be_bytes());
        expected[48 + 2] = 0x10; // remote read
        expected[48 + 4..48 + 8].copy_from_slice(&[0xff, 0xff, 0xff, 0x07]); // any QP, the next variant
        expected[48 + 0x10..48 + 0x18].copy_from_slice(&0x7f00_1122_3344_u64.to_be_bytes());
        expected[48 + 0x18..48 + 0x20].copy_from_slice(&0x5566_u64.to_be_bytes());
        expected[112..116].copy_from_slice(&0x5566_u32.to_be_bytes());
        expected[116..120].copy_from_slice(&[0x0a, 0x0b, 0x0c, 0x0d]);
        expected[120..128].copy_from_slice(&0x7f00_1122_3344_u64.to_be_bytes());
        assert_eq!(bytes, expected);
    }

    #[test]
    fn the_keys_of_a_window_come_in_its_order_and_again_after_all_others() {
        let mut window = window();
        assert_eq!(
            (window.key(), window.next_key()),
            (0x1234_56ff, 0x1234_5607)
        );
        let nothing = WindowTarget {
            lmr_context: 0,
            address: 0,
            bytes: 0,
            access: Access::empty(),
        };
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..256 {
            assert!(seen.insert(window.key()), "{:#x} came before", window.key());
            let next = window.next_key();
            window.advance(&nothing);
            assert_eq!(window.key(), next);
        }
        assert_eq!(window.key(), 0x1234_56ff);
    }

    #[test]
    fn a_bind_to_nothing_frees_the_key_under_a_new_variant() {
        let bytes = bytes_of(&WindowTarget {
            lmr_context: 0x0a0b_0c0d,
            address: 0x1000,
            bytes: 0,
            access: Access::all(),
        });
        // The request has UMR control segment and key context, but no table.
        let mut expected = [0_u8; 112];
        expected[0] = 0x90;
        expected[8..16].copy_from_slice(&0x2000_2000_u64.to_be_bytes());
        expected[48] = 0x40; // free
        expected[48 + 7] = 0x07; // the next variant
        assert_eq!(bytes, expected);
    }

    /// A bind that allows peers to invalidate the window sets `en_rinval` and its mask bit (`MLX5_MKEY_MASK_EN_RINVAL`)
    /// as Linux does. Each later bind sets the mask bit too.
    #[test]
    fn a_bind_that_peers_may_undo_says_so_and_the_next_one_that_they_may_not() {
        let target = |access| WindowTarget {
            lmr_context: 7,
            address: 0x1000,
            bytes: 8,
            access,
        };
        let said = |window: &Window, access| {
            let bytes = window.body(&target(access)).units().as_bytes().to_vec();
            // Byte 6 of the mask has bits 15:8. Byte 12 of the context has the flags beside the protection domain.
            (bytes[8 + 6] & 1, bytes[48 + 12] & 1)
        };
        let mut window = window();
        let (may, may_not) = (Access::REMOTE_INVALIDATE, Access::REMOTE_READ);
        assert_eq!(said(&window, may_not), (0, 0));
        assert_eq!(said(&window, may), (1, 1));
        window.advance(&target(may));
        assert_eq!(said(&window, may_not), (1, 0));
    }

    #[test]
    fn a_long_window_takes_an_entry_for_each_gigabyte() {
        let bytes = bytes_of(&WindowTarget {
            lmr_context: 7,
            address: 0x1000,
            bytes: 2 * ENTRY_BYTES + 5,
            access: Access::REMOTE_WRITE,
        });
        let entries: Vec<(u32, u64)> = bytes[112..]
            .as_chunks::<16>()
            .0
            .iter()
            .map(|entry| {
                let entry = zerocopy::FromBytes::read_from_bytes(&entry[..]);
                let entry: Klm = entry.expect("16 bytes");
                (entry.byte_count(), entry.address())
            })
            .collect();
        let gib = 1_u32 << 30;
        assert_eq!(
            entries,
            [(gib, 0x1000), (gib, 0x4000_1000), (5, 0x8000_1000), (0, 0)]
        );
    }
}
