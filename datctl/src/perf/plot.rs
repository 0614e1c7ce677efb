//! Histograms as a picture: a panel for each row, time on a logarithmic axis, and marks at percentiles.

use svg::Document;
use svg::node::element::Rectangle;

use super::Figures;
use super::latency::{Latency, max_count};
use crate::report::counted;
use simnic::palette::{BLUE, FONT, GRID, INK, PALE, RED, line, text, two};

const WIDTH: u32 = 900;
/// Position and size of a panel in pixels, and its number of bars (`STEPS`). The page is wider, so that the label of a
/// mark at the panel's end fits.
const LEFT: u32 = 60;
const PANEL: u32 = 700;
const BARS: u32 = 130;
const STEPS: u32 = 120;
const HEAD: u32 = 64;
/// Height between the panel's title and the bars, in pixels: a line for the label of each mark.
const LABELS: f64 = 52.0;
/// Height below the bars, in pixels: for the ticks and the axis title.
const AXIS: u32 = 44;
/// Distance from one panel to the next, in pixels.
const PITCH: u32 = 84 + BARS + AXIS;
/// Smallest distance between the labels of two ticks, in pixels.
const APART: f64 = 48.0;

/// Draws all latencies.
pub(super) fn draw(figures: &Figures) -> String {
    let panels = u32::try_from(figures.latencies().count()).unwrap_or(u32::MAX);
    let height = HEAD + panels.saturating_mul(PITCH) + 24;
    let ground = Rectangle::new()
        .set("width", WIDTH)
        .set("height", height)
        .set("fill", "#ffffff");
    let title = format!("datctl perf {} to {}", figures.adapter, figures.peer);
    let mut page = Document::new()
        .set("viewBox", (0, 0, WIDTH, height))
        .set("width", WIDTH)
        .set("height", height)
        .set("font-family", FONT)
        .set("font-size", 12)
        .add(ground)
        .add(text(&title, LEFT.into(), 24.0, "start", INK).set("font-size", 15));
    if let Some(said) = figures.disclaimer() {
        page = page.add(text(said, LEFT.into(), 44.0, "start", RED));
    }
    let mut top = f64::from(HEAD);
    for (name, _, latency) in figures.latencies() {
        page = panel(page, &name, latency, top);
        top += f64::from(PITCH);
    }
    format!("{page}\n")
}

/// Returns the ticks of a logarithmic axis, in microseconds: 1, 2 and 5 times each power of ten, or on a short axis the
/// multiples of one step.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let first = low.log10().floor();
    let is_within = |us: &f64| (low..=high).contains(us);
    let mut powers = Vec::new();
    let mut power = first;
    while power <= high.log10() {
        powers.push(10_f64.powf(power));
        power += 1.0;
    }
    let round: Vec<f64> = powers
        .iter()
        .flat_map(|power| [1.0, 2.0, 5.0].map(|part| part * power))
        .filter(is_within)
        .collect();
    if round.len() > 2 {
        return round;
    }
    let rough = (high - low) / 6.0;
    let power = 10_f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|part| part * power);
    let step = steps.into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let mut ticks = Vec::new();
    let mut number = (low / step).ceil();
    while step > 0.0 && number * step <= high && ticks.len() < 16 {
        ticks.push(number * step);
        number += 1.0;
    }
    ticks.retain(is_within);
    ticks
}

/// Formats a time in microseconds with the unit that fits, without trailing zeros.
fn tick_label(us: f64) -> String {
    let units = [(1e6, "s"), (1e3, "ms"), (1.0, "us"), (1e-3, "ns")];
    let unit = units.into_iter().find(|(size, _)| us >= size * 0.9999);
    let (size, name) = unit.unwrap_or((1e-3, "ns"));
    let number = format!("{:.2}", us / size);
    let number = number.trim_end_matches('0').trim_end_matches('.');
    format!("{number} {name}")
}

