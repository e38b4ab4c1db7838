//! Server-sent events: what happens, for whoever listens.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Serialize;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, broadcast};

use crate::app::App;
use crate::problem::Problem;
use crate::service::Principal;

/// Events that a reader may be behind; one that is further behind is dropped.
const BEHIND: usize = 32;

/// How often a connection without events shows that it lives.
const ALIVE: Duration = Duration::from_secs(15);

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
    /// Somebody listens.
    heard: Notify,
}

/// One who listens.
struct Reader {
    receiver: broadcast::Receiver<Message>,
    app: Arc<App>,
    who: Principal,
    _place: OwnedSemaphorePermit,
}

impl Events {
    pub(crate) fn new(readers: usize) -> Self {
        let readers = Arc::new(Semaphore::new(readers));
        Self { sender: broadcast::Sender::new(BEHIND), readers, heard: Notify::new() }
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
        let receiver = events.sender.subscribe();
        events.heard.notify_one();
        let reader = Reader { receiver, app: Arc::clone(app), who, _place: place };
        let stream = stream::unfold(reader, |mut reader| async move {
            let message = reader.receiver.recv().await.ok()?;
            if !reader.app.access.still(&reader.who) {
                return None;
            }
            let event = Event::default().event(message.name).data(message.data);
            Some((Ok::<_, Infallible>(event), reader))
        });
        Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(ALIVE)).into_response())
    }
}
