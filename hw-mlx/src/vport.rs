//! The function's vport (PRM "NIC Vport Context") and the port's MTU.
//!
//! A vport's context has lists of addresses, the flag that enables RoCE, and the flags that disable local loopback.
//! RoCE works only with `roce_en` set and an address in the table ([`crate::gid`]). We keep loopback between queue
//! pairs of one function enabled, because endpoints of one process may connect to each other.
//!
//! The e-switch drops unicast frames to addresses that were not announced. A function announces its own in two places.
//! Every function writes the list of unicast addresses in its vport's context. From this list the manager of the
//! e-switch makes the rules that direct frames to this vport (Linux `en_fs.c` `mlx5e_vport_context_update_addr_list`,
//! `eswitch.c` `esw_update_vport_addr_list`). A function that is the manager itself also puts its MAC into the port's
//! forwarding table (Linux `lib/mpfs.c`).
//!
//! The owner of a vport sets its permanent address; for the vports of other functions that is the e-switch manager. We
//! read the permanent address and never write it. A function may use any MAC that it announces, unless the vport's
//! owner enables the check for spoofing.

mod paos;
pub(crate) mod qos;
mod register;
mod speed;
pub(crate) mod state;

use zerocopy::{FromBytes, IntoBytes};

use crate::caps::Caps;
use crate::control::Commands;
use crate::error::{CmdError, Mac};
use crate::random::{Random, local_mac};
use mlx_prm::{
    DeleteL2TableEntryIn, MacAddress, ModifyNicVportContextIn, Pmtu, QueryNicVportContextIn,
    QueryVportStateIn, RegisterId, SetL2TableEntryIn,
};
pub(crate) use paos::{switch_off, switch_on};
use register::WRITE;
pub(crate) use register::{LOCAL_PORT, READ, access};
pub(crate) use speed::megabits;

/// Number of bytes of a frame that the hardware counts in an MTU and IP does not: Ethernet header, VLAN tag, check
/// sequence (Linux `MLX5E_ETH_HARD_MTU`).
pub const FRAME_BYTES: u32 = 22;
/// Maximum bytes of RoCE v2 headers between Ethernet and payload: IP or GRH 40, UDP 8, BTH 12, XRC 4, atomic 28, ICRC
/// 4 (Linux `iboe_get_mtu`).
const ROCE_BYTES: u32 = 96;
/// MTU that is assumed for a port that does not report one.
const USUAL_MTU: u32 = 1500 + FRAME_BYTES;
const VPORT_UP: u32 = 1;
/// Values of `allowed_list_type`: unicast addresses, multicast addresses.
pub(crate) const LIST_UNICAST: u32 = 0;
const LIST_MULTICAST: u32 = 1;
/// Index of our entry in the port's forwarding table.
const L2_INDEX: u32 = 0;

/// State of the port at bring-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// MAC that the function uses.
    pub mac: [u8; 6],
    /// The smaller MTU of port and vport, in bytes as the hardware counts (with Ethernet header, VLAN tag and check
    /// sequence).
    pub mtu: u32,
    /// Largest path MTU code whose packets fit `mtu`, 1..=5.
    pub path_mtu: u8,
    /// True if the link was up.
    pub link_up: bool,
    /// GUID of the node.
    pub node_guid: u64,
    /// True if the port was administratively down and bring-up switched it on.
    pub(crate) switched_on: bool,
    /// True if bring-up entered our MAC in the port's forwarding table.
    pub(crate) forwarding: bool,
}

impl Port {
    /// Returns the port's MTU in bytes as IP counts it, which is the usual number.
    #[must_use]
    pub fn ip_mtu(&self) -> u32 {
        ip_mtu(self.mtu)
    }
}

/// Parts of the vport's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vport {
    /// Permanent MAC; all zero if the vport has none.
    pub mac: [u8; 6],
    /// MTU in bytes as the hardware counts; 0 if the vport does not report one.
    pub mtu: u32,
    /// GUID of the node.
    pub node_guid: u64,
    /// GUID of the system image.
    pub system_image_guid: u64,
}

pub(crate) fn query(control: &mut impl Commands) -> Result<Vport, CmdError> {
    let output = control.exec(&QueryNicVportContextIn::new())?;
    let context = output.nic_vport_context();
    Ok(Vport {
        mac: mac_of(context.permanent_address()),
        mtu: context.mtu(),
        node_guid: context.node_guid(),
        system_image_guid: context.system_image_guid(),
    })
}

/// Switches RoCE on. If `loopback` is given, also enables or disables local loopback, as far as the device can.
pub(crate) fn enable_roce(
    control: &mut impl Commands,
    caps: &Caps,
    loopback: Option<bool>,
) -> Result<(), CmdError> {
    let mut input = ModifyNicVportContextIn::new();
    input.field_select_mut().set_roce_en(true);
    input.nic_vport_context_mut().set_roce_en(true);
    if let Some(loopback) = loopback {
        if caps.general().disable_local_lb_uc() {
            input.field_select_mut().set_disable_uc_local_lb(true);
            input
                .nic_vport_context_mut()
                .set_disable_uc_local_lb(!loopback);
        }
        if caps.general().disable_local_lb_mc() {
            input.field_select_mut().set_disable_mc_local_lb(true);
            input
                .nic_vport_context_mut()
                .set_disable_mc_local_lb(!loopback);
        }
    }
    control.exec(&input).map(|_| ())
}

