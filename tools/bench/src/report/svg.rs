//! Drawing: lines, text and axes, in pixels from the top left.

use std::fmt::Write;

use super::format::escape;

/// So many series differ in colour, form and dashes; the next one looks like the first again.
pub(super) const SERIES: usize = 8;

/// How wide a plot is drawn: a page holds each one twice, and shows what fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// For a screen.
    Wide,
    /// For a phone.
    Narrow,
}

impl Width {
    pub fn px(self) -> f64 {
        match self {
            Self::Wide => 560.0,
            Self::Narrow => 340.0,
        }
    }

    /// About so many characters of small text fit in this part of the width.
    pub fn chars(self, px: f64) -> usize {
        (px / 6.3) as usize
    }
}

/// A drawing.
#[derive(Debug)]
pub(super) struct Svg {
    width: f64,
    height: f64,
    body: String,
    /// What it shows, in words.
    told: Vec<String>,
}

impl Svg {
    pub fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new(), told: Vec::new() }
    }

    pub fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = escape(text);
        let _ =
            write!(self.body, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{text}</text>");
    }

    /// A mark of the horizontal axis: in the middle below its place, but never over the edge.
    pub fn mark(&mut self, x: f64, y: f64, text: &str) {
        let half = text.chars().count() as f64 * 3.5;
        match x + half > self.width {
            true => self.text(self.width - 1.0, y, "d e", text),
            false if x < half => self.text(1.0, y, "d", text),
            false => self.text(x, y, "d m", text),
        }
    }

    pub fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        let ends = format!("x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"");
        let _ = write!(self.body, "<line {ends} class=\"{class}\"/>");
    }

    pub fn rect(&mut self, (x, y): (f64, f64), (w, h): (f64, f64), class: &str) {
        let place =
            format!("x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{h:.1}\"", w.max(0.0));
        let _ = write!(self.body, "<rect {place} class=\"{class}\" rx=\"2\"/>");
    }

    /// A line through points; closed and filled if its class says so.
    pub fn path(&mut self, points: &[(f64, f64)], close: bool, class: &str) {
        let mut way = String::new();
        for (at, (x, y)) in points.iter().enumerate() {
            let _ = write!(way, "{}{x:.1} {y:.1}", if at == 0 { 'M' } else { 'L' });
        }
        if close {
            way.push('Z');
        }
        let _ = write!(self.body, "<path d=\"{way}\" class=\"{class}\"/>");
    }

    /// Steps from edge to edge, from the bottom and back to it: `(edge, height until the next edge)`. A step that no eye could see
    /// is left out.
    pub fn steps(&mut self, steps: &[(f64, f64)], (end, bottom): (f64, f64), class: &str) {
        let Some((first, _)) = steps.first() else { return };
        let mut way = format!("M{first:.1} {bottom:.1}");
        let mut height = bottom;
        for (x, y) in steps {
            if (y - height).abs() >= 0.1 {
                let _ = write!(way, "H{x:.1}V{y:.1}");
                height = *y;
            }
        }
        let _ = write!(way, "H{end:.1}V{bottom:.1}");
        let _ = write!(self.body, "<path d=\"{way}\" class=\"{class}\"/>");
    }

    /// A mark of the series: each has a form of its own, for those who cannot tell the colours apart.
    pub fn dot(&mut self, (x, y): (f64, f64), series: usize, title: &str) {
        let r = 3.6;
        let cross = r * 0.4;
        let points: &[(f64, f64)] = match series % SERIES {
            0 => &[],
            1 => &[(-r, -r), (r, -r), (r, r), (-r, r)],
            2 => &[(0.0, -r * 1.3), (r * 1.2, r), (-r * 1.2, r)],
            3 => &[(0.0, -r * 1.4), (r * 1.4, 0.0), (0.0, r * 1.4), (-r * 1.4, 0.0)],
            4 => &[(0.0, r * 1.3), (r * 1.2, -r), (-r * 1.2, -r)],
            // An hourglass, and a flat bar.
            5 => &[(-r, -r * 1.2), (r, -r * 1.2), (-r, r * 1.2), (r, r * 1.2)],
            6 => &[(-r * 1.5, -cross), (r * 1.5, -cross), (r * 1.5, cross), (-r * 1.5, cross)],
            _ => &[
                (-cross, -r * 1.3),
                (cross, -r * 1.3),
                (cross, -cross),
                (r * 1.3, -cross),
                (r * 1.3, cross),
                (cross, cross),
                (cross, r * 1.3),
                (-cross, r * 1.3),
                (-cross, cross),
                (-r * 1.3, cross),
                (-r * 1.3, -cross),
                (-cross, -cross),
            ],
        };
        let class = format!("dot s{}", series % SERIES);
        let title = match title {
            "" => String::new(),
            title => format!("<title>{}</title>", escape(title)),
        };
        let _ = if points.is_empty() {
            let place = format!("cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r}\"");
            write!(self.body, "<circle {place} class=\"{class}\">{title}</circle>")
        } else {
            let all = points.iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy));
            let all = all.collect::<Vec<_>>().join(" ");
            write!(self.body, "<polygon points=\"{all}\" class=\"{class}\">{title}</polygon>")
        };
    }

    /// Adds to what it shows, for those who cannot see it.
    pub fn tell(&mut self, what: &str) {
        self.told.push(what.to_owned());
    }

    /// The drawing, with words for those who cannot see it.
    pub fn finish(self, class: &str, label: &str) -> String {
        let (w, h, label) = (self.width, self.height, escape(label));
        let told = match self.told.is_empty() {
            true => String::new(),
            false => format!("<desc>{}.</desc>", escape(&self.told.join("; "))),
        };
        format!(
            "<svg class=\"{class}\" viewBox=\"0 0 {w:.0} {h:.0}\" role=\"img\" aria-label=\"{label}\">{told}{}</svg>",
            self.body
        )
    }

    /// The drawing as a mark beside a name, which says all.
    pub fn key(self) -> String {
        let (w, h) = (self.width, self.height);
        format!(
            "<svg class=\"key\" viewBox=\"0 0 {w:.0} {h:.0}\" aria-hidden=\"true\">{}</svg>",
            self.body
        )
    }
}

