//! The PortInfo attribute of a port: its state and settings as subnet management reads and writes them (IBTA volume 1,
//! section 14.2.5.6).
//!
//! ```text
//!              link up                Set Armed             Set Active, or a data packet
//!   Down ------------------> Init ------------> Armed -----------------------------------> Active
//!    ^                                                                                        |
//!    '------ link down, or Set Down (from any state; the link trains again at once) ----------'
//! ```
//!
//! Down is derived from the link and not stored. A port in Init passes only subnet management packets. A port in Armed
//! also receives data, and a port in Active also sends data (IBTA volume 1, section 7.2.7). A preset subnet skips Init
//! and Armed.
//!
//! M_Key leases do not expire: a subnet manager sets a new key instead.

use mlx_prm::PortInfo;

use super::mad::{INVALID_VALUE, Status};

/// First multicast LID (IBTA volume 1, section 4.1.3).
pub const FIRST_MULTICAST_LID: u16 = 0xc000;
/// Permissive LID: every port accepts packets to it, and no port has it assigned.
pub const PERMISSIVE_LID: u16 = 0xffff;
/// Subnet prefix of link-local GIDs.
pub const LINK_LOCAL: u64 = 0xfe80_0000_0000_0000;

/// PortState codes. A Get never reports `NO_CHANGE`, and a Set must not request `INIT`.
const NO_CHANGE: u32 = 0;
const DOWN: u32 = 1;
const INIT: u32 = 2;
const ARMED: u32 = 3;
const ACTIVE: u32 = 4;
/// PortPhysicalState codes: Polling, Disabled, LinkUp.
const POLLING: u32 = 2;
const DISABLED: u32 = 3;
const LINK_UP: u32 = 5;
/// Values of the enabled widths and speeds in a Set that enable everything supported. The value 0 changes nothing.
const ALL_WIDTHS: u8 = 0xff;
const ALL_SPEEDS: u32 = 0xf;
const ALL_EXTENDED_SPEEDS: u32 = 0x1f;
/// LinkSpeedExtEnabled value in a Set that enables no extended speed.
const NO_EXTENDED_SPEED: u32 = 0x1e;
/// MTU codes for 256 and 4096 bytes.
const MTU_256: u32 = 1;
pub const MTU_4096: u32 = 5;

/// State of a port whose link is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    Init,
    Armed,
    Active,
}

impl PortState {
    const fn code(self) -> u32 {
        match self {
            Self::Init => INIT,
            Self::Armed => ARMED,
            Self::Active => ACTIVE,
        }
    }

    /// Returns the state after a Set of PortState `code`, or `None` if this transition is not allowed.
    const fn set(self, code: u32) -> Option<Self> {
        match (self, code) {
            (state, NO_CHANGE) => Some(state),
            (_, DOWN) => Some(Self::Init),
            (Self::Init | Self::Armed, ARMED) => Some(Self::Armed),
            (Self::Armed | Self::Active, ACTIVE) => Some(Self::Active),
            _ => None,
        }
    }
}

/// Physical state of a port's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Up,
    /// The port has no carrier, the link is training, or the link is scheduled to go down and train again.
    Dark,
    /// The link was disabled, by a Set of PortPhysicalState or by the driver.
    Disabled,
}

/// Kind of a port, which determines the PortInfo components that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A port of a channel adapter. It has all components.
    Adapter,
    /// Port 0 of a switch. It has an address and keys, but no link.
    Management,
    /// An external port of a switch. It has a link, but no address.
    External,
}

/// Changes that a Set made. The caller raises the corresponding events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// True if PortState has changed.
    pub state: bool,
    /// True if the caller has to take the link down and let it train again.
    pub bounced: bool,
    /// True if the LID, the LMC, or the subnet manager's address has changed.
    pub lid: bool,
    pub pkeys: bool,
    pub gids: bool,
    /// True if clients have to register again with the subnet administrator.
    pub reregister: bool,
    /// `Some(true)` if the caller has to enable the link, `Some(false)` to disable it.
    pub enable: Option<bool>,
}

