//! DCQCN, the sender's side: a queue pair slows down when it is notified of congestion, and recovers otherwise.
//!
//! The algorithm is that of Zhu et al. ("Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, section
//! 3.1 and figure 7). A notification multiplies the current rate by 1 - α/2 and keeps the previous rate as the target.
//! α estimates the fraction of marked packets: it grows with a notification and shrinks while none arrives. Two clocks
//! raise the rate again, one of time and one of bytes sent. Their ticks since the last cut select the step:
//!
//! ```text
//!   both below F ticks   fast recovery      half of the way to the target
//!   one at F or above    additive increase  target + R_AI, half of the way
//!   both above F         hyper increase     target + i R_HAI, half of the way; i = lower count - F
//! ```
//!
//! The parameters have the device's names (`cong_control_r_roce_ecn_rp` of Linux `mlx5_ifc.h`), and QUERY_CONG_PARAMS
//! reports them. Their defaults are those of a real card ([`Reaction::default`]). The paper's values (figure 7, table
//! 14) are [`Reaction::PAPER`]. Additions of the firmware, such as clamped target rates, are reported but not
//! implemented, because no public text defines them.
//!
//! The state machine has no clock of its own: each call first applies the ticks since the last call.

use std::time::Duration;

use mlx_prm::{CongControlRRoceEcnRp, RpField};
use serde::{Deserialize, Serialize};

use crate::time::nanoseconds;

/// One megabit, in bits.
const MEGABIT: u64 = 1_000_000;
/// Unit of `rpg_byte_reset`, in bytes.
const BYTE_RESET_UNIT: u64 = 64;
/// Maximum number of ticks that one call applies. With any useful parameters the rate has recovered by then.
const TICKS: usize = 1 << 14;
/// Value that represents α = 1 in the device's registers. `dce_tcp_g` is the complement of the gain, 1 - g. This is
/// inferred: cards are shipped with 1019, and a gain of 1019/1024 would disable the average.
const ALPHA_ONE: f64 = 1024.0;
const ALL_OF_ALPHA: u32 = 1024;
/// An α below this value has no measurable effect on the rate and does not shrink further.
const NO_ALPHA: f64 = 1e-3;

/// Parameters of a sender's slowdown and recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reaction {
    /// Time between two increases of the rate (`rpg_time_reset`).
    pub time_reset: Duration,
    /// Bytes between two increases of the rate (`rpg_byte_reset`).
    pub byte_reset: u64,
    /// F: number of ticks after which the target rate rises (`rpg_threshold`).
    pub threshold: u32,
    /// R_AI: step of an additive increase, in Mb/s (`rpg_ai_rate`).
    pub additive_mbps: u32,
    /// R_HAI: step of a hyper increase, in Mb/s (`rpg_hai_rate`).
    pub hyper_mbps: u32,
    /// Lower limit of the rate after a cut, in Mb/s (`rpg_min_rate`).
    pub min_mbps: u32,
    /// K: time without a notification after which α shrinks (`dce_tcp_rtt`).
    pub alpha_time: Duration,
    /// g: gain of α, in 1/1024 (`dce_tcp_g` is 1024 minus this).
    pub gain: u32,
    /// Value of α at a queue pair's first notification, in 1/1024 (`initial_alpha_value`).
    pub initial_alpha: u32,
}

/// The current values of a ConnectX-5, as mlxconfig printed them (`github.com/ironcore-dev/dpservice`, issue 26):
/// `RPG_TIME_RESET` 300, `RPG_BYTE_RESET` 32767, `RPG_THRESHOLD` 1, and so on.
impl Default for Reaction {
    fn default() -> Self {
        Self {
            time_reset: Duration::from_micros(300),
            byte_reset: 32_767 * BYTE_RESET_UNIT,
            threshold: 1,
            additive_mbps: 5,
            hyper_mbps: 50,
            min_mbps: 1,
            alpha_time: Duration::from_micros(1),
            gain: ALL_OF_ALPHA - 1019,
            initial_alpha: 1023,
        }
    }
}

impl Reaction {
    /// The values of the paper.
    pub const PAPER: Self = Self {
        time_reset: Duration::from_micros(55),
        byte_reset: 10_000_000,
        threshold: 5,
        additive_mbps: 40,
        hyper_mbps: 400,
        min_mbps: 1,
        alpha_time: Duration::from_micros(55),
        gain: 4,
        initial_alpha: 1023,
    };
}

