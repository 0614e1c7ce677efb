//! How it is started: by hand, as a demonstration, and by a service manager.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use nvmeof::nvme::Status;

use crate::process::{Place, processors, run};

fn nvmeofd(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvmeofd"));
    command.args(arguments);
    command
}

#[test]
fn the_demonstration_prints_what_is_to_be_typed_and_serves_64_mib() -> Result<()> {
    let place = Place::new()?;
    let folder = place.folder.path().canonicalize()?;
    let folder = folder.to_str().expect("a text");
    // What a short run of this name has left would be kept: this is another one.
    let demo = format!("{folder}/demo");
    let mut command = nvmeofd(&[
        "--demo",
        "--socket",
        &demo,
        "--subsystem",
        "nqn.2026-11.test:demo",
    ]);
    command.stdout(File::create(place.path("out"))?);
    let process = place.start_by(command)?;
    let said = fs::read_to_string(place.path("out"))?;
    for line in [
        format!(
            "  datctl sim serve --profile roce --socket {demo}/nic.sock --link unix:{demo}/wire"
        ),
        "  ip addr add 192.0.2.2/24 dev eth0".to_owned(),
        "  nvme discover -t rdma -a 192.0.2.1 -s 4420".to_owned(),
        "  nvme connect -t rdma -a 192.0.2.1 -s 4420 -n nqn.2026-11.test:demo".to_owned(),
    ] {
        assert!(
            said.lines().any(|one| one == line),
            "{line} is not in\n{said}"
        );
    }
    assert!(
        said.contains(&format!("\"path\":\"{demo}/nic.sock\"")),
        "{said}"
    );
    let (content, status) = run(&["ctl", &format!("{demo}/control.sock"), "status"])?;
    assert!(
        content && status.contains("\"bytes\": 67108864"),
        "{status}"
    );
    assert_eq!(fs::metadata(format!("{demo}/disk"))?.len(), 64 << 20);
    process.end()
}

#[test]
fn an_adapter_and_a_disk_on_the_command_line_are_enough() -> Result<()> {
    let place = Place::new()?;
    let own = place
        .folder
        .path()
        .file_name()
        .and_then(|name| name.to_str())
        .expect("a name");
    let wire = place.path("wire");
    let adapter = format!(
        "sim:target-{own},mac=02:00:00:00:0f:01,link=unix:{}",
        wire.display()
    );
    let (disk, second) = (place.path("disk"), place.path("second"));
    File::create(&second)?.set_len(1 << 20)?;
    let mut command = nvmeofd(&[
        "--adapter",
        &adapter,
        "--subsystem",
        crate::process::SUBSYSTEM,
        "--workers",
        "2",
    ]);
    command.arg("--disk").arg(disk).arg("--disk").arg(second);
    let process = place.start_by(command)?;
    let mut host = place.host()?;
    let (_admin, controller) = host.controller(&crate::process::subsystem())?;
    let mut queue = host.io_queue(&crate::process::subsystem(), controller, 1, 32)?;
    assert_eq!(host.read(&mut queue, 8191, 1, 0, 512)?, Status::SUCCESS);
    drop(host);
    process.end()
}

/// A processor that there is not is told in the log, and its worker runs anywhere.
#[test]
fn workers_run_on_their_processors_and_from_the_beginning_again_where_these_are_fewer() -> Result<()>
{
    let all = processors(Path::new("/proc/self/status"))?;
    let first: u16 = all.split(['-', ',']).next().unwrap_or("0").parse()?;
    let place = Place::new()?;
    let pins = format!("workers = 3\ncpus = [{first}, 1023]\n");
    place.configure(&format!("{pins}{}", place.subsystem("")))?;
    let process = place.start()?;
    let mut host = place.host()?;
    let (_admin, controller) = host.controller(&crate::process::subsystem())?;
    for number in 1..=2 {
        let mut queue = host.io_queue(&crate::process::subsystem(), controller, number, 32)?;
        assert_eq!(host.read(&mut queue, 0, 1, 0, 512)?, Status::SUCCESS);
    }
    // Each has served a connection, so it is where it is to be.
    let threads = process.threads()?;
    let of = |name: &str| threads.get(name).map(String::as_str);
    let first = first.to_string();
    assert_eq!(of("port1-0"), Some(first.as_str()), "{threads:?}");
    assert_eq!(of("port1-1"), Some(all.as_str()), "{threads:?}");
    assert_eq!(of("port1-2"), Some(first.as_str()), "{threads:?}");
    assert_eq!(of("nvmeofd"), Some(all.as_str()), "{threads:?}");
    drop(host);
    process.end()
}

#[test]
fn usage_is_told_by_the_options_that_are_missing() -> Result<()> {
    for (arguments, wanted) in [
        (
            &[][..],
            "nothing to serve: a configuration file, --demo, or --adapter and --disk",
        ),
        (&["--adapter", "sim:a"], "--disk <PATH>"),
        (&["--check"], "<FILE>"),
        (&["--demo", "--adapter", "sim:a"], "cannot be used with"),
        (
            &["--demo", "--subsystem", "x"],
            "a qualified name begins with",
        ),
    ] {
        let (content, said) = run(arguments)?;
        assert!(
            !content && said.contains(wanted),
            "{arguments:?} said {said}"
        );
    }
    Ok(())
}

#[test]
fn the_watchdog_hears_of_it_as_often_as_it_wants() -> Result<()> {
    let place = Place::new()?;
    let mut command = nvmeofd(&[]);
    command
        .arg(place.path("nvmeofd.toml"))
        .env("WATCHDOG_USEC", "200000");
    let process = place.start_by(command)?;
    place.told("WATCHDOG=1")?;
    place.told("WATCHDOG=1")?;
    process.end()?;
    place.told("STOPPING=1")?;
    Ok(())
}

/// Where systemd is on the machine, it says whether it understands the unit.
#[test]
fn systemd_understands_the_unit() -> Result<()> {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/nvmeofd.service");
    let unit = fs::read_to_string(unit)?;
    assert!(unit.contains("ExecStart=/usr/bin/nvmeofd /etc/nvmeofd/nvmeofd.toml"));
    let folder = tempfile::tempdir()?;
    let copy = folder.path().join("nvmeofd.service");
    fs::write(
        &copy,
        unit.replace("/usr/bin/nvmeofd", env!("CARGO_BIN_EXE_nvmeofd")),
    )?;
    let Ok(output) = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&copy)
        .output()
    else {
        return Ok(());
    };
    let said = String::from_utf8(output.stderr)?;
    let of_it: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("nvmeofd.service"))
        .collect();
    assert!(output.status.success() && of_it.is_empty(), "{said}");
    Ok(())
}
