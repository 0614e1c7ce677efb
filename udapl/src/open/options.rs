//! How an adapter is opened: what [`name`](crate::name)s say as text, as a value.

use std::net::IpAddr;
use std::path::PathBuf;

use dat_core::IaConfig;
use dat_mlx::Participation;
use hw_mlx::{Address, HcaConfig};

/// How a simulated function is made, if it is not there yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Simulated {
    /// Its MAC. Without one it gets the MAC of its place in the fabric. For a virtual function this is the MAC that its
    /// administrator gives it; without one the driver invents one.
    pub mac: Option<[u8; 6]>,
    /// The kind of device: the name of a generation, or the path of a profile. Without one it is the default.
    pub profile: Option<String>,
    /// The path at which the wire to another process is found. Without one the function is on the fabric of this
    /// process.
    pub link: Option<PathBuf>,
    /// The file that what passes on its wire is written to, see [`OpenOptions::pcap`].
    pub pcap: Option<PathBuf>,
    /// Its time moves only when somebody waits; otherwise it is the machine's.
    pub virtual_time: bool,
}

/// The names of the files by which a PCI function is reached, where they were opened for the process and handed in
/// (`LISTEN_FDS` and `LISTEN_FDNAMES`, sd_listen_fds(3)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandedIn {
    /// `/dev/vfio/N`, N being the number of the function's IOMMU group.
    pub group: String,
    /// `/dev/vfio/vfio`, for this function alone. `None`: the process opens it.
    pub container: Option<String>,
}

