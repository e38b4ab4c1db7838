//! A RADOS client of a group with all that it has open, and what is asked of the cluster by it. Everything here blocks.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use lunet_gateway::{Ack, ClientName, Epoch, Failure, OpId, Record, Reply, Result};
use lunet_rbd::{Client, Image, ImageName, Object};

use crate::driver::{Config, Event};
use crate::store::{self, Error};

/// The error number of images that were given up: they are another gateway's.
const SHUT_DOWN: i32 = 108;
/// Of a record that makes no sense, or cannot be written.
const INVALID: i32 = 22;

/// A client with its images, the record, and the watch of the record.
#[derive(Debug)]
pub(crate) struct Session {
    /// The operation that made it.
    pub op: OpId,
    pub name: ClientName,
    /// As it was when the client was made.
    pub record: Record,
    pub images: Vec<Arc<Image>>,
    object: Object,
}

// Images without a group and those of one are fenced by the same rule.
const _: () = assert!(lunet_rbd::LONG_ENOUGH.as_secs() == lunet_gateway::LONG_ENOUGH.as_secs());

fn failed<T>(result: std::result::Result<T, i32>) -> Result<T> {
    result.map_err(Failure::from_errno)
}

impl Session {
    /// Makes a client, opens the images that the record names, without their locks, and watches the record.
    pub fn open(
        config: &Config,
        op: OpId,
        sender: Sender<Event>,
    ) -> std::result::Result<Self, Error> {
        let group = &config.group;
        let client = store::connect(group)?;
        let of_client = |errno| Error::of("ask for the client's address", errno);
        let address = client.address().map_err(of_client)?;
        let name = ClientName { address, lock: client.name() };
        let object = store::open(&client, &group.name)?;
        let record = store::load(&object, &group.name)?;
        config.agrees.ask(&record).map_err(Error::Disagrees)?;
        let volumes = record.contents.volumes.iter();
        let images = volumes.map(|volume| open_image(&client, &volume.image));
        let images = images.collect::<std::result::Result<_, _>>()?;
        // Without a receiver the group has ended.
        let tell = move |watched| drop(sender.send(Event::Watched(op, watched)));
        let watched = object.watch(Box::new(tell));
        watched.map_err(|errno| Error::of("watch the group's record", errno))?;
        Ok(Self { op, name, record, images, object })
    }

    /// Answers a notify. Does not wait for the cluster, but for room if too much I/O is under way.
    pub fn acknowledge(&self, notify: u64, answer: &[u8]) {
        self.object.acknowledge(notify, answer);
    }

    pub fn read(&self) -> Result {
        failed(self.object.read()).map(Reply::Record)
    }

    pub fn look(&self) -> Result {
        let record = failed(self.object.read())?;
        let mut locks = Vec::new();
        for image in &self.images {
            let locker = failed(image.locker())?;
            locks.extend(locker.map(|(address, lock)| ClientName { address, lock }));
        }
        Ok(Reply::Seen { record, locks })
    }

    pub fn blocklist(&self, address: &str, limit: Duration) -> Result {
        let seconds = u32::try_from(limit.as_secs()).unwrap_or(u32::MAX);
        failed(self.object.client().blocklist(address, seconds)).map(Reply::Listed)
    }

    pub fn wait_for_map(&self) -> Result {
        failed(self.object.client().wait_for_map()).map(|()| Reply::Done)
    }

    /// One after the other, as long as all goes well.
    pub fn each(&self, does: impl Fn(&Image) -> std::result::Result<(), i32>) -> Result {
        failed(self.images.iter().try_for_each(|image| does(image))).map(|()| Reply::Done)
    }

    pub fn swap(&self, expect: (Epoch, u64), record: &Record) -> Result {
        let Ok(bytes) = record.encode() else { return Err(Failure::Other(INVALID)) };
        let (expected, next) =
            (store::version(expect.0, expect.1), store::version(record.epoch, record.revision));
        failed(self.object.replace(&expected, &next, &bytes)).map(|()| Reply::Done)
    }

    pub fn notify(&self, bytes: &[u8], limit: Duration) -> Result {
        let acks = failed(self.object.notify(bytes, limit))?;
        Ok(Reply::Acks { acks: acks.answers.into_iter().map(Ack).collect(), all: acks.all })
    }

    /// Gives back what locks it has, as far as the cluster allows.
    pub fn release(&self) {
        for image in self.images.iter().filter(|image| image.is_locked()) {
            // One that cannot be given back is broken by whoever takes the group next.
            let _ = image.release();
        }
    }

    /// Nothing is asked of the images any more, wherever their handles are.
    pub fn give_up(&self) {
        self.images.iter().for_each(|image| image.give_up(SHUT_DOWN));
    }
}

fn open_image(client: &Arc<Client>, image: &str) -> std::result::Result<Arc<Image>, Error> {
    let name = ImageName::parse(&format!("rbd://{image}"));
    let name = name.map_err(|_| Error::Name(image.to_owned()))?;
    let opened = Image::open_unlocked(client, &name, false)
        .and_then(|image| image.has_no_object_map().map(|()| image));
    opened
        .map(Arc::new)
        .map_err(|source| Error::Image { image: image.to_owned(), source: Box::new(source) })
}
