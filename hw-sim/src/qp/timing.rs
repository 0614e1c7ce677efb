//! The timers of a reliable connection: the ACK timeout of the context, the wait that the peer's RNR NAK requests, and
//! the early timeout of the device itself.

/// Unit of the local ACK timeout in nanoseconds (IBTA volume 1, section 9.7.6.1.3).
const ACK_TIMEOUT_UNIT_NS: u64 = 4_096;

/// First early timeout: 4.2 ms, which is ACK timeout code 10. The value is inferred: a ConnectX-5 whose queue pair had
/// code 14 (67 ms) was measured to retransmit after 5.6, 4.1, 8.4, 16.7 and 25.1 ms (Lumina, SIGCOMM 2023, "adaptive
/// retransmission"). The default ranges of the ROCE_ACCL register are not published.
const FIRST_EARLY_NS: u64 = ACK_TIMEOUT_UNIT_NS << 10;

/// Time of each RNR NAK timer code, in units of 10 µs (IBTA volume 1, table "Encoding for RNR NAK Timer Field").
const RNR_TIMER_10_US: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024,
    1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// Returns the time that a requester waits for an acknowledgement: 4.096 µs · 2^code, in nanoseconds. Returns `None`
/// for code 0, which waits forever.
pub(super) const fn ack_timeout_ns(code: u32) -> Option<u64> {
    match code {
        0 => None,
        code => Some(ACK_TIMEOUT_UNIT_NS << (code & 31)),
    }
}

/// Timer of adaptive retransmission, which expires before the ACK timeout. It expires after 4.2 ms, and then after
/// twice as long each time until something is acknowledged (NVIDIA, "Adaptive Retransmission: Parameters Control":
/// doubled within its range, at most the queue pair's timeout, back to the lower bound by progress). An early
/// retransmission does not count as a retry, so a connection fails at the same time as without this timer.
#[derive(Debug)]
pub(super) struct EarlyTimer {
    wait_ns: u64,
    deadline: Option<u64>,
}

impl EarlyTimer {
    pub(super) const fn new() -> Self {
        Self {
            wait_ns: FIRST_EARLY_NS,
            deadline: None,
        }
    }

    pub(super) const fn deadline(&self) -> Option<u64> {
        self.deadline
    }

    /// Returns to the first interval and stops the timer, because something was acknowledged.
    pub(super) const fn rewind(&mut self) {
        *self = Self::new();
    }

    pub(super) const fn stop(&mut self) {
        self.deadline = None;
    }

    /// Starts a wait at `now` if the ACK timeout ends after it.
    pub(super) fn arm(&mut self, now: u64, ack_deadline: Option<u64>) {
        let next = now.saturating_add(self.wait_ns);
        self.deadline = ack_deadline.filter(|&last| last > next).map(|_| next);
    }

    /// Returns whether the wait has ended. If so, the next wait is twice as long.
    pub(super) fn is_over(&mut self, now: u64) -> bool {
        let over = self.deadline.is_some_and(|deadline| deadline <= now);
        if over {
            self.deadline = None;
            self.wait_ns = self.wait_ns.saturating_mul(2);
        }
        over
    }
}

/// Returns the time that a requester waits after an RNR NAK with this timer code, in nanoseconds.
pub(super) fn rnr_timer_ns(code: u8) -> u64 {
    // PANIC: the mask leaves five bits, and the table has 32 entries.
    u64::from(RNR_TIMER_10_US[usize::from(code & 31)]) * 10_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_timeout_is_4096_ns_doubled_and_code_0_is_forever() {
        assert_eq!(ack_timeout_ns(0), None);
        assert_eq!(ack_timeout_ns(1), Some(8_192));
        assert_eq!(ack_timeout_ns(14), Some(67_108_864));
        assert_eq!(ack_timeout_ns(31), Some(4_096 << 31));
    }

    /// The timer codes have the values of the table in IBTA volume 1 (here in microseconds).
    #[test]
    fn rnr_timer_codes_have_the_documented_milliseconds() {
        for (code, microseconds) in [
            (0, 655_360),
            (1, 10),
            (5, 60),
            (12, 640),
            (13, 960),
            (18, 5_120),
            (31, 491_520),
        ] {
            assert_eq!(rnr_timer_ns(code), microseconds * 1_000, "code {code}");
        }
    }
}
