//! Checks that no files use each other in a circle, except a parent and its own children.
//!
//! Files that use each other can only be understood together. A module and the files of its folder may form a circle:
//! the parent creates the children, and they use its shared items. Every other circle is an error, which lists the
//! names that form it.
//!
//! Two searches find the circles. The first search omits the edges from a child to its parent. The second search merges
//! each parent with those children that are in a circle with it. Neither search may find a circle.

use std::collections::{BTreeMap, BTreeSet};

use super::Source;
use super::imports::{self, File, Graph};

/// Checks the libraries and programs of all crates. (Code that is shared by tests is not checked.)
pub(super) fn there_are_none(sources: &[Source], breaches: &mut Vec<String>) {
    let is_root = |path: &str| path.ends_with("/src/lib.rs") || path.ends_with("/main.rs");
    let of_programs = sources
        .iter()
        .filter(|source| source.path.contains("/src/"));
    let roots = of_programs.clone().filter(|source| is_root(&source.path));
    let graphs = roots.map(|root| {
        let files: Vec<File<'_>> = of_programs
            .clone()
            .filter(|source| source.crate_name() == root.crate_name())
            .map(|source| File {
                path: &source.path,
                text: &source.text,
            })
            .collect();
        imports::graph(&root.path, &files)
    });
    judge(graphs, breaches);
}

/// A circle: its files, and the names that they use of each other.
#[derive(Debug, PartialEq, Eq)]
struct Circle {
    files: BTreeSet<String>,
    edges: Vec<String>,
}

fn judge(graphs: impl Iterator<Item = Graph>, breaches: &mut Vec<String>) {
    for circle in graphs.flat_map(|graph| circles(&graph)) {
        let edges = circle.edges.join("\n    ");
        breaches.push(format!(
            "{} files need each other:\n    {edges}",
            circle.files.len()
        ));
    }
}

/// Returns the forbidden circles of a crate.
fn circles(graph: &Graph) -> Vec<Circle> {
    let count = graph.files.len();
    let to = |from: usize| graph.edges[from].keys().copied();
    let is_up = |from: usize, to: usize| graph.parents[from] == Some(to);
    let below: Vec<Vec<usize>> = (0..count)
        .map(|from| to(from).filter(|to| !is_up(from, *to)).collect())
        .collect();
    let mut groups = groups(&below);
    // Merges each parent with the children that are in a circle with it.
    let mut one: Vec<usize> = (0..count).collect();
    for parent in 0..count {
        let of_family = |file: usize| file == parent || is_up(file, parent);
        let inside: Vec<Vec<usize>> = (0..count)
            .map(|from| {
                let within = to(from).filter(|to| of_family(from) && of_family(*to));
                within.collect()
            })
            .collect();
        for group in self::groups(&inside) {
            if group.contains(&parent) {
                let (kept, gone) = (one[parent], group);
                let merged: BTreeSet<usize> = gone.iter().map(|file| one[*file]).collect();
                for file in &mut one {
                    if merged.contains(file) {
                        *file = kept;
                    }
                }
            }
        }
    }
    let mut merged = vec![Vec::new(); count];
    for from in 0..count {
        let others = to(from).map(|to| one[to]).filter(|to| *to != one[from]);
        merged[one[from]].extend(others);
    }
    for group in self::groups(&merged) {
        let files = (0..count).filter(|file| group.contains(&one[*file]));
        groups.push(files.collect());
    }
    // A circle whose files are all in larger circles is not reported.
    groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
    let mut reported: BTreeSet<usize> = BTreeSet::new();
    groups.retain(|group| {
        let is_new = group.iter().any(|file| !reported.contains(file));
        reported.extend(group);
        is_new
    });
    groups.iter().map(|group| circle(graph, group)).collect()
}

fn circle(graph: &Graph, group: &BTreeSet<usize>) -> Circle {
    let mut edges = Vec::new();
    for from in group {
        for (to, names) in &graph.edges[*from] {
            if group.contains(to) {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                edges.push(format!(
                    "{} needs {} of {}",
                    graph.files[*from],
                    names.join(", "),
                    graph.files[*to]
                ));
            }
        }
    }
    let files = group.iter().map(|file| graph.files[*file].clone());
    Circle {
        files: files.collect(),
        edges,
    }
}

