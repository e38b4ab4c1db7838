//! The conformance suite over an image of Ceph, and what only an image has: for `make test-ceph`, which has a cluster and says
//! where it is.

use std::path::PathBuf;

use crate::common::OnLoop;
use lunet_backends::rbd::{ImageName, Place, identity, resize, wait_until_closed};
use lunet_backends::{OpenError, Storage, Volume, VolumeSpec, grow, open};
use lunet_block::conformance::{self, Contents};
use lunet_block::{ByteRange, Error, Op};
use lunet_ring::DriverChoice;

/// An image of at least 16 MiB whose contents may be lost: RBD_IMAGE is its name and CEPH_CONF the cluster's configuration.
fn place() -> Option<Place> {
    let (Some(image), Some(conf)) = (std::env::var_os("RBD_IMAGE"), std::env::var_os("CEPH_CONF"))
    else {
        eprintln!(
            "SKIPPED: there is no RBD_IMAGE with a CEPH_CONF; `tests/ceph/cluster` makes a cluster"
        );
        return None;
    };
    let name = ImageName::parse(&image.to_string_lossy()).expect("a name");
    Some(Place { conf: Some(PathBuf::from(conf)), ..Place::new(name) })
}

fn opened(place: &Place, read_only: bool) -> Volume {
    let spec = VolumeSpec { read_only, ..VolumeSpec::new(Storage::Rbd(place.clone())) };
    open(&spec).expect("the image")
}

/// One test, as an image has one owner.
#[test]
fn an_image_of_ceph() {
    let Some(place) = place() else { return };
    for driver in [DriverChoice::IoUring, DriverChoice::Epoll] {
        let volume = opened(&place, false);
        conformance::run(&mut OnLoop::new(volume.clone(), driver), Contents::Kept);
        let other = open(&VolumeSpec::new(Storage::Rbd(place.clone())));
        assert!(matches!(other.err(), Some(OpenError::Image { .. })), "a second owner");
        // Reading needs no lock.
        let reader = opened(&place, true);
        conformance::run(&mut OnLoop::new(reader.clone(), driver), Contents::Kept);
        drop((volume, reader));
        assert!(wait_until_closed(std::time::Duration::from_secs(30)), "the lock is let go of");
    }
    grows(&place);
    tells_what_has_data(&place);
    ends_with_requests_in_flight(&place);
}

fn grows(place: &Place) {
    let volume = opened(place, false);
    let (id, owner) = identity(&volume).expect("an image");
    assert!(!id.is_empty() && owner.is_some_and(|owner| owner.contains(':')));
    let size = volume.caps().bytes();
    resize(&volume, size + (4 << 20)).expect("a larger image");
    let spec = VolumeSpec::new(Storage::Rbd(place.clone()));
    let larger = grow(&volume, &spec).expect("the larger volume");
    assert_eq!((volume.caps().bytes(), larger.caps().bytes()), (size, size + (4 << 20)));
    let mut on = OnLoop::new(larger, DriverChoice::Epoll);
    on.write(size, &[7; 4096]).expect("behind the old end");
    assert_eq!(on.read(size, 4096).expect("it is there"), [7; 4096]);
    let beyond = ByteRange::new(size + (4 << 20), 512);
    assert_eq!(on.run(Op::Read, beyond, None), Err(Error::OutOfRange));
}

/// By whole objects of 4 MiB.
fn tells_what_has_data(place: &Place) {
    let volume = opened(place, false);
    let mut on = OnLoop::new(volume.clone(), DriverChoice::Epoll);
    let all = ByteRange::new(0, 12 << 20);
    on.run(Op::Unmap, all, None).expect("an empty image");
    on.write(4 << 20, &[1; 4096]).expect("one object");
    let extents = volume.slow().extents(all, 9).expect("they are told");
    let parts: Vec<_> =
        extents.iter().map(|e| (e.range.offset >> 20, e.range.len >> 20, e.mapped)).collect();
    assert_eq!(parts, [(0, 4, false), (4, 4, true), (8, 4, false)]);
    assert_eq!(volume.slow().sync(), Ok(()));
}

/// What librbd has when its event loop ends is librbd's: neither the memory nor the image may go before.
fn ends_with_requests_in_flight(place: &Place) {
    use lunet_block::conformance::Driver;
    use lunet_block::{Request, Submit};
    for _ in 0..20 {
        let volume = opened(place, false);
        let mut on = OnLoop::new(volume.clone(), DriverChoice::Epoll);
        for tag in 0..16 {
            let buf = on.buf(&[tag as u8; 65536]);
            let range = ByteRange::new(tag << 16, 65536);
            let (channel, queue) = on.channel();
            let sent = channel
                .submit(Request::new(tag, Op::Write { fua: false }, range, Some(buf)), queue);
            assert!(matches!(sent, Submit::Queued));
        }
        drop(on);
        drop(volume);
        assert!(wait_until_closed(std::time::Duration::from_secs(30)));
    }
    let mut on = OnLoop::new(opened(place, true), DriverChoice::Epoll);
    for tag in 0..16 {
        let read = on.read(tag << 16, 65536).expect("it can be read");
        assert!(read.iter().all(|byte| u64::from(*byte) == tag), "write {tag} was cut short");
    }
}
