//! Options for opening an adapter, as values. A [`name`](crate::name) gives the same options as text.

use std::net::IpAddr;
use std::path::PathBuf;

use dat_core::IaConfig;
use dat_mlx::Participation;
use hw_mlx::{Address, HcaConfig};

/// Properties of a simulated function that is created by opening it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Simulated {
    /// MAC of the function. The default depends on the function's number in the fabric. For a virtual function this is
    /// the MAC that its administrator assigns; if none is assigned, the driver chooses one.
    pub mac: Option<[u8; 6]>,
    /// Device type: the name of a generation, or the path of a profile file.
    pub profile: Option<String>,
    /// Path of the wire to another process. Without one the function is on the fabric of this process.
    pub link: Option<PathBuf>,
    /// File for a capture of the function's wire, see [`OpenOptions::pcap`].
    pub pcap: Option<PathBuf>,
    /// True for virtual time, which advances only when a thread waits; false for real time.
    pub virtual_time: bool,
}

/// Names of the inherited descriptors by which a PCI function is opened (`LISTEN_FDS` and `LISTEN_FDNAMES`,
/// sd_listen_fds(3)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandedIn {
    /// Descriptor of `/dev/vfio/N`, N being the number of the function's IOMMU group.
    pub group: String,
    /// Descriptor of `/dev/vfio/vfio`, for this function alone. `None`: the process opens the file itself.
    pub container: Option<String>,
}

/// Options for opening an adapter.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Behaviour of the adapter.
    pub ia: IaConfig,
    /// Addresses besides the link-local one, and settings for bringing up the function.
    pub hca: HcaConfig,
    /// Whether the adapter uses ARP and neighbour discovery, see [`OpenOptions::network`].
    pub network: Participation,
    /// Settings for `sim:` names.
    pub simulated: Simulated,
    /// For PCI addresses: inherited descriptors, see [`OpenOptions::vfio_group`].
    pub handed_in: Option<HandedIn>,
    /// Name of the memory shared with other adapters, see [`OpenOptions::memory`].
    pub memory: Option<String>,
    /// Path of the control socket, see [`OpenOptions::control`].
    pub control: Option<PathBuf>,
    /// Folder for dumps of the flight recorder, see [`OpenOptions::recorder_folder`].
    pub recorder_folder: Option<PathBuf>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            ia: IaConfig::default(),
            hca: HcaConfig::new(),
            network: Participation::IfPossible,
            simulated: Simulated::default(),
            handed_in: None,
            memory: None,
            control: None,
            recorder_folder: None,
        }
    }
}

impl OpenOptions {
    /// Adds an address with its prefix, gateway and VLAN.
    #[must_use]
    pub fn interface(mut self, address: Address) -> Self {
        self.hca.addresses.push(address);
        self
    }

    /// Sets whether the adapter uses ARP and neighbour discovery. By default it does if the
    /// device allows it. With `true`, an adapter that cannot use them does not open.
    #[must_use]
    pub fn network(mut self, on: bool) -> Self {
        self.network = if on {
            Participation::Required
        } else {
            Participation::Off
        };
        self
    }

    /// Adds an address. All addresses of its family count as on its link.
    #[must_use]
    pub fn address(mut self, address: IpAddr) -> Self {
        self.hca.addresses.push(address.into());
        self
    }

    /// Adds the MAC of a peer. The adapter then does not ask for this MAC.
    #[must_use]
    pub fn neighbour(mut self, address: IpAddr, mac: [u8; 6]) -> Self {
        self.hca.neighbours.push((address, mac));
        self
    }

    /// Requests from the device the resources of this many endpoints, of all instances together. More endpoints take
    /// more firmware pages, so by default nothing is requested. [`IaAttr::max_eps`](dat_core::IaAttr) is the resulting
    /// maximum. Returns `None` if the number is 0 or larger than 2^24 - 2.
    #[must_use]
    pub fn endpoints(mut self, number: u32) -> Option<Self> {
        /// QP 0 and QP 1 are not available to endpoints.
        const OTHERS: u32 = 2;
        const MOST: u32 = (1 << 24) - OTHERS;
        if !(1..=MOST).contains(&number) {
            return None;
        }
        self.hca.log_max_qp = Some((number + OTHERS).next_power_of_two().ilog2());
        Some(self)
    }

    /// Uses this many interrupt vectors for completions, if the device and the machine have them. With one vector for
    /// each instance, no instance is woken by the completions of another ([`HcaConfig::completion_vectors`]). Returns
    /// `None` for 0, and for more than a function can have.
    #[must_use]
    pub fn vectors(mut self, number: u16) -> Option<Self> {
        /// MSI-X allows 2048 (PCI Express Base Specification, "Message Control for MSI-X"); one is not for
        /// completions.
        const MOST: u16 = 2047;
        if number == 0 || number > MOST {
            return None;
        }
        self.hca.completion_vectors = number;
        Some(self)
    }

