//! Device memory (MEMIC): a window at the end of the BAR, and the pieces of it that are allocated.
//!
//! The processor writes and reads device memory like the rest of the BAR. Queue pairs access it through keys of access
//! mode MEMIC. Software names a range of the window, and the device allocates a piece in this range. Linux names ranges
//! of whole pages that no other program uses, so that the pieces of two programs are never in one page
//! (drivers/infiniband/hw/mlx5/dm.c).
//!
//! The device has a copy of each piece. The processor reads the BAR. A store of the processor changes the BAR at once.
//! It changes the copy when the store is reported, in the order of all register writes. The device writes to both. So
//! a recording has each store before the packets that carry its bytes.
//!
//! Inferred, since no public text says it: a piece holds zeros when it is allocated; DEALLOC_MEMIC is refused while
//! keys refer to the piece; `max_memic_size` limits the sum of all pieces; a key that exceeds its piece is refused with
//! BAD_RESOURCE. While firmware boots, register writes are lost. Stores at that time are not simulated: they stay in
//! the BAR.

use crate::objects::TableError;
use crate::profile::Profile;
use mlx_prm::{CmdHcaCap, DeviceMemCap};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of the window (`MEMIC_SIZE_LIMIT` of mlxconfig on a ConnectX-5).
const WINDOW_BYTES: u32 = 256 << 10;
/// Maximum number of bytes that may be allocated, at once and in total (`max_dm_size` of ibv_devinfo).
pub const MOST: u32 = 128 << 10;
/// Log2 of the unit of size and address of a piece, in bytes (Linux `MLX5_MEMIC_BASE_SIZE`).
pub const LOG_UNIT: u32 = 6;
/// Log2 of the largest alignment, in units: one page. The value is chosen, not taken from hardware.
pub const LOG_MOST_ALIGNMENT: u32 = 6;
/// Minimum size of the BAR of a function with device memory: the window, and as much again for everything else.
const LEAST_BAR_BYTES: usize = 2 * WINDOW_BYTES as usize;

/// Returns the window as offsets in the BAR, in bytes. The range is empty if there is no window.
pub fn window(profile: &Profile, general: &CmdHcaCap) -> Range<u64> {
    let end = profile.bar_bytes as u64;
    if general.device_memory() && profile.bar_bytes >= LEAST_BAR_BYTES {
        end - u64::from(WINDOW_BYTES)..end
    } else {
        end..end
    }
}

/// Returns the capability page.
pub fn page(window: &Range<u64>) -> DeviceMemCap {
    let mut page = DeviceMemCap::new();
    if !window.is_empty() {
        page.set_memic(true)
            .set_log_min_memic_alloc_size(LOG_UNIT)
            .set_log_max_memic_addr_alignment(LOG_MOST_ALIGNMENT)
            .set_memic_bar_start_addr(window.start)
            .set_memic_bar_size(WINDOW_BYTES)
            .set_max_memic_size(MOST);
    }
    page
}

/// An allocated piece.
#[derive(Clone, Debug)]
struct Taken {
    contents: Vec<u8>,
    /// Number of keys that refer to the piece.
    keys: u32,
}

impl Taken {
    fn bytes(&self) -> u32 {
        // CAST: a piece has at most MOST bytes.
        u32::try_from(self.contents.len()).unwrap_or(u32::MAX)
    }

    /// Returns the range of these bytes in `contents`, if the piece contains all of them.
    fn range(&self, first: u64, bytes: u64) -> Option<Range<usize>> {
        let first = usize::try_from(first).ok()?;
        let end = first.checked_add(usize::try_from(bytes).ok()?)?;
        (first < self.contents.len() && end <= self.contents.len()).then_some(first..end)
    }
}

/// The allocated pieces, by offset in the BAR.
#[derive(Clone, Debug, Default)]
pub struct DeviceMemory {
    taken: BTreeMap<u64, Taken>,
}

impl DeviceMemory {
    /// Name of the object kind in reports.
    pub const KIND: &'static str = "device memory";

    /// Returns the number of allocated pieces.
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// Returns the number of allocated bytes.
    pub fn bytes(&self) -> u32 {
        self.taken.values().map(Taken::bytes).sum()
    }

    /// Frees all pieces.
    pub fn clear(&mut self) {
        self.taken.clear();
    }

