//! Traffic classes of a port (IEEE 802.1Qaz): which priorities a class has (register QTCT), and how the classes share
//! the port (register QETCR). As Linux has them (`mlx5_ifc_qtct_reg_bits`, `mlx5_ifc_qetc_reg_bits`).

use layout::{codes, layout};

/// Traffic classes of a port.
pub const TRAFFIC_CLASSES: usize = 8;

codes! {
    /// Unit of a class's largest rate (Linux `MLX5_BW_NO_LIMIT`, `MLX5_100_MBPS_UNIT`, `MLX5_GBPS_UNIT`).
    pub struct RateUnit(u8) {
        /// There is no limit.
        NONE = 0,
        /// 100 Mb/s.
        MBPS_100 = 3,
        /// 1 Gb/s.
        GBPS = 4,
    }
}

layout! {
    /// The traffic class of a priority (register QTCT).
    pub struct Qtct(0x08) {
        port_number: 0x00[23:16],
        prio: 0x00[2:0],
        tclass: 0x04[2:0],
    }

    /// A traffic class (in register QETCR).
    pub struct EtsTcnConfig(0x08) {
        /// The group is to be written.
        g: 0x00[31],
        /// The share is to be written.
        b: 0x00[30],
        /// The largest rate is to be written.
        r: 0x00[29],
        /// The group with the highest number sends first.
        group: 0x00[19:16],
        /// Percent.
        bw_allocation: 0x00[6:0],
        max_bw_units: 0x04(RateUnit[19:16]),
        max_bw_value: 0x04[7:0],
    }

    /// The whole port (in register QETCR).
    pub struct EtsGlobalConfig(0x08) {
        r: 0x00[29],
        max_bw_units: 0x04(RateUnit[19:16]),
        max_bw_value: 0x04[7:0],
    }

    /// Groups, shares and limits of traffic classes (register QETCR).
    pub struct Qetcr(0x50) {
        port_number: 0x00[23:16],
        tc_configuration: 0x08 [u8; 0x40],
        global_configuration: 0x48 EtsGlobalConfig,
    }
}

impl Qetcr {
    /// A traffic class below [`TRAFFIC_CLASSES`].
    #[must_use]
    pub fn class(&self, number: usize) -> EtsTcnConfig {
        let (classes, _) = self.tc_configuration().as_chunks();
        classes
            .get(number)
            .copied()
            .map_or_else(EtsTcnConfig::new, EtsTcnConfig::from_array)
    }

    /// Sets it.
    pub fn set_class(&mut self, number: usize, class: &EtsTcnConfig) -> &mut Self {
        let mut all = *self.tc_configuration();
        let (classes, _) = all.as_chunks_mut();
        if let Some(bytes) = classes.get_mut(number) {
            *bytes = *class.as_array();
        }
        self.set_tc_configuration(&all)
    }
}
