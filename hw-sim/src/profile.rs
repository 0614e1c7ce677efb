//! What kind of device the simulator is: identity, sizes, capabilities.
//!
//! The default is a ConnectX-5 with one Ethernet port. Its capability pages follow those of the
//! ConnectX-4 Lx whose conversation with mlx5_core is recorded (firmware 14.12.1220), reduced to what
//! the simulator does: a bit is set only if the command, the event or the data path behind it
//! exists here. Where newer devices differ and drivers care, the newer device wins: atomics in host
//! byte order, a clock frequency, SET_DRIVER_VERSION.

use crate::pages::PageProfile;
use hw_mlx::prm::{
    AtomicCaps, CmdHcaCap, EswitchCap, EthOffloadCaps, FlowTableEswitchCap, FlowTableNicCap,
    FlowTableProperties, RoceCap,
};
use std::time::Duration;

/// Link layer of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortType {
    /// RoCE: GIDs and MACs.
    Ethernet,
    /// InfiniBand: LIDs.
    InfiniBand,
}

/// A capability page: what the device could do, and what is switched on after reset.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// Ceiling.
    pub max: T,
    /// Current value after a reset.
    pub current: T,
}

/// What devices may do one way or the other, and no public source says which: drivers have to live with both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Habits {
    /// `wqe_counter` of a receive's CQE is cut to the ring's size; otherwise it counts on to 2^16. Drivers do not look at
    /// the upper bits (rdma-core `mlx5_parse_cqe`, Linux `mlx5vf_rq_cqe`).
    pub cuts_receive_counter: bool,
    /// The first packet of every connection is an event (COMM_EST), not only one that finds its queue pair in RTR (IBTA
    /// volume 1, section 11.6.3.1).
    pub tells_every_connection: bool,
}

/// Identity, sizes and capabilities of a simulated function.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Name of the function, for logs and captures.
    pub name: String,
    /// PCI vendor.
    pub vendor_id: u16,
    /// PCI device.
    pub device_id: u16,
    /// PCI subsystem.
    pub subsystem_id: u16,
    /// PCI revision.
    pub revision: u8,
    /// PCI subclass: 0 Ethernet, 7 InfiniBand.
    pub subclass: u8,
    /// Length of BAR 0, a power of two.
    pub bar_bytes: usize,
    /// MSI-X vectors.
    pub msix_vectors: u16,
    /// Firmware version: major, minor, sub-minor.
    pub firmware: (u16, u16, u16),
    /// Board identity, at most 16 ASCII characters.
    pub psid: String,
    /// Permanent MAC address of the port; GUIDs derive from it.
    pub mac: [u8; 6],
    /// Link layer.
    pub port_type: PortType,
    /// Largest Ethernet MTU of the port.
    pub max_mtu: u16,
    /// Whether the port has a carrier although no link is connected.
    pub carrier_without_link: bool,
    /// How long the firmware boots after a reset.
    pub boot_time: Duration,
    /// For so long of that BAR 0 reads ones and takes no write.
    pub silent_time: Duration,
    /// For so long of that the firmware does not look at the initialization segment: writes to it are lost.
    pub deaf_time: Duration,
    /// How long a command takes.
    pub command_time: Duration,
    /// Drawn per command, up to this much more: commands in several slots then finish in any order.
    pub command_jitter: Duration,
    /// Firmware pages.
    pub pages: PageProfile,
    /// Value of the reserved lkey.
    pub reserved_lkey: u32,
    /// What no public source says of a generation.
    pub habits: Habits,
    /// General capabilities (type 0).
    pub general: Page<CmdHcaCap>,
    /// Atomic capabilities (type 3).
    pub atomic: Page<AtomicCaps>,
    /// RoCE capabilities (type 4).
    pub roce: Page<RoceCap>,
    /// Ethernet offloads (type 1); there with `eth_net_offloads`.
    pub eth_offloads: Page<EthOffloadCaps>,
    /// Flow tables (type 7); there with `nic_flow_table`.
    pub flow_table: Page<FlowTableNicCap>,
    /// Flow tables of the e-switch (type 8); there with `eswitch_manager`.
    pub eswitch_flow_table: FlowTableEswitchCap,
    /// The e-switch (type 9); there with `eswitch_manager`.
    pub eswitch: EswitchCap,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            name: "sim0".to_owned(),
            vendor_id: 0x15b3,
            device_id: 0x1017,
            subsystem_id: 0x0007,
            revision: 0,
            subclass: 0,
            bar_bytes: 4 << 20,
            msix_vectors: 32,
            firmware: (16, 35, 1010),
            psid: "SIM0000000001".to_owned(),
            mac: [0x02, 0x00, 0x5e, 0x10, 0x00, 0x01],
            port_type: PortType::Ethernet,
            max_mtu: 9978,
            carrier_without_link: true,
            boot_time: Duration::from_millis(20),
            silent_time: Duration::from_millis(5),
            deaf_time: Duration::from_millis(20),
            command_time: Duration::ZERO,
            command_jitter: Duration::ZERO,
            pages: PageProfile::default(),
            reserved_lkey: 0x0000_8f00,
            habits: Habits::default(),
            general: general(),
            atomic: atomic(),
            roce: roce(),
            eth_offloads: eth_offloads(),
            flow_table: flow_table(),
            eswitch_flow_table: eswitch_flow_table(),
            eswitch: eswitch(),
        }
    }
}

