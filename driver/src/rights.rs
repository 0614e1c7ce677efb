//! Privileges that this process has gained over its caller, and the caller's environment.

// UNSAFETY: getauxval(3) has no safe wrapper in our packages.
#![expect(unsafe_code, reason = "auxiliary vector")]

use std::ffi::OsString;

use nix::libc::{AT_SECURE, getauxval};

/// Returns whether the program was started with more privileges than its caller has: set-user-ID, set-group-ID, or
/// file capabilities (getauxval(3), `AT_SECURE`). The caller's environment must then be ignored.
#[must_use]
pub fn has_gained_rights() -> bool {
    // SAFETY: the call reads a word that the kernel stored at the start, and has no side effect.
    unsafe { getauxval(AT_SECURE) != 0 }
}

/// Returns the value of an environment variable, but `None` in a program that has gained rights
/// ([`has_gained_rights`]): the caller could use the variable to make the program open files that the caller may not
/// open.
#[must_use]
pub fn caller_variable(name: &str) -> Option<OsString> {
    trusted(name, std::env::var_os(name), has_gained_rights())
}

/// Returns the value of a variable unless the program has `gained` rights.
fn trusted(name: &str, value: Option<OsString>, gained: bool) -> Option<OsString> {
    if gained && value.is_some() {
        tracing::warn!("{name} is ignored: this program has rights its caller lacks");
    }
    value.filter(|_| !gained)
}

#[cfg(test)]
mod tests {
    use zerocopy::FromBytes;

    use super::*;

    /// The result is AT_SECURE (23) of the auxiliary vector that the kernel provides (proc_pid_auxv(5)).
    #[test]
    fn it_is_what_the_kernel_says() {
        let words = std::fs::read("/proc/self/auxv").unwrap();
        let [_, secure] = words
            .chunks_exact(16)
            .filter_map(|entry| <[u64; 2]>::read_from_bytes(entry).ok())
            .find(|[kind, _]| *kind == 23)
            .unwrap();
        assert_eq!(has_gained_rights(), secure != 0);
    }

    #[test]
    fn a_program_with_more_rights_than_its_caller_ignores_its_variables() {
        let value = || Some("/tmp/mine".into());
        assert_eq!(trusted("DAT_CONTROL", value(), false), value());
        assert_eq!(trusted("DAT_CONTROL", value(), true), None);
        assert_eq!(trusted("DAT_CONTROL", None, false), None);
        let path = std::env::var_os("PATH").filter(|_| !has_gained_rights());
        assert_eq!(caller_variable("PATH"), path);
        assert_eq!(caller_variable("DAT_A_VARIABLE_THAT_NOBODY_SETS"), None);
    }
}
