//! Mailboxes: memory for the part of a command that does not fit its entry.
//!
//! An entry carries 16 bytes each way. The rest travels in a chain of blocks, 512 data bytes each,
//! linked by DMA address (PRM "Command Interface Mailbox"). Output chains are prepared by us as
//! well: the device fills blocks it is given and follows our links.
//!
//! Blocks are 576 bytes at 1 KiB alignment: the pointer format asks for 512, 0x240 is refused (Snabb `connectx.lua`),
//! and mlx5_core's pool uses 1024. They are cut from 4 KiB pages and kept for reuse; a block of a command that the
//! device has not answered is not in the pool.

use driver::{DmaArena, DmaBuffer, DmaError};
use zerocopy::IntoBytes;

use super::signature;
use mlx_prm::CmdMailbox;

/// Message bytes in the entry itself, each way.
pub(crate) const INLINE_BYTES: usize = 16;
/// Message bytes in one block.
pub(crate) const BLOCK_DATA: usize = 512;
/// Distance between blocks in a page.
const BLOCK_STRIDE: usize = 1024;
const PAGE_BYTES: usize = 4096;
/// The part of a block the control signature covers: from the reserved bytes to the signature itself.
const CONTROL: std::ops::Range<usize> = 0x200..0x23f;

/// One block. Not `Clone`: its holder may let the device write it.
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

/// Blocks not in use.
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

    /// A chain with room for a message of `bytes`, those in the entry included.
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

    pub(crate) fn give_back(&mut self, chain: Chain) {
        self.free.extend(chain.blocks);
    }
}

/// A chain of blocks, possibly empty.
#[derive(Debug)]
pub(crate) struct Chain {
    blocks: Vec<Block>,
}

/// A block of an answer does not carry the signature it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadBlock(pub(crate) usize);

impl Chain {
    /// DMA address of the first block; 0 for an empty chain.
    pub(crate) fn first(&self) -> u64 {
        self.blocks.first().map_or(0, Block::iova)
    }

    /// Writes every block: `data` (what follows the inline bytes; zeros after its end), links,
    /// numbers, token and both signatures.
    pub(crate) fn fill(&self, token: u8, data: &[u8]) {
        // PANIC: the length comes from our own arithmetic.
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

    /// Appends `bytes` message bytes to `out`. With `signed`, every block read must carry valid
    /// signatures.
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

    /// The blocks as they stand, for the trace.
    pub(crate) fn images(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        self.blocks
            .iter()
            .map(|block| block.read().as_bytes().to_vec())
    }
}
