//! The fields of a queue pair context that each transition command uses.
//!
//! A modify command carries a whole context. A transition always uses some fields, uses some only if `opt_param_mask`
//! has their bit, and ignores the others. It must ignore them, because drivers do fill them: Linux repeats service
//! type, PD and CQ numbers in each command. A mask bit that a transition does not have for a service type is refused
//! (the table is `opt_mask` of Linux drivers/infiniband/hw/mlx5/qp.c).

use super::state::{Service, Transition};
use crate::host::Host;
use mlx_prm::{CmdStatus, Qpc, opt_param as opt};

/// Returns the mask bits of the optional parameters that a transition has for a service type.
const fn allowed(transition: Transition, service: Service) -> u32 {
    use opt::{
        ALT_ADDR_PATH, COUNTER_SET_ID, CQN_RCV, LAG_TX_AFF, PKEY_INDEX, PM_STATE, PRI_PORT, Q_KEY,
        RAE, RNR_TIMEOUT, RRE, RWE, SRQN,
    };
    const RIGHTS: u32 = RRE | RAE | RWE;
    match (transition, service) {
        (Transition::InitToInit, Service::Rc | Service::Xrc) => {
            RIGHTS | PKEY_INDEX | PRI_PORT | LAG_TX_AFF
        }
        (Transition::InitToInit, Service::Uc) => RWE | PKEY_INDEX | PRI_PORT | LAG_TX_AFF,
        (Transition::InitToInit, Service::Ud) => PKEY_INDEX | Q_KEY | PRI_PORT,
        (Transition::InitToRtr, Service::Rc | Service::Xrc) => {
            ALT_ADDR_PATH | RIGHTS | PKEY_INDEX | LAG_TX_AFF
        }
        (Transition::InitToRtr, Service::Uc) => ALT_ADDR_PATH | RWE | PKEY_INDEX | LAG_TX_AFF,
        (Transition::InitToRtr, Service::Ud | Service::Gsi | Service::Smi) => PKEY_INDEX | Q_KEY,
        (Transition::RtrToRts, Service::Rc | Service::Xrc) => {
            ALT_ADDR_PATH | RIGHTS | PM_STATE | RNR_TIMEOUT
        }
        (Transition::RtrToRts, Service::Uc) => ALT_ADDR_PATH | RWE | PM_STATE,
        (Transition::RtrToRts, Service::Ud) => Q_KEY,
        (Transition::RtsToRts, Service::Rc | Service::Xrc) => {
            ALT_ADDR_PATH | RIGHTS | PM_STATE | RNR_TIMEOUT | COUNTER_SET_ID
        }
        (Transition::RtsToRts, Service::Uc) => ALT_ADDR_PATH | RWE | PM_STATE | COUNTER_SET_ID,
        (Transition::RtsToRts, Service::Ud) => Q_KEY | SRQN | CQN_RCV | COUNTER_SET_ID,
        (Transition::SqErrToRts | Transition::SqdToRts, Service::Rc | Service::Xrc) => {
            RNR_TIMEOUT | RIGHTS
        }
        (Transition::SqErrToRts | Transition::SqdToRts, Service::Uc) => RWE,
        (
            Transition::SqErrToRts | Transition::SqdToRts,
            Service::Ud | Service::Gsi | Service::Smi,
        ) => Q_KEY,
        _ => 0,
    }
}

/// Maximum `log_msg_max`. A data segment cannot express a length of 2^31 bytes.
const MAX_LOG_MSG: u32 = 30;
/// Code of a path MTU of 4096 bytes.
const MAX_MTU: u32 = 5;

/// Checks the fields of `given` that `transition` uses, and copies them into `live`.
pub(super) fn merge(
    live: &mut Qpc,
    service: Service,
    transition: Transition,
    opt_param_mask: u32,
    given: &Qpc,
    host: &dyn Host,
) -> Result<(), CmdStatus> {
    if opt_param_mask & !allowed(transition, service) != 0 {
        return Err(CmdStatus::BAD_PARAM);
    }
    if names_its_port(service, transition) && given.primary_address_path().vhca_port_num() == 0 {
        return Err(CmdStatus::BAD_PARAM);
    }
    match transition {
        Transition::RstToInit => {
            take_rights(live, given);
            live.set_pm_state(given.pm_state())
                .set_counter_set_id(given.counter_set_id())
                .set_q_key(given.q_key());
            let path = given.primary_address_path();
            let port = path.vhca_port_num();
            let pkey_index = path.pkey_index();
            live.primary_address_path_mut()
                .set_vhca_port_num(port)
                .set_pkey_index(pkey_index);
        }
        Transition::InitToRtr => {
            check_ready_to_receive(service, given, host)?;
            live.set_mtu(given.mtu())
                .set_log_msg_max(given.log_msg_max())
                .set_remote_qpn(given.remote_qpn())
                .set_next_rcv_psn(given.next_rcv_psn())
                .set_log_rra_max(given.log_rra_max())
                .set_min_rnr_nak(given.min_rnr_nak())
                .set_atomic_mode(given.atomic_mode());
            // The path is copied whole. If it names no port, the port that RST2INIT has set stays. RTR2RTS overwrites
            // `ack_timeout`.
            let port = live.primary_address_path().vhca_port_num();
            let path = live.primary_address_path_mut();
            path.clone_from(given.primary_address_path());
            if path.vhca_port_num() == 0 {
                path.set_vhca_port_num(port);
            }
        }
        Transition::RtrToRts => {
            live.set_next_send_psn(given.next_send_psn())
                .set_log_sra_max(given.log_sra_max())
                .set_retry_count(given.retry_count())
                .set_rnr_retry(given.rnr_retry())
                .set_log_ack_req_freq(given.log_ack_req_freq());
            let timeout = given.primary_address_path().ack_timeout();
            live.primary_address_path_mut().set_ack_timeout(timeout);
        }
        Transition::InitToInit
        | Transition::RtsToRts
        | Transition::SqErrToRts
        | Transition::SqdToRts
        | Transition::ToErr
        | Transition::ToRst => {}
    }
    take_optional(live, opt_param_mask, given);
    Ok(())
}

