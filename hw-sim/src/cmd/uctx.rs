//! User context commands.

use super::{Cmd, Outcome, output, refuse};
use crate::objects::DRIVER;
use crate::uctx::Uctx;
use mlx_prm::{CreateUctxIn, CreateUctxOut, DestroyUctxIn, DestroyUctxOut, Opcode};

/// Commands that have no uid field in their layout but that user contexts send with a uid. Linux writes the uid into
/// every command of a program (`devx_is_general_cmd`, `devx_is_obj_query_cmd` and others in
/// drivers/infiniband/hw/mlx5/devx.c). The list has queries of the function, its port and its e-switch, but no command
/// that changes them.
const WITHOUT_UID_FIELD: [Opcode; 35] = [
    Opcode::NOP,
    Opcode::QUERY_ISSI,
    Opcode::QUERY_LAG,
    Opcode::QUERY_ADAPTER,
    Opcode::QUERY_HCA_CAP,
    Opcode::QUERY_CONG_STATUS,
    Opcode::QUERY_CONG_PARAMS,
    Opcode::QUERY_CONG_STATISTICS,
    Opcode::QUERY_VPORT_STATE,
    Opcode::QUERY_NIC_VPORT_CONTEXT,
    Opcode::QUERY_ESW_VPORT_CONTEXT,
    Opcode::QUERY_VPORT_COUNTER,
    Opcode::QUERY_VNIC_ENV,
    Opcode::QUERY_ROCE_ADDRESS,
    Opcode::QUERY_HCA_VPORT_CONTEXT,
    Opcode::QUERY_HCA_VPORT_GID,
    Opcode::QUERY_HCA_VPORT_PKEY,
    Opcode::DEALLOC_Q_COUNTER,
    Opcode::QUERY_Q_COUNTER,
    Opcode::QUERY_EQ,
    Opcode::QUERY_CQ,
    Opcode::QUERY_MKEY,
    Opcode::QUERY_RMP,
    Opcode::QUERY_XRC_SRQ,
    Opcode::QUERY_QP,
    Opcode::QUERY_TIR,
    Opcode::QUERY_SQ,
    Opcode::QUERY_RQ,
    Opcode::QUERY_TIS,
    Opcode::QUERY_RQT,
    Opcode::DESTROY_FLOW_TABLE,
    Opcode::CREATE_FLOW_GROUP,
    Opcode::DESTROY_FLOW_GROUP,
    Opcode::SET_FLOW_TABLE_ENTRY,
    Opcode::DELETE_FLOW_TABLE_ENTRY,
];

/// Returns whether user contexts may send this command with a uid although its layout has no uid field.
pub(super) fn may_carry_uid(opcode: Opcode) -> bool {
    WITHOUT_UID_FIELD.contains(&opcode)
}

pub(super) fn create_uctx(cmd: &mut Cmd<'_>) -> Outcome {
    let caps = &cmd.nic.caps.general;
    if caps.log_max_uctx() == 0 {
        return Err(refuse!(BAD_OP, "user contexts are not supported"));
    }
    let rights = cmd.read::<CreateUctxIn>().uctx().cap();
    let beyond = rights & !caps.uctx_cap();
    if beyond != 0 {
        return Err(refuse!(
            BAD_PARAM,
            "right of a user context that does not exist",
            "{beyond:#x}"
        ));
    }
    let number = cmd.nic.objects.uctxs.create(Uctx {
        rights,
        is_over: false,
    })?;
    let mut out = CreateUctxOut::new();
    out.set_uid(number);
    output(&out)
}

pub(super) fn destroy_uctx(cmd: &mut Cmd<'_>) -> Outcome {
    let number = cmd.read::<DestroyUctxIn>().uid();
    // The driver's own uid names no context, so nothing is removed below.
    let uid = u16::try_from(number).unwrap_or(DRIVER);
    let pages = cmd.nic.objects.uars.kind();
    let mut owned = cmd.nic.objects.owned_by(uid).filter(|_| uid != DRIVER);
    if let Some((kind, object)) = owned.find(|&(kind, _)| kind != pages) {
        // This refusal is inferred: Linux destroys all objects of a context except doorbell pages before it destroys
        // the context.
        return Err(refuse!(
            BAD_RES_STATE,
            "user context owns objects",
            "{kind} {object:#x} and {} more",
            owned.count()
        ));
    }
    drop(owned);
    match cmd.nic.objects.uctxs.get_mut(number) {
        Some(context) if !context.is_over => context.is_over = true,
        Some(_) | None => return Err(refuse!(BAD_RESOURCE, "no such user context", "{number:#x}")),
    }
    forget(cmd, uid);
    output(&DestroyUctxOut::new())
}

/// Frees the number of a destroyed context after its last doorbell page was freed.
pub(super) fn forget(cmd: &mut Cmd<'_>, uid: u16) {
    let objects = &mut cmd.nic.objects;
    let number = u32::from(uid);
    let is_over = |context: &Uctx| context.is_over;
    if objects.uctxs.get(number).is_some_and(is_over) && objects.owned_by(uid).next().is_none() {
        // The removal cannot fail, because the context exists, as checked above.
        let _ = objects.uctxs.remove(number);
    }
}

/// Returns whether a command may carry a context's uid.
pub(super) fn may_use_uid(context: &Uctx, opcode: Opcode) -> bool {
    !context.is_over || opcode == Opcode::DEALLOC_UAR
}
