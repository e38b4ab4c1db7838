//! Sizes and durations, as people write and read them.

use std::fmt::Write as _;
use std::time::Duration;

use lunet_block::Size;

/// Units of size and their bytes. One letter alone is binary, as in qemu-img and truncate.
const SIZES: &[(&str, u64)] = &[
    ("B", 1),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
    ("P", 1 << 50),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("PB", 1_000_000_000_000_000),
];

/// Units of time and their nanoseconds.
const TIMES: &[(&str, u64)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A text that is no size, or no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what is wrong")]
pub enum Unreadable {
    #[error(
        "\"{0}\" is not a size{meant}: write a number and one of B, KiB, MiB, GiB, TiB, PiB (powers of 1024) or KB, MB, GB, TB, PB \
         (powers of 1000)",
        meant = meant_size(.0)
    )]
    SizeUnit(String),
    #[error("\"{0}\" is not a size: sizes are positive")]
    SizeNegative(String),
    #[error("\"{0}\" is not a size: it must start with a number")]
    SizeNumber(String),
    #[error("\"{0}\" is not a whole number of bytes")]
    SizeFraction(String),
    #[error("\"{0}\" is larger than any volume can be")]
    SizeTooLarge(String),
    #[error("\"{0}\" is not a duration: write a number and one of us, ms, s, min, h")]
    TimeUnit(String),
    #[error("\"{0}\" is not a duration: it must start with a number")]
    TimeNumber(String),
    #[error("\"{0}\" is finer than a nanosecond")]
    TimeFraction(String),
    #[error("\"{0}\" is too long")]
    TimeTooLong(String),
    #[error("\"{0}\" is finer than a {unit}: write whole {unit}s, as in \"12{short}\"", unit = .1.name(), short = .1.short())]
    TimeTooFine(String, Grain),
}

/// The unit that a duration is kept in: what is finer is refused, and not rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Grain {
    Millisecond,
    Microsecond,
}

impl Grain {
    fn name(self) -> &'static str {
        match self {
            Self::Millisecond => "millisecond",
            Self::Microsecond => "microsecond",
        }
    }

    fn short(self) -> &'static str {
        match self {
            Self::Millisecond => "ms",
            Self::Microsecond => "us",
        }
    }

    fn nanoseconds(self) -> u64 {
        match self {
            Self::Millisecond => 1_000_000,
            Self::Microsecond => 1_000,
        }
    }
}

/// For those who collect sentences.
impl From<Unreadable> for String {
    fn from(error: Unreadable) -> Self {
        error.to_string()
    }
}

/// Reads a size in bytes: `4096`, `8GiB`, `1.5 TiB`, `500GB`.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_size(text: &str) -> Result<u64, Unreadable> {
    let (number, unit) = split(text);
    if text.trim().starts_with('-') {
        return Err(Unreadable::SizeNegative(text.to_owned()));
    }
    let factor = if unit.is_empty() { Some(1) } else { lookup(SIZES, unit) };
    let Some(factor) = factor else {
        return Err(Unreadable::SizeUnit(text.to_owned()));
    };
    scaled(number, factor).map_err(|why| match why {
        Scale::NotANumber => Unreadable::SizeNumber(text.to_owned()),
        Scale::Fraction => Unreadable::SizeFraction(text.to_owned()),
        Scale::TooLarge => Unreadable::SizeTooLarge(text.to_owned()),
    })
}

/// Reads a duration: `15s`, `50us`, `1.5ms`, `0s`. A unit is needed.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_duration(text: &str) -> Result<Duration, Unreadable> {
    nanoseconds(text).map(Duration::from_nanos)
}

/// Reads a duration as a number of the unit that it is kept in.
///
/// # Errors
/// What is wrong with the text, or it is no whole number of them.
pub fn parse_whole(text: &str, grain: Grain) -> Result<u64, Unreadable> {
    let (nanoseconds, unit) = (nanoseconds(text)?, grain.nanoseconds());
    match nanoseconds % unit {
        0 => Ok(nanoseconds / unit),
        _ => Err(Unreadable::TimeTooFine(text.to_owned(), grain)),
    }
}