impl Profile {
    /// The default device under another name and MAC address.
    pub fn named(name: &str, mac: [u8; 6]) -> Self {
        Self {
            name: name.to_owned(),
            mac,
            ..Self::default()
        }
    }

    /// The same device with an InfiniBand port.
    #[must_use]
    pub fn infiniband(mut self) -> Self {
        self.port_type = PortType::InfiniBand;
        self.subclass = 7;
        for page in [&mut self.general.max, &mut self.general.current] {
            page.set_port_type(0).set_roce(false).set_ib_virt(true);
            page.set_uc(true).set_xrc(true).set_mcam_reg(true);
            // Eight GIDs: the table of a port that is not shared.
            page.set_gid_table_size(0);
            page.set_disable_local_lb_uc(false)
                .set_disable_local_lb_mc(false);
            // There is a subnet manager, and no switch between MAC addresses.
            page.set_vport_group_manager(false)
                .set_eswitch_manager(false)
                .set_nic_vport_change_event(false)
                .set_log_max_l2_table(0);
        }
        self
    }

    /// The same device as operating systems' drivers want it: with Ethernet queues and flow tables for a network
    /// device, and with the services their RDMA side creates objects of.
    #[must_use]
    pub fn ethernet(mut self) -> Self {
        for page in [&mut self.general.max, &mut self.general.current] {
            page.set_eth_net_offloads(true).set_nic_flow_table(true);
            page.set_uc(true).set_xrc(true).set_mcam_reg(true);
            page.set_max_tc(8)
                .set_log_max_rq(16)
                .set_log_max_sq(16)
                .set_log_max_tir(16)
                .set_log_max_tis(16)
                .set_log_max_rqt(16)
                .set_log_max_rqt_size(11)
                .set_log_max_tis_per_sq(0);
            page.set_nic_receive_steering_discard(true);
        }
        self
    }

    /// The same device with a firmware that takes its time: each command a millisecond and up to another one.
    #[must_use]
    pub fn slow(mut self) -> Self {
        self.command_time = Duration::from_millis(1);
        self.command_jitter = Duration::from_millis(1);
        self
    }

    /// EUI-64 of the port.
    pub fn port_guid(&self) -> u64 {
        let [a, b, c, d, e, f] = self.mac;
        u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }
}

