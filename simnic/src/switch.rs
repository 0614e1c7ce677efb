//! `--switch`: the switch between cards, used by all programs that serve cards.

use std::error::Error;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use hw_sim::switch::{Buffer, Pfc, Red, SwitchConfig};
use hw_sim::{Connector, LinkFaults, PortQos, Reaction, Sim, SimFunction};

use crate::simulated::duration;

/// Default priority for which a switch sends pause frames.
pub const PRIORITY: u8 = 3;

/// Settings of a switch, as a comma-separated list; a later word overrides an earlier one.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchOptions {
    rate_bps: u64,
    buffer: Buffer,
    ecn: Option<Red>,
    pfc: Option<Pfc>,
    /// True for an InfiniBand switch. Then the other settings do not apply.
    infiniband: bool,
}

impl SwitchOptions {
    /// Returns the settings of a switch for InfiniBand ports, which is a node of their subnet.
    #[must_use]
    pub fn infiniband() -> Self {
        Self {
            infiniband: true,
            ..Self::default()
        }
    }

    /// Returns the simulator's configuration of the switch.
    #[must_use]
    pub fn config(&self) -> SwitchConfig {
        SwitchConfig {
            rate_bps: self.rate_bps,
            buffer: self.buffer,
            ecn: self.ecn,
            pfc: self.pfc,
            ..SwitchConfig::default()
        }
    }

    /// Returns the settings of the cards at this switch. They trust DSCPs, obey pause frames if the switch sends them,
    /// and react to ECN marks if the switch makes them.
    #[must_use]
    pub fn qos(&self) -> PortQos {
        qos(&self.config())
    }

    /// Adds the switch to the simulation, and connects the card of each function to a port of its own.
    pub(crate) fn lay(
        &self,
        sim: &Sim,
        functions: &[Arc<SimFunction>],
        faults: LinkFaults,
    ) -> Result<(), Box<dyn Error>> {
        let ports = functions.len().max(2);
        if self.infiniband {
            let switch = sim.add_subnet_switch(ports)?;
            for (port, function) in (1..).zip(functions) {
                sim.connect_subnet(function, switch, port, faults)?;
            }
            return Ok(());
        }
        let switch = sim.add_switch(SwitchConfig {
            ports,
            ..self.config()
        })?;
        for (port, function) in functions.iter().enumerate() {
            let ends = [Connector::Function(function), Connector::Port(switch, port)];
            sim.connect_switch(ends, faults)?;
            sim.set_qos(function, self.qos());
        }
        Ok(())
    }
}

/// Shortest interval between two congestion notifications of a receiver, from the DCQCN paper.
const PAPER_INTERVAL: Duration = Duration::from_micros(50);

/// Returns the settings of the cards at a switch. If the switch marks frames, the cards react with the parameters of
/// the DCQCN paper.
pub(crate) fn qos(config: &SwitchConfig) -> PortQos {
    let lossless = config.pfc.map_or(0, |pfc| pfc.priorities);
    let reacts = if config.ecn.is_some() { u8::MAX } else { 0 };
    PortQos {
        trust: config.classes.trust,
        priorities: config.classes.of_dscp,
        paused_priorities: (lossless, lossless),
        congestion: (reacts, reacts),
        cnp_interval: PAPER_INTERVAL,
        reaction: Reaction::PAPER,
        ..PortQos::default()
    }
}

impl Default for SwitchOptions {
    fn default() -> Self {
        let SwitchConfig {
            rate_bps,
            buffer,
            ecn,
            pfc,
            ..
        } = SwitchConfig::default();
        Self {
            rate_bps,
            buffer,
            ecn,
            pfc,
            infiniband: false,
        }
    }
}

impl FromStr for SwitchOptions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "ib" {
            return Ok(Self::infiniband());
        }
        let mut options = Self::default();
        let usual = || Pfc::of(1 << PRIORITY);
        for word in text
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty())
        {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let pfc = options.pfc;
            let pfc = || pfc.unwrap_or_else(usual);
            match (name, value) {
                ("rate", _) => options.rate_bps = rate(value)?,
                ("buffer", _) => options.buffer = Buffer::Shared(bytes(value)?),
                ("port-buffer", _) => options.buffer = Buffer::PerPort(bytes(value)?),
                ("ecn", "") => options.ecn = Some(Red::DCQCN),
                ("ecn", _) => options.ecn = Some(red(value)?),
                ("pfc", "") => options.pfc = Some(pfc()),
                ("pfc", _) => {
                    options.pfc = Some(Pfc {
                        priorities: priorities(value)?,
                        ..pfc()
                    })
                }
                ("xoff", _) => {
                    options.pfc = Some(Pfc {
                        xoff_bytes: bytes(value)?,
                        ..pfc()
                    })
                }
                ("xon", _) => {
                    options.pfc = Some(Pfc {
                        xon_bytes: bytes(value)?,
                        ..pfc()
                    })
                }
                ("headroom", _) => {
                    options.pfc = Some(Pfc {
                        headroom_bytes: bytes(value)?,
                        ..pfc()
                    })
                }
                ("watchdog", _) => {
                    options.pfc = Some(Pfc {
                        watchdog: Some(duration(value)?),
                        ..pfc()
                    })
                }
                _ => {
                    return Err(format!(
                        "{word:?} is nothing of a switch; there are rate=25G, buffer=256K, port-buffer=64K, ecn or \
                         ecn=KMIN/KMAX/PMAX, pfc or pfc=3/4, xoff=32K, xon=24K, headroom=64K, watchdog=1ms; or ib by itself, a switch for InfiniBand ports"
                    ));
                }
            }
        }
        options
            .config()
            .check()
            .map_err(|error| error.to_string())?;
        Ok(options)
    }
}

