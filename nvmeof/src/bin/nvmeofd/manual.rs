//! `nvmeofd man DIR` and `nvmeofd completions SHELL`: output made from the definition of the command line.

use std::io::{self, Write, stdout};
use std::path::PathBuf;

use clap::Parser;
use clap_complete::Shell;

/// Arguments of `nvmeofd man`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The folder for the pages, one for each command: nvmeofd.1, nvmeofd-ctl.1 and so on. It is created if necessary.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Arguments of `nvmeofd completions`.
#[derive(clap::Args)]
pub(crate) struct Completions {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Writes a manual page for each command.
pub(crate) fn write<Program: Parser>(options: &Options) -> io::Result<()> {
    std::fs::create_dir_all(&options.folder)?;
    let mut program = Program::command().disable_help_subcommand(true);
    // This gives each command its full name.
    program.build();
    let mut left = vec![program];
    while let Some(mut command) = left.pop() {
        left.extend(command.get_subcommands().cloned());
        let name = command.get_display_name().map(str::to_owned);
        let name = name.unwrap_or_else(|| command.get_name().to_owned());
        // `--help` shows the examples at its end. A manual page has a section for them.
        let after = command.get_after_help().map(ToString::to_string);
        let after = after.unwrap_or_default();
        let (more, examples) = after.split_once("Examples:\n").unwrap_or((&after, ""));
        command = match more.trim_end() {
            "" => command.after_help(None::<&'static str>),
            more => command.after_help(more.to_owned()),
        };
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        if !examples.is_empty() {
            let examples = examples.replace('\\', "\\e").replace('-', "\\-");
            write!(page, ".SH EXAMPLES\n.nf\n{}\n.fi\n", examples.trim_end())?;
        }
        std::fs::write(options.folder.join(format!("{name}.1")), page)?;
    }
    Ok(())
}

/// Prints the completion script of a shell.
pub(crate) fn completions<Program: Parser>(options: &Completions) -> io::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(
        options.shell,
        &mut Program::command(),
        "nvmeofd",
        &mut script,
    );
    stdout().lock().write_all(&script)
}
