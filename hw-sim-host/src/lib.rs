//! Hosting of simulated functions in a process, independent of their driver.
//!
//! A world ([`hw_sim`]) has neither threads nor files nor a clock: its host moves its time and takes its frames. This
//! crate is that host.
//!
//! | module | concern |
//! |---|---|
//! | [`wire`] | a function's wire to another process, or to a network device of QEMU |
//! | [`pace`] | steps of a world's time that follow the machine's |
//! | [`timed`] | functions of this process whose worlds one thread moves |
//! | [`profile`] | profiles of functions, by a generation's name or from a file |
//!
//! Absent on purpose: any driver. The driver of a function is in this process (`udapl`, whose module `fabric` exports
//! all of this, too) or behind a socket (`simnic`).
#![forbid(unsafe_code)]

pub mod pace;
pub mod profile;
pub mod timed;
pub mod wire;

/// Returns a locally administered MAC address, made from a function's number.
#[must_use]
pub const fn mac(number: usize) -> [u8; 6] {
    // CAST: more than 2^16 functions repeat addresses.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "there is a handful of functions"
    )]
    let [high, low] = (number as u16 + 1).to_be_bytes();
    [0x02, 0x00, 0x5e, 0x10, high, low]
}
