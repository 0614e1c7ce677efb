//! Port and management registers, which are accessed by ACCESS_REG (PRM "Access Registers").
//!
//! In the input and in the output of the command, the whole register image follows the first 16 bytes.

use layout::codes;
use layout::layout;

use super::command::command;
use super::{CmdStatus, Opcode};

command! {
    /// op_mod 0 writes a register, 1 reads it. The register image follows the input and the output.
    ACCESS_REG: AccessRegIn(0x10) {
        register_id: 0x08[15:0],
        /// Argument of the access; 0 for all registers below.
        argument: 0x0c u32,
    } -> AccessRegOut(0x10) {}
}

codes! {
    /// Register IDs.
    pub struct RegisterId(u16) {
        /// Trust state of a port: the frame field (PCP or DSCP) that selects a frame's priority.
        QPTS = 0x4002,
        /// Groups, shares and rate limits of traffic classes.
        QETCR = 0x4005,
        /// Traffic class of each priority.
        QTCT = 0x400a,
        /// Priority of each DSCP.
        QPDPM = 0x4013,
        /// InfiniBand port capability mask.
        PCAP = 0x5001,
        /// Mapping of a port's lanes to modules.
        PMLP = 0x5002,
        /// Port MTU.
        PMTU = 0x5003,
        /// Link type and speed.
        PTYS = 0x5004,
        /// Administrative and operational state of a port.
        PAOS = 0x5006,
        /// Pause and priority flow control of a port.
        PFCC = 0x5007,
        /// Port counters.
        PPCNT = 0x5008,
        /// Port up/down event.
        PUDE = 0x5009,
        /// Virtual lanes of an InfiniBand port.
        PVLC = 0x500f,
        /// Port diagnostics.
        PDDR = 0x5031,
        /// Capability mask of registers 0x50xx.
        PCAM = 0x507f,
        /// Node description, 64 bytes.
        NODE_DESC = 0x6001,
        /// Byte order of the host.
        HOST_ENDIANNESS = 0x7004,
        /// Temperature of a sensor.
        MTMP = 0x900a,
        /// EEPROM of a module.
        MCIA = 0x9014,
        /// Firmware reset level.
        MFRL = 0x9028,
        /// State of a firmware component.
        MCQS = 0x9060,
        /// Information about a firmware component.
        MCQI = 0x9061,
        /// Pulse per second (PPS) pins.
        MTPPS = 0x9053,
        /// Time and frequency of the device's clock.
        MTUTC = 0x9055,
        /// Capability mask of registers 0x90xx.
        MCAM = 0x907f,
        /// Shared buffer capabilities.
        SBCAM = 0xb01f,
        /// Default timeouts.
        DTOR = 0xc00e,
    }
}

