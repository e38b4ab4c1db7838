//! A volume in memory that says it has a write cache, and remembers what changes it.

use std::sync::{Arc, Mutex};

use lunet_backends::Volume;
use lunet_block::{Backend, Caps, Channel, Completion, IoDone, Op, Request, Submit};
use lunet_ring::{Payload, Ring};

/// The requests, without reads, in their order.
pub type Record = Arc<Mutex<Vec<Op>>>;

pub struct Recording {
    inner: Volume,
    caps: Caps,
    record: Record,
}

impl Recording {
    pub fn over(inner: Volume) -> (Volume, Record) {
        let caps = Caps { write_cache: true, ..inner.caps().clone() };
        let record = Record::default();
        (Arc::new(Self { inner, caps, record: record.clone() }), record)
    }
}

impl Backend<Payload, Ring> for Recording {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn open_channel(
        &self,
        number: u16,
        ring: &mut Ring,
    ) -> Result<Box<dyn Channel<Payload, Ring>>, i32> {
        let inner = self.inner.open_channel(number, ring)?;
        Ok(Box::new(RecordingChannel { inner, record: self.record.clone() }))
    }
}

struct RecordingChannel {
    inner: Box<dyn Channel<Payload, Ring>>,
    record: Record,
}

impl Channel<Payload, Ring> for RecordingChannel {
    fn submit(&mut self, request: Request<Payload>, ring: &mut Ring) -> Submit<Payload> {
        if !matches!(request.op, Op::Read | Op::ReadMapped) {
            self.record.lock().expect("nobody panics").push(request.op);
        }
        self.inner.submit(request, ring)
    }

    fn advance(&mut self, done: IoDone<Payload>, ring: &mut Ring) -> Option<Completion<Payload>> {
        self.inner.advance(done, ring)
    }

    fn cancel(&mut self, tag: u64, ring: &mut Ring) {
        self.inner.cancel(tag, ring);
    }

    fn close(self: Box<Self>, ring: &mut Ring) {
        self.inner.close(ring);
    }
}