/// How to open an adapter.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Behaviour of the adapter.
    pub ia: IaConfig,
    /// Addresses besides the link-local one, and how the function is brought up.
    pub hca: HcaConfig,
    /// Whether the adapter takes part in the network, see [`OpenOptions::network`].
    pub network: Participation,
    /// For `sim:` names.
    pub simulated: Simulated,
    /// For PCI addresses: files that were handed in, see [`OpenOptions::vfio_group`].
    pub handed_in: Option<HandedIn>,
    /// The name of the memory that the adapter shares with others, see [`OpenOptions::memory`].
    pub memory: Option<String>,
    /// Where the adapter can be looked at from outside, see [`OpenOptions::control`].
    pub control: Option<PathBuf>,
    /// Where what was recorded is kept when something breaks, see [`OpenOptions::recorder_folder`].
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

    /// Whether the adapter takes part in the network. Unless this is called, it does if the
    /// device lets it; `true` demands it, and an adapter that cannot does not open.
    #[must_use]
    pub fn network(mut self, on: bool) -> Self {
        self.network = if on {
            Participation::Required
        } else {
            Participation::Off
        };
        self
    }

    /// Adds an address. All addresses of its family are taken to be on its link.
    #[must_use]
    pub fn address(mut self, address: IpAddr) -> Self {
        self.hca.addresses.push(address.into());
        self
    }

    /// Adds the MAC of a peer, which then is not asked for.
    #[must_use]
    pub fn neighbour(mut self, address: IpAddr, mac: [u8; 6]) -> Self {
        self.hca.neighbours.push((address, mac));
        self
    }

    /// Asks the device for room for this many endpoints, of all instances together. More endpoints take more firmware
    /// pages, so none are asked for by default. [`IaAttr::max_eps`](dat_core::IaAttr) says how many there can be.
    /// `None`: 0, or more than numbers of 24 bits can name.
    #[must_use]
    pub fn endpoints(mut self, number: u32) -> Option<Self> {
        /// Number 0 and QP1 are nobody's.
        const OTHERS: u32 = 2;
        const MOST: u32 = (1 << 24) - OTHERS;
        if !(1..=MOST).contains(&number) {
            return None;
        }
        self.hca.log_max_qp = Some((number + OTHERS).next_power_of_two().ilog2());
        Some(self)
    }

    /// Uses this many interrupt vectors for completions, if the device and the machine have them. With one for each
    /// instance, no instance is woken by the completions of another ([`HcaConfig::completion_vectors`]). `None`: 0, or
    /// more than a function can have.
    #[must_use]
    pub fn vectors(mut self, number: u16) -> Option<Self> {
        /// MSI-X has 2048 (PCI Express Base Specification, "Message Control for MSI-X"); one is for other things.
        const MOST: u16 = 2047;
        if number == 0 || number > MOST {
            return None;
        }
        self.hca.completion_vectors = number;
        Some(self)
    }

    /// Reaches a PCI function by the file of its IOMMU group that whoever started the process has opened for it, under
    /// this name (`LISTEN_FDS`, sd_listen_fds(3)): so a program without rights drives a function that it may not open.
    /// The file stays with the process, and the adapter can be closed and opened again.
    #[must_use]
    pub fn vfio_group(mut self, name: impl Into<String>) -> Self {
        self.handed_in = Some(HandedIn {
            group: name.into(),
            container: None,
        });
        self
    }

    /// Shares memory with the other adapters of this process that were opened with the same name. Memory of one can be
    /// registered with each, and is pinned and mapped once for all of them. Under VFIO they share a container: each
    /// function reaches by DMA whatever is mapped for one of them. What peers reach depends on keys, which each adapter
    /// has for itself. All of them have to be of one kind: the kernel's VFIO, vfio-user, or simulated.
    #[must_use]
    pub fn memory(mut self, name: impl Into<String>) -> Self {
        self.memory = Some(name.into());
        self
    }

    /// Opens a control socket at this path for as long as the adapter is open. It takes feature `control`; without it
    /// the opening is refused. `{pid}` in the path is replaced by the number of the process. The environment variable
    /// `DAT_CONTROL` does the same for every adapter that a process opens without this. Only the user of the process
    /// and root may connect, and nothing can be changed through it.
    #[must_use]
    pub fn control(mut self, path: impl Into<PathBuf>) -> Self {
        self.control = Some(path.into());
        self
    }

    /// Whether the first instance records what it does ([`recorder_start`](crate::Ia::recorder_start),
    /// [`recorder_dump`](crate::Ia::recorder_dump)). Without this it records if the environment variable `DAT_RECORDER`
    /// is `1` or names a folder.
    #[must_use]
    pub const fn recorder(mut self, on: bool) -> Self {
        self.ia.recorder = on;
        self
    }

    /// Makes every instance record, and writes what was recorded to this folder when a connection breaks and when the
    /// thread of an instance panics: as text, and as a pcapng file for `datctl decode` and Wireshark. The last 16 dumps
    /// of a process are kept. It takes feature `control`. The environment variable `DAT_RECORDER` does the same for
    /// every adapter that a process opens without this, if it has a `/` in it.
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

    /// Makes a simulated function a device of this kind: a generation's name, or the path of a profile.
    #[must_use]
    pub fn profile(mut self, name: impl Into<String>) -> Self {
        self.simulated.profile = Some(name.into());
        self
    }

    /// Sets the MTU of the port, in bytes as IP counts it. RDMA packets of 4096 bytes take 4192.
    #[must_use]
    pub const fn mtu(mut self, bytes: u16) -> Self {
        self.hca.port_mtu = Some(bytes);
        self
    }

    /// Whether the time of a simulated function is virtual: it moves only when somebody waits, and then at once, which
    /// is for tests that give both sides their turns in one thread. Otherwise it is the machine's, as that of hardware.
    /// Functions of virtual time are on a fabric of their own: none of them is linked to one in the machine's time.
    #[must_use]
    pub const fn virtual_time(mut self, on: bool) -> Self {
        self.simulated.virtual_time = on;
        self
    }

    /// Writes what passes on the wire of a simulated function to this file from now on, as pcapng for Wireshark: every
    /// frame that it, or a function it is linked with in this process, sends, and that comes to it from another
    /// process. The file is begun anew, unless the process writes to it already. No other adapter's wire may be
    /// written to the same one.
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
