//! Volumes that are images of Ceph (RBD).
//!
//! One handle for all shards: librbd lets one handle of a client write. Its threads push what has ended to the lane of the
//! channel that asked, and the event loop of that one wakes by one descriptor, however much has ended.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lunet_block::{
    Backend, ByteRange, Caps, Channel, Completion, Error, Extent, IoDone, IoToken, Op, Request,
    Slow, Submit, Support,
};
use lunet_rbd::{Ended, Lane, Waker};
use lunet_ring::{DropElsewhere, Payload, Ring, WatchId};

pub use lunet_rbd::{Image, ImageName, Place, Snapshot, begin, wait_until_closed};

use crate::geometry::Geometry;
use crate::{OpenError, Volume, VolumeSpec, disk_token, layers};

/// Requests in flight on one channel at most.
const SEATS: u32 = 256;

/// Zeroed at once: librbd takes no more than 2 GiB, and a cancellation gets its chance.
const ZEROING_STEP: u64 = 256 << 20;

/// What librbd gives back, as its own default of `rbd_discard_granularity_bytes` has it.
const GRANULARITY: u64 = 64 << 10;

/// The slot of all tokens: one for everything that has ended.
const WAKE: u32 = 0;

pub(crate) fn open(spec: &VolumeSpec, place: &Place) -> Result<Volume, OpenError> {
    let place = Place { read_only: spec.read_only, ..place.clone() };
    let image = lunet_rbd::open(&place).map_err(|error| failed(&place.name, error))?;
    of_image(spec, image)
}

fn of_image(spec: &VolumeSpec, image: Arc<Image>) -> Result<Volume, OpenError> {
    let size = size_of(&image)?;
    let geometry = Geometry::new(spec, &image.name().to_string(), size, 512, 4096)?;
    Ok(Arc::new(Rbd {
        caps: caps(&geometry, spec.read_only, image.object_size()),
        image: DropElsewhere::new(image),
        group: None,
        unanswered: Unanswered::default(),
    }))
}

/// Is told the error number of a request of a failover group's image that failed. An event loop calls it: it must not block.
pub type Failed = Arc<dyn Fn(i32) + Send + Sync>;

/// The requests of one client of a cluster that were never answered, as they may still land.
#[derive(Clone, Default)]
pub struct Unanswered(Arc<Landing>);

#[derive(Default)]
struct Landing {
    /// None of them lands any more.
    over: AtomicBool,
    /// Of the channels that may have some.
    channels: Mutex<Vec<Waker>>,
}

impl Unanswered {
    /// None of them can land any more, as the client is fenced: they end, and so do the fences of their ranges.
    pub fn cannot_land(&self) {
        self.0.over.store(true, Ordering::Release);
        let channels = self.0.channels.lock().unwrap_or_else(PoisonError::into_inner);
        channels.iter().for_each(Waker::wake);
    }

    fn is_over(&self) -> bool {
        self.0.over.load(Ordering::Acquire)
    }

    fn add(&self, channel: Waker) {
        self.0.channels.lock().unwrap_or_else(PoisonError::into_inner).push(channel);
    }
}

/// The volume of an image that a failover group has open. A request that fails because the image is another gateway's, and
/// all that come later, are not answered: the group's connections are aborted without a status. Others whose outcome nobody
/// knows are not answered either, and the volume goes on.
///
/// # Errors
/// The size of the image fits no volume.
pub fn of_group(
    spec: &VolumeSpec,
    (image, size): (Arc<Image>, u64),
    failed: Failed,
    unanswered: Unanswered,
) -> Result<Volume, OpenError> {
    let geometry = Geometry::new(spec, &image.name().to_string(), size, 512, 4096)?;
    Ok(Arc::new(Rbd {
        caps: caps(&geometry, false, image.object_size()),
        image: DropElsewhere::new(image),
        group: Some(failed),
        unanswered,
    }))
}

