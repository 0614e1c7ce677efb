//! The control socket (docs/nvmeof.md): methods that query, and methods that make one change each.
//!
//! The parameters of `subsystem.add`, `namespace.add` and `listener.add` are keys of the configuration file, and the
//! same reader reads them. So both have the same keys, defaults and errors.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use control::rpc::{FAILED, INVALID_PARAMS, Refusal};
use control::schema::{SCHEMA, Version};
use control::{Access as Who, Notifier, ServeError, Service, Subject};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use udapl::handover::ServiceManager;
use udapl::reactor::{HandedInError, handed_in};

use super::file::{self, Size};
use super::handover::check_manager;
use super::settings::{ControlSettings, ControlSocket, HostSettings, Settings};
use super::state::{Daemon, DaemonError};
use super::write::save;
use crate::disk::faults::{self, Orders};
use crate::model::Limit;
use crate::nvme::Nqn;

/// Names of the methods.
const METHODS: [&str; 22] = [
    "version",
    "status",
    "stat",
    "subsystem.add",
    "subsystem.remove",
    "subsystem.any_host",
    "subsystem.queues",
    "namespace.add",
    "namespace.remove",
    "namespace.resize",
    "namespace.limit",
    "namespace.hosts",
    "namespace.fault",
    "host.allow",
    "host.limit",
    "host.forbid",
    "listener.add",
    "listener.remove",
    "access.set",
    "settings",
    "save",
    "restart",
];

/// A daemon that several threads use, one at a time. Clones refer to the same daemon.
///
/// Method `restart` of the control socket sends the process SIGUSR2. The program calls [`Daemon::hand_over`] then.
#[derive(Clone)]
pub struct Controlled {
    daemon: Arc<Mutex<Daemon>>,
    /// Path of the configuration file, if the daemon was started with one.
    path: Option<PathBuf>,
}

impl Controlled {
    /// Wraps a daemon. `path` is the configuration file that it was started with.
    #[must_use]
    pub fn new(daemon: Daemon, path: Option<PathBuf>) -> Self {
        Self {
            daemon: Arc::new(Mutex::new(daemon)),
            path,
        }
    }

