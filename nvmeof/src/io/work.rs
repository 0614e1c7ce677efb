//! The rest of a command that takes a disk several steps ([`super::steps`]).

/// The rest of a command that takes several steps.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) enum Work {
    /// One step.
    #[default]
    Single,
    /// Its partner has failed.
    Abandoned,
    /// Verify: the next block, and the one behind the last.
    Verify { next: u64, end: u64 },
    /// Copy.
    Copy(Box<Copy>),
}

/// The rest of a Copy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    /// The checked source ranges: first block, and number of blocks.
    pub ranges: Vec<(u64, u32)>,
    /// The range that is being copied, and blocks of it that are done.
    pub range: usize,
    pub done: u32,
    /// Blocks that are written in all.
    pub written: u32,
    /// Blocks of the piece that the disk has now.
    pub blocks: u32,
    /// That piece is being written.
    pub is_writing: bool,
}
