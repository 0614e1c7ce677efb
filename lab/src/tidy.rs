//! House rules that no lint checks. (Clippy's rules are in `Cargo.toml` and `clippy.toml`.)
//!
//! Each rule is a function over the Rust sources of the workspace's crates, their manifests or the pages. An exception
//! to a rule is listed with its reason in the function, not in the source.

mod circles;
mod facade;
mod features;
mod imports;
mod named_tests;
mod pools;

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::{pages, shell};

struct Source {
    path: String,
    text: String,
}

impl Source {
    /// Returns the lines that are not comments, with their numbers counted from 1.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .enumerate()
            .map(|(index, line)| (index + 1, line))
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    fn crate_name(&self) -> &str {
        self.path.split('/').next().unwrap_or_default()
    }

    fn is_test(&self) -> bool {
        self.path.contains("/tests/")
            || self.path.contains("/benches/")
            || self.path.ends_with("/tests.rs")
    }
}

/// Checks every rule and reports the breaches of all rules together.
pub fn run() -> Result<()> {
    let sources = sources()?;
    let mut breaches = Vec::new();
    the_picture_is_what_cargo_builds(&mut breaches)?;
    the_simulator_stands_on_no_driver(&mut breaches)?;
    the_card_knows_no_dat(&mut breaches)?;
    features::are_those_of_the_workspace(&mut breaches)?;
    the_maps_name_what_is_there(&mut breaches)?;
    pages::check(&mut breaches)?;
    errors_are_quoted_as_they_are_said(&sources, &mut breaches)?;
    pools::are_those_of_the_sources(&sources, &mut breaches)?;
    named_tests::are_functions_of_the_sources(&sources, &mut breaches)?;
    circles::there_are_none(&sources, &mut breaches);
    facade::names_have_one_path(&sources, &mut breaches);
    for source in &sources {
        if source.path == "lab/src/tidy.rs" {
            continue; // names what it forbids
        }
        for rule in RULES {
            rule(source, &mut breaches);
        }
    }
    ensure!(
        breaches.is_empty(),
        "house rules broken:\n{}",
        breaches.join("\n")
    );
    println!("tidy: {} files keep the house rules", sources.len());
    Ok(())
}

type Rule = fn(&Source, &mut Vec<String>);
const RULES: [Rule; 13] = [
    unsafe_stays_in_the_c_abi,
    unsafe_modules_say_so,
    crates_forbid_unsafe,
    no_test_is_ignored,
    files_hold_one_concept,
    comments_fit_the_screen,
    crates_know_only_their_own,
    the_card_has_no_word_of_dat,
    the_provider_is_dats,
    layers_name_only_lower_ones,
    backends_are_told_apart_in_one_place,
    one_doorbell,
    files_are_named_for_what_they_hold,
];

/// Checks that in `udapl` only the C ABI has unsafe code. `udapl` can only deny unsafe code, not forbid it. All other
/// crates except `driver` forbid it, and so do examples and build scripts, which are crates of their own.
fn unsafe_stays_in_the_c_abi(source: &Source, breaches: &mut Vec<String>) {
    let at = |place| source.path.starts_with(place);
    let elsewhere = !(at("driver/") || at(C_ABI) || source.is_test());
    let lint = concat!("unsafe", "_code");
    let holds = |line: &str| {
        ["deny", "forbid"]
            .iter()
            .any(|how| line.contains(&format!("{how}({lint})")))
    };
    for (number, line) in source.code().filter(|_| elsewhere) {
        if line.contains(lint) && !holds(line) {
            breaches.push(format!(
                "{}:{number}: unsafe code outside of {C_ABI}",
                source.path
            ));
        }
    }
}

/// Checks that a file with unsafe code has an UNSAFETY line with the reason.
fn unsafe_modules_say_so(source: &Source, breaches: &mut Vec<String>) {
    let has = source
        .code()
        .any(|(_, line)| line.contains("unsafe {") || line.contains("unsafe impl"));
    if has && !source.text.contains("// UNSAFETY:") {
        breaches.push(format!(
            "{}: unsafe code without an UNSAFETY line",
            source.path
        ));
    }
}

