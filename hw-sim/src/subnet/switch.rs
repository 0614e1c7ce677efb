//! An InfiniBand switch: a node of the subnet with its own agents. It forwards packets by the tables that a subnet
//! manager writes (IBTA volume 1, section 18.2).
//!
//! A packet to port 0 (to its LID, or with a directed route that ends at this switch) goes to the agents. Other packets
//! are forwarded without delay: unicast by the linear forwarding table, multicast by the multicast forwarding table,
//! directed routes by the path in the packet. Data passes if the ingress port is Armed or Active and the egress port is
//! Active.
//!
//! In a preset subnet, the simulator writes the tables when it connects cables. Multicast is flooded there, because
//! without a subnet manager no port joins a group.

use mlx_prm::{MadClass, MadMethod, PerformanceMad, Smp, SmpAttribute, SwitchInfo};

use super::directed::{self, Step};
use super::mad::{
    ATTRIBUTE_NOT_SUPPORTED, Answer, DATA_BYTES, Data, INVALID_VALUE, Method, answered, block_mut,
    of_words, words,
};
use super::packet::{datagram, forwarded, is_of_management_lane, lrh, reply, wrong_lane};
use super::pma::{self, Counted, Counter};
use super::port_info::{Kind, ManagedPort};
use super::sma::{Access, Lanes, Node, access, pkeys, port_info, port_of};
use super::{Changes, FIRST_MULTICAST_LID, Link, Manager, PERMISSIVE_LID, PortState};
use crate::wire::{self, DEFAULT_PKEY, LrhPacket, LrhRepr, Packet, Qpn};

/// Range of a switch's number of ports, not counting port 0. One mask of the multicast forwarding table covers them.
pub const PORTS: std::ops::RangeInclusive<usize> = 2..=15;
/// NodeType of a switch in NodeInfo.
const SWITCH: u8 = 2;
/// VendorID and DeviceID of the simulated switch. The vendor is the locally administered prefix of simulated addresses,
/// which belongs to no manufacturer.
const VENDOR: u32 = 0x02_005e;
const DEVICE: u16 = 0x5c5c;
/// Entry of the linear forwarding table for a LID without a route.
const NOWHERE: u8 = 0xff;
/// Number of entries in a block of the linear and of the multicast forwarding table.
const LIDS_PER_BLOCK: usize = 64;
const GROUPS_PER_BLOCK: usize = 32;
/// Number of multicast LIDs in the multicast forwarding table.
const GROUPS: usize = 1024;
/// Number of P_Keys in the table of port 0.
const PARTITIONS: usize = 32;
/// Capability mask of port 0: SL mapping, system image GUID, extended speeds. Adapter ports have these bits, too.
const CAPABILITIES: u32 = 0x0000_4840;
/// LID of the first switch of a preset subnet. Adapter ports derive their LIDs from their MAC addresses, and these LIDs
/// are below 0x8000.
const FIRST_LID: u16 = 0xbf00;

/// A port of a switch, external or port 0.
#[derive(Debug)]
struct SwitchPort {
    port: ManagedPort,
    link: Link,
    counted: Counted,
    cleared: Counted,
    lanes: Lanes,
}

/// A switch.
#[derive(Debug)]
pub struct SubnetSwitch {
    number: usize,
    manager: Manager,
    guid: u64,
    info: SwitchInfo,
    ports: Vec<SwitchPort>,
    linear: Vec<u8>,
    multicast: Vec<u16>,
    pkeys: Vec<u16>,
    /// Link changes that a manager requested and that the other end of the cable has not been notified of yet.
    link_changes: Vec<(u8, LinkChange)>,
}

/// A change of a port's link that a manager requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkChange {
    /// The manager disabled the link.
    Disabled,
    /// The manager enabled the link again.
    Enabled,
    /// The manager took the link down; the link trains again at once.
    Retrain,
}

/// Packets that the switch sends: egress port and frame.
pub type Departures = Vec<(u8, Vec<u8>)>;

