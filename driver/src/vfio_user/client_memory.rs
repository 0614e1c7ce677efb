//! Memory that a client makes accessible to the device: mappings by I/O address, and the files that contain the memory.
//!
//! A virtual machine with its own IOMMU maps its memory page by page, in thousands of pieces of one file. So the server
//! maps each file into its address space once and as a whole, with the first piece, and unmaps it with the last. A
//! mapping is then an offset in the file. All lookups are in trees.
//!
//! A file that has grown is imported again when a piece is beyond the end of its longest import. Mappings in a shorter
//! import keep it, so it still counts.
//!
//! The rules are those of the kernel's TYPE1v2 IOMMU: mappings do not overlap, an unmapping removes every mapping
//! inside its range and splits none, and unmapping a range without mappings succeeds.
//!
//! A client may map memory without a descriptor. If the client has a twin socket, that memory is accessed by
//! messages. For other clients (QEMU: ROMs, device memory) the mapping is recorded here but not made at the device: a
//! DMA to it fails as one to an unmapped address.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use nix::errno::Errno;

use super::message::{DMA_READ_ONLY, DMA_READ_WRITE, DmaMap};
use crate::device::{Device, MessageMemory};
use crate::error::MemoryError;
use crate::memory::SharedMemory;
use crate::page::DMA_PAGE;

/// Maximum number of mappings of a client at a time. QEMU does not count its mappings: behind a virtual IOMMU a single
/// completion queue of 2^22 entries takes 65,536 mappings of one page. The limit is the number of pages in 4 GiB. A
/// mapping takes about 60 bytes here and as many in the device, so a client can occupy 128 MiB.
pub(super) const MAX_MAPPINGS: usize = 1 << 20;
/// Maximum number of imports of a client at a time. Each import is a mapping of this process. The kernel allows a
/// process 65,530 mappings (`vm.max_map_count`), those of threads and of the allocator among them. A driver whose
/// memory is in chunks of 64 MiB, one file each, can map 64 GiB.
pub(super) const MAX_IMPORTS: usize = 1024;
/// Maximum size in bytes of all imports of a client together, which limits the address space that they take.
const MAX_FILE_BYTES: u64 = 1 << 42;

/// Device number and inode number of a file, and the length of its import in bytes. The imports of a file have
/// different lengths, because a file that was imported cannot shrink.
type ImportId = (u64, u64, u64);

struct Imported {
    memory: SharedMemory,
    /// Number of mappings that are in this import.
    users: usize,
}

/// Memory behind a mapping.
#[derive(Clone, Copy)]
enum Backing {
    File(ImportId),
    /// Memory of the client, accessed by messages.
    Messages,
    /// Inaccessible memory: the device has no such mapping.
    Nothing,
}

struct Mapped {
    bytes: usize,
    backing: Backing,
}

/// Mappings of one client.
#[derive(Default)]
pub(super) struct ClientMemory {
    mappings: BTreeMap<u64, Mapped>,
    imports: BTreeMap<ImportId, Imported>,
}

