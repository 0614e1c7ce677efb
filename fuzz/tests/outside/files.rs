//! Files of profiles and of recorded functions are either read or refused with an error text.

use bolero::{TypeGenerator, check};
use hw_sim::Profile;
use hw_sim::profile::{Document, ProfileError};

use super::ExecutionCount;

/// Existing profiles, and the sections that a recorded function has in addition.
const FILES: [&str; 4] = [
    include_str!("../../../hw-sim/profiles/connectx-7.toml"),
    include_str!("../../../hw-sim/profiles/connectx-7-vf.toml"),
    include_str!("../../../hw-sim/profiles/common.toml"),
    include_str!("recorded.toml"),
];

/// Change to one line of a file.
#[derive(Clone, Debug, TypeGenerator)]
enum Change {
    Gone,
    Twice,
    /// Each number is replaced by this number.
    Number(u64),
    Negative(u32),
    /// The line is truncated.
    Cut(u8),
    Bytes(Vec<u8>),
    /// The line is moved to the end of the file.
    Last,
}

/// Returns the line with each of its numbers replaced. A hexadecimal number is one number, with its `0x`.
fn with_numbers(line: &str, new: &str) -> String {
    let mut changed = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(|letter: char| letter.is_ascii_digit()) {
        let (before, number) = rest.split_at(at);
        let digits = number.strip_prefix("0x").unwrap_or(number);
        let is_digit = |letter: char| {
            letter.is_ascii_digit() || digits.len() < number.len() && letter.is_ascii_hexdigit()
        };
        changed += before;
        changed += new;
        rest = digits.trim_start_matches(is_digit);
    }
    changed + rest
}

#[test]
fn a_number_is_replaced_wherever_it_stands_in_a_line() {
    for (line, changed) in [
        ("key = 4096", "key = 7"),
        ("4096 = key", "7 = key"),
        (
            "bar_bytes = { is = 0x2000000, known = \"4, 4 Lx\" }",
            "bar_bytes = { is = 7, known = \"7, 7 Lx\" }",
        ),
        ("psid = 0xBEEF", "psid = 7"),
        ("0", "7"),
        ("none", "none"),
        ("", ""),
    ] {
        assert_eq!(with_numbers(line, "7"), changed);
    }
}

fn changed(file: u8, changes: &[(u16, Change)]) -> String {
    let file = FILES[usize::from(file) % FILES.len()];
    let mut lines: Vec<String> = file.lines().map(str::to_owned).collect();
    for (at, change) in changes {
        if lines.is_empty() {
            break;
        }
        let at = usize::from(*at) % lines.len();
        let line = lines[at].clone();
        lines[at] = match change {
            Change::Gone => {
                lines.remove(at);
                continue;
            }
            Change::Twice => format!("{line}\n{line}"),
            Change::Number(number) => with_numbers(&line, &number.to_string()),
            Change::Negative(number) => with_numbers(&line, &format!("-{number}")),
            Change::Cut(to) => line.chars().take(usize::from(*to)).collect(),
            Change::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Change::Last => {
                let line = lines.remove(at);
                lines.push(line);
                continue;
            }
        };
    }
    lines.join("\n")
}

fn read(text: &str) {
    match Profile::load(text) {
        Ok(profile) => {
            // A simulated function is later made from the profile, so its sizes must be bounded whatever the file
            // contains.
            assert!(profile.bar_bytes <= 1 << 40, "{} bytes", profile.bar_bytes);
            let _virtual = profile.virtual_function(0);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A statement with a negative number is refused, and the error names its section and field.
#[test]
fn a_refusal_names_section_and_field() {
    let mut refused = 0;
    for file in FILES {
        let mut section = "";
        let lines: Vec<&str> = file.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            if let Some(name) = line.strip_prefix('[') {
                section = name.trim_end_matches(']');
            }
            let Some((field, number)) = line.split_once(" = { is = ") else {
                continue;
            };
            if !number.starts_with(|letter: char| letter.is_ascii_digit()) {
                continue;
            }
            let negative = format!("{field} = {{ is = -1, known = \"\" }}");
            let mut changed = lines.clone();
            changed[at] = &negative;
            let error = Document::read(&changed.join("\n")).err();
            let place = format!("{section}.{field}");
            assert!(
                matches!(&error, Some(ProfileError::Statement { place: named, .. }) if *named == place),
                "{place}: {error:?}"
            );
            refused += 1;
        }
    }
    assert!(refused > 50, "{refused}");
}

#[test]
fn any_text_is_a_profile_or_is_refused() {
    let effort = ExecutionCount::new("profiles, bytes");
    check!()
        .with_iterations(ExecutionCount::iterations(5_000))
        .for_each(|bytes: &[u8]| {
            effort.one();
            read(&String::from_utf8_lossy(bytes));
        });
}

#[test]
fn a_file_with_any_line_changed_is_a_profile_or_is_refused() {
    let effort = ExecutionCount::new("profiles, lines");
    check!()
        .with_type::<(u8, Vec<(u16, Change)>)>()
        .with_iterations(ExecutionCount::iterations(1_000))
        .for_each(|(file, changes)| {
            effort.one();
            read(&changed(*file, changes));
        });
}
