//! Checks the pages of documentation: README.md and the pages beside it, `docs`, and the README of simnic. Every target
//! of a link must exist, and docs/SUMMARY.md, the table of contents of the site, must list each page of `docs` once.
//! The check takes milliseconds, so it is one of the house rules.
//!
//! Only inline links, `[text](target)`, outside of code are checked. Links to other sites are not.

use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};

use crate::shell;

/// Path of the site's table of contents.
pub const SUMMARY: &str = "docs/SUMMARY.md";

/// Path of the README of simnic, the only crate whose README is checked.
const SIMNIC: &str = "simnic/README.md";

/// A page of documentation.
pub struct Page {
    /// Path of the page from the workspace's root, with slashes.
    pub path: String,
    /// Text of the page.
    pub text: String,
}

/// A link to another file of the tree.
pub struct Link {
    /// Byte range of the link's target in the page's text.
    pub range: Range<usize>,
    /// Path of the target file from the workspace's root.
    pub path: String,
    /// Anchor of a heading in the target file, if the link names one.
    pub anchor: Option<String>,
}

impl Page {
    fn read(path: String) -> Result<Self> {
        let text = std::fs::read_to_string(shell::root().join(&path)).context(path.clone())?;
        Ok(Self { path, text })
    }

    /// Returns the page's links to files of the tree.
    pub fn links(&self) -> Vec<Link> {
        let folder = Path::new(&self.path).parent().unwrap_or(Path::new(""));
        targets(&self.text)
            .into_iter()
            .filter(|range| {
                let target = &self.text[range.clone()];
                !target.contains("://") && !target.starts_with("mailto:")
            })
            .map(|range| {
                let target = &self.text[range.clone()];
                let (file, anchor) = match target.split_once('#') {
                    Some((file, anchor)) => (file, Some(anchor.to_owned())),
                    None => (target, None),
                };
                let path = match file {
                    "" => self.path.clone(),
                    _ => straight(&folder.join(file)),
                };
                Link {
                    range,
                    path,
                    anchor,
                }
            })
            .collect()
    }

    /// Returns the anchors of the page's headings, as forges and mdBook generate them.
    pub fn anchors(&self) -> Vec<String> {
        let mut anchors: Vec<String> = Vec::new();
        for (_, line) in prose(&self.text) {
            let Some(heading) = line
                .starts_with('#')
                .then(|| line.trim_start_matches('#').trim())
            else {
                continue;
            };
            let name = anchor_of(heading);
            let twins = anchors
                .iter()
                .filter(|other| {
                    other
                        .split_once('\0')
                        .map_or(other.as_str(), |(one, _)| one)
                        == name
                })
                .count();
            match twins {
                0 => anchors.push(name),
                _ => anchors.push(format!("{name}\0{twins}")),
            }
        }
        anchors
            .iter()
            .map(|anchor| anchor.replace('\0', "-"))
            .collect()
    }

    fn line_of(&self, place: usize) -> usize {
        self.text[..place].matches('\n').count() + 1
    }
}

/// Returns every page that is checked.
pub fn all() -> Result<Vec<Page>> {
    let root = shell::root();
    let mut pages = vec![Page::read(SIMNIC.to_owned())?];
    let mut folders = vec![(root.clone(), false), (root.join("docs"), true)];
    while let Some((folder, deep)) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() && deep {
                folders.push((path, deep));
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let path = path.strip_prefix(&root)?.to_string_lossy().into_owned();
                pages.push(Page::read(path)?);
            }
        }
    }
    pages.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(pages)
}

/// Checks all pages, and adds a line to `breaches` for each error.
pub fn check(breaches: &mut Vec<String>) -> Result<()> {
    let pages = all()?;
    for page in &pages {
        for link in page.links() {
            let at = format!("{}:{}", page.path, page.line_of(link.range.start));
            if !shell::root().join(&link.path).exists() {
                breaches.push(format!("{at}: there is no {}", link.path));
                continue;
            }
            let target = pages.iter().find(|other| other.path == link.path);
            if let (Some(target), Some(anchor)) = (target, &link.anchor)
                && !target.anchors().contains(anchor)
            {
                breaches.push(format!("{at}: {} has no heading #{anchor}", link.path));
            }
        }
    }
    let summary = pages.iter().find(|page| page.path == SUMMARY);
    let listed: Vec<String> = summary
        .context(SUMMARY)?
        .links()
        .into_iter()
        .map(|link| link.path)
        .collect();
    for page in pages.iter().filter(|page| page.path != SUMMARY) {
        let times = listed.iter().filter(|path| **path == page.path).count();
        if times > 1 || times == 0 && page.path.contains('/') {
            breaches.push(format!("{SUMMARY}: lists {} {times} times", page.path));
        }
    }
    Ok(())
}

/// Returns the lines outside of fenced code, each with its byte offset.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    let mut place = 0;
    text.split_inclusive('\n').filter_map(move |line| {
        let start = place;
        place += line.len();
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((start, line))
    })
}

/// Returns the byte ranges of the targets of all links.
fn targets(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    for (start, line) in prose(text) {
        let mut code = false;
        let mut place = 0;
        while let Some(character) = line[place..].chars().next() {
            code ^= character == '`';
            let rest = &line[place..];
            if !code
                && rest.starts_with("](")
                && let Some(length) = rest[2..].find(')')
            {
                let from = start + place + 2;
                found.push(from..from + length);
            }
            place += character.len_utf8();
        }
    }
    found
}

fn anchor_of(heading: &str) -> String {
    heading
        .chars()
        .filter_map(|character| match character {
            ' ' => Some('-'),
            '-' | '_' => Some(character),
            _ => character
                .is_alphanumeric()
                .then(|| character.to_ascii_lowercase()),
        })
        .collect()
}

/// Returns the path without `.` and `..`. A path that leads out of the tree keeps its `..`, and so names no file of the
/// tree.
fn straight(path: &Path) -> String {
    let mut parts = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir && parts.file_name().is_some() {
            parts.pop();
        } else if part != Component::CurDir {
            parts.push(part);
        }
    }
    parts.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> Page {
        Page {
            path: "docs/decisions/one.md".to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn a_link_is_found_in_prose_and_not_in_code() {
        let text = "A [page](../two.md#three-and-4) and `[code](no.md)`, [mail](mailto:a@b), [site](https://a.b/).\n\
                    ```\n[fenced](no.md)\n```\n[here](#one)";
        let links = page(text).links();
        let found: Vec<(&str, Option<&str>)> = links
            .iter()
            .map(|link| (link.path.as_str(), link.anchor.as_deref()))
            .collect();
        assert_eq!(
            found,
            [
                ("docs/two.md", Some("three-and-4")),
                ("docs/decisions/one.md", Some("one"))
            ]
        );
        assert_eq!(&text[links[0].range.clone()], "../two.md#three-and-4");
    }

    #[test]
    fn a_heading_s_name_is_what_a_forge_makes_of_it() {
        let text = "# An NVMe target, and `sim:`\n## Twice\n```\n# no heading\n```\n## Twice\n";
        let expected = ["an-nvme-target-and-sim", "twice", "twice-1"];
        assert_eq!(page(text).anchors(), expected);
    }

    #[test]
    fn every_link_leads_somewhere_and_every_page_is_listed() {
        let mut breaches = Vec::new();
        check(&mut breaches).expect("the pages can be read");
        assert_eq!(breaches, Vec::<String>::new());
    }
}
