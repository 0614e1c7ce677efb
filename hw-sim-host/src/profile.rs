//! Profiles of simulated functions by name: the name of a generation or the path of a file.
//!
//! A name that contains a slash or ends in `.toml` is a path. The simulator itself reads no files.

use std::path::Path;

use hw_sim::Profile;
use hw_sim::profile::ProfileError;
use thiserror::Error;

/// Maximum size of a profile file in bytes. A recorded profile has some tens of kilobytes.
const MOST_BYTES: u64 = 4 << 20;

/// Reason why a name yields no profile.
#[derive(Debug, Error)]
pub enum BadProfile {
    /// The name is neither a generation nor a path.
    #[error("no such profile; there are {}, and paths of files", Profile::generations().collect::<Vec<_>>().join(", "))]
    Unknown,
    /// The profile has no virtual functions.
    #[error("it describes no virtual functions")]
    NoVirtualFunctions,
    /// The file could not be read.
    #[error("{path}: {error}")]
    File {
        /// Path of the file.
        path: String,
        /// Error of the operating system.
        error: std::io::Error,
    },
    /// The file does not contain a valid profile.
    #[error("{path}: {error}")]
    Content {
        /// Path of the file.
        path: String,
        /// Problem of the contents, with its place in the file.
        error: ProfileError,
    },
}

/// Returns the profile for a generation's name or a file's path. A path contains a slash or ends in `.toml`.
///
/// # Errors
/// [`BadProfile`] if the name is unknown or the file is unreadable or invalid.
pub fn profile(name: &str) -> Result<Profile, BadProfile> {
    let path = Path::new(name);
    if !name.contains('/') && path.extension().is_none_or(|ending| ending != "toml") {
        return Profile::generation(name).map_err(|_| BadProfile::Unknown);
    }
    let failed = |error| BadProfile::File {
        path: name.to_owned(),
        error,
    };
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() || metadata.len() > MOST_BYTES {
        let problem = format!("not a file of at most {MOST_BYTES} bytes");
        return Err(failed(std::io::Error::other(problem)));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    Profile::load(&text).map_err(|error| BadProfile::Content {
        path: name.to_owned(),
        error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_generation_and_a_path_is_a_file() {
        assert_eq!(
            profile("connectx-7").expect("a generation").device_id,
            0x1021
        );
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("mine.toml");
        let name = path.to_str().expect("a name").to_owned();
        assert!(matches!(profile(&name), Err(BadProfile::File { .. })));
        std::fs::write(
            &path,
            "name = \"mine\"\ntitle = \"Mine\"\nbase = \"connectx-7\"\n",
        )
        .expect("written");
        let mine = profile(&name).expect("a file");
        assert_eq!((mine.generation.as_str(), mine.device_id), ("mine", 0x1021));
        std::fs::write(&path, "[general]").expect("written");
        let error = profile(&name).expect_err("no profile").to_string();
        assert!(
            error.starts_with(&name) && error.contains("name: is missing"),
            "{error}"
        );
        assert!(matches!(profile("mine"), Err(BadProfile::Unknown)));
        let error = profile(directory.path().to_str().expect("a name")).expect_err("a directory");
        assert!(error.to_string().contains("not a file"), "{error}");
    }
}
