//! Writes settings as a configuration file.

use core::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;

use super::file::ACCESS;
use super::settings::{ControlSocket, Settings};
use crate::disk::Source;
use crate::model::{Limit, MAX_TRANSFER_SHIFT, QUEUES};
use crate::nvme::log::Access;

/// Returns the text of a configuration file with these settings.
#[must_use]
pub fn text(settings: &Settings) -> String {
    text_after(
        "# Written by nvmeofd: what it had when method `save` was called.\n",
        settings,
    )
}

/// Returns the text of a configuration file with these settings, which begins with `head`.
pub(super) fn text_after(head: &str, settings: &Settings) -> String {
    let mut out = head.to_owned();
    let _ = put(&mut out, settings);
    out
}

fn put(out: &mut String, settings: &Settings) -> core::fmt::Result {
    if let Some(log) = &settings.log {
        writeln!(out, "log = {}", quoted(log))?;
    }
    if settings.strict {
        writeln!(out, "strict = true")?;
    }
    if let Some(control) = &settings.control {
        writeln!(out, "\n[control]")?;
        match &control.socket {
            ControlSocket::Path(at) => writeln!(out, "socket = {}", path(at))?,
            ControlSocket::Given(name) => writeln!(out, "descriptor = {}", quoted(name))?,
        }
        for (key, number) in [("user", control.user), ("group", control.group)] {
            if let Some(number) = number {
                writeln!(out, "{key} = {number}")?;
            }
        }
    }
    if let Some(address) = settings.metrics {
        writeln!(out, "\n[metrics]\naddress = \"{address}\"")?;
    }
    for (id, port) in &settings.ports {
        writeln!(
            out,
            "\n[[port]]\nid = {id}\nadapter = {}",
            quoted(&port.adapter)
        )?;
        writeln!(
            out,
            "service = {}\nworkers = {}",
            port.service, port.workers
        )?;
        if !port.cpus.is_empty() {
            writeln!(out, "cpus = {:?}", port.cpus)?;
        }
        writeln!(
            out,
            "ios = {}\nbuffers = {}\nspin = {}",
            port.ios, port.buffers, port.spin
        )?;
        if port.transfer_shift != MAX_TRANSFER_SHIFT {
            writeln!(out, "max_transfer = {}", 4096 << port.transfer_shift)?;
        }
        for (group, access) in &port.access {
            writeln!(
                out,
                "[[port.access]]\ngroup = {group}\nstate = \"{}\"",
                access_name(*access)
            )?;
        }
    }
    for (name, subsystem) in &settings.subsystems {
        writeln!(out, "\n[[subsystem]]\nnqn = {}", quoted(name.as_str()))?;
        writeln!(
            out,
            "serial = {}\nmodel = {}",
            quoted(&subsystem.serial),
            quoted(&subsystem.model)
        )?;
        writeln!(out, "any_host = {}", subsystem.any_host)?;
        if subsystem.queues != QUEUES {
            writeln!(out, "queues = {}", subsystem.queues)?;
        }
        for (host, of_host) in &subsystem.hosts {
            writeln!(out, "[[subsystem.host]]\nnqn = {}", quoted(host.as_str()))?;
            if let Some(key) = &of_host.key {
                writeln!(out, "key = {}", path(key))?;
            }
            if let Some(key) = &of_host.controller_key {
                writeln!(out, "controller_key = {}", path(key))?;
            }
            put_limit(out, of_host.limit)?;
        }
        for (nsid, namespace) in &subsystem.namespaces {
            writeln!(
                out,
                "[[subsystem.namespace]]\nnsid = {nsid}\nuuid = \"{}\"",
                namespace.uuid
            )?;
            match &namespace.source {
                Source::File(file) => writeln!(out, "file = {}", path(file))?,
                Source::Given(name) => writeln!(out, "descriptor = {}", quoted(name))?,
                Source::Memory(bytes) => writeln!(out, "memory = {bytes}")?,
                Source::Faulty(bytes) => writeln!(out, "faulty = {bytes}")?,
                Source::Null(bytes) => writeln!(out, "null = {bytes}")?,
                Source::Ssd(address) => {
                    writeln!(out, "disk = {}", quoted(&address.to_string()))?;
                }
            }
            writeln!(out, "block_size = {}", 1 << namespace.shift)?;
            writeln!(
                out,
                "read_only = {}\ngroup = {}",
                namespace.read_only, namespace.group
            )?;
            if !namespace.lock {
                writeln!(out, "lock = false")?;
            }
            if let Some(hosts) = &namespace.hosts {
                let hosts = hosts.iter().map(|host| quoted(host.as_str()));
                let hosts = hosts.collect::<Vec<_>>().join(", ");
                writeln!(out, "hosts = [{hosts}]")?;
            }
            put_limit(out, namespace.limit)?;
        }
    }
    for (address, port) in &settings.referrals {
        writeln!(
            out,
            "\n[[referral]]\naddress = \"{address}\"\nport = {port}"
        )?;
    }
    Ok(())
}

fn put_limit(out: &mut String, limit: Option<Limit>) -> core::fmt::Result {
    let Some(limit) = limit else {
        return Ok(());
    };
    for (key, rate) in [
        ("ios_per_second", limit.ios_per_second),
        ("bytes_per_second", limit.bytes_per_second),
    ] {
        if let Some(rate) = rate {
            writeln!(out, "{key} = {rate}")?;
        }
    }
    writeln!(out, "burst_ms = {}", limit.burst.as_millis())
}

/// Returns the name of an access state.
#[must_use]
pub fn access_name(access: Access) -> &'static str {
    let known = ACCESS.iter().find(|(_, one)| *one == access);
    known.map_or("inaccessible", |(name, _)| name)
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn path(path: &Path) -> String {
    quoted(&path.display().to_string())
}

/// Writes the settings to a file. At any time, a reader of the file finds either the old content or the new content.
///
/// # Errors
/// The system's error. The old file is unchanged, unless only the final sync of the folder failed, which the error's
/// text says.
pub fn save(settings: &Settings, to: &Path) -> io::Result<()> {
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    // The folder is opened first, so that a folder that may not be read is refused before anything has changed.
    let to_sync = std::fs::File::open(folder)?;
    let mut file = tempfile::Builder::new()
        .prefix(".nvmeofd-")
        .tempfile_in(folder)?;
    file.write_all(text(settings).as_bytes())?;
    if let Ok(there) = std::fs::metadata(to) {
        file.as_file().set_permissions(there.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(to).map_err(|error| error.error)?;
    to_sync.sync_all().map_err(|error| {
        let folder = folder.display();
        let what = format!(
            "the file has the new content, which a power failure may undo: {folder} cannot be synced: {error}"
        );
        io::Error::new(error.kind(), what)
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::disk::tests::without_rights;

    /// A folder without read permission cannot be opened, so it could not be synced after a file in it was replaced.
    #[test]
    fn a_folder_that_cannot_be_synced_is_refused_before_the_file_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, "old").expect("a file");
        let allow = |mode| {
            let allowed = fs::set_permissions(folder.path(), Permissions::from_mode(mode));
            allowed.expect("our own folder");
        };
        allow(0o333);
        without_rights(|| {
            let refused = save(&Settings::default(), &path).expect_err("it may not be read");
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");
        });
        allow(0o700);
        assert_eq!(fs::read_to_string(&path).expect("a file"), "old");
    }
}