/// Marks of an axis from 0 to at least `most`, about `count` of them: 1, 2 or 5 times a power of ten apart.
pub(super) fn marks(most: f64, count: usize) -> Vec<f64> {
    let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
    let rough = most / count.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|of| of * power);
    let step = step.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(10.0 * power);
    (0..).map(|at| f64::from(at) * step).take_while(|at| *at < most + step * 0.999).collect()
}

/// An axis of powers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Log {
    pub low: f64,
    pub high: f64,
}

impl Log {
    /// From the power of ten below the least to the one above the greatest; at least one power apart.
    pub fn around(values: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = (f64::INFINITY, 0.0f64);
        for value in values.filter(|value| *value > 0.0 && value.is_finite()) {
            (low, high) = (low.min(value), high.max(value));
        }
        if high == 0.0 {
            return Self { low: 1.0, high: 10.0 };
        }
        // Half a power is enough room: 1 and 3 are marks.
        let below = |value: f64| {
            let power = 10f64.powf(value.log10().floor());
            if value >= 3.0 * power { 3.0 * power } else { power }
        };
        let above = |value: f64| {
            let power = 10f64.powf(value.log10().floor());
            if value <= 3.0 * power { 3.0 * power } else { 10.0 * power }
        };
        let (low, high) = (below(low), above(high));
        Self { low, high: high.max(low * 3.0) }
    }

    /// Where a value lies, 0 to 1.
    pub fn part(self, value: f64) -> f64 {
        ((value.max(1e-9) / self.low).ln() / (self.high / self.low).ln()).clamp(0.0, 1.0)
    }

    /// 1, 3, 10, 30 and so on; only whole powers if there were too many.
    pub fn marks(self, most: usize) -> Vec<f64> {
        let mut all = Vec::new();
        let mut power = 10f64.powf((self.low * 1.001).log10().floor());
        while power <= self.high * 1.001 {
            all.extend([power, 3.0 * power]);
            power *= 10.0;
        }
        let inside = |at: &f64| *at >= self.low * 0.999 && *at <= self.high * 1.001;
        all.retain(inside);
        if all.len() > most {
            let whole = |at: &f64| (at.log10() - at.log10().round()).abs() < 1e-6;
            all.retain(whole);
        }
        all
    }
}
