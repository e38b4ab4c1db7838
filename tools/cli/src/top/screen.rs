//! What `lunet top` draws.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lunet_api::{Rates, SessionRates, Verdict, VolumeRates};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Sparkline};

use super::fit::{Columns, Fitted, parts, whole, wrapped};
use lunet_cli::watch::{Sample, rates, words};
use lunet_config::units;

/// How many intervals the curves show at most.
const PAST: usize = 300;

/// How many lines an error takes at most.
const TROUBLE: usize = 4;

/// Data and operations before latencies, reads and writes alike.
const VOLUMES: Columns<'_> = Columns {
    heads: &words::VOLUME,
    least: &[0, 8, 10, 7, 7, 8, 10, 7, 7, 9, 9, 7],
    order: &[2, 6, 1, 5, 11, 3, 7, 4, 8, 9, 10],
};

const SESSIONS: Columns<'_> = Columns {
    heads: &words::SESSION,
    least: &[0, 0, 5, 10, 10, 10, 7],
    order: &[4, 5, 3, 6, 1, 2],
};

const SHARDS: Columns<'_> =
    Columns { heads: &words::SHARD, least: &[0, 9, 9, 9, 11, 9, 9], order: &[1, 5, 6, 4, 3, 2] };

/// What is on the screen.
#[derive(Default)]
pub struct Screen {
    /// The last look at the server.
    sample: Option<Sample>,
    /// The last interval.
    rates: Option<Rates>,
    /// What has bound in it.
    verdict: Option<Verdict>,
    /// When it ended.
    counted: Option<Instant>,
    /// Bytes read and written per second, the newest first.
    past: VecDeque<(u64, u64)>,
    /// Why there are no figures, in one sentence.
    trouble: Option<String>,
    /// Lines that the lists of sessions and volumes are moved up.
    scrolled: usize,
}

impl Screen {
    /// Takes in a look at the server.
    pub fn take(&mut self, sample: Sample) {
        let rates = self.sample.as_ref().and_then(|before| rates::between(before, &sample));
        if let Some(rates) = &rates {
            let (read, written) = words::total(rates);
            self.past.push_front((read as u64, written as u64));
            self.past.truncate(PAST);
        }
        let verdict =
            self.sample.as_ref().and_then(|before| lunet_verdict::between(before, &sample));
        self.verdict = verdict.or(self.verdict.take());
        self.trouble = None;
        if rates.is_some() {
            self.counted = Some(sample.at);
        }
        self.sample = Some(sample);
        // A look that cannot be compared with the one before leaves the last figures there.
        self.rates = rates.map(busiest_first).or(self.rates.take());
    }

    /// The server could not be asked, at this time. The last figures stay, below the reason and their age.
    pub fn fail(&mut self, why: &str, now: Instant) {
        let below = match self.counted {
            Some(at) => {
                let age = Duration::from_secs(now.saturating_duration_since(at).as_secs());
                format!("the figures below are {} old", units::duration(age))
            }
            None => "there are no figures yet".to_owned(),
        };
        self.trouble = Some(format!("{why}. Asking again; {below}"));
        self.sample = None;
    }

    /// Moves the lists, down if `by` is positive.
    pub fn scroll(&mut self, by: isize) {
        let rates = self.rates.as_ref();
        let most = rates
            .map_or(0, |rates| rates.sessions.len().max(rates.volumes.len()).saturating_sub(1));
        self.scrolled = self.scrolled.saturating_add_signed(by).min(most);
    }

    /// Draws everything.
    pub fn draw(&self, frame: &mut Frame) {
        let shards = self.rates.as_ref().map_or(0, |rates| rates.shards.len()) as u16;
        let width = usize::from(frame.area().width);
        let told = self.head(width);
        let rows = [
            Constraint::Length(told.len() as u16),
            Constraint::Length(5),
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Fill(1),
            Constraint::Length((shards + 2).min(frame.area().height / 3)),
            Constraint::Length(1),
        ];
        let [head, curves, binds, volumes, sessions, load, foot] =
            Layout::vertical(rows).areas(frame.area());
        frame.render_widget(Paragraph::new(told).style(Modifier::BOLD), head);
        let keys = whole(&["q quit   up, down scroll", "q quit"], width);
        frame.render_widget(Paragraph::new(keys).style(Modifier::DIM), foot);
        self.curves(frame, curves);
        if let Some(verdict) = &self.verdict {
            let (sentence, word) = (&verdict.server.sentence, verdict.server.bound_by.as_str());
            let told = whole(&[sentence, &format!("bound by: {word}"), word], width);
            frame.render_widget(Paragraph::new(told), binds);
        }
        let Some(rates) = &self.rates else { return };
        let rows = |of: &mut dyn Iterator<Item = Vec<String>>| of.collect::<Vec<_>>();
        let cells = rows(&mut rates.volumes.iter().map(words::volume));
        table(frame, volumes, &VOLUMES, &cells, self.scrolled);
        let cells = rows(&mut rates.sessions.iter().map(words::session));
        table(frame, sessions, &SESSIONS, &cells, self.scrolled);
        let cells = rows(&mut rates.shards.iter().map(words::shard));
        table(frame, load, &SHARDS, &cells, 0);
    }

