//! ACCESS_REG: port and management registers.
//!
//! Input and output carry the whole register image after their 16 bytes. A register that the function does not have is
//! refused as a bad parameter. A write that changes the port sends the port's event after the command's answer.

use super::register::{PORT, image_of, own_port};
use super::{Cmd, Outcome, Refusal, module, port_counters, refuse, traffic_class};
use crate::card::AdminState;
use crate::profile::PortType;
use mlx_prm::{
    AccessRegIn, AccessRegOut, HostEndianness, Mcam, Mcqi, Mcqs, Paos, Pfcc, Pmtu, Ppcnt, Ptys,
    Qpdpm, Qpts, RegisterId,
};
use zerocopy::IntoBytes;

/// op_mod of a read. A write has 0.
const READ: u32 = 1;
const PAOS_UP: u32 = 1;
const PAOS_DOWN: u32 = 2;
const PROTO_INFINIBAND: u32 = 1;
const PROTO_ETHERNET: u32 = 4;
/// 100GBASE-CR4, -SR4, -KR4 (PTYS `eth_proto_*` bits 20 to 22).
const ETH_100G: u32 = 0x0070_0000;
/// EDR, four lanes.
const IB_EDR: u32 = 0x20;
const IB_4X: u32 = 4;
/// Code of virtual lane 0 only (PVLC `vl_hw_cap`; Linux `MLX5_VL_HW_0`).
const VIRTUAL_LANES: u8 = 1;
/// MCQS `identifier` of the boot image, and `component_status` of a component in use.
const BOOT_IMAGE: u32 = 1;
const IN_USE: u32 = 2;
/// MCQI `info_type` of the version, and the length of the version data after the register's own bytes.
const INFO_VERSION: u32 = 1;
const VERSION_BYTES: u32 = 0x7c;
const MCQI_HEADER: usize = 0x18;
/// Smallest port MTU.
const MIN_MTU: u32 = 68;

pub(super) fn access_reg(cmd: &mut Cmd<'_>) -> Outcome {
    let input: AccessRegIn = cmd.read();
    let register = RegisterId::from_bits(input.register_id());
    let image = cmd
        .input
        .get(AccessRegIn::SIZE..)
        .unwrap_or_default()
        .to_vec();
    let read = cmd.op_mod == READ;
    if input.argument() != 0 {
        return Err(refuse!(
            BAD_PARAM,
            "register argument",
            "{:#x}",
            input.argument()
        ));
    }
    let result = access(cmd, register, &image, read);
    cmd.nic.count_register(register.0, result.is_err());
    let mut bytes = AccessRegOut::new().as_bytes().to_vec();
    bytes.extend(result?);
    Ok(bytes)
}

fn access(
    cmd: &mut Cmd<'_>,
    register: RegisterId,
    image: &[u8],
    read: bool,
) -> Result<Vec<u8>, Refusal> {
    match register {
        RegisterId::HOST_ENDIANNESS => host_endianness(image, read),
        RegisterId::PMTU => pmtu(cmd, image, read),
        RegisterId::PAOS => paos(cmd, image, read),
        RegisterId::PTYS => ptys(cmd, image, read),
        RegisterId::PPCNT => ppcnt(cmd, image, read),
        RegisterId::PFCC if cmd.nic.profile.port_type == PortType::Ethernet => {
            pfcc(cmd, image, read)
        }
        // Only a physical function has these registers, because its settings govern the port's priorities.
        RegisterId::QPTS if has_priorities(cmd) => qpts(cmd, image, read),
        RegisterId::QPDPM if has_priorities(cmd) => qpdpm(cmd, image, read),
        RegisterId::QTCT if has_classes(cmd) => traffic_class::qtct(cmd, image, read),
        RegisterId::QETCR if has_classes(cmd) => traffic_class::qetcr(cmd, image, read),
        // Only the physical function has access to the module cage.
        RegisterId::PMLP if !cmd.nic.seat.is_virtual() => module::pmlp(image, read),
        RegisterId::MCIA if !cmd.nic.seat.is_virtual() => module::mcia(cmd, image, read),
        RegisterId::NODE_DESC => node_description(cmd, image, read),
        RegisterId::PCAP => bytes_back(image, 0x14),
        RegisterId::MCAM if cmd.nic.caps.general.mcam_reg() => mcam(image, read),
        RegisterId::MCQS if cmd.nic.caps.general.mcam_reg() => mcqs(image, read),
        RegisterId::MCQI if cmd.nic.caps.general.mcam_reg() => mcqi(cmd, image, read),
        RegisterId::PVLC if cmd.nic.profile.port_type == PortType::InfiniBand => pvlc(image, read),
        _ => match cmd.nic.profile.registers.get(&register.0) {
            Some(recorded) if read => Ok(recorded.clone()),
            Some(_) => Err(refuse!(
                BAD_PARAM,
                "a recorded register cannot be written",
                "{register:?}"
            )),
            None => Err(refuse!(BAD_PARAM, "no such register", "{register:?}")),
        },
    }
}

