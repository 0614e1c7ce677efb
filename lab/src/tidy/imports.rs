//! The imports of a crate as a graph. An edge lists the names of one file that another file uses.
//!
//! Paths are parsed from the sources: `use` items, and paths in code that begin with `crate`, `self`, `super`, a child
//! module or an imported module. Re-exports are resolved to the file that defines the name. Comments, literals, items
//! behind `#[cfg(test)]`, and methods, which have no path, are ignored.

use std::collections::{BTreeMap, BTreeSet};

/// A file of a crate: its path and its text.
pub(super) struct File<'a> {
    pub(super) path: &'a str,
    pub(super) text: &'a str,
}

/// Graph of a crate's files. `edges[from][to]` has the names of file `to` that file `from` uses. The indexes are those
/// of `files`.
pub(super) struct Graph {
    /// Paths of all files except those for tests only.
    pub(super) files: Vec<String>,
    /// For each file, the file of its parent module.
    pub(super) parents: Vec<Option<usize>>,
    pub(super) edges: Vec<BTreeMap<usize, BTreeSet<String>>>,
}

/// A module, in a file of its own or between braces.
#[derive(Default)]
struct Module {
    file: usize,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// Names that `use` imports, each with its path.
    imports: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    defined: BTreeSet<String>,
    /// Paths of at least two names that occur in code.
    paths: Vec<Vec<String>>,
    /// Modules that this module declares and that have a file of their own.
    declared: Vec<String>,
}

/// Target to which a path resolves.
#[derive(Clone, Copy)]
enum Target<'a> {
    Module(usize),
    /// An item: the index of the module that defines it, and its name.
    Item(usize, &'a str),
    /// An item of another crate.
    Foreign,
}

/// Largest number of re-exports that are followed. A longer chain is a loop.
const DEEPEST: usize = 16;

/// Returns the graph of the crate whose root is `root` (`src/lib.rs`), with all files reachable from the root's
/// modules.
pub(super) fn graph(root: &str, files: &[File<'_>]) -> Graph {
    let mut modules = Vec::new();
    let mut graph = Graph {
        files: Vec::new(),
        parents: Vec::new(),
        edges: Vec::new(),
    };
    read(root, None, files, &mut modules, &mut graph);
    graph.edges = vec![BTreeMap::new(); graph.files.len()];
    for at in 0..modules.len() {
        let module = &modules[at];
        let imports = module.imports.values().map(|path| (path, false));
        let globs = module.globs.iter().map(|path| (path, true));
        let paths = module.paths.iter().map(|path| (path, false));
        for (path, glob) in imports.chain(globs).chain(paths) {
            let (file, name) = match resolve(&modules, at, path, 0) {
                Some(Target::Item(of, name)) => (modules[of].file, name),
                // The import of a module is no edge. The names used through the module are separate paths with edges of
                // their own.
                Some(Target::Module(of)) if glob => (modules[of].file, "*"),
                Some(Target::Module(_) | Target::Foreign) | None => continue,
            };
            if file != module.file {
                let names = graph.edges[module.file].entry(file).or_default();
                names.insert(name.to_owned());
            }
        }
    }
    graph
}

/// Parses a file and the files of its modules. Returns the index of its module.
fn read(
    path: &str,
    parent: Option<usize>,
    files: &[File<'_>],
    modules: &mut Vec<Module>,
    graph: &mut Graph,
) -> Option<usize> {
    let source = files.iter().find(|file| file.path == path)?;
    let file = graph.files.len();
    graph.files.push(path.to_owned());
    graph
        .parents
        .push(parent.map(|parent: usize| modules[parent].file));
    let first = modules.len();
    modules.push(Module {
        file,
        parent,
        ..Module::default()
    });
    let text = without_comments(source.text);
    Parser {
        tokens: tokens(&text),
        at: 0,
    }
    .module(first, modules);
    for at in first..modules.len() {
        let folder = folder_of(path, at, first, modules);
        for name in std::mem::take(&mut modules[at].declared) {
            let found = [
                format!("{folder}/{name}.rs"),
                format!("{folder}/{name}/mod.rs"),
            ]
            .iter()
            .find_map(|path| read(path, Some(at), files, modules, graph));
            if let Some(child) = found {
                modules[at].children.insert(name, child);
            }
        }
    }
    Some(first)
}

/// Returns the folder with the files of the modules that a module declares.
fn folder_of(path: &str, at: usize, first: usize, modules: &[Module]) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let mut folder = match name {
        "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
        _ => path.trim_end_matches(".rs").to_owned(),
    };
    let mut inline = Vec::new();
    let mut at = at;
    while at != first {
        // PANIC: a module between braces has the enclosing module as its parent.
        let parent = modules[at].parent.expect("a parent");
        let name = modules[parent].children.iter().find(|child| *child.1 == at);
        inline.extend(name.map(|(name, _)| name.clone()));
        at = parent;
    }
    for name in inline.iter().rev() {
        folder = format!("{folder}/{name}");
    }
    folder
}

/// Resolves a path that occurs in a module. Returns `None` if the module does not know the first name.
fn resolve<'a>(
    modules: &'a [Module],
    at: usize,
    path: &'a [String],
    depth: usize,
) -> Option<Target<'a>> {
    let (head, rest) = path.split_first()?;
    let mut target = match head.as_str() {
        "crate" => Target::Module(root_of(modules, at)),
        "self" => Target::Module(at),
        "super" => Target::Module(modules[at].parent?),
        // The name of an item defined in this module also resolves, to this module's file.
        name => member(modules, at, name, depth)?,
    };
    for name in rest {
        target = match (target, name.as_str()) {
            (Target::Module(of), "super") => Target::Module(modules[of].parent?),
            (Target::Module(of), "self") => Target::Module(of),
            (Target::Module(of), name) => {
                member(modules, of, name, depth).unwrap_or(Target::Item(of, name))
            }
            // Variants, constants and functions of a type are in the file of the type.
            (item @ (Target::Item(..) | Target::Foreign), _) => return Some(item),
        };
    }
    Some(target)
}