/// A port of a node, as subnet management sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedPort {
    kind: Kind,
    /// PortInfo without PortState and PortPhysicalState, which [`ManagedPort::get`] fills in.
    pub info: PortInfo,
    /// State of the port while its link is up.
    pub state: PortState,
}

impl ManagedPort {
    /// Creates a port with a 4x EDR link and one virtual lane.
    pub fn new(kind: Kind, state: PortState, capabilities: u32) -> Self {
        let mut info = PortInfo::new();
        if kind != Kind::External {
            info.set_gid_prefix(LINK_LOCAL)
                .set_capability_mask(capabilities);
        }
        // Supported: widths 1x and 4x, speeds up to QDR, and the extended speeds FDR and EDR.
        info.set_link_width_supported(3)
            .set_link_width_enabled(3)
            .set_link_width_active(2)
            .set_link_speed_supported(7)
            .set_link_speed_enabled(7)
            .set_link_speed_active(4)
            .set_link_speed_ext_supported(3)
            .set_link_speed_ext_enabled(3)
            .set_link_speed_ext_active(2);
        info.set_link_down_default_state(POLLING)
            .set_neighbor_mtu(MTU_4096)
            .set_mtu_cap(MTU_4096)
            .set_vl_cap(1)
            .set_operational_vls(1);
        Self { kind, info, state }
    }

    /// Returns PortState and PortPhysicalState as PortInfo encodes them.
    pub const fn states(&self, link: Link) -> (u32, u32) {
        match link {
            Link::Up => (self.state.code(), LINK_UP),
            Link::Dark => (DOWN, POLLING),
            Link::Disabled => (DOWN, DISABLED),
        }
    }

    /// Returns the PortInfo that port `number` answers. If `shows_key` is false, the M_Key reads as 0.
    pub fn get(&self, number: u8, link: Link, shows_key: bool) -> PortInfo {
        let (state, physical) = self.states(link);
        let mut info = self.info.clone();
        info.set_local_port_num(number)
            .set_port_state(state)
            .set_port_physical_state(physical);
        if !shows_key {
            info.set_m_key(0);
        }
        info
    }

    /// Returns whether a LID is assigned to the port. The port's LIDs equal its base LID except in the low LMC bits.
    pub fn owns(&self, lid: u16) -> bool {
        let own = self.info.lid();
        own != 0 && lid >> self.info.lmc() == own >> self.info.lmc()
    }

    /// Applies a Set of PortInfo. If a component has an invalid value, nothing changes.
    pub fn set(&mut self, wanted: &PortInfo, link: Link) -> Result<Changes, Status> {
        let mut new = self.clone();
        let mut changes = Changes::default();
        if self.kind != Kind::External {
            new.set_address(wanted, &mut changes)?;
        }
        if self.kind != Kind::Management {
            new.set_link(wanted, link, &mut changes)?;
        }
        *self = new;
        Ok(changes)
    }

    fn set_address(&mut self, wanted: &PortInfo, changes: &mut Changes) -> Result<(), Status> {
        let now = &mut self.info;
        let lid = wanted.lid();
        if lid != now.lid() && !(1..FIRST_MULTICAST_LID).contains(&lid) {
            return Err(INVALID_VALUE);
        }
        // The low LMC bits of a LID select a path, so they must be zero in the base LID.
        if lid & ((1 << wanted.lmc()) - 1) != 0 {
            return Err(INVALID_VALUE);
        }
        let address = |info: &PortInfo| {
            let manager = (info.master_sm_lid(), info.master_sm_sl());
            (info.lid(), info.lmc(), manager)
        };
        changes.lid = address(now) != address(wanted);
        changes.gids = now.gid_prefix() != wanted.gid_prefix();
        changes.reregister = wanted.client_reregister();
        now.set_m_key(wanted.m_key())
            .set_m_key_lease_period(wanted.m_key_lease_period())
            .set_m_key_protect_bits(wanted.m_key_protect_bits())
            .set_gid_prefix(wanted.gid_prefix())
            .set_lid(lid)
            .set_lmc(wanted.lmc())
            .set_master_sm_lid(wanted.master_sm_lid())
            .set_master_sm_sl(wanted.master_sm_sl())
            .set_subnet_timeout(wanted.subnet_timeout())
            .set_multicast_p_key_trap_suppression(wanted.multicast_p_key_trap_suppression());
        // A Set clears a violation counter if it writes 0. Any other value leaves the counter unchanged.
        if wanted.m_key_violations() == 0 {
            now.set_m_key_violations(0);
        }
        if wanted.p_key_violations() == 0 {
            now.set_p_key_violations(0);
        }
        if wanted.q_key_violations() == 0 {
            now.set_q_key_violations(0);
        }
        Ok(())
    }