    /// Opens a PCI function by an inherited descriptor of its IOMMU group file. The parent process opened the file
    /// and passed it on under this name (`LISTEN_FDS`, sd_listen_fds(3)), so that a program without privileges can
    /// drive the function. The descriptor stays open, and the adapter can be closed and opened again.
    #[must_use]
    pub fn vfio_group(mut self, name: impl Into<String>) -> Self {
        self.handed_in = Some(HandedIn {
            group: name.into(),
            container: None,
        });
        self
    }

    /// Shares memory with the other adapters of this process that were opened with the same name. Memory of one can
    /// be registered with each, and is pinned and mapped once for all of them. Under VFIO they share a container:
    /// each function can reach by DMA everything mapped for one of them. Peers' access depends on keys, which each
    /// adapter has for itself. All of them must be of one kind: the kernel's VFIO, vfio-user, or simulated.
    #[must_use]
    pub fn memory(mut self, name: impl Into<String>) -> Self {
        self.memory = Some(name.into());
        self
    }

    /// Opens a control socket at this path for as long as the adapter is open. This needs feature `control`; without
    /// it the open fails. `{pid}` in the path is replaced by the process ID. The environment variable `DAT_CONTROL`
    /// does the same for every adapter opened without this option. Only the user of the process and root may connect.
    /// A client can turn on latency measurement, and can change nothing else.
    #[must_use]
    pub fn control(mut self, path: impl Into<PathBuf>) -> Self {
        self.control = Some(path.into());
        self
    }

    /// Sets whether the first instance records its activity ([`recorder_start`](crate::Ia::recorder_start),
    /// [`recorder_dump`](crate::Ia::recorder_dump)). If the environment variable `DAT_RECORDER` is `1` or names a
    /// folder, the instance records even if `on` is false.
    #[must_use]
    pub const fn recorder(mut self, on: bool) -> Self {
        self.ia.recorder = on;
        self
    }

    /// Makes every instance record. A dump is written to this folder when a connection breaks and when the thread of
    /// an instance panics: as text, and as a pcapng file for `datctl decode` and Wireshark. The last 16 dumps of a
    /// process are kept. This needs feature `control`. A relative path is resolved when the adapter is opened. The
    /// environment variable `DAT_RECORDER` does the same for every adapter opened without this option, if its value
    /// contains a `/`.
    #[must_use]
    pub fn recorder_folder(mut self, path: impl Into<PathBuf>) -> Self {
        self.ia.recorder = true;
        self.recorder_folder = Some(path.into());
        self
    }

    /// Gives a simulated function this MAC.
    #[must_use]
    pub const fn mac(mut self, mac: [u8; 6]) -> Self {
        self.simulated.mac = Some(mac);
        self
    }

    /// Sets the device type of a simulated function: a generation's name, or the path of a profile file.
    #[must_use]
    pub fn profile(mut self, name: impl Into<String>) -> Self {
        self.simulated.profile = Some(name.into());
        self
    }

    /// Sets the MTU of the port, in bytes of the IP packet. RDMA packets with 4096 bytes of data need 4192.
    #[must_use]
    pub const fn mtu(mut self, bytes: u16) -> Self {
        self.hca.port_mtu = Some(bytes);
        self
    }

    /// Sets whether the time of a simulated function is virtual. Virtual time advances only when a thread waits, and
    /// then at once; this is for tests that run both sides in one thread. The default is real time, as on hardware.
    /// Functions with virtual time are on a fabric of their own: none of them is linked to one with real time.
    #[must_use]
    pub const fn virtual_time(mut self, on: bool) -> Self {
        self.simulated.virtual_time = on;
        self
    }

    /// Captures the wire of a simulated function in this file, as pcapng for Wireshark. The capture has every frame
    /// sent by the function or by a function linked with it in this process, and every frame received from another
    /// process. The file is truncated, unless this process is writing to it already. Two unlinked adapters cannot use
    /// the same file.
    #[must_use]
    pub fn pcap(mut self, path: impl Into<PathBuf>) -> Self {
        self.simulated.pcap = Some(path.into());
        self
    }

    /// Connects a simulated function by a wire to the function of another process that names the same path.
    #[must_use]
    pub fn link(mut self, path: impl Into<PathBuf>) -> Self {
        self.simulated.link = Some(path.into());
        self
    }
}
