//! The audit log: a line of JSON for each change, login and token, in a file that only its owner reads.

use std::borrow::Cow;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hyper::StatusCode;
use lunet_api::{Change, Code};
use lunet_files as files;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use crate::problem::Problem;

/// When a file is full, in bytes.
const FULL: u64 = 4 << 20;

/// Full files that are kept.
const KEPT: usize = 4;

/// As long as so many notices wait, those that can be spared are dropped.
const WAITING: usize = 1024;

/// As long as so many notices wait, nothing is changed over the interface: it would not be written down.
const BEHIND: usize = 2 * WAITING;

/// Something that was asked for, done or refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(default)]
pub struct AuditEntry {
    /// When, in seconds since 1970, UTC.
    pub time: u64,
    /// Who has asked: an account or token, a user of this machine, a signal.
    pub who: String,
    /// Where they came from; `None`: from this machine, and not over the network.
    pub address: Option<String>,
    /// What they have asked for.
    pub what: String,
    /// `done: ...` or `refused: ...`.
    pub outcome: String,
}

/// Is told whether an entry is on stable storage. If it is not, it will not be.
pub(crate) type Ack = oneshot::Sender<bool>;

/// What the thread of the interface is told.
pub(crate) enum Notice {
    /// For the audit log.
    Entry(AuditEntry, Option<u64>),
    /// The same of something that is done once it is written down, and not otherwise.
    Before(AuditEntry, Ack),
    /// Something of this kind is different now.
    Changed(Cow<'static, str>),
}

/// Tells the interface what happens elsewhere in the server. It never waits for the interface. A change is always
/// written down: the interface refuses changes in time if it does not get on with that, and those of others are few.
#[derive(Clone)]
pub struct Notifier {
    sender: mpsc::UnboundedSender<Notice>,
    shared: Arc<Shared>,
}

/// The other end of a [`Notifier`], for [`Control::start`](crate::Control::start).
pub struct Notices {
    receiver: mpsc::UnboundedReceiver<Notice>,
    shared: Arc<Shared>,
}

/// What both ends know.
#[derive(Default)]
struct Shared {
    /// Notices that were sent and are not written.
    waiting: AtomicUsize,
    /// Where the entries go, since the interface has begun.
    log: OnceLock<Log>,
}

/// A way to tell the interface what happens elsewhere.
pub fn notifier() -> (Notifier, Notices) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let shared = Arc::<Shared>::default();
    (Notifier { sender, shared: Arc::clone(&shared) }, Notices { receiver, shared })
}

impl Notifier {
    /// Something for the audit log that must be in it.
    pub fn record(&self, entry: AuditEntry) {
        self.put(entry, None);
    }

    /// The same with a number, which is [told](crate::Options::written) when the entry is written. Numbers rise.
    pub fn record_numbered(&self, number: u64, entry: AuditEntry) {
        self.put(entry, Some(number));
    }

    fn put(&self, entry: AuditEntry, number: Option<u64>) {
        let Err(Notice::Entry(entry, _)) = self.send(Notice::Entry(entry, number)) else { return };
        // The interface has ended, and what it was asked before ends now: nobody else writes.
        if let Some(log) = self.shared.log.get() {
            if let Err(error) = log.append(&[entry]) {
                tracing::error!("the audit log cannot be written: {error}");
            }
        }
    }

    /// Writes down something that is about to be done. It may be done if this succeeds.
    ///
    /// # Errors
    /// It cannot be written, and is not to be done.
    pub(crate) async fn before(&self, entry: AuditEntry) -> Result<(), Problem> {
        let (ack, written) = oneshot::channel();
        let is_written = match self.send(Notice::Before(entry, ack)) {
            Ok(()) => written.await.unwrap_or(false),
            // The interface has ended.
            Err(_) => false,
        };
        if is_written { Ok(()) } else { Err(unwritten()) }
    }

