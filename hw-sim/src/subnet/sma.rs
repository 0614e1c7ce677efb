//! The subnet management agent: attributes that every node answers (IBTA volume 1, section 14.2.5).
//!
//! Keys first (section 14.2.4): a port whose M_Key is set accepts no Set without it, and depending on its protection
//! no Get either. Such a packet is counted and not answered.

use mlx_prm::{MadMethod, NodeInfo, PortInfo, Smp, SmpAttribute};

use super::Subnet;
use super::mad::{
    ATTRIBUTE_NOT_SUPPORTED, Answer, BASE_VERSION, CLASS_VERSION, DATA_BYTES, Data, INVALID_VALUE,
    Method, Status, answered, block, block_mut, of_words, words,
};
use super::port_info::{Changes, Link, ManagedPort};

/// GUIDs in a GUIDInfo block, P_Keys in a block of the table.
const GUIDS_PER_BLOCK: usize = 8;
const PKEYS_PER_BLOCK: usize = 32;
/// Protection of M_Keys: an answer to a Get shows the key; a Get without the key is not answered.
const KEY_IS_SHOWN: u32 = 0;
const GET_NEEDS_KEY: u32 = 2;

/// Service levels and weights of virtual lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lanes {
    /// SLtoVLMappingTable, one for each pair of ports that a packet may take; one of an adapter.
    sl_to_vl: Vec<[u8; 8]>,
    /// VLArbitrationTable: low and high priority, in halves of 32 entries.
    weights: [Data; 4],
}

impl Lanes {
    /// Every service level on lane 0, in so many mapping tables.
    pub fn of(tables: usize) -> Self {
        Self {
            sl_to_vl: vec![[0; 8]; tables],
            weights: [[0; DATA_BYTES]; 4],
        }
    }

    /// SLtoVLMappingTable of a way.
    pub fn sl_to_vl(&mut self, method: Method, way: usize, data: &Data) -> Answer {
        let table = self.sl_to_vl.get_mut(way).ok_or(INVALID_VALUE)?;
        if method == Method::Set {
            table.copy_from_slice(&data[..8]);
        }
        let mut answer = [0; DATA_BYTES];
        answer[..8].copy_from_slice(table);
        Ok(answer)
    }

    /// VLArbitrationTable, blocks 1 to 4.
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
    /// 1 channel adapter, 2 switch.
    pub node_type: u8,
    pub ports: u8,
    /// System image, port, node.
    pub guids: [u64; 3],
    pub partitions: usize,
    pub device_id: u16,
    pub revision: u32,
    pub vendor_id: u32,
}

impl Node {
    /// NodeInfo, as it is answered to a packet that came in at a port.
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

/// Access that the M_Key of a node grants a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everything. The M_Key is shown.
    Whole,
    /// A Get that does not see the M_Key.
    WithoutKey,
    /// Nothing: there is no answer.
    None,
}

/// Checks a packet's M_Key; `unchecked` if the sender is the node itself.
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

/// An agent's answer, if there is one, and the changes.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub smp: Option<Smp>,
    pub changes: Changes,
}

/// Answers a Get or Set of a channel adapter's only port.
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
                // 0 names the port that received the packet.
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
            // No port here is of FDR10, and none can be made so.
            SmpAttribute::EXTENDED_PORT_INFO if modifier <= u32::from(PORT) => Ok([0; DATA_BYTES]),
            _ => Err(ATTRIBUTE_NOT_SUPPORTED),
        }
    });
    Outcome {
        smp: Some(answered(request, answer)),
        changes,
    }
}

/// A manager that knows of extended speeds says so in PortInfo's modifier (IBTA volume 1, section 14.2.5.6).
const MANAGER_HAS_EXTENDED_SPEEDS: u32 = 1 << 31;

/// The port that the modifier of a PortInfo names.
pub fn port_of(modifier: u32) -> Result<u8, Status> {
    let port = modifier & !MANAGER_HAS_EXTENDED_SPEEDS;
    u8::try_from(port).map_err(|_| INVALID_VALUE)
}

/// The only port of a channel adapter.
const PORT: u8 = 1;

/// PortInfo of a port.
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
    // The answer to a Set says that it was accepted; a Get finds it zero.
    info.set_client_reregister(reregister);
    Ok(*info.as_array())
}

/// P_KeyTable of a port, and whether it has changed.
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

/// GUIDInfo. The first GUID of all is the port's own and stays.
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