/// Folder of the C ABI, which has unsafe code as `driver` does. Its crate, `udapl`, denies unsafe code. All crates
/// except these two forbid it.
const C_ABI: &str = "udapl/src/capi/";

fn crates_forbid_unsafe(source: &Source, breaches: &mut Vec<String>) {
    let root = source.path.ends_with("/src/lib.rs") || source.path.ends_with("/src/main.rs");
    let how = match source.crate_name() {
        "driver" => return,
        "udapl" => "#![deny(unsafe_code)]",
        _ => "#![forbid(unsafe_code)]",
    };
    if root && !source.text.contains(how) {
        breaches.push(format!("{}: lacks {how}", source.path));
    }
}

fn no_test_is_ignored(source: &Source, breaches: &mut Vec<String>) {
    for (number, line) in source.code() {
        if line.contains("#[ignore") {
            breaches.push(format!("{}:{number}: a test is ignored", source.path));
        }
    }
}

fn files_hold_one_concept(source: &Source, breaches: &mut Vec<String>) {
    let lines = source.text.lines().count();
    if lines > 1_000 {
        breaches.push(format!(
            "{}: {lines} lines; a second concept lives there",
            source.path
        ));
    }
}

/// Largest width of a comment in columns. rustfmt does not wrap comments.
const COMMENT_COLUMNS: usize = 120;

/// Checks the width of comments, except for tables and fenced code, whose lines cannot be broken.
fn comments_fit_the_screen(source: &Source, breaches: &mut Vec<String>) {
    let mut fenced = false;
    for (index, line) in source.text.lines().enumerate() {
        let comment = line.trim_start();
        if !comment.starts_with("//") {
            fenced = false;
            continue;
        }
        let text = comment.trim_start_matches(['/', '!']).trim_start();
        fenced ^= text.starts_with("```");
        let columns = line.chars().count();
        if columns > COMMENT_COLUMNS && !fenced && !text.starts_with('|') {
            breaches.push(format!(
                "{}:{}: a comment of {columns} columns, the limit is {COMMENT_COLUMNS}",
                source.path,
                index + 1
            ));
        }
    }
}

/// Checks that crates do not mention the names that ARCHITECTURE.md forbids them. Dependencies between crates are
/// checked by Cargo and `deny.toml`; clocks and threads are checked by clippy (`clippy.toml` of the crate).
fn crates_know_only_their_own(source: &Source, breaches: &mut Vec<String>) {
    let forbidden: &[&str] = match source.crate_name() {
        // The tests of `driver` name drivers to which a function may be bound.
        "driver" if !source.is_test() => &["mlx5", "Mlx"],
        "hw-mlx" if source.path.contains("/src/") => &["std::fs", "vfio"],
        "dat-mlx" if !source.is_test() => &["std::fs", "vfio"],
        _ => return,
    };
    for (number, line) in source.code() {
        for word in forbidden.iter().filter(|word| line.contains(**word)) {
            breaches.push(format!(
                "{}:{number}: {} must not know {word}",
                source.path,
                source.crate_name()
            ));
        }
    }
}

/// Names of DAT that the card's driver does not use. `DTO` is missing, because it is part of the register `DTOR`.
const WORDS_OF_DAT: [&str; 7] = [
    "dat_core",
    "dat-core",
    "DtoStatus",
    "LMR",
    "RMR",
    "EVD",
    "CNO",
];

/// Checks that the card's driver does not name DAT's objects, in comments and error texts neither. Its errors speak of
/// local and remote keys, as the PRM does.
fn the_card_has_no_word_of_dat(source: &Source, breaches: &mut Vec<String>) {
    if source.crate_name() != "hw-mlx" {
        return;
    }
    for (index, line) in source.text.lines().enumerate() {
        for word in WORDS_OF_DAT.iter().filter(|word| line.contains(**word)) {
            breaches.push(format!(
                "{}:{}: {word} is a word of DAT",
                source.path,
                index + 1
            ));
        }
    }
}