    /// Something for the audit log that can be spared: strangers can make any number of these.
    pub(crate) fn remark(&self, entry: AuditEntry) {
        match self.waiting() < WAITING {
            true => self.record(entry),
            false => tracing::warn!(
                "the audit log does not get on: lost: {} by {}",
                entry.what,
                entry.who
            ),
        }
    }

    /// A list is different now: one of those that a change [concerns](concerned).
    pub fn differs(&self, what: impl Into<Cow<'static, str>>) {
        if self.waiting() < WAITING {
            // Without an interface nobody wants to know.
            let _ = self.send(Notice::Changed(what.into()));
        }
    }

    /// Gives back what nobody takes any more.
    fn send(&self, notice: Notice) -> Result<(), Notice> {
        // First, as the other end may be done with it before this returns.
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        self.sender.send(notice).map_err(|back| {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            back.0
        })
    }

    /// Refuses what would have to be written down, if the log is far behind.
    ///
    /// # Errors
    /// It is.
    pub(crate) fn keeps_up(&self) -> Result<(), Problem> {
        match self.waiting() < BEHIND {
            true => Ok(()),
            false => Err(unwritten()),
        }
    }

    fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::Relaxed)
    }

    /// From now on, entries that come after the end of the interface are written here.
    pub(crate) fn ends_in(&self, log: Log) {
        self.shared.log.get_or_init(|| log);
    }
}

/// Why something is not done that would have to be written down.
fn unwritten() -> Problem {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let text = "the audit log cannot be written, so nothing is changed here";
    let problem = Problem::new(status, &Code::Failed.to_string(), text);
    problem.fix("see the log of lunet, and whether the disk is full").retry(5)
}

impl Notices {
    /// Some notices, once there are any; none if there will be no more.
    pub(crate) async fn some(&mut self, into: &mut Vec<Notice>) -> usize {
        self.receiver.recv_many(into, 64).await
    }

    /// Those that wait at the end.
    pub(crate) fn rest(&mut self) -> Vec<Notice> {
        self.receiver.close();
        std::iter::from_fn(|| self.receiver.try_recv().ok()).collect()
    }

    /// So many are dealt with.
    pub(crate) fn done(&self, count: usize) {
        self.shared.waiting.fetch_sub(count, Ordering::Relaxed);
    }
}

/// The lists that a change concerns.
pub fn concerned(change: &Change) -> &'static [&'static str] {
    match change {
        Change::Apply { .. } => &["volumes", "targets", "portals", "sessions", "config"],
        Change::EndSessions { .. } => &["sessions"],
        Change::CreateSnapshot { .. }
        | Change::DeleteSnapshot { .. }
        | Change::ReopenVolume { .. }
        | Change::RecreateVolume { .. }
        | Change::AdoptVolume { .. }
        | Change::Rollback { .. } => &["volumes"],
        Change::CreateVolume(_)
        | Change::ResizeVolume { .. }
        | Change::LimitVolume { .. }
        | Change::CloneVolume { .. } => &["volumes", "config"],
        Change::DeleteVolume { .. } | Change::Map { .. } | Change::Unmap { .. } => {
            &["volumes", "targets", "config"]
        }
        Change::CreateTarget { .. }
        | Change::DeleteTarget { .. }
        | Change::AllowInitiators { .. }
        | Change::DenyInitiators { .. }
        | Change::OpenTarget { .. }
        | Change::AddUser { .. }
        | Change::RemoveUser { .. } => &["targets", "config"],
        Change::AddPortal { .. } | Change::RemovePortal { .. } => &["portals", "config"],
    }
}

/// The files of the log. Every method blocks.
#[derive(Clone)]
pub(crate) struct Log {
    path: PathBuf,
    /// Held by who writes: at the end there may be several.
    writing: Arc<Mutex<()>>,
}

impl Log {
    pub(crate) fn new(directory: &Path) -> Self {
        Self { path: directory.join("audit.jsonl"), writing: Arc::default() }
    }

    /// A full file; the latest is 1.
    fn full(&self, number: usize) -> PathBuf {
        self.path.with_extension(format!("jsonl.{number}"))
    }