layout! {
    /// Byte order of the host (register HOST_ENDIANNESS).
    pub struct HostEndianness(0x10) {
        /// Byte order: 0 is little endian, 0x80 is big endian.
        he: 0x00 u8,
    }

    /// Port state (register PAOS).
    pub struct Paos(0x10) {
        swid: 0x00[31:24],
        local_port: 0x00[23:16],
        /// Administrative status: 1 up, 2 down, 3 up once, 4 disabled.
        admin_status: 0x00[11:8],
        /// Operational status: 1 up, 2 down.
        oper_status: 0x00[3:0],
        /// Enable bit of a write: if set, admin_status takes effect.
        ase: 0x04[31],
        ee: 0x04[30],
        /// Event generation mode.
        e: 0x04[1:0],
    }

    /// Temperature of a sensor, in units of 0.125 degrees Celsius, signed (register MTMP; `mlx5_ifc_mtmp_reg_bits` in
    /// Linux include/linux/mlx5/mlx5_ifc.h).
    pub struct Mtmp(0x20) {
        /// Index of the sensor; 0 is the card's chip.
        sensor_index: 0x00[11:0],
        temperature: 0x04[15:0],
        /// Enable bit: if set, the device records the maximum temperature.
        mte: 0x08[31],
        /// Reset bit: a write with this bit starts a new maximum.
        mtr: 0x08[30],
        /// Maximum temperature since the last reset of the maximum.
        max_temperature: 0x08[15:0],
        /// Enables events at the temperature thresholds.
        tee: 0x0c[31:30],
        temperature_threshold_hi: 0x0c[15:0],
        temperature_threshold_lo: 0x10[15:0],
        /// First four of the eight characters of the sensor's name.
        sensor_name_hi: 0x18 u32,
        sensor_name_lo: 0x1c u32,
    }

    /// Port MTU (register PMTU).
    pub struct Pmtu(0x10) {
        local_port: 0x00[23:16],
        max_mtu: 0x04[31:16],
        /// MTU that a write sets.
        admin_mtu: 0x08[31:16],
        oper_mtu: 0x0c[31:16],
    }

    /// Mapping of a port's lanes to modules (register PMLP). A lane's mapping has the module in 7:0, the transmit lane
    /// in 19:16 and the receive lane in 27:24.
    pub struct Pmlp(0x40) {
        rxtx: 0x00[31],
        local_port: 0x00[23:16],
        /// Number of lanes.
        width: 0x00[7:0],
        lane0_module_mapping: 0x04 u32,
        lane1_module_mapping: 0x08 u32,
        lane2_module_mapping: 0x0c u32,
        lane3_module_mapping: 0x10 u32,
    }

    /// EEPROM of a module (register MCIA).
    pub struct Mcia(0x40) {
        l: 0x00[31],
        module: 0x00[23:16],
        /// 0 done, 1 no EEPROM, 6 no such page.
        status: 0x00[7:0],
        i2c_device_address: 0x04[31:24],
        page_number: 0x04[23:16],
        device_address: 0x04[15:0],
        /// Number of bytes.
        size: 0x08[15:0],
        /// `dword_0` to `dword_11`.
        data: 0x10 [u8; 48],
    }

    /// Link type and speed (register PTYS).
    pub struct Ptys(0x40) {
        an_disable_admin: 0x00[30],
        an_disable_cap: 0x00[29],
        local_port: 0x00[23:16],
        plane_ind: 0x00[7:4],
        /// 1 InfiniBand, 4 Ethernet.
        proto_mask: 0x00[2:0],
        an_status: 0x04[31:28],
        data_rate_oper: 0x04[15:0],
        /// Bit per rate and number of lanes: bit 4 is 10G, 5 40G, 6 25G, 7/8 50G, 9..11 100G, 12/13 200G, 15/16 400G,
        /// 19 800G. Valid if PCAM reports ptys_extended_ethernet.
        ext_eth_proto_capability: 0x08 u32,
        /// Bit per link mode: bits 12..14 are 10G, 6/7/15/16 40G, 27..29 25G, 18/30/31 50G, 20..23 100G.
        eth_proto_capability: 0x0c u32,
        ib_link_width_capability: 0x10[31:16],
        ib_proto_capability: 0x10[15:0],
        ext_eth_proto_admin: 0x14 u32,
        eth_proto_admin: 0x18 u32,
        ib_link_width_admin: 0x1c[31:16],
        ib_proto_admin: 0x1c[15:0],
        ext_eth_proto_oper: 0x20 u32,
        eth_proto_oper: 0x24 u32,
        /// Bit per width: bit 0 is 1x, 1 2x, 2 4x, 3 8x, 4 12x.
        ib_link_width_oper: 0x28[31:16],
        ib_proto_oper: 0x28[15:0],
        connector_type: 0x2c[3:0],
        eth_proto_lp_advertise: 0x30 u32,
    }

    /// Port counters (register PPCNT).
    pub struct Ppcnt(0x100) {
        swid: 0x00[31:24],
        local_port: 0x00[23:16],
        pnat: 0x00[15:14],
        /// Counter group: 0 IEEE 802.3, 1 RFC2863, 2 RFC2819, 3 RFC3635, 5 Ethernet extended, 0x10 per priority, 0x11
        /// per traffic class, 0x12 physical, 0x20 IB port, 0x21 IB extended.
        grp: 0x00[5:0],
        clr: 0x04[31],
        plane_ind: 0x04[11:8],
        prio_tc: 0x04[4:0],
        counter_set: 0x08 [u8; 0xf8],
    }

    /// Capability mask of port registers and features (register PCAM).
    pub struct Pcam(0x50) {
        feature_group: 0x00[23:16],
        access_reg_group: 0x00[7:0],
        regs_5000_to_507f: 0x08 [u8; 0x10],
        enhanced_features: 0x28 [u8; 0x10],
    }

    /// Capability mask of management registers and features (register MCAM).
    pub struct Mcam(0x48) {
        feature_group: 0x00[23:16],
        access_reg_group: 0x00[7:0],
        /// Set: register MCQI (0x9061) exists.
        mcqi: 0x08[1],
        /// Set: register MCQS (0x9060) exists.
        mcqs: 0x08[0],
        regs_95_to_0: 0x0c [u8; 0x0c],
        features: 0x28 [u8; 0x10],
    }

    /// State of a firmware component (register MCQS).
    pub struct Mcqs(0x10) {
        /// True if no component has a larger index.
        last_index_flag: 0x00[31],
        fw_device: 0x00[23:16],
        component_index: 0x00[15:0],
        /// Kind of the component: 1 boot image.
        identifier: 0x04[15:0],
        /// 0 not present, 1 present, 2 in use.
        component_status: 0x08[8:4],
        /// 0 idle.
        component_update_state: 0x08[3:0],
        last_update_state_changer_type: 0x0c[31:28],
        last_update_state_changer_host_id: 0x0c[27:24],
    }

    /// Information about a firmware component (register MCQI). The layout is that of `info_type` 1, the version.
    pub struct Mcqi(0x38) {
        /// True to query the version that the next reset activates, false to query the running version.
        read_pending_component: 0x00[31],
        component_index: 0x00[15:0],
        /// 0 capabilities, 1 version.
        info_type: 0x08[4:0],
        info_size: 0x0c u32,
        offset: 0x10 u32,
        data_size: 0x14[15:0],
        build_time_valid: 0x18[28],
        version_string_length: 0x18[7:0],
        /// Major 31:24, minor 23:16, sub-minor 15:0.
        version: 0x1c u32,
        build_time: 0x20 u64,
    }

    /// A time limit: a value and its unit.
    pub struct DefaultTimeout(0x04) {
        /// Unit of `to_value`: 0 milliseconds, 1 seconds, 2 minutes, 3 hours.
        to_multiplier: 0x00[31:29],
        /// Number of units.
        to_value: 0x00[19:0],
    }

    /// Default timeouts (register DTOR).
    pub struct Dtor(0x40) {
        pcie_toggle_to: 0x04 DefaultTimeout,
        health_poll_to: 0x14 DefaultTimeout,
        full_crdump_to: 0x18 DefaultTimeout,
        fw_reset_to: 0x1c DefaultTimeout,
        flush_on_err_to: 0x20 DefaultTimeout,
        pci_sync_update_to: 0x24 DefaultTimeout,
        tear_down_to: 0x28 DefaultTimeout,
        fsm_reactivate_to: 0x2c DefaultTimeout,
        reclaim_pages_to: 0x30 DefaultTimeout,
        reclaim_vfs_pages_to: 0x34 DefaultTimeout,
        reset_unload_to: 0x38 DefaultTimeout,
    }
}

impl Mcia {
    /// Number of EEPROM bytes in the register.
    pub const DATA: usize = 48;
}