/// Checks that only the crates of DAT reach the provider behind an `Ia`. Programs use the functions of
/// `udapl::adapter`, `udapl::network` and `udapl::memory`.
fn the_provider_is_dats(source: &Source, breaches: &mut Vec<String>) {
    if matches!(source.crate_name(), "udapl" | "dat-core" | "dat-mlx") {
        return;
    }
    for (number, line) in source.code() {
        if line.contains(".provider()") || line.contains(".provider_mut()") {
            breaches.push(format!(
                "{}:{number}: the provider is for udapl, dat-core and dat-mlx",
                source.path
            ));
        }
    }
}

/// The layers of dat-core from the lowest to the highest, as path prefix and module. Every other path is in the ground
/// layer below them.
const LAYERS: [(&str, &str); 4] = [
    ("dat-core/src/object", "crate::object"),
    ("dat-core/src/adapter", "crate::adapter"),
    ("dat-core/src/ia", "crate::ia"),
    ("dat-core/src/ia/call", "crate::ia::call"),
];

/// Checks the layers of dat-core (docs/decisions/floors.md). An object must not name the tables that hold it, nor a
/// call. A table must not name a call. The ground layer must name none of them. Names must be imported from their
/// modules, not from the crate's root, which re-exports all of them.
fn layers_name_only_lower_ones(source: &Source, breaches: &mut Vec<String>) {
    let outside = [
        "dat-core/src/lib.rs",
        "dat-core/src/mock",
        "dat-core/src/tests",
    ];
    if !source.path.starts_with("dat-core/src/")
        || outside.iter().any(|at| source.path.starts_with(at))
    {
        return;
    }
    let own = LAYERS
        .iter()
        .rposition(|(path, _)| source.path.starts_with(path));
    for (number, line) in source.code() {
        for (at, (_, name)) in LAYERS.iter().enumerate() {
            let is_higher = own.is_none_or(|own| at > own);
            if is_higher && line.contains(name) {
                breaches.push(format!("{}:{number}: {name} is a floor above", source.path));
            }
        }
        let from_the_root = line.split("crate::").skip(1);
        if from_the_root
            .clone()
            .any(|rest| rest.starts_with(['{', '*']) || rest.starts_with(char::is_uppercase))
        {
            breaches.push(format!(
                "{}:{number}: a name from the crate's root",
                source.path
            ));
        }
    }
}

/// Checks that the code above `driver` is the same for every backend: only one file resolves a name to a function, and
/// no code is compiled for one backend only.
fn backends_are_told_apart_in_one_place(source: &Source, breaches: &mut Vec<String>) {
    let above = matches!(
        source.crate_name(),
        "dat-core" | "dat-mlx" | "hw-mlx" | "udapl"
    );
    // This example opens functions itself, and no library depends on it.
    let is_daemon = source.path == "hw-mlx/examples/daemon.rs";
    if !above || source.is_test() || is_daemon {
        return;
    }
    for (number, line) in source.code() {
        let chooses = ["Function::vfio", "Function::in_process"]
            .iter()
            .any(|opens| line.contains(opens));
        if chooses && source.path != "udapl/src/open.rs" {
            breaches.push(format!(
                "{}:{number}: functions are opened in udapl/src/open.rs",
                source.path
            ));
        }
        let configured = line.contains("cfg!(") || line.contains("#[cfg(");
        // `variadic.rs` may depend on the architecture, because the calling convention of a variadic C function does.
        let of_the_processor = line.contains("target_endian")
            || line.contains("target_arch") && source.path == "udapl/src/capi/dat2/variadic.rs";
        // The user selects a feature, so such a condition does not depend on the platform.
        let of_the_program = line.contains("cfg(feature = ") || line.contains("cfg(not(feature = ");
        if configured && !of_the_processor && !of_the_program && !line.contains("cfg(test)") {
            breaches.push(format!(
                "{}:{number}: nothing is compiled for some machines only",
                source.path
            ));
        }
    }
}

