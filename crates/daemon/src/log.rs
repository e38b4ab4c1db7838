//! The log of `lunet serve`, and all else that it writes to standard error and standard output.
//!
//! Whoever reads these streams may stop reading: a pager, a terminal that is held, a full pipe, a disk that
//! hangs. A write then waits for as long as the reader likes. So nobody who serves, and nobody who ends the
//! server, writes by himself: lines go into a bounded queue, and a thread of its own writes them. What finds
//! no room is dropped and counted. At the end of the program what is queued has a bounded time to get out.
//!
//! Where standard error goes to the journal, the log goes there by itself, as entries with [fields](journal).

mod journal;

use std::fmt::{Debug, Write as _};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::panic::PanicHookInfo;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use lunet_iscsi::printable::is_printable;
use lunet_os::role::Role;
use rustix::io::Errno;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use lunet_config::units;

/// Bytes that may wait for each stream. As many may be on their way at the same time.
const MOST: usize = 256 << 10;

/// Of these, what lines of little weight may fill: warnings and errors have the rest.
const PLAIN: usize = MOST / 4 * 3;

/// How long the end of the program waits for a stream that takes nothing, and for one that is slow.
const STUCK: Duration = Duration::from_millis(500);
const SLOW: Duration = Duration::from_secs(3);

/// How long after a stream that is not to be waited for (`O_NONBLOCK`) was full it is tried again.
const AGAIN: Duration = Duration::from_millis(20);

static ERRORS: OnceLock<Outlet> = OnceLock::new();
static OUTPUT: OnceLock<Outlet> = OnceLock::new();

/// What waits for one stream.
#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    /// Lines that found no room.
    dropped: u64,
    /// The writer has something in its hands.
    writing: bool,
    /// Bytes that the stream has taken so far.
    taken: u64,
}

/// A queue of lines and the thread that writes them.
#[derive(Default)]
struct Outlet {
    queue: Mutex<Queue>,
    /// There is something to write.
    filled: Condvar,
    /// The stream has taken something.
    moved: Condvar,
    /// What is queued are entries for the journal, each with its length before it.
    journal: bool,
}

/// Where what is queued goes.
enum Sink<S> {
    Stream(S),
    Journal(UnixDatagram),
}

/// The entries that are queued for the journal.
fn records(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first_chunk()?;
        let (record, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        bytes = rest;
        Some(record)
    })
}

impl Outlet {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn for_journal() -> Self {
        Self { journal: true, ..Self::default() }
    }

    /// Queues a whole line, or a whole entry for the journal, or counts it as dropped. Never waits for the stream.
    fn push(&self, line: &[u8], room: usize) {
        let mut queue = self.lock();
        if queue.bytes.len() + line.len() + size_of::<u32>() > room {
            queue.dropped += 1;
        } else {
            if self.journal {
                queue.bytes.extend_from_slice(&(line.len() as u32).to_le_bytes());
            }
            queue.bytes.extend_from_slice(line);
        }
        drop(queue);
        self.filled.notify_one();
    }

    /// Queues a sentence of the program's own.
    fn tell(&self, severity: u8, text: &str) {
        match self.journal {
            true => self.push(&journal::entry(severity, text), MOST),
            false => self.push(format!("lunet: {text}\n").as_bytes(), MOST),
        }
    }

