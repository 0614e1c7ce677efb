//! SPDK's target, as `rpc.py save_config` writes it: calls, in the order in which they are made.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::{Map, Value};
use uuid::Uuid;

use super::{Import, address, flag, identifier, is_rdma, number};
use crate::daemon::settings::{HostSettings, NamespaceSettings};
use crate::disk::Source;
use crate::disk::ssd::SsdAddress;
use crate::model::{Limit, ModelError, NAMESPACES};
use crate::nvme::Nqn;

/// A block device.
struct Bdev {
    source: Source,
    /// Block size as a power of two; `None` if it is that of the device.
    shift: Option<u8>,
    uuid: Option<Uuid>,
}

/// The block devices by name, the SSDs by the name of their controller, and the limits of block devices by name.
#[derive(Default)]
struct Bdevs {
    all: BTreeMap<String, Bdev>,
    ssds: BTreeMap<String, String>,
    limits: BTreeMap<String, Limit>,
}

impl Bdevs {
    /// Returns a block device. The namespaces of an SSD have the name of their controller with `n` and their number.
    fn find(&self, name: &str) -> Option<(Source, Option<u8>, Option<Uuid>)> {
        if let Some(bdev) = self.all.get(name) {
            return Some((bdev.source.clone(), bdev.shift, bdev.uuid));
        }
        let (controller, nsid) = name.rsplit_once('n')?;
        let function = self.ssds.get(controller)?.clone();
        let nsid = nsid.parse().ok()?;
        Some((Source::Ssd(SsdAddress { function, nsid }), None, None))
    }
}

/// Returns the block size as a power of two, if it is one that a namespace may have.
fn shift(params: &Map<String, Value>) -> Option<u8> {
    match number(params.get("block_size")) {
        Some(512) => Some(9),
        Some(4096) => Some(12),
        _ => None,
    }
}

fn text<'a>(params: &'a Map<String, Value>, key: &str) -> &'a str {
    params.get(key).and_then(Value::as_str).unwrap_or_default()
}