impl ClientMemory {
    /// Makes the mapping that a message requests. If the memory has no descriptor, `asked` accesses it by messages.
    pub(super) fn map(
        &mut self,
        device: &dyn Device,
        request: &DmaMap,
        fd: Option<OwnedFd>,
        asked: Option<Arc<dyn MessageMemory>>,
    ) -> Result<(), Errno> {
        let (iova, size, offset) = (request.iova.get(), request.size.get(), request.offset.get());
        let whole_pages = [iova, size, offset]
            .iter()
            .all(|at| at.is_multiple_of(DMA_PAGE as u64));
        let read_only = match request.flags.get() {
            DMA_READ_WRITE => false,
            DMA_READ_ONLY => true,
            _ => return Err(Errno::EINVAL),
        };
        let end = iova.checked_add(size).ok_or(Errno::EINVAL)?;
        if !whole_pages || size == 0 {
            return Err(Errno::EINVAL);
        }
        let before = self.mappings.range(..end).next_back();
        if before.is_some_and(|(&start, mapped)| start + mapped.bytes as u64 > iova) {
            return Err(Errno::EEXIST);
        }
        if self.mappings.len() >= MAX_MAPPINGS {
            return Err(Errno::ENOSPC);
        }
        let bytes = usize::try_from(size).map_err(|_| Errno::ENOMEM)?;
        let refused = |reason: String| {
            tracing::warn!("{}: DMA_MAP: {reason}", device.name());
            Errno::EINVAL
        };
        let backing = match (fd, asked) {
            (None, None) => {
                tracing::debug!(
                    "{}: DMA_MAP {iova:#x}+{size:#x} has no descriptor: not reachable",
                    device.name()
                );
                Backing::Nothing
            }
            (None, Some(client)) => {
                device
                    .dma_map_by_message(iova, client, bytes, !read_only)
                    .map_err(refused)?;
                Backing::Messages
            }
            (Some(fd), _) => {
                let (id, memory) = self.import(device, fd, offset, size)?;
                let offset = usize::try_from(offset).map_err(|_| Errno::EINVAL)?;
                let mapped = if read_only {
                    device.dma_map_read_only(iova, memory, offset, bytes)
                } else {
                    device.dma_map(iova, memory, offset, bytes)
                };
                if let Err(reason) = mapped {
                    self.forget_unused(id);
                    return Err(refused(reason));
                }
                if let Some(imported) = self.imports.get_mut(&id) {
                    imported.users += 1;
                }
                Backing::File(id)
            }
        };
        self.mappings.insert(iova, Mapped { bytes, backing });
        Ok(())
    }

    /// Removes every mapping inside a range. Returns their total length in bytes.
    pub(super) fn unmap(
        &mut self,
        device: &dyn Device,
        iova: u64,
        size: u64,
    ) -> Result<u64, Errno> {
        let end = iova.checked_add(size).ok_or(Errno::EINVAL)?;
        if size == 0 || !(iova | size).is_multiple_of(DMA_PAGE as u64) {
            return Err(Errno::EINVAL);
        }
        let reaches = |start: u64, mapped: &Mapped, to: u64| start + mapped.bytes as u64 > to;
        let below = self.mappings.range(..iova).next_back();
        let last = self.mappings.range(..end).next_back();
        if below.is_some_and(|(&start, mapped)| reaches(start, mapped, iova))
            || last.is_some_and(|(&start, mapped)| reaches(start, mapped, end))
        {
            return Err(Errno::EINVAL);
        }
        let inside: Vec<u64> = self.mappings.range(iova..end).map(|(&at, _)| at).collect();
        let mut done = 0;
        for at in inside {
            done += self.take_back(device, at)?;
        }
        Ok(done)
    }

    /// Removes all mappings.
    pub(super) fn unmap_all(&mut self, device: &dyn Device) {
        let all: Vec<u64> = self.mappings.keys().copied().collect();
        for at in all {
            // If the device refuses, it keeps a reference, and the memory stays mapped.
            if self.take_back(device, at).is_err() {
                self.mappings.remove(&at);
            }
        }
        self.imports.clear();
    }

    /// Removes the mapping that starts at an address. Returns its length in bytes; 0 if there is none.
    fn take_back(&mut self, device: &dyn Device, iova: u64) -> Result<u64, Errno> {
        let Some(&Mapped { bytes, backing }) = self.mappings.get(&iova) else {
            return Ok(0);
        };
        if !matches!(backing, Backing::Nothing)
            && let Err(reason) = device.dma_unmap(iova, bytes)
        {
            tracing::warn!("{}: DMA_UNMAP: {reason}", device.name());
            return Err(Errno::EINVAL);
        }
        if let Backing::File(id) = backing {
            if let Some(imported) = self.imports.get_mut(&id) {
                imported.users -= 1;
            }
            self.forget_unused(id);
        }
        self.mappings.remove(&iova);
        Ok(bytes as u64)
    }