fn root_of(modules: &[Module], mut at: usize) -> usize {
    while let Some(parent) = modules[at].parent {
        at = parent;
    }
    at
}

/// Returns the target to which a name in a module resolves.
fn member<'a>(modules: &'a [Module], of: usize, name: &'a str, depth: usize) -> Option<Target<'a>> {
    if depth == DEEPEST {
        return None;
    }
    let module = &modules[of];
    if let Some(child) = module.children.get(name) {
        return Some(Target::Module(*child));
    }
    if module.defined.contains(name) {
        return Some(Target::Item(of, name));
    }
    if let Some(path) = module.imports.get(name) {
        // In `use name::…`, `name` is another crate, not the imported name itself.
        let own = path.len() == 1 || path[0] == name;
        let target = (!own).then(|| resolve(modules, of, path, depth + 1));
        return Some(target.flatten().unwrap_or(Target::Foreign));
    }
    module
        .globs
        .iter()
        .find_map(|path| match resolve(modules, of, path, depth + 1)? {
            Target::Module(from) if from != of => member(modules, from, name, depth + 1),
            Target::Module(_) | Target::Item(..) | Target::Foreign => None,
        })
}

/// Returns the text with blanks in place of comments and literals.
fn without_comments(text: &str) -> String {
    let bytes = text.as_bytes();
    let starts = |at: usize, what: &str| text.as_bytes()[at..].starts_with(what.as_bytes());
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = if starts(at, "//") {
            text[at..].find('\n').map_or(bytes.len(), |n| at + n)
        } else if starts(at, "/*") {
            text[at..].find("*/").map_or(bytes.len(), |n| at + n + 2)
        } else if let Some(hashes) = raw_string(&text[at..]) {
            let close = format!("\"{}", "#".repeat(hashes));
            let open = at + text[at..].find('"').map_or(0, |n| n + 1);
            text[open..]
                .find(&close)
                .map_or(bytes.len(), |n| open + n + close.len())
        } else if starts(at, "\"") {
            let mut end = at + 1;
            while end < bytes.len() && bytes[end] != b'"' {
                end += 1 + usize::from(bytes[end] == b'\\');
            }
            end + 1
        } else if starts(at, "'") {
            // Either a character literal, which is blanked, or a lifetime, which is kept.
            let quoted = text[at + 1..].chars().next();
            let width = quoted.map_or(1, char::len_utf8);
            if quoted == Some('\\') {
                text[at + 3..]
                    .find('\'')
                    .map_or(bytes.len(), |n| at + 4 + n)
            } else if starts((at + 1 + width).min(bytes.len()), "'") {
                at + width + 2
            } else {
                at
            }
        } else {
            at
        };
        if end > at {
            out.push(' ');
            at = end.min(bytes.len());
        } else {
            let character = text[at..].chars().next().unwrap_or(' ');
            out.push(character);
            at += character.len_utf8();
        }
    }
    out
}

/// Returns the number of `#` if a raw string begins here.
fn raw_string(text: &str) -> Option<usize> {
    let rest = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let quote = rest.trim_start_matches('#');
    quote.starts_with('"').then(|| rest.len() - quote.len())
}

/// Splits the text into words, `::`, and single other characters.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let length = if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        tokens.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    tokens
}

