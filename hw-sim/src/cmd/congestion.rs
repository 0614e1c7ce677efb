//! QUERY_CONG_STATUS, QUERY_CONG_PARAMS and QUERY_CONG_STATISTICS: what the device does against congestion, and what it
//! has counted of it. They need `cc_query_allowed`,
//! which a virtual function has where its physical one's firmware lets it.

use super::{Cmd, Outcome, Refusal, output, refuse};
use mlx_prm::{
    CongControlRRoceEcnNp, CongProtocol, QueryCongParamsIn, QueryCongParamsOut,
    QueryCongStatisticsIn, QueryCongStatisticsOut, QueryCongStatusIn, QueryCongStatusOut,
};
use zerocopy::IntoBytes;

use crate::card::CongestionCounters;
use crate::dcqcn::microseconds;

/// Priorities of an Ethernet port.
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
            if let Ok(bytes) = qos.reaction.told().as_bytes().try_into() {
                out.set_congestion_parameters(bytes);
            }
        }
        other => return Err(refuse!(BAD_PARAM, "congestion protocol", "{other:?}")),
    }
    output(&out)
}

pub(super) fn query_cong_statistics(cmd: &mut Cmd<'_>) -> Outcome {
    allowed(cmd)?;
    let input: QueryCongStatisticsIn = cmd.read();
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