/// Maximum α and gain, which are 10-bit values.
const ALPHA_MOST: u32 = 1023;
/// Maximum time of a parameter, in microseconds.
const TIME_MOST: u32 = 1_000_000;

/// Returns a time in microseconds, or the register's maximum if the time is longer.
pub(crate) fn microseconds(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

impl Reaction {
    /// Returns the parameters after MODIFY_CONG_PARAMS. The command selects each changed parameter by a bit. Rates are
    /// limited to the port's rate. No public text states the firmware's limits; the limits here follow from the meaning
    /// of the parameters. A parameter that is reported but not implemented must not change.
    ///
    /// # Errors
    /// A description of the value that is refused.
    pub(crate) fn changed(
        mut self,
        select: u32,
        told: &CongControlRRoceEcnRp,
        line_bps: u64,
    ) -> Result<Self, String> {
        let line_mbps = u32::try_from(line_bps / MEGABIT).unwrap_or(u32::MAX);
        let stays = self.reported();
        for bit in (0..u32::BITS).filter(|bit| select >> bit & 1 == 1) {
            let field = u8::try_from(bit).map_or(RpField(u8::MAX), RpField);
            let within = |value: u32, least: u32, most: u32| match value {
                _ if (least..=most).contains(&value) => Ok(value),
                _ => Err(format!("{field} is {least} to {most}, not {value}")),
            };
            let time = |value: u32| {
                within(value, 1, TIME_MOST).map(|time| Duration::from_micros(time.into()))
            };
            let same = |value: u32, now: u32| within(value, now, now).map(drop);
            match field {
                RpField::TIME_RESET => self.time_reset = time(told.rpg_time_reset())?,
                RpField::BYTE_RESET => {
                    self.byte_reset = BYTE_RESET_UNIT * u64::from(told.rpg_byte_reset());
                }
                RpField::THRESHOLD => self.threshold = within(told.rpg_threshold(), 1, u32::MAX)?,
                RpField::AI_RATE => self.additive_mbps = within(told.rpg_ai_rate(), 1, line_mbps)?,
                RpField::HAI_RATE => self.hyper_mbps = within(told.rpg_hai_rate(), 1, line_mbps)?,
                RpField::MIN_RATE => self.min_mbps = within(told.rpg_min_rate(), 1, line_mbps)?,
                RpField::DCE_TCP_G => {
                    self.gain = ALL_OF_ALPHA - within(told.dce_tcp_g(), 1, ALPHA_MOST)?;
                }
                RpField::DCE_TCP_RTT => self.alpha_time = time(told.dce_tcp_rtt())?,
                RpField::INITIAL_ALPHA_VALUE => {
                    self.initial_alpha = within(told.initial_alpha_value(), 1, ALPHA_MOST)?;
                }
                RpField::CLAMP_TGT_RATE => {
                    same(told.clamp_tgt_rate().into(), stays.clamp_tgt_rate().into())?;
                }
                RpField::CLAMP_TGT_RATE_AFTER_TIME_INC => same(
                    told.clamp_tgt_rate_after_time_inc().into(),
                    stays.clamp_tgt_rate_after_time_inc().into(),
                )?,
                RpField::MAX_RATE => same(told.rpg_max_rate(), stays.rpg_max_rate())?,
                RpField::MIN_DEC_FAC => same(told.rpg_min_dec_fac(), stays.rpg_min_dec_fac())?,
                RpField::RATE_TO_SET_ON_FIRST_CNP => same(
                    told.rate_to_set_on_first_cnp(),
                    stays.rate_to_set_on_first_cnp(),
                )?,
                RpField::RATE_REDUCE_MONITOR_PERIOD => same(
                    told.rate_reduce_monitor_period(),
                    stays.rate_reduce_monitor_period(),
                )?,
                RpField::GD => same(told.rpg_gd(), stays.rpg_gd())?,
                _ => return Err(format!("there is no parameter {bit}")),
            }
        }
        Ok(self)
    }

    /// Returns the parameters as QUERY_CONG_PARAMS reports them.
    pub(crate) fn reported(&self) -> CongControlRRoceEcnRp {
        let units = u32::try_from(self.byte_reset / BYTE_RESET_UNIT).unwrap_or(u32::MAX);
        let mut out = CongControlRRoceEcnRp::new();
        out.set_rpg_time_reset(microseconds(self.time_reset))
            .set_rpg_byte_reset(units)
            .set_rpg_threshold(self.threshold)
            .set_rpg_ai_rate(self.additive_mbps)
            .set_rpg_hai_rate(self.hyper_mbps)
            // log2 of the divisor of α, which is in 1/1024. 2^11 gives α/2.
            .set_rpg_gd(11)
            // A cut leaves at least 50 % of the rate.
            .set_rpg_min_dec_fac(50)
            .set_rpg_min_rate(self.min_mbps)
            .set_dce_tcp_g(ALL_OF_ALPHA.saturating_sub(self.gain))
            // The next two are reported with a real card's values, but not implemented.
            .set_clamp_tgt_rate_after_time_inc(true)
            .set_rate_reduce_monitor_period(4)
            .set_dce_tcp_rtt(microseconds(self.alpha_time))
            .set_initial_alpha_value(self.initial_alpha);
        out
    }
}

/// The rate of a queue pair that was notified of congestion (reaction point).
#[derive(Clone, Debug)]
pub(crate) struct ReactionPoint {
    rules: Reaction,
    line_bps: f64,
    /// R_C: current rate.
    current_bps: f64,
    /// R_T: target rate.
    target_bps: f64,
    alpha: f64,
    /// Time at which α shrinks next, in ns; `u64::MAX`: never.
    alpha_due: u64,
    /// Time at which the rate rises next, in ns; `u64::MAX`: not by time.
    time_due: u64,
    time_ticks: u32,
    byte_ticks: u32,
    bytes: u64,
    /// Time at which the queue pair may send its next packet, in ns.
    free: u64,
}

impl ReactionPoint {
    /// Returns the state of a queue pair that has sent at its port's rate until now.
    pub(crate) fn new(rules: Reaction, line_bps: u64, now: u64) -> Self {
        let line_bps = line_bps as f64;
        Self {
            rules,
            line_bps,
            current_bps: line_bps,
            target_bps: line_bps,
            alpha: (f64::from(rules.initial_alpha) / ALPHA_ONE).min(1.0),
            alpha_due: u64::MAX,
            time_due: u64::MAX,
            time_ticks: 0,
            byte_ticks: 0,
            bytes: 0,
            free: now,
        }
    }

    /// Adopts the port's parameters, which may have changed.
    pub(crate) fn follow(&mut self, rules: Reaction) {
        self.rules = rules;
    }

    /// Returns the current rate in bits per second.
    pub(crate) fn rate_bps(&self) -> f64 {
        self.current_bps
    }

    /// Handles a notification: reduces the rate.
    pub(crate) fn notified(&mut self, now: u64) {
        self.catch_up(now);
        // The rate stays above zero, because a queue pair that cannot send would never recover.
        let least = (u64::from(self.rules.min_mbps.max(1)) * MEGABIT) as f64;
        self.target_bps = self.current_bps;
        self.current_bps =
            (self.current_bps * (1.0 - self.alpha / 2.0)).max(least.min(self.line_bps));
        let gain = self.gain();
        self.alpha = (1.0 - gain) * self.alpha + gain;
        (self.time_ticks, self.byte_ticks, self.bytes) = (0, 0, 0);
        self.alpha_due = self.after(now, self.rules.alpha_time);
        self.time_due = self.after(now, self.rules.time_reset);
    }

    /// Counts bytes sent. Returns the time at which the next packet may be sent.
    pub(crate) fn sent(&mut self, now: u64, bytes: u64) -> u64 {
        self.catch_up(now);
        self.bytes += bytes;
        while self.rules.byte_reset > 0 && self.bytes >= self.rules.byte_reset {
            self.bytes -= self.rules.byte_reset;
            self.byte_ticks = self.byte_ticks.saturating_add(1);
            self.raise_rate();
        }
        let ns = bytes as f64 * 8e9 / self.current_bps;
        // CAST: the value is positive, and a value that does not fit becomes the maximum.
        #[expect(clippy::cast_possible_truncation, reason = "saturates")]
        #[expect(clippy::cast_sign_loss, reason = "positive")]
        let ns = ns as u64;
        self.free = self.free.max(now).saturating_add(ns);
        self.free
    }

    fn gain(&self) -> f64 {
        (f64::from(self.rules.gain) / ALPHA_ONE).min(1.0)
    }

    fn after(&self, now: u64, time: Duration) -> u64 {
        now.saturating_add(nanoseconds(time).max(1))
    }

    /// Applies the ticks of `alpha_due` and `time_due` until `now`.
    fn catch_up(&mut self, now: u64) {
        for _ in 0..TICKS {
            if self.alpha_due.min(self.time_due) > now {
                return;
            }
            if self.alpha_due <= self.time_due {
                self.alpha *= 1.0 - self.gain();
                self.alpha_due = if self.alpha < NO_ALPHA {
                    u64::MAX
                } else {
                    self.after(self.alpha_due, self.rules.alpha_time)
                };
            } else {
                self.time_ticks = self.time_ticks.saturating_add(1);
                self.raise_rate();
                self.time_due = self.after(self.time_due, self.rules.time_reset);
            }
            if self.current_bps >= self.line_bps && self.alpha < NO_ALPHA {
                // The rate has fully recovered, so α and the rate no longer change with time.
                (self.alpha_due, self.time_due) = (u64::MAX, u64::MAX);
            }
        }
        // The limit of ticks is reached: the intervals are short, or the rate never recovers with these parameters.
        // The remaining ticks are dropped.
        self.alpha_due = self.after(now, self.rules.alpha_time);
        self.time_due = self.after(now, self.rules.time_reset);
    }

    fn raise_rate(&mut self) {
        let (fast, slow) = (
            self.time_ticks.max(self.byte_ticks),
            self.time_ticks.min(self.byte_ticks),
        );
        let threshold = self.rules.threshold;
        let mbps = if fast < threshold {
            0.0
        } else if slow > threshold {
            f64::from(slow - threshold) * f64::from(self.rules.hyper_mbps)
        } else {
            f64::from(self.rules.additive_mbps)
        };
        let rise = mbps * MEGABIT as f64;
        self.target_bps = (self.target_bps + rise).min(self.line_bps);
        self.current_bps = f64::midpoint(self.target_bps, self.current_bps);
        if self.line_bps - self.current_bps < MEGABIT as f64 {
            self.current_bps = self.line_bps;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: u64 = 40_000_000_000;
    const US: u64 = 1_000;

    fn cut(rules: Reaction) -> ReactionPoint {
        let mut point = ReactionPoint::new(rules, LINE, 0);
        point.notified(0);
        point
    }

    fn gbps(point: &ReactionPoint) -> f64 {
        (point.rate_bps() / 1e8).round() / 10.0
    }

    #[test]
    fn the_first_notification_halves_the_rate_and_five_ticks_bring_back_most_of_it() {
        let mut point = cut(Reaction::PAPER);
        assert_eq!(gbps(&point), 20.0);
        let rates: Vec<f64> = (1..=5)
            .map(|tick| {
                point.catch_up(tick * 55 * US);
                gbps(&point)
            })
            .collect();
        assert_eq!(
            rates,
            [30.0, 35.0, 37.5, 38.8, 39.4],
            "half of the way each time"
        );
    }

    #[test]
    fn a_packet_waits_for_the_time_its_bytes_take_at_the_rate() {
        let mut point = cut(Reaction::PAPER);
        let free = point.sent(0, 2_500);
        assert!(
            (990..=1_010).contains(&free),
            "{free} ns for 20,000 bits at 20 Gb/s"
        );
    }

    #[test]
    fn more_notifications_cut_less_as_alpha_shrinks_and_none_goes_below_the_least() {
        let mut point = cut(Reaction::PAPER);
        point.catch_up(100_000 * US);
        let before = point.rate_bps();
        point.notified(100_000 * US);
        assert!(point.rate_bps() > before * 0.9, "α has shrunk");
        for now in 0..10_000 {
            point.notified(100_000 * US + now);
        }
        assert_eq!(point.rate_bps(), 1e6);
    }

    #[test]
    fn after_a_long_pause_there_is_nothing_to_catch_up_with() {
        let mut point = cut(Reaction::PAPER);
        point.catch_up(u64::MAX - 1);
        assert_eq!((point.rate_bps(), point.time_due), (LINE as f64, u64::MAX));
    }

    /// With any parameters, a packet waits a limited time, catching up ends, and the rate stays in its limits.
    #[test]
    fn no_parameters_make_a_packet_or_the_clocks_take_for_ever() {
        let fast = Reaction {
            time_reset: Duration::ZERO,
            alpha_time: Duration::ZERO,
            byte_reset: 1,
            additive_mbps: 0,
            hyper_mbps: 0,
            min_mbps: 0,
            gain: 0,
            initial_alpha: u32::MAX,
            threshold: 0,
        };
        let wild = Reaction {
            additive_mbps: u32::MAX,
            hyper_mbps: u32::MAX,
            gain: u32::MAX,
            ..fast
        };
        for rules in [fast, wild] {
            let mut point = cut(rules);
            for turn in 1..100 {
                point.notified(turn * 1_000_000 * US);
                let free = point.sent(turn * 1_000_000 * US, 4_096);
                assert!(point.rate_bps() >= 1e6 && point.rate_bps() <= LINE as f64);
                assert!(free < (turn + 1) * 1_000_000 * US, "{rules:?}: {free}");
            }
        }
    }

    #[test]
    fn the_parameters_are_told_in_the_devices_units() {
        let told = Reaction::PAPER.reported();
        let times = (told.rpg_time_reset(), told.dce_tcp_rtt());
        assert_eq!(
            (times, told.rpg_byte_reset(), told.rpg_ai_rate()),
            ((55, 55), 156_250, 40)
        );
        assert_eq!((told.dce_tcp_g(), told.initial_alpha_value()), (1020, 1023));
    }

    /// A port's default parameters are those that mlxconfig printed for a real ConnectX-5
    /// (`github.com/ironcore-dev/dpservice`, issue 26).
    #[test]
    fn a_ports_default_parameters_are_those_of_a_real_connectx_5() {
        let told = Reaction::default().reported();
        for (name, value, card) in [
            (
                "CLAMP_TGT_RATE_AFTER_TIME_INC",
                u32::from(told.clamp_tgt_rate_after_time_inc()),
                1,
            ),
            ("CLAMP_TGT_RATE", u32::from(told.clamp_tgt_rate()), 0),
            ("RPG_TIME_RESET", told.rpg_time_reset(), 300),
            ("RPG_BYTE_RESET", told.rpg_byte_reset(), 32_767),
            ("RPG_THRESHOLD", told.rpg_threshold(), 1),
            ("RPG_MAX_RATE", told.rpg_max_rate(), 0),
            ("RPG_AI_RATE", told.rpg_ai_rate(), 5),
            ("RPG_HAI_RATE", told.rpg_hai_rate(), 50),
            ("RPG_GD", told.rpg_gd(), 11),
            ("RPG_MIN_DEC_FAC", told.rpg_min_dec_fac(), 50),
            ("RPG_MIN_RATE", told.rpg_min_rate(), 1),
            (
                "RATE_TO_SET_ON_FIRST_CNP",
                told.rate_to_set_on_first_cnp(),
                0,
            ),
            ("DCE_TCP_G", told.dce_tcp_g(), 1019),
            ("DCE_TCP_RTT", told.dce_tcp_rtt(), 1),
            (
                "RATE_REDUCE_MONITOR_PERIOD",
                told.rate_reduce_monitor_period(),
                4,
            ),
            ("INITIAL_ALPHA_VALUE", told.initial_alpha_value(), 1023),
        ] {
            assert_eq!(value, card, "{name}");
        }
    }

    /// The rate recovers even if it is read rarely. α changes each microsecond, and the clock that raises the rate runs
    /// independently of that.
    #[test]
    fn a_cards_parameters_restore_the_rate_even_if_it_is_rarely_read() {
        let mut point = cut(Reaction::default());
        assert_eq!(gbps(&point), 20.0);
        // After 300 us the rate has risen by half of the way to the target, and the target by 5 Mb/s.
        point.catch_up(301 * US);
        assert_eq!(gbps(&point), 30.0);
        point.catch_up(1_000_000 * US);
        assert_eq!(point.rate_bps(), LINE as f64);
    }
}