impl SubnetSwitch {
    /// Creates a switch with `ports` external ports. `number` is the index of the switch in the simulator.
    pub fn new(number: usize, ports: usize, manager: Manager) -> Self {
        let state = manager.first_state();
        let of_kind = |kind, state, link| SwitchPort {
            port: ManagedPort::new(kind, state, CAPABILITIES),
            link,
            counted: Counted::default(),
            cleared: Counted::default(),
            lanes: Lanes::of(ports + 1),
        };
        let mut base = of_kind(Kind::Management, PortState::Active, Link::Up);
        let [.., high, low] = number.to_be_bytes();
        if manager == Manager::Preset {
            base.port.info.set_lid(FIRST_LID + u16::from(low));
        }
        let external = (0..ports).map(|_| of_kind(Kind::External, state, Link::Dark));
        let mut info = SwitchInfo::new();
        info.set_linear_fdb_cap(FIRST_MULTICAST_LID)
            .set_multicast_fdb_cap(u16::try_from(GROUPS).unwrap_or(u16::MAX));
        let multicast = match manager {
            Manager::Preset => u16::MAX,
            Manager::Outside => 0,
        };
        let mut pkeys = vec![0; PARTITIONS];
        pkeys[0] = DEFAULT_PKEY;
        Self {
            number,
            manager,
            guid: u64::from_be_bytes([0x02, 0x00, 0x5e, 0xff, 0xfe, 0x5c, high, low]),
            info,
            ports: std::iter::once(base).chain(external).collect(),
            linear: vec![NOWHERE; usize::from(FIRST_MULTICAST_LID)],
            multicast: vec![multicast; GROUPS],
            pkeys,
            link_changes: Vec::new(),
        }
    }

    /// Returns the LID of port 0.
    #[cfg(test)]
    pub fn lid(&self) -> u16 {
        self.ports[0].port.info.lid()
    }

    /// Takes the link changes that managers requested since the last call.
    pub fn take_link_changes(&mut self) -> Vec<(u8, LinkChange)> {
        std::mem::take(&mut self.link_changes)
    }

    /// Returns whether `port` is an external port, to which a cable can connect.
    pub fn has(&self, port: usize) -> bool {
        (1..self.ports.len()).contains(&port)
    }

    /// Writes the route of a LID to the linear forwarding table, if the subnet is preset.
    pub fn preset(&mut self, lid: u16, port: u8) {
        if self.manager == Manager::Preset
            && let Some(entry) = self.linear.get_mut(usize::from(lid))
        {
            *entry = port;
            self.info
                .set_linear_fdb_top(self.info.linear_fdb_top().max(lid));
        }
    }

    /// Updates the state of a port whose link came up or went down.
    pub fn link_changed(&mut self, port: u8, up: bool) {
        let state = self.manager.first_state();
        let Some(port) = self.ports.get_mut(usize::from(port)) else {
            return;
        };
        let link = if up { Link::Up } else { Link::Dark };
        if port.link != link && port.link != Link::Disabled {
            port.link = link;
            port.port.state = state;
            self.info.set_port_state_change(true);
        }
    }

    /// Processes a packet that arrived at port `by`, and returns the packets that the switch sends in response.
    pub fn receive(&mut self, by: u8, frame: Vec<u8>) -> Departures {
        let mut out = Departures::new();
        let Some(port) = self.ports.get_mut(usize::from(by)) else {
            return out;
        };
        let Ok(header) = LrhPacket::new_checked(frame.as_slice()) else {
            return out;
        };
        let lid = header.dlid();
        let is_management = is_of_management_lane(&frame);
        if port.link != Link::Up {
            return out;
        }
        port.counted.received.count(frame.len());
        if wrong_lane(&frame).is_some() {
            return out;
        }
        if !is_management && port.port.state == PortState::Armed {
            port.port.state = PortState::Active;
        }
        if !is_management && self.ports[usize::from(by)].port.state != PortState::Active {
            return out;
        }
        match lid {
            lid if lid == PERMISSIVE_LID || self.ports[0].port.owns(lid) => {
                self.for_itself(by, &frame, &mut out);
            }
            FIRST_MULTICAST_LID.. => self.multicast(by, lid, frame, &mut out),
            lid => self.unicast(by, lid, frame, &mut out),
        }
        out.retain(|(port, frame)| self.pass_egress(*port, frame));
        out
    }

    /// Checks whether a packet may leave through a port, and counts it if so.
    fn pass_egress(&mut self, port: u8, frame: &[u8]) -> bool {
        let Some(port) = self.ports.get_mut(usize::from(port)) else {
            return false;
        };
        let passes = is_of_management_lane(frame) || port.port.state == PortState::Active;
        let is_sent = port.link == Link::Up && passes;
        if is_sent {
            port.counted.sent.count(frame.len());
        }
        is_sent
    }

    /// Returns the linear forwarding table's entry of a LID. LIDs above LinearFDBTop have no entry (IBTA volume 1,
    /// section 18.2.4.3).
    fn route(&self, lid: u16) -> Option<u8> {
        let entry = self.linear.get(usize::from(lid)).copied();
        entry.filter(|_| lid <= self.info.linear_fdb_top())
    }

    fn unicast(&self, by: u8, lid: u16, frame: Vec<u8>, out: &mut Departures) {
        let port = self.route(lid);
        // Data to port 0 is not forwarded. A packet is not sent back through its ingress port.
        if let Some(port) = port.filter(|&port| port != 0 && port != by) {
            out.push((port, frame));
        }
    }

