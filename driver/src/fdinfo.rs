//! What the kernel says of open files (proc(5), `/proc/pid/fdinfo`).

use std::os::fd::{AsRawFd, BorrowedFd};

/// Returns what the kernel says of an open file in the line that begins with `key` (proc(5), `/proc/pid/fdinfo`).
pub(crate) fn fdinfo(fd: BorrowedFd<'_>, key: &str) -> Option<String> {
    let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let text = std::fs::read_to_string(path).ok()?;
    let found = text.lines().find_map(|line| line.strip_prefix(key));
    Some(found?.trim().to_owned())
}
