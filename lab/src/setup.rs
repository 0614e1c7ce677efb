//! Installs the tools that the tests use beyond Rust: Debian's packages, cargo-deny and cargo-shear.
//!
//! No tool here is needed to build or to run the demo. Without root, apt or its mirror, the checks that need a tool
//! are left out with a message.

use anyhow::Result;

use crate::{deny, left_out, shear, shell};

/// A program that the tests use, its package, and the checks left out without it.
struct Tool {
    present: fn() -> bool,
    package: &'static str,
    purpose: &'static str,
}

const TOOLS: [Tool; 3] = [
    Tool {
        present: || shell::exists("tshark"),
        package: "tshark",
        purpose: "decoding the captured wire",
    },
    Tool {
        present: scapy,
        package: "python3-scapy",
        purpose: "an independent ICRC computation",
    },
    Tool {
        present: || shell::exists("valgrind"),
        package: "valgrind",
        purpose: "counting instructions (bench)",
    },
];

/// Returns whether scapy is installed for Debian's Python interpreter. Another python3 may come before that interpreter
/// on the path.
pub fn scapy() -> bool {
    shell::capture({
        let mut command = shell::command("/usr/bin/python3", &["-c", "import scapy.contrib.roce"]);
        command.stderr(std::process::Stdio::null());
        command
    })
    .is_ok()
}

/// Installs missing tools if possible. Reports the checks that are left out because a tool
/// could not be installed.
pub fn run() -> Result<()> {
    for wheel in [deny::PROGRAM, shear::PROGRAM] {
        wheel.fetch();
    }
    let missing: Vec<&Tool> = TOOLS.iter().filter(|tool| !(tool.present)()).collect();
    if missing.is_empty() {
        println!("setup: tshark, scapy and valgrind are there");
        return Ok(());
    }
    let root = shell::capture(shell::command("id", &["-u"])).is_ok_and(|id| id.trim() == "0");
    let reason = if root && shell::exists("apt-get") {
        match install(&missing) {
            Ok(()) => return Ok(()),
            Err(error) => format!("{error:#}"),
        }
    } else {
        format!("no apt-get, or not root (root: {root})")
    };
    for tool in &missing {
        let why = format!(
            "{0} is not installed and cannot be from here ({reason}). As root: apt-get install {0}",
            tool.package
        );
        left_out::say(tool.purpose, &why);
    }
    Ok(())
}

fn install(missing: &[&Tool]) -> Result<()> {
    let packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    println!(
        "setup: apt-get installs {}, once, which may take minutes and is silent",
        packages.join(", ")
    );
    shell::run(shell::command("apt-get", &["update", "-qq"]))?;
    let mut install = vec!["install", "-y", "-qq", "--no-install-recommends"];
    install.extend(packages);
    let mut command = shell::command("apt-get", &install);
    command.env("DEBIAN_FRONTEND", "noninteractive");
    shell::run(command)
}
