//! `nvmeofd nvmetcli`: carries out commands of nvmetcli, the shell of the kernel's target, at a running daemon. So
//! programs that configure the kernel's target by that shell, such as democratic-csi, configure this one.
//!
//! The commands are read from the standard input, a line each: `cd`, `ls`, `create`, `delete`, `set`, `enable`,
//! `disable`, `saveconfig` and `exit`. A command that finds done what it asks for has succeeded, so that a program may
//! repeat its commands. One that cannot be carried out is reported, the others are carried out all the same, and the
//! exit status is 1.
//!
//! ```text
//!   /subsystems/NQN                     set attr allow_any_host= qid_max= serial= model=
//!   /subsystems/NQN/allowed_hosts       create, delete
//!   /subsystems/NQN/namespaces/N        set device path= uuid=; set ana_grpid grpid=; enable, disable
//!   /ports/N/subsystems                 create, delete: every port has all subsystems here
//!   /hosts                              create, delete: a host is there as soon as a subsystem allows it
//! ```
//!
//! The daemon has no disabled namespaces. One that is disabled is removed, and its settings stay with this program
//! until it is enabled again. At the end of the lines it must be enabled or deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::io::{BufRead, Read as _, Write as _, stderr, stdin, stdout};
use std::path::PathBuf;

use control::{Client, Side};
use serde_json::{Map, Value, json};

/// Maximum number of bytes that are read.
const LONGEST: u64 = 1 << 20;

const NO_SUBSYSTEM: &str = "there is no such subsystem";

/// Arguments of `nvmeofd nvmetcli`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The control socket.
    socket: PathBuf,
}

/// A subsystem or a namespace that was created, and not added to the daemon yet, because its attributes follow.
type Attributes = Map<String, Value>;

struct Shell {
    client: Client,
    /// The place that `cd` has gone to.
    at: Vec<String>,
    subsystems: BTreeMap<String, Attributes>,
    namespaces: BTreeMap<(String, u32), Attributes>,
    /// Namespaces that were disabled and not enabled again.
    disabled: BTreeSet<(String, u32)>,
    /// Subsystems that were taken from a port. Each must be deleted, because every port has all subsystems.
    unexported: BTreeSet<String>,
}

/// Carries the commands out. Returns an error if one of them cannot be carried out.
pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let mut shell = Shell {
        client: Client::connect_alike(&options.socket, Side::Target)?,
        at: Vec::new(),
        subsystems: BTreeMap::new(),
        namespaces: BTreeMap::new(),
        disabled: BTreeSet::new(),
        unexported: BTreeSet::new(),
    };
    let (mut failed, mut count, mut bytes) = (0, 0, 0);
    // One byte more than is carried out, so that a line that is cut is one too many.
    for line in stdin().lock().take(LONGEST + 1).lines() {
        let line = line?;
        count += 1;
        bytes += line.len() as u64 + 1; // CAST: widening.
        if bytes > LONGEST {
            failed += 1;
            let told = "this line and the following ones are not carried out";
            writeln!(
                stderr(),
                "nvmeofd: line {count}: {told}: more than {LONGEST} bytes"
            )?;
            break;
        }
        match shell.line(&line) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                failed += 1;
                writeln!(stderr(), "nvmeofd: line {count}: {}: {error}", line.trim())?;
            }
        }
    }
    let left = shell.finish()?;
    for one in &left {
        writeln!(stderr(), "nvmeofd: {one}")?;
    }
    match (failed, left.is_empty()) {
        (0, true) => Ok(()),
        (0, false) => Err("all lines were carried out, but not all is as they say".into()),
        _ => Err(format!("{failed} of {count} lines were not carried out").into()),
    }
}

/// Returns the values of `KEY=VALUE` words.
fn values<'a>(words: &[&'a str]) -> Result<Vec<(&'a str, &'a str)>, String> {
    let pairs = words.iter().map(|word| {
        let pair = word.split_once('=');
        pair.ok_or_else(|| format!("{word:?} is no KEY=VALUE"))
    });
    pairs.collect()
}

fn number(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_not| format!("{text:?} is no number"))
}

fn flag(text: &str) -> Result<bool, String> {
    match text {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err(format!("{text:?} is neither 0 nor 1")),
    }
}

