//! `nvmeofd man DIR`: its manual pages, made from what the command line is read by.

use std::path::PathBuf;

use clap::Parser;

/// `man`: where they go.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The folder, which is made if need be. A page for each command goes there: nvmeofd.1, nvmeofd-ctl.1 and so on.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Writes them.
pub(crate) fn write<Program: Parser>(options: &Options) -> std::io::Result<()> {
    std::fs::create_dir_all(&options.folder)?;
    clap_mangen::generate_to(
        Program::command().disable_help_subcommand(true),
        &options.folder,
    )
}
