//! The shell script that the guest runs: it executes one command in the shared folder.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

/// Folders that the guest has itself, so that folders of the host with these paths cannot be shared.
const OWN: [&str; 13] = [
    "/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys",
    "/usr", "/told",
];

/// Environment variables of the host that the command always gets, if they are set.
const ALWAYS: [&str; 2] = ["TERM", "NO_COLOR"];

/// Returns the folder to share: the given one, or the working directory.
pub fn share(named: Option<&Path>) -> Result<PathBuf> {
    let folder = match named {
        Some(folder) => folder.to_owned(),
        None => std::env::current_dir().context("the working directory")?,
    };
    let folder = folder
        .canonicalize()
        .with_context(|| folder.display().to_string())?;
    ensure!(folder.is_dir(), "{}: not a folder", folder.display());
    ensure!(
        !OWN.iter().any(|own| Path::new(own) == folder),
        "{} cannot be shared: the machine has one of its own; --share names another folder",
        folder.display()
    );
    ensure!(
        !folder.to_string_lossy().contains([',', '\n']),
        "{:?} cannot be shared: QEMU takes no comma in a path",
        folder
    );
    Ok(folder)
}

/// Returns the script that sets the environment variables and runs the command in the shared folder.
pub fn script(command: &[String], variables: &[String], share: &Path) -> Result<String> {
    let mut script = format!("cd {} || exit 125\n", quoted(&share.to_string_lossy()));
    for name in ALWAYS {
        if let Ok(value) = std::env::var(name) {
            script += &format!("export {name}={}\n", quoted(&value));
        }
    }
    for variable in variables {
        let (name, value) = match variable.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => match std::env::var(variable) {
                Ok(value) => (variable.as_str(), value),
                Err(error) => bail!("--env {variable}: {error}"),
            },
        };
        ensure!(
            is_name(name),
            "--env {variable}: {name:?} is no variable's name"
        );
        script += &format!("export {name}={}\n", quoted(&value));
    }
    if let Some(program) = command.first() {
        script += &missing_program_check(program);
    }
    let words: Vec<String> = command.iter().map(|word| quoted(word)).collect();
    script += &format!("exec {}\n", words.join(" "));
    Ok(script)
}

/// Returns shell code that checks that the program exists. If it does not, the code prints a message and exits with
/// status 127. Without this check the message would be the shell's own, which names the script.
fn missing_program_check(program: &str) -> String {
    let word = quoted(program);
    let is_there = match program.contains('/') {
        true => format!("[ -e {word} ]"),
        // `command -v` would also find builtins of the shell.
        false => format!(
            "( IFS=:; for folder in $PATH; do [ -x \"$folder\"/{word} ] && exit 0; done; exit 1 )"
        ),
    };
    let missing =
        format!("simnic: {program}: not found in the guest; --package adds a Debian package");
    format!(
        "{is_there} || {{ printf '%s\\n' {} >&2; exit 127; }}\n",
        quoted(&missing)
    )
}

fn is_name(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    text.bytes().next().is_some_and(letter)
        && text
            .bytes()
            .all(|byte| letter(byte) || byte.is_ascii_digit())
}

/// Quotes a word for the shell.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The command gets its arguments unchanged. A real shell runs the script.
    #[test]
    fn the_command_gets_its_arguments_as_they_were_given() {
        let words = [
            "printf",
            "<%s>",
            "a b",
            "it's",
            "$HOME",
            "*",
            "",
            "two\nlines",
            "\\",
        ];
        let words = words.map(str::to_owned);
        let variables = ["ONE=1 'and' $2".to_owned()];
        let script = script(&words, &variables, Path::new("/tmp")).expect("a script");
        let said = std::process::Command::new("sh")
            .args(["-c", &script])
            .output()
            .expect("sh");
        let said = String::from_utf8(said.stdout).expect("text");
        assert_eq!(said, "<a b><it's><$HOME><*><><two\nlines><\\>");
        assert!(
            script.contains(r"export ONE='1 '\''and'\'' $2'"),
            "{script}"
        );
    }

    #[test]
    fn a_program_that_is_not_there_is_named_with_status_127() {
        for name in ["no-such-program", "./no-such", "/no/such it's", "cd"] {
            let script = script(&[name.to_owned()], &[], Path::new("/tmp")).expect("a script");
            let mut shell = std::process::Command::new("sh");
            let said = shell.args(["-c", &script]).output().expect("sh");
            assert_eq!(said.status.code(), Some(127), "{name}");
            let said = String::from_utf8(said.stderr).expect("text");
            let wanted = format!("simnic: {name}: not found in the guest");
            assert!(
                said.starts_with(&wanted) && said.lines().count() == 1,
                "{said}"
            );
        }
        for there in ["true", "/bin/true"] {
            let script = script(&[there.to_owned()], &[], Path::new("/tmp")).expect("a script");
            let mut shell = std::process::Command::new("sh");
            let said = shell.args(["-c", &script]).output().expect("sh");
            assert!(said.status.success(), "{said:?}");
        }
    }

    #[test]
    fn a_variable_that_is_not_there_or_has_no_name_is_refused() {
        let words = ["true".to_owned()];
        for (variable, part) in [
            ("SIMNIC_SURELY_NOT_SET", "environment variable not found"),
            ("a b=1", "is no variable's name"),
            ("=1", "is no variable's name"),
            ("1A=1", "is no variable's name"),
        ] {
            let error = script(&words, &[variable.to_owned()], Path::new("/tmp"));
            let error = error.expect_err(variable).to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_folder_that_the_machine_has_of_its_own_is_not_shared() {
        for own in ["/", "/usr", "/etc/../usr", "/proc"] {
            let error = share(Some(Path::new(own))).expect_err(own).to_string();
            assert!(error.contains("cannot be shared"), "{error}");
        }
        let error = share(Some(Path::new("/no/such"))).expect_err("nothing");
        assert!(
            format!("{error:#}").contains("/no/such: No such file"),
            "{error:#}"
        );
        let here = share(None).expect("the working directory");
        assert!(here.is_absolute());
    }
}
