//! Runs simulated functions in a process, independently of their drivers.
//!
//! The simulator ([`hw_sim`]) has no threads, no files and no clock of its own. The hosting process must advance the
//! virtual time and transport the frames. This crate does that.
//!
//! | module | concern |
//! |---|---|
//! | [`wire`] | a function's wire to another process, or to a network device of QEMU |
//! | [`pace`] | steps of virtual time that follow real time |
//! | [`timed`] | functions of this process, for which one thread advances virtual time |
//! | [`profile`] | profiles of functions, by a generation's name or from a file |
//! | [`open_locked`] | the file of a capture or recording, which one process writes |
//!
//! This crate contains no driver. The driver of a function is in this process (`udapl`, whose module `fabric`
//! re-exports this crate) or in a process at the other end of a socket (`simnic`).
#![forbid(unsafe_code)]

mod locked;
pub mod pace;
pub mod profile;
pub mod timed;
pub mod wire;

pub use locked::open_locked;

/// Returns a locally administered MAC address that is derived from a function's number.
#[must_use]
pub const fn mac(number: usize) -> [u8; 6] {
    // CAST: truncation is accepted: addresses repeat after 2^16 functions.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "there is a handful of functions"
    )]
    let [high, low] = (number as u16).wrapping_add(1).to_be_bytes();
    [0x02, 0x00, 0x5e, 0x10, high, low]
}

#[cfg(test)]
mod tests {
    use super::mac;

    #[test]
    fn addresses_differ_and_repeat_after_65536_functions() {
        assert_eq!(mac(0), [0x02, 0x00, 0x5e, 0x10, 0x00, 0x01]);
        assert_eq!(mac(0xff), [0x02, 0x00, 0x5e, 0x10, 0x01, 0x00]);
        assert_eq!(mac(65_535), [0x02, 0x00, 0x5e, 0x10, 0x00, 0x00]);
        assert_eq!(mac(65_536), mac(0));
    }
}
