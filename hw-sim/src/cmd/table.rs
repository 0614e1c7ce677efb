//! The table of commands.

use super::{
    Cmd, Outcome, access_reg, caps, congestion, cq, device_memory, eq, eswitch, flow, flow_counter,
    function, hca_vport, mad_ifc, mcg, mkey, qp, read_padded, resources, rq, rqt, sq, srq, tir,
    tis, uctx, umem, vport, xrc_srq,
};
use mlx_prm::{self as prm, Command, Opcode};

/// Stage in which only ENABLE_HCA is accepted.
pub(super) const RESET: u8 = 1;
/// Stage after ENABLE_HCA, while boot pages are missing.
pub(super) const ENABLED: u8 = 2;
/// Stage after ENABLE_HCA, when the firmware has its boot pages.
pub(super) const BOOTED: u8 = 4;
/// Stage after INIT_HCA.
pub(super) const INITIALISED: u8 = 8;

const BEFORE_INIT: u8 = ENABLED | BOOTED;
const ENABLED_ON: u8 = ENABLED | BOOTED | INITIALISED;
const BOOTED_ON: u8 = BOOTED | INITIALISED;

/// Values of op_mod that a command accepts.
#[derive(Clone, Copy, Debug)]
pub(super) enum OpMods {
    /// Only 0.
    Zero,
    /// From 0 up to and including this value.
    UpTo(u32),
    /// From the first up to and including the second value.
    Range(u32, u32),
    /// Any value; the handler checks it.
    Any,
}

impl OpMods {
    pub(super) fn allow(self, op_mod: u32) -> bool {
        match self {
            Self::Zero => op_mod == 0,
            Self::UpTo(last) => op_mod <= last,
            Self::Range(first, last) => (first..=last).contains(&op_mod),
            Self::Any => true,
        }
    }
}

type Handler = fn(&mut Cmd<'_>) -> Outcome;

/// A command of the table.
pub(super) struct Entry {
    opcode: Opcode,
    pub(super) stages: u8,
    pub(super) op_mods: OpMods,
    pub(super) min_input: usize,
    pub(super) reserved: fn(&[u8]) -> Option<usize>,
    /// True if the command creates an object. Such a command waits while the firmware waits for pages.
    pub(super) creates: bool,
    pub(super) handler: Handler,
}

impl Entry {
    const fn new<C: Command>(stages: u8, handler: Handler) -> Self {
        Self {
            opcode: C::OPCODE,
            stages,
            op_mods: OpMods::Zero,
            min_input: C::SIZE,
            reserved: reserved::<C>,
            creates: false,
            handler,
        }
    }

    const fn op_mods(self, op_mods: OpMods) -> Self {
        Self { op_mods, ..self }
    }

    const fn min_input(self, min_input: usize) -> Self {
        Self { min_input, ..self }
    }

    const fn creates(self) -> Self {
        Self {
            creates: true,
            ..self
        }
    }
}

fn reserved<C: Command>(input: &[u8]) -> Option<usize> {
    read_padded::<C>(&input[..input.len().min(C::SIZE)]).reserved_bits()
}

/// Returns the command of an opcode.
pub(super) fn lookup(opcode: Opcode) -> Option<&'static Entry> {
    TABLE.iter().find(|entry| entry.opcode == opcode)
}

/// Returns the opcodes of all commands.
pub(super) fn opcodes() -> impl Iterator<Item = Opcode> {
    TABLE.iter().map(|entry| entry.opcode)
}

