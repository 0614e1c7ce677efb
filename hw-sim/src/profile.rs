//! Kind of device: identity, sizes, capabilities.
//!
//! A [`Profile`] is read from a file. The simulator comes with one file per generation of ConnectX
//! ([`Profile::generation`]); another file may be the recording of a real device ([`Profile::load`]). A file states the
//! device's values and the evidence for them (`profiles/README.md`). `simulated` selects which of these values the
//! simulator reports: a bit is set only if the simulator implements the command, the event or the data path behind it.
//! Recorded pages are returned byte for byte.
//!
//! The default ([`Profile::default`]) is the ConnectX-5, with fewer firmware pages.

mod build;
mod document;
mod generation;
mod simulated;
mod stored;
#[cfg(test)]
mod tests;

use crate::eth::flow::MOST_COUNTERS;
use crate::pages::PageProfile;
use mlx_prm::{
    AtomicCaps, CmdHcaCap, CmdHcaCap2, EswitchCap, EthOffloadCaps, FlowTableEswitchCap,
    FlowTableNicCap, FlowTableProperties, Layout, OdpCaps, RoceCap,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

pub use document::{Document, Evidence, ProfileError, RawPage, Stated, Statement};

/// PCI device numbers from ConnectX-4 to the virtual functions of ConnectX-4 Lx.
const CONNECTX_4: u16 = 0x1013;
const CONNECTX_4_LX_VIRTUAL: u16 = 0x1016;
/// log2 of the maximum number of flow counters in one bulk query.
const LOG_COUNTERS_ASKED: u32 = 10;

/// Link layer of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortType {
    /// Ethernet with RoCE, addressed by GIDs and MACs.
    Ethernet,
    /// InfiniBand, addressed by LIDs.
    InfiniBand,
}

/// A capability page, with its maximum values and its values after a reset.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// Maximum values.
    pub max: T,
    /// Current values after a reset.
    pub current: T,
    /// Recorded bytes behind the known structure.
    pub rest: Rest,
}

/// Bytes of a recorded page behind the known structure. Empty if they are all zeros.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Rest {
    /// Last bytes of the maximum page.
    pub max: Vec<u8>,
    /// Last bytes of the current page, which software cannot set.
    pub current: Vec<u8>,
}

impl<T: Layout> Page<T> {
    /// Returns a page without bytes behind its structure.
    pub fn new(max: T, current: T) -> Self {
        Self {
            max,
            current,
            rest: Rest::default(),
        }
    }

    /// Applies a change to the maximum and to the current values.
    pub fn set(&mut self, change: impl Fn(&mut T)) -> &mut Self {
        change(&mut self.max);
        change(&mut self.current);
        self
    }
}

/// Properties of a device's virtual functions, where they differ from the physical one (section `vf` of a file).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualFacts {
    /// PCI device number.
    pub device_id: u16,
    /// Length of BAR 0 in bytes.
    pub bar_bytes: usize,
    /// Number of MSI-X vectors.
    pub msix_vectors: u16,
    /// Firmware pages that a virtual function itself requests.
    pub pages: PageProfile,
    /// Upper limits of the virtual functions' capabilities, which apply even if the physical function has more.
    pub capabilities: Vec<Most>,
}

impl Default for VirtualFacts {
    /// Returns the properties for a file that states nothing about virtual functions.
    fn default() -> Self {
        Self {
            device_id: 0,
            bar_bytes: 0,
            msix_vectors: 0,
            pages: PageProfile::NONE,
            capabilities: Vec::new(),
        }
    }
}

/// Upper limit of a virtual function's capability.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Most {
    /// Section of the capability's page.
    pub section: String,
    /// Name of the capability in that section.
    pub field: String,
    /// Limit of the maximum value.
    pub max: u64,
    /// Limit of the value after a reset.
    pub current: u64,
}

/// Choices between two behaviours where no public source states the behaviour of hardware. Drivers have to work with
/// both, and the data path of every generation is tested with both (`docs/generations.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Habits {
    /// True if `wqe_counter` in a receive's CQE is an index within the ring. If false, the field counts modulo 2^16.
    /// Drivers ignore the upper bits (rdma-core `mlx5_parse_cqe`, Linux `mlx5vf_rq_cqe`).
    pub cuts_receive_counter: bool,
    /// True if the first packet of every connection causes an event (COMM_EST). If false, only a packet that finds its
    /// queue pair in RTR causes the event (IBTA volume 1, section 11.6.3.1).
    pub tells_every_connection: bool,
    /// True if QP numbers continue after a reset. If false, they restart, and a driver that restarts gets numbers that
    /// its peers still regard as connected (docs/decisions/restarted-peer.md).
    pub counts_queue_pairs_on: bool,
}

