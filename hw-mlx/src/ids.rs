//! The PCI functions that this driver supports.
//!
//! ConnectX-4 and later have the command interface that this driver uses. Device ids are as in Linux
//! (`drivers/net/ethernet/mellanox/mlx5/core/main.c`, the PCI table), where virtual functions have ids of their own
//! up to ConnectX-6 and one common id after that.

/// PCI vendor id of Mellanox, now NVIDIA.
pub const VENDOR: u16 = 0x15b3;

/// Returns the product name for a device id; `None` for ids that this driver does not know.
#[must_use]
pub const fn product(device_id: u16) -> Option<&'static str> {
    Some(match device_id {
        0x1013 => "ConnectX-4",
        0x1014 => "ConnectX-4 VF",
        0x1015 => "ConnectX-4 Lx",
        0x1016 => "ConnectX-4 Lx VF",
        0x1017 => "ConnectX-5",
        0x1018 => "ConnectX-5 VF",
        0x1019 => "ConnectX-5 Ex",
        0x101a => "ConnectX-5 Ex VF",
        0x101b => "ConnectX-6",
        0x101c => "ConnectX-6 VF",
        0x101d => "ConnectX-6 Dx",
        0x101e => "ConnectX family VF",
        0x101f => "ConnectX-6 Lx",
        0x1021 => "ConnectX-7",
        0x1023 => "ConnectX-8",
        0xa2d2 => "BlueField ConnectX-5",
        0xa2d3 => "BlueField ConnectX-5 VF",
        0xa2d6 => "BlueField-2 ConnectX-6 Dx",
        0xa2dc => "BlueField-3 ConnectX-7",
        _ => return None,
    })
}

/// Returns the device id of a physical function's virtual functions; `None` if the given id is unknown or that of a
/// virtual function.
#[must_use]
pub const fn virtual_of(device_id: u16) -> Option<u16> {
    match device_id {
        // In each of these generations virtual functions have the physical function's id plus one.
        0x1013 | 0x1015 | 0x1017 | 0x1019 | 0x101b | 0xa2d2 => Some(device_id + 1),
        // In later generations all virtual functions have one common id.
        0x101d | 0x101f | 0x1021 | 0x1023 | 0xa2d6 | 0xa2dc => Some(0x101e),
        _ => None,
    }
}

/// Returns true if the function is a virtual one. Works inside a virtual machine too, where no physical function is
/// visible.
#[must_use]
pub const fn is_virtual(device_id: u16) -> bool {
    matches!(
        device_id,
        0x1014 | 0x1016 | 0x1018 | 0x101a | 0x101c | 0x101e | 0xa2d3
    )
}