    /// The first lines: one, or as many as the reason for having no figures takes, up to a bound.
    fn head(&self, width: usize) -> Vec<Line<'_>> {
        if let Some(why) = &self.trouble {
            let lines = wrapped(why, width, TROUBLE);
            return lines.into_iter().map(|line| Line::styled(line, Color::Red)).collect();
        }
        let Some(sample) = &self.sample else { return vec![Line::raw(whole(&["asking"], width))] };
        let up = units::duration(Duration::from_secs(sample.stats.uptime_seconds));
        let sessions = match sample.sessions.len() {
            1 => "1 session".to_owned(),
            n => format!("{n} sessions"),
        };
        let work: u64 = sample.stats.loads.iter().map(|load| load.commands_in_flight).sum();
        let failed: u64 = sample.stats.volumes.iter().map(|volume| volume.errors).sum();
        // Counts of a server that was started anew have nothing to be compared with at first.
        let first = match self.counted {
            Some(at) if at == sample.at => None,
            Some(_) => Some("restarted: earlier figures"),
            None => Some("first figures with the next look"),
        };
        let mut told: Vec<(usize, String)> =
            first.map(|words| (0, words.to_owned())).into_iter().collect();
        told.extend([
            (3, format!("lunet on {}, up for {up}", sample.stats.driver)),
            (2, sessions),
            (1, format!("{work} commands at work")),
            (if failed > 0 { 0 } else { 4 }, format!("{failed} failed since the start")),
        ]);
        vec![Line::raw(parts(&told, "; ", width))]
    }

    /// Throughput of all volumes, the newest at the left, as the labels beside it say.
    fn curves(&self, frame: &mut Frame, area: Rect) {
        let [read, written] = Layout::horizontal([Constraint::Fill(1); 2]).areas(area);
        let (now_read, now_written) = self.past.front().copied().unwrap_or_default();
        let of = |pick: fn(&(u64, u64)) -> u64| self.past.iter().map(pick).collect::<Vec<_>>();
        let kinds = [
            (read, "read", now_read, of(|past| past.0), Color::Cyan),
            (written, "written", now_written, of(|past| past.1), Color::Yellow),
        ];
        for (area, name, now, past, colour) in kinds {
            let most = past.iter().max().copied().unwrap_or(0);
            let (now, most) = (words::bytes(now as f64), words::bytes(most as f64));
            let long = format!("{name} {now}, at most {most}");
            let room = usize::from(area.width).saturating_sub(2);
            let title = whole(&[&long, &format!("{name} {now}"), name], room);
            let curve = Sparkline::default().data(&past).style(colour);
            frame.render_widget(curve.block(Block::bordered().title(title)), area);
        }
    }
}

/// What moves most data stands first.
fn busiest_first(mut rates: Rates) -> Rates {
    rates.volumes.sort_by(|a, b| {
        let moved = |v: &VolumeRates| v.read.bytes_per_second + v.write.bytes_per_second;
        moved(b).total_cmp(&moved(a)).then_with(|| a.name.cmp(&b.name))
    });
    rates.sessions.sort_by(|a, b| {
        let moved = |s: &SessionRates| s.read_bytes_per_second + s.written_bytes_per_second;
        moved(b).total_cmp(&moved(a)).then_with(|| a.peer.cmp(&b.peer))
    });
    rates
}