fn bytes_back(image: &[u8], length: usize) -> Result<Vec<u8>, Refusal> {
    if image.len() < length {
        return Err(refuse!(
            BAD_INPUT_LEN,
            "register image too short",
            "{:#x} of {length:#x}",
            image.len()
        ));
    }
    Ok(vec![0; length])
}

fn host_endianness(image: &[u8], read: bool) -> Result<Vec<u8>, Refusal> {
    let register: HostEndianness = image_of(image)?;
    if !read && !matches!(register.he(), 0 | 0x80) {
        return Err(refuse!(BAD_PARAM, "byte order", "{:#x}", register.he()));
    }
    Ok(vec![0; HostEndianness::SIZE])
}

fn pmtu(cmd: &mut Cmd<'_>, image: &[u8], read: bool) -> Result<Vec<u8>, Refusal> {
    let register: Pmtu = image_of(image)?;
    own_port(register.local_port())?;
    let infiniband = cmd.nic.profile.port_type == PortType::InfiniBand;
    let most = if infiniband {
        4096
    } else {
        u32::from(cmd.nic.profile.max_mtu)
    };
    if !read {
        let wanted = register.admin_mtu();
        if !(MIN_MTU..=most).contains(&wanted) {
            return Err(refuse!(BAD_PARAM, "port MTU", "{wanted}"));
        }
        // A virtual function's write is accepted without effect ([`Profile::virtual_function`]).
        if !cmd.nic.seat.is_virtual() {
            let uplink = &mut cmd.env.card_mut(cmd.nic.seat).uplink;
            uplink.mtu = u16::try_from(wanted).unwrap_or(u16::MAX);
        }
    }
    let mtu = if infiniband {
        4096
    } else {
        u32::from(cmd.env.card(cmd.nic.seat).uplink.mtu)
    };
    let mut out = Pmtu::new();
    out.set_local_port(PORT)
        .set_max_mtu(most)
        .set_admin_mtu(mtu)
        .set_oper_mtu(mtu);
    Ok(out.as_bytes().to_vec())
}

fn paos(cmd: &mut Cmd<'_>, image: &[u8], read: bool) -> Result<Vec<u8>, Refusal> {
    let register: Paos = image_of(image)?;
    own_port(register.local_port())?;
    if !read && register.ase() {
        let admin = match register.admin_status() {
            PAOS_UP => AdminState::Up,
            PAOS_DOWN => AdminState::Down,
            other => return Err(refuse!(BAD_PARAM, "port admin state", "{other}")),
        };
        if !cmd.nic.seat.is_virtual() {
            cmd.nic.set_admin(cmd.env, admin);
        }
    }
    let uplink = &cmd.env.card(cmd.nic.seat).uplink;
    let admin = if uplink.admin == AdminState::Up {
        PAOS_UP
    } else {
        PAOS_DOWN
    };
    let oper = if uplink.is_up() { PAOS_UP } else { PAOS_DOWN };
    let mut out = Paos::new();
    out.set_local_port(PORT)
        .set_admin_status(admin)
        .set_oper_status(oper);
    Ok(out.as_bytes().to_vec())
}

fn ptys(cmd: &Cmd<'_>, image: &[u8], read: bool) -> Result<Vec<u8>, Refusal> {
    let register: Ptys = image_of(image)?;
    own_port(register.local_port())?;
    if !read {
        return Err(refuse!(BAD_PARAM, "link modes are fixed"));
    }
    let up = cmd.env.card(cmd.nic.seat).uplink.is_up();
    let mut out = Ptys::new();
    out.set_local_port(PORT)
        .set_proto_mask(register.proto_mask());
    match (register.proto_mask(), cmd.nic.profile.port_type) {
        (PROTO_ETHERNET, PortType::Ethernet) => {
            out.set_eth_proto_capability(ETH_100G)
                .set_eth_proto_admin(ETH_100G);
            out.set_eth_proto_oper(if up { ETH_100G } else { 0 });
        }
        (PROTO_INFINIBAND, PortType::InfiniBand) => {
            out.set_ib_link_width_capability(IB_4X)
                .set_ib_proto_capability(IB_EDR);
            out.set_ib_link_width_admin(IB_4X)
                .set_ib_proto_admin(IB_EDR);
            out.set_ib_link_width_oper(IB_4X).set_ib_proto_oper(IB_EDR);
        }
        // The port has the other link layer, so it reports no mode.
        (PROTO_ETHERNET | PROTO_INFINIBAND, _) => {}
        (other, _) => return Err(refuse!(BAD_PARAM, "protocol mask", "{other}")),
    }
    Ok(out.as_bytes().to_vec())
}

