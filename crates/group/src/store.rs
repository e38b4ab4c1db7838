//! The record of a group as an object of the cluster.

use std::io;
use std::sync::Arc;

use lunet_gateway::{Epoch, Invalid, Malformed, Record};
use lunet_rbd::{Client, ImageName, Object, Place};

use crate::session::may_have;
use crate::shared::Unreadable;

/// What a server has to say of a group, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Said(pub String);

/// Why a group cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster, or one of the images.
    #[error(transparent)]
    Cluster(Box<lunet_rbd::Error>),
    /// One of the images, with its name.
    #[error("image {image}: {source}")]
    Image {
        /// Its name, as the record has it.
        image: String,
        /// What is wrong.
        source: Box<lunet_rbd::Error>,
    },
    /// The record names an image that has no such name.
    #[error(
        "the group's record names the image {0:?}, which is no name of an image: make the group anew"
    )]
    Name(String),
    /// There is no record.
    #[error(
        "there is no such group: its record, the object {0}, is not there: `lunet group create` writes it"
    )]
    None(String),
    /// The record is another one than that which this gateway knows.
    #[error(
        "the record of the group, the object {0}, was made anew since: restart lunet on this gateway"
    )]
    Anew(String),
    /// There is one already.
    #[error(
        "there is such a group already: the object {0} is there: give this one another name, or remove that object if the \
         group is to be made anew"
    )]
    Exists(String),
    /// It cannot be read.
    #[error(
        "the record of the group, the object {object}, cannot be read: {source}: run the version of lunet that has written \
         it, or make the group anew"
    )]
    Malformed {
        /// Its object.
        object: String,
        /// What is wrong with it.
        source: Malformed,
    },
    /// The server's configuration says something else than the record.
    #[error(
        "the configuration does not agree with the group's record: {0}: change the configuration of this gateway, then restart \
         it, or make the group anew"
    )]
    Disagrees(Said),
    /// The server cannot serve the images.
    #[error("the group's images cannot be served: {0}")]
    Refused(Said),
    /// There is no configuration.
    #[error(
        "the group has no configuration in the cluster, the object {0} is not there: `lunet group create` writes it"
    )]
    NoShared(String),
    /// There is a configuration, and the server has one of its own.
    #[error(
        "the group has its configuration in the cluster, the object {0}, and this gateway has one in its file: write `shared = \
         true` into the table of the group instead, and restart it"
    )]
    InCluster(String),
    /// The configuration cannot be read.
    #[error("the configuration of the group, the object {object}, cannot be used: {source}")]
    Unreadable {
        /// Its object.
        object: String,
        /// What is wrong with it.
        source: Unreadable,
    },
    /// Somebody has replaced the configuration.
    #[error("somebody else has changed the configuration of the group meanwhile")]
    Changed,
    /// The server cannot serve by the configuration.
    #[error("the configuration of the group cannot be served here: {0}")]
    NotTaken(Said),
    /// There is no client.
    #[error("this gateway has no connection to the cluster of the group")]
    NoClient,
    /// An image is another one than it was.
    #[error(
        "image {image} has the id {id}, and that of the group had {before}: another image has got its name; give that one back \
         its own, or have the group get another volume"
    )]
    Another {
        /// Its name, as records have it.
        image: String,
        /// Its id.
        id: String,
        /// What the record says.
        before: String,
    },
    /// Somebody else uses an image.
    #[error(
        "image {image} is in use by the client {address}, which may be another server or group, or a virtual machine: end that \
         first; if its machine is dead for sure, `rbd lock ls {image}` and `rbd lock rm`"
    )]
    InUse {
        /// Its name, as records have it.
        image: String,
        /// Who has its lock.
        address: String,
    },
    /// The group's own owner has an image yet that is to come into the group.
    #[error(
        "the group's own owner has image {0} locked yet, as it has left the group just now: try again in some seconds"
    )]
    OwnStill(String),
    /// It makes no sense.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// Something that has no sentence of its own.
    #[error("cannot {what}: {source}")]
    Failed {
        /// What was tried.
        what: &'static str,
        /// What the cluster says about it.
        source: io::Error,
    },
}

