//! State of port and vport, for diagnostics: the link, the administrative state, both MTUs, the addresses announced
//! to the e-switch.

use super::{LOCAL_PORT, READ, VPORT_UP, access, ip_mtu, mac_of, query, read_list};
use crate::caps::Caps;
use crate::control::Commands;
use crate::error::CmdError;
use mlx_prm::{MacAddress, Pmtu, QueryVportStateIn, RegisterId, VlanEntry};

/// Values of `allowed_list_type`: multicast addresses, VLANs.
const LIST_MULTICAST: u32 = 1;
const LIST_VLAN: u32 = 2;

/// Administrative state of a vport (PRM "QUERY_VPORT_STATE").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VportAdmin {
    /// The vport's owner switched it off.
    Down,
    /// The vport is up, whatever the port's state.
    Up,
    /// The vport follows the port's state.
    Follows,
    /// A code that this driver does not know.
    Other(u32),
}

/// State of port and vport at the time of the query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VportState {
    /// True if the vport can pass frames.
    pub is_up: bool,
    /// State set by the vport's owner.
    pub admin: VportAdmin,
    /// The vport's MTU in bytes, as the hardware counts ([`FRAME_BYTES`](super::FRAME_BYTES) more than IP); `None` if
    /// it is not reported.
    pub vport_mtu: Option<u32>,
    /// Current MTU of the port and its maximum, in bytes as the hardware counts; `None` if the function may not see the
    /// port.
    pub port_mtu: Option<(u32, u32)>,
    /// MACs that the vport announces. Like the other lists, this list is empty if the device does not report it.
    pub unicast: Vec<[u8; 6]>,
    /// Multicast MACs that the vport receives.
    pub multicast: Vec<[u8; 6]>,
    /// VLAN IDs in the vport's list.
    pub vlans: Vec<u16>,
}

impl VportState {
    /// Returns the MTU in bytes as IP counts it: the smaller of vport's and port's. `None` if neither is reported.
    #[must_use]
    pub fn ip_mtu(&self) -> Option<u32> {
        let port = self.port_mtu.map(|(now, _)| now);
        [self.vport_mtu, port]
            .into_iter()
            .flatten()
            .min()
            .map(ip_mtu)
    }
}

pub(crate) fn read_state(control: &mut impl Commands, caps: &Caps) -> Result<VportState, CmdError> {
    let state = control.exec(&QueryVportStateIn::new())?;
    let mtu = query(control)?.mtu;
    let mut register = Pmtu::new();
    register.set_local_port(LOCAL_PORT);
    let port_mtu = access(control, RegisterId::PMTU, READ, &register)?;
    let unicast = said(super::announced(control, caps))?;
    let log_most = caps.general().log_max_current_mc_list();
    let multicast: Vec<MacAddress> = said(read_list(control, LIST_MULTICAST, log_most))?;
    let log_most = caps.general().log_max_vlan_list();
    let vlans: Vec<VlanEntry> = said(read_list(control, LIST_VLAN, log_most))?;
    Ok(VportState {
        is_up: state.state() == VPORT_UP,
        admin: match state.admin_state() {
            0 => VportAdmin::Down,
            1 => VportAdmin::Up,
            2 => VportAdmin::Follows,
            other => VportAdmin::Other(other),
        },
        vport_mtu: (mtu != 0).then_some(mtu),
        port_mtu: port_mtu.map(|register| (register.oper_mtu(), register.max_mtu())),
        unicast,
        multicast: multicast.iter().map(mac_of).collect(),
        vlans: vlans
            .iter()
            .filter_map(|entry| u16::try_from(entry.vlan()).ok())
            .collect(),
    })
}

/// Returns the list that was read; an empty list if the device refused to report it.
fn said<T>(list: Result<Vec<T>, CmdError>) -> Result<Vec<T>, CmdError> {
    match list {
        Err(error) if error.status().is_some() => {
            tracing::debug!(%error, "a list of the vport");
            Ok(Vec::new())
        }
        list => list,
    }
}
