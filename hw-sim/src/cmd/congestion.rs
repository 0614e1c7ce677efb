//! QUERY_CONG_STATUS, QUERY_CONG_PARAMS and QUERY_CONG_STATISTICS: the device's congestion settings and counters. These
//! commands need `cc_query_allowed`, which a virtual function has if its physical function's firmware permits it.
//!
//! MODIFY_CONG_PARAMS changes how a port reacts to congestion. It needs `cc_modify_allowed`, and only the physical
//! function may use it.

use super::{Cmd, Outcome, Refusal, output, refuse};
use mlx_prm::{
    CongControlRRoceEcnNp, CongControlRRoceEcnRp, CongProtocol, ModifyCongParamsIn,
    ModifyCongParamsOut, NpField, QueryCongParamsIn, QueryCongParamsOut, QueryCongStatisticsIn,
    QueryCongStatisticsOut, QueryCongStatusIn, QueryCongStatusOut,
};
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

use crate::card::CongestionCounters;
use crate::card::seat::PHYSICAL;
use crate::dcqcn::microseconds;

/// Number of priorities of an Ethernet port.
const PRIORITIES: u32 = 8;

fn allowed(cmd: &Cmd<'_>) -> Result<(), Refusal> {
    if cmd.nic.caps.general.cc_query_allowed() {
        Ok(())
    } else {
        Err(refuse!(BAD_OP, "cc_query_allowed is not set"))
    }
}

pub(super) fn query_cong_status(cmd: &mut Cmd<'_>) -> Outcome {
    allowed(cmd)?;
    let input: QueryCongStatusIn = cmd.read();
    if input.priority() >= PRIORITIES {
        return Err(refuse!(
            BAD_PARAM,
            "no such priority",
            "{}",
            input.priority()
        ));
    }
    let (reacts, notifies) = cmd.env.card(cmd.nic.seat).uplink.qos.congestion;
    let priorities = match input.cong_protocol() {
        CongProtocol::R_ROCE_ECN_RP => reacts,
        CongProtocol::R_ROCE_ECN_NP => notifies,
        other => return Err(refuse!(BAD_PARAM, "congestion protocol", "{other:?}")),
    };
    let mut out = QueryCongStatusOut::new();
    out.set_enable(priorities >> input.priority() & 1 != 0);
    output(&out)
}

pub(super) fn query_cong_params(cmd: &mut Cmd<'_>) -> Outcome {
    allowed(cmd)?;
    let input: QueryCongParamsIn = cmd.read();
    let qos = &cmd.env.card(cmd.nic.seat).uplink.qos;
    let (dscp, priority) = qos.cnp;
    let mut out = QueryCongParamsOut::new();
    match input.cong_protocol() {
        CongProtocol::R_ROCE_ECN_NP => {
            let mut notify = CongControlRRoceEcnNp::new();
            notify
                .set_min_time_between_cnps(microseconds(qos.cnp_interval))
                .set_cnp_dscp(dscp.into())
                .set_cnp_802p_prio(priority.into());
            if let Ok(bytes) = notify.as_bytes().try_into() {
                out.set_congestion_parameters(bytes);
            }
        }
        CongProtocol::R_ROCE_ECN_RP => {
            if let Ok(bytes) = qos.reaction.reported().as_bytes().try_into() {
                out.set_congestion_parameters(bytes);
            }
        }
        other => return Err(refuse!(BAD_PARAM, "congestion protocol", "{other:?}")),
    }
    output(&out)
}

