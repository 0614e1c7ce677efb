//! The lines about priorities and congestion control on the port of the physical function. RDMA works without them:
//! frames that are dropped because a queue is full are sent again, which the counters `packet_seq_err` and
//! `out_of_sequence` show. `datctl info` shows what the device itself reports about these settings.

use driver::PciAddress;
use driver::pci::Machine;
use serde_json::Value;

use super::Line;

/// Runs `dcb` of iproute2, and returns its JSON output; `None` if it is missing or fails.
fn dcb(machine: &Machine, object: &str, interface: &str) -> Option<Value> {
    let text = machine.ask("dcb", &["-j", object, "show", "dev", interface])?;
    serde_json::from_str(&text).ok()
}

/// Checks that the port pauses at least one priority, instead of dropping its frames (IEEE 802.1Qbb).
pub(super) fn priorities(machine: &Machine, interface: &str) -> Line {
    const CHECK: &str = "pf pfc";
    let told = dcb(machine, "pfc", interface);
    let told = told
        .as_ref()
        .and_then(|told| told.get("prio_pfc")?.as_array());
    let Some(told) = told else {
        return Line::unknown(
            CHECK,
            "which priorities the port pauses is unknown: dcb (of iproute2) is not there or says nothing of it",
            format!("dcb pfc show dev {interface}"),
        );
    };
    let is_on = |entry: &Value| entry.as_bool() == Some(true) || entry.as_str() == Some("on");
    let on = told.iter().enumerate().filter(|(_, entry)| is_on(entry));
    let on: Vec<String> = on.map(|(priority, _)| priority.to_string()).collect();
    if on.is_empty() {
        return Line::not_ok(
            CHECK,
            format!("{interface} pauses no priority: what a full queue drops is sent again"),
            format!(
                "dcb pfc set dev {interface} prio-pfc all:off 3:on, and the same on the switch"
            ),
        )
        .optional();
    }
    let of = if on.len() == 1 {
        "priority"
    } else {
        "priorities"
    };
    Line::ok(CHECK, format!("{interface} pauses {of} {}", on.join(", ")))
}

/// Reports whether the port takes a frame's priority from its DSCP or from its VLAN tag.
pub(super) fn trust(machine: &Machine, interface: &str) -> Line {
    const CHECK: &str = "pf priority";
    let Some(told) = dcb(machine, "app", interface) else {
        return Line::unknown(
            CHECK,
            "by what the port goes is unknown: dcb (of iproute2) is not there or says nothing of it",
            format!("dcb app show dev {interface}"),
        );
    };
    // If there is a rule for a DSCP, the driver sets the port to trust DSCP (Linux `en_dcbnl.c`
    // `mlx5e_dcbnl_ieee_setapp`).
    let rules = told.get("dscp_prio").and_then(Value::as_array);
    let words = |rule: &Value| {
        let [dscp, priority] = rule.as_array()?.as_slice() else {
            return None;
        };
        let dscp = dscp
            .as_str()
            .map_or_else(|| dscp.to_string(), str::to_owned);
        Some(format!("{dscp} is {priority}"))
    };
    let rules: Vec<String> = rules.into_iter().flatten().filter_map(words).collect();
    if rules.is_empty() {
        return Line::not_ok(
            CHECK,
            format!(
                "{interface} goes by VLAN tags: what has none is priority 0, whatever its DSCP"
            ),
            format!("dcb app add dev {interface} dscp-prio 26:3"),
        )
        .optional();
    }
    Line::ok(
        CHECK,
        format!("{interface} goes by DSCP: {}", rules.join(", ")),
    )
}

/// Reports whether the kernel shows the parameters of the device's congestion control. The firmware reacts to
/// congestion unless the control was switched off. Only the kernel shows the parameters.
pub(super) fn congestion(machine: &Machine, physical: PciAddress) -> Line {
    const CHECK: &str = "pf congestion";
    let parameters = format!("/sys/kernel/debug/mlx5/{physical}/cc_params");
    if machine.path(&parameters).is_dir() {
        return Line::ok(
            CHECK,
            format!("the device's control has its parameters in {parameters}"),
        );
    }
    Line::unknown(
        CHECK,
        "whether the device slows down where the network marks packets is unknown",
        format!(
            "ls {parameters} (as root, with mlx5_ib loaded); datctl info NAME says what the device tells"
        ),
    )
}