/// Returns the sets of two or more files in which each file reaches every other.
fn groups(edges: &[Vec<usize>]) -> Vec<BTreeSet<usize>> {
    let reached: Vec<BTreeSet<usize>> = (0..edges.len())
        .map(|from| {
            let mut reached = BTreeSet::new();
            let mut next = edges[from].clone();
            while let Some(file) = next.pop() {
                if reached.insert(file) {
                    next.extend(&edges[file]);
                }
            }
            reached
        })
        .collect();
    let mut groups: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for file in 0..edges.len() {
        let own = reached[file]
            .iter()
            .filter(|other| reached[**other].contains(&file));
        let own: BTreeSet<usize> = own.copied().collect();
        if own.len() > 1
            && let Some(first) = own.first()
        {
            groups.insert(*first, own);
        }
    }
    groups.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(sources: &[(&str, &str)]) -> Vec<Circle> {
        let files: Vec<File<'_>> = sources
            .iter()
            .map(|(path, text)| File { path, text })
            .collect();
        circles(&imports::graph("src/lib.rs", &files))
    }

    fn files(circle: &Circle) -> Vec<&str> {
        circle.files.iter().map(String::as_str).collect()
    }

    #[test]
    fn two_files_that_need_each_other_are_a_circle_and_the_names_are_told() {
        let found = found(&[
            ("src/lib.rs", "mod a;\nmod b;"),
            ("src/a.rs", "use crate::b::{B, other as _};\npub struct A;"),
            ("src/b.rs", "pub struct B(crate::a::A);\npub fn other() {}"),
        ]);
        assert_eq!(found.len(), 1);
        assert_eq!(files(&found[0]), ["src/a.rs", "src/b.rs"]);
        assert_eq!(
            found[0].edges,
            [
                "src/a.rs needs B, other of src/b.rs",
                "src/b.rs needs A of src/a.rs"
            ]
        );
    }

    #[test]
    fn a_parent_and_its_own_children_may_need_each_other() {
        let found = found(&[
            ("src/lib.rs", "mod a;\npub struct Root;"),
            (
                "src/a.rs",
                "mod b;\nmod c;\nuse b::B;\npub struct A(B);\nfn f() { crate::Root }",
            ),
            (
                "src/a/b.rs",
                "use super::A;\nuse super::c::C;\npub struct B(A, C);",
            ),
            ("src/a/c.rs", "use super::A;\npub struct C(Box<A>);"),
        ]);
        assert_eq!(found, []);
    }

    #[test]
    fn children_that_need_each_other_are_a_circle() {
        let found = found(&[
            ("src/lib.rs", "mod a;"),
            (
                "src/a/mod.rs",
                "mod b;\nmod c;\nuse b::B;\npub struct A(B);",
            ),
            ("src/a/b.rs", "use super::c::C;\npub struct B(super::A);"),
            ("src/a/c.rs", "use super::b::B;\npub struct C;"),
        ]);
        assert_eq!(files(&found[0]), ["src/a/b.rs", "src/a/c.rs"]);
    }

    #[test]
    fn a_circle_through_a_child_and_its_parent_to_a_third_file_is_one() {
        let found = found(&[
            ("src/lib.rs", "mod a;\nmod x;"),
            ("src/a.rs", "mod b;\npub struct A(crate::x::X);"),
            ("src/a/b.rs", "pub struct B(super::A);"),
            ("src/x.rs", "use crate::a::b::B;\npub struct X(Box<B>);"),
        ]);
        assert_eq!(files(&found[0]), ["src/a.rs", "src/a/b.rs", "src/x.rs"]);
    }

    #[test]
    fn a_grandchild_does_not_reach_over_its_parent() {
        let found = found(&[
            ("src/lib.rs", "mod a;"),
            ("src/a.rs", "mod b;\npub struct A(b::B);"),
            ("src/a/b.rs", "mod c;\npub struct B(c::C);"),
            ("src/a/b/c.rs", "pub struct C(Box<crate::a::A>);"),
        ]);
        assert_eq!(files(&found[0]), ["src/a.rs", "src/a/b.rs", "src/a/b/c.rs"]);
    }

    #[test]
    fn a_name_is_looked_for_where_it_is_defined_not_where_it_is_passed_on() {
        let leaf = ("src/leaf.rs", "pub struct Leaf;");
        let low = (
            "src/low.rs",
            "use crate::high::Leaf;\npub struct Low(Leaf);",
        );
        let passed_on = found(&[
            ("src/lib.rs", "mod leaf;\nmod low;\nmod high;"),
            leaf,
            low,
            (
                "src/high.rs",
                "pub use crate::leaf::*;\nuse crate::low;\nfn f(_: low::Low) {}",
            ),
        ]);
        assert_eq!(passed_on, []);
        let defined = found(&[
            (
                "src/lib.rs",
                "pub mod low;\npub mod high;\npub use high::Leaf;",
            ),
            ("src/low.rs", "use crate::Leaf;\npub struct Low(Leaf);"),
            ("src/high.rs", "use crate::low::Low;\npub struct Leaf;"),
        ]);
        assert_eq!(files(&defined[0]), ["src/high.rs", "src/low.rs"]);
    }

    #[test]
    fn comments_literals_and_tests_need_nothing() {
        let found = found(&[
            ("src/lib.rs", "mod a;\nmod b;"),
            (
                "src/a.rs",
                "/// As [`crate::b::B`].\npub struct A;\nconst T: (&str, char) = (\"crate::b::B\", '\"');\n\
                 #[cfg(test)]\nmod tests { use crate::b::B; }\n#[cfg(test)]\nuse crate::b::B;",
            ),
            ("src/b.rs", "use crate::a::A;\npub struct B(A);"),
        ]);
        assert_eq!(found, []);
    }

    #[test]
    fn a_circle_is_a_breach_that_tells_its_files_and_their_names() {
        let sources = [
            ("src/lib.rs", "mod a;\nmod b;"),
            ("src/a.rs", "use crate::b::B;\npub struct A;"),
            ("src/b.rs", "use crate::a::A;\npub struct B;"),
        ];
        let files = sources.map(|(path, text)| File { path, text });
        let mut breaches = Vec::new();
        let graph = imports::graph("src/lib.rs", &files);
        judge([graph].into_iter(), &mut breaches);
        assert_eq!(
            breaches,
            [
                "2 files need each other:\n    src/a.rs needs B of src/b.rs\n    src/b.rs needs A of src/a.rs"
            ]
        );
    }
}