    /// Writes what is queued, until the process ends.
    fn write_all(&self, sink: &Sink<impl AsFd>) {
        let mut bytes = Vec::new();
        let mut queue = self.lock();
        loop {
            queue.writing = false;
            self.moved.notify_all();
            while queue.bytes.is_empty() && queue.dropped == 0 {
                queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            bytes.clear();
            std::mem::swap(&mut bytes, &mut queue.bytes);
            let dropped = std::mem::take(&mut queue.dropped);
            queue.writing = true;
            drop(queue);
            // They were dropped after the last line that found room.
            let lost = (dropped > 0).then(|| {
                let lines = if dropped == 1 { "line was" } else { "lines were" };
                format!("{dropped} {lines} dropped here: who reads them was too slow")
            });
            match sink {
                Sink::Stream(stream) => {
                    if let Some(lost) = lost {
                        let _ = writeln!(bytes, "lunet: {lost}");
                    }
                    self.write(stream, &bytes);
                }
                Sink::Journal(socket) => {
                    let lost = lost.map(|lost| journal::entry(journal::ERROR, &lost));
                    for entry in records(&bytes).chain(lost.as_deref()) {
                        // One that journald does not take is lost: nobody else can be told.
                        let _ = socket.send(entry);
                        self.lock().taken += entry.len() as u64;
                        self.moved.notify_all();
                    }
                }
            }
            queue = self.lock();
        }
    }

    /// Writes; a stream that is gone has nobody to be told.
    fn write(&self, stream: &impl AsFd, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match rustix::io::write(stream, bytes) {
                Ok(n) => {
                    bytes = &bytes[n..];
                    self.lock().taken += n as u64;
                    self.moved.notify_all();
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => thread::sleep(AGAIN),
                Err(_) => return,
            }
        }
    }

    /// Waits until all is written, or the stream has taken nothing for too long.
    fn finish(&self) {
        let start = Instant::now();
        let (mut queue, mut since) = (self.lock(), start);
        while (queue.writing || !queue.bytes.is_empty() || queue.dropped > 0)
            && since.elapsed() < STUCK
            && start.elapsed() < SLOW
        {
            let taken = queue.taken;
            let left = STUCK.saturating_sub(since.elapsed());
            let waited = self.moved.wait_timeout(queue, left);
            (queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if queue.taken > taken {
                since = Instant::now();
            }
        }
    }
}

/// Lets everything below this level that the program logs from now on go through the queue, panics as well.
///
/// # Errors
/// The operating system grants no thread.
pub fn start(level: LevelFilter) -> io::Result<()> {
    let errors = outlet(&ERRORS, "log", io::stderr, journal::connect(io::stderr()))?;
    outlet(&OUTPUT, "output", io::stdout, None)?;
    let log = Log { outlet: errors, level, colours: io::stderr().is_terminal() };
    // A second subscriber in the same process is no reason not to serve.
    let _ = tracing::subscriber::set_global_default(log);
    std::panic::set_hook(Box::new(|info| panicked(errors, info)));
    Ok(())
}

/// The queue of a stream, with its thread.
fn outlet<S: AsFd + 'static>(
    place: &'static OnceLock<Outlet>,
    name: &str,
    stream: fn() -> S,
    journal: Option<UnixDatagram>,
) -> io::Result<&'static Outlet> {
    if let Some(outlet) = place.get() {
        return Ok(outlet);
    }
    let outlet = place.get_or_init(|| match journal {
        Some(_) => Outlet::for_journal(),
        None => Outlet::default(),
    });
    let write = move || {
        lunet_os::role::enter(Role::Log);
        match journal {
            Some(socket) => outlet.write_all(&Sink::<S>::Journal(socket)),
            None => outlet.write_all(&Sink::Stream(stream())),
        }
    };
    thread::Builder::new().name(name.into()).spawn(write)?;
    Ok(outlet)
}

/// Whether the log goes to the journal.
pub fn is_journal() -> bool {
    ERRORS.get().is_some_and(|errors| errors.journal)
}

/// Says what a panic was, where it was, and whose it was. The release build ends after that.
fn panicked(errors: &Outlet, info: &PanicHookInfo<'_>) {
    let thread = thread::current();
    let name = thread.name().unwrap_or("<unnamed>");
    let trace = std::backtrace::Backtrace::capture();
    let trace = match trace.status() {
        std::backtrace::BacktraceStatus::Captured => format!("\n{trace}"),
        _ => String::new(),
    };
    errors.tell(journal::CRITICAL, &format!("thread '{name}' {info}{trace}"));
    errors.finish();
}

/// Writes a text to standard output. A stream that is closed is no reason not to serve.
pub fn say(text: &str) {
    match OUTPUT.get() {
        Some(outlet) => outlet.push(text.as_bytes(), MOST),
        None => at_once(text, io::stdout()),
    }
}

/// Writes a line to standard error: `lunet: ` and the text.
pub fn tell(text: &str) {
    tell_as(journal::NOTICE, text);
}

/// The same of a volume, by whose name the journal finds it.
pub fn tell_of(volume: &str, text: &str) {
    match ERRORS.get() {
        Some(outlet) if outlet.journal => {
            outlet.push(&journal::entry_of(volume, journal::NOTICE, text), MOST);
        }
        _ => tell(text),
    }
}

/// The same for what the program has failed at.
pub fn fail(text: &str) {
    tell_as(journal::ERROR, text);
}

/// Into the queue of a server, at once for any other command.
fn tell_as(severity: u8, text: &str) {
    match ERRORS.get() {
        Some(outlet) => outlet.tell(severity, text),
        None => at_once(&format!("lunet: {text}\n"), io::stderr()),
    }
}

/// Without a place for the message there is still the exit code.
fn at_once(text: &str, mut stream: impl Write) {
    drop(stream.write_all(text.as_bytes()).and_then(|()| stream.flush()));
}

/// Lets out what is still queued; at most a few seconds.
pub fn finish() {
    [&OUTPUT, &ERRORS].into_iter().filter_map(OnceLock::get).for_each(Outlet::finish);
}

