//! Access to a region by system calls: always for configuration space, and for the unmapped parts of a BAR.
//!
//! The kernel virtualises configuration space, so it has no mapping. A naturally aligned read or write of 1, 2 or 4
//! bytes reaches the device as one access; older kernels split an access of 8 bytes into two.

use std::fs::File;
use std::sync::Arc;

use super::error::{VfioError, transfer_advice};
use super::region::Region;
use super::sys::{System, errno_of};
use crate::error::ErrnoText;

/// A region of the device's file, accessed by `pread` and `pwrite`.
pub(crate) struct Window {
    pub(super) address: String,
    pub(super) system: Arc<dyn System>,
    /// File of the device; this reference keeps the device open.
    pub(super) device: Arc<File>,
    pub(crate) region: Region,
}

impl Window {
    /// Reads bytes at an offset of the region.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), VfioError> {
        let bytes = out.len();
        let place = self.place("pread", offset, bytes)?;
        let result = self.system.read_at(&self.device, place, out);
        self.check("pread", offset, bytes, result)
    }

    /// Writes bytes at an offset of the region.
    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<(), VfioError> {
        let place = self.place("pwrite", offset, data.len())?;
        let result = self.system.write_at(&self.device, place, data);
        self.check("pwrite", offset, data.len(), result)
    }

    /// Checks that the bytes are inside the region, and returns their offset in the file.
    fn place(&self, operation: &'static str, offset: u64, bytes: usize) -> Result<u64, VfioError> {
        let inside = offset
            .checked_add(bytes as u64)
            .is_some_and(|end| end <= self.region.bytes);
        if inside {
            return Ok(self.region.offset + offset);
        }
        let reason = format!("the region has {:#x} bytes", self.region.bytes);
        Err(self.failed(operation, offset, bytes, reason))
    }

    fn check(
        &self,
        operation: &'static str,
        offset: u64,
        bytes: usize,
        result: std::io::Result<usize>,
    ) -> Result<(), VfioError> {
        match result {
            Ok(moved) if moved == bytes => Ok(()),
            Ok(moved) => {
                let reason = format!("only {moved} bytes moved");
                Err(self.failed(operation, offset, bytes, reason))
            }
            Err(error) => {
                let errno = errno_of(&error);
                let reason = format!("{}: {}", ErrnoText(errno), transfer_advice(errno));
                Err(self.failed(operation, offset, bytes, reason))
            }
        }
    }

    fn failed(
        &self,
        operation: &'static str,
        offset: u64,
        bytes: usize,
        reason: String,
    ) -> VfioError {
        VfioError::Transfer {
            address: self.address.clone(),
            operation,
            region: self.region.index,
            offset,
            bytes,
            reason,
        }
    }
}