static TABLE: &[Entry] = &[
    // Function control. A function's own ENABLE_HCA is its first command. The manager sends ENABLE_HCA for a virtual
    // function after its own INIT_HCA.
    Entry::new::<prm::EnableHcaIn>(RESET | INITIALISED, function::enable_hca),
    Entry::new::<prm::DisableHcaIn>(ENABLED_ON, function::disable_hca),
    Entry::new::<prm::QueryIssiIn>(ENABLED_ON, function::query_issi),
    Entry::new::<prm::SetIssiIn>(BEFORE_INIT, function::set_issi),
    Entry::new::<prm::QueryPagesIn>(ENABLED_ON, function::query_pages).op_mods(OpMods::Range(1, 3)),
    Entry::new::<prm::ManagePagesIn>(ENABLED_ON, function::manage_pages).op_mods(OpMods::UpTo(2)),
    // The input may end before sw_owner_id, as in a command that a ConnectX-4 Lx accepted.
    Entry::new::<prm::InitHcaIn>(BOOTED, function::init_hca).min_input(0x10),
    // The profile may also be in op_mod, where Snabb passes it.
    Entry::new::<prm::TeardownHcaIn>(INITIALISED, function::teardown_hca).op_mods(OpMods::UpTo(2)),
    Entry::new::<prm::SetDriverVersionIn>(BOOTED_ON, function::set_driver_version),
    Entry::new::<prm::QueryAdapterIn>(BOOTED_ON, function::query_adapter),
    Entry::new::<prm::QueryLagIn>(INITIALISED, function::query_lag),
    Entry::new::<prm::NopIn>(ENABLED_ON, function::nop),
    Entry::new::<prm::QueryHcaCapIn>(BOOTED_ON, caps::query_hca_cap).op_mods(OpMods::Any),
    Entry::new::<prm::SetHcaCapIn>(BOOTED_ON, caps::set_hca_cap).op_mods(OpMods::Any),
    Entry::new::<prm::AccessRegIn>(BOOTED_ON, access_reg::access_reg).op_mods(OpMods::UpTo(1)),
    Entry::new::<prm::QueryCongStatusIn>(BOOTED_ON, congestion::query_cong_status),
    Entry::new::<prm::QueryCongParamsIn>(BOOTED_ON, congestion::query_cong_params),
    Entry::new::<prm::ModifyCongParamsIn>(BOOTED_ON, congestion::modify_cong_params),
    Entry::new::<prm::QueryCongStatisticsIn>(BOOTED_ON, congestion::query_cong_statistics),
    // Global resources.
    Entry::new::<prm::AllocUarIn>(INITIALISED, resources::alloc_uar).creates(),
    Entry::new::<prm::DeallocUarIn>(INITIALISED, resources::dealloc_uar),
    Entry::new::<prm::AllocPdIn>(INITIALISED, resources::alloc_pd).creates(),
    Entry::new::<prm::DeallocPdIn>(INITIALISED, resources::dealloc_pd),
    Entry::new::<prm::AllocTransportDomainIn>(INITIALISED, resources::alloc_transport_domain)
        .creates(),
    Entry::new::<prm::DeallocTransportDomainIn>(INITIALISED, resources::dealloc_transport_domain),
    Entry::new::<prm::AllocXrcdIn>(INITIALISED, resources::alloc_xrcd).creates(),
    Entry::new::<prm::DeallocXrcdIn>(INITIALISED, resources::dealloc_xrcd),
    Entry::new::<prm::AllocQCounterIn>(INITIALISED, resources::alloc_q_counter).creates(),
    Entry::new::<prm::DeallocQCounterIn>(INITIALISED, resources::dealloc_q_counter),
    Entry::new::<prm::QueryQCounterIn>(INITIALISED, resources::query_q_counter),
    Entry::new::<prm::QuerySpecialContextsIn>(INITIALISED, resources::query_special_contexts),
    Entry::new::<prm::CreateUctxIn>(INITIALISED, uctx::create_uctx).creates(),
    Entry::new::<prm::DestroyUctxIn>(INITIALISED, uctx::destroy_uctx),
    Entry::new::<prm::CreateUmemIn>(INITIALISED, umem::create_umem).creates(),
    Entry::new::<prm::DestroyUmemIn>(INITIALISED, umem::destroy_umem),
    // Queues and keys.
    Entry::new::<prm::CreateEqIn>(INITIALISED, eq::create_eq).creates(),
    Entry::new::<prm::DestroyEqIn>(INITIALISED, eq::destroy_eq),
    Entry::new::<prm::QueryEqIn>(INITIALISED, eq::query_eq),
    Entry::new::<prm::GenEqeIn>(INITIALISED, eq::gen_eqe),
    Entry::new::<prm::CreateCqIn>(INITIALISED, cq::create_cq).creates(),
    Entry::new::<prm::DestroyCqIn>(INITIALISED, cq::destroy_cq),
    Entry::new::<prm::QueryCqIn>(INITIALISED, cq::query_cq),
    Entry::new::<prm::ModifyCqIn>(INITIALISED, cq::modify_cq).op_mods(OpMods::UpTo(1)),
    Entry::new::<prm::AllocMemicIn>(INITIALISED, device_memory::alloc_memic),
    Entry::new::<prm::DeallocMemicIn>(INITIALISED, device_memory::dealloc_memic),
    Entry::new::<prm::CreateMkeyIn>(INITIALISED, mkey::create_mkey).creates(),
    Entry::new::<prm::QueryMkeyIn>(INITIALISED, mkey::query_mkey),
    Entry::new::<prm::DestroyMkeyIn>(INITIALISED, mkey::destroy_mkey),
    Entry::new::<prm::CreateRmpIn>(INITIALISED, srq::create_rmp).creates(),
    Entry::new::<prm::ModifyRmpIn>(INITIALISED, srq::modify_rmp),
    Entry::new::<prm::QueryRmpIn>(INITIALISED, srq::query_rmp),
    Entry::new::<prm::DestroyRmpIn>(INITIALISED, srq::destroy_rmp),
    Entry::new::<prm::CreateXrcSrqIn>(INITIALISED, xrc_srq::create_xrc_srq).creates(),
    Entry::new::<prm::DestroyXrcSrqIn>(INITIALISED, xrc_srq::destroy_xrc_srq),
    Entry::new::<prm::QueryXrcSrqIn>(INITIALISED, xrc_srq::query_xrc_srq),
    Entry::new::<prm::ArmXrcSrqIn>(INITIALISED, xrc_srq::arm_xrc_srq).op_mods(OpMods::Range(1, 1)),
    // Queue pairs.
    Entry::new::<prm::CreateQpIn>(INITIALISED, qp::create_qp).creates(),
    Entry::new::<prm::DestroyQpIn>(INITIALISED, qp::destroy_qp),
    Entry::new::<prm::QueryQpIn>(INITIALISED, qp::query_qp),
    Entry::new::<prm::Rst2InitQpIn>(INITIALISED, qp::rst2init),
    Entry::new::<prm::Init2InitQpIn>(INITIALISED, qp::init2init),
    Entry::new::<prm::Init2RtrQpIn>(INITIALISED, qp::init2rtr),
    Entry::new::<prm::Rtr2RtsQpIn>(INITIALISED, qp::rtr2rts),
    Entry::new::<prm::Rts2RtsQpIn>(INITIALISED, qp::rts2rts),
    Entry::new::<prm::SqErr2RtsQpIn>(INITIALISED, qp::sqerr2rts),
    Entry::new::<prm::SqdRtsQpIn>(INITIALISED, qp::sqd2rts),
    Entry::new::<prm::ToErrQpIn>(INITIALISED, qp::to_err),
    Entry::new::<prm::ToRstQpIn>(INITIALISED, qp::to_rst),
    Entry::new::<prm::AttachToMcgIn>(INITIALISED, mcg::attach_to_mcg).creates(),
    Entry::new::<prm::DetachFromMcgIn>(INITIALISED, mcg::detach_from_mcg),
    // The port.
    Entry::new::<prm::QueryVportStateIn>(INITIALISED, vport::query_vport_state)
        .op_mods(OpMods::UpTo(2)),
    Entry::new::<prm::ModifyVportStateIn>(INITIALISED, vport::modify_vport_state)
        .op_mods(OpMods::UpTo(2)),
    Entry::new::<prm::QueryNicVportContextIn>(INITIALISED, vport::query_nic_vport_context),
    Entry::new::<prm::ModifyNicVportContextIn>(INITIALISED, vport::modify_nic_vport_context),
    Entry::new::<prm::QueryVportCounterIn>(INITIALISED, vport::query_vport_counter),
    Entry::new::<prm::QueryVnicEnvIn>(INITIALISED, vport::query_vnic_env),
    Entry::new::<prm::ModifyEswVportContextIn>(INITIALISED, eswitch::modify_esw_vport_context),
    Entry::new::<prm::QueryEswVportContextIn>(INITIALISED, eswitch::query_esw_vport_context),
    Entry::new::<prm::SetL2TableEntryIn>(INITIALISED, eswitch::set_l2_table_entry),
    Entry::new::<prm::QueryL2TableEntryIn>(INITIALISED, eswitch::query_l2_table_entry),
    Entry::new::<prm::DeleteL2TableEntryIn>(INITIALISED, eswitch::delete_l2_table_entry),
    Entry::new::<prm::SetRoceAddressIn>(INITIALISED, vport::set_roce_address),
    Entry::new::<prm::QueryRoceAddressIn>(INITIALISED, vport::query_roce_address),
    Entry::new::<prm::QueryHcaVportContextIn>(INITIALISED, hca_vport::query_hca_vport_context),
    Entry::new::<prm::ModifyHcaVportContextIn>(INITIALISED, hca_vport::modify_hca_vport_context),
    Entry::new::<prm::QueryHcaVportGidIn>(INITIALISED, hca_vport::query_hca_vport_gid),
    Entry::new::<prm::QueryHcaVportPkeyIn>(INITIALISED, hca_vport::query_hca_vport_pkey),
    Entry::new::<prm::MadIfcIn>(INITIALISED, mad_ifc::mad_ifc).op_mods(OpMods::Any),
    // Ethernet queues, and the objects that connect them to flow steering.
    Entry::new::<prm::CreateTirIn>(INITIALISED, tir::create_tir).creates(),
    Entry::new::<prm::ModifyTirIn>(INITIALISED, tir::modify_tir),
    Entry::new::<prm::DestroyTirIn>(INITIALISED, tir::destroy_tir),
    Entry::new::<prm::QueryTirIn>(INITIALISED, tir::query_tir),
    Entry::new::<prm::CreateSqIn>(INITIALISED, sq::create_sq).creates(),
    Entry::new::<prm::ModifySqIn>(INITIALISED, sq::modify_sq),
    Entry::new::<prm::DestroySqIn>(INITIALISED, sq::destroy_sq),
    Entry::new::<prm::QuerySqIn>(INITIALISED, sq::query_sq),
    Entry::new::<prm::CreateRqIn>(INITIALISED, rq::create_rq).creates(),
    Entry::new::<prm::ModifyRqIn>(INITIALISED, rq::modify_rq),
    Entry::new::<prm::DestroyRqIn>(INITIALISED, rq::destroy_rq),
    Entry::new::<prm::QueryRqIn>(INITIALISED, rq::query_rq),
    Entry::new::<prm::CreateTisIn>(INITIALISED, tis::create_tis).creates(),
    Entry::new::<prm::ModifyTisIn>(INITIALISED, tis::modify_tis),
    Entry::new::<prm::DestroyTisIn>(INITIALISED, tis::destroy_tis),
    Entry::new::<prm::QueryTisIn>(INITIALISED, tis::query_tis),
    Entry::new::<prm::CreateRqtIn>(INITIALISED, rqt::create_rqt).creates(),
    Entry::new::<prm::ModifyRqtIn>(INITIALISED, rqt::modify_rqt),
    Entry::new::<prm::DestroyRqtIn>(INITIALISED, rqt::destroy_rqt),
    Entry::new::<prm::QueryRqtIn>(INITIALISED, rqt::query_rqt),
    // Flow steering.
    Entry::new::<prm::SetFlowTableRootIn>(INITIALISED, flow::set_flow_table_root)
        .op_mods(OpMods::UpTo(1)),
    Entry::new::<prm::CreateFlowTableIn>(INITIALISED, flow::create_flow_table).creates(),
    Entry::new::<prm::DestroyFlowTableIn>(INITIALISED, flow::destroy_flow_table),
    Entry::new::<prm::QueryFlowTableIn>(INITIALISED, flow::query_flow_table),
    Entry::new::<prm::ModifyFlowTableIn>(INITIALISED, flow::modify_flow_table),
    Entry::new::<prm::CreateFlowGroupIn>(INITIALISED, flow::create_flow_group).creates(),
    Entry::new::<prm::DestroyFlowGroupIn>(INITIALISED, flow::destroy_flow_group),
    Entry::new::<prm::QueryFlowGroupIn>(INITIALISED, flow::query_flow_group),
    Entry::new::<prm::SetFlowTableEntryIn>(INITIALISED, flow::set_flow_table_entry)
        .op_mods(OpMods::UpTo(1))
        .creates(),
    Entry::new::<prm::QueryFlowTableEntryIn>(INITIALISED, flow::query_flow_table_entry),
    Entry::new::<prm::AllocFlowCounterIn>(INITIALISED, flow_counter::alloc_flow_counter).creates(),
    Entry::new::<prm::DeallocFlowCounterIn>(INITIALISED, flow_counter::dealloc_flow_counter),
    Entry::new::<prm::QueryFlowCounterIn>(INITIALISED, flow_counter::query_flow_counter),
    Entry::new::<prm::DeleteFlowTableEntryIn>(INITIALISED, flow::delete_flow_table_entry),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_opcode_is_listed_twice() {
        let opcodes: BTreeSet<u16> = TABLE.iter().map(|entry| entry.opcode.0).collect();
        assert_eq!(opcodes.len(), TABLE.len());
    }
}
