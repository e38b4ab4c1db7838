//! Copies meet the layers too: as reads of the source and writes of the target. They are made on
//! helper threads, so it is the thread that waits.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lunet_block::{ByteRange, Error, Extent, Op, Slow, Space};

use super::Layered;
use super::rules::Rules;

/// How often it is looked whether what hangs may go on.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

impl Layered {
    /// Waits as long as the layers want, and gives the error that they want.
    fn endure(&self, op: Op, range: ByteRange) -> Result<(), Error> {
        let mut rules = Rules::new(Arc::clone(&self.shared));
        let wait = rules.wait(op, range);
        self.shared.held.fetch_add(1, Ordering::SeqCst);
        while wait.hang.is_some_and(|layer| rules.is_on(layer)) {
            lunet_os::thread::sleep(LOOK_AGAIN);
        }
        if let Some(delay) = wait.delay {
            lunet_os::thread::sleep(delay);
        }
        self.shared.held.fetch_sub(1, Ordering::SeqCst);
        rules.fault(op, range).map_or(Ok(()), Err)
    }
}

impl Slow for Layered {
    fn extents(&self, range: ByteRange, most: usize) -> Result<Vec<Extent>, Error> {
        self.inner.slow().extents(range, most)
    }

    fn copy_from(&self, at: u64, source: &dyn Slow, from: ByteRange) -> Result<u64, Error> {
        let layered = source.as_any().and_then(|any| any.downcast_ref::<Self>());
        if let Some(source) = layered {
            source.endure(Op::Read, from)?;
        }
        self.endure(Op::Write { fua: false }, ByteRange::new(at, from.len))?;
        let source = layered.map_or(source, |layered| layered.inner.slow());
        self.inner.slow().copy_from(at, source, from)
    }

    fn space(&self) -> Result<Space, Error> {
        self.inner.slow().space()
    }

    fn sync(&self) -> Result<(), Error> {
        self.endure(Op::Flush, ByteRange::new(0, 0))?;
        self.inner.slow().sync()
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}