pub(crate) fn disable_roce(control: &mut impl Commands) -> Result<(), CmdError> {
    let mut input = ModifyNicVportContextIn::new();
    input.field_select_mut().set_roce_en(true);
    control.exec(&input).map(|_| ())
}

/// Returns whether an address is a unicast address.
pub(crate) fn is_unicast(mac: [u8; 6]) -> bool {
    mac != [0; 6] && mac[0] & 1 == 0
}

/// Returns the MAC to use: the configured MAC; without one, the vport's own; without that, a random MAC, as in Linux
/// (`en_main.c` `mlx5e_set_netdev_dev_addr`).
pub(crate) fn choose_mac(
    configured: Option<[u8; 6]>,
    permanent: [u8; 6],
    random: &mut Random,
) -> [u8; 6] {
    match configured {
        Some(mac) => {
            if mac != permanent && is_unicast(permanent) {
                tracing::warn!(mac = %Mac(mac), permanent = %Mac(permanent), "a MAC other than the vport's own: the e-switch drops what we send if it checks for spoofing");
            }
            mac
        }
        None if is_unicast(permanent) => permanent,
        None => {
            let mac = local_mac(random);
            tracing::warn!(mac = %Mac(mac), permanent = %Mac(permanent), "the vport has no MAC; a random one is used. The e-switch drops what we send if it checks for spoofing");
            mac
        }
    }
}

/// Sets the vport's list of unicast addresses to `macs`.
pub(crate) fn announce(control: &mut impl Commands, macs: &[[u8; 6]]) -> Result<(), CmdError> {
    write_list(control, LIST_UNICAST, macs)
}

/// Reads the vport's list of unicast addresses from the device.
pub(crate) fn announced(
    control: &mut impl Commands,
    caps: &Caps,
) -> Result<Vec<[u8; 6]>, CmdError> {
    let log_most = caps.general().log_max_current_uc_list();
    let list: Vec<MacAddress> = read_list(control, LIST_UNICAST, log_most)?;
    Ok(list.iter().map(mac_of).collect())
}

/// Empties the vport's list of unicast addresses, so that the e-switch stops forwarding to this function at once.
pub(crate) fn withdraw(control: &mut impl Commands) -> Result<(), CmdError> {
    write_list(control, LIST_UNICAST, &[])
}

/// Sets the vport's list of multicast addresses to `macs`. From this list the manager of the e-switch directs
/// multicast frames to this vport. To receive broadcasts, the list must contain the broadcast address (Linux
/// `en_fs.c` `mlx5e_fill_addr_array`).
pub(crate) fn hear(control: &mut impl Commands, macs: &[[u8; 6]]) -> Result<(), CmdError> {
    write_list(control, LIST_MULTICAST, macs)
}

pub(crate) fn write_list(
    control: &mut impl Commands,
    kind: u32,
    macs: &[[u8; 6]],
) -> Result<(), CmdError> {
    let mut input = ModifyNicVportContextIn::new();
    input.field_select_mut().set_addresses_list(true);
    input
        .nic_vport_context_mut()
        .set_allowed_list_type(kind)
        // The caller has few addresses, so the number fits.
        .set_allowed_list_size(u32::try_from(macs.len()).unwrap_or(u32::MAX));
    let mut list = Vec::with_capacity(macs.len() * MacAddress::SIZE);
    for mac in macs {
        let mut entry = MacAddress::new();
        set_mac_field(&mut entry, *mac);
        list.extend_from_slice(entry.as_bytes());
    }
    control.exec_with(&input, &list).map(|_| ())
}

/// Reads one of the vport's lists. The buffer holds the longest possible list, 2^`log_most` entries (at most 2^11),
/// because a list that another driver wrote may be longer than ours.
pub(crate) fn read_list<E: FromBytes>(
    control: &mut impl Commands,
    kind: u32,
    log_most: u32,
) -> Result<Vec<E>, CmdError> {
    let mut input = QueryNicVportContextIn::new();
    input.set_allowed_list_type(kind);
    let room = size_of::<E>() << log_most.min(11);
    let (output, list) = control.exec_reading(&input, &[], room)?;
    let count = usize::try_from(output.nic_vport_context().allowed_list_size()).unwrap_or(0);
    Ok(list
        .chunks_exact(size_of::<E>())
        .take(count)
        .filter_map(|entry| E::read_from_bytes(entry).ok())
        .collect())
}

pub(crate) fn mac_of(field: &MacAddress) -> [u8; 6] {
    let [_, _, a, b] = field.mac_addr_47_32().to_be_bytes();
    let [c, d, e, f] = field.mac_addr_31_0().to_be_bytes();
    [a, b, c, d, e, f]
}

