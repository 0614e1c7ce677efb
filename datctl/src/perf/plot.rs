//! Histograms as a picture: a panel for each row, time on a logarithmic axis, and marks where percentiles are.

use svg::Document;
use svg::node::element::Rectangle;

use super::Figures;
use super::latency::{Latency, tallest};
use simnic::palette::{BLUE, FONT, INK, PALE, RED, line, text, two};

const WIDTH: u32 = 900;
/// Where a panel begins, and its size.
const LEFT: u32 = 60;
const PANEL: u32 = 780;
const BARS: u32 = 130;
const STEPS: u32 = 120;
const HEAD: u32 = 64;
/// From one panel to the next.
const PITCH: u32 = BARS + 74;

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

fn panel(mut page: Document, name: &str, latency: &Latency, top: f64) -> Document {
    let steps = latency.steps(STEPS);
    let most = tallest(&steps);
    let ground = top + 24.0 + f64::from(BARS);
    let (low, high) = (
        latency.min_us * 1e3,
        (latency.max_us * 1e3).max(latency.min_us * 1e3 + 1.0),
    );
    let across = |us: f64| {
        let part = ((us * 1e3) / low).ln() / (high / low).ln();
        f64::from(LEFT) + f64::from(PANEL) * part.clamp(0.0, 1.0)
    };
    page = page.add(text(name, LEFT.into(), top + 8.0, "start", INK).set("font-weight", "bold"));
    let said = format!("{} operations, {}", latency.operations, latency.measures());
    page = page.add(text(&said, (LEFT + PANEL).into(), top + 8.0, "end", PALE));
    let width = f64::from(PANEL) / f64::from(STEPS);
    for (at, (_, count)) in (0_u32..).zip(&steps) {
        if *count == 0 {
            continue;
        }
        // CAST: a picture.
        let height = (f64::from(BARS) * (*count as f64) / (most as f64)).max(1.0);
        page = page.add(
            Rectangle::new()
                .set("x", two(f64::from(LEFT) + width * f64::from(at)))
                .set("y", two(ground - height))
                .set("width", two(width * 0.9))
                .set("height", two(height))
                .set("fill", BLUE),
        );
    }
    page = page.add(line(
        (LEFT.into(), ground),
        ((LEFT + PANEL).into(), ground),
        PALE,
    ));
    page = page.add(text(
        &most.to_string(),
        f64::from(LEFT) - 6.0,
        top + 34.0,
        "end",
        PALE,
    ));
    let ends = [
        ("start", LEFT, latency.min_us),
        ("end", LEFT + PANEL, latency.max_us),
    ];
    for (anchor, x, us) in ends {
        page = page.add(text(
            &format!("{us:.2} us"),
            x.into(),
            ground + 14.0,
            anchor,
            INK,
        ));
    }
    // Marks that would lie on each other go to lines of their own.
    let marks = [
        ("50", latency.median_us),
        ("99", latency.p99_us),
        ("99.99", latency.p99_99_us),
    ];
    for (down, (percent, us)) in (0_u32..).zip(marks) {
        let x = across(us);
        let below = ground + 14.0 + 14.0 * f64::from(down);
        page =
            page.add(line((x, top + 20.0), (x, below - 10.0), RED).set("stroke-dasharray", "3 3"));
        let (anchor, beside) = if x > f64::from(WIDTH) / 2.0 {
            ("end", -4.0)
        } else {
            ("start", 4.0)
        };
        let label = format!("{percent} %: {us:.2} us");
        let label = text(
            &label,
            x + beside,
            top + 30.0 + 14.0 * f64::from(down),
            anchor,
            RED,
        );
        page = page.add(label.set("font-size", 11));
    }
    page
}
