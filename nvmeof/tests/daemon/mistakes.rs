//! Each mistake in a configuration file is reported with its line.

use std::path::Path;

use anyhow::Result;
use nvmeof::daemon::{Settings, file, save, text};

use crate::process::{parsed, run};

fn parse(text: &str) -> Result<Settings, String> {
    file::parse(Path::new("f.toml"), text).map_err(|mistakes| mistakes.to_string())
}

/// Configuration files, and the beginnings of the lines that are reported for each.
const MISTAKES: [(&str, &[&str]); 37] = [
    (
        "log = \"info\"\n[control]\nuser = 0",
        &["f.toml:2:1: a control socket has one of socket and descriptor"],
    ),
    ("log = ", &["f.toml:1:7: "]),
    (
        "[[subsystem]]\nnqn = \"nqn.2026-11.test:s\"\n[[subsystem.host]]\nnqn = \"nqn.2026-11.test:h\"\ncontroller_key = \"/k\"",
        &["f.toml:5:18: a host has a controller_key only beside its own key"],
    ),
    (
        "lgo = \"info\"",
        &[
            "f.toml:1:1: unknown field `lgo`, expected one of `log`, `strict`, `control`, `metrics`, `port`, `subsystem`, `referral`",
            " 1 | lgo = \"info\"",
            "   | ^^^",
        ],
    ),
    (
        "\n\n[[port]]\nadapter = 7",
        &["f.toml:4:11: invalid type: integer `7`, expected a string"],
    ),
    ("[[port]]\nid = 1", &["f.toml:1:1: missing field `adapter`"]),
    (
        "[[port]]\nadapter = \"sim:a,adress=x\"",
        &["f.toml:2:11: sim:a,adress=x: \"adress\" is no option; did you mean address?"],
    ),
    (
        "[[port]]\nadapter = \"sim:a,colour=red\"",
        &["f.toml:2:11: sim:a,colour=red: \"colour\" is no option; there are address, gateway"],
    ),
    (
        "[[port]]\nadapter = \"mlx5_0\"",
        &["f.toml:2:11: no adapter is called \"mlx5_0\": that is a name of the kernel's"],
    ),
    (
        "log = \"lots\"",
        &[
            "f.toml:1:7: \"lots\": log is error, warn, info, debug, trace or off, or TARGET=LEVEL",
            " 1 | log = \"lots\"",
            "   |       ^^^^^^",
        ],
    ),
    (
        "log = \"info,hw_mxl=debug\"",
        &["f.toml:1:7: \"hw_mxl=debug\": nothing here logs as \"hw_mxl\"; there are control, "],
    ),
    (
        "log = \"hw_mlx=loud\"",
        &["f.toml:1:7: \"hw_mlx=loud\": log is error"],
    ),
    (
        "[[port]]\nadapter = \"sim:a\"\nservice = 65536",
        &["f.toml:3:11: service is 1 to 65535"],
    ),
    (
        "[[port]]\nadapter = \"sim:a\"\nworkers = 0\nios = 0",
        &[
            "f.toml:3:11: workers is 1 to 256",
            "f.toml:4:7: ios is 1 to 65536",
        ],
    ),
    (
        "[[port]]\nadapter = \"sim:a\"\n[[port]]\nadapter = \"sim:a\"",
        &["f.toml:4:11: port 1 listens there already"],
    ),
    (
        "[[port]]\nid = 3\nadapter = \"sim:a\"\n[[port]]\nid = 3\nadapter = \"sim:b\"",
        &["f.toml:5:6: there is a port 3 already"],
    ),
    (
        "[[port]]\nadapter = \"sim:a\"\n[[port.access]]\ngroup = 17\nstate = \"best\"",
        &[
            "f.toml:4:9: group is 1 to 16",
            "f.toml:5:9: there is no such state; there are optimized, non-optimized",
        ],
    ),
    (
        "[[port]]\nadapter = \"sim:a\"\ncpus = [1, 4096]",
        &["f.toml:3:12: a processor is 0 to 1023"],
    ),
    (
        "[[subsystem]]\nnqn = \"disks\"",
        &["f.toml:2:7: a qualified name begins with nqn.YYYY-MM."],
    ),
    (
        "[[subsystem]]\nnqn = \"nqn.2014-08.org.nvmexpress.discovery\"",
        &["f.toml:2:7: this is the name of discovery"],
    ),
    (
        "[[subsystem]]\nnqn = \"nqn.2026-11.test:a\"\nserial = \"123456789012345678901\"",
        &["f.toml:3:10: this is 1 to 20 printable ASCII characters"],
    ),
    (
        "[[subsystem]]\nnqn = \"nqn.2026-11.test:a\"\n[[subsystem]]\nnqn = \"nqn.2026-11.test:a\"",
        &["f.toml:4:7: there is a subsystem of this name already"],
    ),
    (
        "[[subsystem]]\nnqn = \"nqn.2026-11.test:a\"\n[[subsystem.namespace]]\nnsid = 1",
        &["f.toml:3:1: a namespace has one of file, descriptor, disk, memory, faulty and null"],
    ),
    (
        "[[subsystem]]\nnqn = \"nqn.2026-11.test:a\"\n[[subsystem.namespace]]\ndisk = \"/dev/nvme0n1\"",
        &["f.toml:4:8: disk is the PCI address of an NVMe SSD, such as \"0000:5e:00.0\": "],
    ),
    (
        "[[subsystem]]\nnqn = \"nqn.2026-11.test:a\"\n[[subsystem.namespace]]\nfile = \"/a\"\nnull = 4096",
        &["f.toml:3:1: a namespace has one of"],
    ),
    (
        "[[subsystem]]\nnqn = \"nqn.2026-11.test:a\"\n[[subsystem.namespace]]\nmemory = \"1 GB\"\nblock_size = 1024",
        &[
            "f.toml:4:10: a size is bytes",
            "f.toml:5:14: block_size is 512 or 4096",
        ],
    ),
    (
        "[[subsystem]]\nnqn = \"nqn.2026-11.test:a\"\n[[subsystem.namespace]]\nnull = 4096\nuuid = \"1\"\nnsid = 1025",
        &[
            "f.toml:5:8: this is no UUID",
            "f.toml:6:8: nsid is 1 to 1024",
        ],
    ),
    (
        "[[subsystem]]\nnqn = \"nqn.2026-11.test:a\"\n[[subsystem.namespace]]\nnull = 4096\nnsid = 1\n[[subsystem.namespace]]\nnull = 4096\nnsid = 1",
        &["f.toml:8:8: there is a namespace 1 already"],
    ),
    (
        "[[subsystem]]\nnqn = \"nqn.2026-11.test:a\"\n[[subsystem.namespace]]\nnull = 4096\nuuid = \"00000000-0000-0000-0000-000000000001\"\n[[subsystem.namespace]]\nnull = 4096\nuuid = \"00000000-0000-0000-0000-000000000001\"",
        &[
            "f.toml:8:8: 00000000-0000-0000-0000-000000000001 is the identifier of namespace 1 of nqn.2026-11.test:a already",
        ],
    ),
    (
        "[[subsystem]]\nnqn = \"nqn.2026-11.test:a\"\n[[subsystem.namespace]]\nnull = 4096\nios_per_second = 9\nbytes_per_second = \"4KiB\"\nburst_ms = 60001",
        &[
            "f.toml:5:18: ios_per_second is 10 to 1099511627776",
            "f.toml:6:20: bytes_per_second is 131072 to 1099511627776",
            "f.toml:7:12: burst_ms is 0 to 60000",
        ],
    ),
    (
        "[[subsystem]]\nnqn = \"nqn.2026-11.test:a\"\n[[subsystem.namespace]]\nnull = 4096\nburst_ms = 10",
        &["f.toml:5:12: burst_ms comes with ios_per_second or bytes_per_second"],
    ),
    (
        "[[subsystem]]\nnqn = \"nqn.2026-11.test:a\"\nqueues = 129\n[[subsystem.host]]\nnqn = \"h\"\nios_per_second = 9",
        &[
            "f.toml:3:10: queues is 1 to 128",
            "f.toml:6:18: ios_per_second is 10 to 1099511627776",
        ],
    ),
    (
        "[[subsystem]]\nnqn = \"nqn.2026-11.test:a\"\n[[subsystem.namespace]]\nnull = 4096\nhosts = [\"h\", \"h\", \"\"]",
        &[
            "f.toml:5:15: this host is listed already",
            "f.toml:5:20: a qualified name begins with nqn.",
        ],
    ),
    (
        "[[port]]\nadapter = \"sim:a\"\nmax_transfer = \"2MiB\"",
        &["f.toml:3:16: max_transfer is \"128KiB\", \"256KiB\", \"512KiB\" or \"1MiB\""],
    ),
    (
        "[[port]]\nadapter = \"sim:a\"\nmax_transfer = \"1MiB\"\nbuffers = 2049",
        &["f.toml:4:11: buffers is 1 to 2048"],
    ),
    (
        "[[referral]]\naddress = \"192.0.2.1\"",
        &["f.toml:2:11: this is an address and a port"],
    ),
    (
        "[control]\nsocket = \"/s\"\ngroup = \"no such group\"",
        &["f.toml:3:9: this machine has no group \"no such group\""],
    ),
];

