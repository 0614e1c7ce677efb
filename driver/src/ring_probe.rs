//! The io_uring support available to this process, determined by a trial.
//!
//! A sysctl, the kernel's build, a container's seccomp filter or a limit may prevent an io_uring, and each of them can
//! hide the others. So the probe creates a ring exactly as [`Ring`](crate::ring) does, and queries its operations.

use std::io;

use io_uring::{Probe, opcode};

use crate::ring::{Kind, make};

/// Capabilities of an io_uring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingProbe {
    /// Names (from `io_uring.h`) of the operations that this crate needs and the kernel lacks.
    pub missing: Vec<&'static str>,
    /// True if the kernel supports single-issuer rings with deferred task work (Linux 6.1). Otherwise waiting costs
    /// more.
    pub deferred: bool,
}

/// Operations that this crate needs to wait and to access disks.
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
    /// Creates an io_uring and queries its operations.
    ///
    /// # Errors
    /// The error of the system call: EPERM if a sysctl or a filter forbids io_uring, ENOSYS if the kernel has none.
    pub fn new() -> io::Result<Self> {
        // Only a ring with deferred task work is made disabled.
        let (ring, deferred) = make(Kind::OneThread, 2)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let missing = USED
            .iter()
            .filter(|(_, code)| !probe.is_supported(*code))
            .map(|(name, _)| *name)
            .collect();
        Ok(Self { missing, deferred })
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
