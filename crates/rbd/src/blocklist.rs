//! What the cluster's blocklist says of a client. Ceph answers a request for ten years with an end in ten years also where an
//! entry is there already, and keeps that one's end: only the list tells.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Deserializer, Value, json};

/// How long a client that was shut out stays so, in seconds: ten years. A shorter time would end while a machine that stood
/// still has writes in its memory, and those would land over newer ones.
pub(crate) const SHUT_OUT: u32 = 315_360_000;

/// What an entry has to last at least to be trusted: nine years.
pub const LONG_ENOUGH: Duration = Duration::from_secs(9 * 31_536_000);

/// The command that reads the list.
pub(crate) const LIST: &str = r#"{"prefix": "osd blocklist ls", "format": "json"}"#;

/// The command that adds an entry.
pub(crate) fn add(address: &str, seconds: u32) -> String {
    json!({
        "prefix": "osd blocklist",
        "blocklistop": "add",
        "addr": address,
        "expire": f64::from(seconds),
    })
    .to_string()
}

/// An address that no client has. Monitors look at the rights of whoever asks before they look at the address.
pub(crate) const NOBODY: &str = "nobody/0";

/// An entry as the list has it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lasting {
    /// For how long it lasts. Zero if there is none, or none that can be read.
    pub lasts: Duration,
    /// Its end, in the cluster's words.
    pub ends: Option<String>,
}

/// An address without what some versions of Ceph write before it.
pub(crate) fn plain(address: &str) -> &str {
    let kinds = ["v1:", "v2:", "any:"];
    kinds.iter().find_map(|kind| address.strip_prefix(kind)).unwrap_or(address)
}

/// For how long a client stays on the list. `said` is the monitors' answer to the request for an entry of `seconds`: its end
/// would be that long after the present of their clock. This machine's clock counts only if they say nothing.
pub(crate) fn lasting(list: &[u8], address: &str, said: &str, seconds: u32) -> Lasting {
    let Some(ends) = end_in(list, address) else {
        return Lasting { lasts: Duration::ZERO, ends: None };
    };
    let present = said.split_once(" until ").and_then(|(_, end)| seconds_of(end)).map_or_else(
        || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
        |end| end.saturating_sub(u64::from(seconds)),
    );
    let lasts = seconds_of(&ends).map_or(0, |end| end.saturating_sub(present));
    Lasting { lasts: Duration::from_secs(lasts), ends: Some(ends) }
}

/// The end of a client's entry. Ceph 16.2.15 and later write a second list, of ranges, behind the first one.
fn end_in(list: &[u8], address: &str) -> Option<String> {
    let entry = |entry: &Value| {
        let listed = entry.get("addr")?.as_str()?;
        let ends = entry.get("until")?.as_str()?;
        (plain(listed) == plain(address)).then(|| ends.to_owned())
    };
    let lists = Deserializer::from_slice(list).into_iter::<Value>().map_while(Result::ok);
    lists.filter_map(|list| list.as_array()?.iter().find_map(entry)).next()
}

/// Seconds since 1970 of a date as Ceph writes it: `2036-11-23T21:03:02.615713+0000`. Without an offset it counts as UTC.
fn seconds_of(text: &str) -> Option<u64> {
    let text = text.trim().split_once(" (").map_or(text.trim(), |(date, _)| date);
    let (date, time) = text.split_once(['T', ' '])?;
    let mut parts = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let at = time.find(['+', '-', 'Z']).unwrap_or(time.len());
    let (clock, offset) = time.split_at(at);
    let whole = clock.split('.').next()?;
    let mut parts = whole.splitn(3, ':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
    let sane = (1970..10_000).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0..=60).contains(&second);
    let local = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    u64::try_from(local - offset_of(offset)?).ok().filter(|_| sane)
}

/// Seconds that a clock is ahead of UTC: `+0200`, `-03:30`, `Z`, or nothing.
fn offset_of(text: &str) -> Option<i64> {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    if digits.is_empty() {
        return matches!(text, "" | "Z").then_some(0);
    }
    let (hours, minutes) = (digits.get(0..2)?.parse::<i64>().ok()?, digits.get(2..4)?);
    let seconds = hours * 3600 + minutes.parse::<i64>().ok()? * 60;
    Some(if text.starts_with('-') { -seconds } else { seconds })
}

