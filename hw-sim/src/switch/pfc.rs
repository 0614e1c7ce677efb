//! Priority flow control (IEEE 802.1Qbb): frames that pause the peer in some priorities.
//!
//! A pause frame is a MAC control frame: address 01:80:c2:00:00:01, which no bridge forwards, ethertype 0x8808, opcode
//! 0x0101. It has a bit mask of the priorities that it affects, and for each of them a time in quanta of 512 bits at
//! the port's rate. The time 0 ends a pause. A receiver whose buffer of a priority is above XOFF repeats the pause
//! before the pause expires, and ends it when the buffer is down to XON.

use super::classify::PRIORITIES;

/// Destination address of MAC control frames.
const CONTROL: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0x01];
const ETHERTYPE: u16 = 0x8808;
const OPCODE: u16 = 0x0101;
/// Number of bits in a quantum.
const QUANTUM_BITS: u64 = 512;
/// Minimum frame length in bytes, without the check sequence.
const FRAME_BYTES: usize = 60;
/// Longest pause, in quanta.
pub(crate) const LONGEST: u16 = u16::MAX;

/// Requested pause of each priority in quanta. `None` means that the frame does not affect the priority.
pub(crate) type Pauses = [Option<u16>; PRIORITIES];

/// Builds a pause frame for one priority.
pub(crate) fn emit(src: [u8; 6], priority: usize, quanta: u16) -> Vec<u8> {
    let mut frame = Vec::with_capacity(FRAME_BYTES);
    frame.extend(CONTROL);
    frame.extend(src);
    frame.extend(ETHERTYPE.to_be_bytes());
    frame.extend(OPCODE.to_be_bytes());
    frame.extend((1_u16 << (priority & 7)).to_be_bytes());
    for other in 0..PRIORITIES {
        let quanta = if other == priority { quanta } else { 0 };
        frame.extend(quanta.to_be_bytes());
    }
    frame.resize(FRAME_BYTES, 0);
    frame
}

/// Returns whether a frame has the destination address of MAC control frames. A port never forwards such a frame.
pub(crate) fn is_control(frame: &[u8]) -> bool {
    frame.starts_with(&CONTROL)
}

/// Returns the pauses that a frame requests, or `None` if the frame is not a pause frame.
pub(crate) fn parse(frame: &[u8]) -> Option<Pauses> {
    let half = |at: usize| {
        let bytes: &[u8; 2] = frame.get(at..)?.first_chunk()?;
        Some(u16::from_be_bytes(*bytes))
    };
    if !is_control(frame) || half(12) != Some(ETHERTYPE) || half(14) != Some(OPCODE) {
        return None;
    }
    let named = half(16)?;
    let mut pauses = [None; PRIORITIES];
    for (priority, pause) in pauses.iter_mut().enumerate() {
        let quanta = half(18 + 2 * priority)?;
        *pause = (named >> priority & 1 == 1).then_some(quanta);
    }
    Some(pauses)
}

/// Returns the duration of a pause at a port's rate, in ns.
pub(crate) fn pause_ns(quanta: u16, rate_bps: u64) -> u64 {
    let bits = u128::from(quanta) * u128::from(QUANTUM_BITS);
    u64::try_from(bits * 1_000_000_000 / u128::from(rate_bps.max(1))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `emit` writes a pause frame as IEEE 802.1Qbb, clause 36, defines it, and `parse` reads it back.
    #[test]
    fn a_frame_names_its_priority_and_comes_back() {
        let frame = emit([2, 0, 0, 0, 0, 1], 3, 0x1234);
        assert_eq!(frame.len(), 60);
        assert_eq!(
            frame[..28],
            [
                0x01, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 1, 0x88, 0x08, 1, 1, 0, 8, 0, 0, 0, 0, 0,
                0, 0x12, 0x34, 0, 0
            ]
        );
        let mut expected = [None; 8];
        expected[3] = Some(0x1234);
        assert_eq!(parse(&frame), Some(expected));
        assert_eq!(parse(&frame[..30]), None);
        let mut other = frame;
        other[15] = 2;
        assert_eq!(parse(&other), None);
        assert!(is_control(&other));
    }

    #[test]
    fn the_longest_pause_is_a_third_of_a_millisecond_at_a_hundred_gigabits() {
        assert_eq!(pause_ns(LONGEST, 100_000_000_000), 335_539);
        assert_eq!(pause_ns(0, 1), 0);
    }
}
