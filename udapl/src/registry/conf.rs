//! The static registry: `dat.conf`.
//!
//! One record a line, with eight fields separated by blanks or tabs:
//!
//! ```text
//! # IA name  API   thread safety  section  library    provider  IA parameters  platform parameters
//! roce0      u1.2  nonthreadsafe  default  libdat.so  mlx5.0.1  "0000:3b:00.2" ""
//! ```
//!
//! A `#` at the start of a field starts a comment. A field in double quotes may contain blanks and may be empty; in
//! quotes a backslash quotes the next character. A malformed record is reported and skipped; the rest of the file is
//! used. (dat.conf(5) of illumos; the DAT 2.0 distributions use the same grammar.)

use core::fmt;

/// Maximum size of a name in bytes, C's NUL included (`DAT_NAME_MAX_LENGTH`).
pub const NAME_MAX_LENGTH: usize = 256;

/// A record of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfEntry {
    /// Name that consumers open.
    pub ia_name: String,
    /// The API, user or kernel.
    pub api: Api,
    /// Major and minor version of the API.
    pub version: (u32, u32),
    /// True if calls may come from several threads at once.
    pub is_thread_safe: bool,
    /// True if the record is in the default section. A registry ignores others.
    pub is_default: bool,
    /// The library that implements the provider.
    pub library: String,
    /// The vendor of the provider, and its major and minor version.
    pub provider: (String, u32, u32),
    /// Parameters of the provider: for this library, the device.
    pub ia_params: String,
    /// Parameters of the platform; unused.
    pub platform_params: String,
}

/// The API that a record is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Api {
    /// uDAPL.
    User,
    /// kDAPL.
    Kernel,
}

/// A malformed line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfError {
    /// Line number, from 1.
    pub line: usize,
    /// Reason.
    pub reason: &'static str,
}

impl fmt::Display for ConfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

impl core::error::Error for ConfError {}

/// Returns the records of a file, in order, and the malformed lines.
#[must_use]
pub fn parse(text: &str) -> (Vec<ConfEntry>, Vec<ConfError>) {
    let (mut entries, mut errors) = (Vec::new(), Vec::new());
    for (at, line) in text.lines().enumerate() {
        let record = fields(line).and_then(|fields| match fields.is_empty() {
            true => Ok(None),
            false => entry(fields).map(Some),
        });
        match record {
            Ok(Some(entry)) => entries.push(entry),
            Ok(None) => {}
            Err(reason) => errors.push(ConfError {
                line: at + 1,
                reason,
            }),
        }
    }
    (entries, errors)
}

/// Splits a line into its fields.
fn fields(line: &str) -> Result<Vec<String>, &'static str> {
    let mut fields = Vec::new();
    let mut rest = line.chars().peekable();
    loop {
        while rest.next_if(|c| c.is_whitespace()).is_some() {}
        match rest.peek() {
            None | Some('#') => return Ok(fields),
            Some('"') => {
                rest.next();
                fields.push(quoted(&mut rest)?);
                if rest.peek().is_some_and(|c| !c.is_whitespace()) {
                    return Err("something sticks to a closing quote");
                }
            }
            Some(_) => {
                let mut field = String::new();
                while let Some(c) = rest.next_if(|c| !c.is_whitespace()) {
                    field.push(c);
                }
                fields.push(field);
            }
        }
    }
}

/// Reads the rest of a quoted field.
fn quoted(rest: &mut impl Iterator<Item = char>) -> Result<String, &'static str> {
    let mut field = String::new();
    loop {
        match rest.next() {
            None => return Err("a quote is not closed"),
            Some('"') => return Ok(field),
            Some('\\') => field.push(rest.next().ok_or("a quote is not closed")?),
            Some(c) => field.push(c),
        }
    }
}

fn entry(fields: Vec<String>) -> Result<ConfEntry, &'static str> {
    let fields: [String; 8] = fields.try_into().map_err(|_| "a record has eight fields")?;
    let [
        ia_name,
        api_version,
        thread_safety,
        section,
        library,
        provider,
        ia_params,
        platform_params,
    ] = fields;
    if ia_name.is_empty() || ia_name.len() >= NAME_MAX_LENGTH {
        return Err("an IA name has 1 to 255 bytes");
    }
    let (api, version) = if let Some(version) = api_version.strip_prefix('u') {
        (Api::User, version)
    } else if let Some(version) = api_version.strip_prefix('k') {
        (Api::Kernel, version)
    } else {
        return Err("the API is u or k and a version, as in u1.2");
    };
    let version = pair(version).ok_or("the API is u or k and a version, as in u1.2")?;
    let is_thread_safe = match thread_safety.as_str() {
        "threadsafe" => true,
        "nonthreadsafe" => false,
        _ => return Err("the third field is threadsafe or nonthreadsafe"),
    };
    let is_default = match section.as_str() {
        "default" => true,
        "nondefault" => false,
        _ => return Err("the fourth field is default or nondefault"),
    };
    if library.is_empty() {
        return Err("a library has a name");
    }
    let versioned = provider
        .split_once('.')
        .filter(|(id, _)| !id.is_empty())
        .and_then(|(id, version)| Some((id, pair(version)?)));
    let (id, (major, minor)) =
        versioned.ok_or("a provider is an id and a version, as in mlx5.0.1")?;
    Ok(ConfEntry {
        provider: (id.to_owned(), major, minor),
        ia_name,
        api,
        version,
        is_thread_safe,
        is_default,
        library,
        ia_params,
        platform_params,
    })
}

