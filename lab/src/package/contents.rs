//! Contents of the packages.
//!
//! | package | has |
//! |---|---|
//! | `libdat1` | `libdat.so.1`, named after its soname as policy asks (8.1); Debian's own DAT 2.0 is `libdat2.so.2` in `libdapl2` |
//! | `libdat1-dbgsym` | its debug file, where gdb looks for it |
//! | `libdat-dev` | headers, `libdat.so`, `libdat.a`, `dat.pc` |
//! | `udapl-tools` | `datctl`; the rule, the modules and the limit with which members of group `udapl` open functions |
//! | `udapl-sim` | `simnic`; the simulator's card profiles, a unit that serves simulated functions, examples of `dat.conf` and for simnic |
//! | `nvmeofd` | the NVMe over RDMA target, its unit, its user |
//!
//! Texts are in `packaging/`. This module defines the path of each text in its package.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::deb::{About, Build, Deb};
use crate::install::{self, Library};
use crate::shell;

/// Programs and libraries that cargo has built for the packages.
pub struct Programs {
    pub library: Library,
    pub datctl: PathBuf,
    pub nvmeofd: PathBuf,
    pub simnic: PathBuf,
}

const LIBRARY: About = About {
    name: "libdat1",
    section: "libs",
    is_data: false,
    description: "uDAPL 1.2 on ConnectX cards, without verbs (shared library)
Direct Access Transport in user space: requests are written straight into
the queues of a ConnectX (mlx5) function that is bound to vfio-pci. There is
no verbs layer and no RDMA driver in the kernel. A simulator of the card is
built in, so programs run without one.
.
Programs of DAT 1.2 are linked to this library; for those of DAT 2.0, which
Debian has, it is a provider that a line of /etc/dat.conf names.",
    documents_of: None,
};
const DEBUG: About = About {
    name: "libdat1-dbgsym",
    section: "debug",
    is_data: false,
    description: "debug symbols for libdat1
Names and lines of libdat.so.1 for debuggers and backtraces.",
    documents_of: Some("libdat1"),
};
const DEVELOPMENT: About = About {
    name: "libdat-dev",
    section: "libdevel",
    is_data: false,
    description: "uDAPL 1.2 on ConnectX cards, without verbs (development files)
Headers, static library and pkg-config file for programs of DAT 1.2.",
    documents_of: None,
};
const TOOLS: About = About {
    name: "udapl-tools",
    section: "net",
    is_data: false,
    description: "find, prepare, ask and measure ConnectX functions in user space
datctl lists functions, gives them to vfio-pci and back, says what is missing
before one can be driven, measures, and looks into live processes. Members of
group udapl may open the functions that are bound to vfio-pci.",
    documents_of: None,
};
const SIMULATOR: About = About {
    name: "udapl-sim",
    section: "net",
    is_data: false,
    description: "simulated ConnectX cards for programs, kernels and QEMU
simnic boots a stock Linux kernel with simulated cards and runs a command in
it: rdma-core, perftest and NVMe over RDMA work there as on a real card.
.
Beside it are profiles of the cards that can be simulated, a systemd unit that
serves pairs of simulated functions by vfio-user, and lines for dat.conf with
which two programs of DAT 2.0 talk over a simulated wire.",
    documents_of: None,
};
const TARGET: About = About {
    name: "nvmeofd",
    section: "net",
    is_data: false,
    description: "NVMe over RDMA target on ConnectX cards, in user space
Serves files and block devices to hosts by NVMe over RDMA. The card is driven
from user space, and disks by io_uring straight into and out of registered
memory. It runs as a user without rights.",
    documents_of: None,
};

/// Maintainer scripts of packages that create a group or a user.
const TOOLS_POSTINST: &str = include_str!("../../../packaging/udapl-tools.postinst");
const TOOLS_POSTRM: &str = include_str!("../../../packaging/udapl-tools.postrm");
const TARGET_POSTINST: &str = include_str!("../../../packaging/nvmeofd.postinst");
const TARGET_PRERM: &str = include_str!("../../../packaging/nvmeofd.prerm");
const TARGET_POSTRM: &str = include_str!("../../../packaging/nvmeofd.postrm");

