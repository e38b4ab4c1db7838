//! Layers over a volume that make it fail, slow or hang, or that let through only so much of a time:
//! for tests, and for the curious who want to see what their initiators do then.
//!
//! No shard waits: what is held up waits on the event loop's timers.

mod channel;
mod rules;
mod slow;

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use lunet_block::{Backend, Caps, Channel, Op, Slow};
use lunet_ring::{Payload, Ring};

use self::channel::LayeredChannel;
use self::rules::Rules;
use crate::Volume;

/// The part of all operations that is hit, in millionths: all of them.
pub const ALWAYS: u32 = 1_000_000;

/// Something that happens to operations on their way to the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// What happens.
    pub effect: Effect,
    /// To which operations.
    pub ops: Ops,
    /// Only to those that touch this range, in bytes. A flush has no place, and touches all.
    pub range: Option<Range<u64>>,
    /// To how many of them.
    pub which: Which,
}

impl Layer {
    /// A layer that hits every one of these operations.
    pub const fn new(effect: Effect, ops: Ops) -> Self {
        Self { effect, ops, range: None, which: Which::Share(ALWAYS) }
    }
}

/// What happens to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It fails with this error number, and takes no effect.
    Fault(i32),
    /// It begins later: after `time` and a random part of `spread`. Until then it can be
    /// cancelled.
    Delay {
        /// The shortest delay.
        time: Duration,
        /// The longest delay is this much longer.
        spread: Duration,
    },
    /// It does not begin until the layer is switched off, and cannot be cancelled, as with a disk
    /// that does not answer.
    Hang,
    /// All of them together, on all shards, do not exceed a rate: what comes too early begins later.
    /// Until then it can be cancelled, and what was cancelled has used its part.
    Limit(Rate),
}

/// How much each second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// So many bytes. An operation without data costs nothing.
    Bytes(NonZeroU64),
    /// So many operations.
    Operations(NonZeroU64),
}

impl Rate {
    /// How long an operation of so many bytes takes at this rate.
    fn time(self, bytes: u64) -> Duration {
        let (parts, rate) = match self {
            Self::Bytes(rate) => (bytes, rate),
            Self::Operations(rate) => (1, rate),
        };
        let nanos = u128::from(parts) * 1_000_000_000 / u128::from(rate.get());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Which operations of those that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// This many of a million, chosen at random.
    Share(u32),
    /// Only this one; the first is 1.
    Nth(u64),
}

/// Kinds of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ops {
    /// Reads.
    pub read: bool,
    /// Writes.
    pub write: bool,
    /// Flushes.
    pub flush: bool,
    /// Unmapping, and writing zeroes.
    pub unmap: bool,
}

impl Ops {
    /// All operations.
    pub const ALL: Self = Self { read: true, write: true, flush: true, unmap: true };
    /// Reads only.
    pub const READ: Self = Self { read: true, ..Self::NONE };
    /// Writes only.
    pub const WRITE: Self = Self { write: true, ..Self::NONE };
    /// Flushes only.
    pub const FLUSH: Self = Self { flush: true, ..Self::NONE };
    /// Unmapping, and writing zeroes.
    pub const UNMAP: Self = Self { unmap: true, ..Self::NONE };
    const NONE: Self = Self { read: false, write: false, flush: false, unmap: false };

    const fn has(self, op: Op) -> bool {
        match op {
            Op::Read | Op::ReadMapped => self.read,
            Op::Write { .. } => self.write,
            Op::Flush => self.flush,
            Op::Unmap | Op::WriteZeroes { .. } => self.unmap,
        }
    }
}

/// What the channels of a layered volume have in common.
#[derive(Debug)]
struct Shared {
    layers: Vec<State>,
    /// There is somebody who can switch layers off, as long as this lives.
    controls: Weak<()>,
    /// Operations that are held up at the moment.
    held: AtomicUsize,
    /// Sets of random numbers given out so far: each channel has its own.
    seeds: AtomicU64,
    /// What the times of limits are counted from.
    began: Instant,
}

#[derive(Debug)]
struct State {
    layer: Layer,
    on: AtomicBool,
    /// Operations that have matched.
    matched: AtomicU64,
    /// Of a limit: when everything that was let through so far has had its time, in nanoseconds.
    free: AtomicU64,
}

impl State {
    fn new(layer: Layer) -> Self {
        Self {
            layer,
            on: AtomicBool::new(true),
            matched: AtomicU64::new(0),
            free: AtomicU64::new(0),
        }
    }
}

/// Switches the layers of a volume while it is served. When it is dropped, what hangs hangs for
/// ever.
#[derive(Clone, Debug)]
pub struct Controls {
    shared: Arc<Shared>,
    _alive: Arc<()>,
}

impl Controls {
    /// Switches a layer on or off. They are numbered as they were given, from 0; all are on at
    /// first. What hangs in a layer that is switched off goes on within milliseconds.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn switch(&self, layer: usize, on: bool) {
        self.shared.layers[layer].on.store(on, Ordering::SeqCst);
    }

    /// Operations that are held up at the moment, on all shards.
    pub fn held(&self) -> usize {
        self.shared.held.load(Ordering::SeqCst)
    }

    /// Operations that a layer has matched so far, whether they were hit or not.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn matched(&self, layer: usize) -> u64 {
        self.shared.layers[layer].matched.load(Ordering::SeqCst)
    }
}

/// Puts layers on a volume. Of those that hit an operation, all delays add up, the limit that is
/// reached last and the first fault count. If the volume has layers already, the new ones come behind them, and share
/// nothing but what is below.
pub fn wrap(volume: Volume, layers: &[Layer]) -> (Volume, Controls) {
    let below = of(&volume).map(|layered| {
        let old = layered.shared.layers.iter().map(|state| state.layer.clone());
        (old.collect::<Vec<_>>(), layered.inner.clone())
    });
    let (mut all, inner) = below.unwrap_or_else(|| (Vec::new(), volume));
    all.extend_from_slice(layers);
    let alive = Arc::new(());
    let shared = Arc::new(Shared {
        layers: all.into_iter().map(State::new).collect(),
        controls: Arc::downgrade(&alive),
        held: AtomicUsize::new(0),
        seeds: AtomicU64::new(0),
        began: lunet_os::time::now(),
    });
    (Arc::new(Layered { inner, shared: Arc::clone(&shared) }), Controls { shared, _alive: alive })
}

/// The layered volume, if it is one.
pub(crate) fn of(volume: &Volume) -> Option<&Layered> {
    volume.slow().as_any().and_then(|any| any.downcast_ref())
}

/// A volume with layers.
pub(crate) struct Layered {
    inner: Volume,
    shared: Arc<Shared>,
}

impl Layered {
    /// The volume that the layer wraps.
    pub fn inner(&self) -> &Volume {
        &self.inner
    }

    /// The same layers, in the same state, on another volume.
    pub fn over(&self, inner: Volume) -> Volume {
        Arc::new(Self { inner, shared: Arc::clone(&self.shared) })
    }
}

impl Backend<Payload, Ring> for Layered {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn ready_channels(&self, channels: usize) -> Result<(), i32> {
        self.inner.ready_channels(channels)
    }

    fn open_channel(
        &self,
        number: u16,
        io: &mut Ring,
    ) -> Result<Box<dyn Channel<Payload, Ring>>, i32> {
        let rules = Rules::new(Arc::clone(&self.shared));
        let inner = self.inner.open_channel(number, io)?;
        Ok(Box::new(LayeredChannel::new(inner, rules, number)))
    }

    fn slow(&self) -> &dyn Slow {
        self
    }
}