    fn multicast(&self, by: u8, lid: u16, frame: Vec<u8>, out: &mut Departures) {
        let group = usize::from(lid - FIRST_MULTICAST_LID);
        let mask = self.multicast.get(group).copied().unwrap_or(0);
        // CAST: a switch has at most 15 ports.
        let ports = (1..).take(self.ports.len() - 1);
        for port in ports.filter(|&port: &u8| port != by && mask >> port & 1 == 1) {
            out.push((port, frame.clone()));
        }
    }

    /// Handles a packet to port 0, or with a directed route.
    fn for_itself(&mut self, by: u8, frame: &[u8], out: &mut Departures) {
        let Ok(packet) = Packet::parse_infiniband(frame) else {
            return;
        };
        let Some(mad) = datagram(&packet) else { return };
        let lid = self.ports[0].port.info.lid();
        if packet.dest_qpn() != Qpn::SMI {
            let mad = PerformanceMad::from_array(*mad);
            let is_asked = [MadMethod::GET, MadMethod::SET].contains(&MadMethod(mad.method()));
            if MadClass(mad.mgmt_class()) == MadClass::PERFORMANCE && is_asked {
                let answer = self.measured(&mad);
                out.extend(reply(&packet, lid, answer.as_array()).map(|frame| (by, frame)));
            }
            return;
        }
        let mut smp = Smp::from_array(*mad);
        let answers = [MadMethod::GET, MadMethod::SET, MadMethod::TRAP_REPRESS];
        if !directed::is_directed(&smp) {
            let is_ours = MadClass(smp.mgmt_class()) == MadClass::SUBNET_LID_ROUTED
                && answers.contains(&MadMethod(smp.method()));
            let answer = is_ours.then(|| self.managed(by, &smp)).flatten();
            let answer = answer.and_then(|answer| reply(&packet, lid, answer.as_array()));
            out.extend(answer.map(|frame| (by, frame)));
            return;
        }
        let step = match directed::arrives(&mut smp, by) {
            Step::Agent if answers.contains(&MadMethod(smp.method())) => {
                let Some(answer) = self.managed(by, &smp) else {
                    return;
                };
                smp = answer;
                directed::answers(&mut smp)
            }
            Step::Agent => return,
            step @ (Step::Port(_) | Step::Lid(_) | Step::Sender | Step::Nowhere) => step,
        };
        // On the directed part of the route both LIDs are permissive. After that part, the packet is forwarded by LID.
        let Some(header) = lrh(&packet) else { return };
        let (port, dlid) = match step {
            Step::Port(port) => (port, PERMISSIVE_LID),
            Step::Lid(dlid) => (self.route(dlid).unwrap_or(NOWHERE), dlid),
            // No subnet manager runs on a switch.
            Step::Agent | Step::Sender | Step::Nowhere => return,
        };
        let header = LrhRepr {
            dlid,
            slid: if dlid == PERMISSIVE_LID {
                PERMISSIVE_LID
            } else {
                lid
            },
            ..header
        };
        // The queue pair numbers stay, even in an answer: directed-route packets go from QP 0 to QP 0.
        let packet = Packet {
            link: wire::Link::InfiniBand(header),
            ..packet
        };
        out.push((port, forwarded(&packet, smp.as_array())));
    }

    fn measured(&mut self, mad: &PerformanceMad) -> PerformanceMad {
        let mut counters: Vec<Counter<'_>> = (0..)
            .zip(self.ports.iter_mut())
            .skip(1)
            .map(|(number, port)| (number, port.counted, &mut port.cleared))
            .collect();
        pma::answer(mad, &mut counters)
    }

    /// Returns the answer of the subnet management agent, if the agent answers.
    fn managed(&mut self, by: u8, request: &Smp) -> Option<Smp> {
        let access = access(&mut self.ports[0].port.info, request, false);
        if access == Access::None || MadMethod(request.method()) == MadMethod::TRAP_REPRESS {
            return None;
        }
        Some(answered(request, self.attribute(by, request, access)))
    }