/// As [`grow`](crate::grow).
pub(crate) fn grow(spec: &VolumeSpec, place: &Place, old: &Rbd) -> Result<Volume, OpenError> {
    if old.image.lost().is_none() {
        return of_image(spec, Arc::clone(&old.image));
    }
    let gone = old.image.gone(place);
    let anew = open(spec, &gone)?;
    if gone.is_open {
        // The client of before was shut out when this one took the lock.
        old.unanswered.cannot_land();
    }
    Ok(anew)
}

/// Where the image of an open volume is to be opened anew. If that was lost, its client is shut out first.
pub(crate) fn after(old: &Volume, place: &Place) -> Place {
    image_of(old).map_or_else(|| place.clone(), |image| image.gone(place))
}

/// The client that has the image of a volume open was shut out: requests that it has not answered end.
pub(crate) fn cannot_land(volume: &Volume) {
    rbd_of(volume).into_iter().for_each(|rbd| rbd.unanswered.cannot_land());
}

fn rbd_of(volume: &Volume) -> Option<&Rbd> {
    match layers::of(volume) {
        Some(layered) => rbd_of(layered.inner()),
        None => volume.slow().as_any()?.downcast_ref(),
    }
}

/// The image of a volume; `None` if it is of another kind.
fn image_of(volume: &Volume) -> Option<&Arc<Image>> {
    rbd_of(volume).map(|rbd| &*rbd.image)
}

fn failed(name: &ImageName, error: lunet_rbd::Error) -> OpenError {
    OpenError::Image { name: name.clone(), error: Box::new(error) }
}

fn size_of(image: &Image) -> Result<u64, OpenError> {
    image.size().map_err(|error| failed(image.name(), error))
}

fn fixed() -> OpenError {
    OpenError::Fixed { volume: "a volume that is no image of Ceph".to_owned() }
}

/// The image of a volume that is one.
fn an_image(volume: &Volume) -> Result<&Arc<Image>, OpenError> {
    image_of(volume).ok_or_else(fixed)
}

/// What is asked of the image of a volume, with its name where it fails.
fn ask<T>(
    volume: &Volume,
    ask: impl FnOnce(&Image) -> Result<T, lunet_rbd::Error>,
) -> Result<T, OpenError> {
    let image = an_image(volume)?;
    ask(image).map_err(|error| failed(image.name(), error))
}

/// Makes an image of so many bytes. Blocks.
///
/// # Errors
/// There is one of this name, or the cluster's.
pub fn create(place: &Place, size: u64) -> Result<(), OpenError> {
    lunet_rbd::create(place, size).map_err(|error| failed(&place.name, error))
}

/// Keeps the present content of a volume as a snapshot of its image. Blocks.
///
/// # Errors
/// The cluster's, or that it is no such volume.
pub fn snapshot(volume: &Volume, name: &str) -> Result<(), OpenError> {
    ask(volume, |image| image.snapshot(name))
}

/// The snapshots of a volume's image, the oldest first. Blocks.
///
/// # Errors
/// As for [`snapshot`].
pub fn snapshots(volume: &Volume) -> Result<Vec<Snapshot>, OpenError> {
    ask(volume, Image::snapshots)
}

/// Removes a snapshot of a volume's image. Blocks.
///
/// # Errors
/// It is protected; and as for [`snapshot`].
pub fn remove_snapshot(volume: &Volume, name: &str) -> Result<(), OpenError> {
    ask(volume, |image| image.remove_snapshot(name))
}

/// Gives a volume's image the content of a snapshot. It stays as large as it is, if it was smaller then. Blocks as long as
/// the cluster copies. Nothing may be in flight.
///
/// # Errors
/// As for [`snapshot`]. The content may be anything between both then, and the image smaller than the volume.
pub fn roll_back(volume: &Volume, name: &str) -> Result<(), OpenError> {
    roll_back_to(volume, name, size(volume)?)
}

/// The same for an image that is to have so many bytes at least when it ends: after a rollback that was cut off it may be smaller
/// than its volume.
///
/// # Errors
/// As for [`roll_back`].
pub fn roll_back_to(volume: &Volume, name: &str, bytes: u64) -> Result<(), OpenError> {
    ask(volume, |image| {
        image.roll_back(name)?;
        if image.size()? < bytes { image.grow(bytes) } else { Ok(()) }
    })
}