/// Makes all packages and returns their files.
///
/// # Errors
/// One of Debian's tools failed, or a file could not be read or written.
pub fn pack(build: &Build, programs: &Programs) -> Result<Vec<PathBuf>> {
    Ok(vec![
        library(build, &programs.library)?,
        debug(build, &programs.library)?,
        development(build, &programs.library)?,
        tools(build, &programs.datctl)?,
        simulator(build, &programs.simnic)?,
        target(build, &programs.nvmeofd)?,
    ])
}

fn library(build: &Build, library: &Library) -> Result<PathBuf> {
    let mut deb = Deb::new(build, &LIBRARY)?;
    let path = format!("usr/lib/{}/{}", build.triplet, install::SONAME);
    deb.copy(&path, &library.stripped)?;
    deb.depends("", &[&path])?;
    deb.field("Multi-Arch", "same");
    deb.field("Suggests", "udapl-tools");
    deb.control("shlibs", &format!("libdat 1 {}\n", LIBRARY.name))?;
    deb.control("triggers", "activate-noawait ldconfig\n")?;
    deb.pack()
}

fn debug(build: &Build, library: &Library) -> Result<PathBuf> {
    let mut deb = Deb::new(build, &DEBUG)?;
    let id = library.build_id()?;
    let (folder, rest) = id.split_at(2);
    deb.copy(
        &format!("usr/lib/debug/.build-id/{folder}/{rest}.debug"),
        &library.debug,
    )?;
    deb.depends(&exactly(build, LIBRARY.name), &[])?;
    deb.field("Multi-Arch", "same");
    deb.field("Auto-Built-Package", "debug-symbols");
    deb.field("Build-Ids", &id);
    deb.pack()
}

fn development(build: &Build, library: &Library) -> Result<PathBuf> {
    let mut deb = Deb::new(build, &DEVELOPMENT)?;
    let libraries = format!("usr/lib/{}", build.triplet);
    deb.strip(
        &format!("{libraries}/libdat.a"),
        &library.archive,
        "--strip-debug",
    )?;
    deb.link(&format!("{libraries}/libdat.so"), install::SONAME)?;
    deb.write(
        &format!("{libraries}/pkgconfig/dat.pc"),
        install::pkgconfig("/usr", &format!("${{prefix}}/lib/{}", build.triplet))?,
    )?;
    for header in install::headers()? {
        let name = header.file_name().context("a header has a name")?;
        deb.copy(&format!("usr/include/dat/{}", name.display()), &header)?;
    }
    example(&deb, &DEVELOPMENT, "udapl/examples/hello.c")?;
    example(&deb, &DEVELOPMENT, "udapl/examples/greet.c")?;
    deb.depends(
        &format!("{}, libc6-dev | libc-dev", exactly(build, LIBRARY.name)),
        &[],
    )?;
    deb.field("Multi-Arch", "same");
    deb.pack()
}

fn tools(build: &Build, datctl: &Path) -> Result<PathBuf> {
    let mut deb = Deb::new(build, &TOOLS)?;
    deb.strip("usr/bin/datctl", datctl, "--strip-unneeded")?;
    made_by(&deb, datctl, "datctl")?;
    deb.copy(
        "usr/lib/udev/rules.d/60-udapl.rules",
        &packaging("udapl.rules"),
    )?;
    deb.copy(
        "usr/lib/modules-load.d/udapl.conf",
        &packaging("udapl.modules"),
    )?;
    deb.copy(
        "etc/security/limits.d/udapl.conf",
        &packaging("udapl.limits"),
    )?;
    example(&deb, &TOOLS, "packaging/program.service")?;
    deb.depends("passwd", &["usr/bin/datctl"])?;
    deb.field("Recommends", "udapl-sim");
    deb.control("postinst", TOOLS_POSTINST)?;
    deb.control("postrm", TOOLS_POSTRM)?;
    deb.pack()
}

