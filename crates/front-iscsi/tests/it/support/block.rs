//! A volume that stalls the event loop itself, as a driver or a file system may that blocks where none should.

use std::sync::{Arc, Condvar, Mutex};

use lunet_backends::Volume;
use lunet_block::{Backend, Caps, Channel, Completion, IoDone, Request, Slow, Submit};
use lunet_ring::{Payload, Ring};

/// What an event loop does when it is stalled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// It opens a channel.
    Open,
    /// It closes one.
    Close,
    /// It hands a request to the storage.
    Submit,
}

/// Stalls the first event loop that comes by after it was armed, until it is opened.
#[derive(Default)]
pub struct Trap {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Default)]
struct State {
    armed: Option<At>,
    stalled: bool,
}

impl Trap {
    pub fn arm(&self, at: At) {
        self.state.lock().expect("no panic").armed = Some(at);
    }

    /// True while it has an event loop.
    pub fn has_one(&self) -> bool {
        self.state.lock().expect("no panic").stalled
    }

    pub fn open(&self) {
        self.state.lock().expect("no panic").stalled = false;
        self.news.notify_all();
    }

    fn pass(&self, at: At) {
        let mut state = self.state.lock().expect("no panic");
        if state.armed == Some(at) {
            state.armed = None;
            state.stalled = true;
            while state.stalled {
                state = self.news.wait(state).expect("no panic");
            }
        }
    }
}

/// The volume.
pub struct Trapped {
    pub inner: Volume,
    pub trap: Arc<Trap>,
}

impl Backend<Payload, Ring> for Trapped {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn open_channel(
        &self,
        number: u16,
        ring: &mut Ring,
    ) -> Result<Box<dyn Channel<Payload, Ring>>, i32> {
        self.trap.pass(At::Open);
        let inner = self.inner.open_channel(number, ring)?;
        Ok(Box::new(TrappedChannel { inner, trap: self.trap.clone() }))
    }

    fn slow(&self) -> &dyn Slow {
        self.inner.slow()
    }
}

struct TrappedChannel {
    inner: Box<dyn Channel<Payload, Ring>>,
    trap: Arc<Trap>,
}

impl Channel<Payload, Ring> for TrappedChannel {
    fn submit(&mut self, request: Request<Payload>, ring: &mut Ring) -> Submit<Payload> {
        self.trap.pass(At::Submit);
        self.inner.submit(request, ring)
    }

    fn advance(&mut self, done: IoDone<Payload>, ring: &mut Ring) -> Option<Completion<Payload>> {
        self.inner.advance(done, ring)
    }

    fn cancel(&mut self, tag: u64, ring: &mut Ring) {
        self.inner.cancel(tag, ring);
    }

    fn lent(&self) -> usize {
        self.inner.lent()
    }

    fn lends(&self, answer: &Payload) -> bool {
        self.inner.lends(answer)
    }

    fn close(self: Box<Self>, ring: &mut Ring) {
        self.trap.pass(At::Close);
        self.inner.close(ring);
    }
}