/// Identity, sizes and capabilities of a simulated function.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Profile {
    /// Name of the function, for logs and captures.
    pub name: String,
    /// Name of the profile from which the function was made.
    pub generation: String,
    /// PCI vendor ID.
    pub vendor_id: u16,
    /// PCI device ID.
    pub device_id: u16,
    /// PCI subsystem ID.
    pub subsystem_id: u16,
    /// PCI revision ID.
    pub revision: u8,
    /// PCI subclass: 0 for Ethernet, 7 for InfiniBand.
    pub subclass: u8,
    /// Length of BAR 0 in bytes, a power of two.
    pub bar_bytes: usize,
    /// Number of MSI-X vectors.
    pub msix_vectors: u16,
    /// Firmware version: major, minor, sub-minor.
    pub firmware: (u16, u16, u16),
    /// Board identity (PSID), at most 16 ASCII characters.
    pub psid: String,
    /// Permanent MAC address of the port. GUIDs are derived from it.
    pub mac: [u8; 6],
    /// Link layer of the port.
    pub port_type: PortType,
    /// Largest Ethernet MTU of the port in bytes.
    pub max_mtu: u16,
    /// True if the port has a carrier although no link is connected.
    pub carrier_without_link: bool,
    /// Time that the firmware takes to boot after a reset.
    pub boot_time: Duration,
    /// Time after the reset during which BAR 0 reads as ones and ignores writes; at most `boot_time`.
    pub silent_time: Duration,
    /// Time after the reset during which the firmware does not read the initialization segment, so that writes to the
    /// segment are lost; at most `boot_time`.
    pub deaf_time: Duration,
    /// Minimum time that a command takes.
    pub command_time: Duration,
    /// Maximum additional time, drawn per command. The jitter lets commands in several slots finish in any order.
    pub command_jitter: Duration,
    /// Numbers of firmware pages.
    pub pages: PageProfile,
    /// Supported interface steps, bit n for step n (QUERY_ISSI `supported_issi_dw0`).
    pub issi: u32,
    /// Properties of the function's virtual functions. `None` if the file states none, or if the function is virtual.
    pub virtual_functions: Option<VirtualFacts>,
    /// Value of the reserved lkey.
    pub reserved_lkey: u32,
    /// Behaviours for which no public source says what hardware does.
    pub habits: Habits,
    /// True if answers to queries of queues end before the page list. A ConnectX-6 Dx answers QUERY_CQ so (README of
    /// mlx5ctl). Recordings do not have this field.
    #[serde(skip)]
    pub hides_page_lists: bool,
    /// General capabilities (type 0).
    pub general: Page<CmdHcaCap>,
    /// General capabilities, second page (type 0x20). The device has it if `hca_cap_2` is set.
    pub general_2: Page<CmdHcaCap2>,
    /// On-demand paging (type 2). The device has it if `pg` is set.
    pub odp: Page<OdpCaps>,
    /// Atomic capabilities (type 3).
    pub atomic: Page<AtomicCaps>,
    /// RoCE capabilities (type 4).
    pub roce: Page<RoceCap>,
    /// Ethernet offloads (type 1). The device has them if `eth_net_offloads` is set.
    pub eth_offloads: Page<EthOffloadCaps>,
    /// Flow tables (type 7). The device has them if `nic_flow_table` is set.
    pub flow_table: Page<FlowTableNicCap>,
    /// Flow tables of the e-switch (type 8). The device has them if `eswitch_manager` is set.
    #[serde(with = "stored")]
    pub eswitch_flow_table: FlowTableEswitchCap,
    /// The e-switch (type 9). The device has it if `eswitch_manager` is set.
    #[serde(with = "stored")]
    pub eswitch: EswitchCap,
    /// Recorded pages of other types, by type.
    pub other_pages: BTreeMap<u16, RawPage>,
    /// Recorded registers, by number. Reads of registers that the simulator does not implement return them.
    pub registers: BTreeMap<u16, Vec<u8>>,
}

impl Profile {
    /// Returns the profile of a generation of ConnectX by name.
    ///
    /// # Errors
    /// [`ProfileError::UnknownGeneration`], with the known names.
    pub fn generation(name: &str) -> Result<Self, ProfileError> {
        Self::build(&generation::document(name)?)
    }