/// Queues each event of the program. Spans are ignored: the program has none.
struct Log {
    outlet: &'static Outlet,
    level: LevelFilter,
    colours: bool,
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn event(&self, event: &Event<'_>) {
        let room = if *event.metadata().level() <= Level::WARN { MOST } else { PLAIN };
        match self.outlet.journal {
            true => self.outlet.push(&journal::of_event(event), room),
            false => self.outlet.push(line(event, self.colours).as_bytes(), room),
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// An event's message and its other fields.
#[derive(Default)]
struct Told {
    text: String,
    fields: Vec<(&'static str, String)>,
    /// Values that are strings are put in quotes.
    quotes: bool,
}

impl Told {
    fn of(event: &Event<'_>, quotes: bool) -> Self {
        let mut told = Self { quotes, ..Self::default() };
        event.record(&mut told);
        told
    }
}

impl Visit for Told {
    fn record_str(&mut self, field: &Field, value: &str) {
        match self.quotes && field.name() != "message" {
            true => self.record_debug(field, &value),
            false => self.record_debug(field, &format_args!("{value}")),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.text = format!("{value:?}"),
            name => self.fields.push((name, format!("{value:?}"))),
        }
    }
}

/// `2026-11-20T09:00:00.000000Z  WARN MESSAGE FIELD=VALUE`
fn line(event: &Event<'_>, colours: bool) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let time = units::date(now.as_secs()).replace(' ', "T");
    let level = event.metadata().level();
    let Told { mut text, fields, .. } = Told::of(event, true);
    for (name, value) in &fields {
        let space = if text.is_empty() { "" } else { " " };
        let _ = write!(text, "{space}{name}={value}");
    }
    let text = one_line(&text);
    let micros = now.subsec_micros();
    match (colours, colour(*level)) {
        (true, colour) => {
            format!("\x1b[2m{time}.{micros:06}Z\x1b[0m \x1b[{colour}m{level:>5}\x1b[0m {text}")
        }
        (false, _) => format!("{time}.{micros:06}Z {level:>5} {text}"),
    }
}

/// The colour of a level on a terminal (ECMA-48, SGR).
fn colour(level: Level) -> u8 {
    match level {
        Level::ERROR => 31,
        Level::WARN => 33,
        Level::INFO => 32,
        Level::DEBUG => 34,
        _ => 35,
    }
}

/// The text as one entry of the log: without control characters, so that it steers no terminal, and without a line that looks
/// like another entry.
fn one_line(text: &str) -> String {
    let text = text.trim_end_matches('\n');
    let mut out = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\n    "),
            c if is_printable(c) => out.push(c),
            _ => out.push('?'),
        }
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    /// An outlet, and the end that reads what comes out of it.
    fn pipe() -> (Arc<Outlet>, UnixStream) {
        let (reader, writer) = UnixStream::pair().unwrap();
        let outlet = Arc::new(Outlet::default());
        let writing = outlet.clone();
        // It waits for more when the test is over, and ends with it.
        thread::spawn(move || writing.write_all(&Sink::Stream(writer)));
        (outlet, reader)
    }

    #[test]
    fn a_reader_that_stops_costs_lines_and_no_time() {
        let (outlet, reader) = pipe();
        let line = [&[b'x'; 99][..], b"\n"].concat();
        for _ in 0..50_000 {
            outlet.push(&line, PLAIN);
        }
        assert!(outlet.lock().bytes.len() <= PLAIN);
        outlet.push(b"an error\n", MOST);
        // The end of the program does not wait for the reader, who takes nothing before this returns.
        outlet.finish();
        // The reader goes on: what was not dropped comes, and how much was.
        reader.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut lines = std::io::BufReader::new(reader).lines().map(Result::unwrap);
        let (mut kept, mut dropped, mut errors) = (0, 0, 0);
        while kept + dropped < 50_000 || errors < 1 {
            let line = lines.next().unwrap();
            match line.as_str() {
                "an error" => errors += 1,
                line if line.starts_with("xxx") => kept += 1,
                line => dropped += line.split(' ').nth(1).unwrap().parse::<u64>().unwrap(),
            }
        }
        assert_eq!(kept + dropped, 50_000);
        assert!(dropped > 0, "they cannot all have found room");
        outlet.push(b"one more\n", PLAIN);
        assert_eq!(lines.next().unwrap(), "one more");
    }

    #[test]
    fn an_entry_of_the_log_is_one_entry() {
        for (text, line) in [
            ("plain\n", "plain\n"),
            ("a\n2026 WARN forged\n", "a\n    2026 WARN forged\n"),
            ("a\u{202e}b\u{1b}[31mc\r\n", "a?b?[31mc?\n"),
        ] {
            assert_eq!(one_line(text), line, "{text:?}");
        }
    }
    #[test]
    fn an_event_is_a_line_with_time_level_and_fields() {
        for (colours, before, level) in
            [(false, "", " WARN"), (true, "\u{1b}[2m", "\u{1b}[0m \u{1b}[33m WARN\u{1b}[0m")]
        {
            let outlet: &'static Outlet = Box::leak(Box::default());
            let log = Log { outlet, level: LevelFilter::INFO, colours };
            tracing::subscriber::with_default(log, || {
                tracing::debug!("below the level");
                tracing::warn!(volume = %"vm1", what = "a\u{1b}b", code = 7, "full\n\u{1b}[2J");
            });
            let text = String::from_utf8(outlet.lock().bytes.clone()).unwrap();
            let time = text.strip_prefix(before).and_then(|text| text.get(..27)).unwrap();
            let digits = time.replace(|c: char| c.is_ascii_digit(), "0");
            assert_eq!(digits, "0000-00-00T00:00:00.000000Z");
            let rest = &text[before.len() + 27..];
            let level = if colours { level.to_owned() } else { format!(" {level}") };
            let wanted = format!("{level} full\n    ?[2J volume=vm1 what=\"a\\u{{1b}}b\" code=7\n");
            assert_eq!(rest, wanted);
        }
    }
}
