//! Mailboxes: memory for the part of a command that does not fit in its entry.
//!
//! An entry carries 16 bytes of the input and 16 of the output. The rest is in a chain of blocks with 512 data bytes
//! each, linked by DMA address (PRM "Command Interface Mailbox"). We also prepare the chain for the output: the device
//! fills the given blocks and follows our links.
//!
//! Blocks have 576 bytes at an alignment of 1 KiB. The pointer format requires an alignment of 512 bytes, the device
//! refuses a stride of 0x240 (Snabb `connectx.lua`), and mlx5_core's pool uses 1024. Blocks are cut from 4 KiB pages
//! and kept for reuse. Blocks of a command that the device has not answered are not in the pool.

use driver::{DmaArena, DmaBuffer, DmaError};
use zerocopy::IntoBytes;

use super::signature;
use mlx_prm::CmdMailbox;

/// Number of message bytes in the entry itself, for input and output each.
pub(crate) const INLINE_BYTES: usize = 16;
/// Number of message bytes in one block.
pub(crate) const BLOCK_DATA: usize = 512;
/// Distance between blocks in a page, in bytes.
const BLOCK_STRIDE: usize = 1024;
const PAGE_BYTES: usize = 4096;
/// Bytes of a block that the control signature covers: from the reserved bytes through the control signature.
const CONTROL: std::ops::Range<usize> = 0x200..0x23f;

/// A block. It is not `Clone`, because its holder may let the device write to it.
#[derive(Debug)]
pub(crate) struct Block {
    page: DmaBuffer,
    offset: usize,
}

impl Block {
    fn iova(&self) -> u64 {
        self.page.iova().0 + self.offset as u64
    }

    fn read(&self) -> CmdMailbox {
        self.page.read_obj(self.offset)
    }

    fn write(&self, block: &CmdMailbox) {
        self.page.write_obj(self.offset, block);
    }
}

/// A pool of blocks that are not in use.
pub(crate) struct Pool {
    arena: DmaArena,
    free: Vec<Block>,
}

impl Pool {
    pub(crate) fn new(arena: DmaArena) -> Self {
        Self {
            arena,
            free: Vec::new(),
        }
    }

    /// Returns a chain that can hold a message of `bytes` bytes, of which the first are in the entry.
    pub(crate) fn chain_for(&mut self, bytes: usize) -> Result<Chain, DmaError> {
        let count = bytes.saturating_sub(INLINE_BYTES).div_ceil(BLOCK_DATA);
        while self.free.len() < count {
            let page = self.arena.alloc(PAGE_BYTES, PAGE_BYTES)?;
            for offset in (0..PAGE_BYTES).step_by(BLOCK_STRIDE) {
                self.free.push(Block {
                    page: page.clone(),
                    offset,
                });
            }
        }
        Ok(Chain {
            blocks: self.free.split_off(self.free.len() - count),
        })
    }

    /// Returns the number of pages, if no block is in use.
    pub(crate) fn pages(&self) -> usize {
        self.free.len() * BLOCK_STRIDE / PAGE_BYTES
    }

    pub(crate) fn give_back(&mut self, chain: Chain) {
        self.free.extend(chain.blocks);
    }
}

/// A chain of blocks, possibly empty.
#[derive(Debug)]
pub(crate) struct Chain {
    blocks: Vec<Block>,
}

/// The error that a block of an answer has an invalid signature; it has the block's number in the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadBlock(pub(crate) usize);

impl Chain {
    /// Returns the DMA address of the first block; 0 for an empty chain.
    pub(crate) fn first(&self) -> u64 {
        self.blocks.first().map_or(0, Block::iova)
    }

    /// Writes every block: `data` (the message after the inline bytes, padded with zeros), links,
    /// numbers, token and both signatures.
    pub(crate) fn fill(&self, token: u8, data: &[u8]) {
        // PANIC: the caller has made the chain for this length.
        assert!(
            data.len() <= self.blocks.len() * BLOCK_DATA,
            "{} bytes in {} blocks",
            data.len(),
            self.blocks.len()
        );
        let mut pieces = data.chunks(BLOCK_DATA);
        for (number, block) in (0u32..).zip(&self.blocks) {
            let next = self.blocks.get(number as usize + 1).map_or(0, Block::iova);
            let mut mailbox = CmdMailbox::new();
            if let Some(piece) = pieces.next() {
                mailbox.mailbox_data_mut()[..piece.len()].copy_from_slice(piece);
            }
            mailbox
                .set_next_pointer(next)
                .set_block_number(number)
                .set_token(u32::from(token));
            let ctrl_signature = signature::closing(&mailbox.as_bytes()[CONTROL]);
            mailbox.set_ctrl_signature(u32::from(ctrl_signature));
            let whole = signature::closing(mailbox.as_bytes());
            mailbox.set_signature(u32::from(whole));
            block.write(&mailbox);
        }
    }

    /// Appends `bytes` message bytes to `out`. If `signed` is set, every block that is read must have
    /// valid signatures.
    pub(crate) fn read(
        &self,
        bytes: usize,
        signed: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), BadBlock> {
        let mut left = bytes;
        for (number, block) in self.blocks.iter().enumerate() {
            if left == 0 {
                break;
            }
            let mailbox = block.read();
            if signed
                && !(signature::holds(&mailbox.as_bytes()[CONTROL])
                    && signature::holds(mailbox.as_bytes()))
            {
                return Err(BadBlock(number));
            }
            let take = left.min(BLOCK_DATA);
            out.extend_from_slice(&mailbox.mailbox_data()[..take]);
            left -= take;
        }
        Ok(())
    }

    /// Returns the present contents of the blocks, for the trace.
    pub(crate) fn images(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        self.blocks
            .iter()
            .map(|block| block.read().as_bytes().to_vec())
    }
}