/// Makes another image in the volume's cluster with the content of a snapshot. Blocks.
///
/// # Errors
/// There is one of this name; and as for [`snapshot`].
pub fn clone_to(volume: &Volume, snapshot: &str, to: &ImageName) -> Result<(), OpenError> {
    ask(volume, |image| image.clone_to(snapshot, to))
}

/// How many bytes of a volume's image have data of its own; `None` if that would need a look at each of its objects, the
/// cluster does not say, or it is no image. Blocks.
pub fn used(volume: &Volume) -> Option<u64> {
    image_of(volume)?.used().ok().flatten()
}

/// Makes the image of a volume so many bytes long. The volume keeps its own size until it is [grown](crate::grow). Blocks.
///
/// # Errors
/// The image is longer than that, the cluster's, or that it is no such volume.
pub fn resize(volume: &Volume, size: u64) -> Result<(), OpenError> {
    ask(volume, |image| image.grow(size))
}

/// The size in bytes that the image of a volume has by now. Blocks.
///
/// # Errors
/// The cluster's, or that it is no such volume.
pub fn size(volume: &Volume) -> Result<u64, OpenError> {
    size_of(an_image(volume)?)
}

/// What became of an image while it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Somebody has changed its header: its size, perhaps.
    Changed,
    /// It is not this server's any more: nothing is written to it, nor read from it.
    Lost {
        /// The error number by which it was found out.
        errno: i32,
    },
}

/// What became of the image of a volume since it was asked last; a lost one stays lost. Does not block.
pub fn news(volume: &Volume) -> Option<News> {
    let image = image_of(volume)?;
    match image.lost() {
        Some(errno) => Some(News::Lost { errno }),
        None => image.has_changed().then_some(News::Changed),
    }
}

/// The name of a volume's image whose pool has no room, or has reached its quota, as far as writes have shown.
pub fn full(volume: &Volume) -> Option<ImageName> {
    let image = image_of(volume)?;
    image.is_full().then(|| image.name().clone())
}

/// The id of a volume's image, and the owner of its lock as others see it: this server. `None` if it is of another kind.
pub fn identity(volume: &Volume) -> Option<(String, Option<String>)> {
    let image = image_of(volume)?;
    Some((image.id().to_owned(), image.owner().map(str::to_owned)))
}

fn caps(geometry: &Geometry, read_only: bool, object: u64) -> Caps {
    Caps {
        block_size: geometry.block_size,
        physical_block_size: geometry.physical_block_size,
        blocks: geometry.blocks,
        read_only,
        // Without a cache in librbd, what is acknowledged is on the disks of the cluster.
        write_cache: false,
        fua: Support::Native,
        write_zeroes: Support::Native,
        unmap: Support::Native,
        unmap_zeroes: true,
        unmap_granularity: object.clamp(4096, GRANULARITY) as u32,
        mapped_reads: false,
        alignment: 1,
    }
}

/// An open image.
pub(crate) struct Rbd {
    caps: Caps,
    /// The last to let go may be an event loop, and closing waits for the cluster.
    image: DropElsewhere<Arc<Image>>,
    /// It is one of a failover group, which is told of requests that fail.
    group: Option<Failed>,
    unanswered: Unanswered,
}

impl Backend<Payload, Ring> for Rbd {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn open_channel(
        &self,
        number: u16,
        io: &mut Ring,
    ) -> Result<Box<dyn Channel<Payload, Ring>>, i32> {
        let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        let lane = Lane::new(Arc::clone(&self.image), SEATS).map_err(errno)?;
        let token = disk_token(IoToken { channel: number, slot: WAKE });
        let watch = io.watch(lane.descriptor().map_err(errno)?, token).map_err(errno)?;
        let flights = (0..SEATS).map(|_| None).collect();
        let (size, read_only) = (self.caps.bytes(), self.caps.read_only);
        self.unanswered.add(lane.waker());
        Ok(Box::new(RbdChannel {
            lane,
            group: self.group.clone(),
            landing: self.unanswered.clone(),
            watch,
            flights,
            ended: Vec::new(),
            unanswered: Vec::new(),
            size,
            read_only,
        }))
    }

