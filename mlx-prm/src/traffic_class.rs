//! Traffic classes of a port (IEEE 802.1Qaz): the class of each priority (register QTCT), and the division of the
//! port's bandwidth among the classes (register QETCR). The layouts are those of Linux (`mlx5_ifc_qtct_reg_bits`,
//! `mlx5_ifc_qetc_reg_bits`).

use layout::{codes, layout};

/// Number of traffic classes of a port.
pub const TRAFFIC_CLASSES: usize = 8;

codes! {
    /// Unit of a traffic class's maximum rate (Linux `MLX5_BW_NO_LIMIT`, `MLX5_100_MBPS_UNIT`, `MLX5_GBPS_UNIT`).
    pub struct RateUnit(u8) {
        /// The class has no maximum rate.
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

    /// Settings of a traffic class (in register QETCR).
    pub struct EtsTcnConfig(0x08) {
        /// Set: a write changes the group.
        g: 0x00[31],
        /// Set: a write changes the bandwidth share.
        b: 0x00[30],
        /// Set: a write changes the maximum rate.
        r: 0x00[29],
        /// Group of the class. The group with the highest number has strict priority over the others.
        group: 0x00[19:16],
        /// Share of the bandwidth within the group, in percent.
        bw_allocation: 0x00[6:0],
        max_bw_units: 0x04(RateUnit[19:16]),
        max_bw_value: 0x04[7:0],
    }

    /// Settings of the whole port (in register QETCR).
    pub struct EtsGlobalConfig(0x08) {
        r: 0x00[29],
        max_bw_units: 0x04(RateUnit[19:16]),
        max_bw_value: 0x04[7:0],
    }

    /// Groups, bandwidth shares and maximum rates of traffic classes (register QETCR).
    pub struct Qetcr(0x50) {
        port_number: 0x00[23:16],
        tc_configuration: 0x08 [u8; 0x40],
        global_configuration: 0x48 EtsGlobalConfig,
    }
}

impl Qetcr {
    /// Returns the settings of a traffic class below [`TRAFFIC_CLASSES`]; zeros for other numbers.
    #[must_use]
    pub fn class(&self, number: usize) -> EtsTcnConfig {
        let (classes, _) = self.tc_configuration().as_chunks();
        classes
            .get(number)
            .copied()
            .map_or_else(EtsTcnConfig::new, EtsTcnConfig::from_array)
    }

    /// Sets the settings of a traffic class. Ignores a class that is not below `TRAFFIC_CLASSES`.
    pub fn set_class(&mut self, number: usize, class: &EtsTcnConfig) -> &mut Self {
        let mut all = *self.tc_configuration();
        let (classes, _) = all.as_chunks_mut();
        if let Some(bytes) = classes.get_mut(number) {
            *bytes = *class.as_array();
        }
        self.set_tc_configuration(&all)
    }
}