fn panel(mut page: Document, name: &str, latency: &Latency, top: f64) -> Document {
    let (left, right) = (f64::from(LEFT), f64::from(LEFT + PANEL));
    let steps = latency.steps(STEPS);
    let most = max_count(&steps);
    let ground = top + LABELS + 12.0 + f64::from(BARS);
    // The axis begins at a nanosecond or later, because no time is shorter.
    let low = latency.min_us.max(1e-3);
    let high = latency.max_us.max(low + 1e-3);
    let across = |us: f64| {
        let part = (us / low).ln() / (high / low).ln();
        left + f64::from(PANEL) * part.clamp(0.0, 1.0)
    };
    page = page.add(text(name, left, top + 8.0, "start", INK).set("font-weight", "bold"));
    let said = format!(
        "{}, {}, {} to {}",
        counted(
            usize::try_from(latency.operations).unwrap_or(usize::MAX),
            "operation"
        ),
        latency.measures(),
        tick_label(latency.min_us),
        tick_label(latency.max_us)
    );
    page = page.add(text(&said, right, top + 8.0, "end", PALE));
    page = axis(page, (low, high), across, ground);
    let width = f64::from(PANEL) / f64::from(STEPS);
    for (at, (_, count)) in (0_u32..).zip(&steps) {
        if *count == 0 {
            continue;
        }
        // CAST: a picture needs no exact values.
        let height = (f64::from(BARS) * (*count as f64) / (most as f64)).max(1.0);
        page = page.add(
            Rectangle::new()
                .set("x", two(left + width * f64::from(at)))
                .set("y", two(ground - height))
                .set("width", two(width * 0.9))
                .set("height", two(height))
                .set("fill", BLUE),
        );
    }
    page = page.add(line((left, ground), (right, ground), PALE));
    let most = most.to_string();
    page = page.add(text(
        &most,
        left - 6.0,
        ground - f64::from(BARS) + 4.0,
        "end",
        PALE,
    ));
    page = page.add(text("0", left - 6.0, ground + 4.0, "end", PALE));
    // The label of each mark is above the bars, to the right of the mark's line, and below the labels of earlier marks.
    // The lines of other marks lie to the left of the label or begin below it, so no line crosses a label.
    let marks = [
        ("50", latency.median_us),
        ("99", latency.p99_us),
        ("99.99", latency.p99_99_us),
    ];
    for (down, (percent, us)) in (0_u32..).zip(marks) {
        let (x, y) = (across(us), top + 26.0 + 14.0 * f64::from(down));
        page = page.add(line((x, y - 8.0), (x, ground), RED).set("stroke-dasharray", "3 3"));
        let label = format!("{percent} %: {}", tick_label(us));
        page = page.add(text(&label, x + 4.0, y, "start", RED).set("font-size", 11));
    }
    page
}

/// Draws the ticks, those of their labels that fit, and the axis title.
fn axis(
    mut page: Document,
    (low, high): (f64, f64),
    across: impl Fn(f64) -> f64,
    ground: f64,
) -> Document {
    let mut free = f64::MIN;
    for us in ticks(low, high) {
        let x = across(us);
        page = page.add(line((x, ground - f64::from(BARS)), (x, ground), GRID));
        page = page.add(line((x, ground), (x, ground + 4.0), PALE));
        if x >= free {
            page = page.add(text(&tick_label(us), x, ground + 17.0, "middle", INK));
            free = x + APART;
        }
    }
    let what = text(
        "time, on a logarithmic axis",
        f64::from(LEFT + PANEL),
        ground + 32.0,
        "end",
        PALE,
    );
    page.add(what.set("font-size", 11))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_ticks_however_short_it_is() {
        assert_eq!(ticks(0.9, 25.0), [1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(ticks(1.1, 1.9).len(), 4);
        for (low, high) in [(0.001, 0.002), (3.0, 3.001), (2.0, 9.0), (1e3, 3.6e9)] {
            let ticks = ticks(low, high);
            assert!(ticks.len() > 1, "{low} to {high}: {ticks:?}");
            assert!(
                ticks.iter().all(|us| (low..=high).contains(us)),
                "{ticks:?}"
            );
        }
    }

    #[test]
    fn a_label_has_the_unit_that_fits() {
        for (us, wanted) in [
            (0.005, "5 ns"),
            (1.0, "1 us"),
            (1.25, "1.25 us"),
            (999.999, "1 ms"),
            (1e3, "1 ms"),
            (5e6, "5 s"),
        ] {
            assert_eq!(tick_label(us), wanted);
        }
    }
}
