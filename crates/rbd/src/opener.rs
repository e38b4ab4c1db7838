//! The thread that opens and makes images. librados starts its own threads when it connects, and those have the limits of the thread
//! that they come from; so a server that may connect to nobody starts this one before it gives that up.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::{Error, Image, Place, snapshots};

/// How long a cluster may take to let a client in and to open an image.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a cluster that has not answered is not waited for again: a server with many images on it waits once, and its
/// other volumes are served.
const QUIET: Duration = Duration::from_secs(10);

/// Clusters that have not answered, each with the user that asked and when that was given up.
#[derive(Default)]
struct Silent(Vec<(PathBuf, String, Instant)>);

impl Silent {
    /// True if the cluster of this place has lately not answered its user.
    fn has(&mut self, place: &Place, now: Instant) -> bool {
        self.0.retain(|(_, _, since)| now.saturating_duration_since(*since) < QUIET);
        let (conf, user) = (place.conf_path(), place.user_name());
        self.0.iter().any(|(file, name, _)| (file, &**name) == (&conf, user))
    }

    /// It has not answered.
    fn add(&mut self, place: &Place, now: Instant) {
        if !self.has(place, now) {
            self.0.push((place.conf_path(), place.user_name().to_owned(), now));
        }
    }
}

static SILENT: Mutex<Silent> = Mutex::new(Silent(Vec::new()));

/// To be done on a thread of its own, which may connect to a cluster.
type Job = Box<dyn FnOnce() + Send>;

static OPENER: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();

/// Starts the thread by which all images of the process are opened from now on: with the limits that the calling thread has
/// now.
///
/// # Errors
/// There is no thread.
pub fn begin() -> std::io::Result<()> {
    if OPENER.get().is_some() {
        return Ok(());
    }
    let (jobs, work) = channel();
    std::thread::Builder::new().name("lunet-rbd".into()).spawn(move || serve(&work))?;
    // Two that begin at once have two threads, of which one ends.
    let _ = OPENER.set(Mutex::new(jobs));
    Ok(())
}

/// Each image on a thread of its own: one cluster that does not answer holds up no other one.
fn serve(work: &Receiver<Job>) {
    for job in work {
        run(job);
    }
}

fn run(job: Job) {
    // Without a thread nobody is left who could answer, which is an answer.
    drop(std::thread::Builder::new().name("lunet-rbd-open".into()).spawn(job));
}

/// Opens an image. Blocks, at most half a minute; not at all if its cluster has just been waited for in vain.
///
/// # Errors
/// [`Error`], as [`Image::open`].
pub fn open(place: &Place) -> Result<Arc<Image>, Error> {
    asked(place, Image::open).map(Arc::new)
}

/// Makes an image of so many bytes, with the features that images of the cluster have by default, and an exclusive lock.
/// Blocks as [`open`].
///
/// # Errors
/// [`Error`]: there is one of this name, or the cluster's. It may have been made if the cluster has not answered.
pub fn create(place: &Place, size: u64) -> Result<(), Error> {
    asked(place, move |place| snapshots::create(place, size))
}

/// Asks a cluster that is not known to be silent.
fn asked<T: Send + 'static>(
    place: &Place,
    ask: impl FnOnce(&Place) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let silent = || SILENT.lock().unwrap_or_else(PoisonError::into_inner);
    if silent().has(place, Instant::now()) {
        return Err(Error::Silent { conf: place.conf_path().display().to_string() });
    }
    let answered = asked_by_thread(place, ask);
    if answered.as_ref().is_err_and(Error::is_silence) {
        silent().add(place, Instant::now());
    }
    answered
}

fn asked_by_thread<T: Send + 'static>(
    place: &Place,
    ask: impl FnOnce(&Place) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (answer, answered) = channel();
    let place = place.clone();
    // Nobody may listen any more. Then what was opened is closed at once.
    let job: Job = Box::new(move || drop(answer.send(ask(&place))));
    match OPENER.get() {
        Some(jobs) => {
            drop(jobs.lock().unwrap_or_else(PoisonError::into_inner).send(job));
        }
        None => run(job),
    }
    match answered.recv_timeout(PATIENCE) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => Err(Error::Late { seconds: PATIENCE.as_secs() }),
        Err(RecvTimeoutError::Disconnected) => {
            Err(Error::of("start a thread for it", libc::EAGAIN))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ImageName;

    #[test]
    fn a_silent_cluster_is_left_alone_for_a_while() {
        let place = |conf: &str, user: &str| Place {
            conf: Some(conf.into()),
            user: Some(user.into()),
            ..Place::new(ImageName::parse("rbd://rbd/a").expect("a name"))
        };
        let (here, now) = (place("/a", "x"), Instant::now());
        let mut silent = Silent::default();
        assert!(!silent.has(&here, now));
        silent.add(&here, now);
        silent.add(&here, now);
        assert!(silent.has(&here, now + QUIET - Duration::from_millis(1)));
        assert!(!silent.has(&place("/b", "x"), now) && !silent.has(&place("/a", "y"), now));
        assert!(!silent.has(&here, now + QUIET), "it is asked again");
        assert!(silent.0.is_empty(), "and forgotten");
    }
}