    /// Locks the daemon, and waits until no other thread has it.
    pub fn lock(&self) -> MutexGuard<'_, Daemon> {
        // The daemon is used even if a thread panicked while it held the lock.
        self.daemon.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Handler of requests at the control socket.
struct Answers {
    of: Controlled,
    _notifier: Notifier,
}

/// Serves the control socket until the result is dropped.
///
/// # Errors
/// [`SocketError`].
pub fn serve(of: &Controlled, settings: &ControlSettings) -> Result<Service, SocketError> {
    let who = Who {
        user: settings.user,
        group: settings.group,
    };
    let of = of.clone();
    let answers = |notifier| Answers {
        of,
        _notifier: notifier,
    };
    match &settings.socket {
        ControlSocket::Path(path) => Ok(control::serve(path, who, answers)?),
        ControlSocket::Given(name) => {
            let given = handed_in(name)?;
            Ok(control::serve_handed_in(given.into(), name, who, answers)?)
        }
    }
}

/// Reason why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The socket cannot be served.
    #[error("{0}")]
    Serve(#[from] ServeError),
    /// The socket was not handed in.
    #[error("control socket: {0}")]
    HandedIn(#[from] HandedInError),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfSubsystem {
    nqn: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfAnyHost {
    nqn: String,
    any_host: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfQueues {
    nqn: String,
    queues: u16,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfNamespace {
    subsystem: String,
    nsid: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfLimit {
    subsystem: String,
    nsid: u32,
    ios_per_second: Option<u64>,
    bytes_per_second: Option<Size>,
    burst_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfHostLimit {
    subsystem: String,
    host: String,
    ios_per_second: Option<u64>,
    bytes_per_second: Option<Size>,
    burst_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfHosts {
    subsystem: String,
    nsid: u32,
    hosts: Option<Vec<String>>,
}

/// The values of a limit.
struct Rates<'a> {
    ios_per_second: Option<u64>,
    bytes_per_second: Option<&'a Size>,
    burst_ms: Option<u64>,
}

impl Rates<'_> {
    /// Returns the limit; `None` if neither rate is given.
    fn limit(&self) -> Result<Option<Limit>, Refusal> {
        let bytes = self.bytes_per_second.map(|size| {
            let what = "bytes_per_second is bytes, or a text such as \"64MiB\"";
            size.bytes().ok_or_else(|| wrong(what.to_owned()))
        });
        let limit = Limit {
            ios_per_second: self.ios_per_second,
            bytes_per_second: bytes.transpose()?,
            burst: self
                .burst_ms
                .map_or(Limit::USUAL_BURST, Duration::from_millis),
        };
        match (limit.ios_per_second, limit.bytes_per_second) {
            (None, None) if self.burst_ms.is_some() => {
                let what = "burst_ms comes with ios_per_second or bytes_per_second";
                Err(wrong(what.to_owned()))
            }
            (None, None) => Ok(None),
            _ => Ok(Some(limit)),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfFault {
    subsystem: String,
    nsid: u32,
    of: Option<String>,
    error: Option<String>,
    delay_ms: Option<u64>,
    every: Option<u64>,
    times: Option<u64>,
}

impl OfFault {
    /// Returns the orders for the disk; `None` if there is neither an error nor a delay.
    fn orders(&self) -> Result<Option<Orders>, Refusal> {
        let usual = Orders::default();
        let delay = Duration::from_millis(self.delay_ms.unwrap_or(0));
        if delay > faults::LONGEST_DELAY {
            let most = faults::LONGEST_DELAY.as_millis();
            return Err(wrong(format!("delay_ms is 0 to {most}")));
        }
        let every = self.every.unwrap_or(usual.every);
        if every == 0 {
            return Err(wrong("every is 1 or more".to_owned()));
        }
        let error = self.error.as_deref();
        let error = error.map(|name| named("error", name, &faults::ERRORS));
        let orders = Orders {
            of: named("of", self.of.as_deref().unwrap_or("all"), &faults::KINDS)?,
            error: error.transpose()?,
            delay,
            every,
            times: self.times,
        };
        Ok((orders.error.is_some() || !delay.is_zero()).then_some(orders))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfHost {
    subsystem: String,
    host: String,
    key: Option<PathBuf>,
    controller_key: Option<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfListener {
    id: u16,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfAccess {
    port: u16,
    group: u32,
    state: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfSave {
    path: Option<PathBuf>,
}

impl Subject for Answers {
    fn call(&mut self, method: &str, params: &Value) -> Result<Value, Refusal> {
        let mut daemon = self.of.lock();
        if daemon.is_handed_over() {
            let what = "the daemon was handed over to its next process, and this one ends";
            return Err(Refusal::new(FAILED, what.to_owned()));
        }
        match method {
            "version" => to_json(&Version {
                schema: SCHEMA,
                library: env!("CARGO_PKG_VERSION").to_owned(),
                adapter: "nvmeofd".to_owned(),
                process: std::process::id(),
                methods: METHODS.map(str::to_owned).into(),
            }),
            "status" => to_json(&daemon.status()),
            "stat" => {
                let status = daemon.status();
                Ok(json!({
                    "namespaces": status.subsystems.iter().flat_map(|of| of.namespaces.iter().map(|one| json!({
                        "subsystem": of.nqn, "nsid": one.nsid, "reads": one.reads, "writes": one.writes,
                        "read_bytes": one.read_bytes, "written_bytes": one.written_bytes,
                    }))).collect::<Vec<_>>(),
                    "workers": status.ports.iter().flat_map(|of| of.workers.iter().map(|one| json!({
                        "port": of.id, "worker": one.worker, "commands": one.commands, "refused": one.refused,
                        "connections": one.connections, "sleeps": one.sleeps, "queue_depth": one.queue_depth,
                        "latency": one.latency,
                    }))).collect::<Vec<_>>(),
                }))
            }
            "settings" => Ok(super::write::text(daemon.settings()).into()),
            "save" => {
                let asked: OfSave = read(params)?;
                let path = asked.path.as_deref().or(self.of.path.as_deref());
                let path = path.ok_or_else(|| {
                    wrong("path: the daemon was started without a file".to_owned())
                })?;
                save_to(&daemon, path)
            }
            "restart" => restart(&mut daemon),
            _ => change(&mut daemon, method, params),
        }
    }

    fn notices(&mut self) -> Vec<Value> {
        Vec::new()
    }
}

/// Checks whether the daemon can be handed over to its next process, and sends the process the signal for that.
fn restart(daemon: &mut Daemon) -> Result<Value, Refusal> {
    let failed = |error: String| Refusal::new(FAILED, error);
    let manager = ServiceManager::of_environment().map_err(|error| failed(error.to_string()))?;
    let checked = check_manager(manager.as_ref()).and_then(|_| daemon.check_hand_over());
    checked.map_err(|error| failed(error.to_string()))?;
    kill(Pid::this(), Signal::SIGUSR2).map_err(|error| failed(error.to_string()))?;
    daemon.request_handover();
    Ok(true.into())
}

/// Carries out a method that changes something.
fn change(daemon: &mut Daemon, method: &str, params: &Value) -> Result<Value, Refusal> {
    match method {
        "subsystem.add" => {
            let wanted = as_file(daemon, &[("subsystem", params)])?;
            for (name, subsystem) in &wanted.subsystems {
                daemon.add_subsystem(name, subsystem).map_err(refused)?;
            }
        }
        "subsystem.remove" => {
            let of: OfSubsystem = read(params)?;
            daemon.remove_subsystem(&name(&of.nqn)?).map_err(refused)?;
        }
        "subsystem.any_host" => {
            let of: OfAnyHost = read(params)?;
            let set = daemon.set_any_host(&name(&of.nqn)?, of.any_host);
            set.map_err(refused)?;
        }
        "subsystem.queues" => {
            let of: OfQueues = read(params)?;
            let set = daemon.set_queues(&name(&of.nqn)?, of.queues);
            set.map_err(refused)?;
        }
        "namespace.add" => return add_namespace(daemon, params),
        "namespace.remove" => {
            let of: OfNamespace = read(params)?;
            let removed = daemon.remove_namespace(&name(&of.subsystem)?, of.nsid);
            removed.map_err(refused)?;
        }
        "namespace.resize" => {
            let of: OfNamespace = read(params)?;
            let blocks = daemon.resize_namespace(&name(&of.subsystem)?, of.nsid);
            return Ok(json!({ "blocks": blocks.map_err(refused)? }));
        }
        "namespace.limit" => {
            let of: OfLimit = read(params)?;
            let rates = Rates {
                ios_per_second: of.ios_per_second,
                bytes_per_second: of.bytes_per_second.as_ref(),
                burst_ms: of.burst_ms,
            };
            let set = daemon.set_limit(&name(&of.subsystem)?, of.nsid, rates.limit()?);
            set.map_err(refused)?;
        }
        "namespace.hosts" => {
            let of: OfHosts = read(params)?;
            let hosts = of.hosts.map(|hosts| {
                let names = hosts.iter().map(|one| host(one, daemon));
                names.collect::<Result<_, _>>()
            });
            let set = daemon.set_hosts(&name(&of.subsystem)?, of.nsid, hosts.transpose()?);
            set.map_err(refused)?;
        }
        "host.limit" => {
            let of: OfHostLimit = read(params)?;
            let rates = Rates {
                ios_per_second: of.ios_per_second,
                bytes_per_second: of.bytes_per_second.as_ref(),
                burst_ms: of.burst_ms,
            };
            let host = host(&of.host, daemon)?;
            let set = daemon.limit_host(&name(&of.subsystem)?, &host, rates.limit()?);
            set.map_err(refused)?;
        }
        "namespace.fault" => {
            let of: OfFault = read(params)?;
            let struck = daemon.order_fault(&name(&of.subsystem)?, of.nsid, of.orders()?);
            return Ok(json!({ "struck": struck.map_err(refused)? }));
        }
        "host.allow" => {
            let of: OfHost = read(params)?;
            let (subsystem, host) = (name(&of.subsystem)?, host(&of.host, daemon)?);
            let there = daemon.settings().subsystems.get(&subsystem);
            let there = there.and_then(|there| there.hosts.get(&host));
            let settings = HostSettings {
                key: of.key,
                controller_key: of.controller_key,
                // A host that is allowed again, with another key, keeps its limit.
                limit: there.and_then(|there| there.limit),
            };
            if settings.key.is_none() && settings.controller_key.is_some() {
                let what = "a host has a controller_key only beside its own key";
                return Err(wrong(what.to_owned()));
            }
            let allowed = daemon.allow_host(&subsystem, &host, &settings);
            allowed.map_err(refused)?;
        }
        "host.forbid" => {
            let of: OfHost = read(params)?;
            let host = host(&of.host, daemon)?;
            let forbidden = daemon.forbid_host(&name(&of.subsystem)?, &host);
            forbidden.map_err(refused)?;
        }
        "listener.add" => return add_listener(daemon, params),
        "listener.remove" => {
            let of: OfListener = read(params)?;
            daemon.remove_port(of.id).map_err(refused)?;
        }
        "access.set" => {
            let of: OfAccess = read(params)?;
            let access = named("state", &of.state, &file::ACCESS)?;
            let set = daemon.set_access(of.port, of.group, access);
            set.map_err(refused)?;
        }
        _ => return Err(Refusal::unknown(method, &METHODS)),
    }
    Ok(true.into())
}

fn add_namespace(daemon: &mut Daemon, params: &Value) -> Result<Value, Refusal> {
    let mut keys = object(params)?;
    let of = keys.remove("subsystem");
    let of = of.as_ref().and_then(Value::as_str);
    let subsystem = name(of.ok_or_else(|| wrong("subsystem is a name".to_owned()))?)?;
    let there = daemon.settings().subsystems.get(&subsystem);
    let there =
        there.ok_or_else(|| Refusal::new(FAILED, format!("there is no subsystem {subsystem}")))?;
    if !keys.contains_key("nsid") {
        let free = (1..).find(|nsid| !there.namespaces.contains_key(nsid));
        keys.insert("nsid".to_owned(), free.into());
    }
    let whole = json!({ "nqn": subsystem.as_str(), "namespace": [keys] });
    let wanted = as_file(daemon, &[("subsystem", &whole)])?;
    let namespaces = wanted.subsystems.values().flat_map(|one| &one.namespaces);
    let mut added = None;
    for (nsid, namespace) in namespaces {
        let one = daemon.add_namespace(&subsystem, *nsid, namespace);
        one.map_err(refused)?;
        added = Some(*nsid);
    }
    Ok(json!({ "nsid": added }))
}

fn add_listener(daemon: &mut Daemon, params: &Value) -> Result<Value, Refusal> {
    let mut keys = object(params)?;
    let ports = &daemon.settings().ports;
    if !keys.contains_key("id") {
        let free = (1..=u16::MAX).find(|id| !ports.contains_key(id));
        keys.insert("id".to_owned(), free.into());
    }
    let wanted = as_file(daemon, &[("port", &Value::Object(keys))])?;
    let same = |(_, other): &(&u16, &super::PortSettings)| {
        wanted
            .ports
            .values()
            .any(|one| one.adapter == other.adapter && one.service == other.service)
    };
    if let Some((other, port)) = ports.iter().find(same) {
        let what = format!(
            "port {other} listens at service {} of that adapter already",
            port.service
        );
        return Err(Refusal::new(FAILED, what));
    }
    let mut added = None;
    for (id, port) in &wanted.ports {
        daemon.add_port(*id, port).map_err(refused)?;
        added = Some(*id);
    }
    let id = added.unwrap_or(0);
    Ok(json!({ "id": id, "addresses": daemon.addresses(id) }))
}

/// Parses parameters as tables of a configuration file, whose key `strict` has the daemon's value.
fn as_file(daemon: &Daemon, tables: &[(&str, &Value)]) -> Result<Settings, Refusal> {
    let mut whole = toml::Table::new();
    whole.insert("strict".to_owned(), daemon.settings().strict.into());
    for (name, table) in tables {
        object(table)?;
        let table = toml::Value::try_from(table).map_err(|error| wrong(error.to_string()))?;
        whole.insert((*name).to_owned(), toml::Value::Array(vec![table]));
    }
    let text = toml::to_string(&whole).map_err(|error| wrong(error.to_string()))?;
    file::parse(Path::new("params"), &text).map_err(|mistakes| {
        let all = mistakes.mistakes.iter();
        let all = all.map(|mistake| format!("{} ({})", mistake.message, mistake.text.trim()));
        wrong(all.collect::<Vec<_>>().join("; "))
    })
}

fn save_to(daemon: &Daemon, path: &Path) -> Result<Value, Refusal> {
    let saved = save(daemon.settings(), path);
    saved.map_err(|error| Refusal::new(FAILED, format!("{}: {error}", path.display())))?;
    tracing::info!(path = %path.display(), "configuration saved");
    Ok(json!({ "path": path }))
}

fn to_json(what: &impl serde::Serialize) -> Result<Value, Refusal> {
    serde_json::to_value(what).map_err(|error| Refusal::new(FAILED, error.to_string()))
}

fn read<T: DeserializeOwned>(params: &Value) -> Result<T, Refusal> {
    let params = if params.is_null() {
        Map::new()
    } else {
        object(params)?
    };
    serde_json::from_value(params.into()).map_err(|error| wrong(error.to_string()))
}

fn object(params: &Value) -> Result<Map<String, Value>, Refusal> {
    let object = params.as_object().cloned();
    object.ok_or_else(|| wrong("parameters are an object".to_owned()))
}

fn name(text: &str) -> Result<Nqn, Refusal> {
    text.parse()
        .map_err(|error: crate::nvme::nqn::NqnError| wrong(error.to_string()))
}

/// Parses a host's NQN. `strict` in the settings selects the checks.
fn host(text: &str, daemon: &Daemon) -> Result<Nqn, Refusal> {
    let name = Nqn::of_host(text, daemon.settings().strict);
    name.map_err(|error| wrong(error.to_string()))
}

/// Finds the value with this name. The error lists the known names.
fn named<T: Copy>(what: &str, name: &str, known: &[(&str, T)]) -> Result<T, Refusal> {
    let found = known.iter().find(|(one, _)| *one == name);
    found.map(|(_, found)| *found).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        let names = names.join(", ");
        wrong(format!("there is no {what} {name:?}; there are {names}"))
    })
}

fn wrong(what: String) -> Refusal {
    Refusal::new(INVALID_PARAMS, what)
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err has")]
fn refused(error: DaemonError) -> Refusal {
    Refusal::new(FAILED, error.to_string())
}
