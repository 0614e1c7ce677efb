//! A sequence as a picture: a vertical line for each side, time from top to bottom, an arrow for each message or
//! request.
//!
//! An arrow that ends before the other side is a message or a request whose arrival is not recorded. Failures, ends of
//! connections and events of the device are red. The text of a step wraps. The title and the reason have at most two
//! lines each.

use svg::Document;
use svg::node::element::{Circle, Line, Polygon, Rectangle, Text};

use super::connection::Kind;
use super::sequence::{Sequence, Side, Step, milliseconds};
use simnic::palette::{BLUE, FONT, INK, PALE, RED};

const WIDTH: u32 = 1_240;
/// Horizontal positions of the sides' lines.
const HERE: u32 = 500;
const PEER: u32 = 820;
/// Length of a line of text beside a side's line, in characters.
const LETTERS: usize = 52;
const LINE: u32 = 15;
const GAP: u32 = 11;
const HEAD: u32 = 104;

/// Draws the sequence.
pub(super) fn draw(sequence: &Sequence) -> String {
    // Vertical positions of the steps. The height of a step is that of its text.
    let mut y = HEAD + 24;
    let mut places = Vec::with_capacity(sequence.steps.len());
    let mut words = Vec::with_capacity(sequence.steps.len());
    for step in &sequence.steps {
        let lines = wrap(&beside(step), LETTERS);
        places.push(y);
        let lines_down = u32::try_from(lines.len().max(1)).unwrap_or(u32::MAX);
        words.push(lines);
        y += lines_down.saturating_mul(LINE) + GAP;
    }
    let height = y + 16;
    let mut page = Document::new()
        .set("viewBox", (0, 0, WIDTH, height))
        .set("width", WIDTH)
        .set("height", height)
        .set("font-family", FONT)
        .set("font-size", 12)
        .add(
            Rectangle::new()
                .set("width", WIDTH)
                .set("height", height)
                .set("fill", "#ffffff"),
        );
    for (at, line) in wrap(&sequence.title, 150).iter().take(2).enumerate() {
        let down = 22 + u32::try_from(at).unwrap_or(0) * LINE;
        page = page.add(text(line, 16, down, "start", INK).set("font-size", 13));
    }
    for (at, line) in wrap(&sequence.reason, 160).iter().take(2).enumerate() {
        let down = 54 + u32::try_from(at).unwrap_or(0) * LINE;
        page = page.add(text(line, 16, down, "start", PALE));
    }
    let there = if sequence.both {
        sequence.peer.clone()
    } else {
        format!("{} (nothing was recorded there)", sequence.peer)
    };
    page = page
        .add(bold(&sequence.here, HERE, HEAD - 8, "middle"))
        .add(bold(&there, PEER, HEAD - 8, "middle"))
        .add(text("ms", 78, HEAD - 8, "end", PALE));
    for x in [HERE, PEER] {
        page = page.add(
            line((x, HEAD), (x, height - 10), PALE)
                .set("stroke-width", 2)
                .set(
                    "stroke-dasharray",
                    if x == PEER && !sequence.both {
                        "3 5"
                    } else {
                        "none"
                    },
                ),
        );
    }
    let mut time = None;
    for (at, step) in sequence.steps.iter().enumerate() {
        let y = places[at];
        if time != Some(step.at) {
            page =
                page.add(text(&milliseconds(step.at), 78, y + 4, "end", PALE).set("font-size", 10));
            time = Some(step.at);
        }
        let (x, anchor, label) = match step.side {
            Side::Here => (HERE, "end", HERE - 14),
            Side::Peer => (PEER, "start", PEER + 14),
        };
        let ink = ink(step.row.kind);
        for (down, words) in words[at].iter().enumerate() {
            let down = y + 4 + u32::try_from(down).unwrap_or(0) * LINE;
            page = page.add(text(words, label, down, anchor, ink));
        }
        for shape in marks(step, x, y, ink) {
            page = shape.onto(page);
        }
        for shape in arrows(step, &places, y) {
            page = shape.onto(page);
        }
    }
    format!("{page}\n")
}

enum Shape {
    Line(Line),
    Text(Text),
    Circle(Circle),
    Polygon(Polygon),
}

impl Shape {
    fn onto(self, page: Document) -> Document {
        match self {
            Self::Line(line) => page.add(line),
            Self::Text(text) => page.add(text),
            Self::Circle(circle) => page.add(circle),
            Self::Polygon(polygon) => page.add(polygon),
        }
    }
}

/// Returns the text beside a side's line.
fn beside(step: &Step) -> String {
    match step.row.kind {
        // The message's name is on the arrow, and the communication IDs are left out.
        Kind::Received | Kind::Sent => step
            .row
            .says
            .split_once(", communication")
            .map_or_else(|| step.row.says.clone(), |(what, _)| what.to_owned()),
        Kind::Event
        | Kind::State
        | Kind::Post
        | Kind::PostReceive
        | Kind::Done
        | Kind::DoneReceive
        | Kind::Refused
        | Kind::Failed
        | Kind::Flushed
        | Kind::End => step.row.says.clone(),
    }
}

const fn ink(kind: Kind) -> &'static str {
    match kind {
        Kind::Refused | Kind::Failed | Kind::End | Kind::Event => RED,
        Kind::Flushed | Kind::PostReceive => PALE,
        Kind::Sent | Kind::Received => BLUE,
        Kind::State | Kind::Post | Kind::Done | Kind::DoneReceive => INK,
    }
}