    /// Appends entries, and returns when they are on stable storage.
    ///
    /// # Errors
    /// The operating system refuses.
    pub(crate) fn append(&self, entries: &[AuditEntry]) -> io::Result<()> {
        files::make_directory(files::parent(&self.path), 0o700)?;
        let mut text = Vec::new();
        for entry in entries {
            serde_json::to_writer(&mut text, entry)?;
            text.push(b'\n');
        }
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut file = self.open()?;
        if file.metadata()?.len() + text.len() as u64 > FULL {
            for number in (1..KEPT).rev() {
                ignore_absent(fs::rename(self.full(number), self.full(number + 1)))?;
            }
            fs::rename(&self.path, self.full(1))?;
            file = self.open()?;
        }
        let length = file.metadata()?.len();
        if length > 0 && !ends_a_line(&file, length)? {
            // What a power loss has left of a line is not to spoil this one.
            text.insert(0, b'\n');
        }
        let written = file.write_all(&text).and_then(|()| file.sync_data());
        if written.is_err() {
            // Half a line would spoil the next one.
            let _ = file.set_len(length);
        }
        written
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&self.path)
    }

    /// At most `limit` entries from before a time, the newest first.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn read(&self, before: u64, limit: usize) -> io::Result<Vec<AuditEntry>> {
        let mut out = Vec::new();
        let all = [self.path.clone()].into_iter().chain((1..=KEPT).map(|number| self.full(number)));
        for path in all {
            let bytes = match fs::read(&path) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let lines = bytes.split(|byte| *byte == b'\n').rev();
            // The end of a line may be missing after a power loss.
            let entries = lines.filter_map(|line| serde_json::from_slice(line).ok());
            let wanted = |entry: &AuditEntry| entry.time < before;
            out.extend(entries.filter(wanted).take(limit - out.len()));
            if out.len() >= limit {
                break;
            }
        }
        Ok(out)
    }
}

fn ends_a_line(file: &File, length: u64) -> io::Result<bool> {
    let mut last = [0];
    file.read_exact_at(&mut last, length - 1)?;
    Ok(last == *b"\n")
}

fn ignore_absent(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(time: u64, what: String) -> AuditEntry {
        AuditEntry { time, what, ..AuditEntry::default() }
    }

    #[test]
    fn the_newest_come_first_and_full_files_are_kept_in_a_bound() {
        let folder = tempfile::TempDir::new().unwrap();
        let log = Log::new(folder.path());
        assert_eq!(log.read(u64::MAX, 9).unwrap(), []);
        let long = "x".repeat(1 << 20);
        for time in 0..30 {
            log.append(&[entry(time, long.clone())]).unwrap();
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1 + KEPT);
        let all = log.read(u64::MAX, 100).unwrap();
        let times: Vec<u64> = all.iter().map(|entry| entry.time).collect();
        assert!(
            times.len() < 30 && times.windows(2).all(|pair| pair[0] == pair[1] + 1),
            "{times:?}"
        );
        assert_eq!(times[0], 29);
        let some = log.read(20, 2).unwrap();
        assert_eq!(some.iter().map(|entry| entry.time).collect::<Vec<_>>(), [19, 18]);
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&log.path.metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_line_that_was_cut_off_is_passed_over() {
        let folder = tempfile::TempDir::new().unwrap();
        let log = Log::new(folder.path());
        log.append(&[entry(1, "a".into()), entry(2, "b".into())]).unwrap();
        let mut bytes = fs::read(&log.path).unwrap();
        bytes.extend(b"{\"time\":3,\"wh");
        fs::write(&log.path, bytes).unwrap();
        assert_eq!(log.read(u64::MAX, 9).unwrap().len(), 2);
        log.append(&[entry(4, "c".into())]).unwrap();
        assert_eq!(log.read(u64::MAX, 9).unwrap().len(), 3, "the next line is whole");
    }
}
