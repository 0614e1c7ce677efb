//! `cargo xtask install --prefix DIR`: installs the library for C programs.
//!
//! | file | is |
//! |---|---|
//! | `lib/libdat.so.1` | the shared library, under the name that DAT 1.2 programs load |
//! | `lib/libdat.so` | the same, under the name with which programs are linked |
//! | `lib/libdat.so.1.debug` | its symbols and line numbers, which debuggers and backtraces find beside it |
//! | `lib/libdat.a` | the library for static linking |
//! | `lib/pkgconfig/dat.pc` | the compiler and linker flags for pkg-config |
//! | `include/dat/*.h` | the headers |
//!
//! Only this module builds the crate `udapl` as these libraries, so that no other build has to link them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use crate::shell;

/// Name under which DAT 1.2 programs load the library.
pub const SONAME: &str = "libdat.so.1";

/// Options of `cargo xtask install`.
#[derive(Args)]
pub struct Arguments {
    /// Directory in which lib and include are installed.
    #[arg(long)]
    prefix: PathBuf,
    /// Cargo profile of the library: `release`, or `test` for a quick build.
    #[arg(long, default_value = "release")]
    profile: String,
}

/// Installs the library and prints how to use it.
pub fn run(arguments: &Arguments) -> Result<()> {
    install(&arguments.prefix, &arguments.profile)?;
    println!(
        "installed in {0}\n  export PKG_CONFIG_PATH={0}/lib/pkgconfig LD_LIBRARY_PATH={0}/lib\n  cc program.c $(pkg-config --cflags --libs dat)",
        arguments.prefix.display()
    );
    Ok(())
}

