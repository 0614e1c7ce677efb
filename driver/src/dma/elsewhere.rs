//! Memory of a buffer that is mapped for a function of another I/O address space, too.
//!
//! Two devices then work on the same bytes without a copy, each at its own I/O address. Functions of one I/O address
//! space need no such mapping: every buffer of one is reached by all ([`dma_space`](crate::Function::dma_space)).

use std::sync::Arc;

use super::DmaBuffer;
use crate::error::DmaError;
use crate::function::Function;
use crate::iova::Iova;
use crate::page::{DMA_PAGE, page_bytes};
use crate::space::Mapped;

/// A buffer that another function reaches, too ([`DmaBuffer::map_for`]). Clones share the mapping, which ends with the
/// last one.
#[derive(Clone, Debug)]
pub struct MappedBuffer {
    iova: Iova,
    // The mapping drops before the buffer, whose bytes may then be used for something else.
    mapped: Arc<Mapped>,
    buffer: DmaBuffer,
}

impl DmaBuffer {
    /// Maps the buffer for a function of another I/O address space. All of the pages that the buffer lies in are
    /// mapped.
    ///
    /// # Errors
    /// [`DmaError::Iova`], [`DmaError::Function`]: no room in the I/O address space, or the function refused.
    pub fn map_for(&self, function: &Function) -> Result<MappedBuffer, DmaError> {
        let granule = page_bytes().max(DMA_PAGE);
        let memory = self.lease.chunk.mapped.memory();
        let start = self.memory.address() - memory.address();
        let head = start % granule;
        let bytes = (head + self.len()).next_multiple_of(granule);
        let space = function.space();
        let iova = space.alloc_iova(bytes, granule, 0)?;
        let mapped = Mapped::of_part(space, memory.clone(), start - head, bytes, iova)?;
        Ok(MappedBuffer {
            iova: iova.advance(head),
            mapped: Arc::new(mapped),
            buffer: self.clone(),
        })
    }
}

impl MappedBuffer {
    /// Returns the I/O address of the buffer's first byte for the other function.
    #[must_use]
    pub const fn iova(&self) -> Iova {
        self.iova
    }

    /// Returns the buffer.
    #[must_use]
    pub const fn buffer(&self) -> &DmaBuffer {
        &self.buffer
    }

    /// Returns whether the mapping is in the I/O address space of this function.
    #[must_use]
    pub fn is_reached_by(&self, function: &Function) -> bool {
        Arc::ptr_eq(self.mapped.space(), function.space())
    }
}

#[cfg(test)]
mod tests {
    use crate::dma::DmaArena;
    use crate::double::Double;

    #[test]
    fn a_buffer_is_reached_by_the_other_function_until_its_mapping_drops() {
        let other = Double::new();
        let own = Double::new().function();
        let arena = DmaArena::new(&own).unwrap();
        let function = other.function();
        let buffer = arena.alloc(3 * 4096, 4096).unwrap();
        buffer.write_bytes(4100, b"here");
        let part = buffer.part(4100, 4);
        let mapped = part.map_for(&function).unwrap();
        assert!(mapped.is_reached_by(&function) && !mapped.is_reached_by(&own));
        assert_eq!(mapped.iova().0 % 4096, 4);
        assert_eq!(mapped.buffer().len(), 4);
        let mut out = [0; 4];
        let (memory, at) = other.memory_at(mapped.iova().0).unwrap();
        memory.read_bytes(at, &mut out);
        assert_eq!(&out, b"here");
        let again = mapped.clone();
        drop(mapped);
        let (memory, at) = other.memory_at(again.iova().0).unwrap();
        memory.write_bytes(at, b"back");
        buffer.read_bytes(4100, &mut out);
        assert_eq!(&out, b"back");
        let iova = again.iova().0;
        drop(again);
        assert!(other.memory_at(iova).is_none());
    }
}