impl Shell {
    /// Carries out a line. Returns false if it is the last one.
    fn line(&mut self, line: &str) -> Result<bool, Box<dyn Error>> {
        let line = line.trim();
        let mut words: Vec<&str> = line.split_whitespace().collect();
        if words.is_empty() || line.starts_with('#') {
            return Ok(true);
        }
        let mut at = self.at.clone();
        // A path before the command is the place of this command alone.
        if words[0].starts_with(['/', '.']) {
            at = place(&at, words.remove(0));
        }
        let Some((command, rest)) = words.split_first() else {
            self.at = at;
            return Ok(true);
        };
        let path: Vec<&str> = at.iter().map(String::as_str).collect();
        match (*command, rest) {
            ("exit", _) => return Ok(false),
            ("cd", []) => self.at.clear(),
            ("cd", [to]) => self.at = place(&at, to),
            ("cd", _) => {
                // Commands that follow must not be carried out at the earlier place.
                self.at = vec!["(nowhere)".to_owned()];
                return Err("a path is one word; the lines up to the next cd have no place".into());
            }
            ("ls", _) => self.list()?,
            ("create", [name]) => self.create(&path, name)?,
            ("delete", [name]) => self.delete(&path, name)?,
            ("set", [group, rest @ ..]) => self.set(&path, group, &values(rest)?)?,
            ("enable", []) => self.enable(&path)?,
            ("disable", []) => match path[..] {
                ["subsystems", nqn, "namespaces", nsid] => self.disable(nqn, number(nsid)?)?,
                _ => return Err("only namespaces are disabled".into()),
            },
            ("saveconfig", _) => self.save()?,
            _ => return Err("there is no such command here".into()),
        }
        Ok(true)
    }

    fn call(&mut self, method: &str, params: Value) -> Result<Value, Box<dyn Error>> {
        Ok(self.client.call(method, params)?)
    }

    /// Returns the status of a subsystem; `None` if the daemon has none of this name.
    fn subsystem(&mut self, nqn: &str) -> Result<Option<Value>, Box<dyn Error>> {
        let status = self.call("status", Value::Null)?;
        let all = status["subsystems"].as_array();
        let mut all = all.into_iter().flatten();
        Ok(all.find(|one| one["nqn"] == nqn).cloned())
    }

    /// Returns the status of a namespace; `None` if the subsystem has none of this number.
    fn namespace(&mut self, nqn: &str, nsid: u32) -> Result<Option<Value>, Box<dyn Error>> {
        let of = self.subsystem(nqn)?;
        let all = of.as_ref().and_then(|of| of["namespaces"].as_array());
        let mut all = all.into_iter().flatten();
        Ok(all.find(|one| one["nsid"] == nsid).cloned())
    }

    fn list(&mut self) -> Result<(), Box<dyn Error>> {
        let status = self.call("status", Value::Null)?;
        let mut out = String::from("o- /\n  o- ports\n");
        for port in status["ports"].as_array().into_iter().flatten() {
            out += &format!("    o- {} [{}]\n", port["id"], port["addresses"]);
        }
        out += "  o- subsystems\n";
        for of in status["subsystems"].as_array().into_iter().flatten() {
            out += &format!("    o- {}\n", of["nqn"].as_str().unwrap_or_default());
            for one in of["namespaces"].as_array().into_iter().flatten() {
                let disk = one["disk"].as_str().unwrap_or_default();
                out += &format!("      o- {} [{disk}]\n", one["nsid"]);
            }
        }
        stdout().write_all(out.as_bytes())?;
        Ok(())
    }

    fn create(&mut self, path: &[&str], name: &str) -> Result<(), Box<dyn Error>> {
        match *path {
            ["subsystems"] => {
                if self.subsystem(name)?.is_none() {
                    self.subsystems.entry(name.to_owned()).or_default();
                }
                Ok(())
            }
            ["subsystems", nqn, "namespaces"] => {
                let nsid = number(name)?;
                if !self.subsystems.contains_key(nqn) && self.subsystem(nqn)?.is_none() {
                    return Err(NO_SUBSYSTEM.into());
                }
                if self.namespace(nqn, nsid)?.is_none() {
                    self.namespaces.entry((nqn.to_owned(), nsid)).or_default();
                }
                Ok(())
            }
            ["subsystems", nqn, "allowed_hosts"] => {
                self.add(nqn)?;
                // A host that is allowed already keeps its key.
                if !self.allows(nqn, name)? {
                    let params = json!({ "subsystem": nqn, "host": name });
                    self.call("host.allow", params)?;
                }
                Ok(())
            }
            ["ports", port, "subsystems"] => {
                self.add(name)?;
                self.subsystem(name)?.ok_or(NO_SUBSYSTEM)?;
                self.unexported.remove(name);
                let (port, status) = (number(port)?, self.call("status", Value::Null)?);
                let all = status["ports"].as_array();
                if all.into_iter().flatten().any(|one| one["id"] == port) {
                    return Ok(());
                }
                Err(
                    format!("there is no port {port}; the daemon's configuration has the ports")
                        .into(),
                )
            }
            ["hosts"] => Ok(()),
            ["ports"] => Err("a port needs a card: add it to the daemon's configuration".into()),
            _ => Err("nothing is created here".into()),
        }
    }