impl From<lunet_rbd::Error> for Error {
    fn from(error: lunet_rbd::Error) -> Self {
        Self::Cluster(Box::new(error))
    }
}

impl Error {
    pub(crate) fn of(what: &'static str, errno: i32) -> Self {
        Self::Failed { what, source: io::Error::from_raw_os_error(errno) }
    }
}

/// The object of a group's record.
pub(crate) fn object_of(group: &ImageName) -> String {
    format!("lunet.group.{}", group.image())
}

/// The version that compare-and-set compares.
pub(crate) fn version(epoch: Epoch, revision: u64) -> String {
    format!("{}.{revision}", epoch.0)
}

pub(crate) fn open(client: &Arc<Client>, group: &ImageName) -> Result<Object, Error> {
    Ok(Object::new(client, group.pool(), group.namespace(), &object_of(group))?)
}

pub(crate) fn decode(bytes: &[u8], group: &ImageName) -> Result<Record, Error> {
    let malformed = |source| Error::Malformed { object: object_of(group), source };
    Record::decode(bytes).map_err(malformed)
}

pub(crate) fn load(object: &Object, group: &ImageName) -> Result<Record, Error> {
    match object.read() {
        Ok(bytes) => decode(&bytes, group),
        Err(ENOENT) => Err(Error::None(object_of(group))),
        Err(errno) => Err(Error::of("read the group's record", errno)),
    }
}

pub(crate) const ENOENT: i32 = 2;
pub(crate) const EEXIST: i32 = 17;

/// A client for a gateway: with all the rights that a takeover needs, as nobody looks at that time.
pub(crate) fn connect(group: &Place) -> Result<Arc<Client>, Error> {
    let client = Arc::new(Client::connect(group)?);
    client.may_blocklist(group)?;
    Ok(client)
}

fn object(group: &Place) -> Result<Object, Error> {
    open(&Arc::new(Client::connect(group)?), &group.name)
}

/// Makes the record of a new group, with the ids and sizes of its images. Blocks.
///
/// # Errors
/// The group is there already, or the record makes no sense, or an image is not there or is used by somebody, or the cluster's.
pub fn create(group: &Place, mut record: Record) -> Result<(), Error> {
    let client = connect(group)?;
    let object = open(&client, &group.name)?;
    // A group that is there has its images locked, and is the better thing to tell of.
    if object.read().is_ok() {
        return Err(Error::Exists(object_of(&group.name)));
    }
    let volumes = &mut record.contents.volumes;
    let images: Vec<_> = volumes.iter().map(|volume| volume.image.clone()).collect();
    let found = may_have(&client, &images)?;
    for (volume, found) in volumes.iter_mut().zip(found) {
        (volume.id, volume.bytes) = found;
    }
    let bytes = record.encode()?;
    let version = version(record.epoch, record.revision);
    match object.create(&version, &bytes) {
        Ok(()) => Ok(()),
        Err(EEXIST) => Err(Error::Exists(object_of(&group.name))),
        Err(errno) => Err(Error::of("make the group's record", errno)),
    }
}

/// Reads the record of a group. Blocks.
///
/// # Errors
/// There is none, or it cannot be read, or the cluster's.
pub fn read(group: &Place) -> Result<Record, Error> {
    load(&object(group)?, &group.name)
}

/// Removes the record of a group; its images stay. No gateway of the group may run. Blocks.
///
/// # Errors
/// There is none, or the cluster's.
pub fn remove(group: &Place) -> Result<(), Error> {
    match object(group)?.remove() {
        Ok(()) => Ok(()),
        Err(ENOENT) => Err(Error::None(object_of(&group.name))),
        Err(errno) => Err(Error::of("remove the group's record", errno)),
    }
}