/// Draws a table from the row `skipped` on.
fn table(
    frame: &mut Frame,
    area: Rect,
    columns: &Columns<'_>,
    rows: &[Vec<String>],
    skipped: usize,
) {
    let Fitted { head, rows } =
        columns.fit(rows, skipped, usize::from(area.width), usize::from(area.height));
    let head = Line::styled(head, Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED));
    let lines: Vec<Line<'_>> = [head].into_iter().chain(rows.into_iter().map(Line::raw)).collect();
    frame.render_widget(Paragraph::new(lines), area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::super::fit::shortened;
    use super::*;

    fn sample(at: Instant, ops: u64) -> Sample {
        let kind = |ops: u64| json!({"ops": ops, "bytes": ops << 20, "mean_us": 100.0, "histogram": [{"up_to_us": 127, "count": ops}]});
        let volume = |name: &str, ops: u64| {
            json!({"name": name, "read": kind(ops), "write": kind(0), "flushes": 0, "errors": 0, "commands_in_flight": 5,
                                                        "time": {"operations_us": ops * 1_000_000, "busy_us": ops * 1_000_000, "timed": ops,
                                                                 "stages": [{"stage": "storage", "ns": ops * 1_000_000_000}]}})
        };
        let load = json!({"shard": 0, "cpu_us": ops * 1000, "waits": ops, "operations": ops * 2, "connections": 1,
                          "commands_in_flight": 5, "buffer_used_bytes": 1, "buffer_bytes": 10});
        let stats = json!({"uptime_seconds": ops, "driver": "io_uring", "loads": [load],
                           "volumes": [volume("quiet", 0), volume("busy", ops)]});
        let sessions = json!([{"initiator": "iqn.2026-11.local.client", "target": "t", "peer": "10.0.0.1:5000", "tsih": 1,
                               "shard": 0, "commands_in_flight": 5, "commands": ops, "read_bytes": ops << 20,
                               "written_bytes": 0}]);
        Sample {
            at,
            stats: serde_json::from_value(stats).unwrap(),
            sessions: serde_json::from_value(sessions).unwrap(),
        }
    }

    fn drawn(screen: &Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let cells: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
        cells.chunks(width.into()).map(|line| line.concat().trim_end().to_owned()).collect()
    }

    #[test]
    fn what_is_busy_stands_first_with_its_rates() {
        let start = Instant::now();
        let mut screen = Screen::default();
        screen.take(sample(start, 100));
        screen.take(sample(start + Duration::from_secs(1), 300));
        let lines = drawn(&screen, 130, 30);
        assert!(
            lines[0]
                .starts_with("lunet on io_uring, up for 5 min 0 s; 1 session; 5 commands at work"),
            "{lines:#?}"
        );
        assert!(lines[1].contains("read 200 MiB/s, at most 200 MiB/s"), "{lines:#?}");
        let at = |what: &str| {
            lines
                .iter()
                .position(|line| line.starts_with(what))
                .unwrap_or_else(|| panic!("{what}: {lines:#?}"))
        };
        assert!(at("busy") < at("quiet"));
        let busy = lines[at("busy")].split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(busy, "busy 200 200 MiB/s 100 us <128 us - - - - 5");
        assert!(lines[at("iqn.2026-11.local.client")].contains("10.0.0.1:5000"), "{lines:#?}");
        assert!(lines[6].starts_with("Bound by the storage: "), "{lines:#?}");
        // 200 ms of processor time in a second.
        assert!(lines[at("0 ")].contains("20 %"), "{lines:#?}");
    }

    /// The cells that a line shows, if it shows some of them whole, in their order, and nothing else
    /// but a name that may be shortened.
    fn whole_cells(line: &str, cells: &[String]) -> Option<Vec<usize>> {
        let bare = |text: &str| text.replace(' ', "");
        let (line, name) = (bare(line), bare(&cells[0]));
        let starts = (1..=name.chars().count()).map(|n| shortened(&name, n)).collect::<Vec<_>>();
        let shown = |start: &String| {
            let mut rest = line.strip_prefix(start.as_str())?;
            let mut columns = vec![0];
            for (column, cell) in cells.iter().enumerate().skip(1) {
                let cell = bare(cell);
                if let Some(left) = rest.strip_prefix(cell.as_str()).filter(|_| !cell.is_empty()) {
                    rest = left;
                    columns.push(column);
                }
            }
            rest.is_empty().then_some(columns)
        };
        starts.iter().rev().find_map(shown)
    }

    /// At no size is a figure or a head cut: what is on the screen are whole cells, under their heads.
    #[test]
    fn no_size_of_the_terminal_cuts_a_figure() {
        let start = Instant::now();
        let mut screen = Screen::default();
        screen.take(sample(start, 123_456));
        screen.take(sample(start + Duration::from_secs(1), 1_357_913));
        let rates = screen.rates.clone().unwrap();
        let tables: [(&[&str], Vec<Vec<String>>); 3] = [
            (&words::VOLUME, rates.volumes.iter().map(words::volume).collect()),
            (&words::SESSION, rates.sessions.iter().map(words::session).collect()),
            (&words::SHARD, rates.shards.iter().map(words::shard).collect()),
        ];
        // Below that even the heads of names are shortened.
        for width in (10..=160).chain([250]) {
            let lines = drawn(&screen, width, 24);
            let mut seen = 0;
            for (heads, rows) in &tables {
                let heads: Vec<String> = heads.iter().map(|head| (*head).to_owned()).collect();
                let at = lines.iter().skip(6).position(|l| whole_cells(l, &heads).is_some());
                let Some(at) = at.map(|at| at + 6) else { continue };
                let columns = whole_cells(&lines[at], &heads).unwrap();
                for (line, row) in lines[at + 1..].iter().zip(rows) {
                    // Cells may be empty, but none is there without its head.
                    let cells = whole_cells(line, row);
                    let cells = cells.unwrap_or_else(|| panic!("{width}: {line:?} of {row:?}"));
                    assert!(cells.len() <= columns.len(), "{width}: {lines:#?}");
                    seen += 1;
                }
            }
            assert_eq!(seen, 4, "{width}: {lines:#?}");
            for line in [&lines[0], &lines[1]] {
                let cut = line.contains("MiB") && !line.contains("MiB/s");
                assert!(!cut && !line.ends_with("since the"), "{width}: {line}");
            }
        }
        // A common size has what matters.
        let lines = drawn(&screen, 80, 24);
        let head = lines.iter().find(|line| line.starts_with("volume")).unwrap();
        for word in ["reads/s", "read", "writes/s", "written", "at work"] {
            assert!(head.contains(word), "{head}");
        }
    }

    #[test]
    fn a_server_that_is_gone_is_told_and_small_terminals_are_enough() {
        let start = Instant::now();
        let mut screen = Screen::default();
        assert!(drawn(&screen, 80, 24)[0].contains("asking"));
        screen.take(sample(start, 100));
        screen.take(sample(start + Duration::from_secs(1), 300));
        screen.scroll(100);
        assert!(!drawn(&screen, 80, 24).iter().any(|line| line.starts_with("busy")));
        screen.scroll(-100);
        for (width, height) in [(1, 1), (5, 24), (20, 3), (80, 24), (300, 100)] {
            drawn(&screen, width, height);
        }
        let later = start + Duration::from_secs(13);
        screen.fail("no lunet is running", later);
        let lines = drawn(&screen, 80, 24);
        assert_eq!(lines[0], "no lunet is running. Asking again; the figures below are 12 s old");
        assert!(lines.iter().any(|line| line.starts_with("busy")), "the last figures: {lines:#?}");
        // An error that is longer than a line goes on in the next.
        screen.fail(
            "no lunet is running with the control socket /srv/a/lunet.sock: start one",
            later,
        );
        let lines = drawn(&screen, 40, 24);
        assert_eq!(
            lines[..4],
            [
                "no lunet is running with the control",
                "socket /srv/a/lunet.sock: start one.",
                "Asking again; the figures below are 12 s",
                "old"
            ]
        );
        // When it is back, there is nothing to compare with at first.
        screen.take(sample(later, 1));
        let lines = drawn(&screen, 80, 24);
        assert!(lines[0].starts_with("restarted: earlier figures; "), "{lines:#?}");
        assert!(drawn(&screen, 130, 24)[0].contains("up for 1 s"), "{lines:#?}");
        assert!(lines.iter().any(|line| line.starts_with("busy")), "the last figures: {lines:#?}");
        screen.take(sample(later + Duration::from_secs(1), 2));
        assert!(drawn(&screen, 80, 24)[0].starts_with("lunet on io_uring"));
        // One that may not be asked from the beginning on.
        let mut screen = Screen::default();
        screen.fail("permission denied", start);
        let lines = drawn(&screen, 80, 24);
        assert_eq!(lines[0], "permission denied. Asking again; there are no figures yet");
    }
}
