//! `datctl man` and `datctl completions`: what a package installs beside the program.
//!
//! Both are made from what the command line itself is read by, so they name what there is. Options that are hidden from
//! help are hidden here, too.

use std::error::Error;
use std::io::{Write, stdout};
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;
use serde::Serialize;

use crate::report::{Output, Report};

/// `man`
#[derive(clap::Args)]
pub(crate) struct Man {
    /// Where the pages go, one for each command: datctl.1, datctl-perf.1 and so on. Without it, the page of datctl
    /// itself is printed: datctl man | man -l -
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

/// `completions`
#[derive(clap::Args)]
pub(crate) struct Completions {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// The pages that were written.
#[derive(Serialize)]
struct Written {
    folder: PathBuf,
    pages: Vec<String>,
}

impl Report for Written {
    fn human(&self) -> String {
        let places = self.pages.iter().map(|page| self.folder.join(page));
        let lines: Vec<String> = places.map(|path| path.display().to_string()).collect();
        lines.join("\n")
    }
}

/// Writes or prints the pages.
pub(crate) fn man(command: Command, man: &Man, output: Output) -> Result<(), Box<dyn Error>> {
    let Some(folder) = &man.folder else {
        let mut page = Vec::new();
        page_of(command).render(&mut page)?;
        stdout().lock().write_all(&page)?;
        return Ok(());
    };
    let failed = |error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(folder).map_err(failed)?;
    let pages = pages(command, folder).map_err(failed)?;
    let folder = folder.clone();
    Ok(output.show(&Written { folder, pages })?)
}

/// The page of a command.
fn page_of(command: Command) -> clap_mangen::Man {
    clap_mangen::Man::new(command)
        .source(concat!("datctl ", env!("CARGO_PKG_VERSION")))
        .manual("uDAPL")
}

/// One page for each command that is not hidden; their names.
fn pages(mut command: Command, folder: &Path) -> std::io::Result<Vec<String>> {
    // Each command then knows what it is called from the root on.
    command.build();
    let mut pages = Vec::new();
    let mut left = vec![command];
    while let Some(command) = left.pop() {
        if command.is_hide_set() || command.get_name() == "help" {
            continue;
        }
        left.extend(command.get_subcommands().cloned());
        let page = page_of(command);
        pages.push(page.get_filename());
        page.generate_to(folder)?;
    }
    pages.sort_unstable();
    Ok(pages)
}

/// Prints the script.
pub(crate) fn completions(
    mut command: Command,
    completions: &Completions,
) -> Result<(), Box<dyn Error>> {
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut command, "datctl", &mut script);
    stdout().lock().write_all(&script)?;
    Ok(())
}
