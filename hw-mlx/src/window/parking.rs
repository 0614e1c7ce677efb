//! Memory windows of a function that is handed over to another process.

use mlx_prm::Opcode;

use super::{ACCESS_MODE_KLM, Window, needs_fence};
use crate::device::{Hca, ParkingHca};
use crate::error::{ResumeError, ask_twice};
use crate::mkey;

/// Name of the table in errors.
const TABLE: &str = "a memory window";

/// A memory window.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct WindowSnapshot {
    /// Index of its keys.
    pub index: u32,
    /// Low bytes of its keys, in order of use: all 256 values.
    #[serde(with = "serde_bytes")]
    pub order: [u8; 256],
    /// Number of binds so far, modulo 256.
    pub binds: u8,
    /// True if some bind has allowed peers to invalidate the window.
    pub has_been_invalidatable: bool,
}

impl Window {
    /// Describes the window for another process. Binds that are outstanding belong to their queue pair.
    #[must_use]
    pub fn park(self, _at_quiet_point: &ParkingHca) -> WindowSnapshot {
        WindowSnapshot {
            index: self.index,
            order: *self.order,
            binds: self.binds,
            has_been_invalidatable: self.has_been_invalidatable,
        }
    }

    /// Makes the window again, and compares it with the device's. The device's key is that of one of the last
    /// `outstanding_binds` + 1 binds.
    ///
    /// # Errors
    /// [`ResumeError`]: the order has not all values, or the device has no such window.
    pub fn resume(
        hca: &mut Hca,
        snapshot: &WindowSnapshot,
        outstanding_binds: u8,
    ) -> Result<Self, ResumeError> {
        let WindowSnapshot {
            index,
            ref order,
            binds,
            has_been_invalidatable,
        } = *snapshot;
        let mut values = [false; 256];
        for value in order.iter() {
            values[usize::from(*value)] = true;
        }
        if values.contains(&false) {
            return Err(ResumeError::snapshot(
                TABLE,
                format!("window {index:#x} has not all variants in its order"),
            ));
        }
        let window = Self {
            index,
            order: Box::new(*order),
            binds,
            needs_fence: needs_fence(hca),
            has_been_invalidatable,
            gone: false,
        };
        let is_recent = |variant| {
            (0..=outstanding_binds)
                .any(|ago| window.key_after(binds.wrapping_sub(ago)) & 0xff == variant)
        };
        ask_twice(|| {
            let context = mkey::query(hca, index)?;
            let (variant, mode) = (context.mkey_7_0(), context.access_mode_1_0());
            if is_recent(variant) && mode == ACCESS_MODE_KLM && context.umr_en() {
                return Ok(());
            }
            Err(ResumeError::changed(format!(
                "key {index:#x} is not the window with key {:#x}: mkey_7_0 {variant:#x}, access_mode_1_0 {mode}, umr_en {}",
                window.key(),
                context.umr_en()
            )))
        })?;
        hca.count_resumed(Opcode::CREATE_MKEY, index)?;
        Ok(window)
    }
}