fn ppcnt(cmd: &Cmd<'_>, image: &[u8], read: bool) -> Result<Vec<u8>, Refusal> {
    let register: Ppcnt = image_of(image)?;
    own_port(register.local_port())?;
    if !read {
        return Err(refuse!(BAD_OP, "counters cannot be written"));
    }
    let mut out = Ppcnt::new();
    out.set_local_port(PORT)
        .set_grp(register.grp())
        .set_prio_tc(register.prio_tc())
        .set_counter_set(&port_counters::group(
            cmd.port(),
            &cmd.env.card(cmd.nic.seat).uplink.pauses,
            &register,
        )?);
    Ok(out.as_bytes().to_vec())
}

/// Reads or writes register PFCC. The pauses configured in the simulator apply until the physical function's driver
/// writes the register. The masks of a write select the values that the write leaves unchanged: a set bit for the whole
/// port's pause, a clear bit for a priority (Linux `mlx5_set_port_pause`, `mlx5_set_port_pfc` and
/// `mlx5_set_port_stall_watermark` in drivers/net/ethernet/mellanox/mlx5/core/port.c). Software may set both kinds of
/// pause. Inferred: priority flow control then applies, because a port uses one kind or the other (IEEE 802.1Q,
/// "Priority-based flow control"). A virtual function's write is accepted without effect.
fn pfcc(cmd: &mut Cmd<'_>, image: &[u8], read: bool) -> Result<Vec<u8>, Refusal> {
    let register: Pfcc = image_of(image)?;
    own_port(register.local_port())?;
    if !read && !cmd.nic.seat.is_virtual() {
        let qos = &mut cmd.env.card_mut(cmd.nic.seat).uplink.qos;
        let chosen = |keeps, before, after| if keeps { before } else { after };
        qos.pause = (
            chosen(register.pptx_mask_n(), qos.pause.0, register.pptx()),
            chosen(register.pprx_mask_n(), qos.pause.1, register.pprx()),
        );
        qos.paused_priorities = (
            masked(
                qos.paused_priorities.0,
                register.pfctx(),
                register.prio_mask_tx(),
            ),
            masked(
                qos.paused_priorities.1,
                register.pfcrx(),
                register.prio_mask_rx(),
            ),
        );
    }
    let qos = &cmd.env.card(cmd.nic.seat).uplink.qos;
    let mut out = Pfcc::new();
    out.set_local_port(PORT)
        .set_pptx(qos.pause.0)
        .set_pprx(qos.pause.1)
        .set_pfctx(qos.paused_priorities.0.into())
        .set_pfcrx(qos.paused_priorities.1.into());
    Ok(out.as_bytes().to_vec())
}

/// Returns the priorities after a write that changes only the priorities in the mask.
fn masked(before: u8, after: u32, mask: u32) -> u8 {
    // CAST: both are 8-bit fields.
    let [after, mask] = [after, mask].map(|field| u8::try_from(field).unwrap_or(0));
    before & !mask | after & mask
}

fn has_priorities(cmd: &Cmd<'_>) -> bool {
    cmd.nic.profile.port_type == PortType::Ethernet && !cmd.nic.seat.is_virtual()
}

fn has_classes(cmd: &Cmd<'_>) -> bool {
    has_priorities(cmd) && cmd.nic.caps.general.ets()
}

fn qpts(cmd: &Cmd<'_>, image: &[u8], read: bool) -> Result<Vec<u8>, Refusal> {
    let register: Qpts = image_of(image)?;
    own_port(register.local_port())?;
    if !read {
        return Err(refuse!(BAD_PARAM, "what the port goes by is fixed"));
    }
    let mut out = Qpts::new();
    out.set_local_port(PORT)
        .set_trust_state(cmd.env.card(cmd.nic.seat).uplink.qos.trust);
    Ok(out.as_bytes().to_vec())
}

