//! Files of profiles and of recorded functions are either read or refused with the number of the line.

use bolero::{TypeGenerator, check};
use hw_sim::Profile;

use super::Effort;

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
    /// Each number in the line is replaced by this number.
    Number(u64),
    Negative(u32),
    /// The line is truncated.
    Cut(u8),
    Bytes(Vec<u8>),
    /// The line is moved to the end of the file.
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
            // A simulated function is later made from the profile, so its sizes must be bounded whatever the file
            // contains.
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
