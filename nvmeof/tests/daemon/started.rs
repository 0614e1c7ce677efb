//! Ways to start the daemon: by hand, as a demonstration, and by a service manager.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use nvmeof::nvme::Status;

use crate::process::{Place, processors, run, subsystem};

fn nvmeofd(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvmeofd"));
    command.args(arguments);
    command
}

/// The daemon serves under valgrind with its default spin. Valgrind checks the system calls, including those of
/// io_uring, and runs one thread at a time.
#[test]
fn it_serves_under_valgrind_with_its_default_spin() -> Result<()> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("left out: valgrind is not installed (cargo xtask setup)");
        return Ok(());
    }
    let place = Place::new()?;
    let mut command = Command::new("valgrind");
    // Optimised code compares words that are only partly initialized, which memcheck would report as an error.
    let checks = ["-q", "--undef-value-errors=no", "--error-exitcode=9"];
    command.args(checks).arg(env!("CARGO_BIN_EXE_nvmeofd"));
    command.arg(place.path("nvmeofd.toml"));
    let process = place.start_by(command)?;
    let mut host = place.host()?;
    // Time-outs of 4 s with seven retries, because valgrind is slow.
    host.transport.ack_timeout = Some(20);
    let (_admin, controller) = host.controller(&subsystem())?;
    let mut queue = host.io_queue(&subsystem(), controller, 1, 32)?;
    host.memory.write_from(0, &[0x55; 4096])?;
    assert_eq!(host.write(&mut queue, 8, 8, 0, 4096)?, Status::SUCCESS);
    assert_eq!(place.disk()?[4096..8192], [0x55; 4096]);
    drop(host);
    process.end()
}

#[test]
fn the_demonstration_prints_what_is_to_be_typed_and_serves_64_mib() -> Result<()> {
    let place = Place::new()?;
    let folder = place.folder.path().canonicalize()?;
    let folder = folder.to_str().expect("a text");
    // A demonstration reuses the files of an earlier run of the same name, so the test has a name of its own.
    let demo = format!("{folder}/demo");
    let mut command = nvmeofd(&[
        "--demo",
        "--socket",
        &demo,
        "--subsystem",
        "nqn.2026-11.test:demo",
    ]);
    command.stdout(File::create(place.path("out"))?);
    command.stderr(File::create(place.path("err"))?);
    let process = place.start_by(command)?;
    assert_eq!(fs::read_to_string(place.path("err"))?, "");
    let said = fs::read_to_string(place.path("out"))?;
    let first = said.lines().next().unwrap_or_default();
    let (program, rest) = first.split_once(" run ").expect("a command");
    assert_eq!(
        Path::new(program).file_name(),
        Some("simnic".as_ref()),
        "{first}"
    );
    assert_eq!(
        rest,
        format!(
            "--ports 1 --link unix:{demo}/wire --address 192.0.2.2 -- sh -c 'modprobe nvme-rdma && \
             nvme connect -t rdma -a 192.0.2.1 -s 4420 -n nqn.2026-11.test:demo && nvme list && \
             mkfs.ext4 -q /dev/nvme0n1 && mkdir -p /mnt && mount /dev/nvme0n1 /mnt && df -h /mnt'"
        )
    );
    assert!(
        Path::new(&format!("{demo}/wire")).exists(),
        "the other end is there"
    );
    // Each option is a field of the struct that parses simnic's command line.
    let simnic = include_str!("../../../simnic/src/run.rs");
    let (_, fields) = simnic
        .split_once("pub struct Options {")
        .expect("its options");
    let (fields, _) = fields.split_once("\n}\n").expect("their end");
    let (options, _) = rest.split_once(" -- ").expect("a command for the guest");
    let options: Vec<&str> = options
        .split(' ')
        .filter_map(|word| word.strip_prefix("--"))
        .collect();
    assert_eq!(options, ["ports", "link", "address"]);
    for option in options {
        assert!(fields.contains(&format!("\n    {option}: ")), "--{option}");
    }
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

/// Each worker runs on one of the listed processors, in rotation. If a processor does not exist, the daemon logs that,
/// and the worker runs on any processor.
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
    // Each worker has served a connection, so its thread has set its processor.
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
fn the_program_says_its_name_and_writes_pages_with_examples_and_completions() -> Result<()> {
    let (content, said) = run(&["--version"])?;
    assert!(content);
    assert_eq!(said, format!("nvmeofd {}\n", env!("CARGO_PKG_VERSION")));
    let folder = tempfile::tempdir()?;
    let (content, said) = run(&["man", folder.path().to_str().expect("a text")])?;
    assert!(content, "{said}");
    let mut pages = Vec::new();
    for entry in fs::read_dir(folder.path())? {
        let path = entry?.path();
        let page = fs::read_to_string(&path)?;
        assert!(
            page.contains(".SH EXAMPLES\n.nf\n  nvmeofd "),
            "{path:?}: {page}"
        );
        pages.extend(
            path.file_name()
                .map(|name| name.to_string_lossy().into_owned()),
        );
    }
    pages.sort_unstable();
    let wanted = [
        "nvmeofd-completions.1",
        "nvmeofd-ctl.1",
        "nvmeofd-import.1",
        "nvmeofd-man.1",
        "nvmeofd-nvmetcli.1",
        "nvmeofd-ssd.1",
        "nvmeofd.1",
    ];
    assert_eq!(pages, wanted);
    for shell in ["bash", "zsh", "fish"] {
        let (content, script) = run(&["completions", shell])?;
        assert!(
            content && script.contains("nvmeofd") && script.contains("check"),
            "{script}"
        );
    }
    Ok(())
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
    place.wait_for_notice("WATCHDOG=1")?;
    place.wait_for_notice("WATCHDOG=1")?;
    process.end()?;
    place.wait_for_notice("STOPPING=1")?;
    Ok(())
}

/// On a machine with systemd, systemd accepts the unit file.
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
