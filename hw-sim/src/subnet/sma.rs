//! The subnet management agent (SMA): the attributes that every node answers (IBTA volume 1, section 14.2.5).
//!
//! The agent checks the M_Key first (section 14.2.4). If a port has an M_Key, it rejects every Set without that key. It
//! also rejects a Get without the key, depending on the protection bits. A rejected packet is counted and not answered.

use mlx_prm::{MadMethod, NodeInfo, PortInfo, Smp, SmpAttribute};

use super::Subnet;
use super::mad::{
    ATTRIBUTE_NOT_SUPPORTED, Answer, BASE_VERSION, CLASS_VERSION, DATA_BYTES, Data, INVALID_VALUE,
    Method, Status, answered, block, block_mut, of_words, words,
};
use super::port_info::{Changes, Link, ManagedPort};

/// Number of GUIDs in a GUIDInfo block, and number of P_Keys in a P_KeyTable block.
const GUIDS_PER_BLOCK: usize = 8;
const PKEYS_PER_BLOCK: usize = 32;
/// M_KeyProtectBits: with 0, the answer to any Get shows the M_Key; from 2 on, a Get without the key is not answered.
const KEY_IS_SHOWN: u32 = 0;
const GET_NEEDS_KEY: u32 = 2;

/// Virtual lane tables of a port: service level mapping and arbitration weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lanes {
    /// SLtoVLMappingTables. A switch port has one per output port; an adapter's port has one.
    sl_to_vl: Vec<[u8; 8]>,
    /// VLArbitrationTable: the low-priority and the high-priority table, each in two blocks of 32 entries.
    weights: [Data; 4],
}

impl Lanes {
    /// Creates `tables` mapping tables that map every service level to VL 0.
    pub fn of(tables: usize) -> Self {
        Self {
            sl_to_vl: vec![[0; 8]; tables],
            weights: [[0; DATA_BYTES]; 4],
        }
    }

    /// Answers a Get or Set of SLtoVLMappingTable number `way`.
    pub fn sl_to_vl(&mut self, method: Method, way: usize, data: &Data) -> Answer {
        let table = self.sl_to_vl.get_mut(way).ok_or(INVALID_VALUE)?;
        if method == Method::Set {
            table.copy_from_slice(&data[..8]);
        }
        let mut answer = [0; DATA_BYTES];
        answer[..8].copy_from_slice(table);
        Ok(answer)
    }

    /// Answers a Get or Set of a VLArbitrationTable block. `number` is 1 to 4.
    pub fn weights(&mut self, method: Method, number: usize, data: &Data) -> Answer {
        let table = number
            .checked_sub(1)
            .and_then(|number| self.weights.get_mut(number))
            .ok_or(INVALID_VALUE)?;
        if method == Method::Set {
            *table = *data;
        }
        Ok(*table)
    }
}

/// Contents of a node's NodeInfo.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// Node type: 1 is a channel adapter, 2 is a switch.
    pub node_type: u8,
    pub ports: u8,
    /// System image GUID, port GUID and node GUID.
    pub guids: [u64; 3],
    pub partitions: usize,
    pub device_id: u16,
    pub revision: u32,
    pub vendor_id: u32,
}

impl Node {
    /// Returns NodeInfo as the answer to a packet that arrived at `port`.
    pub fn info(&self, port: u8) -> Data {
        let [system, port_guid, node] = self.guids;
        let mut info = NodeInfo::new();
        info.set_base_version(BASE_VERSION)
            .set_class_version(CLASS_VERSION)
            .set_node_type(self.node_type)
            .set_num_ports(self.ports)
            .set_system_image_guid(system)
            .set_node_guid(node)
            .set_port_guid(port_guid)
            .set_partition_cap(u16::try_from(self.partitions).unwrap_or(u16::MAX))
            .set_device_id(self.device_id)
            .set_revision(self.revision)
            .set_local_port_num(u32::from(port))
            .set_vendor_id(self.vendor_id);
        *info.as_array()
    }
}

/// Access that a packet gets after the check of its M_Key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Full access. The answer shows the M_Key.
    Whole,
    /// Access to a Get only. The answer does not show the M_Key.
    WithoutKey,
    /// No access. The packet is not answered.
    None,
}

/// Checks a packet's M_Key. `unchecked` is true if the node itself sent the packet, which needs no key.
pub fn access(keys: &mut PortInfo, smp: &Smp, unchecked: bool) -> Access {
    let protection = keys.m_key_protect_bits();
    if unchecked || keys.m_key() == 0 || keys.m_key() == smp.m_key() {
        return Access::Whole;
    }
    if MadMethod(smp.method()) == MadMethod::GET && protection < GET_NEEDS_KEY {
        return if protection == KEY_IS_SHOWN {
            Access::Whole
        } else {
            Access::WithoutKey
        };
    }
    keys.set_m_key_violations(keys.m_key_violations().saturating_add(1));
    Access::None
}

/// Answer of an agent, if any, and the changes that the request made.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub smp: Option<Smp>,
    pub changes: Changes,
}