pub(super) fn modify_cong_params(cmd: &mut Cmd<'_>) -> Outcome {
    if !cmd.nic.caps.general.cc_modify_allowed() {
        return Err(refuse!(BAD_OP, "cc_modify_allowed is not set"));
    }
    if cmd.nic.seat.vport != PHYSICAL {
        return Err(refuse!(BAD_OP, "the port is the physical function's"));
    }
    let input: ModifyCongParamsIn = cmd.read();
    let (select, parameters) = (input.field_select(), input.congestion_parameters());
    let layout = |size| refuse!(BAD_PARAM, "congestion parameters", "{size} bytes");
    let uplink = &mut cmd.env.card_mut(cmd.nic.seat).uplink;
    match input.cong_protocol() {
        CongProtocol::R_ROCE_ECN_RP => {
            let told = CongControlRRoceEcnRp::read_from_bytes(parameters)
                .map_err(|_| layout(parameters.len()))?;
            let changed = uplink.qos.reaction.changed(select, &told, uplink.rate_bps);
            uplink.qos.reaction =
                changed.map_err(|what| refuse!(BAD_PARAM, "congestion parameters", "{what}"))?;
        }
        CongProtocol::R_ROCE_ECN_NP => {
            let told = CongControlRRoceEcnNp::read_from_bytes(parameters)
                .map_err(|_| layout(parameters.len()))?;
            let known = [
                NpField::MIN_TIME_BETWEEN_CNPS,
                NpField::CNP_DSCP,
                NpField::CNP_PRIO_MODE,
            ];
            let others = known
                .iter()
                .fold(select, |bits, field| bits & !(1 << field.0));
            if others != 0 {
                return Err(refuse!(BAD_PARAM, "field_select", "{others:#x}"));
            }
            let has = |field: NpField| select >> field.0 & 1 == 1;
            if has(NpField::CNP_PRIO_MODE) && told.cnp_prio_mode() {
                return Err(refuse!(BAD_PARAM, "cnp_prio_mode", "1"));
            }
            let (dscp, priority) = (told.cnp_dscp(), told.cnp_802p_prio());
            // CAST: the fields have six and three bits.
            #[expect(clippy::cast_possible_truncation, reason = "six bits and three")]
            let (dscp, priority) = (dscp as u8, priority as u8);
            if has(NpField::MIN_TIME_BETWEEN_CNPS) {
                let time = told.min_time_between_cnps();
                uplink.qos.cnp_interval = Duration::from_micros(time.into());
            }
            if has(NpField::CNP_DSCP) {
                uplink.qos.cnp.0 = dscp;
            }
            if has(NpField::CNP_PRIO_MODE) {
                uplink.qos.cnp.1 = priority;
            }
        }
        other => return Err(refuse!(BAD_PARAM, "congestion protocol", "{other:?}")),
    }
    output(&ModifyCongParamsOut::new())
}

pub(super) fn query_cong_statistics(cmd: &mut Cmd<'_>) -> Outcome {
    allowed(cmd)?;
    let input: QueryCongStatisticsIn = cmd.read();
    cmd.of_the_driver(input.clear(), "clearing congestion statistics")?;
    let flows = u32::try_from(cmd.nic.slowed_down()).unwrap_or(u32::MAX);
    let counters = &mut cmd.env.card_mut(cmd.nic.seat).uplink.congestion;
    let halves = |count: u64| {
        let [a, b, c, d, e, f, g, h] = count.to_be_bytes();
        [[a, b, c, d], [e, f, g, h]].map(u32::from_be_bytes)
    };
    let [marked_high, marked_low] = halves(counters.marked_received);
    let [sent_high, sent_low] = halves(counters.cnps_sent);
    let mut out = QueryCongStatisticsOut::new();
    out.set_rp_cur_flows(flows)
        .set_sum_flows(flows)
        .set_rp_cnp_ignored(counters.cnps_ignored)
        .set_rp_cnp_handled(counters.cnps_handled)
        .set_np_ecn_marked_roce_packets_high(marked_high)
        .set_np_ecn_marked_roce_packets_low(marked_low)
        .set_np_cnp_sent_high(sent_high)
        .set_np_cnp_sent_low(sent_low);
    if input.clear() {
        *counters = CongestionCounters::default();
    }
    output(&out)
}
