//! Checks two tables of docs/security.md against the constants of the sources: the table of pools, and the table of
//! bounds on the waits of honest parties.
//!
//! The last cell of a row names the constants that bound it, by file:
//! `` `file`: `NAME` = value, `NAME` = value ``. Files are separated by `;`. Each constant must exist in the file with
//! that value. In a file that the table of pools names, each constant at the top level that is a count or a time must
//! be in that table, so that a new bound is documented with the others.

use anyhow::{Context, Result};

use super::Source;
use crate::shell;

const PAGE: &str = "docs/security.md";
/// First columns of the tables' header lines.
const POOLS: &str = "| Pool |";
const HONEST: &str = "| Hostile |";

/// The constants that a table names, by file: names and values.
type Named<'a> = Vec<(&'a str, Vec<(&'a str, &'a str)>)>;

/// Returns the constants in the last column of a table.
fn named<'a>(text: &'a str, head: &str, breaches: &mut Vec<String>) -> Result<Named<'a>> {
    let table = text.split_once(head);
    let table = table
        .with_context(|| format!("{PAGE} has no table {head}"))?
        .1;
    let table = table.split("\n\n").next().unwrap_or_default();
    let mut named = Vec::new();
    for row in table.lines().skip(2) {
        let cell = row.trim_end_matches([' ', '|']).rsplit('|').next();
        for part in cell.unwrap_or_default().split(';') {
            let Some((file, constants)) = part.split_once(':') else {
                breaches.push(format!("{PAGE}: no `file`: `NAME` = value in {row:?}"));
                continue;
            };
            let constants = constants.split(", ").filter_map(|one| one.split_once('='));
            let constants =
                constants.map(|(name, value)| (name.trim().trim_matches('`'), value.trim()));
            named.push((file.trim().trim_matches('`'), constants.collect()));
        }
    }
    Ok(named)
}

/// Compares the two tables with the sources.
pub(super) fn are_those_of_the_sources(
    sources: &[Source],
    breaches: &mut Vec<String>,
) -> Result<()> {
    let text = std::fs::read_to_string(shell::root().join(PAGE)).context(PAGE)?;
    let pools = named(&text, POOLS, breaches)?;
    compare_values(sources, &pools, true, breaches);
    let honest = named(&text, HONEST, breaches)?;
    compare_values(sources, &honest, false, breaches);
    Ok(())
}

/// Compares the named constants with the sources. If `are_all` is set, the named files must not have further bounds at
/// their top level.
fn compare_values(
    sources: &[Source],
    named: &Named<'_>,
    are_all: bool,
    breaches: &mut Vec<String>,
) {
    let mut files: Vec<&str> = named.iter().map(|(file, _)| *file).collect();
    files.sort_unstable();
    files.dedup();
    for file in files {
        let Some(source) = sources.iter().find(|source| source.path == file) else {
            breaches.push(format!("{PAGE}: there is no {file}"));
            continue;
        };
        let bounds = bounds(&source.text);
        let listed = named.iter().filter(|(of, _)| *of == file);
        let listed: Vec<_> = listed.flat_map(|(_, constants)| constants).collect();
        for (name, value) in &listed {
            match bounds.iter().find(|bound| bound.name == *name) {
                None => breaches.push(format!("{PAGE}: {file} has no constant {name}")),
                Some(bound) if number(value).is_none() || number(value) != number(bound.value) => {
                    breaches.push(format!(
                        "{PAGE}: {name} is {value}, in {file} it is {}",
                        bound.value
                    ));
                }
                Some(_) => {}
            }
        }
        let missing = bounds.iter().filter(|bound| are_all && bound.is_top);
        let missing = missing.filter(|bound| !listed.iter().any(|(name, _)| *name == bound.name));
        breaches
            .extend(missing.map(|bound| {
                format!("{PAGE}: {} of {file} is in no row of the pools", bound.name)
            }));
    }
}

/// A constant that is a count or a time, or a field with such a value in a struct expression.
struct Bound<'a> {
    name: &'a str,
    value: &'a str,
    /// True for a constant at the top level of the file.
    is_top: bool,
}