/// Answers a Get or Set to the only port of a channel adapter.
pub fn adapter(
    node: &Node,
    description: &[u8; DATA_BYTES],
    subnet: &mut Subnet,
    link: Link,
    request: &Smp,
    unchecked: bool,
) -> Outcome {
    let access = access(&mut subnet.port.info, request, unchecked);
    if access == Access::None || MadMethod(request.method()) == MadMethod::TRAP_REPRESS {
        return Outcome::default();
    }
    let mut changes = Changes::default();
    let method = Method::of(
        request.base_version(),
        request.class_version(),
        request.method(),
    );
    let answer = method.and_then(|method| {
        let data = request.data();
        let modifier = request.attribute_modifier();
        let number = usize::try_from(modifier).unwrap_or(usize::MAX);
        match SmpAttribute(request.attribute_id()) {
            SmpAttribute::NODE_DESCRIPTION => method.only_get().map(|()| *description),
            SmpAttribute::NODE_INFO => method.only_get().map(|()| node.info(PORT)),
            SmpAttribute::GUID_INFO => guids(subnet, method, number, data, &mut changes),
            SmpAttribute::PORT_INFO => {
                // Modifier 0 selects the port that received the packet.
                if port_of(modifier)? > PORT {
                    return Err(INVALID_VALUE);
                }
                let shown = access == Access::Whole;
                let port = &mut subnet.port;
                let answer = port_info(port, PORT, method, link, shown, data, &mut changes)?;
                subnet.prefix_gids();
                Ok(answer)
            }
            SmpAttribute::P_KEY_TABLE => {
                let (answer, changed) = pkeys(&mut subnet.pkeys, method, number, data)?;
                changes.pkeys = changed;
                Ok(answer)
            }
            SmpAttribute::SL_TO_VL_MAPPING_TABLE => subnet.lanes.sl_to_vl(method, number, data),
            SmpAttribute::VL_ARBITRATION_TABLE => subnet.lanes.weights(method, number >> 16, data),
            // Mellanox ExtendedPortInfo reports FDR10. No simulated port supports it, so a Get reads zeros and a Set is
            // ignored.
            SmpAttribute::EXTENDED_PORT_INFO if modifier <= u32::from(PORT) => Ok([0; DATA_BYTES]),
            _ => Err(ATTRIBUTE_NOT_SUPPORTED),
        }
    });
    Outcome {
        smp: Some(answered(request, answer)),
        changes,
    }
}

/// Bit of PortInfo's modifier by which a manager announces that it supports extended speeds (IBTA volume 1, section
/// 14.2.5.6).
const MANAGER_HAS_EXTENDED_SPEEDS: u32 = 1 << 31;

/// Returns the port number in the attribute modifier of a PortInfo request.
pub fn port_of(modifier: u32) -> Result<u8, Status> {
    let port = modifier & !MANAGER_HAS_EXTENDED_SPEEDS;
    u8::try_from(port).map_err(|_| INVALID_VALUE)
}

/// Number of the only port of a channel adapter.
const PORT: u8 = 1;

/// Answers a Get or Set of a port's PortInfo.
pub fn port_info(
    port: &mut ManagedPort,
    number: u8,
    method: Method,
    link: Link,
    shows_key: bool,
    data: &Data,
    changes: &mut Changes,
) -> Answer {
    let mut reregister = false;
    if method == Method::Set {
        let wanted = PortInfo::from_array(*data);
        *changes = port.set(&wanted, link)?;
        reregister = changes.reregister;
    }
    let mut info = port.get(number, link, shows_key);
    // The answer to a Set repeats ClientReregister as a sign that it was accepted. A Get always reads 0.
    info.set_client_reregister(reregister);
    Ok(*info.as_array())
}

/// Answers a Get or Set of a P_KeyTable block. Also returns whether the table has changed.
pub fn pkeys(
    table: &mut [u16],
    method: Method,
    number: usize,
    data: &Data,
) -> Result<(Data, bool), Status> {
    let entries = block_mut(table, number, PKEYS_PER_BLOCK)?;
    let before = entries.to_vec();
    if method == Method::Set {
        for (entry, pkey) in entries.iter_mut().zip(words(data)) {
            *entry = pkey;
        }
    }
    Ok((of_words(entries), before != entries))
}

/// Answers a Get or Set of a GUIDInfo block. A Set does not change GUID 0, which is the port's own.
fn guids(
    subnet: &mut Subnet,
    method: Method,
    number: usize,
    data: &Data,
    changes: &mut Changes,
) -> Answer {
    let before = subnet.gids.clone();
    let gids = block_mut(&mut subnet.gids, number, GUIDS_PER_BLOCK)?;
    if method == Method::Set {
        let own = usize::from(number == 0);
        let guids = data.chunks_exact(8);
        for (gid, guid) in gids.iter_mut().zip(guids).skip(own) {
            *gid = [0; 16];
            gid[8..].copy_from_slice(guid);
        }
        subnet.prefix_gids();
        changes.gids = before != subnet.gids;
    }
    let gids = block(&subnet.gids, number, GUIDS_PER_BLOCK)?;
    let mut answer = [0; DATA_BYTES];
    for (place, gid) in answer.chunks_exact_mut(8).zip(gids) {
        place.copy_from_slice(&gid[8..]);
    }
    Ok(answer)
}
