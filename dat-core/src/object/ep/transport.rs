//! Transport settings of an endpoint's connections: network parameters and timeouts, which DAT leaves to the transport.
//!
//! In C these are the transport-specific attributes of an endpoint (`ep_transport_specific`). Each attribute is a pair
//! of strings, a name and a value, as [`EpTransport::set`] takes them.

use core::fmt::{self, Display};
use core::str::FromStr;
use core::time::Duration;
use std::net::IpAddr;

use crate::attributes::NamedAttr;
use crate::error::{DatError, DatResult, Subtype};
use crate::provider::Path;
use crate::types::Qos;

/// Shortest keep-alive interval. A shorter interval would end before the first retransmission, so it would detect
/// nothing earlier.
const SHORTEST_KEEP_ALIVE: Duration = Duration::from_millis(10);
/// Longest keep-alive interval: one day.
const LONGEST_KEEP_ALIVE: Duration = Duration::from_secs(24 * 60 * 60);

/// Transport settings of an endpoint. They apply to connections that the endpoint makes after the settings were made.
/// `None` leaves a setting to the quality of service (`dscp`, `priority`), to the peer's request (for an accepted
/// connection), or to the adapter.
///
/// A connection request carries DSCP, priority, flow label, hop limit, ACK timeout and retry counts to the peer, and
/// the peer usually uses the same values. The other settings are not sent.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct EpTransport {
    /// Source address of outgoing connections, one of the adapter's addresses. The address determines VLAN and gateway.
    /// Accepted connections use the address that the peer connected to.
    pub source_address: Option<IpAddr>,
    /// Differentiated services code point, 0..=63 (RFC 2474).
    pub dscp: Option<u8>,
    /// Priority of the frames, 0..=7 (IEEE 802.1Q PCP). Only frames with a VLAN tag carry it.
    pub priority: Option<u8>,
    /// IPv6 flow label, 20 bits. The UDP source port is derived from it, for networks that choose paths by a hash of
    /// the headers. With 0, the source port of each connection is derived from its queue pair numbers.
    pub flow_label: Option<u32>,
    /// IP hop limit, 1..=255.
    pub hop_limit: Option<u8>,
    /// Local ACK timeout, as a code n for 4.096 us * 2^n, n at most 31; 0 means without limit (IBTA volume 1, "Local
    /// ACK Timeout").
    pub ack_timeout: Option<u8>,
    /// Number of retransmissions of an unacknowledged packet, 0..=7.
    pub retry_count: Option<u8>,
    /// Number of retransmissions to a peer that has no receive buffer, 0..=7; 7 means without limit.
    pub rnr_retry: Option<u8>,
    /// Time that a peer waits if it finds no receive buffer here (IBTA volume 1, "RNR NAK Timer Field", 0..=31).
    pub min_rnr_timer: Option<u8>,
    /// Idle time after which a connection is probed by an RDMA Write of zero bytes, 10 ms to one day; `None` disables
    /// probes. The consumer does not see the probe, but a failed probe breaks the connection. So the failure of a peer
    /// is noticed after at most twice this time plus the time of the retries.
    pub keep_alive: Option<Duration>,
}

/// An illegal transport setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// No setting has this name.
    #[error("transport setting {0} is not known; known are {known}", known = NAMES.join(", "))]
    Unknown(String),
    /// The value is not legal for the setting.
    #[error("transport setting {name}: {value} is not {legal}")]
    Value {
        /// Name of the setting.
        name: &'static str,
        /// Value that was given.
        value: String,
        /// Description of the legal values.
        legal: &'static str,
    },
}

macro_rules! settings {
    ($($name:literal: $legal:literal,)*) => {
        /// Names of the settings.
        pub const NAMES: [&str; 10] = [$($name),*];
        /// Descriptions of the legal values, in the order of `NAMES`.
        const LEGAL: [&str; 10] = [$($legal),*];
        /// Error texts for illegal values, in the order of `NAMES`.
        const REFUSED: [&str; 10] = [$(concat!("transport.", $name, " is not ", $legal)),*];
    };
}

