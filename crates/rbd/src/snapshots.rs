//! Snapshots of an image, clones of them, and new images. All functions block.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use crate::client::{Client, Pool, changed, done, text_at};
use crate::ffi::{self, Options, SnapInfo};
use crate::place::c_string;
use crate::{Error, Image, ImageName, Library, Place};

/// A snapshot of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The number that its pool gave it, which no other snapshot ever has there.
    pub id: u64,
    /// Its name, without that of the image.
    pub name: String,
    /// The size of the image then, in bytes.
    pub size: u64,
    /// When it was made, in seconds since 1970, by the clock of the cluster.
    pub created: u64,
}

impl Image {
    /// Keeps the present content: every write that was answered before is in it, and of those in flight any.
    ///
    /// # Errors
    /// The cluster's; EEXIST if there is one of this name.
    pub fn snapshot(&self, name: &str) -> Result<(), Error> {
        self.must_be_locked()?;
        let name = c_string(name);
        // SAFETY: the image is open; copies the name.
        let made = unsafe { (self.rbd().rbd_snap_create)(self.handle(), name.as_ptr()) };
        changed("make the snapshot", made)
    }

    /// Its snapshots, the oldest first. Those that are kept for clones alone, by groups or for mirroring are left out.
    ///
    /// # Errors
    /// The cluster's.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>, Error> {
        let empty = SnapInfo { id: 0, size: 0, name: ptr::null() };
        let mut room: c_int = 16;
        loop {
            let mut list = vec![empty; usize::try_from(room).unwrap_or(0)];
            // SAFETY: the image is open; there is room for as many as it is told.
            let found =
                unsafe { (self.rbd().rbd_snap_list)(self.handle(), list.as_mut_ptr(), &mut room) };
            if found == -libc::ERANGE {
                // It has told how many there are.
                continue;
            }
            done("list the snapshots", found)?;
            list.truncate(usize::try_from(found).unwrap_or(0));
            let named = list.iter().map(|one| {
                // SAFETY: a text of the list, which is freed below.
                let name = unsafe { text_at(one.name) };
                Snapshot { id: one.id, name, size: one.size, created: 0 }
            });
            let all: Vec<Snapshot> = named.collect();
            // The end of the list: an entry without a name.
            list.push(empty);
            // SAFETY: the list of above, once.
            unsafe { (self.rbd().rbd_snap_list_end)(list.as_mut_ptr()) };
            let seen = all.into_iter().filter_map(|one| self.seen(one).transpose());
            let mut all = seen.collect::<Result<Vec<_>, _>>()?;
            all.sort_by_key(|one| one.id);
            return Ok(all);
        }
    }

    /// With its time; `None` if it is not one of a user, or has gone meanwhile.
    fn seen(&self, snapshot: Snapshot) -> Result<Option<Snapshot>, Error> {
        let mut kind = ffi::SNAPSHOT_OF_USER;
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let (rbd, handle) = (self.rbd(), self.handle());
        // SAFETY: the image is open; writes the number.
        let found = unsafe { (rbd.rbd_snap_get_namespace_type)(handle, snapshot.id, &mut kind) };
        let found = match found {
            // SAFETY: the image is open; writes the time.
            0 => unsafe { (rbd.rbd_snap_get_timestamp)(handle, snapshot.id, &mut time) },
            other => other,
        };
        if found == -libc::ENOENT || kind != ffi::SNAPSHOT_OF_USER {
            return Ok(None);
        }
        done("look at the snapshots", found)?;
        Ok(Some(Snapshot { created: u64::try_from(time.tv_sec).unwrap_or(0), ..snapshot }))
    }

    /// Removes a snapshot. Clones of it keep what they have of it.
    ///
    /// # Errors
    /// It is protected, or the cluster's.
    pub fn remove_snapshot(&self, name: &str) -> Result<(), Error> {
        self.must_be_locked()?;
        let (text, mut protected) = (c_string(name), 0);
        let (rbd, handle) = (self.rbd(), self.handle());
        // SAFETY: the image is open; reads the name, and writes the number.
        let asked = unsafe { (rbd.rbd_snap_is_protected)(handle, text.as_ptr(), &mut protected) };
        done("look at the snapshot", asked)?;
        if protected != 0 {
            let name = format!("{}@{name}", self.name().plain());
            return Err(Error::Protected { name });
        }
        // SAFETY: the image is open; reads the name.
        changed("remove the snapshot", unsafe { (rbd.rbd_snap_remove)(handle, text.as_ptr()) })
    }

    /// Gives the image the content, and the size, that it had. Takes as long as the cluster needs to copy what has changed
    /// since. Nothing may be in flight.
    ///
    /// # Errors
    /// The cluster's. The content is anything between both then.
    pub fn roll_back(&self, name: &str) -> Result<(), Error> {
        self.must_be_locked()?;
        let name = c_string(name);
        // SAFETY: the image is open; reads the name.
        let back = unsafe { (self.rbd().rbd_snap_rollback)(self.handle(), name.as_ptr()) };
        changed("roll the image back", back)
    }

    /// Makes another image of this cluster with the content of a snapshot, of which it needs what it does not write itself.
    /// Clients of the cluster have to be of Ceph 13 or newer.
    ///
    /// # Errors
    /// The cluster's; [`Error::Exists`] if there is such an image.
    pub fn clone_to(&self, snapshot: &str, to: &ImageName) -> Result<(), Error> {
        let target = Pool::open_for_images(self.client(), to.pool(), to.namespace())?;
        let options = ImageOptions::new(self.library())?;
        // Of this format, a snapshot need not be protected, and may go before its clones.
        options.set(ffi::OPTION_CLONE_FORMAT, 2)?;
        let [from, snapshot, name] = [self.name().image(), snapshot, to.image()].map(c_string);
        // SAFETY: both pools are open; reads the names and the options.
        let made = unsafe {
            (self.rbd().rbd_clone3)(
                self.pool().io,
                from.as_ptr(),
                snapshot.as_ptr(),
                target.io,
                name.as_ptr(),
                options.options,
            )
        };
        if made == -libc::EEXIST {
            return Err(Error::Exists { name: to.clone() });
        }
        changed("clone the snapshot", made)
    }
}