/// File that declares the type `SendDoorbell`. No other file of the drivers names the register `send_doorbell`.
const SEND_DOORBELL: &str = "hw-mlx/src/uar.rs";
/// File that rings the send doorbell, in one place: `SendQueue::ring`.
const SEND_QUEUE: &str = "hw-mlx/src/qp/send.rs";

/// Checks that one function owns the ordering between a WQE and its doorbell. The drivers name the register in one file
/// only. Only that file and the file of the send queue name the register's type. The send queue rings it in one place.
fn one_doorbell(source: &Source, breaches: &mut Vec<String>) {
    if !matches!(source.crate_name(), "hw-mlx" | "dat-mlx") || source.is_test() {
        return;
    }
    let at = |path: &str| source.path == path;
    let mut rings = 0;
    for (number, line) in source.code() {
        let names_register = line.contains("send_doorbell") && !at(SEND_DOORBELL);
        let names_type = line.contains("SendDoorbell") && !at(SEND_DOORBELL) && !at(SEND_QUEUE);
        if names_register || names_type {
            breaches.push(format!(
                "{}:{number}: the send doorbell is {SEND_DOORBELL}'s, and {SEND_QUEUE} rings it",
                source.path
            ));
        }
        rings += usize::from(line.contains("doorbell.ring("));
    }
    let expected = usize::from(at(SEND_QUEUE));
    if rings != expected {
        breaches.push(format!(
            "{}: rings a send doorbell in {rings} places, {expected} is right",
            source.path
        ));
    }
}

/// Checks that no file has a vague name such as `util` or `common`. The manager of an e-switch is an exception, because
/// that is its standard name.
fn files_are_named_for_what_they_hold(source: &Source, breaches: &mut Vec<String>) {
    let name = source.path.rsplit('/').next().unwrap_or_default();
    let stem = name.strip_suffix(".rs").unwrap_or(name);
    let stem = match stem {
        "mod" => source.path.rsplit('/').nth(1).unwrap_or_default(),
        stem => stem,
    };
    let of_the_field = source.path == "hw-sim/tests/nic/eswitch/manager.rs";
    let is_vague = matches!(
        stem,
        "util" | "utils" | "common" | "helper" | "helpers" | "manager"
    );
    if is_vague && !of_the_field {
        breaches.push(format!(
            "{}: the name {stem} does not say what the file holds",
            source.path
        ));
    }
}

/// Reads a Cargo manifest.
fn manifest(path: &str) -> Result<toml::Table> {
    let text =
        std::fs::read_to_string(shell::root().join(path)).with_context(|| path.to_owned())?;
    Ok(text.parse()?)
}

/// Returns the crates of the workspace.
fn members() -> Result<Vec<String>> {
    let workspace = manifest("Cargo.toml")?;
    let members = workspace["workspace"]["members"].as_array();
    let members = members.context("Cargo.toml: members")?.iter();
    Ok(members
        .filter_map(|name| Some(name.as_str()?.to_owned()))
        .collect())
}

/// Checks that the dependencies of each crate are those in the third column of ARCHITECTURE.md's table.
fn the_picture_is_what_cargo_builds(breaches: &mut Vec<String>) -> Result<()> {
    let page = std::fs::read_to_string(shell::root().join("ARCHITECTURE.md"))?;
    let crates = members()?;
    for name in &crates {
        let manifest = manifest(&format!("{name}/Cargo.toml"))?;
        let built = manifest.get("dependencies").and_then(toml::Value::as_table);
        let built: BTreeSet<&str> = crates
            .iter()
            .filter(|other| built.is_some_and(|built| built.contains_key(*other)))
            .map(String::as_str)
            .collect();
        let row = page
            .lines()
            .find(|line| line.starts_with(&format!("| `{name}` |")));
        let said = row.and_then(|row| row.split('|').nth(3));
        let said: Option<BTreeSet<&str>> =
            said.map(|said| said.split('`').skip(1).step_by(2).collect());
        if said.as_ref() != Some(&built) {
            breaches.push(format!(
                "ARCHITECTURE.md: `{name}` stands on {built:?}, and the table says {said:?}"
            ));
        }
    }
    Ok(())
}

