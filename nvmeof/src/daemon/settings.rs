//! Settings: the wanted state of a daemon.

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

/// All settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Names of hosts must have the form of a qualified name.
    pub strict: bool,
    /// The filter of the log, in the form of `RUST_LOG`.
    pub log: Option<String>,
    /// The control socket.
    pub control: Option<ControlSettings>,
    /// The address at which counters can be read by HTTP.
    pub metrics: Option<SocketAddr>,
    /// The ports that hosts connect to.
    pub ports: BTreeMap<u16, PortSettings>,
    /// The subsystems.
    pub subsystems: BTreeMap<Nqn, SubsystemSettings>,
    /// Referrals to other discovery services, with the port number for the log page.
    pub referrals: BTreeMap<SocketAddr, u16>,
}

/// The control socket. Its mode is 0600, or 0660 with a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlSettings {
    /// Its place.
    pub socket: ControlSocket,
    /// Its owner; `None` for the daemon's user.
    pub user: Option<u32>,
    /// The group that may use it, too.
    pub group: Option<u32>,
}

/// Place of a control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlSocket {
    /// It is made at this path.
    Path(PathBuf),
    /// The program that started the process has made it, under this name (`LISTEN_FDS`).
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
    /// The processors for the workers: worker N runs on the Nth of them, and the list is repeated. Empty: the system
    /// chooses.
    pub cpus: Vec<u16>,
    /// Entries that the queues of all hosts have together at a worker.
    pub ios: u32,
    /// Number of buffers of 128 KiB of a worker.
    pub buffers: u32,
    /// Number of turns without an event before a worker sleeps.
    pub spin: u32,
    /// Its access to groups of namespaces that is not optimized.
    pub access: BTreeMap<u32, Access>,
}

impl PortSettings {
    /// A port of an adapter, with defaults.
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
    /// A subsystem without namespaces. Its serial number is made from its name.
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

/// The UUID namespace in which identifiers of namespaces are made. It must never change: hosts recognise disks by them.
const SPACE: Uuid = Uuid::from_u128(0x6e76_6d65_6f66_5d01_8a5e_75da_706c_0001);

/// A host that may connect to a subsystem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSettings {
    /// The file with the key that the host authenticates with.
    pub key: Option<PathBuf>,
    /// The file with the key that the target authenticates with, if the host asks.
    pub controller_key: Option<PathBuf>,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceSettings {
    /// The source of its disk.
    pub source: Source,
    /// Bytes of a block, as a power of two.
    pub shift: u8,
    /// Writes are refused.
    pub read_only: bool,
    /// Its file or block device is locked, so that no other program and no other namespace has it.
    pub lock: bool,
    /// Its group, for the access of ports.
    pub group: u32,
    /// The identifier by which hosts recognise it.
    pub uuid: Uuid,
}

impl NamespaceSettings {
    /// A namespace of a subsystem, with defaults.
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

    /// The default identifier of a namespace. It depends on its subsystem and number only.
    #[must_use]
    pub fn usual_uuid(subsystem: &Nqn, nsid: u32) -> Uuid {
        Uuid::new_v5(&SPACE, format!("{subsystem}#{nsid}").as_bytes())
    }
}
