//! What `lunet top` draws.

use std::collections::VecDeque;
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table};

use super::rates::Rates;
use super::sample::Sample;
use super::words;
use crate::units;

/// How many intervals the curves show at most.
const PAST: usize = 300;

/// What is on the screen.
#[derive(Default)]
pub struct Screen {
    /// The last look at the server.
    sample: Option<Sample>,
    /// The last interval.
    rates: Option<Rates>,
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
        let rates = self.sample.as_ref().and_then(|before| super::rates::between(before, &sample));
        if let Some(rates) = &rates {
            let (read, written) = words::total(rates);
            self.past.push_front((read as u64, written as u64));
            self.past.truncate(PAST);
        }
        self.trouble = None;
        self.sample = Some(sample);
        self.rates = rates.map(busiest_first);
    }

    /// The server could not be asked.
    pub fn fail(&mut self, why: String) {
        self.trouble = Some(why);
        self.rates = None;
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
        let rows = [
            Constraint::Length(1),
            Constraint::Length(5),
            Constraint::Fill(1),
            Constraint::Fill(1),
            Constraint::Length((shards + 2).min(frame.area().height / 3)),
            Constraint::Length(1),
        ];
        let [head, curves, volumes, sessions, load, foot] =
            Layout::vertical(rows).areas(frame.area());
        frame.render_widget(Paragraph::new(self.head()).style(Modifier::BOLD), head);
        frame.render_widget(Paragraph::new("q quit   up, down scroll").style(Modifier::DIM), foot);
        self.curves(frame, curves);
        let Some(rates) = &self.rates else { return };
        let cells: Vec<_> = rates.volumes.iter().skip(self.scrolled).map(words::volume).collect();
        table(frame, volumes, &words::VOLUME, &[24, 9, 12, 9, 9, 9, 12, 9, 9, 9, 7], cells);
        let cells: Vec<_> = rates.sessions.iter().skip(self.scrolled).map(words::session).collect();
        table(frame, sessions, &words::SESSION, &[44, 22, 5, 10, 12, 12, 7], cells);
        let cells = rates.shards.iter().map(words::shard).collect();
        table(frame, load, &words::SHARD, &[6, 9, 9, 9, 11, 9, 9], cells);
    }

    fn head(&self) -> Line<'_> {
        if let Some(why) = &self.trouble {
            return Line::styled(why.as_str(), Color::Red);
        }
        let Some(sample) = &self.sample else { return Line::raw("asking") };
        let up = units::duration(Duration::from_secs(sample.stats.uptime_seconds));
        let sessions = match sample.sessions.len() {
            1 => "1 session".to_owned(),
            n => format!("{n} sessions"),
        };
        let work: usize = sample.stats.loads.iter().map(|load| load.commands_in_flight).sum();
        let failed: u64 = sample.stats.volumes.iter().map(|volume| volume.errors).sum();
        Line::raw(format!(
            "lunet on {}, up for {up}; {sessions}; {work} commands at work; {failed} failed since the start",
            sample.stats.driver
        ))
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
            let title = format!(
                "{name} {}, at most {}",
                words::bytes(now as f64),
                words::bytes(most as f64)
            );
            let curve = Sparkline::default().data(&past).style(colour);
            frame.render_widget(curve.block(Block::bordered().title(title)), area);
        }
    }
}

/// What moves most data stands first.
fn busiest_first(mut rates: Rates) -> Rates {
    rates.volumes.sort_by(|a, b| {
        let moved =
            |v: &super::rates::VolumeRates| v.read.bytes_per_second + v.write.bytes_per_second;
        moved(b).total_cmp(&moved(a)).then_with(|| a.name.cmp(&b.name))
    });
    rates.sessions.sort_by(|a, b| {
        let moved =
            |s: &super::rates::SessionRates| s.read_bytes_per_second + s.written_bytes_per_second;
        moved(b).total_cmp(&moved(a)).then_with(|| a.peer.cmp(&b.peer))
    });
    rates
}

/// A table whose first column is set to the left, the others to the right.
fn table(frame: &mut Frame, area: Rect, heads: &[&str], widths: &[u16], rows: Vec<Vec<String>>) {
    let set = |(column, cell): (usize, String)| {
        let line = Line::raw(cell);
        if column == 0 { line } else { line.right_aligned() }
    };
    let line =
        |cells: Vec<String>| Row::new(cells.into_iter().enumerate().map(set).collect::<Vec<_>>());
    let head = line(heads.iter().map(|head| (*head).to_owned()).collect());
    let widths = widths.iter().enumerate().map(|(column, width)| match column {
        0 => Constraint::Max(*width),
        _ => Constraint::Length(*width),
    });
    let table = Table::new(rows.into_iter().map(line), widths)
        .header(head.style(Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED)))
        .column_spacing(1);
    frame.render_widget(table, area);
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;

    fn sample(at: Instant, ops: u64) -> Sample {
        let kind = |ops: u64| json!({"ops": ops, "bytes": ops << 20, "mean_us": 100.0, "histogram": [{"up_to_us": 127, "count": ops}]});
        let volume = |name: &str, ops: u64| json!({"name": name, "read": kind(ops), "write": kind(0), "flushes": 0, "errors": 0, "commands_in_flight": 5});
        let load = json!({"shard": 0, "cpu_us": ops * 1000, "waits": ops, "operations": ops * 2, "connections": 1,
                          "commands_in_flight": 5, "buffer_used_bytes": 1, "buffer_bytes": 10});
        let stats = json!({"uptime_seconds": ops, "driver": "io_uring", "loads": [load],
                           "volumes": [volume("quiet", 0), volume("busy", ops)]});
        let sessions = json!([{"initiator": "iqn.2026-11.local.client", "target": "t", "peer": "10.0.0.1:5000", "tsih": 1,
                               "shard": 0, "commands_in_flight": 5, "commands": ops, "read_bytes": ops << 20,
                               "written_bytes": 0}]);
        Sample::new(at, &stats, &sessions).unwrap()
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
        assert_eq!(busy, "busy 200 200 MiB/s 100 us <128 us - - - 5");
        assert!(lines[at("iqn.2026-11.local.client")].contains("10.0.0.1:5000"), "{lines:#?}");
        // 200 ms of processor time in a second.
        assert!(lines[at("0 ")].contains("20 %"), "{lines:#?}");
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
        for (width, height) in [(1, 1), (20, 3), (80, 24), (300, 100)] {
            drawn(&screen, width, height);
        }
        screen.fail("no lunet is running".into());
        assert!(drawn(&screen, 80, 24)[0].contains("no lunet is running"));
        // When it is back, there is nothing to compare with at first.
        screen.take(sample(start, 1));
        assert!(drawn(&screen, 80, 24)[0].contains("up for 1 s"));
    }
}