    fn slow(&self) -> &dyn Slow {
        self
    }
}

impl Slow for Rbd {
    fn extents(&self, range: ByteRange, most: usize) -> Result<Vec<Extent>, Error> {
        if range.offset.checked_add(range.len).is_none_or(|end| end > self.caps.bytes()) {
            return Err(Error::OutOfRange);
        }
        if range.len == 0 {
            return Ok(Vec::new());
        }
        let parts = self.image.parts(range.offset, range.len).map_err(Error::from_errno)?;
        let parts = parts.into_iter().map(|part| ByteRange::new(part.offset, part.len));
        Ok(extents(range, parts, u64::from(self.caps.block_size), most))
    }

    fn sync(&self) -> Result<(), Error> {
        if self.caps.read_only { Ok(()) } else { self.image.flush().map_err(Error::NotStable) }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

/// The parts of a range in order, of which these are mapped: widened to whole blocks, and joined where they touch.
fn extents(
    range: ByteRange,
    mapped: impl Iterator<Item = ByteRange>,
    block: u64,
    most: usize,
) -> Vec<Extent> {
    let mut list: Vec<Extent> = Vec::new();
    let mut push = |from: u64, to: u64, mapped: bool| match list.last_mut() {
        _ if from >= to => {}
        Some(last) if last.mapped == mapped => last.range.len = to - last.range.offset,
        _ => list.push(Extent { range: ByteRange::new(from, to - from), mapped }),
    };
    let mut at = range.offset;
    for part in mapped {
        let from = (part.offset / block * block).clamp(at, range.end());
        let to = part.end().next_multiple_of(block).clamp(from, range.end());
        push(at, from, false);
        push(from, to, true);
        at = to;
    }
    push(at, range.end(), false);
    list.truncate(most);
    list
}

/// A request on its way.
struct Flight {
    request: Request<Payload>,
    /// Bytes of the range that are zeroed.
    moved: u64,
    /// Being zeroed now.
    piece: u64,
    cancelled: bool,
}

struct RbdChannel {
    lane: Lane,
    group: Option<Failed>,
    landing: Unanswered,
    watch: WatchId,
    /// By the lane's seats.
    flights: Vec<Option<Flight>>,
    /// What has ended and was not taken in yet, in reverse order.
    ended: Vec<Ended>,
    /// What may still land, and is never answered.
    unanswered: Vec<Flight>,
    size: u64,
    read_only: bool,
}

/// What becomes of a request whose step has ended.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Done(Result<(), Error>),
    /// The image is not this client's any more; nothing of it lands later.
    Lost(i32),
    /// Nobody knows what became of it: it may still land. It is never answered, so that its blocks stay fenced when its
    /// client gives it up.
    Unknown,
}

/// What an error number of librbd says about a request that changes the image, or does not.
fn judge(errno: i32, changes: bool) -> Verdict {
    match errno {
        // Others have the lock. What was sent before has ended.
        libc::EROFS => Verdict::Lost(errno),
        _ if !changes => match errno {
            libc::ESHUTDOWN => Verdict::Lost(errno),
            errno => Verdict::Done(Err(Error::from_errno(errno))),
        },
        // The cluster has said no.
        libc::EPERM
        | libc::ENOENT
        | libc::EIO
        | libc::EINVAL
        | libc::EFBIG
        | libc::ENOSPC
        | libc::ERANGE
        | libc::EOPNOTSUPP
        | libc::EDQUOT => Verdict::Done(Err(Error::from_errno(errno))),
        // ESHUTDOWN (shut out while it was on its way), ETIMEDOUT, ECANCELED, and whatever else there may be.
        _ => Verdict::Unknown,
    }
}

impl RbdChannel {
    /// The answer to a request that needs or gets no flight.
    fn refuse(&self, request: &Request<Payload>) -> Option<Result<(), Error>> {
        if request.op.changes() && self.read_only {
            return Some(Err(Error::ReadOnly));
        }
        if self.lane.image().lost().is_some() {
            return Some(Err(Error::Gone));
        }
        if request.op == Op::Flush {
            return self.read_only.then_some(Ok(()));
        }
        let range = request.range;
        if range.offset.checked_add(range.len).is_none_or(|end| end > self.size) {
            return Some(Err(Error::OutOfRange));
        }
        if range.len == 0 {
            return Some(Ok(()));
        }
        let moves = matches!(request.op, Op::Read | Op::Write { .. });
        let takes =
            |buf: &Payload| matches!(buf, Payload::Buf(buf) if buf.len() as u64 >= range.len);
        let usable = !moves || request.buf.as_ref().is_some_and(takes);
        (request.op == Op::ReadMapped || !usable).then_some(Err(Error::Unsupported))
    }

