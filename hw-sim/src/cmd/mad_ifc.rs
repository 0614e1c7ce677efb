//! MAD_IFC: management datagrams to the function's own agents, about its own port.
//!
//! A driver forwards datagrams from its QP 0 or QP 1, or sends its own. The same agents answer packets from the wire
//! ([`crate::subnet`]).

use super::{Cmd, Outcome, output, refuse};
use mlx_prm::{MadClass, MadIfcIn, MadIfcOut, MadMethod, PerformanceMad, Smp};

/// Number of the only port.
const PORT: u32 = 1;
/// Bits of op_mod: the M_Key is not checked, the B_Key is not checked.
const IGNORE_M_KEY: u32 = 1;
const IGNORE_B_KEY: u32 = 2;

pub(super) fn mad_ifc(cmd: &mut Cmd<'_>) -> Outcome {
    let input: MadIfcIn = cmd.read();
    if cmd.port().subnet.is_none() {
        return Err(refuse!(BAD_OP, "command of an InfiniBand port"));
    }
    if cmd.op_mod & !(IGNORE_M_KEY | IGNORE_B_KEY) != 0 {
        return Err(refuse!(BAD_OP, "unknown op_mod", "{:#x}", cmd.op_mod));
    }
    if input.port() != PORT || input.plane_index() != 0 {
        return Err(refuse!(BAD_PARAM, "no such port", "{}", input.port()));
    }
    let smp = Smp::from_array(*input.mad());
    let mut out = MadIfcOut::new();
    match MadClass(smp.mgmt_class()) {
        MadClass::SUBNET_LID_ROUTED | MadClass::SUBNET_DIRECTED_ROUTE => {
            let unchecked = cmd.op_mod & IGNORE_M_KEY != 0;
            match cmd.nic.managed(cmd.env, &smp, unchecked) {
                Some(answer) => {
                    out.set_response_mad_packet(answer.as_array());
                }
                // The agent accepts a TRAP_REPRESS without an answer.
                None if MadMethod(smp.method()) == MadMethod::TRAP_REPRESS => {}
                None => return Err(refuse!(BAD_PARAM, "wrong M_Key", "{:#x}", smp.m_key())),
            }
        }
        MadClass::PERFORMANCE => {
            let mad = PerformanceMad::from_array(*input.mad());
            if let Some(answer) = cmd.nic.measured(cmd.env, &mad) {
                out.set_response_mad_packet(answer.as_array());
            }
        }
        class => {
            return Err(refuse!(
                BAD_PARAM,
                "management class is not supported",
                "{:#x}",
                class.0
            ));
        }
    }
    output(&out)
}