fn general() -> Page<CmdHcaCap> {
    let mut max = CmdHcaCap::new();
    // Sizes, as the ConnectX-4 Lx reported them.
    max.set_log_max_srq_sz(15)
        .set_log_max_qp_sz(15)
        .set_log_max_qp(18);
    max.set_log_max_srq(16);
    max.set_log_max_cq_sz(22).set_log_max_cq(18);
    max.set_log_max_eq_sz(22)
        .set_log_max_mkey(22)
        .set_log_max_eq(6);
    max.set_max_indirection(4)
        .set_log_max_mrw_sz(64)
        .set_log_max_klm_list_size(16);
    max.set_log_max_ra_req_qp(4).set_log_max_ra_res_qp(4);
    max.set_log_max_msg(30);
    max.set_max_wqe_sz_sq(1024).set_max_wqe_sz_rq(512);
    max.set_log_max_transport_domain(16)
        .set_log_max_pd(16)
        .set_log_max_xrcd(16);
    max.set_log_max_rmp(16);
    max.set_log_max_stride_sz_rq(9).set_log_min_stride_sz_rq(4);
    max.set_log_max_stride_sz_sq(6).set_log_min_stride_sz_sq(6);
    max.set_log_max_wq_sz(15);
    max.set_log_max_vlan_list(12)
        .set_log_max_current_mc_list(14)
        .set_log_max_current_uc_list(10);
    max.set_gid_table_size(4).set_pkey_table_size(5);
    max.set_uar_sz(2)
        .set_log_pg_sz(12)
        .set_log_uar_page_sz(8)
        .set_log_bf_reg_size(9);
    max.set_device_frequency_mhz(156)
        .set_device_frequency_khz(156_250);
    max.set_max_qp_cnt(255);
    // The port.
    max.set_port_type(1)
        .set_num_ports(1)
        .set_local_ca_ack_delay(16);
    max.set_stat_rate_support(1).set_vport_counters(true);
    max.set_disable_local_lb_uc(true)
        .set_disable_local_lb_mc(true);
    // The e-switch, which a physical function manages.
    max.set_vport_group_manager(true)
        .set_eswitch_manager(true)
        .set_nic_vport_change_event(true)
        .set_log_max_l2_table(7);
    // Transport.
    max.set_rc(true)
        .set_ud(true)
        .set_cqe_version(1)
        .set_compact_address_vector(true);
    max.set_roce(true)
        .set_atomic(true)
        .set_roce_rw_supported(true);
    // Queues and keys.
    max.set_cq_oi(true)
        .set_cq_moderation(true)
        .set_cq_eq_remap(true)
        .set_cq_resize(true);
    max.set_block_lb_mc(true).set_imaicl(true);
    max.set_log_max_mcg(21).set_max_qp_mcg(240);
    max.set_cmdif_checksum(3).set_driver_version(true);
    max.set_umem_uid_0(true).set_log_max_umem(16);
    let mut current = max.clone();
    current
        .set_log_max_qp(14)
        .set_pkey_table_size(0)
        .set_cmdif_checksum(0)
        .set_log_uar_page_sz(0);
    Page { max, current }
}

fn atomic() -> Page<AtomicCaps> {
    let mut max = AtomicCaps::new();
    max.set_supported_atomic_req_8B_endianness_mode_1(true);
    max.set_atomic_operations(3).set_atomic_size_qp(8);
    let current = max.clone();
    max.set_atomic_req_8B_endianness_mode(1);
    Page { max, current }
}

fn roce() -> Page<RoceCap> {
    let mut max = RoceCap::new();
    max.set_sw_r_roce_src_udp_port(true);
    max.set_l3_type(6).set_roce_version(5);
    max.set_r_roce_dest_udp_port(4791);
    max.set_r_roce_max_src_udp_port(0xffff)
        .set_r_roce_min_src_udp_port(0xc000);
    max.set_roce_address_table_size(255);
    let mut current = max.clone();
    current.set_sw_r_roce_src_udp_port(false);
    Page { max, current }
}

fn eth_offloads() -> Page<EthOffloadCaps> {
    let mut max = EthOffloadCaps::new();
    max.set_csum_cap(true)
        .set_vlan_cap(true)
        .set_self_lb_en_modifiable(true);
    // Neither inline headers nor a vport's minimum of them.
    max.set_max_lso_cap(18)
        .set_wqe_inline_mode(2)
        .set_rss_ind_tbl_cap(7);
    let current = max.clone();
    Page { max, current }
}

fn flow_table() -> Page<FlowTableNicCap> {
    let mut max = FlowTableNicCap::new();
    max.flow_table_properties_nic_receive_mut()
        .set_ft_support(true)
        .set_log_max_ft_size(16)
        .set_max_ft_level(64)
        .set_log_max_ft_num(8)
        .set_log_max_destination(5)
        .set_log_max_flow(16);
    let current = max.clone();
    Page { max, current }
}

/// As Linux's legacy mode needs them: an FDB of two levels below 22, and access lists of a vport's two directions.
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
