//! Checks that every name of the Rust facade has only one path.
//!
//! `udapl` re-exports most of its names from the crates below. A name that is exported both at the root and in a
//! module, or in two modules, has two pages in rustdoc, and readers take it for two different items.

use std::collections::BTreeMap;

use super::Source;

/// Path of the crate's root. It declares the public modules, each in a file of its own.
const ROOT: &str = "udapl/src/lib.rs";

/// Checks the root of the facade and the modules that are visible in rustdoc.
pub(super) fn names_have_one_path(sources: &[Source], breaches: &mut Vec<String>) {
    let Some(root) = sources.iter().find(|source| source.path == ROOT) else {
        return breaches.push(format!("{ROOT} is not there"));
    };
    let mut files = vec![ROOT.to_owned()];
    for module in shown_modules(&root.text) {
        files.push(format!("udapl/src/{module}.rs"));
        files.push(format!("udapl/src/{module}/mod.rs"));
    }
    let mut places: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for source in sources {
        if files.contains(&source.path) {
            for path in exported(&source.text) {
                places.entry(path).or_default().push(&source.path);
            }
        }
    }
    for (path, of) in places.iter().filter(|(_, of)| of.len() > 1) {
        breaches.push(format!("{path} has {} paths: {}", of.len(), of.join(", ")));
    }
}

/// Returns the public modules of a root that are not hidden from rustdoc.
fn shown_modules(root: &str) -> Vec<&str> {
    let mut hidden = false;
    let mut shown = Vec::new();
    for line in root.lines() {
        let module = line
            .strip_prefix("pub mod ")
            .and_then(|it| it.split(';').next());
        shown.extend(module.filter(|_| !hidden));
        hidden = line.starts_with("#[doc(hidden)]");
    }
    shown
}

/// Returns the paths that a file re-exports at its top level, with the names that the items have in their own crates.
fn exported(text: &str) -> Vec<String> {
    let uses = text.split("\npub use ").skip(1);
    let trees = uses.filter_map(|rest| rest.split(';').next());
    trees
        .flat_map(|tree| {
            let tree = tree.strip_prefix("crate::").unwrap_or(tree);
            let (before, names) = match tree.split_once('{') {
                Some((before, names)) => (before, names.trim_end().trim_end_matches('}')),
                None => match tree.rsplit_once("::") {
                    Some((before, _)) => (&tree[..before.len() + 2], &tree[before.len() + 2..]),
                    None => ("", tree),
                },
            };
            let names = names.split(',').map(str::trim);
            let names = names.filter(|name| !name.is_empty());
            names.map(move |name| {
                let name = name.split(" as ").next().unwrap_or(name);
                format!("{before}{name}")
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaches_of(files: &[(&str, &str)]) -> Vec<String> {
        let sources = files.iter().map(|(path, text)| Source {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
        });
        let mut breaches = Vec::new();
        names_have_one_path(&sources.collect::<Vec<_>>(), &mut breaches);
        breaches
    }

    const LIB: &str = "#[doc(hidden)] // in C\npub mod capi;\npub mod event;\nmod open;\n\n\
                       pub use below::{\n    Event, Flags,\n};\npub use open::open;\n";

    #[test]
    fn a_name_at_the_root_and_in_a_module_is_a_breach() {
        let module = "//! Events.\n\npub use below::Event;\n";
        let files = [(ROOT, LIB), ("udapl/src/event.rs", module)];
        assert_eq!(
            breaches_of(&files),
            ["below::Event has 2 paths: udapl/src/lib.rs, udapl/src/event.rs"]
        );
        let again = "//! Events.\n\npub use crate::open::open as by_name;\n";
        let files = [(ROOT, LIB), ("udapl/src/event/mod.rs", again)];
        assert_eq!(
            breaches_of(&files),
            ["open::open has 2 paths: udapl/src/lib.rs, udapl/src/event/mod.rs"]
        );
    }

    #[test]
    fn hidden_modules_and_private_ones_may_have_any_name() {
        let module = "//! C.\n\npub use below::Event;\n";
        let files = [
            (ROOT, LIB),
            ("udapl/src/capi/mod.rs", module),
            ("udapl/src/open.rs", module),
        ];
        assert_eq!(breaches_of(&files), Vec::<String>::new());
    }
}