settings! {
    "source_address": "an address",
    "dscp": "0 to 63",
    "priority": "0 to 7",
    "flow_label": "0 to 1048575",
    "hop_limit": "1 to 255",
    "ack_timeout": "0 to 31",
    "retry_count": "0 to 7",
    "rnr_retry": "0 to 7",
    "min_rnr_timer": "0 to 31",
    "keep_alive_ms": "10 to 86400000",
}

impl EpTransport {
    /// Sets a setting by its name. `keep_alive_ms` is in milliseconds; the other values have the units of the fields.
    ///
    /// # Errors
    /// [`TransportError`]; nothing has changed.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), TransportError> {
        let Some(at) = NAMES.iter().position(|known| *known == name) else {
            return Err(TransportError::Unknown(name.to_owned()));
        };
        let mut changed = *self;
        let taken = match at {
            0 => take(&mut changed.source_address, value),
            1 => take(&mut changed.dscp, value),
            2 => take(&mut changed.priority, value),
            3 => take(&mut changed.flow_label, value),
            4 => take(&mut changed.hop_limit, value),
            5 => take(&mut changed.ack_timeout, value),
            6 => take(&mut changed.retry_count, value),
            7 => take(&mut changed.rnr_retry, value),
            8 => take(&mut changed.min_rnr_timer, value),
            _ => value.parse().ok().map(|milliseconds| {
                changed.keep_alive = Some(Duration::from_millis(milliseconds));
            }),
        };
        if taken.is_none() || changed.out_of_range() == Some(at) {
            return Err(TransportError::Value {
                name: NAMES[at],
                value: value.to_owned(),
                legal: LEGAL[at],
            });
        }
        *self = changed;
        Ok(())
    }

    /// Returns the settings that are not `None`, by name, in the form that [`EpTransport::set`] takes.
    #[must_use]
    pub fn named(&self) -> Vec<NamedAttr> {
        let values = [
            text(self.source_address),
            text(self.dscp),
            text(self.priority),
            text(self.flow_label),
            text(self.hop_limit),
            text(self.ack_timeout),
            text(self.retry_count),
            text(self.rnr_retry),
            text(self.min_rnr_timer),
            text(self.keep_alive.map(|interval| interval.as_millis())),
        ];
        let named = NAMES.into_iter().zip(values);
        named
            .filter_map(|(name, value)| Some(NamedAttr::new(name, value?)))
            .collect()
    }

    /// Returns the index of the first setting that is out of its range; `None` if all are legal.
    fn out_of_range(&self) -> Option<usize> {
        let over = |value: Option<u8>, most: u8| value.is_some_and(|value| value > most);
        let keep_alive = self.keep_alive.is_some_and(|interval| {
            !(SHORTEST_KEEP_ALIVE..=LONGEST_KEEP_ALIVE).contains(&interval)
        });
        [
            false,
            over(self.dscp, 63),
            over(self.priority, 7),
            self.flow_label.is_some_and(|label| label > 0xf_ffff),
            self.hop_limit == Some(0),
            over(self.ack_timeout, 31),
            over(self.retry_count, 7),
            over(self.rnr_retry, 7),
            over(self.min_rnr_timer, 31),
            keep_alive,
        ]
        .into_iter()
        .position(|is_out| is_out)
    }

    /// Checks that all settings are in their ranges. `argument` is the subtype that names the settings in the call.
    pub(crate) fn check(&self, argument: Subtype) -> DatResult<()> {
        match self.out_of_range() {
            None => Ok(()),
            Some(at) => Err(DatError::parameter(argument, "transport").because(REFUSED[at])),
        }
    }

    /// Applies these settings to a path. DSCP and priority that are not set here come from the quality of service.
    pub(crate) fn on(&self, qos: Qos, path: Path) -> Path {
        let class = Class::of(qos);
        let dscp = self.dscp.or(class.map(|class| class.dscp));
        let priority = self.priority.or(class.map(|class| class.priority));
        Path {
            traffic_class: dscp.map_or(path.traffic_class, |dscp| dscp << 2),
            priority: priority.unwrap_or(path.priority),
            hop_limit: self.hop_limit.unwrap_or(path.hop_limit),
            flow_label: self.flow_label.unwrap_or(path.flow_label),
            ..path
        }
    }
}

