//! What the port does with priorities and about congestion, for people who look. All of it is the physical function's
//! to set; what a function is not told is `None`, and no failure.

use super::{LOCAL_PORT, READ, access};
use crate::caps::Caps;
use crate::control::Commands;
use crate::error::CmdError;
use mlx_prm::{
    CmdStatus, Command, CongControlRRoceEcnNp, CongProtocol, DSCPS, Pfcc, Qpdpm, Qpts,
    QueryCongParamsIn, QueryCongStatusIn, RegisterId, TrustState,
};

/// Priorities of an Ethernet port.
const PRIORITIES: u32 = 8;

/// What the port does with priorities and about congestion. `None`: this function is not told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortQos {
    /// How the port is kept from losing frames (register PFCC).
    pub flow_control: Option<FlowControl>,
    /// By which bits of a frame the port goes (register QPTS).
    pub trust: Option<TrustState>,
    /// The priority of each code point, if the port goes by them (register QPDPM).
    pub dscp_priorities: Option<[u8; DSCPS]>,
    /// What the device does about congestion (QUERY_CONG_STATUS, QUERY_CONG_PARAMS).
    pub congestion: Option<CongestionControl>,
}

/// Pause frames, of the whole port and of priorities (IEEE 802.3x, 802.1Qbb).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowControl {
    /// The port sends pause frames for all its traffic.
    pub pause_sent: bool,
    /// And obeys them.
    pub pause_obeyed: bool,
    /// Priorities for which it sends them, a bit each.
    pub priorities_sent: u8,
    /// And obeys them.
    pub priorities_obeyed: u8,
}

/// RoCE congestion control (DCQCN).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CongestionControl {
    /// Priorities in which a sender slows down when it is told of congestion, a bit each.
    pub reacts: u8,
    /// Priorities in which the sender of a marked packet is told, a bit each.
    pub notifies: u8,
    /// Code point of the packets that tell it; `None`: not told.
    pub cnp_dscp: Option<u8>,
    /// Their priority of IEEE 802.1Q.
    pub cnp_priority: Option<u8>,
}

pub(crate) fn look(control: &mut impl Commands, caps: &Caps) -> Result<PortQos, CmdError> {
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

/// Eight bits of a field that has no more.
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
    let told = told(control, &ask)?;
    let told = told.map(|told| CongControlRRoceEcnNp::from_array(*told.congestion_parameters()));
    Ok(Some(CongestionControl {
        reacts,
        notifies,
        cnp_dscp: told.as_ref().map(|told| bits(told.cnp_dscp())),
        cnp_priority: told.as_ref().map(|told| bits(told.cnp_802p_prio())),
    }))
}

/// Priorities in which the device does this part.
fn priorities(control: &mut impl Commands, protocol: CongProtocol) -> Result<Option<u8>, CmdError> {
    let mut enabled = 0;
    for priority in 0..PRIORITIES {
        let mut ask = QueryCongStatusIn::new();
        ask.set_priority(priority).set_cong_protocol(protocol);
        let Some(told) = told(control, &ask)? else {
            return Ok(None);
        };
        enabled |= u8::from(told.enable()) << priority;
    }
    Ok(Some(enabled))
}

/// The answer to a question; `None` if the function may not ask it.
fn told<C: Command>(control: &mut impl Commands, ask: &C) -> Result<Option<C::Out>, CmdError> {
    match control.exec(ask) {
        Ok(told) => Ok(Some(told)),
        Err(error)
            if error
                .status()
                .is_some_and(|status| status != CmdStatus::INTERNAL_ERR) =>
        {
            tracing::debug!(%error, "not told about congestion");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