/// Checks that simnic without its features does not depend on code that drives a card, since it is only a simulated
/// card.
fn the_simulator_stands_on_no_driver(breaches: &mut Vec<String>) -> Result<()> {
    let drivers = ["udapl", "dat_core", "dat_mlx", "hw_mlx", "neighbour"];
    let found = stands_on("simnic", "normal", &drivers)?;
    breaches.extend(
        found
            .iter()
            .map(|name| format!("simnic/Cargo.toml: simnic without features stands on {name}")),
    );
    Ok(())
}

/// Checks that the card's driver and its tests do not depend on DAT.
fn the_card_knows_no_dat(breaches: &mut Vec<String>) -> Result<()> {
    let found = stands_on("hw-mlx", "normal,dev", &["dat_core", "dat_mlx", "udapl"])?;
    breaches.extend(
        found
            .iter()
            .map(|name| format!("hw-mlx/Cargo.toml: the card's driver stands on {name}")),
    );
    Ok(())
}

/// Returns those of the libraries `others` on which a crate depends through edges of these kinds, without its features.
fn stands_on(package: &str, edges: &str, others: &[&str]) -> Result<BTreeSet<String>> {
    let tree = shell::capture(shell::cargo(&[
        "tree",
        "--locked",
        &format!("--package={package}"),
        "--no-default-features",
        &format!("--edges={edges}"),
        "--prefix=none",
        "--format={lib}",
    ]))?;
    ensure!(
        tree.lines()
            .any(|name| name == "mlx_prm" || name == "hw_sim"),
        "cargo tree has no libraries by their names in code: {tree}"
    );
    let found = tree.lines().map(|line| line.trim_end_matches(" (*)"));
    let found = found.filter(|name| others.contains(name));
    Ok(found.map(str::to_owned).collect())
}

/// Pages that name paths in the tree.
const MAPS: [&str; 9] = [
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs/campaign.md",
    "docs/decisions/driver-without-dat.md",
    "docs/findings.md",
    "docs/glossary.md",
    "docs/nvmeof.md",
    "docs/security.md",
    "docs/vm.md",
];

/// Checks that every path in these pages exists. A path is text in backticks that begins with one of our folders and a
/// slash.
fn the_maps_name_what_is_there(breaches: &mut Vec<String>) -> Result<()> {
    let mut folders = members()?;
    folders.push("docs".to_owned());
    for page in MAPS {
        let text = std::fs::read_to_string(shell::root().join(page)).context(page)?;
        for (index, line) in text.lines().enumerate() {
            let quoted = line.split('`').skip(1).step_by(2);
            let ours = quoted.filter(|path| {
                path.split_once('/')
                    .is_some_and(|(folder, _)| folders.iter().any(|ours| ours == folder))
            });
            breaches.extend(
                ours.filter(|path| !shell::root().join(path).exists())
                    .map(|path| format!("{page}:{}: there is no {path}", index + 1)),
            );
        }
    }
    Ok(())
}

/// Checks that every error text quoted in a page occurs in the sources or in the expected output of a test, so that a
/// reader can find the error by searching for its text. `…` in a quote stands for a variable part.
fn errors_are_quoted_as_they_are_said(
    sources: &[Source],
    breaches: &mut Vec<String>,
) -> Result<()> {
    let expected = shell::root().join("driver/src/vfio/tests/refusals.txt");
    let expected =
        std::fs::read_to_string(&expected).with_context(|| expected.display().to_string())?;
    let mut said: Vec<&str> = sources
        .iter()
        .filter(|source| !source.is_test() && source.path != "lab/src/tidy.rs")
        .map(|source| source.text.as_str())
        .collect();
    said.push(&expected);
    for (page, head) in [
        ("docs/troubleshooting.md", "| The error says |"),
        ("docs/first-steps.md", "| If it says |"),
    ] {
        let text = std::fs::read_to_string(shell::root().join(page)).context(page)?;
        let table = text.split_once(head).context(head)?.1;
        let table = table.split("\n\n").next().unwrap_or_default();
        let quotes = table.lines().filter_map(|row| row.split('|').nth(1));
        let quotes = quotes.flat_map(|cell| cell.split('`').skip(1).step_by(2));
        for part in quotes.flat_map(|quote| quote.split('…')) {
            if !said.iter().any(|text| text.contains(part)) {
                breaches.push(format!("{page}: no error says {part:?}"));
            }
        }
    }
    Ok(())
}

