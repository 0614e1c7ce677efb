//! Fields that flow groups and entries compare: the header fields of a packet, in one struct (PRM "fte_match_param").
//!
//! A group has a mask in this struct: ones in the bits that its entries compare. An entry has the values of those bits.

use layout::layout;

layout! {
    /// Fields of layers 2 to 4 (PRM "fte_match_set_lyr_2_4").
    pub struct FteMatchSetLyr24(0x40) {
        smac_47_16: 0x00 u32,
        smac_15_0: 0x04[31:16],
        ethertype: 0x04[15:0],
        dmac_47_16: 0x08 u32,
        dmac_15_0: 0x0c[31:16],
        first_prio: 0x0c[15:13],
        first_cfi: 0x0c[12],
        first_vid: 0x0c[11:0],
        ip_protocol: 0x10[31:24],
        ip_dscp: 0x10[23:18],
        ip_ecn: 0x10[17:16],
        /// Set: the frame has a VLAN tag of type 0x8100.
        cvlan_tag: 0x10[15],
        /// Set: the frame has a VLAN tag of type 0x88a8.
        svlan_tag: 0x10[14],
        /// Set: the packet is an IP fragment.
        frag: 0x10[13],
        /// IP version: 4, 6, or 0 if the packet is not IP.
        ip_version: 0x10[12:9],
        tcp_flags: 0x10[8:0],
        tcp_sport: 0x14[31:16],
        tcp_dport: 0x14[15:0],
        l4_type: 0x18[31:30],
        ipv4_ihl: 0x18[15:12],
        ttl_hoplimit: 0x18[7:0],
        udp_sport: 0x1c[31:16],
        udp_dport: 0x1c[15:0],
        /// Source IP address; an IPv4 address is in the last four bytes.
        src_ipv4_src_ipv6: 0x20 [u8; 16],
        /// Destination IP address; an IPv4 address is in the last four bytes.
        dst_ipv4_dst_ipv6: 0x30 [u8; 16],
    }

    /// Fields of tunnels, second VLAN tags, sources, and RoCE (PRM "fte_match_set_misc").
    pub struct FteMatchSetMisc(0x40) {
        gre_c_present: 0x00[31],
        gre_k_present: 0x00[29],
        gre_s_present: 0x00[28],
        source_vhca_port: 0x00[27:24],
        source_sqn: 0x00[23:0],
        source_eswitch_owner_vhca_id: 0x04[31:16],
        source_port: 0x04[15:0],
        outer_second_prio: 0x08[31:29],
        outer_second_cfi: 0x08[28],
        outer_second_vid: 0x08[27:16],
        inner_second_prio: 0x08[15:13],
        inner_second_cfi: 0x08[12],
        inner_second_vid: 0x08[11:0],
        outer_second_cvlan_tag: 0x0c[31],
        inner_second_cvlan_tag: 0x0c[30],
        outer_second_svlan_tag: 0x0c[29],
        inner_second_svlan_tag: 0x0c[28],
        gre_protocol: 0x0c[15:0],
        gre_key: 0x10 u32,
        vxlan_vni: 0x14[31:8],
        bth_opcode: 0x14[7:0],
        geneve_vni: 0x18[31:8],
        geneve_tlv_option_0_exist: 0x18[1],
        geneve_oam: 0x18[0],
        outer_ipv6_flow_label: 0x1c[19:0],
        inner_ipv6_flow_label: 0x20[19:0],
        geneve_opt_len: 0x24[21:16],
        geneve_protocol_type: 0x24[15:0],
        bth_dst_qp: 0x28[23:0],
        inner_esp_spi: 0x2c u32,
        outer_esp_spi: 0x30 u32,
    }

    /// All fields that can be compared (PRM "fte_match_param").
    pub struct FteMatchParam(0x200) {
        outer_headers: 0x00 FteMatchSetLyr24,
        misc_parameters: 0x40 FteMatchSetMisc,
        inner_headers: 0x80 FteMatchSetLyr24,
        /// Fields of MPLS, and metadata registers.
        misc_parameters_2: 0xc0 [u8; 0x40],
        /// Fields of TCP sequence numbers, ICMP and further tunnels.
        misc_parameters_3: 0x100 [u8; 0x40],
        /// Fields of the programmable parser.
        misc_parameters_4: 0x140 [u8; 0x40],
        /// Fields of tunnel headers.
        misc_parameters_5: 0x180 [u8; 0x40],
    }
}
