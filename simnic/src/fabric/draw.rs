//! A picture of queue depths and rates over time: one panel for each, with a common time axis.

use svg::Document;
use svg::node::element::{Polyline, Rectangle};

use super::{Outcome, Plan};
use crate::palette::{FONT, GRID, INK, LINES, PALE, line, text, two};

const WIDTH: u32 = 900;
/// Position and size of a panel, in SVG units.
const LEFT: f64 = 80.0;
const PANEL: f64 = 660.0;
const TALL: f64 = 190.0;
const HEAD: f64 = 70.0;
/// Distance between the tops of two panels.
const PITCH: f64 = TALL + 66.0;
/// Number of grid intervals in a panel, on each axis.
const STEPS: u32 = 4;
/// Distance between two entries of a legend.
const LEGEND: f64 = 16.0;
/// Maximum number of entries in a legend.
const MOST: usize = 12;

/// Contents of one panel.
struct Panel<'a> {
    title: &'a str,
    unit: &'a str,
    names: Vec<String>,
    /// Values of each line at all sample times, in `unit`.
    lines: Vec<Vec<f64>>,
    /// Names and values of the horizontal marks.
    marks: Vec<(String, f64)>,
}

/// Draws the outcome of a plan.
#[must_use]
pub fn draw(plan: &Plan, outcome: &Outcome) -> String {
    let height = HEAD + 2.0 * PITCH;
    let ground = Rectangle::new()
        .set("width", WIDTH)
        .set("height", height)
        .set("fill", "#ffffff");
    let page = Document::new()
        .set("viewBox", (0, 0, WIDTH, height))
        .set("width", WIDTH)
        .set("height", height)
        .set("font-family", FONT)
        .set("font-size", 12)
        .add(ground)
        .add(text(&plan.words(), LEFT, 24.0, "start", INK).set("font-size", 14))
        .add(text(&outcome.words(), LEFT, 44.0, "start", PALE));
    let column = |of: &dyn Fn(&super::Sample) -> f64| outcome.samples.iter().map(of).collect();
    let bottlenecks = plan.topology.bottlenecks();
    let queues = Panel {
        title: "waiting at the bottleneck",
        unit: "KiB",
        names: bottlenecks
            .iter()
            .map(|(switch, port)| format!("switch {switch}, port {port}"))
            .collect(),
        lines: (0..bottlenecks.len())
            .map(|at| column(&|sample| sample.depths[at] as f64 / 1024.0))
            .collect(),
        marks: plan.ecn.map_or_else(Vec::new, |red| {
            [("Kmin", red.kmin_bytes), ("Kmax", red.kmax_bytes)]
                .map(|(name, bytes)| (name.to_owned(), bytes as f64 / 1024.0))
                .to_vec()
        }),
    };
    let flows = plan.topology.flows();
    let rates = Panel {
        title: "delivered",
        unit: "Gb/s",
        names: flows
            .iter()
            .map(|(from, to)| format!("{from} to {to}"))
            .collect(),
        lines: (0..flows.len())
            .map(|at| column(&|sample| sample.rates[at] / 1e9))
            .collect(),
        marks: Vec::new(),
    };
    let us: Vec<f64> = outcome
        .samples
        .iter()
        .map(|sample| sample.us as f64)
        .collect();
    let page = panel(page, &queues, &us, HEAD);
    let page = panel(page, &rates, &us, HEAD + PITCH);
    format!("{page}\n")
}

/// Rounds the greatest value up to the end of an axis: 1, 2, 4, 5, 8 or 10 times a power of ten.
fn round(most: f64) -> f64 {
    if most <= 0.0 {
        // An axis of zero length cannot be drawn.
        return 1.0;
    }
    let ten = 10_f64.powf(most.log10().floor());
    let steps = [1.0, 2.0, 4.0, 5.0, 8.0, 10.0];
    steps
        .map(|step| step * ten)
        .into_iter()
        .find(|&end| end >= most)
        .unwrap_or(most)
}

fn panel(mut page: Document, panel: &Panel<'_>, us: &[f64], top: f64) -> Document {
    let ground = top + 16.0 + TALL;
    let marks = panel.marks.iter().map(|(_, value)| *value);
    let most = panel
        .lines
        .iter()
        .flatten()
        .copied()
        .chain(marks)
        .fold(0.0, f64::max);
    let (most, last) = (round(most), us.last().copied().unwrap_or(1.0).max(1.0));
    let across = |us: f64| LEFT + PANEL * us / last;
    let up = |value: f64| ground - TALL * value / most;
    let title = format!("{}, {}", panel.title, panel.unit);
    page = page.add(text(&title, LEFT, top + 6.0, "start", INK).set("font-weight", "bold"));
    for step in 0..=STEPS {
        let part = f64::from(step) / f64::from(STEPS);
        let y = up(most * part);
        page = page.add(line((LEFT, y), (LEFT + PANEL, y), GRID));
        page = page.add(text(&number(most * part), LEFT - 8.0, y + 4.0, "end", PALE));
        let ms = format!("{} ms", number(last * part / 1e3));
        page = page.add(text(
            &ms,
            across(last * part),
            ground + 18.0,
            "middle",
            PALE,
        ));
    }
    for (name, value) in &panel.marks {
        let y = up(*value);
        page = page
            .add(
                line((LEFT, y), (LEFT + PANEL, y), GRID)
                    .set("stroke", INK)
                    .set("stroke-dasharray", "4 4"),
            )
            .add(text(name, LEFT + PANEL - 4.0, y - 4.0, "end", INK).set("font-size", 10));
    }
    for (at, (values, name)) in panel.lines.iter().zip(&panel.names).enumerate() {
        let ink = LINES[at % LINES.len()];
        let points: Vec<String> = us
            .iter()
            .zip(values)
            .map(|(&us, &value)| format!("{},{}", two(across(us)), two(up(value))))
            .collect();
        page = page.add(
            Polyline::new()
                .set("points", points.join(" "))
                .set("fill", "none")
                .set("stroke", ink)
                .set("stroke-width", 1.6),
        );
        if at < MOST {
            let y = top + 26.0 + LEGEND * at as f64;
            let (x, words) = (LEFT + PANEL + 14.0, LEFT + PANEL + 34.0);
            page = page
                .add(
                    line((x, y - 4.0), (x + 14.0, y - 4.0), GRID)
                        .set("stroke", ink)
                        .set("stroke-width", 3),
                )
                .add(text(name, words, y, "start", INK));
        }
    }
    page
}

/// Formats a number without trailing zeroes.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_ends_at_a_round_number_that_nothing_exceeds() {
        let ends = [9.4, 10.0, 41.0, 257.0, 0.0].map(round);
        assert_eq!(ends, [10.0, 10.0, 50.0, 400.0, 1.0]);
        assert_eq!(["0.25", "0.5", "10"], [0.25, 0.5, 10.0].map(number));
    }
}
