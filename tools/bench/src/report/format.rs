//! Figures as people read them, and text that cannot break out of where it stands.

use lunet_iscsi::printable::printable;

/// Thousands apart: `12,345`.
fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits.as_str()), |rest| ("-", rest));
    let mut told = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            told.push(',');
        }
        told.push(digit);
    }
    format!("{sign}{told}")
}

/// Three digits that count.
pub fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        small if small < 0.9995 => format!("{value:.3}"),
        small if small < 9.995 => format!("{value:.2}"),
        small if small < 99.95 => format!("{value:.1}"),
        _ => thousands(value),
    }
}

/// Operations per second: `191k`.
pub fn iops(value: f64) -> String {
    match value {
        many if many >= 999_500.0 => format!("{:.2}M", value / 1e6),
        many if many >= 99_950.0 => format!("{:.0}k", value / 1e3),
        many if many >= 9_995.0 => format!("{:.1}k", value / 1e3),
        _ => number(value),
    }
}

/// A time, from microseconds.
pub fn time(us: f64) -> String {
    let (value, unit) = match us {
        us if us >= 999_500.0 => (us / 1e6, "s"),
        us if us >= 999.5 => (us / 1e3, "ms"),
        us => (us, "us"),
    };
    format!("{} {unit}", trimmed(value))
}

/// Three digits, without zeros that say nothing.
fn trimmed(value: f64) -> String {
    let text = match value {
        small if small < 9.995 => format!("{value:.2}"),
        small if small < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// A mark of an axis: no more digits than it needs.
pub(super) fn mark(value: f64) -> String {
    match value {
        many if many >= 1e6 => format!("{}M", trimmed(value / 1e6)),
        many if many >= 1e4 => format!("{}k", trimmed(value / 1e3)),
        many if many >= 1e3 => thousands(value),
        few => trimmed(few),
    }
}

/// A part of a whole.
pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// For a terminal: names come from targets, and may hold anything.
pub(super) fn plain(text: &str) -> String {
    printable(text).to_string()
}

/// For HTML and SVG, in text and in quoted attributes.
pub(super) fn escape(text: &str) -> String {
    let mut told = String::with_capacity(text.len());
    for c in plain(text).chars() {
        match c {
            '&' => told.push_str("&amp;"),
            '<' => told.push_str("&lt;"),
            '>' => told.push_str("&gt;"),
            '"' => told.push_str("&quot;"),
            '\'' => told.push_str("&#39;"),
            c => told.push(c),
        }
    }
    // `50 %` stays on one line.
    told.replace(" %", "\u{a0}%")
}

/// No longer than so many characters.
pub(super) fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let head: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{}\u{2026}", head.trim_end())
}
