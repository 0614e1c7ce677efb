//! The port's settings for priorities and congestion, for diagnostics. Only the physical function may set them.
//! Settings that a function may not read are `None`, which is no error.

use super::{LOCAL_PORT, READ, access};
use crate::caps::Caps;
use crate::control::Commands;
use crate::error::CmdError;
use mlx_prm::{
    CmdStatus, Command, CongControlRRoceEcnNp, CongProtocol, DSCPS, Pfcc, Qpdpm, Qpts,
    QueryCongParamsIn, QueryCongStatusIn, RegisterId, TrustState,
};

/// Number of priorities of an Ethernet port.
const PRIORITIES: u32 = 8;

/// The port's settings for priorities and congestion. A setting is `None` if this function may not read it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortQos {
    /// Flow control, which keeps the port from losing frames (register PFCC).
    pub flow_control: Option<FlowControl>,
    /// Field of a frame from which the port takes the frame's priority (register QPTS).
    pub trust: Option<TrustState>,
    /// Priority of each DSCP code point (register QPDPM). The port uses these priorities only if `trust` is DSCP.
    pub dscp_priorities: Option<[u8; DSCPS]>,
    /// Congestion control of the device (QUERY_CONG_STATUS, QUERY_CONG_PARAMS).
    pub congestion: Option<CongestionControl>,
}

/// Flow control by pause frames, for the whole port and for single priorities (IEEE 802.3x, 802.1Qbb).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowControl {
    /// True if the port sends pause frames for all its traffic.
    pub pause_sent: bool,
    /// True if the port obeys pause frames for all its traffic.
    pub pause_obeyed: bool,
    /// Bit mask of the priorities for which the port sends pause frames.
    pub priorities_sent: u8,
    /// Bit mask of the priorities for which the port obeys pause frames.
    pub priorities_obeyed: u8,
}

/// RoCE congestion control (DCQCN).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CongestionControl {
    /// Bit mask of the priorities in which the device, as a sender, slows down on a congestion notification.
    pub reacts: u8,
    /// Bit mask of the priorities in which the device, as a receiver, notifies the sender of a marked packet.
    pub notifies: u8,
    /// DSCP code point of the notification packets; `None` if it is not reported.
    pub cnp_dscp: Option<u8>,
    /// IEEE 802.1Q priority of the notification packets; `None` if it is not reported.
    pub cnp_priority: Option<u8>,
}

pub(crate) fn read_qos(control: &mut impl Commands, caps: &Caps) -> Result<PortQos, CmdError> {
    let mut register = Pfcc::new();
    register.set_local_port(LOCAL_PORT);
    let flow_control = access(control, RegisterId::PFCC, READ, &register)?;
    let mut register = Qpts::new();
    register.set_local_port(LOCAL_PORT);
    let trust = access(control, RegisterId::QPTS, READ, &register)?;
    let mut register = Qpdpm::new();
    register.set_local_port(LOCAL_PORT);
    let priorities = access(control, RegisterId::QPDPM, READ, &register)?;
    Ok(PortQos {
        flow_control: flow_control.map(|told| FlowControl {
            pause_sent: told.pptx(),
            pause_obeyed: told.pprx(),
            priorities_sent: bits(told.pfctx()),
            priorities_obeyed: bits(told.pfcrx()),
        }),
        trust: trust.map(|told| told.trust_state()),
        dscp_priorities: priorities.map(|told| core::array::from_fn(|dscp| told.priority(dscp))),
        congestion: congestion(control, caps)?,
    })
}

/// Returns the low eight bits of a field; the field has no others.
fn bits(field: u32) -> u8 {
    field.to_be_bytes()[3]
}

fn congestion(
    control: &mut impl Commands,
    caps: &Caps,
) -> Result<Option<CongestionControl>, CmdError> {
    if !caps.general().cc_query_allowed() {
        return Ok(None);
    }
    let Some(reacts) = priorities(control, CongProtocol::R_ROCE_ECN_RP)? else {
        return Ok(None);
    };
    let Some(notifies) = priorities(control, CongProtocol::R_ROCE_ECN_NP)? else {
        return Ok(None);
    };
    let mut ask = QueryCongParamsIn::new();
    ask.set_cong_protocol(CongProtocol::R_ROCE_ECN_NP);
    let told = query_permitted(control, &ask)?;
    let told = told.map(|told| CongControlRRoceEcnNp::from_array(*told.congestion_parameters()));
    Ok(Some(CongestionControl {
        reacts,
        notifies,
        cnp_dscp: told.as_ref().map(|told| bits(told.cnp_dscp())),
        cnp_priority: told.as_ref().map(|told| bits(told.cnp_802p_prio())),
    }))
}

/// Returns a bit mask of the priorities in which `protocol` (a DCQCN role of the device) is enabled; `None` if the
/// firmware refuses the query.
fn priorities(control: &mut impl Commands, protocol: CongProtocol) -> Result<Option<u8>, CmdError> {
    let mut enabled = 0;
    for priority in 0..PRIORITIES {
        let mut ask = QueryCongStatusIn::new();
        ask.set_priority(priority).set_cong_protocol(protocol);
        let Some(told) = query_permitted(control, &ask)? else {
            return Ok(None);
        };
        enabled |= u8::from(told.enable()) << priority;
    }
    Ok(Some(enabled))
}

/// Returns the answer to a query; `None` if the firmware refuses it to this function.
fn query_permitted<C: Command>(
    control: &mut impl Commands,
    ask: &C,
) -> Result<Option<C::Out>, CmdError> {
    match control.exec(ask) {
        Ok(told) => Ok(Some(told)),
        Err(error)
            if error
                .status()
                .is_some_and(|status| status != CmdStatus::INTERNAL_ERR) =>
        {
            tracing::debug!(%error, "the firmware refuses the query of congestion control");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
