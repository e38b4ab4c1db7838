//! The thread that opens images. librados starts its own threads when it connects, and those have the limits of the thread
//! that they come from; so a server that may connect to nobody starts this one before it gives that up.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::{Error, Image, Place};

/// How long a cluster may take to let a client in and to open an image.
const PATIENCE: Duration = Duration::from_secs(60);

struct Job {
    place: Place,
    answer: Sender<Result<Image, Error>>,
}

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

fn run(Job { place, answer }: Job) {
    let work = move || {
        // Nobody may listen any more. Then the image is closed at once.
        drop(answer.send(Image::open(&place)));
    };
    // Without a thread the sender is gone, which is an answer.
    drop(std::thread::Builder::new().name("lunet-rbd-open".into()).spawn(work));
}

/// Opens an image. Blocks, at most a minute.
///
/// # Errors
/// [`Error`], as [`Image::open`].
pub fn open(place: &Place) -> Result<Arc<Image>, Error> {
    let (answer, opened) = channel();
    let job = Job { place: place.clone(), answer };
    match OPENER.get() {
        Some(jobs) => {
            drop(jobs.lock().unwrap_or_else(PoisonError::into_inner).send(job));
        }
        None => run(job),
    }
    match opened.recv_timeout(PATIENCE) {
        Ok(image) => image.map(Arc::new),
        Err(RecvTimeoutError::Timeout) => Err(Error::Late { seconds: PATIENCE.as_secs() }),
        Err(RecvTimeoutError::Disconnected) => {
            Err(Error::of("start a thread for it", libc::EAGAIN))
        }
    }
}
