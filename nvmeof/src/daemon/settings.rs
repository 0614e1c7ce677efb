//! Settings: the wanted state of a daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;

use uuid::Uuid;

use crate::disk::Source;
use crate::model::{Limit, QUEUES};
use crate::nvme::Nqn;
use crate::nvme::log::Access;
use crate::serve::WorkerConfig;

/// Default service (TCP port number) of an NVMe over RDMA target, assigned by IANA.
pub const SERVICE: u16 = 4420;

/// All settings of a daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// True if the name of a host must have the form of a qualified name (NQN).
    pub strict: bool,
    /// Filter of the log, in the form of `RUST_LOG`.
    pub log: Option<String>,
    /// Control socket; `None` for no socket.
    pub control: Option<ControlSettings>,
    /// Address at which counters can be read by HTTP.
    pub metrics: Option<SocketAddr>,
    /// Ports that hosts connect to, by number.
    pub ports: BTreeMap<u16, PortSettings>,
    /// Subsystems, by name.
    pub subsystems: BTreeMap<Nqn, SubsystemSettings>,
    /// Addresses of other discovery services (referrals), each with its port number for the log page.
    pub referrals: BTreeMap<SocketAddr, u16>,
}

/// Settings of the control socket. A socket that the daemon creates has file mode 0600, or 0660 with a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlSettings {
    /// Path of the socket, or the name of a socket that was handed in.
    pub socket: ControlSocket,
    /// User who owns the socket; `None` for the daemon's user.
    pub user: Option<u32>,
    /// Group whose members may also use the socket.
    pub group: Option<u32>,
}

/// Origin of a control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlSocket {
    /// The daemon creates the socket at this path.
    Path(PathBuf),
    /// The program that started this process has handed in the socket under this name (`LISTEN_FDS`).
    Given(String),
}

/// Settings of a port: an adapter, and the service at which it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortSettings {
    /// Name of the adapter, as for [`udapl::ia_open`].
    pub adapter: String,
    /// Service (TCP port number) at which the port listens.
    pub service: u16,
    /// Number of workers. Each has a thread and an instance of the adapter.
    pub workers: u16,
    /// Processors for the workers: worker N runs on the Nth of them, and the list is repeated if it is shorter. If the
    /// list is empty, the system chooses.
    pub cpus: Vec<u16>,
    /// Number of queue entries that all hosts together may have at a worker.
    pub ios: u32,
    /// Number of buffers of each worker, for I/Os of more than 4 KiB.
    pub buffers: u32,
    /// MDTS: the maximum length of the data of an I/O, and the length of a buffer, is 4 KiB shifted left by this
    /// number.
    pub transfer_shift: u8,
    /// Number of loop iterations without an event before a worker sleeps.
    pub spin: u32,
    /// Access of the port to groups of namespaces; a group that is missing is optimized.
    pub access: BTreeMap<u32, Access>,
}

impl PortSettings {
    /// Returns the settings of a port of this adapter, with defaults.
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
            transfer_shift: usual.transfer_shift,
            spin: usual.spin,
            access: BTreeMap::new(),
        }
    }
}

/// Settings of a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemSettings {
    /// Serial number of up to 20 characters.
    pub serial: String,
    /// Model number of up to 40 characters.
    pub model: String,
    /// True if any host may connect.
    pub any_host: bool,
    /// Maximum number of I/O queues of a host's controller.
    pub queues: u16,
    /// Hosts that may connect, by name.
    pub hosts: BTreeMap<Nqn, HostSettings>,
    /// Namespaces, by number.
    pub namespaces: BTreeMap<u32, NamespaceSettings>,
}

impl SubsystemSettings {
    /// Returns the settings of a subsystem without namespaces. The serial number is derived from the name.
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
            queues: QUEUES,
            hosts: BTreeMap::new(),
            namespaces: BTreeMap::new(),
        }
    }
}

/// Default model number of a subsystem.
pub const MODEL: &str = "uDAPL NVMe over RDMA";

/// UUID namespace (RFC 9562) for the default identifiers of namespaces and the default serial numbers. The value must
/// never change, because hosts recognise disks by these identifiers.
const SPACE: Uuid = Uuid::from_u128(0x6e76_6d65_6f66_5d01_8a5e_75da_706c_0001);

/// Settings of a host that may connect to a subsystem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSettings {
    /// Path of the file with the key by which the host authenticates.
    pub key: Option<PathBuf>,
    /// Path of the file with the key by which the target authenticates, if the host asks for that.
    pub controller_key: Option<PathBuf>,
    /// Limit of I/Os and bytes per second, at all namespaces of the subsystem together.
    pub limit: Option<Limit>,
}

/// Settings of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceSettings {
    /// Source of the disk.
    pub source: Source,
    /// Block size in bytes, as a power of two.
    pub shift: u8,
    /// True if writes are refused.
    pub read_only: bool,
    /// True if the file or block device is locked, so that no other program and no other namespace uses it.
    pub lock: bool,
    /// Group of the namespace, to which ports have access.
    pub group: u32,
    /// Identifier by which hosts recognise the namespace.
    pub uuid: Uuid,
    /// Hosts that see the namespace; `None` if all hosts of the subsystem see it.
    pub hosts: Option<BTreeSet<Nqn>>,
    /// Limit of I/Os and bytes per second.
    pub limit: Option<Limit>,
}

impl NamespaceSettings {
    /// Returns the settings of a namespace, with defaults.
    #[must_use]
    pub fn new(subsystem: &Nqn, nsid: u32, source: Source) -> Self {
        Self {
            source,
            shift: 9,
            read_only: false,
            lock: true,
            group: 1,
            uuid: Self::usual_uuid(subsystem, nsid),
            hosts: None,
            limit: None,
        }
    }

    /// Returns the default identifier of a namespace. It depends only on the subsystem's name and the number.
    #[must_use]
    pub fn usual_uuid(subsystem: &Nqn, nsid: u32) -> Uuid {
        Uuid::new_v5(&SPACE, format!("{subsystem}#{nsid}").as_bytes())
    }
}