#[test]
fn each_mistake_is_told_with_its_line_its_column_and_the_line_itself() {
    for (text, wanted) in MISTAKES {
        let said = parse(text).expect_err(text);
        for line in wanted {
            assert!(
                said.lines().any(|one| one.starts_with(line)),
                "{text}\nsaid\n{said}\nnot\n{line}"
            );
        }
        assert!(
            !said.contains("DAT_"),
            "DAT's name is of no use here: {said}"
        );
        assert_eq!(
            said.lines().count() % 3,
            0,
            "a message, the line and a mark each:\n{said}"
        );
    }
}

#[test]
fn a_character_of_several_bytes_is_one_column() {
    let said = parse("[[port]]\nadapter = \"sim:ä\" ; x").expect_err("no comment");
    assert!(said.starts_with("f.toml:2:19: "), "{said}");
}

#[test]
fn a_check_says_what_is_in_a_file_or_what_is_wrong_with_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("nvmeofd.toml");
    std::fs::write(&path, "[[port]]\nadapter = \"sim:a\"\n")?;
    let name = path.to_str().expect("a text");
    let said = run(&["--check", name])?;
    assert_eq!(
        said,
        (
            true,
            format!(
                "{name}: 1 port, 0 subsystems, 0 namespaces; the text was checked, and looked at as of now: 1 adapter; 0 warnings\n"
            )
        )
    );
    std::fs::write(&path, "[[port]]\nadapter = 1\n")?;
    let (content, said) = run(&["--check", name])?;
    assert!(
        !content && said.starts_with(&format!("nvmeofd: {name}:2:11: invalid type")),
        "{said}"
    );
    let (content, said) = run(&["--check", "/nowhere/nvmeofd.toml"])?;
    assert!(!content);
    assert_eq!(
        said,
        "nvmeofd: /nowhere/nvmeofd.toml: No such file or directory (os error 2)\n"
    );
    Ok(())
}