fn set_mac_field(field: &mut MacAddress, mac: [u8; 6]) {
    let [a, b, c, d, e, f] = mac;
    field
        .set_mac_addr_47_32(u32::from(u16::from_be_bytes([a, b])))
        .set_mac_addr_31_0(u32::from_be_bytes([c, d, e, f]));
}

/// Returns whether the port's forwarding table must have our MAC: the function is the e-switch manager and has a table.
pub(crate) fn forwards_by_table(caps: &Caps) -> bool {
    caps.general().eswitch_manager() && caps.general().log_max_l2_table() > 0
}

/// Enters `mac` in the port's forwarding table, so that the port forwards frames to `mac` to this function.
pub(crate) fn accept_mac(control: &mut impl Commands, mac: [u8; 6]) -> Result<(), CmdError> {
    let mut input = SetL2TableEntryIn::new();
    input.set_table_index(L2_INDEX);
    set_mac_field(input.mac_address_mut(), mac);
    control.exec(&input).map(|_| ())
}

pub(crate) fn forget_mac(control: &mut impl Commands) -> Result<(), CmdError> {
    let mut input = DeleteL2TableEntryIn::new();
    input.set_table_index(L2_INDEX);
    control.exec(&input).map(|_| ())
}

/// Returns whether the vport is up. The driver takes that for the state of the link.
pub(crate) fn link_is_up(control: &mut impl Commands) -> Result<bool, CmdError> {
    control
        .exec(&QueryVportStateIn::new())
        .map(|output| output.state() == VPORT_UP)
}

/// Sets the MTU of vport and port to `wanted`, if given. Returns the effective MTU in bytes, as the hardware counts. A
/// frame must fit both MTUs, and other functions may set the port's (Linux `en_main.c` `mlx5e_set_mtu`,
/// `mlx5e_query_mtu`). A function that may not see or change the port's MTU uses its vport's.
pub(crate) fn configure_mtu(
    control: &mut impl Commands,
    vport: &Vport,
    wanted: Option<u16>,
) -> Result<u32, CmdError> {
    let mut register = Pmtu::new();
    register.set_local_port(LOCAL_PORT);
    let port = access(control, RegisterId::PMTU, READ, &register)?;
    let Some(wanted) = wanted else {
        return Ok(effective_mtu(vport.mtu, port.as_ref()));
    };
    let most = port.as_ref().map_or(u16::MAX.into(), Pmtu::max_mtu);
    let wanted = (u32::from(wanted) + FRAME_BYTES).min(most);
    if port.is_some() {
        register.set_admin_mtu(wanted);
        access(control, RegisterId::PMTU, WRITE, &register)?;
        register.set_admin_mtu(0);
    }
    set_vport_mtu(control, wanted)?;
    let vport = query(control)?;
    let port = access(control, RegisterId::PMTU, READ, &register)?;
    Ok(effective_mtu(vport.mtu, port.as_ref()))
}

/// Returns the smaller of the two MTUs, as far as they are reported; `USUAL_MTU` if neither is.
fn effective_mtu(vport: u32, port: Option<&Pmtu>) -> u32 {
    [vport, port.map_or(0, Pmtu::oper_mtu)]
        .into_iter()
        .filter(|mtu| *mtu != 0)
        .min()
        .unwrap_or(USUAL_MTU)
}

/// Sets the vport's MTU. A refusal is only logged, because the caller reads the effective MTU afterwards.
fn set_vport_mtu(control: &mut impl Commands, mtu: u32) -> Result<(), CmdError> {
    let mut input = ModifyNicVportContextIn::new();
    input.field_select_mut().set_mtu(true);
    input.nic_vport_context_mut().set_mtu(mtu);
    match control.exec(&input) {
        Err(error) if error.status().is_some() => {
            tracing::warn!(mtu, %error, "the vport's MTU stays as it is");
            Ok(())
        }
        answer => answer.map(|_| ()),
    }
}

/// Converts an MTU as the hardware counts it to an MTU as IP counts it.
pub(crate) fn ip_mtu(mtu: u32) -> u32 {
    mtu.saturating_sub(FRAME_BYTES)
}

/// Returns the largest path MTU code (1..=5 for 256..=4096 bytes, IBTA encoding) whose packets fit the port's MTU; 1 if
/// none does. `port_mtu` is in bytes as the hardware counts.
pub fn path_mtu_code(port_mtu: u32) -> u8 {
    let payload = port_mtu.saturating_sub(FRAME_BYTES + ROCE_BYTES);
    (1..=5)
        .rev()
        .find(|code| 128u32 << code <= payload)
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::path_mtu_code;

    #[test]
    fn path_mtu_is_the_largest_that_fits_with_all_headers() {
        // The expected codes follow Linux `iboe_get_mtu`: the payload is the Ethernet MTU minus 96.
        let codes: Vec<u8> = [1500, 1120, 1119, 2143, 2144, 4191, 4192, 9000, 300, 0]
            .iter()
            .map(|mtu| path_mtu_code(mtu + 22))
            .collect();
        assert_eq!(codes, [3, 3, 2, 3, 4, 4, 5, 5, 1, 1]);
    }
}
