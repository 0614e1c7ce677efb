//! What this process may do with io_uring, found out by doing it.
//!
//! A switch of the kernel, its build, a container's filter of system calls or a limit may be in the way of a ring, and
//! none of them tells of the others. So a ring is made, as [`Ring`](crate::ring) makes its own, and asked which
//! operations it knows.

use std::io;

use io_uring::{IoUring, Probe, opcode};

/// What a ring can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingProbe {
    /// Operations that we use and the kernel does not know, by their names in `io_uring.h`.
    pub missing: Vec<&'static str>,
    /// Rings of one thread, whose work is put off until it asks (Linux 6.1). Without, waiting costs more.
    pub deferred: bool,
}

/// What waiting and disks need.
const USED: [(&str, u8); 9] = [
    ("IORING_OP_POLL_ADD", opcode::PollAdd::CODE),
    ("IORING_OP_POLL_REMOVE", opcode::PollRemove::CODE),
    ("IORING_OP_ASYNC_CANCEL", opcode::AsyncCancel::CODE),
    ("IORING_OP_READ", opcode::Read::CODE),
    ("IORING_OP_WRITE", opcode::Write::CODE),
    ("IORING_OP_READ_FIXED", opcode::ReadFixed::CODE),
    ("IORING_OP_WRITE_FIXED", opcode::WriteFixed::CODE),
    ("IORING_OP_FSYNC", opcode::Fsync::CODE),
    ("IORING_OP_FALLOCATE", opcode::Fallocate::CODE),
];

impl RingProbe {
    /// Makes a ring and asks it.
    ///
    /// # Errors
    /// What the system answered: EPERM where a switch or a filter forbids it, ENOSYS where the kernel has none.
    pub fn new() -> io::Result<Self> {
        let deferred: io::Result<IoUring> = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(2);
        let ring = IoUring::new(2)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let missing = USED
            .iter()
            .filter(|(_, code)| !probe.is_supported(*code))
            .map(|(name, _)| *name)
            .collect();
        Ok(Self {
            missing,
            deferred: deferred.is_ok(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_all_that_the_rings_of_these_tests_use() {
        let probe = RingProbe::new().expect("a ring");
        assert_eq!(probe.missing, [""; 0]);
    }
}
