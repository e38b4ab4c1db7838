//! Asynchronous events: what has happened, what the host was told, and what it has asked about.

use super::event::Tag;
use super::setup::EVENT_REQUESTS;
use crate::feature::Event;
use alloc::collections::{BTreeSet, VecDeque};

/// The events of a controller. Each is told once, until the host has read its log page; what
/// happens meanwhile is told then.
#[derive(Debug, Default)]
pub(super) struct Events {
    requests: VecDeque<Tag>,
    /// Asynchronous Event Configuration.
    pub enabled: u32,
    /// What has happened and the host was not told.
    waiting: BTreeSet<Event>,
    /// What the host was told and has not read about.
    masked: BTreeSet<Event>,
}

impl Events {
    /// Keeps an Asynchronous Event Request. False if there are too many.
    #[must_use]
    pub fn keep(&mut self, tag: Tag) -> bool {
        let room = self.requests.len() < EVENT_REQUESTS;
        if room {
            self.requests.push_back(tag);
        }
        room
    }

    /// Something has happened.
    pub fn happened(&mut self, event: Event) {
        let bit = event.enabled_by();
        if bit == 0 || self.enabled & bit != 0 {
            self.waiting.insert(event);
        }
    }

    /// The host has read the log page of an event.
    pub fn read(&mut self, event: Event) {
        // The page told of what was still waiting, too.
        self.masked.remove(&event);
        self.waiting.remove(&event);
    }

    /// What can be told now, and by which request.
    pub fn take(&mut self) -> Option<(Tag, Event)> {
        let event = self.waiting.iter().copied().find(|event| !self.masked.contains(event))?;
        let tag = self.requests.pop_front()?;
        self.waiting.remove(&event);
        self.masked.insert(event);
        Some((tag, event))
    }

    /// Forgets all but the requests, which are still the host's.
    pub fn reset(&mut self) {
        let requests = core::mem::take(&mut self.requests);
        *self = Self { requests, ..Self::default() };
    }

    /// Forgets a request. False if it is not kept.
    pub fn forget(&mut self, tag: Tag) -> bool {
        let at = self.requests.iter().position(|kept| *kept == tag);
        at.is_some_and(|at| self.requests.remove(at).is_some())
    }
}