    /// Allocates a piece of zeros in the first free part of a range, at a multiple of `alignment`. Returns its offset
    /// in the BAR; `None` if no part is large enough.
    pub fn take(&mut self, range: Range<u64>, bytes: u32, alignment: u64) -> Option<u64> {
        let mut at = range.start.next_multiple_of(alignment);
        for (&start, taken) in &self.taken {
            let end = start + u64::from(taken.bytes());
            if start < at + u64::from(bytes) && end > at {
                at = end.next_multiple_of(alignment);
            }
        }
        if at + u64::from(bytes) > range.end {
            return None;
        }
        let contents = vec![0; usize::try_from(bytes).ok()?];
        self.taken.insert(at, Taken { contents, keys: 0 });
        Some(at)
    }

    /// Frees a piece.
    ///
    /// # Errors
    /// There is no piece with this offset and size, or keys refer to it.
    pub fn give_back(&mut self, at: u64, bytes: u32) -> Result<(), TableError> {
        match self.taken.get(&at) {
            Some(taken) if taken.bytes() != bytes => Err(TableError::Unknown),
            Some(taken) if taken.keys > 0 => Err(TableError::Referenced(taken.keys)),
            Some(_) => {
                self.taken.remove(&at);
                Ok(())
            }
            None => Err(TableError::Unknown),
        }
    }

    /// Reads bytes of a piece. Returns false if no piece contains all of them.
    pub fn read(&self, at: u64, out: &mut [u8]) -> bool {
        let piece = self.taken.range(..=at).next_back();
        let found = piece.and_then(|(&start, taken)| {
            let range = taken.range(at - start, out.len() as u64)?;
            taken.contents.get(range)
        });
        found.map(|bytes| out.copy_from_slice(bytes)).is_some()
    }

    /// Writes bytes of a piece. Returns false and writes nothing if no piece contains all of them.
    pub fn write(&mut self, at: u64, data: &[u8]) -> bool {
        let Some((taken, range)) = self.piece_of(at, data.len() as u64) else {
            return false;
        };
        taken.contents[range].copy_from_slice(data);
        true
    }

    /// Returns the piece that contains all of these bytes, and their range in the piece.
    fn piece_of(&mut self, at: u64, bytes: u64) -> Option<(&mut Taken, Range<usize>)> {
        let (&start, taken) = self.taken.range_mut(..=at).next_back()?;
        let range = taken.range(at - start, bytes)?;
        Some((taken, range))
    }

    /// Counts a key that refers to the piece with all of these bytes. Returns false if there is no such piece.
    pub fn hold(&mut self, at: u64, bytes: u64) -> bool {
        let piece = self.piece_of(at, bytes);
        piece.map(|(taken, _)| taken.keys += 1).is_some()
    }

    /// Subtracts a destroyed key from the number of keys that refer to the piece with this byte.
    pub fn release(&mut self, at: u64) {
        if let Some((_, taken)) = self.taken.range_mut(..=at).next_back() {
            taken.keys = taken.keys.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_aligned_and_in_its_range() {
        let mut memory = DeviceMemory::default();
        assert_eq!(memory.take(0x1000..0x2000, 64, 64), Some(0x1000));
        assert_eq!(memory.take(0x1000..0x2000, 64, 256), Some(0x1100));
        assert_eq!(memory.take(0x1000..0x2000, 192, 64), Some(0x1040));
        assert_eq!(memory.take(0x1000..0x2000, 3776, 64), Some(0x1140));
        assert_eq!(memory.take(0x1000..0x2000, 64, 64), None);
        assert_eq!(memory.take(0x2000..0x3000, 0x1000, 64), Some(0x2000));
        assert_eq!(memory.bytes(), 0x2000);
        assert!(memory.read(0x1040, &mut [1; 192]) && !memory.read(0x1040, &mut [1; 193]));
        assert!(!memory.read(0x3000, &mut [1; 1]));
    }

    #[test]
    fn a_piece_that_keys_reach_is_not_given_back() {
        let mut memory = DeviceMemory::default();
        assert_eq!(memory.take(0x1000..0x2000, 128, 64), Some(0x1000));
        assert!(memory.hold(0x1040, 64));
        let held = Err(TableError::Referenced(1));
        assert_eq!(memory.give_back(0x1000, 128), held);
        memory.release(0x1040);
        assert_eq!(memory.give_back(0x1000, 128), Ok(()));
        assert_eq!(memory.give_back(0x1000, 128), Err(TableError::Unknown));
    }
}