/// Parses a value and stores it. Returns `None` if the value cannot be parsed.
fn take<T: FromStr>(place: &mut Option<T>, value: &str) -> Option<()> {
    *place = Some(value.parse().ok()?);
    Some(())
}

fn text(value: Option<impl Display>) -> Option<String> {
    value.map(|value| value.to_string())
}

impl Display for EpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for NamedAttr { name, value } in self.named() {
            write!(f, "{between}{name}={value}")?;
            between = ",";
        }
        Ok(())
    }
}

/// DSCP and priority of a quality of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    /// Differentiated services code point: RFC 4594, table 3, and RFC 8622.
    dscp: u8,
    /// Priority code point (PCP): IEEE 802.1Q-2018, table I-2.
    priority: u8,
}

impl Class {
    /// Returns the class of a quality of service. If several qualities are set, the first of this order counts:
    /// premium, low latency, high throughput, economy. Best effort has no class.
    fn of(qos: Qos) -> Option<Self> {
        // DSCP and PCP of each row: expedited forwarding, voice; AF21 (low-latency data), critical applications; AF11
        // (high-throughput data), excellent effort; lower effort, background.
        [
            (Qos::PREMIUM, 46, 5),
            (Qos::LOW_LATENCY, 18, 3),
            (Qos::HIGH_THROUGHPUT, 10, 2),
            (Qos::ECONOMY, 1, 1),
        ]
        .into_iter()
        .find(|(quality, ..)| qos.contains(*quality))
        .map(|(_, dscp, priority)| Self { dscp, priority })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_is_set_by_its_name_and_told_again() {
        let mut transport = EpTransport::default();
        let values = [
            "192.0.2.1",
            "26",
            "3",
            "74565",
            "2",
            "14",
            "7",
            "0",
            "12",
            "2000",
        ];
        for (name, value) in NAMES.into_iter().zip(values) {
            transport.set(name, value).expect(name);
        }
        let told = transport.named();
        let told: Vec<&str> = told.iter().map(|one| one.value.as_str()).collect();
        assert_eq!(told, values);
        assert_eq!(transport.keep_alive, Some(Duration::from_secs(2)));
        assert_eq!(transport.dscp, Some(26));
    }

    #[test]
    fn an_illegal_setting_changes_nothing_and_its_error_has_the_legal_values() {
        let mut transport = EpTransport::default();
        for (name, value) in [
            ("source_address", "localhost"),
            ("dscp", "64"),
            ("priority", "8"),
            ("flow_label", "1048576"),
            ("hop_limit", "0"),
            ("ack_timeout", "32"),
            ("retry_count", "8"),
            ("rnr_retry", "-1"),
            ("min_rnr_timer", "32"),
            ("keep_alive_ms", "9"),
        ] {
            let refused = transport.set(name, value).expect_err(name).to_string();
            assert!(
                refused.contains(name) && refused.contains(value),
                "{refused}"
            );
        }
        assert_eq!(
            transport.set("dscp", "64").expect_err("beyond").to_string(),
            "transport setting dscp: 64 is not 0 to 63"
        );
        let unknown = transport.set("tos", "4").expect_err("unknown").to_string();
        assert!(
            unknown.starts_with(
                "transport setting tos is not known; known are source_address, dscp, "
            )
        );
        assert_eq!(transport, EpTransport::default());
    }

    #[test]
    fn the_strongest_quality_counts() {
        let all = Qos::all();
        assert_eq!(Class::of(all).map(|class| class.dscp), Some(46));
        let two = Qos::ECONOMY | Qos::HIGH_THROUGHPUT;
        assert_eq!(Class::of(two).map(|class| class.dscp), Some(10));
        assert_eq!(Class::of(Qos::BEST_EFFORT), None);
    }
}