fn nanoseconds(text: &str) -> Result<u64, Unreadable> {
    let (number, unit) = split(text);
    let Some(factor) = lookup(TIMES, unit) else {
        return Err(Unreadable::TimeUnit(text.to_owned()));
    };
    scaled(number, factor).map_err(|why| match why {
        Scale::NotANumber => Unreadable::TimeNumber(text.to_owned()),
        Scale::Fraction => Unreadable::TimeFraction(text.to_owned()),
        Scale::TooLarge => Unreadable::TimeTooLong(text.to_owned()),
    })
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

/// What a size with a unit in other letters may mean, as a question.
fn meant_size(text: &str) -> String {
    let (number, unit) = split(text);
    let near = SIZES.iter().find(|(name, _)| !number.is_empty() && name.eq_ignore_ascii_case(unit));
    near.map_or_else(String::new, |(name, _)| format!(" (did you mean {number}{name}?)"))
}

fn lookup(units: &[(&str, u64)], unit: &str) -> Option<u64> {
    units.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor)
}

enum Scale {
    NotANumber,
    Fraction,
    TooLarge,
}

/// `number`, with at most nine decimals, times `factor`: exact or an error.
fn scaled(number: &str, factor: u64) -> Result<u64, Scale> {
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(decimals) || decimals.len() > 9 {
        return Err(Scale::NotANumber);
    }
    let whole: u64 = whole.parse().map_err(|_| Scale::TooLarge)?;
    let divisor = 10u128.pow(decimals.len() as u32);
    let decimals: u64 = decimals.parse().map_err(|_| Scale::TooLarge)?;
    let scaled = (u128::from(whole) * divisor + u128::from(decimals)) * u128::from(factor);
    if scaled % divisor != 0 {
        return Err(Scale::Fraction);
    }
    u64::try_from(scaled / divisor).map_err(|_| Scale::TooLarge)
}

/// Writes a number of bytes for a column of a table, rounded: `8 GiB`, `1.5 TiB`, `512 B`. Sentences have
/// [`exact_size`].
pub fn size(bytes: u64) -> String {
    format!("{:#}", Size(bytes))
}

/// Writes a number of bytes for a sentence: what rounding would hide is said behind it.
pub fn exact_size(bytes: u64) -> String {
    Size(bytes).to_string()
}

/// Writes a duration for people: `850 ns`, `12.3 us`, `1.5 ms`, `15 s`, `3 min 20 s`, `2 h 5 min`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds >= 86_400 {
        return format!("{} d {} h", seconds / 86_400, seconds / 3_600 % 24);
    }
    if seconds >= 3_600 {
        return format!("{} h {} min", seconds / 3_600, seconds / 60 % 60);
    }
    if seconds >= 60 {
        return format!("{} min {} s", seconds / 60, seconds % 60);
    }
    let nanos = time.as_nanos() as f64;
    let (value, unit) = match nanos {
        0.0 => (0.0, "s"),
        n if n < 999.5 => (n, "ns"),
        n if n < 999_950.0 => (n / 1e3, "us"),
        n if n < 999_950_000.0 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    format!("{} {unit}", short(value))
}

/// Writes a count with its thousands apart: `12 345 678`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// A number with at most one decimal, and none where it is zero.
fn short(value: f64) -> String {
    let mut out = String::new();
    // Writing to a String does not fail.
    let _ = write!(out, "{value:.1}");
    if out.ends_with(".0") {
        out.truncate(out.len() - 2);
    }
    out
}

/// The text without the operating system's error numbers.
pub fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut parts = text.split(" (os error ");
    out.extend(parts.next());
    for part in parts {
        out.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    out
}

