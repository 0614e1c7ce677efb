//! Tests the packages in a clean Debian: installs them with apt, uses them as documented, and purges them. Afterwards
//! the root must have the same files as before.
//!
//! ```text
//!   target/debian-root/base    mmdebstrap: the release of this machine, a C compiler, Debian's programs of DAT 2.0
//!   target/debian-root/tried   a copy of `base` for one run, removed after the run
//!   target/vm                  the cache of `simnic run`, mounted into the copy; shared with `cargo xtask vm`
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use comfy_table::Table;
use guest::mirror;

use crate::shell;

/// Packages of the test machine: a C compiler, and the library that finds providers in `/etc/dat.conf`.
const INCLUDED: &str = "gcc,libc6-dev,pkg-config,dapl2-utils,libdapl2";

/// Steps of the test: a description and a shell script each.
const STEPS: [(&str, &str); 10] = [
    (
        "apt installs them, with nothing but what they name",
        "DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends /debs/*.deb",
    ),
    (
        "a C program compiles and runs",
        "cc -o /tmp/hello /usr/share/doc/libdat-dev/examples/hello.c $(pkg-config --cflags --libs dat)
         /tmp/hello | grep 'Hello, server'",
    ),
    (
        "so do two that talk over a wire",
        "cc -o /tmp/greet /usr/share/doc/libdat-dev/examples/greet.c $(pkg-config --cflags --libs dat)
         /tmp/greet fork /tmp/wire hello | grep 'client: received: you said: hello'",
    ),
    (
        "the same with the library linked in",
        "cc -o /tmp/hello /usr/share/doc/libdat-dev/examples/hello.c $(pkg-config --cflags dat) \
            $(pkg-config --static --libs dat | sed s/-ldat/-l:libdat.a/)
         dpkg --purge libdat1-dbgsym libdat-dev libdat1
         /tmp/hello | grep 'Hello, server'
         DEBIAN_FRONTEND=noninteractive apt-get install -y -qq /debs/libdat*.deb",
    ),
    (
        "the debug file is the library's",
        "id=$(file=$(echo /usr/lib/*/libdat.so.1); readelf -n $file | sed -n 's/.*Build ID: //p')
         test -f /usr/lib/debug/.build-id/$(echo $id | cut -c1-2)/$(echo $id | cut -c3-).debug",
    ),
    ("datctl opens a simulated adapter", "datctl info sim:a"),
    (
        "the simulator serves, with one of its profiles",
        "datctl sim serve --profile /usr/share/udapl/profiles/connectx-7.toml --socket /tmp/0.sock --socket /tmp/1.sock &
         for i in $(seq 3000); do test -S /tmp/1.sock && break; sleep 0.1; done
         datctl info vfio-user:/tmp/0.sock; kill $!",
    ),
    (
        "simnic runs a command in a stock kernel on two simulated cards",
        "mkdir -p /tmp/try && cd /tmp/try
         simnic run --timeout 500 -- ibv_devinfo > /tmp/devices
         cat /tmp/devices; test $(grep -c PORT_ACTIVE /tmp/devices) = 1",
    ),
    (
        "nvmeofd takes its example, and has its user",
        "nvmeofd --check /usr/share/doc/nvmeofd/examples/nvmeofd.example.toml
         id -nG nvmeofd | grep -w udapl; test $(stat -c %U:%a /etc/nvmeofd) = nvmeofd:750",
    ),
    (
        "dtest of Debian's finds us through /etc/dat.conf",
        // dtest exits with 0 even after a failure, so its output is checked.
        "examples=/usr/share/doc/udapl-sim/examples
         cat $examples/server.conf >> /etc/dat.conf
         stdbuf -oL dtest -P udapl-sim -b 4096 -B 100 > /tmp/server.log 2>&1 &
         for i in $(seq 3000); do grep -q 'waiting for client' /tmp/server.log && break; sleep 0.1; done
         DAT_OVERRIDE=$examples/client.conf timeout 600 dtest -P udapl-sim -h 127.0.0.1 -b 4096 -B 100 > /tmp/client.log 2>&1
         wait $!; cat /tmp/server.log /tmp/client.log
         for side in server client; do grep -q 'Test Complete. PASSED' /tmp/$side.log; done",
    ),
];
/// Script that removes the files that the steps made, and purges the packages.
const PURGE: &str = "rm -rf /tmp/* && apt-get purge -y -qq \
    $(for deb in /debs/*.deb; do dpkg-deb -f $deb Package; done)";

/// Paths of files that apt, dpkg, the dynamic linker and useradd(8) change for any package.
const PACKAGE_DATABASES: [&str; 9] = [
    "/var/lib/dpkg/",
    "/var/lib/apt/",
    "/var/cache/",
    "/var/log/",
    "/etc/ld.so.cache",
    "/etc/passwd",
    "/etc/shadow",
    "/etc/group",
    "/etc/gshadow",
];

