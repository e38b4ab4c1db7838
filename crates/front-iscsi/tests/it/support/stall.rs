//! A volume whose requests can be held up, as by a disk that does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lunet_backends::{Volume, disk_token};
use lunet_block::{
    Backend, ByteRange, Caps, Channel, Completion, Error, Extent, IoDone, IoToken, Op, Request,
    Slow, Space, Submit,
};
use lunet_ring::{FileId, Payload, Ring, Treatment};

/// Holds writes up while it is closed.
#[derive(Default)]
pub struct Gate {
    closed: AtomicBool,
    held: AtomicUsize,
    broken: AtomicBool,
}

impl Gate {
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    pub fn open(&self) {
        self.closed.store(false, Ordering::SeqCst);
    }

    /// Opens it, and what was held fails.
    pub fn break_open(&self) {
        self.broken.store(true, Ordering::SeqCst);
        self.open();
    }

    /// What is let through succeeds again.
    pub fn repair(&self) {
        self.broken.store(false, Ordering::SeqCst);
    }

    /// How many requests it holds.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }
}

pub struct Stalling {
    inner: Volume,
    caps: Caps,
    gate: Arc<Gate>,
    slow: StallingSlow,
}

impl Stalling {
    pub fn new(inner: Volume, gate: Arc<Gate>) -> Self {
        let slow = StallingSlow { inner: inner.clone(), gate: gate.clone() };
        let caps = inner.caps().clone();
        Self { inner, caps, gate, slow }
    }

    /// The same with a write cache, as it says.
    pub fn volatile(inner: Volume, gate: Arc<Gate>) -> Self {
        let caps = Caps { write_cache: true, ..inner.caps().clone() };
        Self { caps, ..Self::new(inner, gate) }
    }
}

/// Copies are held up as well.
struct StallingSlow {
    inner: Volume,
    gate: Arc<Gate>,
}

impl Slow for StallingSlow {
    fn extents(&self, range: ByteRange, most: usize) -> Result<Vec<Extent>, Error> {
        self.inner.slow().extents(range, most)
    }

    fn copy_from(&self, at: u64, source: &dyn Slow, from: ByteRange) -> Result<u64, Error> {
        self.gate.held.fetch_add(1, Ordering::SeqCst);
        while self.gate.closed.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        self.gate.held.fetch_sub(1, Ordering::SeqCst);
        self.inner.slow().copy_from(at, source, from)
    }

    fn space(&self) -> Result<Space, Error> {
        self.inner.slow().space()
    }
}

impl Backend<Payload, Ring> for Stalling {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn open_channel(
        &self,
        number: u16,
        ring: &mut Ring,
    ) -> Result<Box<dyn Channel<Payload, Ring>>, i32> {
        // Something to wait on while the gate is closed: flushing an empty file, over and over.
        let file = tempfile::tempfile().map_err(|error| error.raw_os_error().unwrap_or(5))?;
        let treatment = Treatment::of(&file);
        Ok(Box::new(StallingChannel {
            inner: self.inner.open_channel(number, ring)?,
            gate: self.gate.clone(),
            file: ring.add_file(Arc::new(file), treatment),
            number,
            held: Vec::new(),
        }))
    }

    fn slow(&self) -> &dyn Slow {
        &self.slow
    }
}

struct StallingChannel {
    inner: Box<dyn Channel<Payload, Ring>>,
    gate: Arc<Gate>,
    file: FileId,
    number: u16,
    held: Vec<Option<Request<Payload>>>,
}

impl StallingChannel {
    fn wait(&self, slot: usize, ring: &mut Ring) {
        let token = disk_token(IoToken { channel: self.number, slot: slot as u32 });
        ring.sync_data(self.file, token);
    }
}

impl Channel<Payload, Ring> for StallingChannel {
    fn submit(&mut self, request: Request<Payload>, ring: &mut Ring) -> Submit<Payload> {
        let stalls = matches!(request.op, Op::Write { .. } | Op::Flush | Op::Unmap);
        if !stalls || !self.gate.closed.load(Ordering::SeqCst) {
            return self.inner.submit(request, ring);
        }
        self.gate.held.fetch_add(1, Ordering::SeqCst);
        self.held.push(Some(request));
        self.wait(self.held.len() - 1, ring);
        Submit::Queued
    }

    fn advance(&mut self, done: IoDone<Payload>, ring: &mut Ring) -> Option<Completion<Payload>> {
        let slot = done.slot as usize;
        if self.gate.closed.load(Ordering::SeqCst) {
            self.wait(slot, ring);
            return None;
        }
        let request = self.held[slot].take().expect("a held request");
        self.gate.held.fetch_sub(1, Ordering::SeqCst);
        if self.gate.broken.load(Ordering::SeqCst) {
            return Some(request.complete(Err(Error::Io(5))));
        }
        match self.inner.submit(request, ring) {
            Submit::Done(completion) => Some(completion),
            Submit::Queued | Submit::Busy(_) => panic!("memory answers at once"),
        }
    }

    fn cancel(&mut self, _tag: u64, _ring: &mut Ring) {
        // The disk has it already.
    }

    fn close(self: Box<Self>, ring: &mut Ring) {
        ring.remove_file(self.file);
        self.inner.close(ring);
    }
}