    fn delete(&mut self, path: &[&str], name: &str) -> Result<(), Box<dyn Error>> {
        match *path {
            ["subsystems"] => {
                self.subsystems.remove(name);
                self.namespaces.retain(|(of, _), _| of != name);
                self.disabled.retain(|(of, _)| of != name);
                if self.subsystem(name)?.is_some() {
                    self.call("subsystem.remove", json!({ "nqn": name }))?;
                }
                Ok(())
            }
            ["subsystems", nqn, "namespaces"] => {
                let nsid = number(name)?;
                self.remove(nqn, nsid)?;
                let key = (nqn.to_owned(), nsid);
                self.disabled.remove(&key);
                self.namespaces.remove(&key);
                Ok(())
            }
            ["subsystems", nqn, "allowed_hosts"] => {
                if self.allows(nqn, name)? {
                    let params = json!({ "subsystem": nqn, "host": name });
                    self.call("host.forbid", params)?;
                }
                Ok(())
            }
            ["ports", _, "subsystems"] => {
                if self.subsystem(name)?.is_some() {
                    self.unexported.insert(name.to_owned());
                }
                Ok(())
            }
            ["hosts"] => {
                let status = self.call("status", Value::Null)?;
                let all = status["subsystems"].as_array();
                let of = all.into_iter().flatten().find(|of| lists(of, name));
                of.map_or(Ok(()), |of| {
                    Err(format!("subsystem {} allows it still", of["nqn"]).into())
                })
            }
            _ => Err("nothing is deleted here".into()),
        }
    }

    /// Returns whether a subsystem of the daemon lists a host.
    fn allows(&mut self, nqn: &str, host: &str) -> Result<bool, Box<dyn Error>> {
        Ok(self.subsystem(nqn)?.is_some_and(|of| lists(&of, host)))
    }

    fn set(
        &mut self,
        path: &[&str],
        group: &str,
        values: &[(&str, &str)],
    ) -> Result<(), Box<dyn Error>> {
        match (path, group) {
            (["subsystems", nqn], "attr") => values
                .iter()
                .try_for_each(|(key, value)| self.set_attribute(nqn, key, value)),
            (["subsystems", nqn, "namespaces", nsid], "device" | "ana_grpid") => {
                let nsid = number(nsid)?;
                let there = self.namespace(nqn, nsid)?;
                let of = self.namespaces.entry(((*nqn).to_owned(), nsid));
                let mut new = Attributes::new();
                let of = match there {
                    Some(_) => &mut new,
                    None => of.or_default(),
                };
                for (key, value) in values {
                    let (key, value) = match *key {
                        "path" => ("file", json!(value)),
                        "uuid" | "nguid" => ("uuid", json!(value.to_lowercase())),
                        "grpid" => ("group", json!(number(value)?)),
                        _ => return Err(format!("{key} has no equal").into()),
                    };
                    let is = match (&there, key) {
                        (Some(there), "file") => Some(&there["disk"]),
                        (Some(there), key) => Some(&there[key]),
                        (None, _) => None,
                    };
                    if is.is_some_and(|is| *is != value) {
                        return Err(format!(
                            "namespace {nsid} is enabled, and its {key} stays; disable it first"
                        )
                        .into());
                    }
                    of.insert(key.to_owned(), value);
                }
                Ok(())
            }
            _ => Err("nothing of that is set here".into()),
        }
    }

    /// Sets an attribute of a subsystem. One that was not added yet is added with it.
    fn set_attribute(&mut self, nqn: &str, key: &str, value: &str) -> Result<(), Box<dyn Error>> {
        let known = match key {
            "allow_any_host" => ("any_host", json!(flag(value)?)),
            "qid_max" => ("queues", json!(number(value)?)),
            "serial" => ("serial", json!(value)),
            "model" => ("model", json!(value)),
            _ => return Err(format!("{key} has no equal").into()),
        };
        let (key, value) = known;
        if let Some(of) = self.subsystems.get_mut(nqn) {
            of.insert(key.to_owned(), value);
            return Ok(());
        }
        let there = self.subsystem(nqn)?.ok_or(NO_SUBSYSTEM)?;
        if there[key] == value {
            return Ok(());
        }
        match key {
            "any_host" => self.call("subsystem.any_host", json!({ "nqn": nqn, key: value }))?,
            "queues" => self.call("subsystem.queues", json!({ "nqn": nqn, key: value }))?,
            _ => return Err(format!("{key} of a subsystem does not change").into()),
        };
        Ok(())
    }