fn bounds(text: &str) -> Vec<Bound<'_>> {
    let found = text.lines().filter_map(|line| {
        let is_top = !line.starts_with(' ');
        let line = line.trim_start();
        if let Some((name, value)) = line
            .strip_suffix(',')
            .and_then(|line| line.split_once(": "))
            && number(value).is_some()
        {
            return Some(Bound {
                name,
                value,
                is_top: false,
            });
        }
        let line = match line.strip_prefix("pub") {
            Some(rest) => rest.trim_start_matches(|c| c != ' ').trim_start(),
            None => line,
        };
        let (name, rest) = line.strip_prefix("const ")?.split_once(": ")?;
        let (kind, value) = rest.strip_suffix(';')?.split_once(" = ")?;
        let is_bound = ["u8", "u16", "u32", "u64", "usize", "Duration", "Moment"].contains(&kind);
        (is_bound && number(value).is_some()).then_some(Bound {
            name,
            value,
            is_top,
        })
    });
    found.collect()
}

/// Parses a count, or a time in milliseconds, in the notation of the page or of Rust.
fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    let plain = |text: &str| text.trim().replace([',', '_'], "").parse::<u64>().ok();
    let call = |name: &str| {
        let (_, argument) = text.strip_suffix(')')?.split_once(name)?;
        plain(argument)
    };
    let units = [
        ("ms", 1),
        ("s", 1000),
        ("min", 60_000),
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
    ];
    let units = units.into_iter().find_map(|(unit, times)| {
        plain(text.strip_suffix(&format!(" {unit}"))?).map(|number| number * times)
    });
    let binary = |sign: &str, act: fn(u64, u64) -> Option<u64>| {
        let (left, right) = text.split_once(sign)?;
        act(plain(left)?, plain(right)?)
    };
    plain(text)
        .or(units)
        .or_else(|| call("Duration::from_millis(").or_else(|| call("Moment::from_millis(")))
        .or_else(|| {
            let seconds = call("Duration::from_secs(").or_else(|| call("Moment::from_secs("))?;
            Some(seconds * 1000)
        })
        .or_else(|| {
            binary(" << ", |left, right| {
                left.checked_shl(u32::try_from(right).ok()?)
            })
        })
        .or_else(|| {
            let seconds = text.strip_prefix("Moment::from_secs(")?.strip_suffix(')')?;
            let (left, right) = seconds.split_once(" * ")?;
            Some(plain(left)? * plain(right)? * 1000)
        })
        .or_else(|| binary(" * ", u64::checked_mul))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_the_page_is_compared_with_the_constants_expression() {
        for (page, source) in [
            ("1,024", "1024"),
            ("65,536", "1 << 16"),
            ("16 MiB", "16 << 20"),
            ("5 s", "Duration::from_secs(5)"),
            ("2 min", "Moment::from_secs(120)"),
            ("250 ms", "std::time::Duration::from_millis(250)"),
        ] {
            assert_eq!(number(page), number(source), "{page}");
            assert!(number(page).is_some(), "{page}");
        }
        assert_ne!(number("5 s"), number("Duration::from_secs(6)"));
        assert_eq!(number("Other::NAME"), None);
    }

    #[test]
    fn constants_of_counts_and_times_are_found_with_their_values() {
        let text = "/// Most.\npub(super) const CLIENTS: usize = 16;\n    const IDLE: Duration = Duration::from_secs(3);\n\
                    const NAME: &str = \"5\";\npub const WIDE: u32 = 1 << 4;\n            most: 2_048,\n";
        let found = bounds(text);
        let found: Vec<_> = found.iter().map(|b| (b.name, b.value, b.is_top)).collect();
        assert_eq!(
            found,
            [
                ("CLIENTS", "16", true),
                ("IDLE", "Duration::from_secs(3)", false),
                ("WIDE", "1 << 4", true),
                ("most", "2_048", false)
            ]
        );
    }
}