fn qpdpm(cmd: &Cmd<'_>, image: &[u8], read: bool) -> Result<Vec<u8>, Refusal> {
    let register: Qpdpm = image_of(image)?;
    own_port(register.local_port())?;
    if !read {
        return Err(refuse!(BAD_PARAM, "priorities of code points are fixed"));
    }
    let mut out = Qpdpm::new();
    out.set_local_port(PORT);
    let priorities = cmd.env.card(cmd.nic.seat).uplink.qos.priorities;
    for (dscp, priority) in priorities.into_iter().enumerate() {
        out.set_priority(dscp, priority);
    }
    Ok(out.as_bytes().to_vec())
}

fn node_description(cmd: &mut Cmd<'_>, image: &[u8], read: bool) -> Result<Vec<u8>, Refusal> {
    let Some(description) = image.first_chunk::<64>() else {
        return Err(refuse!(
            BAD_INPUT_LEN,
            "register image too short",
            "{:#x} of 0x40",
            image.len()
        ));
    };
    if !read {
        cmd.port_mut().node_description = *description;
    }
    Ok(cmd.port().node_description.to_vec())
}

/// Reads PVLC. `local_port` is byte 1. `vl_hw_cap`, `vl_admin` and `vl_operational` are the low four bits of bytes 7,
/// 11 and 15 (Linux `mlx5_ifc_pvlc_reg_bits`).
fn pvlc(image: &[u8], read: bool) -> Result<Vec<u8>, Refusal> {
    let mut out = bytes_back(image, 0x10)?;
    own_port(u32::from(image[1]))?;
    if !read {
        return Err(refuse!(BAD_PARAM, "virtual lanes are fixed"));
    }
    out[1] = image[1];
    for at in [7, 11, 15] {
        out[at] = VIRTUAL_LANES;
    }
    Ok(out)
}

/// Refuses a write of a read-only register.
fn only_read(read: bool) -> Result<(), Refusal> {
    if !read {
        return Err(refuse!(BAD_OP, "register cannot be written"));
    }
    Ok(())
}

/// Reads MCAM. Of the management registers it reports MCQI and MCQS, which describe the firmware.
fn mcam(image: &[u8], read: bool) -> Result<Vec<u8>, Refusal> {
    only_read(read)?;
    let register: Mcam = image_of(image)?;
    let mut out = Mcam::new();
    out.set_feature_group(register.feature_group())
        .set_access_reg_group(register.access_reg_group());
    if register.access_reg_group() == 0 {
        out.set_mcqi(true).set_mcqs(true);
    }
    Ok(out.as_bytes().to_vec())
}

/// Reads MCQS. The firmware has one component, its boot image, which is in use and not being changed.
fn mcqs(image: &[u8], read: bool) -> Result<Vec<u8>, Refusal> {
    only_read(read)?;
    let register: Mcqs = image_of(image)?;
    component(register.component_index())?;
    let mut out = Mcqs::new();
    out.set_last_index_flag(true)
        .set_identifier(BOOT_IMAGE)
        .set_component_status(IN_USE);
    Ok(out.as_bytes().to_vec())
}

fn component(index: u32) -> Result<(), Refusal> {
    if index != 0 {
        return Err(refuse!(BAD_PARAM, "no such firmware component", "{index}"));
    }
    Ok(())
}

fn mcqi(cmd: &Cmd<'_>, image: &[u8], read: bool) -> Result<Vec<u8>, Refusal> {
    only_read(read)?;
    // The first 0x18 bytes are the request. In the answer the data follows them.
    let mut asked = Mcqi::new();
    let bytes = image.len().min(Mcqi::SIZE);
    asked.as_mut_bytes()[..bytes].copy_from_slice(&image[..bytes]);
    component(asked.component_index())?;
    if asked.info_type() != INFO_VERSION || asked.read_pending_component() {
        return Err(refuse!(
            BAD_PARAM,
            "information of another kind",
            "{}",
            asked.info_type()
        ));
    }
    let (major, minor, subminor) = cmd.nic.profile.firmware;
    let version =
        u32::from(major & 0xff) << 24 | u32::from(minor & 0xff) << 16 | u32::from(subminor);
    let mut out = Mcqi::new();
    out.set_info_type(INFO_VERSION)
        .set_info_size(VERSION_BYTES)
        .set_data_size(asked.data_size())
        .set_version(version);
    let mut bytes = out.as_bytes().to_vec();
    // The rest of the version data (build times, build tool version and version string) is zero.
    bytes.resize(MCQI_HEADER + VERSION_BYTES as usize, 0);
    Ok(bytes)
}
