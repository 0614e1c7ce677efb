//! What a virtual function is, next to the physical one of its card.

use crate::pages::PageProfile;
use crate::profile::Profile;

/// Interrupt vectors of a virtual function unless the card's firmware is told otherwise: asynchronous events, and
/// eleven for completions (lspci of ConnectX-5 to -7).
const VECTORS: u16 = 12;
/// Length of a virtual function's BAR (lspci of ConnectX-4 Lx and -7).
const BAR_BYTES: usize = 1 << 20;

impl Profile {
    /// The virtual function number `index` (from 0) of a card whose physical function is this.
    ///
    /// It has a device number of its own, which is all that Linux tells the two apart by (`main.c`
    /// `mlx5_core_pci_table`); it manages nothing; its memory the physical function's driver gives. HOST_ENDIANNESS it
    /// may write: rdma-core's `mlx5_vfio_set_hca_ctrl` does on any function, and gives up where that is refused. PAOS and
    /// PMTU it may write without effect: complete logs of ConnectX-5 virtual functions show no refused register, and
    /// mlx5e writes both on every function (`en_main.c` `mlx5e_modify_admin_state`, `mlx5e_set_mtu`).
    #[must_use]
    pub fn virtual_function(&self, index: u16) -> Self {
        let mut profile = Self {
            name: format!("{}/vf{index}", self.name),
            device_id: virtual_device(self.device_id),
            msix_vectors: VECTORS.min(self.msix_vectors),
            bar_bytes: BAR_BYTES,
            pages: PageProfile {
                verify: self.pages.verify,
                ..PageProfile::NONE
            },
            ..self.clone()
        };
        for page in [&mut profile.general.max, &mut profile.general.current] {
            page.set_vport_group_manager(false)
                .set_eswitch_manager(false)
                .set_uplink_follow(false)
                .set_nic_vport_change_event(false)
                .set_log_max_l2_table(0)
                .set_uar_sz(0);
        }
        profile
    }
}

/// The device number of a physical function's virtual ones (Linux `main.c` `mlx5_core_pci_table`).
const fn virtual_device(physical: u16) -> u16 {
    match physical {
        // ConnectX-4, -4 Lx, -5, -5 Ex, -6: the next number.
        0x1013 | 0x1015 | 0x1017 | 0x1019 | 0x101b => physical + 1,
        // BlueField.
        0xa2d2 => 0xa2d3,
        // One for all of ConnectX-6 Dx, -6 Lx, -7, BlueField-2 and what came later.
        _ => 0x101e,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux `main.c` `mlx5_core_pci_table`, the rows marked MLX5_PCI_DEV_IS_VF.
    #[test]
    fn each_generation_has_its_virtual_function() {
        let rows = [
            (0x1013, 0x1014),
            (0x1015, 0x1016),
            (0x1017, 0x1018),
            (0x1019, 0x101a),
            (0x101b, 0x101c),
            (0x101d, 0x101e),
            (0x101f, 0x101e),
            (0x1021, 0x101e),
            (0xa2d2, 0xa2d3),
            (0xa2d6, 0x101e),
        ];
        for (physical, expected) in rows {
            assert_eq!(virtual_device(physical), expected, "{physical:#x}");
        }
    }
}
