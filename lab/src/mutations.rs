//! `cargo xtask mutations`: puts defects into a copy of the tree, one at a time, and reports the seed in which the
//! campaign finds each.
//!
//! The defects are listed in `campaign/mutations.toml`. They show that the campaign can find defects: if it found none
//! of these, a campaign without failures would prove nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use comfy_table::Table;
use serde::Deserialize;

use crate::shell;

/// Number of seeds in one run of the campaign.
const SEEDS_PER_RUN: u64 = 20;
/// Time limit of a run in seconds. A run that exceeds it has found the defect.
const PATIENCE: u32 = 60;

/// Options of `cargo xtask mutations`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Largest number of seeds to try for each defect.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// Try only the defects whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
}

#[derive(Deserialize)]
struct Catalogue {
    mutation: Vec<Mutation>,
}

#[derive(Deserialize)]
struct Mutation {
    name: String,
    file: String,
    before: String,
    after: String,
    /// Reason why no campaign can find this defect.
    blind: Option<String>,
    /// Features that all worlds have, so that few of them are needed.
    with: Option<String>,
}

impl Mutation {
    /// Returns the text of the file with the defect in it.
    fn applied(&self, root: &Path) -> Result<String> {
        let text = fs::read_to_string(root.join(&self.file))
            .with_context(|| format!("{}: {}", self.name, self.file))?;
        let times = text.matches(&self.before).count();
        ensure!(
            times == 1,
            "{}: what it replaces stands {times} times in {}",
            self.name,
            self.file
        );
        Ok(text.replace(&self.before, &self.after))
    }
}

fn catalogue() -> Result<Vec<Mutation>> {
    let text = fs::read_to_string(shell::root().join("campaign/mutations.toml"))?;
    Ok(toml::from_str::<Catalogue>(&text)?.mutation)
}

/// Applies the selected mutations one at a time, and reports the seed that finds each. A mutation with a reason in
/// `blind` is only listed.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mutations = catalogue()?;
    let folder = shell::target_directory()?.join("mutations");
    let tree = copy_of_the_tree(&folder.join("tree"))?;
    let mut table = Table::new();
    table.set_header(["mutation", "seeds until found", "as"]);
    for mutation in mutations
        .iter()
        .filter(|mutation| mutation.name.contains(&arguments.only))
    {
        let (seeds, found) = match &mutation.blind {
            Some(why) => ("-".to_owned(), why.clone()),
            None => match try_one(mutation, &tree, &folder, arguments.seeds)? {
                Some((seeds, what)) => (seeds.to_string(), what),
                None => (format!("none of {}", arguments.seeds), String::new()),
            },
        };
        println!("{}: {seeds} {found}", mutation.name);
        table.add_row([&mutation.name, &seeds, &found]);
    }
    println!("{table}");
    Ok(())
}

/// Copies the files under version control, with uncommitted changes.
fn copy_of_the_tree(to: &Path) -> Result<PathBuf> {
    let root = shell::root();
    let listed = shell::capture(shell::command("git", &["ls-files"]))?;
    let files: BTreeSet<&str> = listed.lines().collect();
    for file in files {
        let (from, to) = (root.join(file), to.join(file));
        let Ok(bytes) = fs::read(&from) else { continue };
        // An unchanged file keeps its modification time, so that cargo does not build it again.
        if fs::read(&to).is_ok_and(|there| there == bytes) {
            continue;
        }
        fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
        fs::write(to, bytes)?;
    }
    Ok(to.to_path_buf())
}

/// Builds the campaign with the mutation, and runs at most `seeds` seeds. Returns the position of the first seed that
/// fails, counted from 1, and the failure.
fn try_one(
    mutation: &Mutation,
    tree: &Path,
    folder: &Path,
    seeds: u64,
) -> Result<Option<(u64, String)>> {
    let file = tree.join(&mutation.file);
    let healthy = fs::read_to_string(&file)?;
    fs::write(&file, mutation.applied(tree)?)?;
    let found = build(tree, folder).and_then(|campaign| {
        (0..seeds)
            .step_by(usize::try_from(SEEDS_PER_RUN)?)
            .find_map(|first| worlds(&campaign, mutation.with.as_deref(), first).transpose())
            .transpose()
    });
    fs::write(&file, healthy)?;
    found.with_context(|| mutation.name.clone())
}

fn build(tree: &Path, folder: &Path) -> Result<PathBuf> {
    let target = folder.join("target");
    let mut command = shell::cargo(&[
        "build",
        shell::TESTED,
        "--quiet",
        "--workspace",
        "--bin",
        "campaign",
    ]);
    command
        .current_dir(tree)
        .env("CARGO_TARGET_DIR", &target)
        .env("RUSTFLAGS", "--cap-lints=allow");
    shell::run(command)?;
    Ok(target.join("debug/campaign"))
}

/// Runs some seeds of the campaign. Returns the position of the first seed that failed, counted from 1, and the
/// failure. A run that exceeds its time limit has failed, too.
fn worlds(campaign: &Path, with: Option<&str>, first: u64) -> Result<Option<(u64, String)>> {
    let features = with.map(|features| ["--with", features]);
    let output = Command::new("timeout")
        .arg(PATIENCE.to_string())
        .arg(campaign)
        .args([
            "--first",
            &first.to_string(),
            "--seeds",
            &SEEDS_PER_RUN.to_string(),
        ])
        .args(features.into_iter().flatten())
        .stderr(Stdio::null())
        .output()
        .context("cannot start the campaign")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let failed = text
        .lines()
        .zip(text.lines().skip(1))
        .find_map(|(what, again)| {
            let seed = again
                .trim()
                .strip_prefix("again: ")?
                .split("--seed ")
                .nth(1)?;
            let seed: u64 = seed.split(' ').next()?.parse().ok()?;
            Some((seed + 1, what.chars().take(100).collect()))
        });
    match (failed, output.status.code()) {
        (Some(failed), _) => Ok(Some(failed)),
        (None, Some(0)) => Ok(None),
        (None, Some(124)) => Ok(Some((first + 1, "it does not end".to_owned()))),
        (None, code) => bail!("the campaign ended with {code:?} and named no seed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every mutation applies: the text that it replaces occurs exactly once in the current sources.
    #[test]
    fn every_mutation_applies() {
        let mutations = catalogue().expect("it parses");
        assert!(mutations.len() >= 30);
        for mutation in &mutations {
            let text = mutation.applied(&shell::root());
            if let Err(error) = text {
                panic!("{error:#}");
            }
        }
    }
}