/// Returns whether a transition must name the port. QP1 and QP0 belong to a port, and Linux names the port in every
/// transition to a higher state (`__mlx5_ib_modify_qp`, `is_sqp`). Other queue pairs keep the port from their first
/// transition.
const fn names_its_port(service: Service, transition: Transition) -> bool {
    matches!(service, Service::Gsi | Service::Smi)
        && matches!(
            transition,
            Transition::RstToInit | Transition::InitToRtr | Transition::RtrToRts
        )
}

fn check_ready_to_receive(service: Service, given: &Qpc, host: &dyn Host) -> Result<(), CmdStatus> {
    let mtu = given.mtu();
    let raw = 7;
    let mtu_is_good = match service {
        Service::Rc | Service::Xrc | Service::Uc => {
            (1..=u32::from(host.port_mtu()).min(MAX_MTU)).contains(&mtu)
        }
        Service::Ud | Service::Gsi | Service::Smi => (1..=MAX_MTU).contains(&mtu) || mtu == raw,
        Service::Umr => true,
    };
    if !mtu_is_good || given.log_msg_max() > MAX_LOG_MSG {
        return Err(CmdStatus::BAD_PARAM);
    }
    let path = given.primary_address_path();
    // A path inside an InfiniBand subnet needs no GID, and a path with forced loopback needs none either.
    if service.is_connected() && !path.fl() && (host.lid().is_none() || path.grh()) {
        let index = path.src_addr_index();
        // CAST: the field has eight bits.
        let index = u8::try_from(index).map_err(|_| CmdStatus::BAD_PARAM)?;
        if host.gid(index).is_none() {
            return Err(CmdStatus::BAD_PARAM);
        }
    }
    Ok(())
}

fn take_rights(live: &mut Qpc, given: &Qpc) {
    live.set_rre(given.rre())
        .set_rwe(given.rwe())
        .set_rae(given.rae());
}

fn take_optional(live: &mut Qpc, mask: u32, given: &Qpc) {
    let has = |bit| mask & bit != 0;
    if has(opt::ALT_ADDR_PATH) {
        live.set_secondary_address_path(given.secondary_address_path());
    }
    if has(opt::RRE) {
        live.set_rre(given.rre());
    }
    if has(opt::RAE) {
        live.set_rae(given.rae())
            .set_atomic_mode(given.atomic_mode());
    }
    if has(opt::RWE) {
        live.set_rwe(given.rwe());
    }
    if has(opt::PKEY_INDEX) {
        let index = given.primary_address_path().pkey_index();
        live.primary_address_path_mut().set_pkey_index(index);
    }
    if has(opt::Q_KEY) {
        live.set_q_key(given.q_key());
    }
    if has(opt::RNR_TIMEOUT) {
        live.set_min_rnr_nak(given.min_rnr_nak());
    }
    if has(opt::PRIMARY_ADDR_PATH) {
        live.set_primary_address_path(given.primary_address_path());
    }
    if has(opt::SRA_MAX) {
        live.set_log_sra_max(given.log_sra_max());
    }
    if has(opt::RRA_MAX) {
        live.set_log_rra_max(given.log_rra_max());
    }
    if has(opt::PM_STATE) {
        live.set_pm_state(given.pm_state());
    }
    if has(opt::RETRY_COUNT) {
        live.set_retry_count(given.retry_count());
    }
    if has(opt::RNR_RETRY) {
        live.set_rnr_retry(given.rnr_retry());
    }
    if has(opt::ACK_TIMEOUT) {
        let timeout = given.primary_address_path().ack_timeout();
        live.primary_address_path_mut().set_ack_timeout(timeout);
    }
    if has(opt::LAG_TX_AFF) {
        live.set_lag_tx_port_affinity(given.lag_tx_port_affinity());
    }
    if has(opt::PRI_PORT) {
        let port = given.primary_address_path().vhca_port_num();
        live.primary_address_path_mut().set_vhca_port_num(port);
    }
    if has(opt::SRQN) {
        live.set_srqn_rmpn_xrqn(given.srqn_rmpn_xrqn());
    }
    if has(opt::CQN_RCV) {
        live.set_cqn_rcv(given.cqn_rcv());
    }
    if has(opt::COUNTER_SET_ID) {
        live.set_counter_set_id(given.counter_set_id());
    }
}
