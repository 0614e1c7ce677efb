//! Files that a package installs with a program: manual pages, and shell completions of its commands.
//!
//! Both are generated from the parser of the command line, so they are complete. Options that are hidden from the help
//! are hidden from these files, too.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;

/// Heading before the examples at the end of a command's help.
const EXAMPLES: &str = "Examples:\n";

/// Options of `man`.
#[derive(clap::Args)]
pub struct Man {
    /// Folder for the pages, one for each command: PROGRAM.1, PROGRAM-COMMAND.1 and so on. Without it, the page of the
    /// program itself is printed: PROGRAM man | man -l -
    #[arg(value_name = "DIR")]
    pub folder: Option<PathBuf>,
}

/// Options of `completions`.
#[derive(clap::Args)]
pub struct Completions {
    /// The shell.
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Returns the page of a program or of one of its commands.
///
/// # Errors
/// None in practice: writing to memory does not fail.
pub fn page(command: Command) -> io::Result<Vec<u8>> {
    let source = source(&command);
    rendered(command, source).map(|(_, page)| page)
}

/// Writes one manual page for each command that is not hidden into a folder, and creates the folder if needed. Returns
/// the names of the pages.
///
/// # Errors
/// The folder or a file cannot be written.
pub fn pages(mut command: Command, folder: &Path) -> io::Result<Vec<String>> {
    std::fs::create_dir_all(folder)?;
    // `build` gives each command its full name, from the root on.
    command.build();
    let source = source(&command);
    let mut pages = Vec::new();
    let mut left = vec![command];
    while let Some(command) = left.pop() {
        if command.is_hide_set() || command.get_name() == "help" {
            continue;
        }
        left.extend(command.get_subcommands().cloned());
        let (name, page) = rendered(command, source.clone())?;
        std::fs::write(folder.join(&name), page)?;
        pages.push(name);
    }
    pages.sort_unstable();
    Ok(pages)
}

/// Returns the file name and the text of a manual page. The examples at the end of the help get a section of their
/// own.
fn rendered(command: Command, source: String) -> io::Result<(String, Vec<u8>)> {
    let after = command.get_after_help().map(ToString::to_string);
    let after = after.unwrap_or_default();
    let (more, examples) = after.split_once(EXAMPLES).unwrap_or((&after, ""));
    let command = match more.trim_end() {
        "" => command.after_help(None::<&'static str>),
        more => command.after_help(more.to_owned()),
    };
    let man = clap_mangen::Man::new(command)
        .source(source)
        .manual("uDAPL");
    let mut page = Vec::new();
    man.render(&mut page)?;
    if !examples.is_empty() {
        let examples = examples.trim_end().replace('\\', "\\e").replace('-', "\\-");
        write!(page, ".SH EXAMPLES\n.nf\n{examples}\n.fi\n")?;
    }
    Ok((man.get_filename(), page))
}

/// Returns the program's name and version for the footer of each page.
fn source(program: &Command) -> String {
    let version = program.get_version().unwrap_or_default();
    format!("{} {version}", program.get_name())
}

/// Returns the script that completes a program's commands.
#[must_use]
pub fn completions(mut command: Command, completions: &Completions) -> Vec<u8> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut command, name, &mut script);
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Command {
        Command::new("card")
            .version("1.2.3")
            .subcommand(
                Command::new("serve")
                    .about("Serves.")
                    .after_help("It ends by SIGTERM.\n\nExamples:\n  card serve --a"),
            )
            .subcommand(Command::new("inside").hide(true))
    }

    #[test]
    fn each_command_that_is_shown_has_a_page_that_names_program_and_version() {
        let folder = tempfile::tempdir().expect("a folder");
        let pages = pages(program(), folder.path()).expect("pages");
        assert_eq!(pages, ["card-serve.1", "card.1"]);
        for page in pages {
            let text = std::fs::read_to_string(folder.path().join(&page)).expect("text");
            assert!(text.contains("\"card 1.2.3\""), "{page}: {text}");
            let examples = ".SH EXAMPLES\n.nf\n  card serve \\-\\-a\n.fi\n";
            assert_eq!(text.contains(examples), page == "card-serve.1", "{text}");
            assert!(!text.contains("Examples:"), "{text}");
        }
    }

    #[test]
    fn completions_name_the_commands() {
        let script = completions(program(), &Completions { shell: Shell::Bash });
        let script = String::from_utf8(script).expect("text");
        assert!(script.contains("serve") && script.contains("_card"));
    }
}