/// Runs all steps.
///
/// # Errors
/// The user is not root, the root folder cannot be made, a step fails, or the files after the purge differ from those
/// before.
pub fn test(packages: &[PathBuf]) -> Result<()> {
    ensure!(
        shell::capture(shell::command("id", &["-u"]))?.trim() == "0",
        "packages are tried in a root of their own, which needs root"
    );
    let folder = shell::target_directory()?.join("debian-root");
    let lent = shell::target_directory()?.join("vm");
    let base = base(&folder)?;
    let root = Root(folder.join("tried"));
    root.remove()?;
    let mut copy = shell::command("cp", &["--archive", "--reflink=auto"]);
    copy.arg(&base).arg(&root.0);
    shell::run(copy)?;
    let debs = root.0.join("debs");
    fs::create_dir_all(&debs)?;
    for package in packages {
        fs::copy(
            package,
            debs.join(package.file_name().context("a package's name")?),
        )?;
    }
    for folder in [&root.cache(), &lent] {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let before = root.files()?;
    let mut table = Table::new();
    table.set_header(["in a clean Debian", "result", "s"]);
    let mut failed = None;
    for (what, script) in STEPS.iter().chain([&("purged", PURGE)]) {
        println!("package: {what}");
        let start = Instant::now();
        let ran = root.run(script, &lent);
        let result = if ran.is_ok() { "ok" } else { "FAILED" };
        let took = format!("{:.1}", start.elapsed().as_secs_f64());
        table.add_row([*what, result, &took]);
        failed = failed.or(ran.err().map(|error| error.context(*what)));
        if failed.is_some() {
            break;
        }
    }
    let after = root.files()?;
    println!("{table}");
    if let Some(error) = failed {
        return Err(error);
    }
    let left: Vec<_> = after.symmetric_difference(&before).collect();
    ensure!(
        left.is_empty(),
        "not as before the packages came: {left:#?}"
    );
    println!(
        "package: {} files and users are as they were before",
        before.len()
    );
    Ok(())
}

/// Returns the root folder of the clean Debian. Creates it if it is missing.
fn base(folder: &Path) -> Result<PathBuf> {
    let system = fs::read_to_string("/etc/os-release")?;
    let codename = system
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let release = codename.context("/etc/os-release names no release: is this Debian?")?;
    let base = folder.join("base");
    let recipe = format!("{release} {INCLUDED}");
    let stamp = folder.join("recipe");
    if fs::read_to_string(&stamp).ok().as_deref() == Some(&recipe) {
        return Ok(base);
    }
    ensure!(
        shell::exists("mmdebstrap"),
        "a clean Debian is made by mmdebstrap, which is not there. As root: apt-get install mmdebstrap"
    );
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(folder)?;
    let mut bootstrap = shell::command("mmdebstrap", &["--variant=minbase"]);
    bootstrap
        .arg(format!("--include={INCLUDED}"))
        .arg(release)
        .arg(&base)
        .arg(format!("deb {} {release} main", mirror::address()));
    shell::run(bootstrap)?;
    fs::write(stamp, recipe)?;
    Ok(base)
}

/// The root folder of a Debian.
struct Root(PathBuf);

impl Root {
    /// Returns the folder in which simnic keeps unpacked packages.
    fn cache(&self) -> PathBuf {
        self.0.join("cache")
    }

    /// Runs a script in this root, with its own /proc. All processes of the script end with it. `lent` is mounted as
    /// the cache of simnic.
    fn run(&self, script: &str, lent: &Path) -> Result<()> {
        let mut command =
            shell::command("unshare", &["--mount", "--pid", "--fork", "--kill-child"]);
        let proc = self.0.join("proc");
        command
            .arg(format!("--mount-proc={}", proc.display()))
            .args([
                "sh",
                "-euc",
                "mount --bind \"$1\" \"$2\"; shift 2; exec \"$@\"",
                "sh",
            ])
            .args([lent, &self.cache()])
            .arg("chroot")
            .arg(&self.0)
            .args([
                "env",
                "-i",
                "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
                "LC_ALL=C",
                "HOME=/root",
                "SIMNIC_CACHE=/cache",
            ])
            .arg(format!("DEBIAN_MIRROR={}", mirror::address()))
            .args(["timeout", "600", "sh", "-euc", script])
            .stdin(Stdio::null());
        let output = command.output().context("cannot start unshare")?;
        ensure!(
            output.status.success(),
            "{script}\nended with {}:\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Returns every path with its mode and owner, except those in `PACKAGE_DATABASES`, and the lines of passwd and
    /// group.
    fn files(&self) -> Result<BTreeSet<String>> {
        let mut find = shell::command("find", &[]);
        find.arg(&self.0)
            .args(["-xdev", "-printf", "/%P %m %U:%G\n"]);
        let paths = shell::capture(find)?;
        let paths = paths
            .lines()
            .filter(|line| !PACKAGE_DATABASES.iter().any(|book| line.starts_with(book)));
        let mut found: BTreeSet<String> = paths.map(str::to_owned).collect();
        for book in ["passwd", "group"] {
            let lines = fs::read_to_string(self.0.join("etc").join(book))?;
            found.extend(lines.lines().map(str::to_owned));
        }
        Ok(found)
    }

    fn remove(&self) -> Result<()> {
        if self.0.exists() {
            fs::remove_dir_all(&self.0).with_context(|| self.0.display().to_string())?;
        }
        Ok(())
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("package: {error:#}");
        }
    }
}