/// A check warns of each object that a file names and that does not exist, with its line. The exit status is 0, because
/// the object may be made before the start.
#[test]
fn a_check_warns_of_what_is_not_there_as_of_now() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name).display().to_string();
    // The metrics address is in use by this socket.
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    std::fs::write(at("odd"), vec![0; 1000])?;
    std::fs::write(at("small"), vec![0; 100])?;
    std::fs::write(at("good"), vec![0; 4096])?;
    std::fs::write(at("key"), "DHHC-1:00:mistyped:")?;
    let path = at("nvmeofd.toml");
    let text = format!(
        "\
[control]
socket = \"/nowhere/control\"
[metrics]
address = \"{}\"
[[port]]
adapter = \"ffff:ff:1f.7,address=192.0.2.1/24\"
[[port]]
adapter = \"sim:a,link=unix:/nowhere/wire\"
[[port]]
adapter = \"vfio-user:/nowhere/nic\"
[[subsystem]]
nqn = \"nqn.2026-11.test:s\"
[[subsystem.host]]
nqn = \"nqn.2026-11.test:h\"
key = \"{}\"
controller_key = \"/nowhere/key\"
[[subsystem.namespace]]
file = \"/nowhere/disk\"
[[subsystem.namespace]]
file = \"{}\"
[[subsystem.namespace]]
file = \"{}\"
[[subsystem.namespace]]
file = \"{}\"
[[subsystem.namespace]]
file = \"/dev/null\"
[[subsystem.namespace]]
memory = 1000448
[[subsystem.namespace]]
file = \"{}\"
read_only = true
",
        taken.local_addr()?,
        at("key"),
        folder.path().display(),
        at("odd"),
        at("small"),
        at("good"),
    );
    std::fs::write(&path, text)?;
    let (content, said) = run(&["--check", &path])?;
    assert!(content, "{said}");
    for (place, what) in [
        ("2:10", "the folder /nowhere is not there"),
        ("4:11", "cannot be listened at: Address already in use"),
        (
            "6:11",
            "this machine has no PCI function ffff:ff:1f.7; `datctl devices`",
        ),
        ("8:11", "the folder /nowhere is not there"),
        (
            "10:11",
            "no function is served at /nowhere/nic: `datctl sim serve --socket /nowhere/nic`",
        ),
        ("15:7", "has no key: "),
        ("16:18", "/nowhere/key: No such file"),
        ("18:8", "/nowhere/disk: No such file"),
        (
            "20:8",
            "is a folder; a namespace lies on a regular file or a block device",
        ),
        (
            "22:8",
            "1000 bytes are 1 block of 512 bytes, and the last 488 bytes belong to none",
        ),
        ("24:8", "100 bytes are less than a block of 512"),
        ("26:8", "/dev/null is a special file"),
    ] {
        let begins = format!("{path}:{place}: warning: as of now ");
        let is_said = |line: &str| {
            line.strip_prefix(&begins)
                .is_some_and(|rest| rest.contains(what))
        };
        assert!(
            said.lines().any(is_said),
            "{place} {what} is not in\n{said}"
        );
    }
    let counts = "3 ports, 1 subsystem, 7 namespaces; the text was checked, and looked at as of now: \
                  3 adapters, 1 address, 6 files, 1 folder of a socket, 2 keys; 12 warnings\n";
    assert!(said.contains(counts), "{said}");
    Ok(())
}

