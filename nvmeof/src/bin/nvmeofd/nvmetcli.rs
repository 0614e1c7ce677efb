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

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, Read as _, Write as _, stderr, stdin, stdout};
use std::path::PathBuf;

use control::{Client, Side};
use serde_json::{Map, Value, json};

/// Maximum number of bytes that are read.
const LONGEST: u64 = 1 << 20;

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
}

/// Carries the commands out. Returns an error if one of them cannot be carried out.
pub(crate) fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let mut shell = Shell {
        client: Client::connect_alike(&options.socket, Side::Target)?,
        at: Vec::new(),
        subsystems: BTreeMap::new(),
        namespaces: BTreeMap::new(),
    };
    let (mut failed, mut count) = (0, 0);
    for line in stdin().lock().take(LONGEST).lines() {
        let line = line?;
        count += 1;
        match shell.line(&line) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                failed += 1;
                writeln!(stderr(), "nvmeofd: line {count}: {}: {error}", line.trim())?;
            }
        }
    }
    if let Err(error) = shell.add_all() {
        failed += 1;
        writeln!(stderr(), "nvmeofd: {error}")?;
    }
    if failed == 0 {
        return Ok(());
    }
    Err(format!("{failed} of {count} lines were not carried out").into())
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
            ("ls", _) => self.list()?,
            ("create", [name]) => self.create(&path, name)?,
            ("delete", [name]) => self.delete(&path, name)?,
            ("set", [group, rest @ ..]) => self.set(&path, group, &values(rest)?)?,
            ("enable", []) => self.enable(&path)?,
            ("disable", []) => match path[..] {
                ["subsystems", nqn, "namespaces", nsid] => self.disable(nqn, number(nsid)?)?,
                _ => return Err("only namespaces are disabled".into()),
            },
            ("saveconfig", _) => {
                self.add_all()?;
                self.call("save", json!({}))?;
            }
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
                let key = (nqn.to_owned(), number(name)?);
                self.namespaces.entry(key).or_default();
                Ok(())
            }
            ["subsystems", nqn, "allowed_hosts"] => {
                self.add(nqn)?;
                let params = json!({ "subsystem": nqn, "host": name });
                self.call("host.allow", params)?;
                Ok(())
            }
            ["ports", port, "subsystems"] => {
                self.add(name)?;
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
                if self.subsystem(name)?.is_some() {
                    self.call("subsystem.remove", json!({ "nqn": name }))?;
                }
                Ok(())
            }
            ["subsystems", nqn, "namespaces"] => {
                let nsid = number(name)?;
                self.disable(nqn, nsid)?;
                self.namespaces.remove(&(nqn.to_owned(), nsid));
                Ok(())
            }
            ["subsystems", nqn, "allowed_hosts"] => {
                let of = self.subsystem(nqn)?;
                let hosts = of.as_ref().and_then(|of| of["hosts"].as_array());
                if hosts.into_iter().flatten().any(|host| host == name) {
                    let params = json!({ "subsystem": nqn, "host": name });
                    self.call("host.forbid", params)?;
                }
                Ok(())
            }
            ["ports", _, "subsystems"] | ["hosts"] => Ok(()),
            _ => Err("nothing is deleted here".into()),
        }
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
                let key = ((*nqn).to_owned(), number(nsid)?);
                let of = self.namespaces.entry(key).or_default();
                for (key, value) in values {
                    let (key, value) = match *key {
                        "path" => ("file", json!(value)),
                        "uuid" | "nguid" => ("uuid", json!(value)),
                        "grpid" => ("group", json!(number(value)?)),
                        _ => return Err(format!("{key} has no equal").into()),
                    };
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
        let there = self.subsystem(nqn)?.ok_or("there is no such subsystem")?;
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
        let key = (nqn.to_owned(), nsid);
        let mut params = self.namespaces.get(&key).cloned().unwrap_or_default();
        if let Some(there) = self.namespace(nqn, nsid)? {
            let wanted = params.get("file").unwrap_or(&there["disk"]);
            if *wanted == there["disk"] {
                return Ok(());
            }
            return Err(format!("namespace {nsid} is on {} already", there["disk"]).into());
        }
        if !params.contains_key("file") {
            return Err("set device path= is missing".into());
        }
        params.insert("subsystem".to_owned(), nqn.into());
        params.insert("nsid".to_owned(), nsid.into());
        self.call("namespace.add", params.into())?;
        Ok(())
    }

    fn disable(&mut self, nqn: &str, nsid: u32) -> Result<(), Box<dyn Error>> {
        if self.namespace(nqn, nsid)?.is_some() {
            let params = json!({ "subsystem": nqn, "nsid": nsid });
            self.call("namespace.remove", params)?;
        }
        Ok(())
    }

    /// Adds a subsystem to the daemon, if it was created and not added yet.
    fn add(&mut self, nqn: &str) -> Result<(), Box<dyn Error>> {
        if let Some(mut of) = self.subsystems.remove(nqn) {
            of.insert("nqn".to_owned(), nqn.into());
            self.call("subsystem.add", of.into())?;
        }
        Ok(())
    }

    fn add_all(&mut self) -> Result<(), Box<dyn Error>> {
        let created: Vec<String> = self.subsystems.keys().cloned().collect();
        created.iter().try_for_each(|nqn| self.add(nqn))
    }
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