    fn set_link(
        &mut self,
        wanted: &PortInfo,
        link: Link,
        changes: &mut Changes,
    ) -> Result<(), Status> {
        let (state, now) = (self.state, &mut self.info);
        let width = some_of(
            wanted.link_width_enabled().into(),
            (
                now.link_width_enabled().into(),
                now.link_width_supported().into(),
            ),
            ALL_WIDTHS.into(),
        )?;
        let speed = some_of(
            wanted.link_speed_enabled(),
            (now.link_speed_enabled(), now.link_speed_supported()),
            ALL_SPEEDS,
        )?;
        let extended = match wanted.link_speed_ext_enabled() {
            NO_EXTENDED_SPEED => NO_EXTENDED_SPEED,
            speed => some_of(
                speed,
                (now.link_speed_ext_enabled(), now.link_speed_ext_supported()),
                ALL_EXTENDED_SPEEDS,
            )?,
        };
        let mtu = wanted.neighbor_mtu();
        let lanes = wanted.operational_vls();
        if !(MTU_256..=now.mtu_cap()).contains(&mtu) || lanes > now.vl_cap() {
            return Err(INVALID_VALUE);
        }
        changes.enable = match wanted.port_physical_state() {
            NO_CHANGE => None,
            POLLING => Some(true),
            DISABLED => Some(false),
            _ => return Err(INVALID_VALUE),
        };
        let default = wanted.link_down_default_state();
        if ![NO_CHANGE, 1, POLLING].contains(&default) {
            return Err(INVALID_VALUE);
        }
        // A Set cannot bring up a link that is down: only NO_CHANGE and DOWN are valid then.
        let next = match (link, wanted.port_state()) {
            (Link::Up, code) => state.set(code).ok_or(INVALID_VALUE)?,
            (_, NO_CHANGE | DOWN) => state,
            _ => return Err(INVALID_VALUE),
        };
        // CAST: the value has at most eight bits, because `some_of` limits it to the supported widths, which are a
        // `u8`.
        now.set_link_width_enabled(u8::try_from(width).unwrap_or(ALL_WIDTHS))
            .set_link_speed_enabled(speed)
            .set_link_speed_ext_enabled(extended)
            .set_neighbor_mtu(mtu)
            .set_vl_high_limit(wanted.vl_high_limit())
            .set_vl_stall_count(wanted.vl_stall_count())
            .set_hoq_life(wanted.hoq_life())
            .set_partition_enforcement_inbound(wanted.partition_enforcement_inbound())
            .set_partition_enforcement_outbound(wanted.partition_enforcement_outbound())
            .set_filter_raw_inbound(wanted.filter_raw_inbound())
            .set_filter_raw_outbound(wanted.filter_raw_outbound())
            .set_local_phy_errors(wanted.local_phy_errors())
            .set_overrun_errors(wanted.overrun_errors());
        if lanes != 0 {
            now.set_operational_vls(lanes);
        }
        if default != NO_CHANGE {
            now.set_link_down_default_state(default);
        }
        changes.bounced = link == Link::Up && wanted.port_state() == DOWN;
        changes.state = next != state;
        self.state = next;
        Ok(())
    }
}

/// Returns the enabled bits after a Set. `wanted` is the value in the Set and `all` the value that means "all
/// supported". Fails if the Set enables an unsupported bit.
fn some_of(wanted: u32, (now, supported): (u32, u32), all: u32) -> Result<u32, Status> {
    match wanted {
        0 => Ok(now),
        bits if bits == all => Ok(supported),
        bits if bits & !supported == 0 => Ok(bits),
        _ => Err(INVALID_VALUE),
    }
}
