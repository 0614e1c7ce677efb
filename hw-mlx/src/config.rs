//! [`HcaConfig`]: settings for opening a function.

use std::net::IpAddr;
use std::time::Duration;

use rdma_types::Address;

/// How to open a function. Start from [`HcaConfig::new`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HcaConfig {
    /// Addresses besides the link-local one that is made of the MAC. The link-local one is always there, at index 0;
    /// list it here only to put it into a VLAN.
    pub addresses: Vec<Address>,
    /// MAC addresses of peers. Nothing that is received from the network changes them.
    pub neighbours: Vec<(IpAddr, [u8; 6])>,
    /// Time limit of a command.
    pub command_timeout: Duration,
    /// Time limit for the firmware to boot.
    pub initializing_timeout: Duration,
    /// Have the device check the signatures of commands, and check those of its answers (`cmdif_checksum`). Signatures
    /// are always written.
    pub command_checksums: bool,
    /// The MAC to use. `None`: that of the vport, or a random one if it has none, as virtual functions often do. If the
    /// e-switch checks for spoofing, only the MAC of the vport passes.
    pub mac: Option<[u8; 6]>,
    /// The port's MTU in bytes as IP counts it; `None` leaves it as it is. RoCE uses 4096-byte packets from
    /// 4192 on.
    pub port_mtu: Option<u16>,
    /// True if queue pairs of this function can reach each other.
    pub loopback: bool,
    /// log2 of the queue pairs to ask for; `None` keeps the device's setting. More queue pairs take more firmware
    /// pages.
    pub log_max_qp: Option<u32>,
    /// Pages (4 KiB) the firmware may hold at once; `None` is 4 GiB. If they are too few for bring-up the adapter does
    /// not open; later requests for more are refused.
    pub firmware_pages: Option<usize>,
    /// Identity of the driver instance, for devices that ask for one (`sw_owner_id`); `None` draws one.
    pub owner_id: Option<[u8; 16]>,
    /// Interrupt vectors for completions, assigned to instances in turn; one more is for the events of the function.
    /// With as many vectors as instances, no instance is woken by the completions of another. Each costs an eventfd
    /// and an interrupt of the machine. If the device or the machine has fewer, instances share them. 0 means 1.
    pub completion_vectors: u16,
    /// Seed of all random numbers (identifiers, packet sequence numbers, a MAC). `None` draws the seed. Give one for
    /// runs that have to be repeatable.
    pub seed: Option<u64>,
}

impl HcaConfig {
    /// The usual settings: the time limits of the kernel driver, everything else as the device has it.
    pub fn new() -> Self {
        Self {
            addresses: Vec::new(),
            neighbours: Vec::new(),
            command_timeout: Duration::from_secs(60),
            initializing_timeout: Duration::from_secs(120),
            command_checksums: false,
            mac: None,
            port_mtu: None,
            loopback: true,
            log_max_qp: None,
            firmware_pages: None,
            owner_id: None,
            completion_vectors: 1,
            seed: None,
        }
    }
}

impl Default for HcaConfig {
    fn default() -> Self {
        Self::new()
    }
}
