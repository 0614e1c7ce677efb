//! `dat.conf`: any text parses into records and invalid lines, and each invalid line has a reason.

use bolero::{TypeGenerator, check};
use udapl::registry::conf::{Api, ConfEntry, NAME_MAX_LENGTH, parse};

use super::ExecutionCount;

#[test]
fn any_text_is_records_and_lines_that_are_none() {
    let effort = ExecutionCount::new("dat.conf, bytes");
    check!()
        .with_iterations(ExecutionCount::iterations(50_000))
        .for_each(|bytes: &[u8]| {
            effort.one();
            let text = String::from_utf8_lossy(bytes);
            let (entries, errors) = parse(&text);
            let lines = text.lines().count();
            assert!(entries.len() + errors.len() <= lines);
            for error in errors {
                assert!((1..=lines).contains(&error.line) && !error.reason.is_empty());
            }
        });
}

/// The record that a line of `dat.conf` is generated from.
#[derive(Clone, Debug, TypeGenerator)]
struct Meant {
    texts: [Vec<u8>; 5],
    versions: [u16; 4],
    flags: u8,
    /// Blanks before each field. `around` is the text of the comment line before the record.
    blanks: [u8; 8],
    around: Vec<u8>,
}

fn text(bytes: &[u8]) -> String {
    // A record must be on one line.
    String::from_utf8_lossy(bytes).replace(['\n', '\r'], " ")
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Returns the first words of the reason for which a record with these values is refused, or `None` if it is accepted.
fn refusal(meant: &ConfEntry) -> Option<&'static str> {
    if meant.ia_name.is_empty() || meant.ia_name.len() >= NAME_MAX_LENGTH {
        Some("an IA name ")
    } else if meant.library.is_empty() {
        Some("a library ")
    } else if meant.provider.0.is_empty() {
        Some("a provider ")
    } else {
        None
    }
}

/// A quoted field is read as written, whatever it contains. A record with a missing or too long name is refused.
#[test]
fn a_record_that_is_written_is_read_unless_a_name_is_missing_or_too_long() {
    let effort = ExecutionCount::new("dat.conf, records");
    check!()
        .with_type::<Meant>()
        .with_iterations(ExecutionCount::iterations(50_000))
        .for_each(|meant| {
            effort.one();
            let [name, library, company, ia, platform] = [0, 1, 2, 3, 4].map(|at| {
                let text = text(&meant.texts[at]);
                match at {
                    // Some names are longer than the limit.
                    0 => text.repeat(usize::from(meant.flags >> 5) + 1),
                    // The first dot ends the company's name, so the name must not contain a dot.
                    2 => text.replace('.', ""),
                    _ => text,
                }
            });
            let [major, minor, first, second] = meant.versions.map(u32::from);
            let has = |bit: u8| meant.flags >> bit & 1 == 1;
            let (api, letter) = if has(0) {
                (Api::User, 'u')
            } else {
                (Api::Kernel, 'k')
            };
            let fields = [
                quoted(&name),
                format!("{letter}{major}.{minor}"),
                if has(1) {
                    "threadsafe"
                } else {
                    "nonthreadsafe"
                }
                .to_owned(),
                if has(2) { "default" } else { "nondefault" }.to_owned(),
                quoted(&library),
                quoted(&format!("{company}.{first}.{second}")),
                quoted(&ia),
                quoted(&platform),
            ];
            let blank = |count: u8| " \t".repeat(usize::from(count % 3) + 1);
            let line: String = fields
                .iter()
                .zip(meant.blanks)
                .flat_map(|(field, blanks)| [blank(blanks), field.clone()])
                .collect();
            let (entries, errors) = parse(&format!("# {}\n{line}\n", text(&meant.around)));
            let entry = ConfEntry {
                ia_name: name,
                api,
                version: (major, minor),
                is_thread_safe: has(1),
                is_default: has(2),
                library,
                provider: (company, first, second),
                ia_params: ia,
                platform_params: platform,
            };
            match (refusal(&entry), &errors[..]) {
                (None, []) => assert_eq!(entries, [entry], "{line}"),
                (Some(reason), [error]) => {
                    assert!(entries.is_empty(), "{line}: {entries:?}");
                    assert!(
                        error.line == 2 && error.reason.starts_with(reason),
                        "{line}: {error}"
                    );
                }
                (expected, errors) => panic!("{line}: {expected:?}, {entries:?} {errors:?}"),
            }
        });
}