/// Returns the marks on a side's line.
fn marks(step: &Step, x: u32, y: u32, ink: &str) -> Vec<Shape> {
    let dot = |radius: u32| {
        Shape::Circle(
            Circle::new()
                .set("cx", x)
                .set("cy", y)
                .set("r", radius)
                .set("fill", ink),
        )
    };
    match step.row.kind {
        Kind::State => vec![Shape::Polygon(
            Polygon::new()
                .set(
                    "points",
                    format!("{},{y} {x},{} {},{y} {x},{}", x - 6, y - 6, x + 6, y + 6),
                )
                .set("fill", INK),
        )],
        Kind::Failed | Kind::Refused | Kind::End | Kind::Event => cross(x, y),
        Kind::Received
        | Kind::Post
        | Kind::PostReceive
        | Kind::Done
        | Kind::DoneReceive
        | Kind::Flushed
        | Kind::Sent => vec![dot(3)],
    }
}

fn cross(x: u32, y: u32) -> Vec<Shape> {
    [(x - 5, y - 5, x + 5, y + 5), (x - 5, y + 5, x + 5, y - 5)]
        .map(|(x1, y1, x2, y2)| Shape::Line(line((x1, y1), (x2, y2), RED).set("stroke-width", 2.5)))
        .into()
}

/// Returns the arrows between the sides.
fn arrows(step: &Step, places: &[u32], y: u32) -> Vec<Shape> {
    let (own, other) = match step.side {
        Side::Here => (HERE, PEER),
        Side::Peer => (PEER, HERE),
    };
    let middle = (HERE + PEER) / 2;
    let there = step.partner.and_then(|at| places.get(at)).copied();
    match step.row.kind {
        Kind::Sent => match there {
            Some(there) => arrow((own, y), (other, there), BLUE, &step.row.name, false),
            None => arrow(
                (own, y),
                (towards(own, other), y),
                BLUE,
                &step.row.name,
                true,
            ),
        },
        Kind::Received if there.is_none() => {
            arrow((other, y), (own, y), BLUE, &step.row.name, false)
        }
        Kind::Post => request((own, y), (towards(own, other), y), &step.row.name),
        Kind::Done => arrow((other, y), (own, y), PALE, "acknowledged", false),
        Kind::Refused => arrow((other, y), (own, y), RED, "refused", false),
        Kind::Failed => vec![Shape::Text(text("no answer", middle, y - 5, "middle", RED))],
        Kind::Received
        | Kind::Event
        | Kind::State
        | Kind::PostReceive
        | Kind::DoneReceive
        | Kind::Flushed
        | Kind::End => Vec::new(),
    }
}

/// Returns the horizontal position at which an arrow without a recorded arrival ends, just before the other side.
const fn towards(own: u32, other: u32) -> u32 {
    if own < other { other - 24 } else { other + 24 }
}

/// Returns an arrow with its name in the middle.
fn arrow(from: (u32, u32), to: (u32, u32), ink: &str, name: &str, open: bool) -> Vec<Shape> {
    let at = (u32::midpoint(from.0, to.0), u32::midpoint(from.1, to.1) - 5);
    let mut shapes = shaft(from, to, ink, open);
    shapes.push(Shape::Text(text(name, at.0, at.1, "middle", ink)));
    shapes
}

/// Returns the arrow of a request. Its name is near the side that posted the request, where few messages cross it.
fn request(from: (u32, u32), to: (u32, u32), name: &str) -> Vec<Shape> {
    let (at, anchor) = if from.0 < to.0 {
        (from.0 + 18, "start")
    } else {
        (from.0 - 18, "end")
    };
    let mut shapes = shaft(from, to, INK, true);
    shapes.push(Shape::Text(text(name, at, from.1 - 5, anchor, INK)));
    shapes
}

fn shaft(from: (u32, u32), to: (u32, u32), ink: &str, open: bool) -> Vec<Shape> {
    let shaft = line(from, to, ink)
        .set("stroke-width", 1.5)
        .set("stroke-dasharray", if open { "6 4" } else { "none" });
    let back = if from.0 < to.0 { to.0 - 9 } else { to.0 + 9 };
    let head = Polygon::new()
        .set(
            "points",
            format!("{},{} {back},{} {back},{}", to.0, to.1, to.1 - 4, to.1 + 4),
        )
        .set("fill", ink);
    vec![Shape::Line(shaft), Shape::Polygon(head)]
}

fn line(from: (u32, u32), to: (u32, u32), ink: &str) -> Line {
    Line::new()
        .set("x1", from.0)
        .set("y1", from.1)
        .set("x2", to.0)
        .set("y2", to.1)
        .set("stroke", ink)
}

fn text(words: &str, x: u32, y: u32, anchor: &str, ink: &str) -> Text {
    // Control characters, which XML cannot contain, are left out.
    let words: String = words
        .chars()
        .filter(|letter| !letter.is_control())
        .collect();
    Text::new(words)
        .set("x", x)
        .set("y", y)
        .set("text-anchor", anchor)
        .set("fill", ink)
}

fn bold(words: &str, x: u32, y: u32, anchor: &str) -> Text {
    text(words, x, y, anchor, INK).set("font-weight", "bold")
}

/// Breaks text into lines of at most `letters` characters, at spaces. A longer word is broken anywhere.
fn wrap(words: &str, letters: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words.split_whitespace() {
        let mut word: Vec<char> = word.chars().collect();
        if let Some(last) = lines.last_mut()
            && last.chars().count() + 1 + word.len() <= letters
        {
            last.push(' ');
            last.extend(word);
            continue;
        }
        while word.len() > letters {
            lines.push(word.drain(..letters).collect());
        }
        lines.push(word.into_iter().collect());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_wrap_at_spaces_and_long_ones_anywhere() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("abcdefghij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(wrap("", 4), Vec::<String>::new());
    }
}
