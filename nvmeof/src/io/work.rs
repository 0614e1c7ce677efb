//! The progress of a command that needs several operations of a disk ([`super::steps`]).

/// The progress of a command that needs several operations.
#[derive(Debug, Default)]
pub(crate) enum Work {
    /// A command that needs one operation.
    #[default]
    Single,
    /// The partner of the fused pair has failed.
    Abandoned,
    /// A Write Zeroes with Force Unit Access: a flush follows the zeros.
    Forced,
    /// A Dataset Management: the checked ranges that are left, the next one last: first block, and number of blocks.
    Deallocate(Vec<(u64, u32)>),
    /// A Verify: the next block, and the block after the last.
    Verify { next: u64, end: u64 },
    /// A Copy.
    Copy(Box<Copy>),
}

/// The progress of a Copy.
#[derive(Debug)]
pub(crate) struct Copy {
    /// Checked source ranges: first block, and number of blocks.
    pub ranges: Vec<(u64, u32)>,
    /// Index of the range that is being copied, and number of its blocks that were copied.
    pub range: usize,
    pub done: u32,
    /// Number of blocks written in all ranges.
    pub written: u32,
    /// Number of blocks of the piece that the disk is transferring.
    pub blocks: u32,
    /// True if that piece is being written, false if it is being read.
    pub is_writing: bool,
}
