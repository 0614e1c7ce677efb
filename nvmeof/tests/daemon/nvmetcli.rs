//! The shell of the kernel's target, with the commands that democratic-csi gives it (its driver for ZFS, August 2025:
//! `echo "..." | nvmetcli`, to make and to delete a volume).

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use nvmeof::nvme::command::io;
use nvmeof::nvme::{Nqn, Status};
use serde_json::Value;

use crate::host::transfer;
use crate::process::{Place, parsed};

const VOLUME: &str = "nqn.2003-01.org.linux-nvme:pvc-1";

/// Runs the shell with these lines; returns whether it succeeded, and its output.
fn shell(place: &Place, lines: &str) -> Result<(bool, String)> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nvmeofd"))
        .arg("nvmetcli")
        .arg(place.path("control"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut input = child.stdin.take().context("a pipe")?;
    input.write_all(lines.as_bytes())?;
    drop(input);
    let output = child.wait_with_output()?;
    let mut said = String::from_utf8(output.stdout)?;
    said.push_str(&String::from_utf8(output.stderr)?);
    Ok((output.status.success(), said))
}

/// The lines that make a volume.
fn made(disk: &str) -> String {
    format!(
        "# create subsystem
cd /subsystems
create {VOLUME}
cd {VOLUME}

set attr allow_any_host=1

# create subsystem namespace
cd namespaces
create 1
cd 1
set device path={disk}
enable

# associate subsystem/target to port(al)

cd /ports/1/subsystems
create {VOLUME}


saveconfig savefile=/etc/nvmet/config.json
"
    )
}

/// The lines that delete it.
fn deleted() -> String {
    format!(
        "# delete subsystem from port

cd /ports/1/subsystems
delete {VOLUME}


# delete subsystem
cd /subsystems
delete {VOLUME}

saveconfig 
"
    )
}

#[test]
fn democratic_csi_makes_and_deletes_a_volume_and_may_repeat_itself() -> Result<()> {
    let place = Place::new()?;
    let process = place.start()?;
    let disk = place.path("volume");
    std::fs::File::create(&disk)?.set_len(1 << 20)?;
    let disk = disk.display().to_string();
    let volume: Nqn = VOLUME.parse()?;
    for _ in 0..2 {
        let (succeeded, said) = shell(&place, &made(&disk))?;
        assert!(succeeded && said.is_empty(), "{said}");
    }
    // The daemon saves its own file, whichever file the line names.
    let settings = parsed(&place.path("nvmeofd.toml"))?;
    assert!(settings.subsystems[&volume].any_host);
    let mut host = place.host()?;
    let (_admin, controller) = host.controller(&volume)?;
    let mut queue = host.io_queue(&volume, controller, 1, 16)?;
    let mut read = transfer(io::READ, 2047, 1);
    read.sgl = host.data(0, 512);
    assert_eq!(host.command(&mut queue, read)?.status(), Status::SUCCESS);
    let (succeeded, listed) = shell(&place, "cd /\nls\n")?;
    assert!(
        succeeded && listed.contains(VOLUME) && listed.contains(&disk),
        "{listed}"
    );
    for _ in 0..2 {
        let (succeeded, said) = shell(&place, &deleted())?;
        assert!(succeeded && said.is_empty(), "{said}");
    }
    assert!(host.response(&mut queue).is_err(), "disconnected");
    let settings = parsed(&place.path("nvmeofd.toml"))?;
    assert!(!settings.subsystems.contains_key(&volume));
    drop(host);
    process.end()
}

#[test]
fn lines_that_cannot_be_carried_out_are_told_and_the_others_are_carried_out() -> Result<()> {
    let place = Place::new()?;
    let process = place.start()?;
    let lines = format!(
        "cd /subsystems
create {VOLUME}
cd {VOLUME}
set attr pi_enable=1
set attr qid_max=4
cd allowed_hosts
create nqn.2026-11.test:h
cd ../namespaces
create 1
cd 1
enable
set device path=/nowhere
enable
cd /ports/9/subsystems
create {VOLUME}
/subsystems/{VOLUME} set attr allow_any_host=yes
/ports create 2
format
exit
never
"
    );
    let (succeeded, said) = shell(&place, &lines)?;
    assert!(!succeeded);
    for wanted in [
        "line 4: set attr pi_enable=1: pi_enable has no equal",
        "line 11: enable: set device path= is missing",
        "line 13: enable: ",
        "line 15: create nqn.2003-01.org.linux-nvme:pvc-1: there is no port 9",
        "allow_any_host=yes: \"yes\" is neither 0 nor 1",
        "line 17: /ports create 2: a port needs a card",
        "line 18: format: there is no such command here",
        "7 of 19 lines were not carried out",
    ] {
        assert!(said.contains(wanted), "{wanted:?} is not in {said}");
    }
    let status: Value = place.client()?.call("status", Value::Null)?;
    let all = status["subsystems"].as_array().context("a list")?;
    let made = all.iter().find(|one| one["nqn"] == VOLUME);
    let made = made.context("it was added")?;
    assert_eq!(
        (&made["queues"], &made["any_host"]),
        (&4.into(), &false.into())
    );
    assert_eq!(made["hosts"][0], "nqn.2026-11.test:h");
    process.end()
}
