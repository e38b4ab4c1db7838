//! An NVMe host that reads and writes the volumes of the iSCSI hosts, and believes nothing.

use std::time::Duration;

use super::commands::{self, Answer, Order};
use super::visit::{Does, Life};
use crate::commands::{Copying, Sent};
use crate::site::{Site, now};

/// What a host does.
#[derive(Clone, Debug)]
pub struct Host {
    /// What every host does.
    pub life: Life,
    /// Commands that do not concern the first volume are not under way for longer than this, if that is known.
    pub sound: Option<Duration>,
    /// Whether a flush of all volumes, or the shutdown of a controller, can be relied on.
    pub flushes_all: bool,
}

/// What it sends.
struct Blocks {
    volumes: Vec<usize>,
    patience: Duration,
    sound: Option<Duration>,
    flushes_all: bool,
    copying: Copying,
    site: Site,
}

impl Host {
    /// Its life.
    pub fn run(self) {
        let Self { life, sound, flushes_all } = self;
        let (volumes, patience) = (life.volumes.clone(), life.patience);
        let copying = Copying::default();
        let blocks =
            Blocks { volumes, patience, sound, flushes_all, copying, site: life.site.clone() };
        life.run(blocks);
    }
}

impl Does for Blocks {
    type Command = Sent;

    fn draw(&mut self) -> Option<Order<Sent>> {
        commands::draw(&mut self.site.known(), &self.volumes, self.flushes_all)
    }

    fn words(&self, sent: &Sent) -> String {
        sent.to_string()
    }

    fn undone(&mut self, sent: Sent) {
        sent.undone(&mut self.site.known());
    }

    fn answered(&mut self, sent: Sent, answer: &Answer, begun: Duration) -> Result<(), String> {
        sent.answered(&mut self.site.known(), &mut self.copying, answer.ended(), begun)?;
        answer.fault()
    }

    fn over(&mut self, sent: Sent) {
        if let Some((volume, value)) = sent.writes() {
            let mut known = self.site.known();
            known.end_copy(value);
            known.models[volume].over(value, now());
        }
    }

    fn bound(&self, sent: &Sent) -> Duration {
        let copies = sent.writes().is_some_and(|(_, value)| self.site.known().is_copy(value));
        match self.sound {
            Some(bound) if sent.volume() != 0 && !copies => bound,
            _ => self.patience,
        }
    }

    fn shut_down(&mut self, begun: Duration) {
        if self.flushes_all {
            self.site.known().models.iter_mut().for_each(|model| model.flushed(begun));
        }
    }
}
