//! Privileges that this process has gained over its caller.

// UNSAFETY: getauxval(3) has no safe wrapper in our packages.
#![expect(unsafe_code, reason = "auxiliary vector")]

use nix::libc::{AT_SECURE, getauxval};

/// Returns whether the program was started with more privileges than its caller has: set-user-ID, set-group-ID, or
/// file capabilities (getauxval(3), `AT_SECURE`). The caller's environment must then be ignored.
#[must_use]
pub fn has_gained_rights() -> bool {
    // SAFETY: the call reads a word that the kernel stored at the start, and has no side effect.
    unsafe { getauxval(AT_SECURE) != 0 }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromBytes;

    /// The result is AT_SECURE (23) of the auxiliary vector that the kernel provides (proc_pid_auxv(5)).
    #[test]
    fn it_is_what_the_kernel_says() {
        let words = std::fs::read("/proc/self/auxv").unwrap();
        let [_, secure] = words
            .chunks_exact(16)
            .filter_map(|entry| <[u64; 2]>::read_from_bytes(entry).ok())
            .find(|[kind, _]| *kind == 23)
            .unwrap();
        assert_eq!(super::has_gained_rights(), secure != 0);
    }
}
