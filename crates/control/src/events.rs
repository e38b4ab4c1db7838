//! Server-sent events: what happens, for whoever listens.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::{self, HeaderValue};
use serde::Serialize;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, broadcast};
use tokio::time::timeout;

use crate::app::App;
use crate::problem::Problem;
use crate::reply::{Body, Response, Source, Stream, reply};
use crate::service::{Identity, Principal};

/// Events that a reader may be behind; one that is further behind is dropped.
const BEHIND: usize = 32;

/// What a stream has that has no event for a while. Clients skip comments.
const COMMENT: &[u8] = b":\n\n";

/// One event.
#[derive(Clone)]
struct Message {
    name: &'static str,
    data: Arc<str>,
}

/// Those who listen.
pub(crate) struct Events {
    sender: broadcast::Sender<Message>,
    readers: Arc<Semaphore>,
    /// Those of each account and token, and how many that may be.
    of_one: Arc<Mutex<HashMap<Identity, usize>>>,
    most_of_one: usize,
    /// Somebody listens.
    heard: Notify,
}

/// One of the places of an account or a token.
struct Counted {
    all: Arc<Mutex<HashMap<Identity, usize>>>,
    owner: Identity,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.owner);
            }
        }
    }
}

/// One who listens.
struct Reader {
    receiver: broadcast::Receiver<Message>,
    app: Arc<App>,
    who: Principal,
    _place: (OwnedSemaphorePermit, Counted),
}

impl Source for Reader {
    async fn next(mut self) -> Option<(Bytes, Self)> {
        let limit = self.app.options.limits.comment;
        let Ok(message) = timeout(limit, self.receiver.recv()).await else {
            return Some((Bytes::from_static(COMMENT), self));
        };
        // Whoever is too far behind gets no further events, rather than some of them.
        let Message { name, data } = message.ok()?;
        if !self.app.access.still(&self.who) {
            return None;
        }
        // JSON as it is written here has no line breaks, so the data is one line.
        Some((Bytes::from(format!("event: {name}\ndata: {data}\n\n")), self))
    }
}

impl Events {
    /// So many may listen, and so many of one account or token.
    pub(crate) fn new(readers: usize, most_of_one: usize) -> Self {
        let readers = Arc::new(Semaphore::new(readers));
        let (sender, of_one) = (broadcast::Sender::new(BEHIND), Arc::default());
        Self { sender, readers, of_one, most_of_one, heard: Notify::new() }
    }

    /// A place for one more of this account or token.
    fn count(&self, owner: Identity) -> Result<Counted, Problem> {
        let mut all = self.of_one.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(owner.clone()).or_default();
        if *count >= self.most_of_one {
            return Err(Problem::busy());
        }
        *count += 1;
        Ok(Counted { all: Arc::clone(&self.of_one), owner })
    }

    /// True if nobody listens.
    pub(crate) fn idle(&self) -> bool {
        self.sender.receiver_count() == 0
    }

    /// Waits until somebody listens.
    pub(crate) async fn heard(&self) {
        self.heard.notified().await;
    }

    /// Tells everybody who listens.
    pub(crate) fn send(&self, name: &'static str, data: &impl Serialize) {
        if let Ok(text) = serde_json::to_string(data) {
            // Nobody listens: nobody misses it.
            let _ = self.sender.send(Message { name, data: text.into() });
        }
    }

    /// The answer to somebody who wants to listen. It ends with their session, or when they are too slow.
    ///
    /// # Errors
    /// Too many listen already.
    pub(crate) fn listen(app: &Arc<App>, who: Principal) -> Result<Response, Problem> {
        let events = &app.events;
        let place = Arc::clone(&events.readers).try_acquire_owned().map_err(|_| Problem::busy())?;
        let place = (place, events.count(who.identity())?);
        let receiver = events.sender.subscribe();
        events.heard.notify_one();
        let reader = Reader { receiver, app: Arc::clone(app), who, _place: place };
        let mut response =
            reply(StatusCode::OK, "text/event-stream", Body::Stream(Stream::new(reader)));
        let kept = HeaderValue::from_static("no-cache");
        response.headers_mut().insert(header::CACHE_CONTROL, kept);
        Ok(response)
    }
}