/// Days from 1970 on, of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March here, so that the leap day is the last one.
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let of_year = (153 * month + 2) / 5 + day - 1;
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + of_year
        - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: &str = "127.66.1.2:0/2719412375";
    const SAID: &str = "blocklisting 127.66.1.2:0/2719412375 until 2036-11-23T20:00:00.000000+0000 (3.1536e+08 sec)";

    fn lasts(list: &str, said: &str) -> u64 {
        lasting(list.as_bytes(), ADDRESS, said, SHUT_OUT).lasts.as_secs()
    }

    #[test]
    fn dates_of_all_forms_are_read() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00.000000+0000", Some(0)),
            ("2026-11-26T21:30:05.123456+0000", Some(1_795_728_605)),
            ("2026-11-26 21:30:05.123456", Some(1_795_728_605)),
            ("2026-11-26T21:30:05Z", Some(1_795_728_605)),
            ("2026-11-26T23:30:05.1+0200", Some(1_795_728_605)),
            ("2026-11-26T18:00:05.1-03:30", Some(1_795_728_605)),
            ("2028-02-29T00:00:00+0000 (60 sec)", Some(1_835_395_200)),
            ("2028-03-01T00:00:00+0000", Some(1_835_481_600)),
            ("2100-03-01T00:00:00+0000", Some(4_107_542_400)),
            ("0.000000", None),
            ("2026-13-01T00:00:00+0000", None),
            ("2026-11-26T21:30+0000", None),
            ("2026-11-26T21:30:05+0x", None),
            ("", None),
        ] {
            assert_eq!(seconds_of(text), seconds, "{text}");
        }
    }

    #[test]
    fn the_list_tells_how_long_an_entry_lasts_by_the_cluster_s_clock() {
        let list = r#"
            [{"addr":"127.66.1.2:0/1","until":"2036-11-23T20:00:00.000000+0000"},
             {"addr":"127.66.1.2:0/2719412375","until":"2026-11-26T21:00:00.500000+0000"}]"#;
        // The clock of this machine may be years off: the answer says when ten years are over.
        assert_eq!(lasts(list, SAID), 3600);
        let fresh = list.replace("2026-11-26T21:00:00.500000", "2036-11-23T20:00:00.500000");
        assert_eq!(lasts(&fresh, SAID), u64::from(SHUT_OUT));
        assert!(Duration::from_secs(lasts(&fresh, SAID)) > LONG_ENOUGH);
        let ended = list.replace("2026-11-26T21", "2026-11-26T19");
        assert_eq!(lasts(&ended, SAID), 0);
        // Without an answer it is this machine's clock.
        let far = list.replace("2026-11-26T21", "9999-11-26T21");
        assert!(Duration::from_secs(lasts(&far, "")) > LONG_ENOUGH);
    }

    #[test]
    fn a_list_that_cannot_be_read_has_no_entries() {
        for list in [
            "",
            "[]",
            "[][]",
            "{}",
            "null",
            "[{\"addr\": 5}]",
            "[{\"addr\":\"127.66.1.2:0/2719412375\"}]",
        ] {
            let none = Lasting { lasts: Duration::ZERO, ends: None };
            assert_eq!(lasting(list.as_bytes(), ADDRESS, SAID, SHUT_OUT), none, "{list}");
        }
        let odd = r#"[{"addr":"127.66.1.2:0/2719412375","until":"never"}]"#;
        let found = lasting(odd.as_bytes(), ADDRESS, SAID, SHUT_OUT);
        assert_eq!((found.lasts, found.ends.as_deref()), (Duration::ZERO, Some("never")));
        // As Ceph 16.2.15 writes it, and with a kind before the address.
        let two = r#"[{"addr":"v1:127.66.1.2:0/2719412375","until":"2036-11-23T20:00:00+0000"}][]"#;
        assert_eq!(lasts(two, SAID), u64::from(SHUT_OUT));
    }

    #[test]
    fn addresses_are_compared_without_their_kind() {
        for text in [ADDRESS, "v1:127.66.1.2:0/2719412375", "any:127.66.1.2:0/2719412375"] {
            assert_eq!(plain(text), ADDRESS);
        }
        assert_ne!(plain("127.66.1.2:0/27194123"), ADDRESS);
        assert_eq!(plain("[::1]:0/5"), "[::1]:0/5");
    }
}
