//! NVMe qualified names (Base specification, "NVMe Qualified Names").

use core::fmt;
use core::str::FromStr;

/// The well-known name of discovery subsystems.
pub const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Maximum length of a name in bytes.
pub const LONGEST: usize = 223;

/// A qualified name: `nqn.yyyy-mm.reverse.domain`, then text that the owner of the domain chooses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn(Box<str>);

/// Reason why a text is not a qualified name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NqnError {
    /// The text does not begin with `nqn.`, a date and a domain, or contains a control character.
    #[error("a qualified name begins with nqn.YYYY-MM. and a domain: {0:?} does not")]
    Beginning(String),
    /// The text has more than 223 bytes.
    #[error("a qualified name has at most 223 bytes: {0} are too many")]
    Length(usize),
    /// The text is not UTF-8, or its field has no terminating zero.
    #[error("a name that is no text")]
    Text,
}

impl Nqn {
    /// Returns the well-known name of discovery subsystems.
    #[must_use]
    pub fn discovery() -> Self {
        Self(DISCOVERY.into())
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether this is the well-known name of discovery subsystems.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        &*self.0 == DISCOVERY
    }

    /// Reads a name from a field of 256 bytes. The name ends at the first zero.
    ///
    /// # Errors
    /// [`NqnError`].
    pub fn of_field(field: &[u8; 256]) -> Result<Self, NqnError> {
        let length = field.iter().position(|byte| *byte == 0);
        let text = &field[..length.ok_or(NqnError::Text)?];
        core::str::from_utf8(text)
            .map_err(|_| NqnError::Text)?
            .parse()
    }

    /// Reads a host's name from its field. Linux and SPDK accept any name, and administrators choose names that are not
    /// qualified. So any name is accepted unless `strict`; then the name must have the form of a qualified name.
    ///
    /// # Errors
    /// [`NqnError`].
    pub fn of_hosts_field(field: &[u8; 256], strict: bool) -> Result<Self, NqnError> {
        let length = field.iter().position(|byte| *byte == 0);
        let text = &field[..length.ok_or(NqnError::Text)?];
        Self::of_host(
            core::str::from_utf8(text).map_err(|_| NqnError::Text)?,
            strict,
        )
    }

    /// Reads a host's name from text. `strict` requires the form of a qualified name.
    ///
    /// # Errors
    /// [`NqnError`].
    pub fn of_host(text: &str, strict: bool) -> Result<Self, NqnError> {
        if strict || text.is_empty() || text.contains(char::is_control) || text.len() > LONGEST {
            return text.parse();
        }
        Ok(Self(text.into()))
    }

    /// Returns the name as a field of 256 bytes.
    #[must_use]
    pub fn field(&self) -> [u8; 256] {
        let mut field = [0; 256];
        field[..self.0.len()].copy_from_slice(self.0.as_bytes());
        field
    }
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(text: &str) -> Result<Self, NqnError> {
        if text.len() > LONGEST {
            return Err(NqnError::Length(text.len()));
        }
        let bytes = text.as_bytes();
        let begins = bytes.len() > 12
            && text.starts_with("nqn.")
            && bytes[4..8].iter().all(u8::is_ascii_digit)
            && bytes[8] == b'-'
            && bytes[9..11].iter().all(u8::is_ascii_digit)
            && bytes[11] == b'.'
            && !text.contains(char::is_control);
        if begins {
            Ok(Self(text.into()))
        } else {
            Err(NqnError::Beginning(text.to_owned()))
        }
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_a_date_and_a_domain_and_no_more_than_223_bytes() {
        let good = [
            "nqn.2014-08.org.nvmexpress.discovery",
            "nqn.2014-08.org.nvmexpress:uuid:x",
        ];
        assert!(good.iter().all(|name| name.parse::<Nqn>().is_ok()));
        for bad in [
            "",
            "nqn.",
            "nqn.2014-8.org",
            "NQN.2014-08.org",
            "nqn.2014-08.",
            "nqn.2014-08.a\nb",
        ] {
            let refused = bad.parse::<Nqn>();
            assert_eq!(refused, Err(NqnError::Beginning(bad.to_owned())), "{bad:?}");
        }
        let long = format!("nqn.2014-08.{}", "a".repeat(LONGEST - 12));
        assert!(long.parse::<Nqn>().is_ok());
        assert_eq!(
            format!("{long}a").parse::<Nqn>(),
            Err(NqnError::Length(224))
        );
    }

    /// Without `strict`, a host may have any name that fits its field, as in nvmet and SPDK.
    #[test]
    fn a_host_may_have_any_name_that_its_field_holds_unless_names_are_strict() {
        for name in [
            "not-a-nqn",
            "x",
            "nqn.",
            "host 1",
            "\u{e9}t\u{e9}",
            &"a".repeat(LONGEST),
        ] {
            let host = Nqn::of_host(name, false).expect("a name");
            assert_eq!(host.as_str(), name);
            assert_eq!(Nqn::of_hosts_field(&host.field(), false), Ok(host.clone()));
            assert!(Nqn::of_hosts_field(&host.field(), true).is_err(), "{name}");
        }
        for name in ["", "a\nb", "a\u{7f}", &"a".repeat(LONGEST + 1)] {
            assert!(Nqn::of_host(name, false).is_err(), "{name:?}");
        }
        let mut field = [0xff; 256];
        assert_eq!(Nqn::of_hosts_field(&field, false), Err(NqnError::Text));
        field[200] = 0;
        assert_eq!(Nqn::of_hosts_field(&field, false), Err(NqnError::Text));
        let good = Nqn::of_hosts_field(&Nqn::discovery().field(), true);
        assert_eq!(good, Ok(Nqn::discovery()));
    }

    #[test]
    fn a_field_ends_at_its_first_zero_and_has_one() {
        let name = Nqn::discovery();
        assert_eq!(Nqn::of_field(&name.field()), Ok(name));
        assert_eq!(Nqn::of_field(&[b'n'; 256]), Err(NqnError::Text));
        let mut field = Nqn::discovery().field();
        field[20] = 0xff;
        assert_eq!(Nqn::of_field(&field), Err(NqnError::Text));
    }
}