    fn enable(&mut self, path: &[&str]) -> Result<(), Box<dyn Error>> {
        let ["subsystems", nqn, "namespaces", nsid] = *path else {
            return Err("only namespaces are enabled".into());
        };
        let nsid = number(nsid)?;
        self.add(nqn)?;
        if self.namespace(nqn, nsid)?.is_some() {
            return Ok(());
        }
        let key = (nqn.to_owned(), nsid);
        let mut params = self.namespaces.get(&key).cloned().unwrap_or_default();
        if !params.contains_key("file") {
            return Err("set device path= is missing".into());
        }
        params.insert("subsystem".to_owned(), nqn.into());
        params.insert("nsid".to_owned(), nsid.into());
        self.call("namespace.add", params.into())?;
        self.namespaces.remove(&key);
        self.disabled.remove(&key);
        Ok(())
    }

    fn remove(&mut self, nqn: &str, nsid: u32) -> Result<(), Box<dyn Error>> {
        if self.namespace(nqn, nsid)?.is_some() {
            let params = json!({ "subsystem": nqn, "nsid": nsid });
            self.call("namespace.remove", params)?;
        }
        Ok(())
    }

    /// Removes a namespace, and keeps its settings, with which it is enabled again.
    fn disable(&mut self, nqn: &str, nsid: u32) -> Result<(), Box<dyn Error>> {
        let Some(there) = self.namespace(nqn, nsid)? else {
            return Ok(());
        };
        // The status of a limit does not say its burst, and that of another disk than a file does not say all of it.
        let is_file = there["disk"]
            .as_str()
            .is_some_and(|disk| disk.starts_with('/'));
        if !is_file || there["ios_per_second"] != 0 || there["bytes_per_second"] != 0 {
            let why = "it has a limit, or its disk is no file, which these commands do not know";
            return Err(format!("{why}; delete removes it for good").into());
        }
        let mut kept = Attributes::new();
        kept.insert("file".to_owned(), there["disk"].clone());
        for key in ["uuid", "group", "block_size", "read_only", "hosts"] {
            if !there[key].is_null() {
                kept.insert(key.to_owned(), there[key].clone());
            }
        }
        self.remove(nqn, nsid)?;
        let key = (nqn.to_owned(), nsid);
        self.namespaces.insert(key.clone(), kept);
        self.disabled.insert(key);
        Ok(())
    }

    fn save(&mut self) -> Result<(), Box<dyn Error>> {
        if let Some((nqn, nsid)) = self.disabled.first() {
            return Err(format!(
                "the file would lose namespace {nsid} of {nqn}, which is disabled: enable or delete it"
            )
            .into());
        }
        if let Some(error) = self.add_all().into_iter().next() {
            return Err(error.into());
        }
        self.call("save", json!({}))?;
        Ok(())
    }

    /// Adds what was created. Returns a sentence about each thing that is not as the lines say.
    fn finish(&mut self) -> Result<Vec<String>, Box<dyn Error>> {
        let mut left = self.add_all();
        for (nqn, nsid) in self.namespaces.keys() {
            left.push(format!(
                "namespace {nsid} of {nqn} is not enabled, and the daemon does not keep it"
            ));
        }
        for nqn in std::mem::take(&mut self.unexported) {
            if self.subsystem(&nqn)?.is_some() {
                left.push(format!(
                    "{nqn} is not deleted, and every port has all subsystems"
                ));
            }
        }
        Ok(left)
    }

    /// Adds a subsystem to the daemon, if it was created and not added yet.
    fn add(&mut self, nqn: &str) -> Result<(), Box<dyn Error>> {
        if let Some(mut of) = self.subsystems.remove(nqn) {
            of.insert("nqn".to_owned(), nqn.into());
            self.call("subsystem.add", of.into())?;
        }
        Ok(())
    }

    /// Adds all subsystems that were created. Returns the refusals.
    fn add_all(&mut self) -> Vec<String> {
        let created: Vec<String> = self.subsystems.keys().cloned().collect();
        let mut refused = Vec::new();
        for nqn in created {
            if let Err(error) = self.add(&nqn) {
                refused.push(format!("{nqn}: {error}"));
            }
        }
        refused
    }
}

/// Returns whether the status of a subsystem lists a host.
fn lists(of: &Value, host: &str) -> bool {
    let hosts = of["hosts"].as_array();
    hosts.into_iter().flatten().any(|one| one == host)
}

/// Returns the place to which a path leads from another one.
fn place(from: &[String], to: &str) -> Vec<String> {
    let mut at = if to.starts_with('/') {
        Vec::new()
    } else {
        from.to_vec()
    };
    for part in to.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                at.pop();
            }
            part => at.push(part.to_owned()),
        }
    }
    at
}
