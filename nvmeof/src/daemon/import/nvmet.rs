//! The kernel's target, as nvmetcli saves it (`/etc/nvmet/config.json`).

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Map, Value};

use super::{Import, address, flag, identifier, is_rdma, number};
use crate::daemon::file::ACCESS;
use crate::daemon::settings::{HostSettings, NamespaceSettings};
use crate::disk::Source;
use crate::model::{LARGEST_TRANSFER_SHIFT, MAX_TRANSFER_SHIFT, NAMESPACES, QUEUES};
use crate::nvme::Nqn;
use crate::nvme::log::Access;

/// Block size that the kernel's target gives a file, as a power of two: that of most file systems.
const FILE_SHIFT: u8 = 12;

fn objects(value: Option<&Value>) -> impl Iterator<Item = &Map<String, Value>> {
    let all = value.and_then(Value::as_array);
    all.into_iter().flatten().filter_map(Value::as_object)
}

fn texts(value: Option<&Value>) -> impl Iterator<Item = &str> {
    let all = value.and_then(Value::as_array);
    all.into_iter().flatten().filter_map(Value::as_str)
}

impl Import<'_> {
    pub(super) fn nvmet(&mut self, whole: &Value) {
        for subsystem in objects(whole.get("subsystems")) {
            self.nvmet_subsystem(subsystem);
        }
        for port in objects(whole.get("ports")) {
            self.nvmet_port(port);
        }
        for host in objects(whole.get("hosts")) {
            self.nvmet_host(host);
        }
        if let Some(whole) = whole.as_object() {
            self.note_others("the file", whole, &["hosts", "ports", "subsystems"]);
        }
    }

    fn nvmet_subsystem(&mut self, object: &Map<String, Value>) {
        let name = object
            .get("nqn")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let of = format!("subsystem {name}");
        let attributes = object.get("attr").and_then(Value::as_object);
        let attribute = |key| attributes.and_then(|all| all.get(key));
        let serial = self.text(&of, attribute("serial"), 20);
        let model = self.text(&of, attribute("model"), 40);
        let Some((nqn, settings)) = self.subsystem(name) else {
            return;
        };
        settings.any_host = flag(attribute("allow_any_host")).unwrap_or(false);
        if let Some(serial) = serial {
            settings.serial = serial;
        }
        if let Some(model) = model {
            settings.model = model;
        }
        let queues = number(attribute("qid_max")).and_then(|most| u16::try_from(most).ok());
        let queues = queues.filter(|queues| (1..=QUEUES).contains(queues));
        if let Some(queues) = queues {
            settings.queues = queues;
        }
        let mut strange = Vec::new();
        for host in texts(object.get("allowed_hosts")) {
            match host.parse::<Nqn>() {
                Ok(host) => drop(settings.hosts.insert(host, HostSettings::default())),
                Err(error) => strange.push(format!("{of}: host {host} is left out: {error}")),
            }
        }
        for what in strange {
            self.note(what);
        }
        if let Some(attributes) = attributes {
            let mut known = vec!["allow_any_host", "serial", "model"];
            known.extend(queues.map(|_| "qid_max"));
            // The version that hosts see, and the range of controller numbers, follow from the target.
            let silent = ["version", "cntlid_min", "cntlid_max"];
            self.note_others(&of, attributes, &[&known[..], &silent[..]].concat());
        }
        self.note_others(&of, object, &["nqn", "attr", "allowed_hosts", "namespaces"]);
        for namespace in objects(object.get("namespaces")) {
            self.nvmet_namespace(&nqn, namespace);
        }
    }

    fn nvmet_namespace(&mut self, subsystem: &Nqn, object: &Map<String, Value>) {
        let nsid = number(object.get("nsid")).unwrap_or(0);
        let of = format!("namespace {nsid} of {subsystem}");
        let nsid = u32::try_from(nsid).ok();
        let Some(nsid) = nsid.filter(|nsid| (1..=NAMESPACES).contains(nsid)) else {
            return self.note(format!("{of} is left out: there are 1 to {NAMESPACES}"));
        };
        let device = object.get("device").and_then(Value::as_object);
        let path = device
            .and_then(|device| device.get("path"))
            .and_then(Value::as_str);
        let Some(path) = path else {
            return self.note(format!("{of} is left out: it has no path"));
        };
        if flag(object.get("enable")) == Some(false) {
            return self.note(format!("{of} is left out: it is not enabled"));
        }
        let path = PathBuf::from(path);
        let is_file = std::fs::metadata(&path).is_ok_and(|there| there.is_file());
        let mut settings = NamespaceSettings::new(subsystem, nsid, Source::File(path));
        if is_file {
            settings.shift = FILE_SHIFT;
        } else {
            self.note(format!(
                "{of}: `block_size` is 512 here; compare it with that of the device (blockdev --getss), which hosts know"
            ));
        }
        let [uuid, nguid] = ["uuid", "nguid"].map(|key| {
            let value = device.and_then(|device| device.get(key));
            identifier(value)
        });
        match (uuid, nguid) {
            (Some(uuid), nguid) => {
                settings.uuid = uuid;
                if nguid.is_some_and(|nguid| nguid != uuid) {
                    self.note(format!("{of}: its NGUID becomes that of `uuid`"));
                }
            }
            (None, Some(nguid)) => settings.uuid = nguid,
            (None, None) => self.note(format!(
                "{of}: it has no identifier; hosts see {}",
                settings.uuid
            )),
        }
        if let Some(group) = number(object.get("ana_grpid")) {
            settings.group = u32::try_from(group).unwrap_or(1);
        }
        if let Some(device) = device {
            self.note_others(&of, device, &["path", "uuid", "nguid"]);
        }
        self.note_others(&of, object, &["nsid", "device", "enable", "ana_grpid"]);
        if let Some((_, of_subsystem)) = self.subsystem(subsystem.as_str()) {
            of_subsystem.namespaces.insert(nsid, settings);
        }
    }

    fn nvmet_port(&mut self, object: &Map<String, Value>) {
        let number_of = number(object.get("portid")).unwrap_or(0);
        let of = format!("port {number_of}");
        let Some(listens) = object.get("addr").and_then(Value::as_object) else {
            return self.note(format!("{of} is left out: it has no address"));
        };
        if !is_rdma(listens) {
            let kind = listens.get("trtype").cloned().unwrap_or_default();
            return self.note(format!("{of} is left out: its transport is {kind}"));
        }
        let Some(at) = address(listens) else {
            let text = listens.get("traddr").cloned().unwrap_or_default();
            return self.note(format!("{of} is left out: its address is {text}"));
        };
        let Some(id) = self.port(&of, u16::try_from(number_of).ok(), at) else {
            return self.note(format!("{of} is left out: another port has its address"));
        };
        let mut access = Vec::new();
        for group in objects(object.get("ana_groups")) {
            let state = group.get("ana").and_then(|ana| ana.get("state"));
            let state = state.and_then(Value::as_str).unwrap_or_default();
            let known = ACCESS.iter().find(|(name, _)| *name == state);
            match (number(group.get("grpid")), known) {
                (Some(_), Some((_, Access::Optimized))) => {}
                (Some(group), Some((_, state))) => access.push((group, *state)),
                _ => self.note(format!("{of}: access {state:?} has no equal")),
            }
        }
        if let Some(port) = self.settings.ports.get_mut(&id) {
            let all = access.into_iter();
            port.access
                .extend(all.filter_map(|(group, state)| Some((u32::try_from(group).ok()?, state))));
        }
        let shown: BTreeSet<&str> = texts(object.get("subsystems")).collect();
        let names = self.settings.subsystems.keys();
        let hidden: Vec<String> = names
            .map(|name| name.as_str().to_owned())
            .filter(|name| !shown.contains(name.as_str()))
            .collect();
        for name in hidden {
            self.note(format!(
                "{of}: {name} is not there, and every port has all subsystems here"
            ));
        }
        for referral in objects(object.get("referrals")) {
            let to = referral.get("addr").and_then(Value::as_object);
            match to.filter(|to| is_rdma(to)).and_then(address) {
                Some(at) => drop(self.settings.referrals.insert(at, id)),
                None => self.note(format!("{of}: a referral to another transport is left out")),
            }
        }
        let param = object.get("param").and_then(Value::as_object);
        if let Some(param) = param {
            // MDTS, as here: the data of an I/O is 4 KiB shifted left by this number at most.
            let shift = number(param.get("mdts")).and_then(|shift| u8::try_from(shift).ok());
            let shift =
                shift.filter(|it| (MAX_TRANSFER_SHIFT..=LARGEST_TRANSFER_SHIFT).contains(it));
            if let (Some(shift), Some(port)) = (shift, self.settings.ports.get_mut(&id)) {
                port.transfer_shift = shift;
            }
            let known: &[&str] = if shift.is_some() { &["mdts"] } else { &[] };
            self.note_others(&of, param, known);
        }
        let known = [
            "addr",
            "ana_groups",
            "param",
            "portid",
            "referrals",
            "subsystems",
        ];
        self.note_others(&of, object, &known);
        let known = ["adrfam", "traddr", "treq", "trsvcid", "trtype"];
        self.note_others(&of, listens, &known);
    }

    fn nvmet_host(&mut self, object: &Map<String, Value>) {
        let name = object
            .get("nqn")
            .and_then(Value::as_str)
            .unwrap_or_default();
        for (key, value) in object {
            if key.starts_with("dhchap") && value.as_str().is_some_and(|text| !text.is_empty()) {
                self.note(format!(
                    "host {name}: `{key}` is not shown here; write it to a file, and name that by `key` or `controller_key`"
                ));
            } else if key != "nqn" && !key.starts_with("dhchap") {
                self.note(format!("host {name}: `{key}` = {value} has no equal"));
            }
        }
    }
}