/// Parses two numbers separated by a dot.
fn pair(text: &str) -> Option<(u32, u32)> {
    let number = |digits: &str| {
        let all = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        all.then(|| digits.parse().ok()).flatten()
    };
    let (major, minor) = text.split_once('.')?;
    Some((number(major)?, number(minor)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_eight_fields_and_a_comment_none() {
        let text = "# a comment\n\n  \t\nroce0 u1.2 nonthreadsafe default libdat.so mlx5.0.1 \"sim:A\" \"\" # more\n";
        let (entries, errors) = parse(text);
        assert_eq!(errors, []);
        let expected = ConfEntry {
            ia_name: "roce0".into(),
            api: Api::User,
            version: (1, 2),
            is_thread_safe: false,
            is_default: true,
            library: "libdat.so".into(),
            provider: ("mlx5".into(), 0, 1),
            ia_params: "sim:A".into(),
            platform_params: String::new(),
        };
        assert_eq!(entries, [expected]);
    }

    #[test]
    fn quotes_hold_blanks_and_backslashes_make_the_next_character_ordinary() {
        let line = r#""a name"	k1.2 threadsafe nondefault "lib \"x\".so" me.10.20 "a\\b \# c" x#y"#;
        let (entries, errors) = parse(line);
        assert_eq!(errors, []);
        let entry = &entries[0];
        assert_eq!((entry.ia_name.as_str(), entry.api), ("a name", Api::Kernel));
        assert_eq!(entry.library, "lib \"x\".so");
        assert_eq!(entry.provider, ("me".into(), 10, 20));
        assert_eq!(
            (entry.ia_params.as_str(), entry.platform_params.as_str()),
            ("a\\b # c", "x#y")
        );
        assert!(entry.is_thread_safe && !entry.is_default);
    }

    #[test]
    fn a_line_that_is_no_record_is_named_and_the_others_count() {
        let good = "n u1.2 threadsafe default l p.1.2 \"\" \"\"";
        let bad = [
            "n u1.2 threadsafe default l p.1.2 \"\"",
            "n u1.2 threadsafe default l p.1.2 \"\" \"\" more",
            "n x1.2 threadsafe default l p.1.2 \"\" \"\"",
            "n u1 threadsafe default l p.1.2 \"\" \"\"",
            "n u1.x threadsafe default l p.1.2 \"\" \"\"",
            "n u+1.2 threadsafe default l p.1.2 \"\" \"\"",
            "n u99999999999.2 threadsafe default l p.1.2 \"\" \"\"",
            "n u1.2 safe default l p.1.2 \"\" \"\"",
            "n u1.2 threadsafe maybe l p.1.2 \"\" \"\"",
            "n u1.2 threadsafe default \"\" p.1.2 \"\" \"\"",
            "n u1.2 threadsafe default l .1.2 \"\" \"\"",
            "n u1.2 threadsafe default l p.1 \"\" \"\"",
            "n u1.2 threadsafe default l p.1.2 \"\" \"",
            "n u1.2 threadsafe default l p.1.2 \"\" \"\\",
            "n u1.2 threadsafe default l p.1.2 \"\"\"\"",
            "\"\" u1.2 threadsafe default l p.1.2 \"\" \"\"",
        ];
        for line in bad {
            let (entries, errors) = parse(&format!("{good}\n{line}\n{good}\n"));
            assert_eq!(entries.len(), 2, "{line}");
            assert_eq!(
                errors.iter().map(|error| error.line).collect::<Vec<_>>(),
                [2],
                "{line}"
            );
        }
        let long = "n".repeat(NAME_MAX_LENGTH);
        let (entries, errors) = parse(&format!("{long} {}", &good[2..]));
        assert_eq!((entries.len(), errors.len()), (0, 1));
        let (entries, _) = parse(&format!("{} {}", &long[1..], &good[2..]));
        assert_eq!(entries.len(), 1);
    }
}
