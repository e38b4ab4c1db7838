//! What the world, the server and its hosts share.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lunet_os::simulated;

use crate::model::Model;

/// How many lines of the story are kept.
const LINES: usize = 4000;

/// What is known of everything.
#[derive(Debug, Default)]
pub struct Known {
    /// Where the server listens, while it does.
    pub address: Option<SocketAddr>,
    /// What may be read, volume by volume.
    pub models: Vec<Model>,
    /// What was found wrong first.
    pub wrong: Option<String>,
    /// Hosts that have not finished.
    pub busy: usize,
    /// Operations that were answered.
    pub operations: u64,
    /// Hosts come to their end.
    pub over: bool,
    story: Vec<String>,
}

/// The way to it.
#[derive(Clone, Debug, Default)]
pub struct Site(Arc<Mutex<Known>>);

impl Site {
    /// Looks at it, or changes it. Nobody gives a turn away meanwhile.
    pub fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A line of the story.
    pub fn tell(&self, who: &str, what: &str) {
        let line = format!("{:>12.6} s  {who}: {what}", now().as_secs_f64());
        let story = &mut self.known().story;
        if story.len() < LINES {
            story.push(line);
        }
    }

    /// Something is wrong.
    pub fn wrong(&self, who: &str, what: &str) {
        self.tell(who, &format!("WRONG: {what}"));
        self.known().wrong.get_or_insert(format!("{who}: {what}"));
    }

    /// The story so far.
    pub fn story(&self) -> Vec<String> {
        self.known().story.clone()
    }
}

/// The time of the world.
pub fn now() -> Duration {
    simulated::elapsed().unwrap_or_default()
}
