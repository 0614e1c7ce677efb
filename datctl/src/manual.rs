//! `datctl man`: writes the manual pages and reports their paths, or prints one page.

use std::error::Error;
use std::io::{Write, stdout};
use std::path::PathBuf;

use clap::Command;
use serde::Serialize;
use simnic::manual;
pub(crate) use simnic::manual::{Completions, Man};

use crate::report::{Output, Report};

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

/// Writes the pages to a folder, or prints them if there is none.
pub(crate) fn man(command: Command, man: &Man, output: Output) -> Result<(), Box<dyn Error>> {
    let Some(folder) = man.folder.clone() else {
        stdout().lock().write_all(&manual::page(command)?)?;
        return Ok(());
    };
    let pages = manual::pages(command, &folder)
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(output.show(&Written { folder, pages })?)
}

/// Prints the completion script.
pub(crate) fn completions(
    command: Command,
    completions: &Completions,
) -> Result<(), Box<dyn Error>> {
    let script = manual::completions(command, completions);
    Ok(stdout().lock().write_all(&script)?)
}
