//! The plots. Each is drawn for a screen and for a phone.

mod bars;
mod curves;
mod forest;
mod latency;
mod timeline;

pub(super) use bars::bars;
pub(super) use curves::curves;
pub(super) use forest::forest;
pub(super) use latency::{histogram, percentiles};
pub(super) use timeline::timeline;

use super::format::escape;
use super::svg::{SERIES, Svg, Width};
use crate::model::Results;

/// A plot in both widths, with its title and what has to be said to it.
pub(super) struct Figure {
    pub title: String,
    pub caption: String,
    /// Names of the series, if there are several targets and the plot does not name them itself.
    pub legend: Vec<(usize, String)>,
    pub wide: String,
    pub narrow: String,
}

impl Figure {
    /// Draws it twice.
    fn new(title: &str, mut draw: impl FnMut(Width) -> String) -> Self {
        let (wide, narrow) = (draw(Width::Wide), draw(Width::Narrow));
        let (title, caption, legend) = (title.to_owned(), String::new(), Vec::new());
        Self { title, caption, legend, wide, narrow }
    }

    /// As HTML.
    pub fn html(&self) -> String {
        let mut told = format!("<figure class=\"card\"><h3>{}</h3>", escape(&self.title));
        if !self.legend.is_empty() {
            told += "<ul class=\"legend\">";
            for (series, name) in &self.legend {
                told += &format!("<li>{}{}</li>", key(*series), escape(name));
            }
            told += "</ul>";
        }
        told += &self.wide;
        told += &self.narrow;
        if !self.caption.is_empty() {
            told += &format!("<figcaption>{}</figcaption>", escape(&self.caption));
        }
        told + "</figure>"
    }
}

/// The mark of a series, for a legend or beside a name.
pub(super) fn key(series: usize) -> String {
    let mut key = Svg::new(26.0, 12.0);
    key.line((0.0, 6.0), (26.0, 6.0), &curve(series));
    key.dot((13.0, 6.0), series, "");
    key.key()
}

/// The class of a series' line: colour and dashes.
fn curve(series: usize) -> String {
    format!("curve s{0} d{0}", series % SERIES)
}

/// Whose lines are whose; a benchmark of one target needs no legend.
fn legend<'a>(
    results: &Results,
    lines: impl Iterator<Item = (usize, &'a str)>,
) -> Vec<(usize, String)> {
    if results.targets.len() < 2 {
        return Vec::new();
    }
    lines.map(|(series, name)| (series, name.to_owned())).collect()
}

/// The class of an SVG in this width.
fn class(width: Width) -> &'static str {
    match width {
        Width::Wide => "plot wide",
        Width::Narrow => "plot narrow",
    }
}
