//! Device memory (MEMIC): a window at the end of the BAR, and what is taken of it.
//!
//! The processor writes and reads it as it does any BAR; keys of access mode MEMIC reach it for queue pairs. Software
//! names a range of the window, and the device takes a place in it: Linux gives ranges of whole pages of its own, so
//! that what two programs have never shares one (drivers/infiniband/hw/mlx5/dm.c).
//!
//! The device has a copy of each piece. The processor reads the BAR. A store of the processor changes the BAR at once,
//! and the copy when it is reported, in the order of all register writes; the device writes both. So a recording has
//! each store before the packets that carry its bytes.
//!
//! Inferred, since no public text says it: a piece holds zeros when it is taken; DEALLOC_MEMIC is refused while keys
//! reach the piece; `max_memic_size` limits all pieces together; a key that leaves its piece is a BAD_RESOURCE. Stores
//! while firmware boots and loses writes of registers are not modelled: they stay in the BAR until it listens.

use crate::objects::TableError;
use crate::profile::Profile;
use mlx_prm::{CmdHcaCap, DeviceMemCap};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of the window (`MEMIC_SIZE_LIMIT` of mlxconfig on a ConnectX-5), and of what may be taken at once and in all
/// (`max_dm_size` of ibv_devinfo).
const WINDOW_BYTES: u32 = 256 << 10;
pub const MOST: u32 = 128 << 10;
/// What is taken is a multiple of so many bytes, and begins at one (Linux `MLX5_MEMIC_BASE_SIZE`).
pub const LOG_UNIT: u32 = 6;
/// Largest alignment, in units: a page. Chosen.
pub const LOG_MOST_ALIGNMENT: u32 = 6;
/// The BAR of a function with such memory has as much again for all else, at least.
const LEAST_BAR_BYTES: usize = 2 * WINDOW_BYTES as usize;

/// The window, in bytes from the beginning of the BAR; empty if there is none.
pub fn window(profile: &Profile, general: &CmdHcaCap) -> Range<u64> {
    let end = profile.bar_bytes as u64;
    if general.device_memory() && profile.bar_bytes >= LEAST_BAR_BYTES {
        end - u64::from(WINDOW_BYTES)..end
    } else {
        end..end
    }
}

/// The capability page.
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

/// A piece that is taken.
#[derive(Clone, Debug)]
struct Taken {
    contents: Vec<u8>,
    /// Keys that reach it.
    keys: u32,
}

impl Taken {
    fn bytes(&self) -> u32 {
        // CAST: MOST at most.
        u32::try_from(self.contents.len()).unwrap_or(u32::MAX)
    }

    /// Returns where these bytes lie in `contents`; `None` unless the piece has all of them.
    fn range(&self, first: u64, bytes: u64) -> Option<Range<usize>> {
        let first = usize::try_from(first).ok()?;
        let end = first.checked_add(usize::try_from(bytes).ok()?)?;
        (first < self.contents.len() && end <= self.contents.len()).then_some(first..end)
    }
}

/// What is taken, by where it begins.
#[derive(Clone, Debug, Default)]
pub struct DeviceMemory {
    taken: BTreeMap<u64, Taken>,
}

impl DeviceMemory {
    /// What the pieces are called.
    pub const KIND: &'static str = "device memory";

    /// How many pieces are taken.
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    /// Bytes that are taken.
    pub fn bytes(&self) -> u32 {
        self.taken.values().map(Taken::bytes).sum()
    }

    /// All of it is free.
    pub fn clear(&mut self) {
        self.taken.clear();
    }

    /// Takes the first free place of a range, at a multiple of `alignment`. It holds zeros.
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

    /// Gives a piece back.
    ///
    /// # Errors
    /// There is none that begins there and has so many bytes, or keys reach it.
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

    /// Reads bytes of a piece. Returns false if no piece has all of them.
    pub fn read(&self, at: u64, out: &mut [u8]) -> bool {
        let piece = self.taken.range(..=at).next_back();
        let found = piece.and_then(|(&start, taken)| {
            let range = taken.range(at - start, out.len() as u64)?;
            taken.contents.get(range)
        });
        found.map(|bytes| out.copy_from_slice(bytes)).is_some()
    }

    /// Writes bytes of a piece. Returns false, and writes none of them, if no piece has all of them.
    pub fn write(&mut self, at: u64, data: &[u8]) -> bool {
        let Some((taken, range)) = self.piece_of(at, data.len() as u64) else {
            return false;
        };
        taken.contents[range].copy_from_slice(data);
        true
    }

    /// Returns the piece that has all of these bytes, and their places in it.
    fn piece_of(&mut self, at: u64, bytes: u64) -> Option<(&mut Taken, Range<usize>)> {
        let (&start, taken) = self.taken.range_mut(..=at).next_back()?;
        let range = taken.range(at - start, bytes)?;
        Some((taken, range))
    }

    /// A key reaches the piece that has all of these bytes. False: there is none.
    pub fn hold(&mut self, at: u64, bytes: u64) -> bool {
        let piece = self.piece_of(at, bytes);
        piece.map(|(taken, _)| taken.keys += 1).is_some()
    }

    /// A key that reached it is gone.
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