fn simulator(build: &Build, simnic: &Path) -> Result<PathBuf> {
    let mut deb = Deb::new(build, &SIMULATOR)?;
    deb.strip("usr/bin/simnic", simnic, "--strip-unneeded")?;
    made_by(&deb, simnic, "simnic")?;
    deb.copy(
        "usr/lib/systemd/system/udapl-sim@.service",
        &packaging("udapl-sim@.service"),
    )?;
    let profiles = shell::root().join("hw-sim/profiles");
    for entry in fs::read_dir(&profiles).with_context(|| profiles.display().to_string())? {
        let profile = entry?;
        let name = profile.file_name();
        deb.copy(
            &format!("usr/share/udapl/profiles/{}", name.display()),
            &profile.path(),
        )?;
    }
    for source in [
        "packaging/server.conf",
        "packaging/client.conf",
        "simnic/examples/nvme-fio.sh",
        "simnic/examples/late-write.py",
    ] {
        example(&deb, &SIMULATOR, source)?;
    }
    // simnic downloads a kernel and QEMU from Debian's mirror, and verifies Debian's signatures.
    let needs = format!(
        "apt, debian-archive-keyring, udapl-tools (>= {})",
        build.version
    );
    deb.depends(&needs, &["usr/bin/simnic"])?;
    deb.field("Suggests", "libdat1, dapl2-utils");
    deb.pack()
}

fn target(build: &Build, nvmeofd: &Path) -> Result<PathBuf> {
    let mut deb = Deb::new(build, &TARGET)?;
    deb.strip("usr/bin/nvmeofd", nvmeofd, "--strip-unneeded")?;
    made_by(&deb, nvmeofd, "nvmeofd")?;
    let deploy = shell::root().join("nvmeof/deploy");
    deb.copy(
        "usr/lib/systemd/system/nvmeofd.service",
        &deploy.join("nvmeofd.service"),
    )?;
    example(&deb, &TARGET, "nvmeof/deploy/nvmeofd.example.toml")?;
    deb.folder("etc/nvmeofd")?;
    let tools = format!("udapl-tools (>= {}), passwd", build.version);
    deb.depends(&tools, &["usr/bin/nvmeofd"])?;
    deb.control("postinst", TARGET_POSTINST)?;
    deb.control("prerm", TARGET_PRERM)?;
    deb.control("postrm", TARGET_POSTRM)?;
    deb.pack()
}

/// Adds manual pages and shell completions, which the program itself writes: `PROGRAM man FOLDER` and `PROGRAM
/// completions SHELL`.
fn made_by(deb: &Deb, program: &Path, name: &str) -> Result<()> {
    let ask = |arguments: &[&str]| {
        let mut command = shell::command(&program.to_string_lossy(), arguments);
        let output = command.output().ok()?;
        output.status.success().then_some(output.stdout)
    };
    let pages = tempfile::tempdir()?;
    if ask(&["man", &pages.path().to_string_lossy()]).is_some() {
        for entry in fs::read_dir(pages.path())? {
            let page = entry?;
            let name = page.file_name();
            deb.compressed(
                &format!("usr/share/man/man1/{}", name.display()),
                fs::read(page.path())?,
            )?;
        }
    } else {
        println!("package: {name} writes no manual pages (`{name} man FOLDER`)");
    }
    for (shell, path) in [
        (
            "bash",
            format!("usr/share/bash-completion/completions/{name}"),
        ),
        ("zsh", format!("usr/share/zsh/vendor-completions/_{name}")),
        (
            "fish",
            format!("usr/share/fish/vendor_completions.d/{name}.fish"),
        ),
    ] {
        match ask(&["completions", shell]) {
            Some(text) => deb.write(&path, text)?,
            None => println!(
                "package: {name} writes no completions for {shell} (`{name} completions {shell}`)"
            ),
        }
    }
    Ok(())
}

fn example(deb: &Deb, about: &About, source: &str) -> Result<()> {
    let path = shell::root().join(source);
    let name = path.file_name().context("an example has a name")?.display();
    let to = format!("usr/share/doc/{}/examples/{name}", about.name);
    deb.copy(&to, &path)
}

fn packaging(name: &str) -> PathBuf {
    shell::root().join("packaging").join(name)
}

/// Returns a dependency on exactly this version of a package.
fn exactly(build: &Build, name: &str) -> String {
    format!("{name} (= {})", build.version)
}