/// The example contains every key, and a written file contains the settings that were read.
#[test]
fn the_example_is_read_and_what_is_written_is_read_as_the_same() -> Result<()> {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/nvmeofd.example.toml");
    let settings = parsed(&example)?;
    assert_eq!((settings.ports.len(), settings.subsystems.len()), (2, 2));
    let again = parse(&text(&settings)).expect("what was written");
    assert_eq!(again, settings);
    let keys = "[[subsystem]]\nnqn = \"nqn.2026-11.test:s\"\n[[subsystem.host]]\nnqn = \"nqn.2026-11.test:h\"\nkey = \"/k\"\ncontroller_key = \"/c\"";
    let keys = parse(keys).expect("a file");
    assert_eq!(parse(&text(&keys)).expect("what was written"), keys);
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("saved.toml");
    std::fs::write(&path, "what was there")?;
    save(&settings, &path)?;
    assert_eq!(parsed(&path)?, settings);
    let left = std::fs::read_dir(folder.path())?.count();
    assert_eq!(left, 1, "nothing is left beside it");
    Ok(())
}

/// The identifier of a namespace is the same after every start and in every version, because hosts recognize disks by
/// it.
#[test]
fn an_identifier_follows_from_subsystem_and_number() {
    let file = "[[subsystem]]\nnqn = \"nqn.2026-11.org.udapl:disks\"\n[[subsystem.namespace]]\nnull = 4096\n[[subsystem.namespace]]\nnull = 4096\n";
    let settings = parse(file).expect("a file");
    let namespaces = settings
        .subsystems
        .values()
        .flat_map(|of| of.namespaces.values());
    let uuids: Vec<String> = namespaces.map(|one| one.uuid.to_string()).collect();
    assert_eq!(
        uuids,
        [
            "d56bb8df-1d5a-559e-902a-5c7220b56b1e",
            "d7d75167-e78a-5e33-afe1-1321f328cbca"
        ]
    );
}

/// A service manager need not start a daemon again whose file has mistakes (EX_CONFIG of sysexits.h(3head)).
#[test]
fn a_file_with_mistakes_has_an_exit_status_of_its_own() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("nvmeofd.toml");
    std::fs::write(&path, "[[prot]]")?;
    let status = |arguments: &[&std::ffi::OsStr]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_nvmeofd"));
        command
            .args(arguments)
            .output()
            .map(|output| output.status.code())
    };
    assert_eq!(status(&[path.as_os_str()])?, Some(78));
    assert_eq!(status(&["--check".as_ref(), path.as_os_str()])?, Some(1));
    // A file that is not there may come, so systemd starts the daemon again.
    std::fs::remove_file(&path)?;
    assert_eq!(status(&[path.as_os_str()])?, Some(1));
    Ok(())
}