    /// Starts the next step of a request.
    fn launch(&mut self, mut flight: Flight) -> Result<(), Completion<Payload>> {
        let Request { op, range, .. } = flight.request;
        let left = range.len - flight.moved;
        let (step, len) = match op {
            Op::Read | Op::ReadMapped => (lunet_rbd::Request::Read, left),
            Op::Write { .. } => (lunet_rbd::Request::Write, left),
            Op::Flush => (lunet_rbd::Request::Flush, 0),
            Op::Unmap => (lunet_rbd::Request::Zero { thick: false }, left.min(ZEROING_STEP)),
            Op::WriteZeroes { may_unmap } => {
                (lunet_rbd::Request::Zero { thick: !may_unmap }, left.min(ZEROING_STEP))
            }
        };
        flight.piece = len;
        let buf = match flight.request.buf.take() {
            Some(Payload::Buf(buf)) => Some(buf),
            other => {
                flight.request.buf = other;
                None
            }
        };
        match self.lane.start(step, range.offset + flight.moved, len as usize, buf) {
            Ok(seat) => {
                self.flights[seat as usize] = Some(flight);
                Ok(())
            }
            Err((errno, buf)) => {
                flight.request.buf = buf.map(Payload::Buf);
                Err(flight.request.complete(Err(Error::from_errno(errno))))
            }
        }
    }

    /// Takes in the end of a step. `None` if another one follows, or nobody knows what became of it.
    fn settle(&mut self, ended: Ended) -> Option<Completion<Payload>> {
        let Ended { seat, buf, result } = ended;
        let mut flight = self.flights[seat as usize].take()?;
        if let Some(buf) = buf {
            flight.request.buf = Some(Payload::Buf(buf));
        }
        let op = flight.request.op;
        let verdict = match result {
            Ok(read) if op == Op::Read && read != flight.request.range.len => {
                Verdict::Done(Err(Error::Io(libc::EIO)))
            }
            Ok(_) => Verdict::Done(Ok(())),
            Err(errno) => judge(errno, op.changes()),
        };
        let result = match verdict {
            Verdict::Done(result) => result,
            Verdict::Lost(errno) => {
                self.lane.image().give_up(errno);
                if let Some(failed) = &self.group {
                    failed(errno);
                    self.unanswered.push(flight);
                    return None;
                }
                Err(Error::Gone)
            }
            Verdict::Unknown => {
                let errno = result.err().unwrap_or(libc::EIO);
                // A group loses its images by two errors alone, and goes on after others.
                if self.group.is_none() || errno == libc::ESHUTDOWN {
                    self.lane.image().give_up(errno);
                }
                self.group.iter().for_each(|failed| failed(errno));
                self.unanswered.push(flight);
                return None;
            }
        };
        if op.changes() && matches!(result, Ok(()) | Err(Error::OutOfSpace)) {
            self.lane.image().had_room(result.is_ok());
        }
        let zeroes = matches!(op, Op::Unmap | Op::WriteZeroes { .. });
        if result.is_ok() && zeroes {
            flight.moved += flight.piece;
            if flight.moved < flight.request.range.len {
                if flight.cancelled {
                    let cancelled = Err(Error::Io(libc::ECANCELED));
                    return Some(flight.request.complete(cancelled));
                }
                return self.launch(flight).err();
            }
        }
        Some(flight.request.complete(result))
    }
}

impl Channel<Payload, Ring> for RbdChannel {
    fn submit(&mut self, request: Request<Payload>, _io: &mut Ring) -> Submit<Payload> {
        if self.group.is_some() && self.lane.image().lost().is_some() && !self.landing.is_over() {
            let flight = Flight { request, moved: 0, piece: 0, cancelled: false };
            self.unanswered.push(flight);
            return Submit::Queued;
        }
        if let Some(result) = self.refuse(&request) {
            return Submit::Done(request.complete(result));
        }
        if self.lane.is_full() {
            return Submit::Busy(request);
        }
        match self.launch(Flight { request, moved: 0, piece: 0, cancelled: false }) {
            Ok(()) => Submit::Queued,
            Err(done) => Submit::Done(done),
        }
    }

