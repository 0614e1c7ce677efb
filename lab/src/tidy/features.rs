//! Checks that a crate alone has the features of the workspace, so that cargo compiles nothing twice.
//!
//! Cargo builds a library with the union of the features that the selected crates request. If the tests of one crate
//! alone request fewer features of a library than the whole workspace does, cargo compiles that library again, and all
//! crates that depend on it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

use crate::shell;

/// Exceptions: a crate, and a foreign library that cargo compiles again for the tests of that crate alone. This costs
/// little, because of our crates only that crate, or only its tests, are then compiled again with the library.
const AGAIN: &[(&str, &str)] = &[
    ("driver", "rand_chacha"),
    ("mlx-prm", "crc32fast"),
    ("neighbour", "byteorder"),
    ("neighbour", "libc"),
    ("neighbour", "syn"),
    ("neighbour", "zerocopy"),
    ("rdma-types", "proc-macro2"),
    ("rdma-types", "quote"),
    ("rdma-types", "syn"),
    ("simnic-guest", "linux-raw-sys"),
    ("simnic-guest", "rustix"),
];

/// Features of each library, by its name and version.
type Features = BTreeMap<String, BTreeSet<String>>;

/// Checks all crates of the workspace.
pub(super) fn are_those_of_the_workspace(breaches: &mut Vec<String>) -> Result<()> {
    let all = features(&["--workspace"])?;
    let members = shell::capture(shell::cargo(&[
        "tree",
        "--locked",
        "--workspace",
        "--depth=0",
        "--prefix=none",
    ]))?;
    let members = members.lines().filter_map(|line| line.split(' ').next());
    let mut again = BTreeSet::new();
    for member in members.filter(|name| !name.is_empty()) {
        let alone = features(&[&format!("--package={member}")])?;
        for (library, fewer) in lacking(&all, &alone) {
            let name = library.split(' ').next().unwrap_or_default();
            match AGAIN.iter().find(|known| **known == (member, name)) {
                Some(known) => {
                    again.insert(known);
                }
                None => breaches.push(format!(
                    "{member}: alone it builds {library} again, without {}; request these features in Cargo.toml of \
                     the workspace, or list the library in lab/src/tidy/features.rs",
                    fewer.join(", ")
                )),
            }
        }
    }
    let gone = AGAIN.iter().filter(|known| !again.contains(known));
    breaches.extend(gone.map(|(member, library)| {
        format!(
            "lab/src/tidy/features.rs: {member} alone does not build {library} again; remove the exception"
        )
    }));
    Ok(())
}

/// Returns the libraries that have more features in `all` than in `alone`, with those features.
fn lacking(all: &Features, alone: &Features) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    for (library, features) in alone {
        let Some(wanted) = all.get(library) else {
            continue;
        };
        let fewer: Vec<String> = wanted.difference(features).cloned().collect();
        if !fewer.is_empty() {
            found.push((library.clone(), fewer));
        }
    }
    found
}

/// Returns the features of all libraries that a selection of crates is built with, tests included.
fn features(selection: &[&str]) -> Result<Features> {
    let mut command = shell::cargo(&[
        "tree",
        "--locked",
        "--edges=normal,build,dev",
        "--prefix=none",
        "--format={p}|{f}",
    ]);
    command.args(selection);
    let tree = shell::capture(command)?;
    let mut all = Features::new();
    for line in tree.lines().filter(|line| !line.is_empty()) {
        let (library, features) = line.split_once('|').context("a line without features")?;
        // The name and the version; a path or a kind may follow.
        let library: Vec<&str> = library.split(' ').take(2).collect();
        let features = features.trim_end_matches(" (*)").split(',');
        let features = features.filter(|feature| !feature.is_empty());
        let known = all.entry(library.join(" ")).or_default();
        known.extend(features.map(str::to_owned));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_with_fewer_features_is_named_with_those_that_it_lacks() {
        let of = |all: &[(&str, &[&str])]| -> Features {
            let each = all.iter().map(|(library, features)| {
                let features = features.iter().map(|feature| (*feature).to_owned());
                ((*library).to_owned(), features.collect())
            });
            each.collect()
        };
        let all = of(&[("a v1", &["std", "simd"]), ("b v1", &["std"])]);
        let alone = of(&[("a v1", &["std"]), ("b v1", &["std"]), ("c v1", &[])]);
        let simd = vec![("a v1".to_owned(), vec!["simd".to_owned()])];
        assert_eq!(lacking(&all, &alone), simd);
        assert_eq!(lacking(&all, &all), []);
    }
}
