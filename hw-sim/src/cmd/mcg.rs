//! Multicast group commands. The effect of membership is in [`crate::mcg`].

use super::{Cmd, Outcome, Refusal, output, refuse};
use crate::mcg::is_group;
use mlx_prm::{AttachToMcgIn, AttachToMcgOut, DetachFromMcgIn, DetachFromMcgOut, ServiceType};

pub(super) fn attach_to_mcg(cmd: &mut Cmd<'_>) -> Outcome {
    let input: AttachToMcgIn = cmd.read();
    let (qpn, group) = (input.qpn(), *input.multicast_gid());
    datagram(cmd, qpn)?;
    if !is_group(&group) {
        return Err(refuse!(BAD_PARAM, "not a multicast GID", "{group:02x?}"));
    }
    let caps = &cmd.nic.caps.general;
    let (most_groups, most_members) = (
        1_usize.checked_shl(caps.log_max_mcg()),
        usize::try_from(caps.max_qp_mcg()).unwrap_or(usize::MAX),
    );
    let objects = &mut cmd.nic.objects;
    let groups = &mut objects.groups;
    if !groups.contains(&group) && groups.len() >= most_groups.unwrap_or(usize::MAX) {
        return Err(refuse!(EXCEED_LIM, "multicast groups", "{}", groups.len()));
    }
    if groups.members(&group).any(|member| member == qpn) {
        // This refusal is inferred: drivers count memberships themselves (Linux `ib_uverbs_attach_mcast`).
        return Err(refuse!(
            BAD_RES_STATE,
            "QP is a member of the group",
            "{qpn:#x}"
        ));
    }
    let members = groups.members(&group).count();
    if members >= most_members {
        return Err(refuse!(EXCEED_LIM, "members of a group", "{members}"));
    }
    objects.qps.hold(qpn)?;
    groups.join(group, qpn);
    output(&AttachToMcgOut::new())
}

pub(super) fn detach_from_mcg(cmd: &mut Cmd<'_>) -> Outcome {
    let input: DetachFromMcgIn = cmd.read();
    let objects = &mut cmd.nic.objects;
    if !objects.qps.contains(input.qpn()) {
        return Err(refuse!(BAD_RESOURCE, "no such QP", "{:#x}", input.qpn()));
    }
    if !objects.groups.leave(input.multicast_gid(), input.qpn()) {
        return Err(refuse!(
            BAD_RESOURCE,
            "QP is no member of the group",
            "{:#x}",
            input.qpn()
        ));
    }
    objects.qps.release(input.qpn());
    output(&DetachFromMcgOut::new())
}

/// Checks that a QP receives datagrams. Only such QPs can join groups (Linux `ib_attach_mcast` refuses others).
fn datagram(cmd: &Cmd<'_>, qpn: u32) -> Result<(), Refusal> {
    let Some(slot) = cmd.nic.objects.qps.named(qpn) else {
        return Err(refuse!(BAD_RESOURCE, "no such QP", "{qpn:#x}"));
    };
    match ServiceType::from_bits(slot.service) {
        ServiceType::UD => Ok(()),
        other => Err(refuse!(
            BAD_PARAM,
            "service type of a group's member",
            "{other:?}"
        )),
    }
}
