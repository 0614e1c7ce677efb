//! Letters and colours of the pictures that are drawn here.

/// What a browser has of these letters.
pub(crate) const FONT: &str = "DejaVu Sans, Verdana, sans-serif";
/// Words and lines.
pub(crate) const INK: &str = "#1f2933";
/// What stands behind.
pub(crate) const PALE: &str = "#7b8794";
/// What is shown.
pub(crate) const BLUE: &str = "#1a5fb4";
/// What a person has to look at.
pub(crate) const RED: &str = "#b3261e";