/// Writes a time in seconds since 1970 as a date in UTC: `2026-11-20 09:00:00`.
pub fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March have their leap day at the end; 400 of them have 146,097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = 400 * era + year + next;
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::path::{Path, PathBuf};

    #[test]
    fn what_was_meant_is_asked() {
        let told = |text| parse_size(text).unwrap_err().to_string();
        assert!(told("1Gb").starts_with("\"1Gb\" is not a size (did you mean 1GB?): "));
        assert!(told("10 gib").contains("(did you mean 10GiB?)"));
        assert!(told("1x").starts_with("\"1x\" is not a size: "));
        assert!(told("-5G").ends_with("sizes are positive"));
    }

    #[test]
    fn sizes_are_read_in_binary_and_decimal_units() {
        for (text, bytes) in [
            ("4096", 4096),
            ("0", 0),
            ("512B", 512),
            ("8GiB", 8 << 30),
            ("8 GiB", 8 << 30),
            ("500G", 500 << 30),
            ("500GB", 500_000_000_000),
            ("1.5TiB", 3 << 39),
            ("0.5KiB", 512),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_a_reason() {
        for (text, reason) in [
            ("", "start with a number"),
            ("GiB", "start with a number"),
            ("8gib", "KiB, MiB"),
            ("8 Gi B", "KiB, MiB"),
            ("-1", "positive"),
            ("1.3B", "whole number of bytes"),
            ("1.2.3K", "start with a number"),
            ("1.K", "start with a number"),
            ("20000PiB", "larger"),
            ("99999999999999999999", "larger"),
        ] {
            let error = parse_size(text).expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn durations_are_not_rounded_to_the_unit_they_are_kept_in() {
        use Grain::{Microsecond, Millisecond};
        for (text, grain, number) in [
            ("12ms", Millisecond, 12),
            ("12000us", Millisecond, 12),
            ("0.5s", Millisecond, 500),
            ("0s", Millisecond, 0),
            ("1.5ms", Microsecond, 1500),
        ] {
            assert_eq!(parse_whole(text, grain), Ok(number), "{text}");
        }
        for (text, grain, told) in [
            (
                "12345us",
                Millisecond,
                "finer than a millisecond: write whole milliseconds, as in \"12ms\"",
            ),
            ("1.5ms", Millisecond, "finer than a millisecond"),
            (
                "1500ns",
                Microsecond,
                "finer than a microsecond: write whole microseconds, as in \"12us\"",
            ),
        ] {
            let error = parse_whole(text, grain).expect_err(text).to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("15s"), Ok(Duration::from_secs(15)));
        assert_eq!(parse_duration("50us"), Ok(Duration::from_micros(50)));
        assert_eq!(parse_duration("1.5 ms"), Ok(Duration::from_micros(1500)));
        assert_eq!(parse_duration("2min"), Ok(Duration::from_secs(120)));
        for text in ["15", "0", "s", "15 sec", "-1s", "1.5ns", "9999999999h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn quantities_are_written_short() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(8 << 30), "8 GiB");
        assert_eq!(size(3 << 39), "1.5 TiB");
        assert_eq!(size((1 << 20) - 1), "1 MiB");
        assert_eq!(size(u64::MAX), "16 EiB");
        assert_eq!(duration(Duration::ZERO), "0 s");
        assert_eq!(duration(Duration::from_nanos(850)), "850 ns");
        assert_eq!(duration(Duration::from_nanos(12_340)), "12.3 us");
        assert_eq!(duration(Duration::from_nanos(999_960)), "1 ms");
        assert_eq!(duration(Duration::from_secs(200)), "3 min 20 s");
        assert_eq!(duration(Duration::from_secs(7_500)), "2 h 5 min");
        assert_eq!(duration(Duration::from_secs(90_000)), "1 d 1 h");
        assert_eq!(count(0), "0");
        assert_eq!(count(123), "123");
        assert_eq!(count(12_345_678), "12 345 678");
    }

    /// Sentences have sizes by [`exact_size`] or `Size`: 1099511627776 bytes are nothing to read.
    #[test]
    fn no_sentence_has_a_raw_size() {
        fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
                match entry.is_dir() {
                    true => sources(&entry, out),
                    false => out.push(entry),
                }
            }
        }
        let mut files = Vec::new();
        for part in ["config", "daemon", "cli", "backends", "volume", "server", "front-iscsi"] {
            let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
            sources(&crates.join(part).join("src"), &mut files);
        }
        assert!(files.len() > 100, "{}", files.len());
        // What a name in braces may not be, right before the word.
        let sizes = ["size", "bytes", "known", "configured", "available", "wanted", "size_bytes"];
        for file in files.iter().filter(|file| file.extension().is_some_and(|rs| rs == "rs")) {
            let text = fs::read_to_string(file).unwrap();
            for name in sizes {
                let raw = format!("{{{name}}} {}", "bytes");
                assert!(!text.contains(&raw), "{}: {raw}", file.display());
            }
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, words) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (951_868_800, "2000-03-01 00:00:00"),
            (1_767_225_599, "2025-12-31 23:59:59"),
            (1_795_165_200, "2026-11-20 09:00:00"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(date(seconds), words);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,24}") {
            let _ = (parse_size(&text), parse_duration(&text));
        }

        #[test]
        fn whole_units_are_exact(n in 0u64..4096) {
            prop_assert_eq!(parse_size(&format!("{n}TiB")), Ok(n << 40));
            prop_assert_eq!(parse_duration(&format!("{n}ms")), Ok(Duration::from_millis(n)));
        }

        #[test]
        fn sizes_never_show_more_than_1023_of_a_unit(bytes: u64) {
            let text = size(bytes);
            let number: f64 = text.split(' ').next().unwrap().parse().unwrap();
            prop_assert!(number < 1024.0, "{}", text);
        }
    }
}