    /// Maps the whole file of a descriptor, unless an import contains the requested part already. Returns the import.
    /// The part must be inside the file.
    fn import(
        &mut self,
        device: &dyn Device,
        fd: OwnedFd,
        offset: u64,
        size: u64,
    ) -> Result<(ImportId, SharedMemory), Errno> {
        let refused = |error: MemoryError| {
            tracing::warn!("{}: DMA_MAP: {error}", device.name());
            match error {
                MemoryError::System { errno, .. } => errno,
                MemoryError::Empty | MemoryError::TooLarge { .. } | MemoryError::File { .. } => {
                    Errno::EINVAL
                }
            }
        };
        let file = File::from(fd);
        let metadata = file
            .metadata()
            .map_err(|error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
        let (dev, ino, whole) = (metadata.dev(), metadata.ino(), metadata.len());
        let end = offset.checked_add(size).ok_or(Errno::EINVAL)?;
        let long_enough = (dev, ino, end)..=(dev, ino, u64::MAX);
        if let Some((&id, imported)) = self.imports.range(long_enough).next_back() {
            return Ok((id, imported.memory.clone()));
        }
        if self.imports.len() >= MAX_IMPORTS {
            tracing::warn!(
                "{}: DMA_MAP: the client has {MAX_IMPORTS} imports of files already",
                device.name()
            );
            return Err(Errno::ENOSPC);
        }
        let others: u64 = self.imports.keys().map(|&(_, _, len)| len).sum();
        if end > whole || others.saturating_add(whole) > MAX_FILE_BYTES {
            return Err(refused(MemoryError::File {
                bytes: usize::try_from(size).unwrap_or(usize::MAX),
                offset,
                len: whole,
                what: "it ends before that, or the client's files are too many",
            }));
        }
        let bytes = usize::try_from(whole).map_err(|_| Errno::ENOMEM)?;
        let memory = SharedMemory::imported(file.into(), 0, bytes).map_err(refused)?;
        let (id, kept) = ((dev, ino, whole), memory.clone());
        self.imports.insert(id, Imported { memory, users: 0 });
        Ok((id, kept))
    }

    fn forget_unused(&mut self, id: ImportId) {
        if self
            .imports
            .get(&id)
            .is_some_and(|imported| imported.users == 0)
        {
            self.imports.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::ANNOUNCED_MAPPINGS;
    use super::*;
    use crate::double::Double;
    use zerocopy::FromZeros;

    fn page(at: usize) -> DmaMap {
        let mut request = DmaMap::new_zeroed();
        request.flags = DMA_READ_WRITE.into();
        request.iova = (at as u64 * DMA_PAGE as u64).into();
        request.size = (DMA_PAGE as u64).into();
        request
    }

    #[test]
    fn a_mapping_is_not_cut_in_two() {
        let (device, mut memory) = (Double::new(), ClientMemory::default());
        let bytes = DMA_PAGE as u64;
        let mut request = page(1);
        request.size = (2 * bytes).into();
        assert_eq!(memory.map(&device, &request, None, None), Ok(()));
        for page in [1, 2] {
            let refused = memory.unmap(&device, page * bytes, bytes);
            assert_eq!(refused, Err(Errno::EINVAL), "{page}");
        }
        assert_eq!(memory.unmap(&device, bytes, 2 * bytes), Ok(2 * bytes));
    }

    /// A client can map several completion queues of 2^22 entries (`log_max_cq_sz` 22) page by page, and still has a
    /// limit. Linux' IOMMU driver in a guest maps scattered memory in this way. One such queue takes 256 MiB, which is
    /// one mapping more than the limit that VERSION announces.
    #[test]
    fn a_client_maps_several_of_the_largest_queues_page_by_page_and_has_a_limit_all_the_same() {
        let (device, mut memory) = (Double::new(), ClientMemory::default());
        let largest_queue = (1 << 22) * 64 / DMA_PAGE;
        assert!(largest_queue > ANNOUNCED_MAPPINGS && 8 * largest_queue <= MAX_MAPPINGS);
        for at in 0..MAX_MAPPINGS {
            assert_eq!(memory.map(&device, &page(at), None, None), Ok(()), "{at}");
        }
        let one_more = page(MAX_MAPPINGS);
        assert_eq!(
            memory.map(&device, &one_more, None, None),
            Err(Errno::ENOSPC)
        );
        let bytes = DMA_PAGE as u64;
        assert_eq!(memory.unmap(&device, 7 * bytes, bytes), Ok(bytes));
        assert_eq!(memory.map(&device, &one_more, None, None), Ok(()));
        let all = one_more.iova.get() + bytes;
        assert_eq!(memory.unmap(&device, 0, all), Ok(all - bytes));
    }
}
