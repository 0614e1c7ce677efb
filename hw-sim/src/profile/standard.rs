//! The device that nobody chose: a ConnectX-5 with one Ethernet port, as small as the simulator's suites like it.
//!
//! Its capability pages follow those of the ConnectX-4 Lx whose conversation with mlx5_core is recorded (firmware 14.12.1220),
//! reduced to what the simulator does. Where newer devices differ and drivers care, the newer device wins: atomics in
//! host byte order, a clock frequency, SET_DRIVER_VERSION. What a ConnectX-5 says of itself is the profile `connectx-5`.

use super::{Page, PortType, Profile, VirtualFacts};
use crate::pages::PageProfile;
use hw_mlx::prm::{AtomicCaps, CmdHcaCap, EthOffloadCaps, FlowTableNicCap, RoceCap};

/// Interface steps 0 and 1.
const ISSI: u32 = 0b11;

impl Default for Profile {
    fn default() -> Self {
        Self {
            name: "sim0".to_owned(),
            generation: "default".to_owned(),
            vendor_id: 0x15b3,
            device_id: 0x1017,
            subsystem_id: 0x0007,
            bar_bytes: 4 << 20,
            msix_vectors: 32,
            firmware: (16, 35, 1010),
            psid: "SIM0000000001".to_owned(),
            port_type: PortType::Ethernet,
            max_mtu: 9978,
            pages: PageProfile {
                boot: 16,
                init: 512,
                runtime: 32,
                ..PageProfile::NONE
            },
            issi: ISSI,
            virtual_functions: VirtualFacts {
                device_id: 0x1018,
                bar_bytes: 1 << 20,
                msix_vectors: 12,
            },
            general: general(),
            atomic: atomic(),
            roce: roce(),
            eth_offloads: eth_offloads(),
            flow_table: flow_table(),
            ..Self::blank()
        }
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
    Page::new(max, current)
}

fn atomic() -> Page<AtomicCaps> {
    let mut max = AtomicCaps::new();
    max.set_supported_atomic_req_8B_endianness_mode_1(true);
    max.set_atomic_operations(3).set_atomic_size_qp(8);
    let current = max.clone();
    max.set_atomic_req_8B_endianness_mode(1);
    Page::new(max, current)
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
    Page::new(max, current)
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
    Page::new(max, current)
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
    Page::new(max, current)
}
