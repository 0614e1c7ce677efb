//! Letters and colours of the pictures that are drawn here and in `datctl`.

/// What a browser has of these letters.
pub const FONT: &str = "DejaVu Sans, Verdana, sans-serif";
/// Words and lines.
pub const INK: &str = "#1f2933";
/// What stands behind.
pub const PALE: &str = "#7b8794";
/// What is shown.
pub const BLUE: &str = "#1a5fb4";
/// What a person has to look at.
pub const RED: &str = "#b3261e";
/// Lines of one panel, to be told from each other.
pub const LINES: [&str; 6] = [BLUE, RED, "#2e7d32", "#b26a00", "#6a3fb5", "#00838f"];
