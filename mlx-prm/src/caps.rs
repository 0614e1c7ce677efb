//! The general capability page (PRM "HCA Capabilities"): capabilities of a device, and those that are enabled.
//!
//! QUERY_HCA_CAP reads a page as *maximum* or as *current*; SET_HCA_CAP writes the current one. A page is 0x1000
//! bytes; the structures here are its beginning. [`super::caps_pages`] has the pages other than the general one.
//!
//! Names and offsets are those of Linux 6.12 `include/linux/mlx5/mlx5_ifc.h`. Fields without a name there have those
//! of rdma-core `providers/mlx5/mlx5_ifc.h`.

use layout::layout;

layout! {
    /// General device capabilities (PRM "cmd_hca_cap", type 0).
    pub struct CmdHcaCap(0x100) {
        access_other_hca_roce: 0x00[31],
        /// Set: firmware never sends page requests.
        page_request_disable: 0x00[25],
        shared_object_to_user_object_allowed: 0x00[15],
        vhca_resource_manager: 0x00[0],
        /// Set: capability page 0x20 exists.
        hca_cap_2: 0x04[31],
        create_lag_when_not_master_up: 0x04[30],
        /// Set: register DTOR can be read.
        dtor: 0x04[29],
        event_on_vhca_state_teardown_request: 0x04[28],
        event_on_vhca_state_in_use: 0x04[27],
        event_on_vhca_state_active: 0x04[26],
        event_on_vhca_state_allocated: 0x04[25],
        event_on_vhca_state_invalid: 0x04[24],
        /// Number of this function.
        vhca_id: 0x04[15:0],
        qp_data_in_order: 0x0c[29],
        log_dma_mmo_max_size: 0x0c[20:16],
        /// log2 of the largest number of entries in an SRQ.
        log_max_srq_sz: 0x10[31:24],
        /// log2 of the largest size of a QP: WQEBBs of the SQ, WQEs of the RQ.
        log_max_qp_sz: 0x10[23:16],
        event_cap: 0x10[15],
        isolate_vl_tc_new: 0x10[12],
        prio_tag_required: 0x10[7],
        /// log2 of the number of QPs (Linux uses 18 or less).
        log_max_qp: 0x10[4:0],
        /// True if the `ece` fields of QP commands are valid.
        ece_support: 0x14[28],
        reg_c_preserve: 0x14[22],
        log_max_srq: 0x14[20:16],
        uplink_follow: 0x14[14],
        ts_cqe_to_dest_cqn: 0x14[13],
        go_back_n: 0x14[6],
        max_sgl_for_optimized_performance: 0x18[31:24],
        /// log2 of the largest number of entries in a CQ.
        log_max_cq_sz: 0x18[23:16],
        relaxed_ordering_write_umr: 0x18[15],
        relaxed_ordering_read_umr: 0x18[14],
        virtio_net_device_emualtion_manager: 0x18[6],
        virtio_blk_device_emualtion_manager: 0x18[5],
        /// log2 of the number of CQs.
        log_max_cq: 0x18[4:0],
        log_max_eq_sz: 0x1c[31:24],
        /// True if software may set the memory key bit of the same name.
        relaxed_ordering_write: 0x1c[23],
        relaxed_ordering_read_pci_enabled: 0x1c[22],
        /// log2 of the number of mkeys.
        log_max_mkey: 0x1c[21:16],
        tunneled_atomic: 0x1c[15],
        as_notify: 0x1c[14],
        m_pci_port: 0x1c[13],
        m_vhca_mk: 0x1c[12],
        cmd_on_behalf: 0x1c[11],
        device_emulation_manager: 0x1c[10],
        /// True if QUERY_SPECIAL_CONTEXTS returns a terminate_scatter_list_mkey.
        terminate_scatter_list_mkey: 0x1c[9],
        repeated_mkey: 0x1c[8],
        dump_fill_mkey: 0x1c[7],
        /// TEARDOWN_HCA profile 2 supported, at Linux's offset. rdma-core has the flag in bit 14 of the dword at 0x20.
        fast_teardown: 0x1c[4],
        /// log2 of the number of EQs.
        log_max_eq: 0x1c[3:0],
        /// Largest nesting depth of KLM keys.
        max_indirection: 0x20[31:24],
        /// Set: KLM with entries of fixed size (KSM) supported.
        fixed_buffer_size: 0x20[23],
        /// log2 of the largest MR/MW length.
        log_max_mrw_sz: 0x20[22:16],
        /// TEARDOWN_HCA profile 1 supported.
        force_teardown: 0x20[15],
        /// `fast_teardown` at rdma-core's offset.
        fast_teardown_rdma_core: 0x20[14],
        log_max_bsf_list_size: 0x20[13:8],
        /// Set: the device uses dword 0x10 of the UMR control segment.
        umr_extended_translation_offset: 0x20[7],
        null_mkey: 0x20[6],
        /// log2 of the largest number of entries in a KLM list.
        log_max_klm_list_size: 0x20[5:0],
        /// Set: commands may carry the qpc_ext extension.
        qpc_extension: 0x24[29],
        log_max_ra_req_dc: 0x24[21:16],
        eth_wqe_too_small: 0x24[13],
        vnic_env_cq_overrun: 0x24[6],
        log_max_ra_res_dc: 0x24[5:0],
        release_all_pages: 0x28[26],
        must_not_use: 0x28[25],
        sig_crc64_xp10: 0x28[24],
        sig_crc32c: 0x28[23],
        roce_accl: 0x28[22],
        /// log2 of the largest responder resources (log_rra_max): "req" means requests of the peer. Linux limits
        /// `max_dest_rd_atomic` by it.
        log_max_ra_req_qp: 0x28[21:16],
        rts2rts_qp_udp_sport: 0x28[14],
        rts2rts_lag_tx_port_affinity: 0x28[13],
        dma_mmo_sq: 0x28[12],
        /// log2 of the largest initiator depth (log_sra_max): "res" means responses of the peer. Linux limits
        /// `max_rd_atomic` by it.
        log_max_ra_res_qp: 0x28[5:0],
        /// Set: the device can pad the end of receive data to a cache line.
        end_pad: 0x2c[31],
        /// Set: the commands that query congestion control parameters are allowed. The next field is for those that
        /// modify them.
        cc_query_allowed: 0x2c[30],
        cc_modify_allowed: 0x2c[29],
        start_pad: 0x2c[28],
        /// Set: cache lines have 128 bytes. Linux sets it if the host's cache line has at least 128 bytes.
        cache_line_128byte: 0x2c[27],
        gid_table_size_ro: 0x2c[26],
        pkey_table_size_ro: 0x2c[25],
        rnr_nak_q_counters: 0x2c[23],
        rts2rts_qp_counters_set_id: 0x2c[22],
        rts2rts_qp_dscp: 0x2c[21],
        vnic_env_int_rq_oob: 0x2c[19],
        sbcam_reg: 0x2c[18],
        qcam_reg: 0x2c[16],
        /// Code of the GID table's size on InfiniBand: 0..4 = 8,16,32,64,128 GIDs.
        gid_table_size: 0x2c[15:0],
        out_of_seq_cnt: 0x30[31],
        vport_counters: 0x30[30],
        retransmission_q_counters: 0x30[29],
        debug: 0x30[28],
        modify_rq_counter_set_id: 0x30[27],
        rq_delay_drop: 0x30[26],
        /// Number of counter sets.
        max_qp_cnt: 0x30[25:16],
        /// Code of the P_Key table's size: 0..5 = 128,256,512,1K,2K,4K. Linux sets it to 0.
        pkey_table_size: 0x30[15:0],
        /// True if this function manages vports.
        vport_group_manager: 0x34[31],
        vhca_group_manager: 0x34[30],
        /// InfiniBand virtualization (vports).
        ib_virt: 0x34[29],
        eth_virt: 0x34[28],
        vnic_env_queue_counters: 0x34[27],
        ets: 0x34[26],
        /// Ethernet steering available.
        nic_flow_table: 0x34[25],
        /// True if this PF manages the e-switch. Such a PF must enter its MAC addresses in the L2 table.
        eswitch_manager: 0x34[24],
        device_memory: 0x34[23],
        mcam_reg: 0x34[22],
        pcam_reg: 0x34[21],
        /// Local CA ACK delay, a part of the ACK timeout: code n of the time 4.096 µs·2^n.
        local_ca_ack_delay: 0x34[20:16],
        port_module_event: 0x34[15],
        enhanced_error_q_counters: 0x34[14],
        ports_check: 0x34[13],
        pulse_gen_control: 0x34[12],
        /// Drivers may set it: INIT_HCA then leaves the link down.
        disable_link_up: 0x34[11],
        beacon_led: 0x34[10],
        /// 0 InfiniBand, 1 Ethernet.
        port_type: 0x34[9:8],
        /// Number of ports of this function.
        num_ports: 0x34[7:0],
        pps: 0x38[30],
        pps_modify: 0x38[29],
        /// log2 of the largest message in bytes; also the value for `log_msg_max` of the QP context.
        log_max_msg: 0x38[28:24],
        multi_path_xrc_rdma: 0x38[23],
        multi_path_dc_rdma: 0x38[22],
        multi_path_rc_rdma: 0x38[21],
        traffic_fast_control: 0x38[20],
        max_tc: 0x38[19:16],
        temp_warn_event: 0x38[15],
        dcbx: 0x38[14],
        general_notification_event: 0x38[13],
        multi_prio_sq: 0x38[12],
        afu_owner: 0x38[11],
        fpga: 0x38[10],
        rol_s: 0x38[9],
        rol_g: 0x38[8],
        ib_port_sniffer: 0x38[7],
        wol_s: 0x38[6],
        wol_g: 0x38[5],
        wol_a: 0x38[4],
        wol_b: 0x38[3],
        wol_m: 0x38[2],
        wol_u: 0x38[1],
        wol_p: 0x38[0],
        /// Bit per static rate code.
        stat_rate_support: 0x3c[31:16],
        pci_sync_for_fw_update_event: 0x3c[14],
        init2_lag_tx_port_affinity: 0x3c[7],
        wqe_based_flow_table_update_cap: 0x3c[4],
        /// 1: CQEs report the user index (`user_index`) of the QP or SRQ.
        cqe_version: 0x3c[3:0],
        /// True if a UD AV may omit the GRH part. Drivers then set the "extended" bit in an AV that has the GRH part.
        compact_address_vector: 0x40[31],
        striding_rq: 0x40[30],
        ipoib_enhanced_offloads: 0x40[28],
        ipoib_basic_offloads: 0x40[27],
        ib_striding_wq: 0x40[26],
        repeated_block_disabled: 0x40[25],
        /// Set: UMR may not change page size.
        umr_modify_entity_size_disabled: 0x40[24],
        /// Set: UMR may not change the atomic bit.
        umr_modify_atomic_disabled: 0x40[23],
        /// Set: UMR may not be used on indirect keys.
        umr_indirect_mkey_disabled: 0x40[22],
        /// Fence needed after UMR: 0 strong, 1 small, 2 none.
        umr_fence: 0x40[21:20],
        dc_req_scat_data_cqe: 0x40[19],
        dc_connect_qp: 0x40[18],
        dc_cnak_trace: 0x40[17],
        drain_sigerr: 0x40[16],
        /// Linux sets it to 0, so that signatures of commands are not checked.
        cmdif_checksum: 0x40[15:14],
        sigerr_cqe: 0x40[13],
        wq_signature: 0x40[11],
        /// Scatter-to-CQE supported.
        sctr_data_cqe: 0x40[10],
        sho: 0x40[8],
        tph: 0x40[7],
        rf: 0x40[6],
        /// Drivers set it to 1 if the maximum is 1.
        dct: 0x40[5],
        qos: 0x40[4],
        eth_net_offloads: 0x40[3],
        /// RoCE supported; Linux sets it if roce_rw_supported.
        roce: 0x40[2],
        /// Set: the atomic capability page is valid.
        atomic: 0x40[1],
        extended_retry_count: 0x40[0],
        /// Set: CQs may ignore overruns (`oi`).
        cq_oi: 0x44[31],
        /// Set: MODIFY_CQ with op_mod 1 (resize) supported.
        cq_resize: 0x44[30],
        /// Set: MODIFY_CQ can change the moderation.
        cq_moderation: 0x44[29],
        cq_period_mode_modify: 0x44[28],
        cq_invalidate: 0x44[27],
        /// CQ may move to another EQ.
        cq_eq_remap: 0x44[25],
        /// Set: on-demand paging supported. Linux then sets the "page access" flag of CREATE_MKEY.
        pg: 0x44[24],
        /// Set: a QP can block the loopback of its multicast packets.
        block_lb_mc: 0x44[23],
        exponential_backoff: 0x44[22],
        scqe_break_moderation: 0x44[21],
        cq_period_start_from_cqe: 0x44[20],
        cd: 0x44[19],
        atm: 0x44[18],
        /// Path migration.
        apm: 0x44[17],
        vector_calc: 0x44[16],
        umr_ptr_rlky: 0x44[15],
        /// Set: type 2B memory windows and remote invalidation supported.
        imaicl: 0x44[14],
        qp_packet_based: 0x44[13],
        ipoib_enhanced_pkey_change: 0x44[11],
        initiator_src_dct_in_cqe: 0x44[10],
        /// Qkey violation counter.
        qkv: 0x44[9],
        /// Pkey violation counter.
        pkv: 0x44[8],
        /// Set: a UD QP can send with source QP number 1 (GSI), so that several QPs can send as QP1.
        set_deth_sqpn: 0x44[7],
        rts2rts_primary_sl: 0x44[6],
        initiator_src_dct: 0x44[5],
        dc_v2: 0x44[4],
        xrc: 0x44[3],
        ud: 0x44[2],
        uc: 0x44[1],
        rc: 0x44[0],
        /// Linux sets it only if host pages > 4 KiB.
        uar_4k: 0x48[31],
        /// Set: an RC QP can use force-loopback while RoCE is disabled.
        fl_rc_qp_when_roce_disabled: 0x48[23],
        regexp_params: 0x48[22],
        uar_sz: 0x48[21:16],
        port_selection_cap: 0x48[15],
        /// UMEM objects usable with uid 0 (rdma-core's VFIO driver requires it).
        umem_uid_0: 0x48[13],
        /// log2 of the smallest page of PAS lists in bytes (12).
        log_pg_sz: 0x48[7:0],
        /// BlueFlame supported.
        bf: 0x4c[31],
        /// SET_DRIVER_VERSION supported.
        driver_version: 0x4c[30],
        pad_tx_eth_packet: 0x4c[29],
        query_driver_version: 0x4c[28],
        max_qp_retry_freq: 0x4c[27],
        qp_by_name: 0x4c[26],
        /// Drivers set it to 1 if the maximum is 1.
        mkey_by_name: 0x4c[25],
        suspend_qp_uc: 0x4c[23],
        suspend_qp_ud: 0x4c[22],
        suspend_qp_rc: 0x4c[21],
        /// log2 of the size in bytes of a pair of BlueFlame registers.
        log_bf_reg_size: 0x4c[20:16],
        qp_error_syndrome: 0x4c[12],
        lag_dct: 0x4c[9:8],
        lag_tx_port_affinity: 0x4c[7],
        lag_native_fdb_selection: 0x4c[6],
        /// Set: the function can be the master of a LAG.
        lag_master: 0x4c[4],
        num_lag_ports: 0x4c[3:0],
        /// Largest send WQE in bytes.
        max_wqe_sz_sq: 0x50[15:0],
        shampo: 0x54[20],
        /// Largest receive WQE in bytes.
        max_wqe_sz_rq: 0x54[15:0],
        max_flow_counter_31_16: 0x58[31:16],
        max_wqe_sz_sq_dc: 0x58[15:0],
        /// Largest number of QPs in a multicast group.
        max_qp_mcg: 0x5c[24:0],
        flow_counter_bulk_alloc: 0x60[15:8],
        log_max_mcg: 0x60[7:0],
        log_max_transport_domain: 0x64[28:24],
        relaxed_ordering_read: 0x64[21],
        log_max_pd: 0x64[20:16],
        dp_ordering_ooo_all_ud: 0x64[15],
        dp_ordering_ooo_all_uc: 0x64[14],
        dp_ordering_ooo_all_xrc: 0x64[13],
        dp_ordering_ooo_all_dc: 0x64[12],
        dp_ordering_ooo_all_rc: 0x64[11],
        pcie_reset_using_hotreset_method: 0x64[10],
        pci_sync_for_fw_update_with_driver_unload: 0x64[9],
        vnic_env_cnt_steering_fail: 0x64[8],
        vport_counter_local_loopback: 0x64[7],
        q_counter_aggregation: 0x64[6],
        q_counter_other_vport: 0x64[5],
        log_max_xrcd: 0x64[4:0],
        nic_receive_steering_discard: 0x68[31],
        receive_discard_vport_down: 0x68[30],
        transmit_discard_vport_down: 0x68[29],
        eq_overrun_count: 0x68[28],
        invalid_command_count: 0x68[26],
        quota_exceeded_count: 0x68[25],
        log_max_flow_counter_bulk: 0x68[23:16],
        max_flow_counter_15_0: 0x68[15:0],
        log_max_rq: 0x6c[28:24],
        log_max_sq: 0x6c[20:16],
        log_max_tir: 0x6c[12:8],
        log_max_tis: 0x6c[4:0],
        basic_cyclic_rcv_wqe: 0x70[31],
        /// log2 of the number of receive memory pools (basic SRQs).
        log_max_rmp: 0x70[28:24],
        log_max_rqt: 0x70[20:16],
        log_max_rqt_size: 0x70[12:8],
        log_max_tis_per_sq: 0x70[4:0],
        ext_stride_num_range: 0x74[31],
        /// Set: software may write the bit `roce` of this page.
        roce_rw_supported: 0x74[30],
        log_max_current_uc_list_wr_supported: 0x74[29],
        /// log2 of the largest WQE stride of an RQ. The next field is the smallest stride of an RQ; the two fields
        /// after it are the largest and the smallest stride of an SQ.
        log_max_stride_sz_rq: 0x74[28:24],
        log_min_stride_sz_rq: 0x74[20:16],
        log_max_stride_sz_sq: 0x74[12:8],
        log_min_stride_sz_sq: 0x74[4:0],
        hairpin: 0x78[31],
        log_max_hairpin_queues: 0x78[28:24],
        log_max_hairpin_wq_data_sz: 0x78[20:16],
        log_max_hairpin_num_packets: 0x78[12:8],
        /// log2 of the largest number of entries in a work queue (RQ/SQ/RMP).
        log_max_wq_sz: 0x78[4:0],
        nic_vport_change_event: 0x7c[31],
        /// Set: a vport can disable the loopback of unicast (next field: of multicast) frames.
        disable_local_lb_uc: 0x7c[30],
        disable_local_lb_mc: 0x7c[29],
        log_min_hairpin_wq_data_sz: 0x7c[28:24],
        silent_mode: 0x7c[22],
        vhca_state: 0x7c[21],
        log_max_vlan_list: 0x7c[20:16],
        log_max_current_mc_list: 0x7c[12:8],
        /// log2 of the number of unicast MACs per vport.
        log_max_current_uc_list: 0x7c[4:0],
        /// Bit per type of general object that can be created.
        general_obj_types: 0x80 u64,
        /// Formats of timestamps: 0 free running, 1 real time, 2 both.
        sq_ts_format: 0x88[31:30],
        rq_ts_format: 0x88[29:28],
        steering_format_version: 0x88[27:24],
        create_qp_start_hint: 0x88[23:0],
        ats: 0x8c[30],
        cross_vhca_rqt: 0x8c[29],
        /// log2 of the number of DevX user contexts (uids).
        log_max_uctx: 0x8c[28:24],
        crypto: 0x8c[22],
        ipsec_offload: 0x8c[21],
        log_max_umem: 0x8c[20:16],
        /// Number of EQs; if it is 0, `log_max_eq` applies.
        max_num_eqs: 0x8c[15:0],
        tls_tx: 0x90[30],
        tls_rx: 0x90[29],
        /// log2 of the number of entries in the L2 table (MPFS).
        log_max_l2_table: 0x90[28:24],
        /// Drivers set it to log2(host page) − 12.
        log_uar_page_sz: 0x90[15:0],
        device_frequency_mhz: 0x98 u32,
        /// Frequency in kHz of the clock of CQE timestamps.
        device_frequency_khz: 0x9c u32,
        /// Number of UARs per system page; used if `uar_4k` is set.
        num_of_uars_per_page: 0xa4 u32,
        flex_parser_protocols: 0xa8 u32,
        max_geneve_tlv_options: 0xac[31:24],
        max_geneve_tlv_option_data_len: 0xac[20:16],
        adv_virtualization: 0xac[6],
        log_max_atomic_size_qp: 0xb0[31:24],
        log_max_dci_stream_channels: 0xb0[20:16],
        log_max_dci_errored_streams: 0xb0[12:8],
        log_max_atomic_size_dc: 0xb0[7:0],
        enhanced_cqe_compression: 0xb4[15],
        crossing_vhca_mkey: 0xb4[13],
        log_max_dek: 0xb4[12:8],
        mini_cqe_resp_stride_index: 0xb4[3],
        cqe_128_always: 0xb4[2],
        /// Set: CQE compression works with 128-byte CQEs.
        cqe_compression_128: 0xb4[1],
        /// Mini CQEs supported.
        cqe_compression: 0xb4[0],
        /// Limits of a compression session: time, and (next field) number of CQEs.
        cqe_compression_timeout: 0xb8[31:16],
        cqe_compression_max_num: 0xb8[15:0],
        flex_parser_id_gtpu_dw_0: 0xbc[23:20],
        tag_matching: 0xbc[15],
        rndv_offload_rc: 0xbc[14],
        rndv_offload_dc: 0xbc[13],
        log_tag_matching_list_sz: 0xbc[12:8],
        log_max_xrq: 0xbc[4:0],
        affiliate_nic_vport_criteria: 0xc0[31:24],
        native_port_num: 0xc0[23:16],
        /// Number of ports of a multi-port device. If > 0, drivers set `vhca_port_num`. Linux sets this field to its
        /// maximum.
        num_vhca_ports: 0xc0[15:8],
        flex_parser_id_gtpu_teid: 0xc0[7:4],
        /// Set: INIT_HCA takes a sw_owner_id.
        sw_owner_id: 0xc0[1],
        max_num_of_monitor_counters: 0xc4[31:16],
        num_ppcnt_monitor_counters: 0xc4[15:0],
        max_num_sf: 0xc8[31:16],
        num_q_monitor_counters: 0xc8[15:0],
        sf: 0xd0[31],
        sf_set_partition: 0xd0[30],
        log_max_sf: 0xd0[28:24],
        apu: 0xd0[23],
        migration: 0xd0[18],
        log_min_sf_size: 0xd0[15:8],
        max_num_sf_partitions: 0xd0[7:0],
        uctx_cap: 0xd4 u32,
        flex_parser_id_geneve_tlv_option_0: 0xd8[27:24],
        flex_parser_id_icmp_dw1: 0xd8[23:20],
        flex_parser_id_icmp_dw0: 0xd8[19:16],
        flex_parser_id_icmpv6_dw1: 0xd8[15:12],
        flex_parser_id_icmpv6_dw0: 0xd8[11:8],
        flex_parser_id_outer_first_mpls_over_gre: 0xd8[7:4],
        flex_parser_id_outer_first_mpls_over_udp_label: 0xd8[3:0],
        max_num_match_definer: 0xdc[31:16],
        sf_base_id: 0xdc[15:0],
        flex_parser_id_gtpu_dw_2: 0xe0[31:28],
        flex_parser_id_gtpu_first_ext_dw_0: 0xe0[27:24],
        num_total_dynamic_vf_msix: 0xe0[23:0],
        dynamic_msix_table_size: 0xe4[11:0],
        min_dynamic_vf_msix_table_size: 0xe8[19:16],
        data_direct: 0xe8[13],
        max_dynamic_vf_msix_table_size: 0xe8[11:0],
        log_max_num_header_modify_argument: 0xec[28:24],
        log_header_modify_argument_granularity_offset: 0xec[23:20],
        log_header_modify_argument_granularity: 0xec[19:16],
        log_header_modify_argument_max_alloc: 0xec[12:8],
        vhca_tunnel_commands: 0xf0 u64,
        match_definer_format_supported: 0xf8 u64,
    }
}
