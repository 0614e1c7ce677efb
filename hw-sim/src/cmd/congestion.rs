//! QUERY_CONG_STATUS and QUERY_CONG_PARAMS: what the device does against congestion. They need `cc_query_allowed`,
//! which a virtual function has where its physical one's firmware lets it.

use super::{Cmd, Outcome, Refusal, output, refuse};
use mlx_prm::{
    CongControlRRoceEcnNp, CongProtocol, QueryCongParamsIn, QueryCongParamsOut, QueryCongStatusIn,
    QueryCongStatusOut,
};
use zerocopy::IntoBytes;

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
    let (dscp, priority) = cmd.env.card(cmd.nic.seat).uplink.qos.cnp;
    let mut out = QueryCongParamsOut::new();
    match input.cong_protocol() {
        CongProtocol::R_ROCE_ECN_NP => {
            let mut notify = CongControlRRoceEcnNp::new();
            notify
                .set_cnp_dscp(dscp.into())
                .set_cnp_802p_prio(priority.into());
            if let Ok(bytes) = notify.as_bytes().try_into() {
                out.set_congestion_parameters(bytes);
            }
        }
        // Nobody slows down here.
        CongProtocol::R_ROCE_ECN_RP => {}
        other => return Err(refuse!(BAD_PARAM, "congestion protocol", "{other:?}")),
    }
    output(&out)
}