    fn attribute(&mut self, by: u8, request: &Smp, access: Access) -> Answer {
        let method = Method::of(
            request.base_version(),
            request.class_version(),
            request.method(),
        )?;
        let data = request.data();
        let modifier = usize::try_from(request.attribute_modifier()).unwrap_or(usize::MAX);
        let [low, high] = [modifier & 0xffff, modifier >> 16];
        match SmpAttribute(request.attribute_id()) {
            SmpAttribute::NODE_DESCRIPTION => {
                method.only_get()?;
                let name = format!("simulated switch {}", self.number);
                let mut description = [0; DATA_BYTES];
                description[..name.len()].copy_from_slice(name.as_bytes());
                Ok(description)
            }
            SmpAttribute::NODE_INFO => method.only_get().map(|()| self.node().info(by)),
            SmpAttribute::SWITCH_INFO => self.switch_info(method, data),
            SmpAttribute::GUID_INFO if modifier == 0 => {
                // The only GUID is the port's own.
                let mut guids = [0; DATA_BYTES];
                guids[..8].copy_from_slice(&self.guid.to_be_bytes());
                Ok(guids)
            }
            SmpAttribute::PORT_INFO => {
                let port = usize::from(port_of(request.attribute_modifier())?);
                self.port_info(method, (port, by), access, data)
            }
            SmpAttribute::P_KEY_TABLE if high == 0 => {
                pkeys(&mut self.pkeys, method, low, data).map(|(answer, _)| answer)
            }
            SmpAttribute::SL_TO_VL_MAPPING_TABLE => {
                let (input, output) = (modifier >> 8 & 0xff, modifier & 0xff);
                let port = self.ports.get_mut(input).ok_or(INVALID_VALUE)?;
                port.lanes.sl_to_vl(method, output, data)
            }
            SmpAttribute::VL_ARBITRATION_TABLE => {
                let port = self.ports.get_mut(low).ok_or(INVALID_VALUE)?;
                port.lanes.weights(method, high, data)
            }
            SmpAttribute::LINEAR_FORWARDING_TABLE => {
                let entries = block_mut(&mut self.linear, modifier, LIDS_PER_BLOCK)?;
                if method == Method::Set {
                    entries.copy_from_slice(data);
                }
                entries.try_into().map_err(|_| INVALID_VALUE)
            }
            SmpAttribute::MULTICAST_FORWARDING_TABLE => {
                // Bits 31:28 select the group of 16 ports that the masks are for. Only group 0, the first sixteen,
                // exists.
                let entries = block_mut(&mut self.multicast, modifier, GROUPS_PER_BLOCK)?;
                if method == Method::Set {
                    for (entry, mask) in entries.iter_mut().zip(words(data)) {
                        *entry = mask;
                    }
                }
                Ok(of_words(entries))
            }
            SmpAttribute::GUID_INFO | SmpAttribute::P_KEY_TABLE => Err(INVALID_VALUE),
            _ => Err(ATTRIBUTE_NOT_SUPPORTED),
        }
    }

    fn node(&self) -> Node {
        Node {
            node_type: SWITCH,
            // CAST: a switch has at most 15 ports.
            ports: u8::try_from(self.ports.len() - 1).unwrap_or(u8::MAX),
            guids: [self.guid; 3],
            partitions: self.pkeys.len(),
            device_id: DEVICE,
            revision: 0,
            vendor_id: VENDOR,
        }
    }

    fn switch_info(&mut self, method: Method, data: &Data) -> Answer {
        if method == Method::Set {
            let wanted = SwitchInfo::from_array(*data);
            if wanted.linear_fdb_top() >= self.info.linear_fdb_cap() {
                return Err(INVALID_VALUE);
            }
            let info = &mut self.info;
            info.set_linear_fdb_top(wanted.linear_fdb_top())
                .set_multicast_fdb_top(wanted.multicast_fdb_top())
                .set_default_port(wanted.default_port())
                .set_default_multicast_primary_port(wanted.default_multicast_primary_port())
                .set_default_multicast_not_primary_port(wanted.default_multicast_not_primary_port())
                .set_life_time_value(wanted.life_time_value());
            if wanted.port_state_change() {
                info.set_port_state_change(false);
            }
        }
        Ok(*self.info.as_array())
    }

    /// Answers a Get or Set of a port's PortInfo. LocalPortNum in the answer is the port at which the packet arrived
    /// (IBTA volume 1, section 14.2.5.6).
    fn port_info(
        &mut self,
        method: Method,
        (number, by): (usize, u8),
        access: Access,
        data: &Data,
    ) -> Answer {
        let port = self.ports.get_mut(number).ok_or(INVALID_VALUE)?;
        let (link, shown) = (port.link, access == Access::Whole);
        let mut changes = Changes::default();
        let answer = port_info(&mut port.port, by, method, link, shown, data, &mut changes)?;
        // PortStateChange reports a link that goes down, but not a PortState that a Set changed (IBTA volume 1, section
        // 14.2.5.4).
        if changes.bounced {
            self.info.set_port_state_change(true);
        }
        let change = match (changes.enable, port.link) {
            (Some(false), Link::Up | Link::Dark) => Some((Link::Disabled, LinkChange::Disabled)),
            (Some(true), Link::Disabled) => Some((Link::Dark, LinkChange::Enabled)),
            (_, link) if changes.bounced => Some((link, LinkChange::Retrain)),
            _ => None,
        };
        if let Some((link, change)) = change {
            port.link = link;
            // CAST: a switch has at most 15 ports.
            self.link_changes
                .push((u8::try_from(number).unwrap_or(u8::MAX), change));
        }
        Ok(answer)
    }
}