impl Import<'_> {
    pub(super) fn spdk(&mut self, whole: &Value) {
        let mut bdevs = Bdevs::default();
        let none = Map::new();
        let sections = whole.get("subsystems").and_then(Value::as_array);
        for section in sections.into_iter().flatten() {
            let name = section.get("subsystem").and_then(Value::as_str);
            let calls = section.get("config").and_then(Value::as_array);
            for call in calls.into_iter().flatten() {
                let method = call
                    .get("method")
                    .and_then(Value::as_str)
                    .unwrap_or_default();
                let params = call
                    .get("params")
                    .and_then(Value::as_object)
                    .unwrap_or(&none);
                match name {
                    Some("bdev") => self.bdev(method, params, &mut bdevs),
                    Some("nvmf") => self.nvmf(method, params, &bdevs),
                    // Threads, memory and sockets of SPDK itself.
                    Some("accel" | "iobuf" | "keyring" | "scheduler" | "sock" | "vmd") => {}
                    Some(_) | None => self.note(format!("`{method}` has no equal")),
                }
            }
        }
    }

    fn bdev(&mut self, method: &str, params: &Map<String, Value>, bdevs: &mut Bdevs) {
        let name = text(params, "name").to_owned();
        let source = match method {
            // Settings of all block devices, which hosts do not see.
            "bdev_set_options"
            | "bdev_nvme_set_options"
            | "bdev_nvme_set_hotplug"
            | "bdev_wait_for_examine"
            | "bdev_iscsi_set_options" => return,
            "bdev_set_qos_limit" => return self.limit(name, params, bdevs),
            "bdev_aio_create" | "bdev_uring_create" => {
                Source::File(PathBuf::from(text(params, "filename")))
            }
            "bdev_malloc_create" | "bdev_null_create" => {
                let blocks = number(params.get("num_blocks")).unwrap_or(0);
                let block = number(params.get("block_size")).unwrap_or(512);
                let bytes = blocks.saturating_mul(block);
                if method == "bdev_null_create" {
                    Source::Null(bytes)
                } else {
                    Source::Memory(bytes)
                }
            }
            "bdev_nvme_attach_controller" => {
                let at = text(params, "traddr");
                // SPDK also takes points in the place of colons.
                let address = at.replacen('.', ":", at.matches('.').count().saturating_sub(1));
                let parsed = address.parse::<SsdAddress>();
                match parsed
                    .ok()
                    .filter(|_| text(params, "trtype").eq_ignore_ascii_case("pcie"))
                {
                    Some(address) => drop(bdevs.ssds.insert(name, address.function)),
                    None => self.note(format!("bdev {name}: an SSD at {at:?} has no equal")),
                }
                return;
            }
            _ => {
                return self.note(format!(
                    "bdev {name}: `{method}` has no equal, nor has a namespace on it"
                ));
            }
        };
        let bdev = Bdev {
            source,
            shift: shift(params),
            uuid: identifier(params.get("uuid")),
        };
        bdevs.all.insert(name, bdev);
    }

    /// Takes over the limit of a block device. SPDK counts in MiB, and 0 is no limit.
    fn limit(&mut self, name: String, params: &Map<String, Value>, bdevs: &mut Bdevs) {
        let rate = |key| number(params.get(key)).filter(|rate| *rate != 0);
        let limit = Limit {
            ios_per_second: rate("rw_ios_per_sec"),
            bytes_per_second: rate("rw_mbytes_per_sec").map(|mib| mib.saturating_mul(1 << 20)),
            burst: Limit::USUAL_BURST,
        };
        let of = format!("bdev {name}");
        for key in ["r_mbytes_per_sec", "w_mbytes_per_sec"] {
            if let Some(rate) = rate(key) {
                self.note(format!("{of}: a limit `{key}` = {rate} has no equal"));
            }
        }
        if limit.is_valid() {
            bdevs.limits.insert(name, limit);
        } else if limit.ios_per_second.or(limit.bytes_per_second).is_some() {
            self.note(format!(
                "{of}: its limit is left out: {}",
                ModelError::Limit
            ));
        }
    }

    fn nvmf(&mut self, method: &str, params: &Map<String, Value>, bdevs: &Bdevs) {
        let name = text(params, "nqn").to_owned();
        let of = format!("subsystem {name}");
        match method {
            "nvmf_set_config" | "nvmf_set_max_subsystems" | "nvmf_set_crdt" => {}
            "nvmf_create_transport" => {
                if !is_rdma(params) {
                    let kind = text(params, "trtype");
                    self.note(format!("transport {kind} has no equal"));
                }
            }
            "nvmf_create_subsystem" => {
                let serial = self.text(&of, params.get("serial_number"), 20);
                let model = self.text(&of, params.get("model_number"), 40);
                let Some((_, settings)) = self.subsystem(&name) else {
                    return;
                };
                settings.any_host = flag(params.get("allow_any_host")).unwrap_or(false);
                if let Some(serial) = serial {
                    settings.serial = serial;
                }
                if let Some(model) = model {
                    settings.model = model;
                }
                let known = [
                    "nqn",
                    "serial_number",
                    "model_number",
                    "allow_any_host",
                    // Numbers of controllers and namespaces follow from the target.
                    "min_cntlid",
                    "max_cntlid",
                    "max_namespaces",
                    "ana_reporting",
                ];
                self.note_others(&of, params, &known);
            }
            "nvmf_subsystem_allow_any_host" => {
                let allowed = flag(params.get("allow_any_host")).unwrap_or(true);
                if let Some((_, settings)) = self.subsystem(&name) {
                    settings.any_host = allowed;
                }
            }
            "nvmf_subsystem_add_host" => self.nvmf_host(&of, &name, params),
            "nvmf_subsystem_add_ns" => self.nvmf_namespace(&name, params, bdevs),
            "nvmf_ns_add_host" => self.nvmf_visible(&of, &name, params),
            "nvmf_subsystem_add_listener" => self.nvmf_listener(&of, params),
            _ => self.note(format!("{of}: `{method}` has no equal")),
        }
    }

    fn nvmf_host(&mut self, of: &str, name: &str, params: &Map<String, Value>) {
        let host = text(params, "host");
        match host.parse::<Nqn>() {
            Ok(host) => {
                if let Some((_, settings)) = self.subsystem(name) {
                    settings.hosts.insert(host, HostSettings::default());
                }
            }
            Err(error) => self.note(format!("{of}: host {host} is left out: {error}")),
        }
        for key in ["dhchap_key", "dhchap_ctrlr_key", "psk"] {
            if !text(params, key).is_empty() {
                self.note(format!(
                    "{of}: host {host}: `{key}` is the name of a key; name its file by `key` or `controller_key`"
                ));
            }
        }
    }

    /// Shows a namespace to a host.
    fn nvmf_visible(&mut self, of: &str, name: &str, params: &Map<String, Value>) {
        let host = text(params, "host");
        let host = match host.parse::<Nqn>() {
            Ok(host) => host,
            Err(error) => return self.note(format!("{of}: host {host} is left out: {error}")),
        };
        let nsid = number(params.get("nsid")).and_then(|nsid| u32::try_from(nsid).ok());
        let there = self.subsystem(name).and_then(|(_, settings)| {
            let namespace = settings.namespaces.get_mut(&nsid?)?;
            namespace.hosts.get_or_insert_default().insert(host);
            Some(())
        });
        if there.is_none() {
            let nsid = params.get("nsid").cloned().unwrap_or_default();
            self.note(format!(
                "{of}: `nvmf_ns_add_host` is left out: there is no namespace {nsid} here"
            ));
        }
    }

    fn nvmf_namespace(&mut self, name: &str, params: &Map<String, Value>, bdevs: &Bdevs) {
        let Some(object) = params.get("namespace").and_then(Value::as_object) else {
            return;
        };
        let bdev = text(object, "bdev_name");
        let uuid = identifier(object.get("uuid"));
        let group = number(object.get("anagrpid"));
        let wanted = number(object.get("nsid"));
        let Some((subsystem, settings)) = self.subsystem(name) else {
            return;
        };
        let free = (1..=NAMESPACES).find(|nsid| !settings.namespaces.contains_key(nsid));
        let nsid = match wanted {
            Some(wanted) => u32::try_from(wanted).ok(),
            None => free,
        };
        let nsid = nsid.filter(|nsid| (1..=NAMESPACES).contains(nsid));
        let of = format!("bdev {bdev} of {subsystem}");
        let Some(nsid) = nsid else {
            return self.note(format!(
                "{of} is left out: there are 1 to {NAMESPACES} namespaces"
            ));
        };
        let of = format!("namespace {nsid} of {subsystem}");
        let Some((source, shift, of_bdev)) = bdevs.find(bdev) else {
            return self.note(format!("{of} is left out: there is no bdev {bdev} here"));
        };
        let mut namespace = NamespaceSettings::new(&subsystem, nsid, source);
        match uuid.or(of_bdev) {
            Some(uuid) => namespace.uuid = uuid,
            None => self.note(format!(
                "{of}: SPDK derives its identifier from the disk; hosts see {} here",
                namespace.uuid
            )),
        }
        match shift {
            Some(shift) => namespace.shift = shift,
            None => self.note(format!(
                "{of}: `block_size` is 512 here; compare it with that of the disk, which hosts know"
            )),
        }
        namespace.limit = bdevs.limits.get(bdev).copied();
        if let Some(group) = group.and_then(|group| u32::try_from(group).ok()) {
            namespace.group = group;
        }
        if flag(object.get("no_auto_visible")) == Some(true) {
            namespace.hosts = Some(BTreeSet::new());
        }
        let known = [
            "bdev_name",
            "nsid",
            "uuid",
            "nguid",
            "eui64",
            "anagrpid",
            "no_auto_visible",
        ];
        self.note_others(&of, object, &known);
        if let Some((_, settings)) = self.subsystem(name) {
            settings.namespaces.insert(nsid, namespace);
        }
    }

    fn nvmf_listener(&mut self, of: &str, params: &Map<String, Value>) {
        let Some(listens) = params.get("listen_address").and_then(Value::as_object) else {
            return;
        };
        let at = text(listens, "traddr").to_owned();
        if !is_rdma(listens) {
            let kind = text(listens, "trtype");
            return self.note(format!("{of}: a listener by {kind} at {at} is left out"));
        }
        match address(listens) {
            // Several subsystems have the same listener, which is one port here.
            Some(at) => drop(self.port(&format!("listener {at}"), None, at)),
            None => self.note(format!("{of}: a listener at {at} is left out")),
        }
        if flag(params.get("secure_channel")) == Some(true) {
            self.note(format!("{of}: a secure channel has no equal"));
        }
    }
}
