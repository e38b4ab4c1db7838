//! Orders that every shard has a part of.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is called when every shard has done its part. A shard may call it: it must not block.
type Done = Box<dyn FnOnce() + Send + Sync>;

/// A shard's part of an order. With the last of them that is dropped, wherever that is, the order is done: a shard that has
/// ended has nothing left to do.
#[derive(Clone)]
pub struct Part(Arc<Finish>);

struct Finish {
    done: Option<Done>,
    given_up: AtomicBool,
}

impl Part {
    /// The first part of an order. `done` is called, once, when the last one is dropped.
    pub fn new(done: impl FnOnce() + Send + Sync + 'static) -> Self {
        let done: Done = Box::new(done);
        Self(Arc::new(Finish { done: Some(done), given_up: AtomicBool::new(false) }))
    }

    /// The same part, for whoever keeps it as this.
    pub fn as_done(&self) -> lunet_volume::reserve::Done {
        self.0.clone()
    }

    /// The order is given up: nobody is told that it is done.
    pub fn give_up(&self) {
        self.0.given_up.store(true, Ordering::Relaxed);
    }
}

impl Drop for Finish {
    fn drop(&mut self) {
        let done = self.done.take();
        if let Some(done) = done.filter(|_| !*self.given_up.get_mut()) {
            done();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn an_order_is_done_with_its_last_part_and_not_if_it_is_given_up() {
        let count = Arc::new(AtomicU32::new(0));
        let part = || {
            let count = count.clone();
            Part::new(move || {
                count.fetch_add(1, Ordering::Relaxed);
            })
        };
        let first = part();
        let second = first.clone();
        let third = first.as_done();
        drop((first, third));
        assert_eq!(count.load(Ordering::Relaxed), 0);
        drop(second);
        assert_eq!(count.load(Ordering::Relaxed), 1);
        let given_up = part();
        given_up.give_up();
        drop(given_up);
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}
