//! [`HcaConfig`]: what whoever opens a function may choose.

use std::net::IpAddr;
use std::time::Duration;

use dat_core::address::Address;

/// How to open a function. Start from [`HcaConfig::new`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HcaConfig {
    /// Our addresses besides the link-local one made of the MAC, which is always there at index 0. That one is named
    /// here only if it is in a VLAN.
    pub addresses: Vec<Address>,
    /// MAC addresses of peers, which nothing that is heard on the network changes.
    pub neighbours: Vec<(IpAddr, [u8; 6])>,
    /// Take part in the network: be found by others and find them, by ARP and neighbour discovery, and answer `ping`.
    /// It takes an Ethernet port, of which a function that has none does without. Otherwise peers have to be among the
    /// neighbours, or have an address made of their MAC, and find us in their own tables.
    pub network: bool,
    /// How long a command may take.
    pub command_timeout: Duration,
    /// How long the firmware may boot.
    pub initializing_timeout: Duration,
    /// Command signatures checked by the device and by us (`cmdif_checksum`). They are always written.
    pub command_checksums: bool,
    /// The MAC to use; `None` for the vport's own, or a random one where it has none, as virtual functions
    /// often do. Where the e-switch checks for spoofing, only the vport's own gets through.
    pub mac: Option<[u8; 6]>,
    /// The port's MTU in bytes as IP counts it; `None` leaves it as it is. RoCE uses 4096-byte packets from
    /// 4192 on.
    pub port_mtu: Option<u16>,
    /// Whether queue pairs of this function can reach each other.
    pub loopback: bool,
    /// log2 of the queue pairs to ask for; `None` leaves what the device has. More cost more firmware pages.
    pub log_max_qp: Option<u32>,
    /// Pages (4 KiB) the firmware may hold at once; `None` is 4 GiB. Too few to come up is an error, more
    /// asked for later is refused.
    pub firmware_pages: Option<usize>,
    /// Identity of the driver instance, for devices that want one (`sw_owner_id`); `None` draws one.
    pub owner_id: Option<[u8; 16]>,
    /// Interrupt vectors for completions, of which instances take turns to have one; there is one more for what the
    /// function says of itself. With as many as there are instances nobody is woken by another's completions. Each
    /// costs an eventfd and an interrupt of the machine; where the device or the machine has fewer, instances share
    /// them. 0 is taken for 1.
    pub completion_vectors: u16,
    /// Seed of what is drawn at random (identifiers, packet sequence numbers, a MAC); `None` draws that too.
    /// Given in runs that are to be repeatable.
    pub seed: Option<u64>,
}

impl HcaConfig {
    /// What suits most: the time limits of the kernel driver, everything else as the device has it.
    pub fn new() -> Self {
        Self {
            addresses: Vec::new(),
            neighbours: Vec::new(),
            network: false,
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
