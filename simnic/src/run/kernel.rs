//! The option `--kernel`.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use guest::Kernel;

/// The kernel that the user chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// The kernel of a Debian release.
    Release(Kernel),
    /// A linux-image package, by its path.
    Package(PathBuf),
}

impl FromStr for Which {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(
            Kernel::from_str(text, false)
                .map_or_else(|_| Self::Package(text.into()), Self::Release),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_a_release_or_else_a_package() {
        let which = |text: &str| text.parse::<Which>().expect("any");
        assert_eq!(which("bookworm"), Which::Release(Kernel::Bookworm));
        assert_eq!(which("backports"), Which::Release(Kernel::Backports));
        assert_eq!(which("./my.deb"), Which::Package("./my.deb".into()));
    }
}