    /// Returns the names of the built-in generations.
    pub fn generations() -> impl Iterator<Item = &'static str> {
        generation::names()
    }

    /// Returns the statements of a generation's file, with those of its base files.
    ///
    /// # Errors
    /// [`ProfileError::UnknownGeneration`].
    pub fn document(name: &str) -> Result<Document, ProfileError> {
        generation::document(name)
    }

    /// Returns the device that a profile file describes.
    ///
    /// # Errors
    /// [`ProfileError`]: the place in the file, and the problem there.
    pub fn load(text: &str) -> Result<Self, ProfileError> {
        Self::build(&generation::complete(Document::read(text)?)?)
    }

    /// Returns the virtual function number `index` (from 0) of a card with this physical function. Returns `None` if
    /// the profile does not state the properties of virtual functions.
    ///
    /// A virtual function has its own device number, which is all that Linux uses to distinguish it from a physical one
    /// (`main.c` `mlx5_core_pci_table`). It manages nothing, and the physical function's driver gives its memory. It
    /// may write HOST_ENDIANNESS, because rdma-core's `mlx5_vfio_set_hca_ctrl` writes it on any function and fails if
    /// the write is refused. It may write PAOS and PMTU without effect: complete logs of ConnectX-5 virtual functions
    /// show no refused register, and mlx5e writes both on every function (`en_main.c` `mlx5e_modify_admin_state`,
    /// `mlx5e_set_mtu`).
    #[must_use]
    pub fn virtual_function(&self, index: u16) -> Option<Self> {
        let facts = self.virtual_functions.as_ref()?;
        let mut profile = Self {
            name: format!("{}/vf{index}", self.name),
            device_id: facts.device_id,
            msix_vectors: facts.msix_vectors.min(self.msix_vectors),
            bar_bytes: facts.bar_bytes,
            pages: PageProfile {
                verify: self.pages.verify,
                ..facts.pages
            },
            virtual_functions: None,
            ..self.clone()
        };
        for most in &facts.capabilities {
            profile.lower(most);
        }
        // The capability reports the size of the MSI-X table if the manager may change that size.
        let sized = self.general.max.num_total_dynamic_vf_msix() > 0;
        let vectors = if sized {
            u32::from(profile.msix_vectors)
        } else {
            0
        };
        profile.general.set(|page| {
            page.set_num_total_dynamic_vf_msix(0)
                .set_dynamic_msix_table_size(vectors);
        });
        Some(profile)
    }

    /// Returns the value that the simulator reports for a value in a file. Features without an implementation are off.
    pub fn announced(section: &str, field: &str, value: u64) -> u64 {
        simulated::announced(section, field, value)
    }

    /// Returns the device with this name and MAC address.
    #[must_use]
    pub fn called(mut self, name: &str, mac: [u8; 6]) -> Self {
        name.clone_into(&mut self.name);
        self.mac = mac;
        self
    }

    /// Returns the default device with this name and MAC address.
    pub fn named(name: &str, mac: [u8; 6]) -> Self {
        Self::default().called(name, mac)
    }

    /// Returns the device with an InfiniBand port.
    #[must_use]
    pub fn infiniband(mut self) -> Self {
        self.port_type = PortType::InfiniBand;
        self.subclass = 7;
        self.general.set(|page| {
            page.set_port_type(0).set_roce(false).set_roce_accl(false);
            page.set_ib_virt(true);
            page.set_uc(true).set_xrc(true).set_mcam_reg(true);
            // 0 means eight GIDs, the table size of a port that functions do not share.
            page.set_gid_table_size(0).set_num_vhca_ports(0);
            page.set_disable_local_lb_uc(false)
                .set_disable_local_lb_mc(false);
            page.set_eth_net_offloads(false).set_nic_flow_table(false);
            // On InfiniBand the subnet manager does the work of both managers, and no switch forwards by MAC address.
            page.set_vport_group_manager(false)
                .set_eswitch_manager(false)
                .set_nic_vport_change_event(false)
                .set_log_max_l2_table(0);
        });
        self
    }

    /// Returns the device with the capabilities that the drivers of operating systems require: Ethernet queues and flow
    /// tables for a network device, and the transport services for which their RDMA side creates objects.
    #[must_use]
    pub fn ethernet(mut self) -> Self {
        self.general.set(|page| {
            page.set_eth_net_offloads(true).set_nic_flow_table(true);
            page.set_uc(true).set_xrc(true).set_mcam_reg(true);
            page.set_nic_receive_steering_discard(true);
            // A device that already has these queues keeps its limits.
            if page.log_max_rq() == 0 {
                page.set_max_tc(8)
                    .set_log_max_rq(16)
                    .set_log_max_sq(16)
                    .set_log_max_tir(16)
                    .set_log_max_tis(16)
                    .set_log_max_rqt(16)
                    .set_log_max_rqt_size(11)
                    .set_log_max_tis_per_sq(0);
            }
        });
        self
    }

    /// Returns the device with the capabilities for DevX: user contexts, and the flow tables that kernels let programs
    /// use for steering.
    ///
    /// Cards from ConnectX-5 on have both if their firmware's setting UCTX_EN is on ([`Profile::may_have_devx`]).
    #[must_use]
    pub fn devx(mut self) -> Self {
        self.general.set(|page| {
            // Linux grants raw frames and the device's internals to processes with CAP_NET_RAW and CAP_SYS_RAWIO
            // (devx.c).
            page.set_log_max_uctx(12).set_uctx_cap(3);
            page.set_max_flow_counter_15_0(MOST_COUNTERS)
                .set_log_max_flow_counter_bulk(LOG_COUNTERS_ASKED);
        });
        // Linux requires the first four (FS_CHAINING_CAPS, fs_core.c).
        self.flow_table.set(|page| {
            page.flow_table_properties_nic_receive_mut()
                .set_flow_modify_en(true)
                .set_modify_root(true)
                .set_identified_miss_table_mode(true)
                .set_flow_table_modify(true)
                .set_flow_counter(true);
        });
        self
    }

    /// Returns whether firmware for this device can have user contexts. Devices from ConnectX-5 on can.
    #[must_use]
    pub fn may_have_devx(&self) -> bool {
        !(CONNECTX_4..=CONNECTX_4_LX_VIRTUAL).contains(&self.device_id)
    }

    /// Returns the device with slow firmware: each command takes one to two milliseconds.
    #[must_use]
    pub fn slow(mut self) -> Self {
        self.command_time = Duration::from_millis(1);
        self.command_jitter = Duration::from_millis(1);
        self
    }

    /// Returns the EUI-64 of the port.
    pub fn port_guid(&self) -> u64 {
        let [a, b, c, d, e, f] = self.mac;
        u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// Returns a device for which no file has stated anything.
    fn blank() -> Self {
        fn blank<T: Layout>(new: fn() -> T) -> Page<T> {
            Page::new(new(), new())
        }
        Self {
            name: String::new(),
            generation: String::new(),
            vendor_id: 0,
            device_id: 0,
            subsystem_id: 0,
            revision: 0,
            subclass: 0,
            bar_bytes: 0,
            msix_vectors: 0,
            firmware: (0, 0, 0),
            psid: String::new(),
            mac: [0x02, 0x00, 0x5e, 0x10, 0x00, 0x01],
            port_type: PortType::Ethernet,
            max_mtu: 0,
            carrier_without_link: true,
            hides_page_lists: false,
            boot_time: Duration::from_millis(20),
            silent_time: Duration::from_millis(5),
            deaf_time: Duration::from_millis(20),
            command_time: Duration::ZERO,
            command_jitter: Duration::ZERO,
            pages: PageProfile::NONE,
            issi: 0,
            virtual_functions: None,
            reserved_lkey: 0x0000_8f00,
            habits: Habits::default(),
            general: blank(CmdHcaCap::new),
            general_2: blank(CmdHcaCap2::new),
            odp: blank(OdpCaps::new),
            atomic: blank(AtomicCaps::new),
            roce: blank(RoceCap::new),
            eth_offloads: blank(EthOffloadCaps::new),
            flow_table: blank(FlowTableNicCap::new),
            eswitch_flow_table: eswitch_flow_table(),
            eswitch: eswitch(),
            other_pages: BTreeMap::new(),
            registers: BTreeMap::new(),
        }
    }
}

