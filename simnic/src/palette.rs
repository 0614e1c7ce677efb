//! Fonts, colours and strokes of the pictures of this crate and of `datctl`.

use svg::node::element::{Line, Text};

/// Font families, of which browsers have at least one.
pub const FONT: &str = "DejaVu Sans, Verdana, sans-serif";
/// Colour of text and lines.
pub const INK: &str = "#1f2933";
/// Colour of secondary text.
pub const PALE: &str = "#7b8794";
/// Colour of the data.
pub const BLUE: &str = "#1a5fb4";
/// Colour of highlights.
pub const RED: &str = "#b3261e";
/// Colours of the lines in a panel; further lines reuse them.
pub const LINES: [&str; 6] = [BLUE, RED, "#2e7d32", "#b26a00", "#6a3fb5", "#00838f"];
/// Colour of the grid behind the data.
pub const GRID: &str = "#e4e7eb";

/// Formats a coordinate with two decimals, because hundredths of a pixel are enough.
#[must_use]
pub fn two(number: f64) -> String {
    format!("{number:.2}")
}

/// Returns a text at a position. `anchor` says which part of the text is at the position: `start`, `middle` or `end`.
#[must_use]
pub fn text(words: &str, x: f64, y: f64, anchor: &str, ink: &str) -> Text {
    Text::new(words)
        .set("x", two(x))
        .set("y", two(y))
        .set("text-anchor", anchor)
        .set("fill", ink)
}

/// Returns a line between two points.
#[must_use]
pub fn line(from: (f64, f64), to: (f64, f64), ink: &str) -> Line {
    Line::new()
        .set("x1", two(from.0))
        .set("y1", two(from.1))
        .set("x2", two(to.0))
        .set("y2", two(to.1))
        .set("stroke", ink)
}