fn sources() -> Result<Vec<Source>> {
    let root = shell::root();
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = members()?.iter().map(|name| root.join(name)).collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                // cargo marks its build folders with this file (bford.info/cachedir). A folder `target` with test data
                // has no mark.
                if !path.join("CACHEDIR.TAG").exists() {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path)?;
                let path = path.strip_prefix(&root)?.to_string_lossy().into_owned();
                found.push(Source { path, text });
            }
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaches(rule: Rule, path: &str, text: &str) -> Vec<String> {
        let source = Source {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let mut breaches = Vec::new();
        rule(&source, &mut breaches);
        breaches
    }

    #[test]
    fn a_second_place_that_rings_the_send_doorbell_is_a_breach() {
        let rings = "fn ring(&self) {\n    self.doorbell.ring(control);\n}\n";
        assert_eq!(breaches(one_doorbell, SEND_QUEUE, rings), [""; 0]);
        assert_eq!(
            breaches(one_doorbell, SEND_QUEUE, &rings.repeat(2)),
            ["hw-mlx/src/qp/send.rs: rings a send doorbell in 2 places, 1 is right"]
        );
        let register = "let bell = page.register(|page| &page.send_doorbell);\nbell.write(value);";
        assert_eq!(breaches(one_doorbell, SEND_DOORBELL, register), [""; 0]);
        assert_eq!(
            breaches(one_doorbell, "hw-mlx/src/gsi.rs", register),
            [
                "hw-mlx/src/gsi.rs:1: the send doorbell is hw-mlx/src/uar.rs's, and hw-mlx/src/qp/send.rs rings it"
            ]
        );
        let taken = "use hw_mlx::uar::SendDoorbell;";
        assert_eq!(
            breaches(one_doorbell, "dat-mlx/src/queues.rs", taken).len(),
            1
        );
    }

    #[test]
    fn a_word_of_dat_in_the_cards_driver_is_a_breach() {
        let rule = the_card_has_no_word_of_dat;
        let path = "hw-mlx/src/completion.rs";
        let text = "/// An endpoint of `dat-core`.\nconst WHY: &str = \"check the LMR\";\n// A CNO waits.\n";
        assert_eq!(
            breaches(rule, path, text),
            [
                "hw-mlx/src/completion.rs:1: dat-core is a word of DAT",
                "hw-mlx/src/completion.rs:2: LMR is a word of DAT",
                "hw-mlx/src/completion.rs:3: CNO is a word of DAT"
            ]
        );
        assert_eq!(breaches(rule, path, "segment.lmr_context"), [""; 0]);
        assert_eq!(breaches(rule, "dat-mlx/src/status.rs", text), [""; 0]);
    }

    #[test]
    fn a_program_that_reaches_the_provider_is_a_breach() {
        let rule = the_provider_is_dats;
        let text = "// ia.provider()\nlet hca = ia.provider_mut().hca_mut();\n";
        assert_eq!(
            breaches(rule, "datctl/src/info.rs", text),
            ["datctl/src/info.rs:2: the provider is for udapl, dat-core and dat-mlx"]
        );
        assert_eq!(breaches(rule, "udapl/src/network.rs", text), [""; 0]);
    }

    #[test]
    fn a_file_with_a_name_that_says_nothing_is_a_breach() {
        let rule = files_are_named_for_what_they_hold;
        assert_eq!(
            breaches(rule, "driver/src/util/mod.rs", ""),
            ["driver/src/util/mod.rs: the name util does not say what the file holds"]
        );
        assert_eq!(breaches(rule, "udapl/src/common.rs", "").len(), 1);
        assert_eq!(breaches(rule, "driver/src/ring.rs", ""), [""; 0]);
    }
}