/// Number of pages that the default device needs before INIT_HCA. The file states thousands. Each page is filled and
/// verified, and with thousands of pages that would delay every open of the default device.
const FEW_PAGES: u32 = 512;

/// The default device, which every call of `Profile::default` copies.
static DEFAULT: LazyLock<Profile> = LazyLock::new(|| {
    // PANIC: the file is part of the program, and a test reads it.
    let chosen = Profile::generation("connectx-5");
    let mut profile = chosen.unwrap_or_else(|error| panic!("connectx-5: {error}"));
    profile.pages.init = FEW_PAGES;
    "sim0".clone_into(&mut profile.name);
    profile
});

impl Default for Profile {
    fn default() -> Self {
        DEFAULT.clone()
    }
}

/// Returns the capabilities that Linux's legacy mode needs: an FDB of two levels, whose level numbers are below 22, and
/// ingress and egress access lists of a vport.
fn eswitch_flow_table() -> FlowTableEswitchCap {
    let mut caps = FlowTableEswitchCap::new();
    let all = |props: &mut FlowTableProperties| {
        props
            .set_ft_support(true)
            .set_flow_modify_en(true)
            .set_modify_root(true)
            .set_identified_miss_table_mode(true)
            .set_flow_table_modify(true)
            .set_log_max_ft_size(16)
            .set_max_ft_level(64)
            .set_log_max_ft_num(8)
            .set_log_max_destination(7)
            .set_log_max_flow(16);
    };
    all(caps.flow_table_properties_nic_esw_fdb_mut());
    all(caps.flow_table_properties_esw_acl_ingress_mut());
    all(caps.flow_table_properties_esw_acl_egress_mut());
    caps
}

fn eswitch() -> EswitchCap {
    let mut caps = EswitchCap::new();
    caps.set_vport_cvlan_strip(true)
        .set_vport_cvlan_insert_if_not_exist(true)
        .set_nic_vport_node_guid_modify(true);
    caps
}
