//! A RADOS client of a group with all that it has open, and what is asked of the cluster by it. Everything here blocks.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use lunet_gateway::{
    Ack, ClientName, Epoch, Failure, GatewayId, Lost, Message, OpId, Record, Reply, Response,
    Result, Tag, Volume,
};
use lunet_rbd::{Client, Image, ImageName, Object};

use crate::driver::{Config, Event};
use crate::shared::{self, Heard, Shared, Shares};
use crate::silence::Silence;
use crate::store::{self, Error};

/// The error number of images that were given up: they are another gateway's.
const SHUT_DOWN: i32 = 108;
/// Of a record that makes no sense, or cannot be written.
const INVALID: i32 = 22;
/// EIO: the server does not serve the group's configuration.
const NOT_TAKEN: Failure = Failure::Other(5);
/// How often the configuration is read anew because the server has changed to another one meanwhile.
const READS: usize = 8;
/// How long gateways have to say that they are there.
const ROLL_LIMIT: Duration = Duration::from_secs(2);

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
    /// The object of the configuration of the group.
    config: Object,
    sharing: Option<Sharing>,
    silence: Silence,
}

/// A gateway that has said that it is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Present {
    /// Which one it is.
    pub gateway: GatewayId,
    /// It owns the group.
    pub owns: bool,
    /// The epoch that it knows of.
    pub epoch: Epoch,
    /// What it serves of the configuration that the gateways share.
    pub heard: Option<Heard>,
}

/// Images that have other sizes than the record says, with those.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    pub larger: Vec<(String, u64)>,
    pub smaller: Vec<(String, u64)>,
}

/// Who serves by the configuration of the group.
struct Sharing {
    shares: Arc<dyn Shares>,
    me: GatewayId,
    /// Somebody looks at it.
    looks: AtomicBool,
}

impl fmt::Debug for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharing").field("me", &self.me).finish_non_exhaustive()
    }
}

// Images without a group and those of one are fenced by the same rule.
const _: () = assert!(lunet_rbd::LONG_ENOUGH.as_secs() == lunet_gateway::LONG_ENOUGH.as_secs());

fn failed<T>(result: std::result::Result<T, i32>) -> Result<T> {
    result.map_err(Failure::from_errno)
}

impl Session {
    /// Makes a client, opens the images that the record names, without their locks, and watches the record. `known`: of which
    /// record the gateway is; one of another is given no client.
    pub fn open(
        config: &Config,
        op: OpId,
        sender: Sender<Event>,
        known: Option<Tag>,
    ) -> std::result::Result<Self, Error> {
        let group = &config.group;
        let client = store::connect(group)?;
        let of_client = |errno| Error::of("ask for the client's address", errno);
        let address = client.address().map_err(of_client)?;
        let name = ClientName { address, lock: client.name() };
        let object = store::open(&client, &group.name)?;
        let record = store::load(&object, &group.name)?;
        let is_another = known.is_some_and(|known| known != record.tag());
        let opened = Self::configured(config, op, &sender, (name, object, record));
        if is_another {
            // What the gateways share now is kept here all the same, for the next start.
            return Err(Error::Anew(store::object_of(&group.name)));
        }
        let mut session = opened?;
        config.agrees.ask(&session.record).map_err(Error::Disagrees)?;
        let volumes = session.record.contents.volumes.iter();
        let images = volumes.map(|volume| open_known(&client, volume));
        session.images = images.collect::<std::result::Result<_, _>>()?;
        // Without a receiver the group has ended.
        let tell = move |watched| drop(sender.send(Event::Watched(op, watched)));
        let watched = session.object.watch(Box::new(tell));
        watched.map_err(|errno| Error::of("watch the group's record", errno))?;
        Ok(session)
    }

    /// A client that knows the record, and serves by the configuration that the cluster has of the group.
    fn configured(
        config: &Config,
        op: OpId,
        sender: &Sender<Event>,
        (name, object, record): (ClientName, Object, Record),
    ) -> std::result::Result<Self, Error> {
        let (group, client) = (&config.group, object.client().clone());
        let of_config = shared::open(&client, &group.name)?;
        let sharing = config.shared.as_ref().map(|shares| -> std::result::Result<_, Error> {
            watch_config(&of_config, &group.name, op, sender.clone())?;
            let (shares, me, looks) = (shares.clone(), config.gateway.me, AtomicBool::new(false));
            Ok(Sharing { shares, me, looks })
        });
        let sharing = sharing.transpose()?;
        let images = Vec::new();
        let (config_object, silence) = (of_config, Silence::default());
        let session =
            Self { op, name, record, images, object, config: config_object, sharing, silence };
        // First: what this gateway has kept of it may be of a group that was made anew since.
        session.catch_up(&group.name)?;
        Ok(session)
    }

