//! Priorities and congestion control of a port as text, as far as the function may read them.

use hw_mlx::{PortQos, TrustState};
use serde::Serialize;

/// Text for a setting that can be read and set only on the physical function's side.
const NOT_REPORTED: &str = "not reported to this function; on the physical function's side";

/// Settings of the port. A field is `None` if the function may not read it.
#[derive(Serialize)]
pub(crate) struct Qos {
    flow_control: Option<FlowControl>,
    /// Source of a frame's priority: `pcp`, `dscp`, or an unknown number.
    trust: Option<String>,
    /// Code points (DSCP) with a priority other than 0, each with its priority.
    dscp_priorities: Option<Vec<(usize, u8)>>,
    congestion_control: Option<Congestion>,
}

#[derive(Serialize)]
struct FlowControl {
    pause_sent: bool,
    pause_obeyed: bool,
    /// Priorities for which the port sends pause frames. The next field has the priorities for which the port obeys
    /// pause frames.
    priorities_sent: Vec<u8>,
    priorities_obeyed: Vec<u8>,
}

#[derive(Serialize)]
struct Congestion {
    /// Priorities on which the device reacts to congestion. The next field has the priorities on which the device
    /// notifies senders.
    reacts: Vec<u8>,
    notifies: Vec<u8>,
    cnp_dscp: Option<u8>,
    cnp_priority: Option<u8>,
}

/// Returns the numbers of the bits that are set, which are priorities.
fn numbers(bits: u8) -> Vec<u8> {
    (0..8).filter(|bit| bits >> bit & 1 != 0).collect()
}

fn list(numbers: &[u8]) -> String {
    let all: Vec<String> = numbers.iter().map(u8::to_string).collect();
    match all.as_slice() {
        [] => "none".to_owned(),
        all => all.join(","),
    }
}

impl Qos {
    pub(crate) fn of(qos: &PortQos) -> Self {
        Self {
            flow_control: qos.flow_control.map(|flow| FlowControl {
                pause_sent: flow.pause_sent,
                pause_obeyed: flow.pause_obeyed,
                priorities_sent: numbers(flow.priorities_sent),
                priorities_obeyed: numbers(flow.priorities_obeyed),
            }),
            trust: qos.trust.map(|trust| match trust {
                TrustState::PCP => "pcp".to_owned(),
                TrustState::DSCP => "dscp".to_owned(),
                other => other.0.to_string(),
            }),
            dscp_priorities: qos.dscp_priorities.map(|all| {
                let all = all.into_iter().enumerate();
                all.filter(|(_, priority)| *priority != 0).collect()
            }),
            congestion_control: qos.congestion.map(|congestion| Congestion {
                reacts: numbers(congestion.reacts),
                notifies: numbers(congestion.notifies),
                cnp_dscp: congestion.cnp_dscp,
                cnp_priority: congestion.cnp_priority,
            }),
        }
    }

    /// Returns one pair of name and value for each row.
    pub(crate) fn rows(&self) -> [(&'static str, String); 3] {
        let on = |is_on: bool| if is_on { "on" } else { "off" };
        let flow = self.flow_control.as_ref().map_or_else(
            || format!("{NOT_REPORTED}: dcb pfc show dev PF"),
            |flow| {
                let lossless = if flow.priorities_sent.is_empty() && !flow.pause_sent {
                    "; no priority is lossless: dcb pfc set dev PF prio-pfc all:off 3:on"
                } else {
                    ""
                };
                format!(
                    "PFC sent for {}, obeyed for {}; pause frames sent {}, obeyed {}{lossless}",
                    list(&flow.priorities_sent),
                    list(&flow.priorities_obeyed),
                    on(flow.pause_sent),
                    on(flow.pause_obeyed)
                )
            },
        );
        let trust = match (self.trust.as_deref(), &self.dscp_priorities) {
            (Some("dscp"), told) => {
                let told = told.iter().flatten();
                let told: Vec<String> = told
                    .map(|(dscp, priority)| format!("{dscp} is {priority}"))
                    .collect();
                format!("by DSCP; {}, the others 0", told.join(", "))
            }
            (Some("pcp"), _) => {
                "by the VLAN tag, untagged is 0: dcb app add dev PF dscp-prio 26:3 makes it DSCP"
                    .to_owned()
            }
            (Some(other), _) => format!("by code {other}"),
            (None, _) => format!("{NOT_REPORTED}: dcb app show dev PF"),
        };
        let congestion = self.congestion_control.as_ref().map_or_else(
            || format!("{NOT_REPORTED}: /sys/kernel/debug/mlx5/ADDRESS/cc_params"),
            |told| {
                let or = |number: Option<u8>| {
                    number.map_or_else(|| "unknown".to_owned(), |number| number.to_string())
                };
                format!(
                    "slows down in priorities {}, notifies in {}; CNP: DSCP {}, priority {}",
                    list(&told.reacts),
                    list(&told.notifies),
                    or(told.cnp_dscp),
                    or(told.cnp_priority)
                )
            },
        );
        [
            ("flow control", flow),
            ("priority", trust),
            ("congestion", congestion),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_not_reported_name_the_command_that_shows_them() {
        let rows = Qos::of(&PortQos::default()).rows();
        for ((_, said), command) in rows
            .iter()
            .zip(["dcb pfc show", "dcb app show", "cc_params"])
        {
            assert!(
                said.contains(NOT_REPORTED) && said.contains(command),
                "{said}"
            );
        }
    }
}
