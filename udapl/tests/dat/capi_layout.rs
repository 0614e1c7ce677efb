//! A C compiler compares the headers with the numbers of DAT 1.2, and with the layout of the same structures in Rust.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use udapl::capi::types::LAYOUTS;
use udapl::capi::{dat2, foreign};

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// Checks a source file with a compiler (`-fsyntax-only -Werror`). The error is the compiler's output.
fn compile(compiler: &str, arguments: &[&str], source: &Path) -> Result<(), String> {
    let output = Command::new(compiler)
        .args(arguments)
        .args([
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            "-fsyntax-only",
            "-I",
        ])
        .arg(include())
        .arg(source)
        .output()
        .expect("a C compiler");
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The DAT events in `EVENT_NUMBERS`, which `datctl explain` uses, are those of the C header, with the same numbers.
#[test]
fn events_have_the_numbers_in_c_that_they_have_by_name() {
    let header = std::fs::read_to_string(include().join("dat/dat.h")).expect("the header");
    let (_, events) = header
        .split_once("typedef enum dat_event_number {")
        .expect("the events");
    let (events, _) = events.split_once("} DAT_EVENT_NUMBER;").expect("their end");
    for line in events.lines().filter(|line| !line.is_empty()) {
        let (name, _) = line.trim().split_once(" = ").expect("a name and a number");
        let mut known = udapl::event::EVENT_NUMBERS.iter();
        assert!(known.any(|one| one.name == name), "{name}");
    }
    let mut text = "#include <dat/udat.h>\n".to_owned();
    let in_c = udapl::event::EVENT_NUMBERS
        .iter()
        .filter(|one| one.name.starts_with("DAT_"));
    for one in in_c {
        let (name, number) = (one.name, one.number);
        writeln!(text, "_Static_assert({name} == {number:#x}, \"{name}\");").expect("a string");
    }
    let (_folder, source) = temporary(&text, "events.c");
    compile("cc", &["-std=c11"], &source).expect("as in the header");
}

fn temporary(text: &str, name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("written");
    (folder, path)
}

#[test]
fn sizes_offsets_and_values_are_those_of_dat_1_2() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/layout.c");
    compile("cc", &["-std=c11"], &source).expect("every assertion holds");
}

#[test]
fn every_structure_lies_in_c_as_in_rust() {
    let mut text = String::from("#include <dat/udat_redirection.h>\n");
    for (name, size, fields) in LAYOUTS.iter().chain([&foreign::LAYOUT]) {
        writeln!(
            text,
            "_Static_assert(sizeof({name}) == {size}, \"{name}\");"
        )
        .expect("text");
        for (field, at) in *fields {
            writeln!(
                text,
                "_Static_assert(offsetof({name}, {field}) == {at}, \"{name}.{field}\");"
            )
            .expect("text");
        }
    }
    let (_folder, path) = temporary(&text, "same.c");
    compile("cc", &["-std=c11"], &path).expect("every assertion holds");
    // The compiler does check the assertions: a file with a wrong assertion does not compile.
    let (_folder, path) = temporary(&text.replacen("== 24", "== 32", 1), "other.c");
    compile("cc", &["-std=c11"], &path).expect_err("one assertion does not hold");
}

/// Languages with their compilers and dialects. Compilers that are not installed are not used.
const DIALECTS: [(&str, [&str; 2], [&str; 3]); 2] = [
    ("c", ["cc", "clang"], ["-std=c89", "-std=c99", "-std=c11"]),
    (
        "c++",
        ["c++", "clang++"],
        ["-std=c++98", "-std=c++11", "-std=c++17"],
    ),
];

/// Checks a text with every installed compiler in every dialect. A warning fails the test.
fn compile_everywhere(text: &str) {
    let (_folder, path) = temporary(text, "alone.c");
    for (language, compilers, dialects) in DIALECTS {
        let is_there = |compiler: &&str| Command::new(compiler).arg("--version").output().is_ok();
        for compiler in compilers.into_iter().filter(is_there) {
            for dialect in dialects {
                compile(compiler, &["-x", language, dialect], &path)
                    .unwrap_or_else(|said| panic!("{compiler} {dialect}: {text}{said}"));
            }
        }
    }
}

#[test]
fn each_header_is_clean_alone_in_every_dialect_of_c_and_of_c_plus_plus() {
    let headers = std::fs::read_dir(include().join("dat")).expect("the headers");
    let mut count = 0;
    for header in headers {
        let name = header.expect("an entry").file_name();
        let name = name.to_string_lossy();
        compile_everywhere(&format!(
            "#include <dat/{name}>\nint main(void) {{ return 0; }}\n"
        ));
        count += 1;
    }
    assert_eq!(count, 7);
}

/// Every macro of the headers with a hexadecimal value compiles without warnings where a program uses it. The compiler
/// does not check a macro that is not used.
#[test]
fn the_macros_of_the_headers_are_clean_in_every_dialect_of_c_and_of_c_plus_plus() {
    let headers = std::fs::read_dir(include().join("dat")).expect("the headers");
    let mut text = "#include <dat/udat.h>\n#include <dat/dat_registry.h>\n".to_owned();
    text += "int main(void)\n{\n\tDAT_OS_WAIT_PROXY_AGENT none = DAT_OS_WAIT_PROXY_AGENT_NULL;\n";
    let mut count = 0;
    for header in headers {
        let header = std::fs::read_to_string(header.expect("an entry").path()).expect("text");
        let defined = header
            .lines()
            .filter_map(|line| line.strip_prefix("#define "));
        for (name, value) in defined.filter_map(|line| line.split_once(' ')) {
            // Only macros with a hexadecimal value are tested; most macros have one.
            if value.starts_with("0x") {
                writeln!(text, "\tif ({name} == 1)\n\t\treturn 1;").expect("text");
                count += 1;
            }
        }
    }
    text += "\treturn none.proxy_agent_func != 0;\n}\n";
    assert!(count > 100, "{count} macros");
    compile_everywhere(&text);
}

/// `struct dat_provider` of DAT 2.0 has the members of DAT 1.2 at the same offsets, followed by its own members. `cargo
/// xtask dtest` compares `dat2::LAYOUT` with the headers of the DAT 2.0 package.
#[test]
fn the_table_of_a_provider_is_the_beginning_of_that_of_dat_2_0() {
    let (name, size, members) = foreign::LAYOUT;
    let (later_name, later_size, later) = dat2::LAYOUT;
    assert_eq!((name, later_name), ("struct dat_provider", name));
    assert_eq!(members, &later[..members.len()]);
    assert_eq!((size, later_size), (560, 648));
    assert_eq!(later[members.len()].1, size, "the first of its own");
}
