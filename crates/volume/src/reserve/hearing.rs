//! Which volumes a protocol listens to.

use std::sync::{Arc, Weak};

use super::{Listener, Shared};
use crate::VolumeId;

/// Makes what listens to one volume.
type Ear = Box<dyn Fn(VolumeId) -> Arc<dyn Listener> + Send>;

/// The volumes whose reservations a protocol listens to, from its start on.
#[derive(Default)]
pub struct Hearing {
    /// `None` before the start: nobody is there to be told then.
    ear: Option<Ear>,
    heard: Vec<(VolumeId, Weak<Shared>)>,
}

impl Hearing {
    /// The protocol has started: what there is to hear is heard from now on, by what `ear` makes.
    pub fn begin(&mut self, ear: impl Fn(VolumeId) -> Arc<dyn Listener> + Send + 'static) {
        for (slot, reservations) in &self.heard {
            if let Some(reservations) = reservations.upgrade() {
                reservations.listen(ear(*slot));
            }
        }
        self.ear = Some(Box::new(ear));
    }

    /// Hears of those among these volumes that were not heard of before.
    pub fn hear<'a>(&mut self, volumes: impl Iterator<Item = (VolumeId, &'a Arc<Shared>)>) {
        self.heard.retain(|(_, of)| of.strong_count() > 0);
        for (slot, reservations) in volumes {
            let same = |(at, of): &(VolumeId, Weak<Shared>)| {
                *at == slot && std::ptr::eq(of.as_ptr(), Arc::as_ptr(reservations))
            };
            if self.heard.iter().any(same) {
                continue;
            }
            self.heard.push((slot, Arc::downgrade(reservations)));
            if let Some(ear) = &self.ear {
                reservations.listen(ear(slot));
            }
        }
    }
}
