//! The REST interface of a running lunet, its events, its jobs and its page.
//!
//! All of it runs in one thread, `control-http`, with an asynchronous runtime, and in a few threads for what blocks: in a
//! process of its own, not the one that serves volumes. It knows the server by one trait, [`Service`]. If that does not
//! answer, requests are refused after a time limit.
//!
//! Every route is one line of a table (`routes`), with the role that it needs and the types of its body and its answer:
//! the router and the OpenAPI document are both made of that table.
#![forbid(unsafe_code)]

mod access;
mod app;
mod audit;
mod binds;
mod events;
mod everybody;
mod folder;
mod guard;
mod jobs;
mod listen;
mod once;
mod openapi;
mod page;
mod patient;
mod plain;
mod problem;
mod reply;
mod routes;
mod seats;
mod service;
mod shape;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

pub use access::BookError;
pub use audit::{AuditEntry, Notices, Notifier, concerned, notifier};
pub use folder::FolderError;
pub use listen::{Bound, ListenError, Listeners};
pub use service::{Kind, Principal, RefusedLogin, Role, Service};

use app::App;

/// How long the end waits for the thread.
const FAREWELL: Duration = Duration::from_secs(3);

/// How long a thread waits for work: for as long as anything.
const STAYS: Duration = Duration::from_secs(u32::MAX as u64);

/// Bounds of time and number.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at one time.
    pub connections: usize,
    /// Readers of events at one time; each is a connection.
    pub readers: usize,
    /// Of these, those of one account or token.
    pub readers_of_one: usize,
    /// Requests to the server at one time.
    pub requests: usize,
    /// The largest body, in bytes.
    pub body_bytes: usize,
    /// The time for the handshake of TLS, and again for the header of a request.
    pub header: Duration,
    /// The time for a body.
    pub body: Duration,
    /// The time that the server has to answer a question.
    pub answer: Duration,
    /// How long a session lasts that is not used.
    pub idle: Duration,
    /// The interval of events.
    pub interval: Duration,
    /// After this time without an event, a stream of events has a comment, so that proxies keep the connection.
    pub comment: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            readers: 32,
            readers_of_one: 16,
            requests: 8,
            body_bytes: 256 << 10,
            header: Duration::from_secs(10),
            body: Duration::from_secs(15),
            answer: Duration::from_secs(10),
            idle: Duration::from_secs(12 * 3600),
            interval: Duration::from_secs(1),
            comment: Duration::from_secs(15),
        }
    }
}

/// What the interface is made of.
pub struct Options {
    /// Where it keeps accounts and the audit log; made when it is needed.
    pub directory: PathBuf,
    /// Names of this server, for the header `Host`, besides its addresses.
    pub names: Vec<String>,
    /// The program whose commands are jobs; without it there are none.
    pub program: Option<PathBuf>,
    /// What its environment has besides.
    pub environment: Vec<(OsString, OsString)>,
    /// Bounds of time and number.
    pub limits: Limits,
    /// The name of a user of this machine, if it has one.
    pub user: Box<dyn Fn(u32) -> Option<String> + Send + Sync>,
    /// Is told of the last number of [entries](Notifier::record_numbered) that are on stable storage, by the thread of the
    /// interface.
    pub written: Box<dyn Fn(u64) + Send + Sync>,
}

/// The interface of a running server. It ends when this is dropped.
pub struct Control {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
    app: Arc<App>,
}

impl Control {
    /// Starts to answer.
    ///
    /// # Errors
    /// The accounts cannot be read, or the system has no thread to give.
    pub fn start(
        bound: Bound,
        options: Options,
        service: Arc<dyn Service>,
        (notifier, notices): (Notifier, Notices),
    ) -> Result<Self, StartError> {
        let app = Arc::new(App::new(options, service, notifier)?);
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(app.options.limits.requests + 8)
            .thread_name("control-work")
            .thread_keep_alive(STAYS)
            .build()?;
        // One thread that does what may block is there from now on: where the system has no more to give, work waits for
        // it. Without any, the runtime would panic. That the system has one to give is seen first.
        let _ = thread::Builder::new().spawn(|| ())?.join();
        drop(runtime.spawn_blocking(|| ()));
        let here = Arc::clone(&app);
        let serve = move || {
            runtime.block_on(listen::serve(here, bound, notices, stopped));
            // What blocks in the server is not waited for.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("control-http".into()).spawn(serve)?;
        Ok(Self { stop: Some(stop), thread: Some(thread), app })
    }

    /// The code for the first start, while there is no account.
    pub fn code(&self) -> Option<String> {
        self.app.access.code()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        drop(self.stop.take());
        let Some(thread) = self.thread.take() else { return };
        // A thread that hangs is left behind: it serves nobody.
        let begun = std::time::Instant::now();
        while !thread.is_finished() {
            if begun.elapsed() > FAREWELL {
                tracing::warn!(
                    "the thread of the REST interface does not end: it is not waited for"
                );
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let _ = thread.join();
    }
}

/// Why the interface does not start.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what is wrong")]
pub enum StartError {
    #[error(transparent)]
    Accounts(#[from] BookError),
    #[error("cannot start the thread of the REST interface: {0}")]
    Thread(#[from] io::Error),
}

/// The OpenAPI document, as it is served. The name of the session's cookie is of each server.
pub fn openapi() -> String {
    openapi::document("lunet")
}

/// Every route, as method and path.
pub fn routes() -> Vec<(&'static str, &'static str)> {
    routes::TABLE.iter().map(|route| (route.method.as_str(), route.path)).collect()
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn why_it_does_not_start_is_said_once() {
        let path = PathBuf::from("accounts.json");
        let error = StartError::from(BookError::from(lunet_files::ReadError::TooLarge { path }));
        assert_eq!(error.to_string(), "accounts.json is too large");
        assert!(error.source().is_none(), "{:?}", error.source());
    }
}
