//! Downloads from Debian's mirror, and the error if they fail.
//!
//! A root that was unpacked long ago has old lists of packages, but a mirror keeps only the versions of the newest
//! lists. So a download fails after a point release although the mirror works. Therefore a failed download is repeated
//! once with fresh lists. Only if that fails too, the error is returned, with the mirror's reason in one sentence.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Default mirror.
const MIRROR: &str = "http://deb.debian.org/debian";
/// Environment variable with another mirror, which is nearer or the only one that can be reached.
const VARIABLE: &str = "DEBIAN_MIRROR";
/// Options of apt for the check of the mirror and for the update of the lists, so that both fail soon.
pub const PATIENCE: [&str; 2] = ["-oAcquire::http::Timeout=20", "-oAcquire::Retries=1"];
/// Option of apt to download as the current user, because apt's own user may have no access to the folder.
const AS_CURRENT_USER: &str = "-oAPT::Sandbox::User=root";

/// Returns the mirror's address.
pub fn address() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| MIRROR.to_owned())
}

/// Checks that the mirror has a release, before work that needs it begins. `folder` is for the download.
///
/// # Errors
/// One sentence: the mirror cannot be reached, or has no such release.
pub fn reach(release: &str, folder: &Path) -> Result<()> {
    let mirror = address();
    let file = folder.join("reached");
    // The helper uses the same settings as apt, such as its proxy.
    let mut command = Command::new("/usr/lib/apt/apt-helper");
    command
        .args(PATIENCE)
        .args([AS_CURRENT_USER, "download-file"])
        .arg(format!("{mirror}/dists/{release}/InRelease"))
        .arg(&file);
    run_apt(&mut command, &mirror)?;
    std::fs::remove_file(&file).with_context(|| file.display().to_string())
}

/// Runs a download. If it fails, updates the lists and repeats the download once.
///
/// # Errors
/// The lists are not available, or the download also fails with fresh lists.
pub fn with_fresh_lists(
    mut fetch: impl FnMut() -> Result<()>,
    update: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let Err(error) = fetch() else { return Ok(()) };
    eprintln!("{error:#}; once more, with fresh lists of packages");
    update()?;
    fetch()
}

/// Runs a command of apt. If the command fails, the error contains apt's reason in one sentence.
pub fn run_apt(command: &mut Command, mirror: &str) -> Result<()> {
    let output = command
        .output()
        .with_context(|| format!("cannot start {}", command.get_program().display()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    bail!(
        "Debian's packages cannot be had from {mirror}: {}; {VARIABLE} names another mirror",
        reason(&said)
    );
}

/// Returns apt's reason for a failure, which is its first error or warning.
pub(crate) fn reason(said: &str) -> &str {
    let complaint = |line: &str| line.starts_with("E: ") || line.starts_with("W: ");
    let line = said.lines().find(|line| complaint(line));
    line.map_or("no reason is given", |line| line[3..].trim())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use anyhow::anyhow;

    use super::*;

    /// Simulates a download that succeeds if the lists are fresh. Returns its result, and the numbers of tries and of
    /// updates.
    fn fetched(fresh: bool, mirror_answers: bool) -> (Result<()>, u32, u32) {
        let (tries, updates) = (Cell::new(0), Cell::new(0));
        let fetch = || {
            tries.set(tries.get() + 1);
            match fresh || updates.get() > 0 {
                true => Ok(()),
                false => Err(anyhow!("404 Not Found")),
            }
        };
        let update = || {
            updates.set(updates.get() + 1);
            match mirror_answers {
                true => Ok(()),
                false => Err(anyhow!("cannot be had")),
            }
        };
        let result = with_fresh_lists(fetch, update);
        (result, tries.get(), updates.get())
    }

    #[test]
    fn a_list_older_than_a_point_release_is_fetched_anew_and_the_download_tried_once_more() {
        let (result, tries, updates) = fetched(false, true);
        assert!(result.is_ok(), "{result:?}");
        assert_eq!((tries, updates), (2, 1));
        let (result, tries, updates) = fetched(true, true);
        assert!(result.is_ok(), "{result:?}");
        assert_eq!((tries, updates), (1, 0));
    }

    #[test]
    fn without_a_mirror_its_absence_is_the_error_and_not_the_old_list() {
        let (result, tries, _) = fetched(false, false);
        assert_eq!(result.unwrap_err().to_string(), "cannot be had");
        assert_eq!(tries, 1);
    }

    #[test]
    fn the_reason_is_apts_own_first_complaint() {
        let said = "Err:1 http://127.0.0.1:1/debian/dists/trixie/InRelease\n\
            E: Failed to fetch http://127.0.0.1:1/x  Could not connect to 127.0.0.1:1. - connect (111: Connection refused)\n\
            E: Download Failed\n";
        assert!(reason(said).ends_with("(111: Connection refused)"));
        assert!(reason(said).starts_with("Failed to fetch"));
        assert_eq!(reason("nothing of that kind"), "no reason is given");
    }
}
