//! The configuration file: parses it into settings, or reports its mistakes.
//!
//! serde parses the form of the file, and stops at the first mistake: a syntax error, an unknown key, or a text in
//! place of a number. A file of the right form is then checked as a whole, and every mistake is reported.
//! nvmeof/deploy/nvmeofd.example.toml has every key.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::{Group, User};
use serde::Deserialize;
use toml::Spanned;
use udapl::error::OpenError;
use udapl::name::PciAddress;
use uuid::Uuid;

use super::check::{Check, Named};
use super::log::log_filter;
use super::mistake::{Mistake, Mistakes};
use super::settings::{
    ControlSettings, ControlSocket, HostSettings, NamespaceSettings, PortSettings, SERVICE,
    Settings, SubsystemSettings,
};
use crate::disk::Source;
use crate::disk::ssd::SsdAddress;
use crate::model::{GROUPS, LARGEST_TRANSFER_SHIFT, Limit, MAX_TRANSFER_SHIFT, NAMESPACES, QUEUES};
use crate::nvme::Nqn;
use crate::nvme::log::Access;

/// Access states of a group, with their names.
pub const ACCESS: [(&str, Access); 5] = [
    ("optimized", Access::Optimized),
    ("non-optimized", Access::NonOptimized),
    ("inaccessible", Access::Inaccessible),
    ("persistent-loss", Access::PersistentLoss),
    ("change", Access::Change),
];