    /// Has the server serve by the configuration that the cluster has now.
    ///
    /// # Errors
    /// It cannot, or the configuration cannot be read; or there is one, and the server serves by another of its own.
    pub fn catch_up(&self, group: &ImageName) -> std::result::Result<(), Error> {
        let object = &self.config;
        let Some(Sharing { shares, .. }) = &self.sharing else {
            return match shared::load(object, group)? {
                Some(_) => Err(Error::InCluster(shared::object_of(group))),
                None => Ok(()),
            };
        };
        for _ in 0..READS {
            let since = shares.generation();
            let found = shared::load(object, group)?;
            let found = found.ok_or_else(|| Error::NoShared(shared::object_of(group)))?;
            if shares.take(since, found).map_err(Error::NotTaken)? {
                return Ok(());
            }
        }
        // It changes faster than it is read: whoever changes it tells of it.
        Ok(())
    }

    /// The same, unless somebody is about to do so.
    pub fn look_at_config(&self, group: &ImageName) -> std::result::Result<(), Error> {
        let Some(sharing) = &self.sharing else { return Ok(()) };
        if sharing.looks.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let done = self.catch_up(group);
        sharing.looks.store(false, Ordering::Release);
        done
    }

    /// Answers a gateway that has replaced the configuration.
    pub fn acknowledge_config(&self, notify: u64, done: &std::result::Result<(), Error>) {
        let Some(sharing) = &self.sharing else { return };
        let trouble = done.as_ref().err().map(Error::to_string);
        let heard = Heard { gateway: sharing.me, revision: sharing.shares.revision(), trouble };
        self.config.acknowledge(notify, &heard.encode());
    }

    /// Writes a configuration in the place of the one with the revision before.
    pub fn write_config(&self, group: &ImageName, next: &Shared) -> std::result::Result<(), Error> {
        shared::write(&self.config, group, next)
    }

    /// Tells all gateways that the configuration is another one. What they have answered, and how long was waited for those that
    /// have not, if there are some.
    pub fn tell_of_config(&self) -> std::result::Result<(Vec<Heard>, Option<Duration>), Error> {
        let limit = self.silence.limit(Instant::now());
        let acks = self.config.notify(&[], limit);
        let acks = acks.map_err(|errno| Error::of("tell the other gateways", errno))?;
        self.silence.heard(acks.all, Instant::now());
        let mut heard: Vec<Heard> =
            acks.answers.iter().filter_map(|answer| Heard::decode(answer)).collect();
        heard.sort_by_key(|one| one.gateway);
        Ok((heard, (!acks.all).then_some(limit)))
    }

    /// Which gateways are there, in the order of their numbers: the owner that the record names, if it is, and others. With what
    /// each serves of the configuration, if they share one.
    pub fn roll(&self) -> std::result::Result<Vec<Present>, Error> {
        let unasked = |errno| Error::of("ask the other gateways", errno);
        let record = self.object.read().map_err(unasked)?;
        let record = Record::decode(&record).map_err(|_| unasked(INVALID))?;
        let acks =
            self.object.notify(&Message::Ping(record.epoch).encode(record.tag()), ROLL_LIMIT);
        let answers = acks.map_err(unasked)?.answers;
        let owner = record.owner.as_ref().map(|owner| owner.gateway);
        let present = |answer: &Vec<u8>| match Response::decode(answer).ok()? {
            Response::Owner(epoch) => {
                Some(Present { gateway: owner?, owns: true, epoch, heard: None })
            }
            Response::NotOwner(epoch, gateway) => {
                Some(Present { gateway, owns: false, epoch, heard: None })
            }
            Response::Job(_) | Response::Refused(_) => None,
        };
        let mut all: Vec<_> = answers.iter().filter_map(present).collect();
        // An owner that has moved on meanwhile has said both.
        all.sort_by_key(|one| (one.gateway, !one.owns));
        all.dedup_by_key(|one| one.gateway);
        if self.sharing.is_some() {
            let (heard, _) = self.tell_of_config()?;
            for one in &mut all {
                one.heard = heard.iter().find(|heard| heard.gateway == one.gateway).cloned();
            }
        }
        Ok(all)
    }

