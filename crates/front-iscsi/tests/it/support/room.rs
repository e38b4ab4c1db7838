//! A volume in memory on a storage whose room is what the test says.

use std::sync::{Arc, Mutex};

use lunet_backends::Volume;
use lunet_block::{Backend, ByteRange, Caps, Channel, Error, Extent, Slow, Space};
use lunet_ring::{Payload, Ring};

/// The room, and how the storage fails if it does.
pub type Room = Arc<Mutex<Result<Space, Error>>>;

pub struct Roomy {
    inner: Volume,
    room: Room,
}

impl Roomy {
    pub fn over(inner: Volume, space: Space) -> (Volume, Room) {
        let room = Arc::new(Mutex::new(Ok(space)));
        (Arc::new(Self { inner, room: room.clone() }), room)
    }
}

impl Backend<Payload, Ring> for Roomy {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn open_channel(
        &self,
        number: u16,
        ring: &mut Ring,
    ) -> Result<Box<dyn Channel<Payload, Ring>>, i32> {
        self.inner.open_channel(number, ring)
    }

    fn slow(&self) -> &dyn Slow {
        self
    }
}

impl Slow for Roomy {
    fn extents(&self, range: ByteRange, most: usize) -> Result<Vec<Extent>, Error> {
        (*self.room.lock().expect("nobody panics"))?;
        self.inner.slow().extents(range, most)
    }

    fn space(&self) -> Result<Space, Error> {
        *self.room.lock().expect("nobody panics")
    }
}