/// Installs into a prefix without printing how to use the library.
///
/// # Errors
/// Cargo or a tool of binutils failed, or a file could not be read or written.
pub fn install(prefix: &Path, profile: &str) -> Result<()> {
    fs::create_dir_all(prefix).with_context(|| prefix.display().to_string())?;
    let prefix = prefix.canonicalize()?;
    let (lib, include) = (prefix.join("lib"), prefix.join("include/dat"));
    let pkgconfig_folder = lib.join("pkgconfig");
    for folder in [&include, &pkgconfig_folder] {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    Library::build(profile, &lib)?;
    let link = lib.join("libdat.so");
    if link.symlink_metadata().is_ok() {
        fs::remove_file(&link)?;
    }
    std::os::unix::fs::symlink(SONAME, &link)?;
    for header in headers()? {
        let name = header.file_name().context("a header has a name")?;
        fs::copy(&header, include.join(name))?;
    }
    let text = pkgconfig(&prefix.to_string_lossy(), "${prefix}/lib")?;
    fs::write(pkgconfig_folder.join("dat.pc"), text)?;
    Ok(())
}

/// The built library, its debug file, and the archive for static linking.
pub struct Library {
    pub stripped: PathBuf,
    pub debug: PathBuf,
    /// Archive for static linking, with debug information, which the linked programs may need.
    pub archive: PathBuf,
}

impl Library {
    /// Builds the library into an existing folder.
    ///
    /// # Errors
    /// Cargo or a tool of binutils failed, or a file could not be read or written.
    pub fn build(profile: &str, folder: &Path) -> Result<Self> {
        let built = build(profile)?;
        let file = |name: &str| {
            let found = built.iter().find(|path| path.ends_with(name));
            found.with_context(|| format!("cargo built no {name}: {built:?}"))
        };
        let library = Self {
            stripped: folder.join(SONAME),
            debug: folder.join(format!("{SONAME}.debug")),
            archive: folder.join("libdat.a"),
        };
        let whole = file("libudapl.so")?;
        objcopy(&["--only-keep-debug".as_ref(), whole, &library.debug])?;
        // The library contains the name and a checksum of the debug file. Debuggers search for that name beside the
        // library first, and then search by build id.
        let link = format!("--add-gnu-debuglink={}", library.debug.display());
        let strip: [&Path; 4] = [
            "--strip-unneeded".as_ref(),
            link.as_ref(),
            whole,
            &library.stripped,
        ];
        objcopy(&strip)?;
        fs::copy(file("libudapl.a")?, &library.archive)?;
        Ok(library)
    }

    /// Returns the build id, with which a debugger finds the debug file, in hexadecimal digits.
    ///
    /// # Errors
    /// `readelf` failed, or the linker wrote no build id.
    pub fn build_id(&self) -> Result<String> {
        let mut notes = shell::command("readelf", &["--notes"]);
        notes.arg(&self.stripped);
        let notes = shell::capture(notes)?;
        let id = notes.split_once("Build ID: ").map(|(_, rest)| rest);
        let id = id.and_then(|rest| rest.split_whitespace().next());
        Ok(id.context("the library has no build id")?.to_owned())
    }
}

fn objcopy(arguments: &[&Path]) -> Result<()> {
    let mut command = shell::command("objcopy", &[]);
    command.args(arguments);
    shell::capture(command)?;
    Ok(())
}

/// Returns the headers of DAT 1.2.
///
/// # Errors
/// The folder cannot be read.
pub fn headers() -> Result<Vec<PathBuf>> {
    let folder = shell::root().join("udapl/include/dat");
    let entries = fs::read_dir(&folder).with_context(|| folder.display().to_string())?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// Returns the text of `dat.pc` for a prefix.
///
/// # Errors
/// A file cannot be read.
pub fn pkgconfig(prefix: &str, libraries: &str) -> Result<String> {
    let template = fs::read_to_string(shell::root().join("udapl/dat.pc.in"))?;
    Ok(template
        .replace("@prefix@", prefix)
        .replace("@libdir@", libraries)
        .replace("@version@", env!("CARGO_PKG_VERSION")))
}

/// Builds the shared and the static library with cargo, and returns the paths of the files.
fn build(profile: &str) -> Result<Vec<PathBuf>> {
    let soname = format!("-Clink-arg=-Wl,-soname,{SONAME}");
    // -Bsymbolic: in a program of DAT 2.0, other libraries have functions of the same names, and the linker must not
    // bind our calls to them. -z nodelete: our threads may still run after the last adapter is closed, so the library
    // must stay loaded after the registry closes it.
    let alone = "-Clink-arg=-Wl,-Bsymbolic,-z,nodelete";
    let mut command = shell::cargo(&["rustc"]);
    // With profile `test`, `cargo rustc` would build the library's unit tests. So profile `dev` gets the settings of
    // profile `test`, which optimise: an unoptimised simulator needs more stack than the 64 KiB of dapltest's threads.
    let profile = if profile == "test" {
        command.args(settings_of_tests()?);
        "dev"
    } else {
        profile
    };
    command.args([
        "--package",
        "udapl",
        "--lib",
        "--features",
        "control",
        "--crate-type",
        "cdylib,staticlib",
        "--profile",
        profile,
        "--message-format",
        "json-render-diagnostics",
        "--",
        &soname,
        alone,
    ]);
    let messages = shell::capture(command)?;
    let mut files = Vec::new();
    for line in messages.lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        if message["reason"] == "compiler-artifact" && message["target"]["name"] == "udapl" {
            let names = message["filenames"].as_array().into_iter().flatten();
            files.extend(names.filter_map(|name| name.as_str()).map(PathBuf::from));
        }
    }
    Ok(files)
}

/// Returns the arguments of cargo that give profile `dev` the settings of profile `test`.
fn settings_of_tests() -> Result<Vec<String>> {
    let manifest = std::fs::read_to_string(shell::root().join("Cargo.toml"))?;
    let manifest: toml::Table = toml::from_str(&manifest)?;
    let profile = manifest.get("profile").and_then(|all| all.get("test"));
    let settings = profile.and_then(toml::Value::as_table);
    let settings = settings.context("Cargo.toml has no profile `test`")?;
    Ok(arguments("profile.dev", settings))
}

/// Returns the arguments of cargo for the settings in a table and in the tables within it.
fn arguments(name: &str, settings: &toml::Table) -> Vec<String> {
    let all = settings.iter().flat_map(|(key, value)| {
        let name = format!("{name}.{key}");
        match value.as_table() {
            Some(table) => arguments(&name, table),
            None => vec![format!("--config={name}={value}")],
        }
    });
    all.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    /// Time limits of a wait in the examples: as published, and as used by this test. They only end a wait that would
    /// never end, and measure nothing. On a busy machine valgrind takes longer than the published limit.
    const PATIENCE: [&str; 2] = ["#define PATIENCE 60000000 ", "#define PATIENCE 600000000 "];
    /// Seconds after which a program that hangs outside of such a wait is killed. Its exit status is then 124.
    const HANG_LIMIT: &str = "3000";

    /// A temporary prefix with an installed library, against which programs are built and run.
    struct Prefix(tempfile::TempDir);

    impl Prefix {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("a directory");
            install(folder.path(), "test").expect("installed");
            Self(folder)
        }

        fn flags(&self, arguments: &[&str]) -> Vec<String> {
            let mut command = Command::new("pkg-config");
            command
                .args(arguments)
                .arg("dat")
                .env("PKG_CONFIG_PATH", self.0.path().join("lib/pkgconfig"));
            let flags = shell::capture(command).expect("pkg-config knows dat");
            flags.split_whitespace().map(str::to_owned).collect()
        }

        /// Compiles one of the programs in `udapl/tests/c`.
        fn compile(&self, name: &str, link: &[&str]) -> PathBuf {
            let source = shell::root()
                .join("udapl/tests/c")
                .join(format!("{name}.c"));
            self.compile_file(name, &source, link)
        }

        /// Compiles a published example with a longer time limit of its waits.
        fn compile_example(&self, name: &str, source: &Path) -> PathBuf {
            let text = fs::read_to_string(source).expect("a program");
            let [usual, longer] = PATIENCE;
            assert!(text.contains(usual), "{}: {usual}", source.display());
            let patient = self.0.path().join(name).with_extension("c");
            fs::write(&patient, text.replace(usual, longer)).expect("a file");
            self.compile_file(name, &patient, &["--cflags", "--libs"])
        }

        fn compile_file(&self, name: &str, source: &Path, link: &[&str]) -> PathBuf {
            shell::run(self.cc(name, source, link)).expect("it compiles");
            self.0.path().join(name)
        }

        fn cc(&self, name: &str, source: &Path, link: &[&str]) -> Command {
            let mut cc = Command::new("cc");
            cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-o"])
                .args([&self.0.path().join(name), source])
                .args(self.flags(link));
            cc
        }

        /// Checks the output of a program, run alone and then under valgrind if valgrind is installed.
        fn run_checked(&self, program: &Path, arguments: &[&Path], printed: &str) {
            let mut alone = Command::new(program);
            alone.args(arguments);
            assert_eq!(self.run(alone), printed);
            if !shell::exists("valgrind") {
                println!("skipped: valgrind is not installed (cargo xtask setup)");
                return;
            }
            let mut checked = Command::new("valgrind");
            checked
                .args(["-q", "--error-exitcode=9", "--leak-check=full"])
                .args([
                    "--errors-for-leak-kinds=definite",
                    "--show-leak-kinds=definite",
                ])
                .arg(program)
                .args(arguments);
            assert_eq!(self.run(checked), printed);
        }

        fn run(&self, program: Command) -> String {
            let mut limited = Command::new("timeout");
            limited
                .args(["--kill-after=10", HANG_LIMIT])
                .arg(program.get_program())
                .args(program.get_args())
                .env("LD_LIBRARY_PATH", self.0.path().join("lib"));
            shell::capture(limited).expect("it runs")
        }
    }

    /// Returns the calls that the installed headers declare. Each declaration begins a line: `DAT_RETURN dat_NAME(` or
    /// `void dat_NAME(`.
    fn declared(prefix: &Prefix) -> BTreeSet<String> {
        let headers = std::fs::read_dir(prefix.0.path().join("include/dat")).expect("headers");
        let texts = headers.map(|header| {
            let path = header.expect("a header").path();
            std::fs::read_to_string(path).expect("a header")
        });
        let mut calls = BTreeSet::new();
        for text in texts {
            for line in text.lines() {
                let typed = ["DAT_RETURN ", "void "].map(|kind| line.strip_prefix(kind));
                if let Some(declared) = typed.into_iter().flatten().next()
                    && let Some((name, _)) = declared.split_once('(')
                    && name.starts_with("dat_")
                {
                    calls.insert(name.to_owned());
                }
            }
        }
        calls
    }

    /// Returns the calls that the library exports.
    fn exported(prefix: &Prefix) -> BTreeSet<String> {
        let mut symbols = Command::new("nm");
        symbols
            .args(["--dynamic", "--defined-only", "--format=just-symbols"])
            .arg(prefix.0.path().join("lib/libdat.so"));
        let symbols = prefix.run(symbols);
        let calls = symbols.lines().filter(|symbol| symbol.starts_with("dat_"));
        calls.map(str::to_owned).collect()
    }

    const DEMO: &str = "connected\nsent and received\nwritten and read directly\nwritten and read through a window\n\
                        connected\nsent to a shared receive queue\nwritten and read directly\n\
                        written and read through a window\ndone\n";

    #[test]
    fn a_c_program_needs_no_more_than_pkg_config_says_and_valgrind_finds_nothing_in_it() {
        let prefix = Prefix::new();
        let shared = prefix.compile("demo", &["--cflags", "--libs"]);
        prefix.run_checked(&shared, &[], DEMO);
        let mut needed = Command::new("readelf");
        needed.arg("-d").arg(&shared);
        assert!(prefix.run(needed).contains(SONAME));
        assert_eq!(declared(&prefix), exported(&prefix), "declared, exported");
        let linked_in = prefix.compile("demo", &["--cflags", "--static", "--libs"]);
        assert_eq!(prefix.run(Command::new(&linked_in)), DEMO);
        let source = shell::root().join("udapl/tests/c/demo.c");
        let mut alone = prefix.cc("alone", &source, &["--cflags", "--static", "--libs"]);
        // The linker prints a warning for dlopen(3), because a statically linked program cannot load providers from
        // other libraries.
        alone.arg("-static").env("LC_ALL", "C");
        shell::capture(alone).expect("it links as pkg-config says");
        let alone = prefix.0.path().join("alone");
        let mut needed = Command::new("readelf");
        needed.arg("-d").arg(&alone);
        let needed = prefix.run(needed);
        assert!(!needed.contains("(NEEDED)"), "{needed}");
        assert_eq!(prefix.run(Command::new(&alone)), DEMO);
    }

    /// `dat.conf` determines the adapters that a C program lists, and those that it may open (IAO-1, IAO-5, IAO-6,
    /// PINI-1, REGL-1, REGL-2, REGL-3).
    #[test]
    fn a_c_program_opens_what_its_dat_conf_names() {
        let prefix = Prefix::new();
        let program = prefix.compile("conf", &["--cflags", "--libs"]);
        let printed = prefix.run(Command::new(&program));
        assert_eq!(printed, "listed\nopened\nrefused\n");
        let mut without = Command::new(&program);
        without.arg("none");
        assert_eq!(prefix.run(without), "nothing listed\n");
    }

    /// A signal ends a wait of a C program without the loss of an event (CNO-15, EVDW-8). This holds in virtual time,
    /// in which a wait never sleeps, and in real time.
    #[test]
    fn a_signal_ends_the_waits_of_a_c_program_and_nothing_is_lost() {
        let prefix = Prefix::new();
        let mut program = Command::new(prefix.compile("interrupted", &["--cflags", "--libs"]));
        let wire = prefix.0.path().join("wire");
        program.arg("sim:virtual").arg(format!(
            "sim:wired,mac=02:00:00:00:00:01,link=unix:{}",
            wire.display()
        ));
        assert_eq!(prefix.run(program), "interrupted\ninterrupted\n");
    }

    #[test]
    fn a_program_with_its_memory_locked_has_no_more_of_the_tables_of_handles_than_it_uses() {
        let prefix = Prefix::new();
        let program = prefix.compile("locked", &["--cflags", "--libs"]);
        let printed = prefix.run(Command::new(program));
        match printed.strip_prefix("left out: ") {
            // The limit on locked memory (RLIMIT_MEMLOCK) is too low for this program.
            Some(why) => println!("left out: {why}"),
            None => assert_eq!(printed, "locked, and small\n"),
        }
    }

    #[test]
    fn the_shared_library_is_stripped_and_names_its_debug_file() {
        let prefix = Prefix::new();
        let library = prefix.0.path().join("lib").join(SONAME);
        let sections = |path: &Path| {
            let mut readelf = Command::new("readelf");
            readelf.args(["--sections", "--wide"]).arg(path);
            prefix.run(readelf)
        };
        let said = sections(&library);
        assert!(
            !said.contains(".debug_line") && !said.contains(".symtab"),
            "{said}"
        );
        assert!(said.contains(".gnu_debuglink"), "{said}");
        let debug = library.with_file_name(format!("{SONAME}.debug"));
        assert!(sections(&debug).contains(".debug_line"));
    }

    /// Two C programs register the same shared memory under one name (LMRC-7, LMRC-8).
    #[test]
    fn two_c_programs_share_memory_under_one_name() {
        let prefix = Prefix::new();
        let mut program = Command::new(prefix.compile("shared", &["--cflags", "--libs"]));
        program.arg(prefix.0.path());
        assert_eq!(prefix.run(program), "one memory\n");
    }

    /// A C program creates regions of parts of other regions (LMRC-2, LMRC-3, LMRC-5, LMRC-6, LMRF-1, LMRF-2).
    #[test]
    fn a_c_program_makes_regions_of_regions() {
        let prefix = Prefix::new();
        let program = prefix.compile("region", &["--cflags", "--libs"]);
        let expected =
            "refused\nzones and rights of their own\nthe source last\nthe source first\n";
        assert_eq!(prefix.run(Command::new(program)), expected);
    }

    /// A C program adds, calls, loads and removes providers of other libraries (PINI-1, PINI-2, REGA-1 to REGA-3,
    /// REGR-1 to REGR-3).
    #[test]
    fn providers_of_other_libraries_are_added_called_loaded_and_removed() {
        let prefix = Prefix::new();
        let source = shell::root().join("udapl/tests/c/provider.c");
        for name in ["libprovider.so", "libprovider-2.so"] {
            let mut library = prefix.cc(name, &source, &["--cflags"]);
            library.args(["-shared", "-fPIC"]);
            shell::run(library).expect("it compiles");
        }
        let program = prefix.compile("providers", &["--cflags", "--libs"]);
        prefix.run_checked(&program, &[prefix.0.path()], "done\n");
    }

    /// Calls in a child of fork(2) are refused, and its parent is not disturbed. The test does not use valgrind, which
    /// would report memory held by the parent's threads as lost in the child.
    #[test]
    fn a_c_program_that_forks_keeps_its_adapters_to_itself() {
        let prefix = Prefix::new();
        let program = prefix.compile("forked", &["--cflags", "--libs"]);
        let printed = "the reason is told\nthe child is refused\nthe parent goes on\n";
        let mut forked = Command::new(program);
        forked.args(["sim:parent", "sim:server"]);
        assert_eq!(prefix.run(forked), printed);
    }

    /// A C program whose functions are connected by an external wire passes valgrind. Such functions use threads and
    /// real time.
    #[test]
    fn valgrind_finds_nothing_in_a_c_program_whose_functions_have_a_wire() {
        let prefix = Prefix::new();
        let program = prefix.compile("wired", &["--cflags", "--libs"]);
        let wire = prefix.0.path().join("wire");
        let names = ["01", "02"].map(|mac| {
            let wire = wire.display();
            PathBuf::from(format!(
                "sim:f{mac},mac=02:00:00:00:00:{mac},link=unix:{wire}"
            ))
        });
        prefix.run_checked(&program, &[&names[0], &names[1]], "over the wire\n");
    }

    #[test]
    fn the_environment_switches_the_log_of_a_c_program_on() {
        let prefix = Prefix::new();
        let program = prefix.compile("forked", &["--cflags", "--libs"]);
        let said = |level: Option<&str>| {
            let mut command = Command::new(&program);
            command.env("LD_LIBRARY_PATH", prefix.0.path().join("lib"));
            command
                .args(["sim:parent", "sim:server"])
                .env_remove("DAT_LOG");
            if let Some(level) = level {
                command.env("DAT_LOG", level);
            }
            let output = command.output().expect("it runs");
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stderr).expect("text")
        };
        assert_eq!(said(None), "", "nothing by default");
        let debug = said(Some("debug"));
        assert!(
            debug.contains(" DEBUG udapl::capi::answer: refused error=DAT_PROVIDER_NOT_FOUND"),
            "{debug}"
        );
        assert!(!said(Some("warn")).contains(" DEBUG "));
        assert!(
            said(Some("loud")).contains("\"loud\" is none of error, warn"),
            "a slip is told"
        );
    }

    /// The first C program of the documentation prints what the documentation says.
    #[test]
    fn the_example_in_c_finds_both_texts() {
        let prefix = Prefix::new();
        let source = shell::root().join("udapl/examples/hello.c");
        let program = prefix.compile_example("hello", &source);
        let printed =
            "written into the server's memory: Hello, memory\nsent to the server: Hello, server\n";
        prefix.run_checked(&program, &[], printed);
    }

    /// The two-program example in C works as two processes and as two threads. The test uses the names in the
    /// example's opening comment, except for the path of the wire.
    #[test]
    fn the_example_of_two_programs_in_c_talks_as_processes_and_as_threads() {
        let prefix = Prefix::new();
        let source = shell::root().join("udapl/examples/greet.c");
        let program = prefix.compile_example("greet", &source);
        let expected =
            "server: listening\nserver: received: hello\nclient: received: you said: hello\n";
        for how in ["fork", "threads"] {
            let mut both = Command::new(&program);
            both.arg(how).arg(prefix.0.path().join(how)).arg("hello");
            assert_eq!(prefix.run(both), expected, "{how}");
        }
        let wire = prefix.0.path().join("wire");
        let name = |side: &str, number: u32| {
            format!(
                "sim:{side},link=unix:{},mac=02:00:00:00:00:0{number},address=192.0.2.{number}/24",
                wire.display()
            )
        };
        let side = |arguments: &[&str]| {
            let mut side = Command::new(&program);
            side.args(arguments)
                .env("LD_LIBRARY_PATH", prefix.0.path().join("lib"))
                .stdout(Stdio::piped());
            side.spawn().expect("a process")
        };
        let mut server = side(&["server", &name("s", 1)]);
        let mut said = BufReader::new(server.stdout.take().expect("a pipe"));
        let mut line = String::new();
        said.read_line(&mut line).expect("a line");
        assert_eq!(line, "server: listening\n");
        let client = side(&["client", &name("c", 2), "192.0.2.1", "hello"]);
        let heard = client.wait_with_output().expect("its end");
        assert_eq!(
            String::from_utf8_lossy(&heard.stdout),
            "client: received: you said: hello\n"
        );
        assert!(server.wait().expect("its end").success());
        // If a name is refused, the program prints the reason as a sentence.
        let mut refused = Command::new(&program);
        refused
            .args(["server", "sim:s,link=unix:wire"])
            .env("LD_LIBRARY_PATH", prefix.0.path().join("lib"));
        let refused = refused.output().expect("it runs");
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(why.contains("link needs mac=MAC"), "{why}");
    }

    #[test]
    fn the_guide_s_program_in_c_prints_what_it_says() {
        let prefix = Prefix::new();
        let source = Path::new(concat!(env!("OUT_DIR"), "/guide.c"));
        let program = prefix.compile_example("guide", source);
        let printed = include_str!(concat!(env!("OUT_DIR"), "/guide.text"));
        assert_eq!(prefix.run(Command::new(&program)).trim(), printed.trim());
    }
}
