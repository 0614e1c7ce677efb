//! Letters, colours and strokes of the pictures that are drawn here and in `datctl`.

use svg::node::element::{Line, Text};

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
/// What stands behind what is shown.
pub const GRID: &str = "#e4e7eb";

/// Hundredths of a pixel are enough.
#[must_use]
pub fn two(number: f64) -> String {
    format!("{number:.2}")
}

/// Words at a place; `anchor` says which end of them is there.
#[must_use]
pub fn text(words: &str, x: f64, y: f64, anchor: &str, ink: &str) -> Text {
    Text::new(words)
        .set("x", two(x))
        .set("y", two(y))
        .set("text-anchor", anchor)
        .set("fill", ink)
}

/// A stroke.
#[must_use]
pub fn line(from: (f64, f64), to: (f64, f64), ink: &str) -> Line {
    Line::new()
        .set("x1", two(from.0))
        .set("y1", two(from.1))
        .set("x2", two(to.0))
        .set("y2", two(to.1))
        .set("stroke", ink)
}
