//! What is to be there.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use uuid::Uuid;

use crate::disk::Source;
use crate::nvme::Nqn;
use crate::nvme::log::Access;
use crate::serve::WorkerConfig;

/// The service at which hosts look for an NVMe over RDMA target (IANA).
pub const SERVICE: u16 = 4420;

/// Everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Names of hosts have to have the form of a qualified name.
    pub strict: bool,
    /// What is logged, as `RUST_LOG` has it.
    pub log: Option<String>,
    /// The control socket.
    pub control: Option<ControlSettings>,
    /// Where counters can be read by HTTP.
    pub metrics: Option<SocketAddr>,
    /// Where hosts connect.
    pub ports: BTreeMap<u16, PortSettings>,
    /// What they find there.
    pub subsystems: BTreeMap<Nqn, SubsystemSettings>,
    /// Other discovery services that hosts are led to, with the number of the port in the log page.
    pub referrals: BTreeMap<SocketAddr, u16>,
}

/// The control socket. Its mode is 0600, and 0660 where a group may ask, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlSettings {
    /// Where it is.
    pub socket: ControlSocket,
    /// Whose it is, if not the daemon's own user's.
    pub user: Option<u32>,
    /// Who may ask as well.
    pub group: Option<u32>,
}

/// Where a control socket is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlSocket {
    /// It is made at this path.
    Path(PathBuf),
    /// Whoever started the process has made it, under this name (`LISTEN_FDS`).
    Given(String),
}

/// A port: a service of an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSettings {
    /// The adapter's name, as [`udapl::ia_open`] takes it.
    pub adapter: String,
    /// The service (TCP port number) at which it listens.
    pub service: u16,
    /// Workers: a thread and an instance of the adapter each.
    pub workers: u16,
    /// The processors that they run on: worker N on the Nth of them, from the beginning again where they are fewer.
    /// None: where the system puts them.
    pub cpus: Vec<u16>,
    /// Commands that can be at a worker at once.
    pub ios: u32,
    /// Buffers of 128 KiB of a worker.
    pub buffers: u32,
    /// Turns without an event before a worker sleeps.
    pub spin: u32,
    /// How it reaches groups of namespaces, where that is not optimized.
    pub access: BTreeMap<u32, Access>,
}

impl PortSettings {
    /// A port of an adapter, and the rest as usual.
    #[must_use]
    pub fn new(adapter: impl Into<String>) -> Self {
        let usual = WorkerConfig::default();
        Self {
            adapter: adapter.into(),
            service: SERVICE,
            workers: 1,
            cpus: Vec::new(),
            ios: usual.ios,
            buffers: usual.buffers,
            spin: usual.spin,
            access: BTreeMap::new(),
        }
    }
}

/// A subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemSettings {
    /// Serial number: up to 20 characters.
    pub serial: String,
    /// Model: up to 40 characters.
    pub model: String,
    /// Any host may connect.
    pub any_host: bool,
    /// Hosts that may connect.
    pub hosts: BTreeMap<Nqn, HostSettings>,
    /// Namespaces, by number.
    pub namespaces: BTreeMap<u32, NamespaceSettings>,
}

impl SubsystemSettings {
    /// A subsystem without namespaces, its serial number one that follows from its name.
    #[must_use]
    pub fn new(name: &Nqn) -> Self {
        let mut serial = Uuid::new_v5(&SPACE, name.as_str().as_bytes())
            .simple()
            .to_string();
        serial.truncate(16);
        Self {
            serial,
            model: MODEL.to_owned(),
            any_host: false,
            hosts: BTreeMap::new(),
            namespaces: BTreeMap::new(),
        }
    }
}

/// The model number of a subsystem that names none.
pub const MODEL: &str = "uDAPL NVMe over RDMA";

/// The space of names in which identifiers of namespaces are made. It must never change: hosts know disks by them.
const SPACE: Uuid = Uuid::from_u128(0x6e76_6d65_6f66_5d01_8a5e_75da_706c_0001);

/// A host that may connect to a subsystem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSettings {
    /// The file with the key by which it says who it is.
    pub key: Option<PathBuf>,
    /// The file with the key by which it is told who we are, if it wants to know.
    pub controller_key: Option<PathBuf>,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceSettings {
    /// What its blocks lie on.
    pub source: Source,
    /// Bytes of a block, as a power of two.
    pub shift: u8,
    /// Nothing may be written.
    pub read_only: bool,
    /// Its file or block device is locked, so that no other program and no other namespace has it.
    pub lock: bool,
    /// Its group, for the ports' ways of reaching it.
    pub group: u32,
    /// By which hosts know it again.
    pub uuid: Uuid,
}

impl NamespaceSettings {
    /// A namespace of a subsystem, and the rest as usual.
    #[must_use]
    pub fn new(subsystem: &Nqn, nsid: u32, source: Source) -> Self {
        Self {
            source,
            shift: 9,
            read_only: false,
            lock: true,
            group: 1,
            uuid: Self::usual_uuid(subsystem, nsid),
        }
    }

    /// The identifier of a namespace that names none: the same for the same subsystem and number, always.
    #[must_use]
    pub fn usual_uuid(subsystem: &Nqn, nsid: u32) -> Uuid {
        Uuid::new_v5(&SPACE, format!("{subsystem}#{nsid}").as_bytes())
    }
}
