//! MAD_IFC: subnet management packets that the function answers itself, about its own port.
//!
//! What can be read is what the port's vport commands say, in the words of IBTA volume 1, section 14.2.5. Nothing can
//! be set: the simulated subnet has no manager, and the function is none.

use super::hca_vport::port_states;
use super::{Cmd, Outcome, Refusal, output, refuse};
use crate::card::Vport;
use crate::nic::Nic;
use crate::subnet::Subnet;
use mlx_prm::{MadIfcIn, MadIfcOut, Smp};

/// The only port.
const PORT: u32 = 1;
/// M_Key and B_Key are not checked; there are none.
const IGNORE_KEYS: u32 = 3;
const BASE_VERSION: u8 = 1;
const SUBNET_LID_ROUTED: u8 = 1;
const SUBNET_CLASS_VERSION: u8 = 1;
const METHOD_GET: u8 = 1;
const METHOD_GET_RESP: u8 = 0x81;
/// Status codes in bits 4:2 of a MAD's status (IBTA volume 1, table "MAD Common Status Field").
const BAD_VERSION: u16 = 1 << 2;
const METHOD_NOT_SUPPORTED: u16 = 2 << 2;
const ATTRIBUTE_NOT_SUPPORTED: u16 = 3 << 2;
const BAD_ATTRIBUTE_MODIFIER: u16 = 7 << 2;

const NODE_DESCRIPTION: u16 = 0x10;
const NODE_INFO: u16 = 0x11;
const GUID_INFO: u16 = 0x14;
const PORT_INFO: u16 = 0x15;
const PKEY_TABLE: u16 = 0x16;

/// GUIDs in a GUIDInfo block, P_Keys in a block of the table.
const GUIDS_PER_BLOCK: usize = 8;
const PKEYS_PER_BLOCK: usize = 32;

type Data = [u8; 64];

pub(super) fn mad_ifc(cmd: &mut Cmd<'_>) -> Outcome {
    let input: MadIfcIn = cmd.read();
    let vport = cmd.env.vport(cmd.nic.seat);
    let Some(subnet) = vport.port.subnet.as_ref() else {
        return Err(refuse!(BAD_OP, "command of an InfiniBand port"));
    };
    if cmd.op_mod & !IGNORE_KEYS != 0 {
        return Err(refuse!(BAD_OP, "unknown op_mod", "{:#x}", cmd.op_mod));
    }
    if input.port() != PORT || input.plane_index() != 0 {
        return Err(refuse!(BAD_PARAM, "no such port", "{}", input.port()));
    }
    let mut mad = Smp::from_array(*input.mad());
    if mad.mgmt_class() != SUBNET_LID_ROUTED {
        return Err(unsupported_class(mad.mgmt_class()));
    }
    let states = port_states(cmd);
    let answer = answer(cmd.nic, vport, subnet, states, &mad);
    mad.set_method(METHOD_GET_RESP);
    match answer {
        Ok(data) => mad.set_status(0).set_data(&data),
        Err(status) => mad.set_status(status),
    };
    let mut out = MadIfcOut::new();
    out.set_response_mad_packet(mad.as_array());
    output(&out)
}

fn unsupported_class(class: u8) -> Refusal {
    refuse!(BAD_PARAM, "management class is not supported", "{class:#x}")
}

/// The attribute, or a MAD status.
fn answer(
    nic: &Nic,
    vport: &Vport,
    subnet: &Subnet,
    states: (u32, u32),
    mad: &Smp,
) -> Result<Data, u16> {
    if (mad.base_version(), mad.class_version()) != (BASE_VERSION, SUBNET_CLASS_VERSION) {
        return Err(BAD_VERSION);
    }
    if mad.method() != METHOD_GET {
        return Err(METHOD_NOT_SUPPORTED);
    }
    let modifier = usize::try_from(mad.attribute_modifier()).unwrap_or(usize::MAX);
    match mad.attribute_id() {
        NODE_DESCRIPTION => Ok(vport.port.node_description),
        NODE_INFO => Ok(node_info(nic, vport, subnet)),
        GUID_INFO => guid_info(subnet, modifier),
        // 0 names the port that received the packet.
        PORT_INFO if modifier <= 1 => Ok(port_info(subnet, states)),
        PORT_INFO => Err(BAD_ATTRIBUTE_MODIFIER),
        PKEY_TABLE => pkey_table(subnet, modifier),
        _ => Err(ATTRIBUTE_NOT_SUPPORTED),
    }
}