/// Parses a number of bytes, with an optional unit K (1024) or M (1024 K).
fn bytes(text: &str) -> Result<usize, String> {
    let (number, unit) = match text.strip_suffix(['K', 'M']) {
        Some(number) if text.ends_with('K') => (number, 1 << 10),
        Some(number) => (number, 1 << 20),
        None => (text, 1),
    };
    let number = number
        .parse::<usize>()
        .ok()
        .and_then(|number| number.checked_mul(unit));
    number.ok_or_else(|| format!("{text:?} is no number of bytes like 64K or 1M"))
}

/// Parses a rate in bits per second with the unit M or G (powers of 1000).
fn rate(text: &str) -> Result<u64, String> {
    let (number, unit) = match (text.strip_suffix('G'), text.strip_suffix('M')) {
        (Some(number), _) => (number, 1_000_000_000),
        (None, Some(number)) => (number, 1_000_000),
        (None, None) => ("", 0),
    };
    let number = number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit));
    number.ok_or_else(|| format!("{text:?} is no rate like 100G or 250M"))
}

fn red(text: &str) -> Result<Red, String> {
    let wrong = || format!("{text:?} is no KMIN/KMAX/PMAX like 5K/200K/1%");
    let [kmin, kmax, pmax] = text
        .split('/')
        .collect::<Vec<_>>()
        .try_into()
        .map_err(|_| wrong())?;
    let percent = pmax
        .strip_suffix('%')
        .and_then(|number| number.parse::<f64>().ok());
    Ok(Red {
        kmin_bytes: bytes(kmin)?,
        kmax_bytes: bytes(kmax)?,
        pmax: percent.ok_or_else(wrong)? / 100.0,
    })
}

/// Parses priorities separated by slashes. Returns a bit mask.
fn priorities(text: &str) -> Result<u8, String> {
    let bit = |number: &str| match number.parse::<u8>() {
        Ok(number @ 0..=7) => Ok(1 << number),
        Ok(_) | Err(_) => Err(format!("{number:?} is no priority from 0 to 7")),
    };
    text.split('/')
        .map(bit)
        .try_fold(0, |bits, bit| Ok(bits | bit?))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_switch_is_a_list_of_words_and_later_ones_win() {
        let options: SwitchOptions =
            "rate=10G,rate=25G,buffer=64K,ecn=5K/200K/1%,pfc=3/4,watchdog=1ms"
                .parse()
                .expect("a switch");
        let config = options.config();
        assert_eq!(
            (config.rate_bps, config.buffer),
            (25_000_000_000, Buffer::Shared(65_536))
        );
        let red = Red {
            kmin_bytes: 5 << 10,
            kmax_bytes: 200 << 10,
            pmax: 0.01,
        };
        assert_eq!(config.ecn, Some(red));
        let pfc = Pfc {
            watchdog: Some(Duration::from_millis(1)),
            ..Pfc::of(0b1_1000)
        };
        assert_eq!(config.pfc, Some(pfc));
        assert_eq!(
            "".parse::<SwitchOptions>()
                .expect("a lossy switch")
                .config()
                .pfc,
            None
        );
    }

    #[test]
    fn a_switch_of_infiniband_ports_is_a_word_by_itself() {
        let options: SwitchOptions = "ib".parse().expect("a switch");
        assert_eq!(options, SwitchOptions::infiniband());
        let error = "ib,pfc".parse::<SwitchOptions>().expect_err("both");
        assert!(error.contains("or ib by itself"), "{error}");
    }

    #[test]
    fn words_that_mean_nothing_are_refused_with_what_there_is() {
        for (text, part) in [
            (
                "colour=red",
                "\"colour=red\" is nothing of a switch; there are rate=25G",
            ),
            ("rate=10", "no rate like 100G"),
            ("rate=0G", "0 bit/s"),
            ("buffer=big", "no number of bytes"),
            ("ecn=1K", "no KMIN/KMAX/PMAX"),
            ("ecn=9K/9K/1%", "Kmin 9216"),
            ("pfc=8", "\"8\" is no priority"),
            ("xon=64K", "XON 65536"),
            ("watchdog=soon", "no time like"),
        ] {
            let error = text.parse::<SwitchOptions>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
