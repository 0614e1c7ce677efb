//! Mistakes in a configuration file, each with its line.

use core::fmt;
use core::ops::Range;
use std::path::PathBuf;

/// A mistake, with its position in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Line of the mistake, from 1; 0 if the mistake concerns the file as a whole.
    pub line: usize,
    /// Column of the mistake, from 1, in characters.
    pub column: usize,
    /// Number of characters that are wrong.
    pub length: usize,
    /// Text of the line.
    pub text: String,
    /// Description of the mistake, and of the expected form.
    pub message: String,
}

impl Mistake {
    /// Makes the mistake for a file that cannot be read, or is too long.
    pub(super) fn of_file(message: impl Into<String>) -> Self {
        Self {
            line: 0,
            column: 0,
            length: 0,
            text: String::new(),
            message: message.into(),
        }
    }

    pub(super) fn at(file: &str, span: &Range<usize>, message: impl Into<String>) -> Self {
        let start = floor(file, span.start.min(file.len()));
        let begins = file[..start].rfind('\n').map_or(0, |at| at + 1);
        let ends = file[start..].find('\n').map_or(file.len(), |at| start + at);
        let end = floor(file, span.end.clamp(start, ends));
        Self {
            line: file[..start].matches('\n').count() + 1,
            column: file[begins..start].chars().count() + 1,
            length: file[start..end].chars().count().max(1),
            text: file[begins..ends].trim_end().to_owned(),
            message: message.into(),
        }
    }
}

/// Returns the offset at which the character that contains byte `at` begins.
fn floor(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// All mistakes that were found in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes {
    /// Path of the file.
    pub path: PathBuf,
    /// The mistakes, in the order of their lines.
    pub mistakes: Vec<Mistake>,
}

impl Mistakes {
    /// Returns whether the text has mistakes. Otherwise the file could not be read, or is too long.
    #[must_use]
    pub fn are_in_text(&self) -> bool {
        self.mistakes.iter().any(|mistake| mistake.line > 0)
    }
}

impl std::error::Error for Mistakes {}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, mistake) in self.mistakes.iter().enumerate() {
            if at != 0 {
                f.write_str("\n")?;
            }
            let Mistake {
                line,
                column,
                length,
                text,
                message,
            } = mistake;
            if *line == 0 {
                write!(f, "{}: {message}", self.path.display())?;
                continue;
            }
            let margin = " ".repeat(line.to_string().len());
            writeln!(f, "{}:{line}:{column}: {message}", self.path.display())?;
            writeln!(f, " {line} | {text}")?;
            write!(
                f,
                " {margin} | {}{}",
                " ".repeat(column - 1),
                "^".repeat(*length)
            )?;
        }
        Ok(())
    }
}