fn node_info(nic: &Nic, vport: &Vport, subnet: &Subnet) -> Data {
    let [system, port, node] = vport.guids;
    let mut data = [0; 64];
    // Versions, a channel adapter, one port.
    data[0..4].copy_from_slice(&[BASE_VERSION, SUBNET_CLASS_VERSION, 1, 1]);
    data[4..12].copy_from_slice(&system.to_be_bytes());
    data[12..20].copy_from_slice(&node.to_be_bytes());
    data[20..28].copy_from_slice(&port.to_be_bytes());
    let partitions = u16::try_from(subnet.pkeys.len()).unwrap_or(u16::MAX);
    data[28..30].copy_from_slice(&partitions.to_be_bytes());
    data[30..32].copy_from_slice(&nic.profile.device_id.to_be_bytes());
    data[32..36].copy_from_slice(&u32::from(nic.profile.revision).to_be_bytes());
    // The local port and the vendor's three bytes.
    data[36..40].copy_from_slice(&(PORT << 24 | super::function::IEEE_MELLANOX).to_be_bytes());
    data
}

fn port_info(subnet: &Subnet, (state, physical): (u32, u32)) -> Data {
    // Bytes of two fields: the values of this port's one speed (EDR), width (4x), MTU (4096) and lane.
    const WIDTH_ENABLED_SUPPORTED_ACTIVE: [u8; 3] = [3, 3, 2];
    const SPEED: u8 = 7;
    const SPEED_ACTIVE: u8 = 4;
    const MTU_4096: u8 = 5;
    const LANES: u8 = 1;
    const GUIDS_PER_CAP: usize = 8;
    let mut data = [0; 64];
    if let Some(gid) = subnet.gids.first() {
        data[8..16].copy_from_slice(&gid[..8]);
    }
    data[16..18].copy_from_slice(&subnet.lid.to_be_bytes());
    data[20..24].copy_from_slice(&subnet.capabilities.to_be_bytes());
    data[28] = 1;
    data[29..32].copy_from_slice(&WIDTH_ENABLED_SUPPORTED_ACTIVE);
    // CAST: four-bit codes.
    let (state, physical) = (state.to_be_bytes()[3], physical.to_be_bytes()[3]);
    data[32] = SPEED << 4 | state;
    data[33] = physical << 4;
    data[35] = SPEED_ACTIVE << 4 | SPEED;
    data[36] = MTU_4096 << 4;
    data[37] = LANES << 4;
    data[41] = MTU_4096;
    data[43] = LANES << 4;
    data[50] = u8::try_from(subnet.gids.len() / GUIDS_PER_CAP).unwrap_or(u8::MAX);
    // Extended speed: EDR active of FDR and EDR.
    data[62] = 2 << 4 | 3;
    data[63] = 3;
    data
}

fn guid_info(subnet: &Subnet, block: usize) -> Result<Data, u16> {
    let gids = block_of(&subnet.gids, block, GUIDS_PER_BLOCK)?;
    let mut data = [0; 64];
    for (place, gid) in data.chunks_exact_mut(8).zip(gids) {
        place.copy_from_slice(&gid[8..]);
    }
    Ok(data)
}

fn pkey_table(subnet: &Subnet, block: usize) -> Result<Data, u16> {
    let pkeys = block_of(&subnet.pkeys, block, PKEYS_PER_BLOCK)?;
    let mut data = [0; 64];
    for (place, pkey) in data.chunks_exact_mut(2).zip(pkeys) {
        place.copy_from_slice(&pkey.to_be_bytes());
    }
    Ok(data)
}

fn block_of<T>(table: &[T], block: usize, entries: usize) -> Result<&[T], u16> {
    table
        .chunks(entries)
        .nth(block)
        .ok_or(BAD_ATTRIBUTE_MODIFIER)
}
