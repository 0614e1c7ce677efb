//! `cargo xtask races`: checks code that runs in several threads with loom, ThreadSanitizer and Miri.
//!
//! - **loom** runs the hand-overs of the C ABI (the gate before an adapter, handles, wakeups, upcalls) and those
//!   between instances of an adapter (answers, events, interrupts, calls) in every order that the memory model allows,
//!   with more preemptions than the ordinary tests use (`udapl/src/capi/models`, `hw-mlx/src/instance/models.rs`).
//! - **ThreadSanitizer** watches the tests of the C ABI, whose threads post, wait, close and receive upcalls. The
//!   standard library is built with ThreadSanitizer, too, because it would not recognise the locks of an
//!   uninstrumented one.
//! - **Miri** interprets the units that hand over memory between threads (`cargo xtask miri` runs the other units).
//!
//! ThreadSanitizer and Miri need a nightly toolchain with its sources.

use anyhow::{Context, Result, bail};

use crate::{miri, shell};

/// Options of `cargo xtask races`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Run only this part.
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Number of times that loom may preempt a thread that could continue. Each further preemption takes ten times as
    /// long.
    #[arg(long, default_value_t = 3)]
    preemptions: u8,
}

/// The tool that checks.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// The models, in every order, with loom.
    Loom,
    /// The tests of the C ABI, with ThreadSanitizer.
    Tsan,
    /// The units that hand over memory, with Miri.
    Miri,
}

/// Runs all parts, or the selected one.
pub fn run(arguments: &Arguments) -> Result<()> {
    let wanted = |part| arguments.only.is_none_or(|only| only == part);
    if wanted(Part::Loom) {
        loom(arguments.preemptions)?;
    }
    if wanted(Part::Tsan) {
        sanitized()?;
    }
    if wanted(Part::Miri) {
        miri::threads()?;
    }
    Ok(())
}

/// Crates with loom models, each with the module path of its models.
const MODELS: [(&str, &str); 2] = [
    ("udapl", "capi::models::"),
    ("hw-mlx", "instance::models::"),
];

fn loom(preemptions: u8) -> Result<()> {
    let mut executions = 0;
    for (package, models) in MODELS {
        let mut command = shell::cargo(&[
            "test",
            "--quiet",
            "--package",
            package,
            "--lib",
            "--",
            models,
            "--show-output",
        ]);
        command.env("LOOM_MAX_PREEMPTIONS", preemptions.to_string());
        shell::announce(&command);
        let said = shell::capture(command).context("a model does not hold")?;
        let mut ran = 0;
        for line in said.lines().filter(|line| line.starts_with("model: ")) {
            println!("{line}");
            ran += count(line).with_context(|| format!("no number in {line:?}"))?;
        }
        if ran == 0 {
            bail!("no model of {package} has run");
        }
        executions += ran;
    }
    println!("loom: {executions} executions, and each mistake made on purpose was found");
    Ok(())
}

/// Returns the number before the word "executions" in a line of loom's output.
fn count(line: &str) -> Option<u64> {
    let (before, _) = line.split_once(" executions")?;
    before.rsplit(' ').next()?.parse().ok()
}

/// Test programs of the C ABI that have threads.
const SUITES: [&str; 1] = ["capi"];
/// Target triple, which is given because cargo builds std only for an explicit target.
const TARGET: &str = "x86_64-unknown-linux-gnu";

fn sanitized() -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        bail!("ThreadSanitizer: only on x86-64 so far");
    }
    let mut arguments = vec![
        "+nightly",
        "test",
        "-Zbuild-std",
        "--target",
        TARGET,
        "--package",
        "udapl",
    ];
    arguments.extend(SUITES.iter().flat_map(|suite| ["--test", suite]));
    let mut command = shell::command("cargo", &arguments);
    let suppressions = shell::root().join("lab/src/tsan.supp");
    command
        // The cargo that runs xtask sets this variable, which would override the toolchain argument.
        .env_remove("RUSTUP_TOOLCHAIN")
        .env("RUSTFLAGS", "-Zsanitizer=thread")
        .env("CARGO_TARGET_DIR", shell::target().join("tsan"))
        .env(
            "TSAN_OPTIONS",
            format!("suppressions={}", suppressions.display()),
        );
    shell::run(command).context(
        "a race, or no nightly toolchain with sources: rustup component add rust-src --toolchain nightly",
    )?;
    println!("ThreadSanitizer: no race in {}", SUITES.join(", "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executions_are_counted_from_what_a_model_says() {
        let said = "model: posts beside locks, Interrupts: 765 executions, up to 2 preemptions";
        assert_eq!(count(said), Some(765));
        assert_eq!(count("model: nothing"), None);
    }
}