/// Makes an image of so many bytes.
pub(crate) fn create(place: &Place, size: u64) -> Result<(), Error> {
    let client = Arc::new(Client::connect(place)?);
    let pool = Pool::open_for_images(&client, place.name.pool(), place.name.namespace())?;
    let options = ImageOptions::new(&client.library)?;
    let name = c_string(place.name.image());
    // SAFETY: the pool is open; reads the name and the options.
    let made =
        unsafe { (client.library.rbd.rbd_create4)(pool.io, name.as_ptr(), size, options.options) };
    if made == -libc::EEXIST {
        return Err(Error::Exists { name: place.name.clone() });
    }
    changed("make the image", made)
}

/// What a new image is to be like: as the cluster has it by default, and with the lock without which none is served.
struct ImageOptions {
    options: Options,
    library: Arc<Library>,
}

impl ImageOptions {
    fn new(library: &Arc<Library>) -> Result<Self, Error> {
        let mut options = ptr::null_mut();
        // SAFETY: writes the pointer.
        unsafe { (library.rbd.rbd_image_options_create)(&mut options) };
        let made = Self { options, library: library.clone() };
        made.set(ffi::OPTION_FEATURES_SET, ffi::FEATURE_LAYERING | ffi::FEATURE_EXCLUSIVE_LOCK)?;
        Ok(made)
    }

    fn set(&self, option: c_int, value: u64) -> Result<(), Error> {
        let set = self.library.rbd.rbd_image_options_set_uint64;
        // SAFETY: the options were made, and are there until they are dropped.
        done("say what the image is to be like", unsafe { set(self.options, option, value) })
    }
}

impl Drop for ImageOptions {
    fn drop(&mut self) {
        // SAFETY: made once, and not used any more.
        unsafe { (self.library.rbd.rbd_image_options_destroy)(self.options) };
    }
}
