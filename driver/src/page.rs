//! Sizes of pages: the system's, those of the hugetlb pool, and those of I/O addresses.

/// Smallest unit of a DMA mapping, in bytes.
pub(crate) const DMA_PAGE: usize = 4096;
/// Bytes of 1 GiB: the modulus of the congruence between virtual and I/O addresses.
pub(crate) const GIB: usize = 1 << 30;

/// Size of the pages of memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[non_exhaustive]
pub enum PageSize {
    /// The system's base pages, 4 KiB on x86.
    Base,
    /// 2 MiB, from the hugetlb pool of that size.
    Huge2M,
    /// 1 GiB, from the hugetlb pool of that size. Such pages are best reserved at boot (`hugepagesz=1G hugepages=N`).
    Huge1G,
}

impl PageSize {
    /// Returns the bytes of a page.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Base => page_bytes(),
            Self::Huge2M => 2 << 20,
            Self::Huge1G => 1 << 30,
        }
    }

    /// Returns the next smaller size; `None` for base pages.
    pub(crate) const fn smaller(self) -> Option<Self> {
        match self {
            Self::Base => None,
            Self::Huge2M => Some(Self::Base),
            Self::Huge1G => Some(Self::Huge2M),
        }
    }

    /// Returns the name of the pool's directory in sysfs, below the `hugepages` directory of the machine or of a node.
    pub(crate) fn pool(self) -> String {
        format!("hugepages-{}kB", self.bytes() >> 10)
    }
}

/// Returns the bytes of the system's base pages.
pub(crate) fn page_bytes() -> usize {
    use nix::unistd::{SysconfVar, sysconf};
    // The call cannot fail on Linux; 4096 is the usual value.
    sysconf(SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .and_then(|bytes| usize::try_from(bytes).ok())
        .unwrap_or(4096)
}