    fn advance(&mut self, _done: IoDone<Payload>, io: &mut Ring) -> Option<Completion<Payload>> {
        self.lane.take(&mut self.ended);
        self.ended.reverse();
        io.watch_again(self.watch);
        self.more(io)
    }

    fn more(&mut self, _io: &mut Ring) -> Option<Completion<Payload>> {
        while let Some(ended) = self.ended.pop() {
            if let Some(done) = self.settle(ended) {
                return Some(done);
            }
        }
        let flight = if self.landing.is_over() { self.unanswered.pop() } else { None };
        flight.map(|flight| flight.request.complete(Err(Error::Gone)))
    }

    fn cancel(&mut self, tag: u64, _io: &mut Ring) {
        // What librbd has it cannot be asked to give up; a long zeroing ends with its piece.
        let mut flights = self.flights.iter_mut().flatten();
        if let Some(flight) = flights.find(|flight| flight.request.tag == tag) {
            flight.cancelled = true;
        }
    }

    fn close(self: Box<Self>, io: &mut Ring) {
        io.unwatch(self.watch);
    }
}

impl Drop for RbdChannel {
    fn drop(&mut self) {
        // At the end of the program only: nobody hears it any more. The lane keeps the buffers that librbd has.
        let flights = self.flights.drain(..).flatten().chain(self.unanswered.drain(..));
        for flight in flights {
            drop(flight.request.complete(Err(Error::Cancelled)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_outcome_is_no_answer_to_a_write_and_one_to_a_read() {
        for errno in [libc::ETIMEDOUT, libc::ECANCELED, libc::ESHUTDOWN, libc::ENXIO, 4711] {
            assert_eq!(judge(errno, true), Verdict::Unknown, "{errno}");
            assert_ne!(judge(errno, false), Verdict::Unknown, "{errno}");
        }
        for (errno, error) in [
            (libc::ENOSPC, Error::OutOfSpace),
            (libc::EDQUOT, Error::OutOfSpace),
            (libc::EIO, Error::Io(libc::EIO)),
            (libc::EPERM, Error::ReadOnly),
        ] {
            assert_eq!(judge(errno, true), Verdict::Done(Err(error)), "{errno}");
        }
        for changes in [false, true] {
            assert_eq!(judge(libc::EROFS, changes), Verdict::Lost(libc::EROFS));
        }
        assert_eq!(judge(libc::ESHUTDOWN, false), Verdict::Lost(libc::ESHUTDOWN));
    }

    #[test]
    fn extents_have_no_gaps_and_whole_blocks() {
        let part = ByteRange::new;
        let range = part(4096, 40960);
        let list = extents(
            range,
            [part(8200, 100), part(12288, 4096), part(40000, 9000)].into_iter(),
            4096,
            9,
        );
        let list: Vec<_> = list.iter().map(|e| (e.range.offset, e.range.len, e.mapped)).collect();
        assert_eq!(
            list,
            [(4096, 4096, false), (8192, 8192, true), (16384, 20480, false), (36864, 8192, true)]
        );
        assert_eq!(extents(range, std::iter::empty(), 512, 9), [Extent { range, mapped: false }]);
        assert_eq!(
            extents(range, [part(0, 1 << 20)].into_iter(), 512, 9),
            Extent::all_mapped(range)
        );
        assert_eq!(extents(range, [part(8192, 4096)].into_iter(), 512, 1).len(), 1);
    }
}
