//! Objects between flow tables and Ethernet queues: TIRs, TISes and RQ tables (PRM "Transport Interface Receive",
//! "Transport Interface Send", "RQ Table").
//!
//! A TIR is a destination of flow steering. A direct TIR names its RQ. An indirect TIR hashes the packet's headers and
//! selects the RQ from an RQ table: this is receive side scaling (RSS).

use layout::layout;

use super::command::command;
use super::{CmdStatus, Opcode};

layout! {
    /// Header fields that a TIR hashes (PRM "rx_hash_field_select").
    pub struct RxHashFieldSelect(0x04) {
        /// 0 IPv4, 1 IPv6.
        l3_prot_type: 0x00[31],
        /// 0 TCP, 1 UDP.
        l4_prot_type: 0x00[30],
        /// Bit per hashed field: 0 source address, 1 destination address, 2 source port, 3 destination port, 4 IPsec
        /// SPI.
        selected_fields: 0x00[29:0],
    }

    /// Transport interface receive context (PRM "TIR Context").
    pub struct Tirc(0xf0) {
        /// Kind: 0 direct (`inline_rqn`), 1 indirect (`indirect_table`).
        disp_type: 0x04[31:28],
        tls_en: 0x04[27],
        /// Timeout of large receive, in microseconds.
        lro_timeout_period_usecs: 0x10[27:12],
        /// Packets that large receive merges: bit 0 IPv4, 1 IPv6; bit 2 header split.
        packet_merge_mask: 0x10[11:8],
        /// Largest IP payload of large receive, in 256-byte units.
        lro_max_ip_payload_size: 0x10[7:0],
        inline_rqn: 0x1c[23:0],
        rx_hash_symmetric: 0x20[31],
        tunneled_offload_en: 0x20[29],
        /// Number of the RQ table.
        indirect_table: 0x20[23:0],
        /// Hash function: 0 none, 1 inverted XOR of 8 bits, 2 Toeplitz.
        rx_hash_fn: 0x24[31:28],
        /// Loopback of packets of the same transport domain: bit 0 unicast, 1 multicast. Despite the field's name, a
        /// set bit admits the packets (Linux `mlx5e_refresh_tirs` sets the bits to enable loopback).
        self_lb_block: 0x24[25:24],
        transport_domain: 0x24[23:0],
        rx_hash_toeplitz_key: 0x28 [u8; 40],
        rx_hash_field_selector_outer: 0x50 RxHashFieldSelect,
        rx_hash_field_selector_inner: 0x54 RxHashFieldSelect,
    }

    /// Transport interface send context (PRM "TIS Context").
    pub struct Tisc(0xa0) {
        strict_lag_tx_port_affinity: 0x00[31],
        tls_en: 0x00[30],
        lag_tx_port_affinity: 0x00[27:24],
        /// Ethernet priority in bits 3:1.
        prio: 0x00[19:16],
        transport_domain: 0x24[23:0],
        /// Number of the underlay QP (IPoIB); InfiniBand ports only.
        underlay_qpn: 0x28[23:0],
        /// Protection domain, for TLS.
        pd: 0x2c[23:0],
    }

    /// RQ table context (PRM "RQ Table Context"); [`RqNum`]s follow it.
    pub struct Rqtc(0xf0) {
        /// Kind of the listed queues: 0 RQs.
        list_q_type: 0x14[26:24],
        /// Capacity in entries, a power of two.
        rqt_max_size: 0x14[15:0],
        /// True if each entry also has the ID of its function.
        rq_vhca_id_format: 0x18[31],
        /// Number of entries in use.
        rqt_actual_size: 0x18[15:0],
    }

    /// Entry of an RQ table.
    pub struct RqNum(0x04) {
        rq_num: 0x00[23:0],
    }

    /// Fields that MODIFY_TIR takes from its context.
    pub struct ModifyTirBitmask(0x08) {
        /// Set: MODIFY_TIR takes `self_lb_block`.
        self_lb_en: 0x04[4],
        /// Set: MODIFY_TIR takes hash function, hash key and hashed fields.
        hash: 0x04[2],
        /// Set: MODIFY_TIR takes the fields of large receive.
        packet_merge: 0x04[0],
    }

    /// Fields that MODIFY_TIS takes from its context.
    pub struct ModifyTisBitmask(0x08) {
        lag_tx_port_affinity: 0x04[2],
        strict_lag_tx_port_affinity: 0x04[1],
        prio: 0x04[0],
    }
}

command! {
    CREATE_TIR: CreateTirIn(0x110) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        ctx: 0x20 Tirc,
    } -> CreateTirOut(0x10) {
        icm_address_63_40: 0x00[23:0],
        icm_address_39_32: 0x08[31:24],
        tirn: 0x08[23:0],
        icm_address_31_0: 0x0c u32,
    }

    MODIFY_TIR: ModifyTirIn(0x110) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        tirn: 0x08[23:0],
        bitmask: 0x10 ModifyTirBitmask,
        ctx: 0x20 Tirc,
    } -> ModifyTirOut(0x10) {}

    DESTROY_TIR: DestroyTirIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        tirn: 0x08[23:0],
    } -> DestroyTirOut(0x10) {}

    QUERY_TIR: QueryTirIn(0x10) {
        tirn: 0x08[23:0],
    } -> QueryTirOut(0x110) {
        tir_context: 0x20 Tirc,
    }

    CREATE_TIS: CreateTisIn(0xc0) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        ctx: 0x20 Tisc,
    } -> CreateTisOut(0x10) {
        tisn: 0x08[23:0],
    }

    MODIFY_TIS: ModifyTisIn(0xc0) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        tisn: 0x08[23:0],
        bitmask: 0x10 ModifyTisBitmask,
        ctx: 0x20 Tisc,
    } -> ModifyTisOut(0x10) {}

    DESTROY_TIS: DestroyTisIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        tisn: 0x08[23:0],
    } -> DestroyTisOut(0x10) {}

    QUERY_TIS: QueryTisIn(0x10) {
        tisn: 0x08[23:0],
    } -> QueryTisOut(0xb0) {
        tis_context: 0x10 Tisc,
    }

    /// Creates an RQ table. `rqt_actual_size` entries ([`RqNum`]) follow the context.
    CREATE_RQT: CreateRqtIn(0x110) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        rqt_context: 0x20 Rqtc,
    } -> CreateRqtOut(0x10) {
        rqtn: 0x08[23:0],
    }

    /// Changes an RQ table. The entries follow the context.
    MODIFY_RQT: ModifyRqtIn(0x110) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        rqtn: 0x08[23:0],
        /// Set: the command takes the entries.
        bitmask_rqn_list: 0x14[0],
        ctx: 0x20 Rqtc,
    } -> ModifyRqtOut(0x10) {}

    DESTROY_RQT: DestroyRqtIn(0x10) {
        /// ID of the user context that issues the command; 0 is the driver.
        uid: 0x00[15:0],
        rqtn: 0x08[23:0],
    } -> DestroyRqtOut(0x10) {}

    /// Queries an RQ table. The entries follow the output.
    QUERY_RQT: QueryRqtIn(0x10) {
        rqtn: 0x08[23:0],
    } -> QueryRqtOut(0x110) {
        rqt_context: 0x20 Rqtc,
    }
}