/// Maximum size of a configuration file in bytes.
pub(super) const LONGEST: u64 = 16 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    log: Option<Spanned<String>>,
    /// True if the name of a host must have the form of a qualified name (NQN).
    #[serde(default)]
    strict: bool,
    control: Option<Spanned<ControlForm>>,
    metrics: Option<MetricsForm>,
    #[serde(default)]
    port: Vec<PortForm>,
    #[serde(default)]
    subsystem: Vec<SubsystemForm>,
    #[serde(default)]
    referral: Vec<ReferralForm>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ControlForm {
    socket: Option<Spanned<PathBuf>>,
    descriptor: Option<String>,
    user: Option<Spanned<Who>>,
    group: Option<Spanned<Who>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Who {
    Number(u32),
    Name(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MetricsForm {
    address: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PortForm {
    id: Option<Spanned<u64>>,
    adapter: Spanned<String>,
    service: Option<Spanned<u64>>,
    workers: Option<Spanned<u64>>,
    cpus: Option<Vec<Spanned<u64>>>,
    ios: Option<Spanned<u64>>,
    buffers: Option<Spanned<u64>>,
    max_transfer: Option<Spanned<Size>>,
    spin: Option<Spanned<u64>>,
    #[serde(default)]
    access: Vec<AccessForm>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AccessForm {
    group: Spanned<u64>,
    state: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubsystemForm {
    nqn: Spanned<String>,
    serial: Option<Spanned<String>>,
    model: Option<Spanned<String>>,
    #[serde(default)]
    any_host: bool,
    queues: Option<Spanned<u64>>,
    #[serde(default)]
    host: Vec<HostForm>,
    #[serde(default)]
    namespace: Vec<Spanned<NamespaceForm>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostForm {
    nqn: Spanned<String>,
    key: Option<Spanned<PathBuf>>,
    controller_key: Option<Spanned<PathBuf>>,
    ios_per_second: Option<Spanned<u64>>,
    bytes_per_second: Option<Spanned<Size>>,
    burst_ms: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamespaceForm {
    nsid: Option<Spanned<u64>>,
    uuid: Option<Spanned<String>>,
    file: Option<Spanned<PathBuf>>,
    descriptor: Option<Spanned<String>>,
    memory: Option<Spanned<Size>>,
    faulty: Option<Spanned<Size>>,
    null: Option<Spanned<Size>>,
    disk: Option<Spanned<String>>,
    block_size: Option<Spanned<u64>>,
    #[serde(default)]
    read_only: bool,
    lock: Option<Spanned<bool>>,
    group: Option<Spanned<u64>>,
    hosts: Option<Vec<Spanned<String>>>,
    ios_per_second: Option<Spanned<u64>>,
    bytes_per_second: Option<Spanned<Size>>,
    burst_ms: Option<Spanned<u64>>,
}

/// Keys of a limit: I/Os per second, bytes per second, milliseconds of the burst.
type LimitForm<'a> = (
    &'a Option<Spanned<u64>>,
    &'a Option<Spanned<Size>>,
    &'a Option<Spanned<u64>>,
);

/// A number of bytes, or a text such as `64MiB`.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Size {
    Bytes(u64),
    Text(String),
}

impl Size {
    /// Returns the number of bytes; `None` if the text is no size.
    pub(super) fn bytes(&self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(*bytes),
            Self::Text(text) => bytes_of(text),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReferralForm {
    address: Spanned<String>,
    port: Option<Spanned<u64>>,
}

/// Reads a configuration file.
///
/// # Errors
/// The mistakes, line by line.
pub fn read(path: &Path) -> Result<Settings, Mistakes> {
    parse(path, &text_of(path)?)
}

/// Reads a configuration file, and checks the files, adapters, addresses and keys that it names.
///
/// # Errors
/// The mistakes of the text, line by line.
pub fn check(path: &Path) -> Result<Check, Mistakes> {
    let text = text_of(path)?;
    let (settings, named) = read_all(path, &text)?;
    Ok(Check::new(path, &text, settings, named))
}

/// Parses the text of a configuration file. `path` is used in messages only.
///
/// # Errors
/// The mistakes, line by line.
pub fn parse(path: &Path, text: &str) -> Result<Settings, Mistakes> {
    read_all(path, text).map(|(settings, _)| settings)
}

fn text_of(path: &Path) -> Result<String, Mistakes> {
    let failed = |message: String| Mistakes {
        path: path.to_owned(),
        mistakes: vec![Mistake::of_file(message)],
    };
    let length = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?;
    if length.len() > LONGEST {
        return Err(failed(format!(
            "{} bytes: this is no configuration",
            length.len()
        )));
    }
    std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))
}

/// Settings of a text, and the objects that it names, with their byte ranges in the text.
type All = (Settings, Vec<(Named, Range<usize>)>);

fn read_all(path: &Path, text: &str) -> Result<All, Mistakes> {
    let form: Form = toml::from_str(text).map_err(|error| Mistakes {
        path: path.to_owned(),
        mistakes: vec![Mistake::at(
            text,
            &error.span().unwrap_or(0..0),
            error.message(),
        )],
    })?;
    let mut reader = Reader {
        text,
        mistakes: Vec::new(),
        named: Vec::new(),
    };
    let settings = reader.settings(form);
    let mut mistakes = reader.mistakes;
    if mistakes.is_empty() {
        return Ok((settings, reader.named));
    }
    mistakes.sort_by_key(|mistake| (mistake.line, mistake.column));
    Err(Mistakes {
        path: path.to_owned(),
        mistakes,
    })
}

/// Returns the message about a mistake in an adapter's name: without DAT's error name, and with a suggested option.
fn of_name(error: &OpenError) -> String {
    let text = error.to_string();
    let text = text.trim_end_matches(" (DAT_PROVIDER_NOT_FOUND)");
    let OpenError::BadOption { name, option, why } = error else {
        return text.to_owned();
    };
    let key = option.split('=').next().unwrap_or(option);
    // The error lists the options as `key=form; key=form`.
    let known = why.split_once("there are ").map(|(_, known)| known);
    let known = known.into_iter().flat_map(|known| known.split("; "));
    let known: Vec<&str> = known.filter_map(|one| one.split('=').next()).collect();
    if known.is_empty() {
        return text.to_owned();
    }
    match nearest(key, &known) {
        Some(meant) => format!("{name}: {key:?} is no option; did you mean {meant}?"),
        None => format!(
            "{name}: {key:?} is no option; there are {}",
            known.join(", ")
        ),
    }
}

/// Returns the known word that a mistyped word probably means: the nearest one, whose [`distance`] must be at most 2
/// and at most half of the known word's length.
fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let distances = known.iter().map(|one| (distance(word, one), *one));
    let (distance, one) = distances.min()?;
    (distance <= 2 && 2 * distance <= one.len()).then_some(one)
}

/// Returns the number of letters to insert, remove or replace (Levenshtein distance).
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (down, letter) in one.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = down + 1;
        for (across, theirs) in other.bytes().enumerate() {
            let replaced = diagonal + usize::from(letter != theirs);
            diagonal = row[across + 1];
            row[across + 1] = replaced.min(diagonal + 1).min(row[across] + 1);
        }
    }
    row[other.len()]
}

/// Converts a parsed file to settings, and collects the mistakes.
struct Reader<'a> {
    text: &'a str,
    mistakes: Vec<Mistake>,
    /// Objects that the text names, with their byte ranges in the text.
    named: Vec<(Named, Range<usize>)>,
}

impl Reader<'_> {
    fn wrong<T>(&mut self, at: &Spanned<T>, message: impl Into<String>) {
        self.mistakes
            .push(Mistake::at(self.text, &at.span(), message));
    }

    /// Adds an object that `--check` must check.
    fn names<T>(&mut self, what: Named, at: &Spanned<T>) {
        self.named.push((what, at.span()));
    }

    /// Returns the given number, or the default `usual`. Reports a mistake if the number is out of range.
    fn number<N>(
        &mut self,
        what: &str,
        given: Option<&Spanned<u64>>,
        usual: N,
        least: u64,
        most: u64,
    ) -> N
    where
        N: TryFrom<u64>,
    {
        let Some(given) = given else {
            return usual;
        };
        let number = *given.get_ref();
        if !(least..=most).contains(&number) {
            self.wrong(given, format!("{what} is {least} to {most}"));
        }
        N::try_from(number).unwrap_or(usual)
    }

    fn name(&mut self, given: &Spanned<String>) -> Option<Nqn> {
        match given.get_ref().parse::<Nqn>() {
            Ok(name) if !name.is_discovery() => Some(name),
            Ok(_) => {
                self.wrong(
                    given,
                    "this is the name of discovery, a subsystem that always exists",
                );
                None
            }
            Err(error) => {
                self.wrong(given, error.to_string());
                None
            }
        }
    }

    fn address(&mut self, given: &Spanned<String>) -> Option<SocketAddr> {
        let address = given.get_ref().parse();
        if address.is_err() {
            self.wrong(
                given,
                "this is an address and a port, such as 192.0.2.9:4420 or [2001:db8::9]:4420",
            );
        }
        address.ok()
    }

    fn settings(&mut self, form: Form) -> Settings {
        let control = form.control.and_then(|control| self.control(control));
        let metrics = form.metrics.and_then(|metrics| {
            let address = self.address(&metrics.address)?;
            self.names(Named::Address(address), &metrics.address);
            Some(address)
        });
        if let Some(log) = &form.log
            && let Err(what) = log_filter(log.get_ref())
        {
            self.wrong(log, what);
        }
        let strict = form.strict;
        let mut settings = Settings {
            strict,
            log: form.log.map(Spanned::into_inner),
            control,
            metrics,
            ..Settings::default()
        };
        for port in form.port {
            self.port(port, &mut settings.ports);
        }
        let mut uuids = BTreeMap::new();
        for subsystem in form.subsystem {
            self.subsystem(subsystem, strict, &mut settings.subsystems, &mut uuids);
        }
        for referral in form.referral {
            let port = self.number("port", referral.port.as_ref(), 1, 1, 0xffff);
            if let Some(at) = self.address(&referral.address)
                && settings.referrals.insert(at, port).is_some()
            {
                self.wrong(&referral.address, "hosts are led there already");
            }
        }
        settings
    }

    fn control(&mut self, form: Spanned<ControlForm>) -> Option<ControlSettings> {
        let head = form.span().start..form.span().start;
        let form = form.into_inner();
        let socket = match (form.socket, form.descriptor) {
            (Some(path), None) => {
                self.names(Named::Socket(path.get_ref().clone()), &path);
                ControlSocket::Path(path.into_inner())
            }
            (None, Some(name)) => ControlSocket::Given(name),
            (Some(_), Some(_)) | (None, None) => {
                let what = "a control socket has one of socket and descriptor";
                self.mistakes.push(Mistake::at(self.text, &head, what));
                return None;
            }
        };
        Some(ControlSettings {
            socket,
            user: form.user.and_then(|user| self.user(&user)),
            group: form.group.and_then(|group| self.group(&group)),
        })
    }

    fn user(&mut self, given: &Spanned<Who>) -> Option<u32> {
        match given.get_ref() {
            Who::Number(number) => Some(*number),
            Who::Name(name) => {
                let found = User::from_name(name).ok().flatten();
                if found.is_none() {
                    self.wrong(given, format!("this machine has no user {name:?}"));
                }
                found.map(|user| user.uid.as_raw())
            }
        }
    }

    fn group(&mut self, given: &Spanned<Who>) -> Option<u32> {
        match given.get_ref() {
            Who::Number(number) => Some(*number),
            Who::Name(name) => {
                let found = Group::from_name(name).ok().flatten();
                if found.is_none() {
                    self.wrong(given, format!("this machine has no group {name:?}"));
                }
                found.map(|group| group.gid.as_raw())
            }
        }
    }

    fn adapter(&mut self, given: &Spanned<String>) {
        let options = udapl::OpenOptions::default();
        let parsed = udapl::name::parse(given.get_ref(), &options);
        let known = parsed.and_then(|(device, _)| {
            let rest = ["sim:", "vfio-user:"].map(|kind| device.strip_prefix(kind));
            let is_played = rest.into_iter().flatten().any(|rest| !rest.is_empty());
            if is_played || device.parse::<PciAddress>().is_ok() {
                return Ok(());
            }
            let name = device.to_owned();
            Err(OpenError::NotFound { name })
        });
        match known {
            Ok(()) => self.names(Named::Adapter(given.get_ref().clone()), given),
            Err(error) => self.wrong(given, of_name(&error)),
        }
    }

    fn port(&mut self, form: PortForm, ports: &mut BTreeMap<u16, PortSettings>) {
        let free = (1..=u16::MAX)
            .find(|id| !ports.contains_key(id))
            .unwrap_or(1);
        let id = self.number("id", form.id.as_ref(), free, 1, 0xffff);
        let usual = PortSettings::new(form.adapter.get_ref());
        self.adapter(&form.adapter);
        let mut access = BTreeMap::new();
        for of in &form.access {
            let group = self.number("group", Some(&of.group), 1, 1, GROUPS.into());
            let known = ACCESS.iter().find(|(name, _)| name == of.state.get_ref());
            match known {
                Some((_, Access::Optimized)) => {}
                Some((_, state)) => {
                    if access.insert(group, *state).is_some() {
                        self.wrong(
                            &of.group,
                            format!("the state of group {group} is given twice"),
                        );
                    }
                }
                None => {
                    let names: Vec<&str> = ACCESS.iter().map(|(name, _)| *name).collect();
                    self.wrong(
                        &of.state,
                        format!("there is no such state; there are {}", names.join(", ")),
                    );
                }
            }
        }
        let cpus = form.cpus.unwrap_or_default();
        let cpus = cpus
            .iter()
            .map(|cpu| self.number("a processor", Some(cpu), 0, 0, 1023));
        let cpus = cpus.collect();
        let transfer_shift = self.transfer_shift(form.max_transfer.as_ref());
        // The buffers of a worker have 2 GiB together at most.
        let buffers = 1 << (14 + MAX_TRANSFER_SHIFT - transfer_shift);
        let port = PortSettings {
            adapter: form.adapter.get_ref().clone(),
            cpus,
            service: self.number("service", form.service.as_ref(), SERVICE, 1, 0xffff),
            workers: self.number("workers", form.workers.as_ref(), usual.workers, 1, 256),
            ios: self.number("ios", form.ios.as_ref(), usual.ios, 1, 1 << 16),
            buffers: self.number("buffers", form.buffers.as_ref(), usual.buffers, 1, buffers),
            transfer_shift,
            spin: self.number("spin", form.spin.as_ref(), usual.spin, 0, u32::MAX.into()),
            access,
        };
        let same = |(_, other): &(&u16, &PortSettings)| {
            other.adapter == port.adapter && other.service == port.service
        };
        if let Some((other, _)) = ports.iter().find(same) {
            self.wrong(
                &form.adapter,
                format!(
                    "port {other} listens there already: the same adapter, the same service {}",
                    port.service
                ),
            );
        }
        if ports.insert(id, port).is_some() {
            match &form.id {
                Some(given) => self.wrong(given, format!("there is a port {id} already")),
                None => self.wrong(&form.adapter, "no number is left for this port"),
            }
        }
    }

    fn subsystem(
        &mut self,
        form: SubsystemForm,
        strict: bool,
        subsystems: &mut BTreeMap<Nqn, SubsystemSettings>,
        uuids: &mut BTreeMap<Uuid, String>,
    ) {
        let Some(name) = self.name(&form.nqn) else {
            return;
        };
        let mut subsystem = SubsystemSettings::new(&name);
        subsystem.any_host = form.any_host;
        let queues = form.queues.as_ref();
        subsystem.queues = self.number("queues", queues, QUEUES, 1, QUEUES.into());
        if let Some(serial) = form.serial {
            self.ascii(&serial, 20);
            subsystem.serial = serial.into_inner();
        }
        if let Some(model) = form.model {
            self.ascii(&model, 40);
            subsystem.model = model.into_inner();
        }
        for host in form.host {
            let host_name = match Nqn::of_host(host.nqn.get_ref(), strict) {
                Ok(name) => name,
                Err(error) => {
                    self.wrong(&host.nqn, error.to_string());
                    continue;
                }
            };
            if let (None, Some(key)) = (&host.key, &host.controller_key) {
                self.wrong(key, "a host has a controller_key only beside its own key");
            }
            for key in [&host.key, &host.controller_key].into_iter().flatten() {
                self.names(Named::Key(key.get_ref().clone()), key);
            }
            let limit = (&host.ios_per_second, &host.bytes_per_second, &host.burst_ms);
            let limit = self.limit(limit);
            let settings = HostSettings {
                limit,
                key: host.key.map(Spanned::into_inner),
                controller_key: host.controller_key.map(Spanned::into_inner),
            };
            if subsystem.hosts.insert(host_name, settings).is_some() {
                self.wrong(&host.nqn, "this host is listed already");
            }
        }
        for namespace in form.namespace {
            self.namespace(&name, namespace, strict, &mut subsystem.namespaces, uuids);
        }
        if subsystems.insert(name, subsystem).is_some() {
            self.wrong(&form.nqn, "there is a subsystem of this name already");
        }
    }

    fn ascii(&mut self, given: &Spanned<String>, most: usize) {
        let text = given.get_ref();
        let is_good = text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
        if text.is_empty() || text.len() > most || !is_good {
            self.wrong(
                given,
                format!("this is 1 to {most} printable ASCII characters"),
            );
        }
    }

    fn namespace(
        &mut self,
        subsystem: &Nqn,
        form: Spanned<NamespaceForm>,
        strict: bool,
        namespaces: &mut BTreeMap<u32, NamespaceSettings>,
        uuids: &mut BTreeMap<Uuid, String>,
    ) {
        let head = form.span();
        let whole = head.start..head.start;
        let form = form.into_inner();
        let free = (1..=NAMESPACES).find(|nsid| !namespaces.contains_key(nsid));
        let nsid = self.number(
            "nsid",
            form.nsid.as_ref(),
            free.unwrap_or(1),
            1,
            NAMESPACES.into(),
        );
        let mut sources = Vec::new();
        if let Some(path) = &form.file {
            sources.push(Source::File(path.get_ref().clone()));
        }
        if let Some(name) = &form.descriptor {
            sources.push(Source::Given(name.get_ref().clone()));
        }
        if let Some(bytes) = &form.memory {
            sources.push(Source::Memory(self.size(bytes)));
        }
        if let Some(bytes) = &form.faulty {
            sources.push(Source::Faulty(self.size(bytes)));
        }
        if let Some(bytes) = &form.null {
            sources.push(Source::Null(self.size(bytes)));
        }
        if let Some(address) = &form.disk {
            match address.get_ref().parse::<SsdAddress>() {
                Ok(parsed) => {
                    let function = Named::Ssd(parsed.function.clone());
                    self.names(function, address);
                    sources.push(Source::Ssd(parsed));
                }
                Err(error) => {
                    let what = "disk is the PCI address of an NVMe SSD, such as \"0000:5e:00.0\"";
                    return self.wrong(address, format!("{what}: {error}"));
                }
            }
        }
        if sources.len() != 1 {
            let what = "a namespace has one of file, descriptor, disk, memory, faulty and null";
            self.mistakes.push(Mistake::at(self.text, &whole, what));
        }
        let Some(source) = sources.into_iter().next() else {
            return;
        };
        let mut settings = NamespaceSettings::new(subsystem, nsid, source);
        settings.read_only = form.read_only;
        settings.group = self.number("group", form.group.as_ref(), 1, 1, GROUPS.into());
        if let Some(bytes) = &form.block_size {
            match bytes.get_ref() {
                512 => settings.shift = 9,
                4096 => settings.shift = 12,
                _ => self.wrong(bytes, "block_size is 512 or 4096"),
            }
        }
        let limit = (&form.ios_per_second, &form.bytes_per_second, &form.burst_ms);
        settings.limit = self.limit(limit);
        let hosts = form.hosts.as_deref();
        settings.hosts = hosts.map(|hosts| self.hosts(hosts, strict));
        let block = 1 << settings.shift;
        if let Some(path) = &form.file {
            let file = Named::File {
                path: path.get_ref().clone(),
                block,
                read_only: form.read_only,
            };
            self.names(file, path);
        }
        let in_memory = [&form.memory, &form.faulty, &form.null];
        for given in in_memory.into_iter().flatten() {
            self.whole_blocks(given, settings.shift);
        }
        if let Some(lock) = &form.lock {
            settings.lock = *lock.get_ref();
            if !matches!(settings.source, Source::File(_) | Source::Given(_)) {
                self.wrong(lock, "lock is for a file, a block device or a descriptor");
            }
        }
        if let Some(uuid) = &form.uuid {
            match uuid.get_ref().parse() {
                Ok(uuid) => settings.uuid = uuid,
                Err(_) => self.wrong(
                    uuid,
                    "this is no UUID, such as 0b5c3a46-6a3f-4b7e-9f3d-2a1c8e5d7f90",
                ),
            }
        }
        let here = format!("namespace {nsid} of {subsystem}");
        let at = form.uuid.as_ref().map_or(whole.clone(), Spanned::span);
        if let Some(other) = uuids.insert(settings.uuid, here)
            && !namespaces.contains_key(&nsid)
        {
            let what = format!("{} is the identifier of {other} already", settings.uuid);
            self.mistakes.push(Mistake::at(self.text, &at, what));
        }
        if namespaces.insert(nsid, settings).is_some() {
            let at = form.nsid.as_ref().map_or(whole, Spanned::span);
            let what = format!("there is a namespace {nsid} already");
            self.mistakes.push(Mistake::at(self.text, &at, what));
        }
    }

    fn size(&mut self, given: &Spanned<Size>) -> u64 {
        let bytes = given.get_ref().bytes();
        if bytes.is_none() {
            self.wrong(
                given,
                "a size is bytes, or a text such as \"64MiB\": KiB, MiB, GiB, TiB",
            );
        }
        bytes.unwrap_or(0)
    }
}

impl Reader<'_> {
    /// Returns MDTS of a port.
    fn transfer_shift(&mut self, given: Option<&Spanned<Size>>) -> u8 {
        let Some(given) = given else {
            return MAX_TRANSFER_SHIFT;
        };
        let bytes = self.size(given);
        let known = MAX_TRANSFER_SHIFT..=LARGEST_TRANSFER_SHIFT;
        let found = known.into_iter().find(|shift| 4096 << shift == bytes);
        if found.is_none() && given.get_ref().bytes().is_some() {
            let what = "max_transfer is \"128KiB\", \"256KiB\", \"512KiB\" or \"1MiB\"";
            self.wrong(given, what);
        }
        found.unwrap_or(MAX_TRANSFER_SHIFT)
    }

    /// Returns the hosts that see a namespace.
    fn hosts(&mut self, given: &[Spanned<String>], strict: bool) -> BTreeSet<Nqn> {
        let mut hosts = BTreeSet::new();
        for host in given {
            match Nqn::of_host(host.get_ref(), strict) {
                Ok(name) if hosts.insert(name.clone()) => {}
                Ok(_) => self.wrong(host, "this host is listed already"),
                Err(error) => self.wrong(host, error.to_string()),
            }
        }
        hosts
    }

    /// Returns the limit of a namespace or a host; `None` if it has none.
    fn limit(&mut self, (ios, bytes, burst): LimitForm<'_>) -> Option<Limit> {
        let ios_per_second = ios.as_ref().map(|given| {
            let (least, most) = (Limit::LEAST_IOS, Limit::MOST);
            self.number("ios_per_second", Some(given), least, least, most)
        });
        let bytes_per_second = bytes.as_ref().map(|given| {
            let (least, most) = (Limit::LEAST_BYTES, Limit::MOST);
            let bytes = self.size(given);
            let is_size = given.get_ref().bytes().is_some();
            if is_size && !(least..=most).contains(&bytes) {
                self.wrong(given, format!("bytes_per_second is {least} to {most}"));
            }
            bytes
        });
        let most = Limit::LONGEST_BURST.as_secs() * 1000;
        // CAST: the default burst is a tenth of a second.
        #[expect(clippy::cast_possible_truncation, reason = "a tenth of a second")]
        let usual = Limit::USUAL_BURST.as_millis() as u64;
        let burst_ms = self.number("burst_ms", burst.as_ref(), usual, 0, most);
        if ios_per_second.is_none() && bytes_per_second.is_none() {
            if let Some(given) = burst {
                let what = "burst_ms comes with ios_per_second or bytes_per_second";
                self.wrong(given, what);
            }
            return None;
        }
        Some(Limit {
            ios_per_second,
            bytes_per_second,
            burst: Duration::from_millis(burst_ms),
        })
    }

    /// Reports a mistake if a size of memory is not a multiple of the block size.
    fn whole_blocks(&mut self, given: &Spanned<Size>, shift: u8) {
        let bytes = given.get_ref().bytes();
        let (block, left) = (1_u64 << shift, bytes.unwrap_or(0) % (1 << shift));
        if left != 0 {
            let what = format!("this is no multiple of the block, {block} bytes: {left} are over");
            self.wrong(given, what);
        }
    }
}

/// Parses a size such as `64MiB`; without a unit the number is in bytes.
pub(super) fn bytes_of(text: &str) -> Option<u64> {
    const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let unit = UNITS.iter().find(|(unit, _)| text.ends_with(unit));
    let (number, shift) = unit.map_or((text, 0), |(unit, shift)| {
        (&text[..text.len() - unit.len()], *shift)
    });
    let number: u64 = number.trim().parse().ok()?;
    number.checked_mul(1 << shift)
}
