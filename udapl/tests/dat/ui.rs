//! Guarantees of the types: programs that violate them do not compile.
//!
//! Each program of `udapl/tests/ui` has the compiler errors that it must cause in lines that begin with `//~`;
//! `right.rs` has none. The programs are compiled against the library that these tests were built with, so no further
//! library is built for them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a program against a library. Returns the compiler's errors, one line for each.
fn errors(program: &Path, library: &Path, out: &Path) -> Vec<String> {
    let deps = library.parent().expect("a folder");
    let compiler = Command::new("rustc")
        .args(["--edition", "2024", "--emit", "metadata", "-o"])
        .arg(out.join("program.rmeta"))
        .arg("--extern")
        .arg(format!("udapl={}", library.display()))
        .arg("-L")
        .arg(format!("dependency={}", deps.display()))
        .arg(program)
        .output()
        .expect("the compiler runs");
    let said = String::from_utf8_lossy(&compiler.stderr);
    let errors = said.lines().filter(|line| line.starts_with("error"));
    let errors = errors.filter(|line| !line.starts_with("error: aborting"));
    errors.map(str::to_owned).collect()
}

/// Returns the `udapl` libraries beside this test program, newest first. There may be several: one for each set of
/// features with which `udapl` was built.
fn libraries() -> Vec<PathBuf> {
    let test = std::env::current_exe().expect("a path");
    let folder = test.parent().expect("a folder").read_dir().expect("read");
    let mut found: Vec<_> = folder
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let ours = name.starts_with("libudapl-") && name.ends_with(".rlib");
            let built = entry.metadata().ok()?.modified().ok()?;
            ours.then(|| (built, entry.path()))
        })
        .collect();
    found.sort();
    found.into_iter().rev().map(|(_, path)| path).collect()
}

#[test]
fn programs_that_break_what_types_promise_do_not_compile() {
    let out = tempfile::tempdir().expect("a folder");
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ui");
    let right = programs.join("right.rs");
    let library = libraries()
        .into_iter()
        .find(|library| errors(&right, library, out.path()).is_empty())
        .expect("a library that a right program compiles against");
    let mut checked = 0;
    for entry in programs.read_dir().expect("programs") {
        let program = entry.expect("a program").path();
        let text = std::fs::read_to_string(&program).expect("readable");
        let expected = text.lines().filter_map(|line| line.strip_prefix("//~ "));
        let expected: Vec<&str> = expected.collect();
        assert_eq!(expected.is_empty(), program == right, "{program:?}");
        assert_eq!(
            errors(&program, &library, out.path()),
            expected,
            "{program:?}"
        );
        checked += 1;
    }
    assert!(checked > 1, "no programs in {programs:?}");
}
