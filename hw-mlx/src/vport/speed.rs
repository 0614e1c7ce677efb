//! The port's speed.

use super::register::{LOCAL_PORT, READ, access};
use crate::control::Commands;
use crate::error::CmdError;
use mlx_prm::{Ptys, RegisterId};

/// `proto_mask` value for Ethernet.
const ETHERNET: u32 = 4;
/// Speed in Mb/s for bits of `eth_proto_oper` (PRM "PTYS").
const MODES: [(u32, u32); 5] = [
    (1 << 12 | 1 << 13 | 1 << 14, 10_000),
    (1 << 27 | 1 << 28 | 1 << 29, 25_000),
    (1 << 6 | 1 << 7 | 1 << 15 | 1 << 16, 40_000),
    (1 << 18 | 1 << 30 | 1 << 31, 50_000),
    (1 << 20 | 1 << 21 | 1 << 22 | 1 << 23, 100_000),
];
/// Speed in Mb/s for bits of `ext_eth_proto_oper`, which newer devices fill in.
const EXTENDED_MODES: [(u32, u32); 8] = [
    (1 << 4, 10_000),
    (1 << 5, 40_000),
    (1 << 6, 25_000),
    (1 << 7 | 1 << 8, 50_000),
    (1 << 9 | 1 << 10 | 1 << 11, 100_000),
    (1 << 12 | 1 << 13, 200_000),
    (1 << 15 | 1 << 16, 400_000),
    (1 << 19, 800_000),
];

/// Reads the port's speed in Mb/s. Returns `None` if the function may not see the port, or if the mode is unknown.
pub(crate) fn megabits(control: &mut impl Commands) -> Result<Option<u32>, CmdError> {
    let mut register = Ptys::new();
    register.set_local_port(LOCAL_PORT).set_proto_mask(ETHERNET);
    let answer = access(control, RegisterId::PTYS, READ, &register)?;
    Ok(answer.and_then(|register| speed_of(&register)))
}

fn speed_of(register: &Ptys) -> Option<u32> {
    let of = |modes: &[(u32, u32)], now: u32| {
        let mut there = modes.iter().filter(|(bits, _)| bits & now != 0);
        there.next().map(|(_, megabits)| *megabits)
    };
    of(&EXTENDED_MODES, register.ext_eth_proto_oper())
        .or_else(|| of(&MODES, register.eth_proto_oper()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_devices_say_their_speed_in_the_extended_modes() {
        let mut register = Ptys::new();
        assert_eq!(speed_of(&register), None);
        register.set_eth_proto_oper(1 << 29);
        assert_eq!(speed_of(&register), Some(25_000));
        register.set_ext_eth_proto_oper(1 << 15);
        assert_eq!(speed_of(&register), Some(400_000));
    }
}