struct Parser<'a> {
    tokens: Vec<&'a str>,
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self, ahead: usize) -> &'a str {
        self.tokens.get(self.at + ahead).copied().unwrap_or("")
    }

    /// Parses the contents of a module, up to its closing brace.
    fn module(&mut self, of: usize, modules: &mut Vec<Module>) {
        let mut open = 0_usize;
        while self.at < self.tokens.len() {
            match (self.peek(0), self.peek(1), self.peek(2)) {
                ("}", ..) if open == 0 => {
                    self.at += 1;
                    return;
                }
                ("{", ..) => {
                    open += 1;
                    self.at += 1;
                }
                ("}", ..) => {
                    open -= 1;
                    self.at += 1;
                }
                ("#", "[", "cfg") if self.is_for_tests() => self.skip_item(),
                ("mod", name, ";") => {
                    modules[of].declared.push(name.to_owned());
                    self.at += 3;
                }
                ("mod", name, "{") => {
                    let inner = modules.len();
                    modules.push(Module {
                        file: modules[of].file,
                        parent: Some(of),
                        ..Module::default()
                    });
                    modules[of].children.insert(name.to_owned(), inner);
                    self.at += 3;
                    self.module(inner, modules);
                }
                ("use", ..) => {
                    self.at += 1;
                    self.tree(&[], &mut modules[of]);
                }
                (
                    "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "union",
                    name,
                    _,
                ) if is_name(name) && open == 0 && !matches!(name, "fn" | "mut" | "unsafe") => {
                    modules[of].defined.insert(name.to_owned());
                    self.at += 2;
                }
                ("macro_rules", "!", name) => {
                    modules[of].defined.insert(name.to_owned());
                    self.at += 3;
                }
                (head, "::", next) if is_name(head) && is_name(next) => {
                    let is_first = self.at == 0 || self.tokens[self.at - 1] != "::";
                    let path = self.path();
                    if is_first {
                        modules[of].paths.push(path);
                    }
                }
                _ => self.at += 1,
            }
        }
    }

    /// Parses a path: names with `::` between them.
    fn path(&mut self) -> Vec<String> {
        let mut path = vec![self.peek(0).to_owned()];
        self.at += 1;
        while self.peek(0) == "::" && is_name(self.peek(1)) {
            path.push(self.peek(1).to_owned());
            self.at += 2;
        }
        path
    }

    /// Parses a `use` tree with the path prefix `before`.
    fn tree(&mut self, before: &[String], into: &mut Module) {
        let mut path = before.to_vec();
        loop {
            match self.peek(0) {
                "{" => {
                    self.at += 1;
                    while !matches!(self.peek(0), "}" | "") {
                        self.tree(&path, into);
                    }
                    self.at += 1;
                    break;
                }
                "*" => {
                    self.at += 1;
                    into.globs.push(path.clone());
                    break;
                }
                "::" => self.at += 1,
                name if is_name(name) => {
                    self.at += 1;
                    if name != "self" || path.is_empty() {
                        path.push(name.to_owned());
                    }
                    if self.peek(0) == "::" {
                        continue;
                    }
                    let alias = if self.peek(0) == "as" {
                        self.at += 2;
                        self.tokens[self.at - 1].to_owned()
                    } else {
                        path.last().cloned().unwrap_or_default()
                    };
                    // Two traits imported as `_` do not conflict.
                    let key = match alias.as_str() {
                        "_" => format!("_ {}", path.join("::")),
                        _ => alias,
                    };
                    into.imports.insert(key, path.clone());
                    break;
                }
                _ => break,
            }
        }
        if !matches!(self.peek(0), "}") {
            self.at += 1;
        }
    }

    /// Returns whether the attribute at this position is `#[cfg(test)]` or `#[cfg(all(test, …))]`.
    fn is_for_tests(&self) -> bool {
        let inside = self.tokens[self.at..]
            .iter()
            .take_while(|token| **token != "]");
        let words: Vec<&str> = inside.copied().filter(|token| is_name(token)).collect();
        words.contains(&"test") && !words.contains(&"not") && !words.contains(&"any")
    }

    /// Skips an attribute and the item after it.
    fn skip_item(&mut self) {
        let mut open = 0_usize;
        let mut in_attribute = true;
        while self.at < self.tokens.len() {
            let token = self.peek(0);
            self.at += 1;
            match token {
                "[" | "(" | "{" => open += 1,
                "]" | ")" | "}" => {
                    open = open.saturating_sub(1);
                    if open == 0 && token == "}" {
                        return;
                    }
                    if open == 0 && token == "]" && in_attribute {
                        // Another attribute may follow.
                        in_attribute = self.peek(0) == "#";
                    }
                }
                ";" | "," if open == 0 => return,
                _ => {}
            }
        }
    }
}

fn is_name(token: &str) -> bool {
    let first = token.chars().next();
    first.is_some_and(|c| c.is_alphabetic() || c == '_')
}
