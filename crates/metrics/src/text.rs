//! The two text formats that Prometheus reads.
//!
//! They differ in how the metadata of counters and of information is named, and in the end mark.

use std::fmt::Write;

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' own, 0.0.4.
    Prometheus,
}

impl Format {
    /// Its media type, for `Content-Type`.
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// The one to answer with to a request that has this `Accept`.
    pub fn accepted(accept: &str) -> Self {
        match accept.contains("application/openmetrics-text") {
            true => Self::OpenMetrics,
            false => Self::Prometheus,
        }
    }
}

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It only grows.
    Counter,
    /// It grows and falls.
    Gauge,
    /// How many were no larger than each of some bounds.
    Histogram,
    /// Words, with the value 1.
    Info,
}

/// A label with its value.
pub(crate) type Label<'a> = (&'a str, &'a str);

/// A text of metrics in the making. The samples of a metric follow its head.
pub(crate) struct Text {
    out: String,
    format: Format,
}

impl Text {
    pub fn new(format: Format) -> Self {
        Self { out: String::with_capacity(16 << 10), format }
    }

    /// Begins a metric. Its name is without the suffix that its kind has (`_total`, `_info`).
    pub fn metric<'a>(&'a mut self, name: &'a str, kind: Kind, help: &str) -> Metric<'a> {
        let plain = self.format == Format::Prometheus;
        let (suffix, word) = match kind {
            Kind::Counter => ("_total", "counter"),
            Kind::Gauge => ("", "gauge"),
            Kind::Histogram => ("", "histogram"),
            Kind::Info => ("_info", if plain { "gauge" } else { "info" }),
        };
        let head = if plain { suffix } else { "" };
        // Help texts are constants, without anything to be escaped.
        line(&mut self.out, format_args!("# HELP {name}{head} {help}"));
        line(&mut self.out, format_args!("# TYPE {name}{head} {word}"));
        Metric { text: self, name, suffix }
    }

    /// The whole text.
    pub fn end(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }
}

/// A metric whose samples are being written.
pub(crate) struct Metric<'a> {
    text: &'a mut Text,
    name: &'a str,
    suffix: &'a str,
}

impl Metric<'_> {
    /// A sample that is counted.
    pub fn count(&mut self, labels: &[Label<'_>], value: u64) -> &mut Self {
        self.sample(self.suffix, labels, format_args!("{value}"))
    }

    /// A sample that is measured.
    pub fn value(&mut self, labels: &[Label<'_>], value: f64) -> &mut Self {
        self.sample(self.suffix, labels, format_args!("{value}"))
    }

    /// A histogram: how many were no larger than each bound, and the sum and the number of all.
    pub fn buckets(
        &mut self,
        labels: &[Label<'_>],
        buckets: &[(f64, u64)],
        (sum, count): (f64, u64),
    ) -> &mut Self {
        for (bound, below) in buckets {
            let bound = bound.to_string();
            self.sample(
                "_bucket",
                &[labels, &[("le", bound.as_str())]].concat(),
                format_args!("{below}"),
            );
        }
        self.sample("_bucket", &[labels, &[("le", "+Inf")]].concat(), format_args!("{count}"));
        self.sample("_sum", labels, format_args!("{sum}"));
        self.sample("_count", labels, format_args!("{count}"))
    }

    fn sample(
        &mut self,
        suffix: &str,
        labels: &[Label<'_>],
        value: std::fmt::Arguments<'_>,
    ) -> &mut Self {
        let out = &mut self.text.out;
        out.push_str(self.name);
        out.push_str(suffix);
        for (at, (name, value)) in labels.iter().enumerate() {
            out.push_str(if at == 0 { "{" } else { "," });
            out.push_str(name);
            out.push_str("=\"");
            escape(out, value);
            out.push('"');
        }
        if !labels.is_empty() {
            out.push('}');
        }
        line(out, format_args!(" {value}"));
        self
    }
}

/// A label's value: names come from configurations and from the network.
fn escape(out: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

fn line(out: &mut String, words: std::fmt::Arguments<'_>) {
    // A string takes everything.
    let _ = writeln!(out, "{words}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_name_a_counter_as_they_must() {
        let text = |format| {
            let mut text = Text::new(format);
            text.metric("a_bytes", Kind::Counter, "Bytes.").count(&[("v", "x\"\\\n")], 7);
            text.metric("b", Kind::Info, "Words.").count(&[], 1);
            text.metric("c_seconds", Kind::Histogram, "Time.").buckets(
                &[("v", "x")],
                &[(0.5, 2)],
                (1.25, 3),
            );
            text.end()
        };
        let samples = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        };
        let (open, plain) = (text(Format::OpenMetrics), text(Format::Prometheus));
        assert_eq!(samples(&open), samples(&plain));
        assert_eq!(
            samples(&open),
            [
                "a_bytes_total{v=\"x\\\"\\\\\\n\"} 7",
                "b_info 1",
                "c_seconds_bucket{v=\"x\",le=\"0.5\"} 2",
                "c_seconds_bucket{v=\"x\",le=\"+Inf\"} 3",
                "c_seconds_sum{v=\"x\"} 1.25",
                "c_seconds_count{v=\"x\"} 3",
            ]
        );
        assert!(open.contains("# TYPE a_bytes counter\n") && open.contains("# TYPE b info\n"));
        assert!(open.ends_with("# EOF\n"));
        assert!(plain.contains("# TYPE a_bytes_total counter\n"));
        assert!(plain.contains("# TYPE b_info gauge\n") && !plain.contains("EOF"));
        assert_eq!(
            Format::accepted("application/openmetrics-text;version=1.0.0,*/*"),
            Format::OpenMetrics
        );
        assert_eq!(Format::accepted("*/*"), Format::Prometheus);
    }
}