    /// What of the volumes the images have become larger than, with their sizes now, and which have become smaller; both empty if
    /// none has changed since this was asked last.
    pub fn sizes(&self, anyway: bool) -> std::result::Result<Sizes, Error> {
        let mut sizes = Sizes::default();
        for (volume, image) in self.record.contents.volumes.iter().zip(&self.images) {
            if !image.has_changed() && !anyway {
                continue;
            }
            match image.size()? {
                size if size > volume.bytes => sizes.larger.push((volume.image.clone(), size)),
                size if size < volume.bytes => sizes.smaller.push((volume.image.clone(), size)),
                _ => {}
            }
        }
        Ok(sizes)
    }

    /// The RADOS client.
    pub fn client(&self) -> &Arc<Client> {
        self.object.client()
    }

    /// Has the images know what they are like now, and the server what the group's configuration is, before anything is
    /// served.
    pub fn refresh(&self, group: &ImageName) -> Result {
        let done = self.each(Image::refresh)?;
        self.catch_up(group).map(|()| done).map_err(|error| match error {
            Error::Failed { source, .. } => {
                Failure::from_errno(source.raw_os_error().unwrap_or(INVALID))
            }
            _ => NOT_TAKEN,
        })
    }

    /// Answers a notify. Does not wait for the cluster, but for room if too much I/O is under way.
    pub fn acknowledge(&self, notify: u64, answer: &[u8]) {
        self.object.acknowledge(notify, answer);
    }

    /// Those of the record.
    fn bytes(&self) -> Result<Vec<u8>> {
        self.object.read().map_err(|errno| match errno {
            store::ENOENT => Failure::NoRecord(Lost::Gone),
            errno => Failure::from_errno(errno),
        })
    }

    pub fn read(&self) -> Result {
        self.bytes().map(Reply::Record)
    }

    /// Sees whether the group can have more images: [`may_have`].
    pub fn may_have(&self, images: &[String]) -> std::result::Result<Vec<(String, u64)>, Error> {
        may_have(self.client(), images).map_err(|error| match error {
            Error::InUse { image, address } if self.is_owner(&address) => Error::OwnStill(image),
            other => other,
        })
    }

    /// True if a client is that of the group's owner, by the record as it is now.
    fn is_owner(&self, address: &str) -> bool {
        let record = self.object.read().ok().and_then(|bytes| Record::decode(&bytes).ok());
        let owner = record.and_then(|record| record.owner);
        owner.is_some_and(|owner| owner.client.address == address)
    }

    pub fn look(&self) -> Result {
        let record = self.bytes()?;
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
        self.silence.heard(acks.all, Instant::now());
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

/// Watches the configuration.
fn watch_config(
    object: &Object,
    group: &ImageName,
    op: OpId,
    sender: Sender<Event>,
) -> std::result::Result<(), Error> {
    // Without a receiver the group has ended.
    let tell = move |watched| drop(sender.send(Event::OfConfig(op, watched)));
    object.watch(Box::new(tell)).map_err(|errno| match errno {
        store::ENOENT => Error::NoShared(shared::object_of(group)),
        errno => Error::of("watch the group's configuration", errno),
    })
}

/// Sees whether a group can have these images: they are there, and nobody has their locks. Their ids and sizes.
pub(crate) fn may_have(
    client: &Arc<Client>,
    images: &[String],
) -> std::result::Result<Vec<(String, u64)>, Error> {
    let found = |image: &String| {
        let opened = open_image(client, image)?;
        let locker = opened.locker();
        match locker.map_err(|errno| Error::of("look at the lock of an image", errno))? {
            Some((address, _)) => Err(Error::InUse { image: image.clone(), address }),
            None => Ok((opened.id().to_owned(), opened.size()?)),
        }
    };
    images.iter().map(found).collect()
}

/// The image of a volume of the record. Another one by that name is none.
fn open_known(client: &Arc<Client>, volume: &Volume) -> std::result::Result<Arc<Image>, Error> {
    let image = open_image(client, &volume.image)?;
    if image.id() != volume.id {
        let (name, id) = (volume.image.clone(), image.id().to_owned());
        return Err(Error::Another { image: name, id, before: volume.id.clone() });
    }
    Ok(image)
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
