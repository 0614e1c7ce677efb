//! Files of profiles and of recorded functions: read, or refused with the line.

use bolero::{TypeGenerator, check};
use hw_sim::Profile;

use super::Effort;

/// Existing files, and the sections that a recording has besides.
const FILES: [&str; 4] = [
    include_str!("../../../hw-sim/profiles/connectx-7.toml"),
    include_str!("../../../hw-sim/profiles/connectx-7-vf.toml"),
    include_str!("../../../hw-sim/profiles/common.toml"),
    include_str!("recorded.toml"),
];

/// Change of a line.
#[derive(Clone, Debug, TypeGenerator)]
enum Change {
    Gone,
    Twice,
    /// Each of its numbers is replaced by this.
    Number(u64),
    Negative(u32),
    /// It is truncated here.
    Cut(u8),
    Bytes(Vec<u8>),
    /// It is moved to the end.
    Last,
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
        let digits = |new: &str| {
            let parts = line.split(|letter: char| letter.is_ascii_digit());
            let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
            parts.join(new)
        };
        lines[at] = match change {
            Change::Gone => {
                lines.remove(at);
                continue;
            }
            Change::Twice => format!("{line}\n{line}"),
            Change::Number(number) => digits(&number.to_string()),
            Change::Negative(number) => digits(&format!("-{number}")),
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
            // A function is made of it later: its sizes are bounded, whatever the file contains.
            assert!(profile.bar_bytes <= 1 << 40, "{} bytes", profile.bar_bytes);
            let _virtual = profile.virtual_function(0);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

#[test]
fn any_text_is_a_profile_or_is_refused() {
    let effort = Effort::new("profiles, bytes");
    check!()
        .with_iterations(Effort::iterations(5_000))
        .for_each(|bytes: &[u8]| {
            effort.one();
            read(&String::from_utf8_lossy(bytes));
        });
}

#[test]
fn a_file_with_any_line_changed_is_a_profile_or_is_refused() {
    let effort = Effort::new("profiles, lines");
    check!()
        .with_type::<(u8, Vec<(u16, Change)>)>()
        .with_iterations(Effort::iterations(1_000))
        .for_each(|(file, changes)| {
            effort.one();
            read(&changed(*file, changes));
        });
}
