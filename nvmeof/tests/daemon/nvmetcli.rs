//! The shell of the kernel's target, with the commands that democratic-csi gives it (its driver for ZFS, August 2025:
//! `echo "..." | nvmetcli`, to make and to delete a volume).

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use nvmeof::nvme::command::io;
use nvmeof::nvme::{Nqn, Status};
use serde_json::{Value, json};

use crate::host::transfer;
use crate::process::{KEY, Place, parsed};

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

/// A script that makes what is there already, or takes a namespace away and brings it back, changes nothing else.
#[test]
fn what_the_shell_finds_keeps_its_settings() -> Result<()> {
    let place = Place::new()?;
    let process = place.start()?;
    let disk = place.path("volume");
    std::fs::File::create(&disk)?.set_len(1 << 20)?;
    let key = place.path("key");
    std::fs::write(&key, KEY)?;
    let host = "nqn.2026-11.test:h";
    let of = json!({"nqn": VOLUME, "host": [{"nqn": host, "key": key}], "namespace": [
        {"nsid": 1, "file": disk, "block_size": 4096, "read_only": true, "hosts": [host]},
        {"nsid": 2, "memory": "1MiB"},
    ]});
    let _: bool = place.client()?.call("subsystem.add", of)?;
    let settings = || -> Result<String> { Ok(place.client()?.call("settings", Value::Null)?) };
    let before = settings()?;
    assert!(before.contains("key = "), "{before}");
    let again = format!(
        "cd /subsystems/{VOLUME}/allowed_hosts
create {host}
cd ../namespaces/1
set device path={}
disable
enable
cd ../2
set ana_grpid grpid=1
enable
",
        disk.display()
    );
    let (succeeded, said) = shell(&place, &again)?;
    assert!(succeeded && said.is_empty(), "{said}");
    assert_eq!(settings()?, before);
    for (lines, wanted) in [
        (
            "cd /subsystems/S/namespaces/2\ndisable\n",
            "line 2: disable: it has a limit, or its disk is no file",
        ),
        (
            "cd /subsystems/S/namespaces/2\nset ana_grpid grpid=2\n",
            "namespace 2 is enabled, and its group stays",
        ),
        (
            "cd /subsystems/S/namespaces\ncreate 3\n",
            "namespace 3 of S is not enabled",
        ),
        (
            "cd /subsystems/S/namespaces\ncd one two\ndelete 2\n",
            "line 3: delete 2: nothing is deleted here",
        ),
        (
            "cd /ports/1/subsystems\ndelete S\n",
            "S is not deleted, and every port has all subsystems",
        ),
        (
            "cd /ports/1/subsystems\ncreate nqn.2026-11.test:none\n",
            "there is no such subsystem",
        ),
        ("cd /hosts\ndelete nqn.2026-11.test:h\n", "allows it still"),
        (
            "cd /subsystems/S/namespaces/1\ndisable\nsaveconfig\nenable\n",
            "line 3: saveconfig: the file would lose namespace 1 of S",
        ),
    ] {
        let (succeeded, said) = shell(
            &place,
            &lines
                .replace("S/", &format!("{VOLUME}/"))
                .replace("delete S", &format!("delete {VOLUME}")),
        )?;
        let wanted = wanted
            .replace("S is", &format!("{VOLUME} is"))
            .replace("of S", &format!("of {VOLUME}"));
        assert!(
            !succeeded && said.contains(&wanted),
            "{wanted:?} is not in {said}"
        );
    }
    let status: Value = place.client()?.call("status", Value::Null)?;
    let all = status["subsystems"].as_array().context("a list")?;
    let there = all.iter().find(|one| one["nqn"] == VOLUME);
    let there = there.context("it is there")?["namespaces"]
        .as_array()
        .map(Vec::len);
    assert_eq!(there, Some(2));
    process.end()
}

/// Of more than a mebibyte, no line is carried out in part.
#[test]
fn a_line_that_is_cut_is_not_carried_out() -> Result<()> {
    let place = Place::new()?;
    let process = place.start()?;
    let mut lines = "#\n".repeat((1 << 19) - 4);
    lines.push_str("/subsystems create nqn.2026-11.test:1\n");
    let (succeeded, said) = shell(&place, &lines)?;
    assert!(
        !succeeded && said.contains("more than 1048576 bytes"),
        "{said}"
    );
    let status: Value = place.client()?.call("status", Value::Null)?;
    assert!(
        !status.to_string().contains("nqn.2026-11.test:1"),
        "{status}"
    );
    process.end()
}
