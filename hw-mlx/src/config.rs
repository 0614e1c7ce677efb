//! [`HcaConfig`]: settings for opening a function.

use std::net::IpAddr;
use std::time::Duration;

use rdma_types::Address;

/// Settings for opening a function. Start from [`HcaConfig::new`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HcaConfig {
    /// Addresses besides the link-local one, which is derived from the MAC and always has index 0. List the link-local
    /// address here only to assign it to a VLAN.
    pub addresses: Vec<Address>,
    /// MAC addresses of peers. Frames received from the network never change these entries.
    pub neighbours: Vec<(IpAddr, [u8; 6])>,
    /// Time limit of a command. If the device reports a longer limit, that one is used.
    pub command_timeout: Duration,
    /// Time limit for the firmware to boot. If the device reports a longer limit, that one is used.
    pub initializing_timeout: Duration,
    /// True if the device checks the signatures of commands and signs its answers, which are then checked
    /// (`cmdif_checksum`). Commands are always signed.
    pub command_checksums: bool,
    /// MAC to use. `None`: that of the vport, or a random one if the vport has none, as is common for virtual
    /// functions. If the e-switch checks for spoofing, only the MAC of the vport passes.
    pub mac: Option<[u8; 6]>,
    /// MTU of the port in bytes as IP counts it; `None` keeps the present MTU. RoCE uses 4096-byte packets if the MTU
    /// is at least 4192.
    pub port_mtu: Option<u16>,
    /// True if queue pairs of this function can exchange messages with each other.
    pub loopback: bool,
    /// log2 of the number of queue pairs to request; `None` keeps the device's setting. More queue pairs take more
    /// firmware pages.
    pub log_max_qp: Option<u32>,
    /// Maximum number of 4 KiB pages that the firmware may hold; `None` is 4 GiB. If they do not suffice for bring-up,
    /// the function does not open; later requests for more are refused.
    pub firmware_pages: Option<usize>,
    /// Identity of the driver instance, for devices that need one (`sw_owner_id`); `None` chooses a random one.
    pub owner_id: Option<[u8; 16]>,
    /// Number of interrupt vectors for completions; 0 means 1. A new instance gets the vector that the fewest instances
    /// use. The function's own events have one more vector. With as many vectors as instances, no instance is woken by
    /// the completions of another. Each vector costs an eventfd and an interrupt of the machine. If the device or the
    /// machine has fewer vectors, several instances use the same one.
    pub completion_vectors: u16,
    /// Seed of all random numbers (identifiers, packet sequence numbers, a MAC). `None` chooses a random seed. Set a
    /// seed for runs that have to be repeatable.
    pub seed: Option<u64>,
}

impl HcaConfig {
    /// Returns the default settings: the time limits of the kernel driver, and otherwise the device's own settings.
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
