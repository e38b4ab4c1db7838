//! One image: the handle, and the exclusive lock.

use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::blocklist::plain;
use crate::client::{Client, Pool, changed, done, text_at, text_of};
use crate::closing::Counted;
use crate::error::checked;
use crate::ffi::{self, ConfigOption, ImageInfo, ImagePtr};
use crate::options::{check, forbidden_of_image};
use crate::place::c_string;
use crate::{Error, ImageName, Library, Place};

/// How long it counts how much of an image has data.
const USED_FOR: Duration = Duration::from_secs(60);

/// After how long without a refusal a change that succeeds shows that the pool has room again: some need none.
const ROOM_AGAIN: Duration = Duration::from_secs(30);

/// What librbd tells of its progress is nothing to anybody.
unsafe extern "C" fn goes_on(_done: u64, _of: u64, _with: *mut c_void) -> c_int {
    0
}

/// A part of an image that has data, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub len: u64,
}

/// What others tell of an image.
#[derive(Debug, Default)]
struct News {
    /// Its header has changed: its size, perhaps.
    changed: AtomicBool,
}

/// An open image. Shared by all event loops. To be dropped on a thread that may block: the lock is let go of, and requests in
/// flight are waited for.
pub struct Image {
    name: ImageName,
    handle: ImagePtr,
    watch: Option<u64>,
    news: Arc<News>,
    /// This client has the lock, as far as is known.
    locked: AtomicBool,
    /// The address of this client, by which the lock names it.
    owner: OnceLock<String>,
    object: u64,
    id: String,
    /// Which parts have data can be told without a look at each object.
    fast_diff: bool,
    /// How much has data, and when that was found.
    used: Mutex<Option<(Instant, u64)>>,
    /// The error number by which it was found out that the image is this client's no more; 0 if it is.
    lost: AtomicI32,
    opened: Instant,
    /// When a request was refused last for want of room, in milliseconds behind `opened`; 0: none was, or there is room again.
    full: AtomicU64,
    /// Closed after the handle.
    pool: Pool,
    _counted: Counted,
}

// SAFETY: librbd locks its objects itself: a handle may be used by any thread, and by many at once.
unsafe impl Send for Image {}
// SAFETY: as above; what lunet keeps besides is atomic or never changes.
unsafe impl Sync for Image {}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Image {
    /// Connects to the cluster, opens the image, and takes its exclusive lock unless it is for reading only. Blocks; the
    /// threads of the libraries get the limits of this one.
    ///
    /// # Errors
    /// [`Error`] says in one sentence what is wrong. Nothing is open then.
    pub fn open(place: &Place) -> Result<Self, Error> {
        let client = Arc::new(Client::connect(place)?);
        let image = Self::open_unlocked(&client, &place.name, place.read_only)?;
        if !place.read_only {
            image.lock(place)?;
            // Taking the lock has librbd read the header; whoever opens the image asks for its size next.
            image.has_changed();
        }
        Ok(image)
    }

    /// Opens the image as one of several of a client, without its lock: nothing is written to it before it is
    /// [acquired](Self::acquire). Blocks.
    ///
    /// # Errors
    /// As [`open`](Self::open), without those of the lock.
    pub fn open_unlocked(
        client: &Arc<Client>,
        name: &ImageName,
        read_only: bool,
    ) -> Result<Self, Error> {
        let pool = Pool::open_for_images(client, name.pool(), name.namespace())?;
        let image = c_string(name.image());
        let rbd = &client.library.rbd;
        let open = if read_only { rbd.rbd_open_read_only } else { rbd.rbd_open };
        let mut handle = ptr::null_mut();
        // SAFETY: the pool is open; writes the pointer, and copies the name. No snapshot.
        let opened = unsafe { open(pool.io, image.as_ptr(), &mut handle, ptr::null()) };
        match opened {
            code if code == -libc::ENOENT => {
                return Err(Error::NoImage { name: name.clone() });
            }
            code => done("open the image", code)?,
        }
        let mut image = Self {
            name: name.clone(),
            handle,
            watch: None,
            news: Arc::default(),
            locked: AtomicBool::new(false),
            owner: OnceLock::new(),
            object: 0,
            id: String::new(),
            fast_diff: false,
            used: Mutex::default(),
            lost: AtomicI32::new(0),
            opened: Instant::now(),
            full: AtomicU64::new(0),
            pool,
            _counted: Counted::new(),
        };
        image.check_settings()?;
        image.look()?;
        image.see_features(!read_only)?;
        image.watch()?;
        Ok(image)
    }

    /// Its name.
    pub const fn name(&self) -> &ImageName {
        &self.name
    }

    /// The id that its pool gave it, which no other image ever has there.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The size of the objects that it is made of, in bytes.
    pub const fn object_size(&self) -> u64 {
        self.object
    }

    /// The address of this client, by which the lock names its owner. `None` while it has not the lock.
    pub fn owner(&self) -> Option<&str> {
        self.owner.get().map(String::as_str).filter(|_| self.is_locked())
    }

    /// True if this client has the lock, as far as is known: nothing is written otherwise.
    pub fn is_locked(&self) -> bool {
        self.locked.load(Ordering::Acquire)
    }

    /// Its size in bytes, as the cluster has it. May block for a look at the cluster.
    ///
    /// # Errors
    /// The cluster's.
    pub fn size(&self) -> Result<u64, Error> {
        let mut size = 0;
        // SAFETY: the image is open; writes the number.
        done("ask for the size", unsafe { (self.rbd().rbd_get_size)(self.handle, &mut size) })?;
        Ok(size)
    }

    /// True once after somebody, this client included, has changed the image's header: its size, its snapshots.
    pub fn has_changed(&self) -> bool {
        self.news.changed.swap(false, Ordering::AcqRel)
    }

    /// The error number by which it was found out that the image is this client's no more.
    pub fn lost(&self) -> Option<i32> {
        Some(self.lost.load(Ordering::Acquire)).filter(|errno| *errno != 0)
    }

    /// Somebody has taken the image over: nothing is asked of it any more.
    pub fn give_up(&self, errno: i32) {
        self.lost.store(errno, Ordering::Release);
    }

    /// True if its pool, or its quota, is full, as far as requests that change the image have shown.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed) != 0
    }

    /// A request that changes the image has ended, and has had room or not.
    pub fn had_room(&self, had: bool) {
        let at = self.full.load(Ordering::Relaxed);
        if had && at == 0 {
            return;
        }
        let now = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        if !had {
            self.full.store(now.max(1), Ordering::Relaxed);
        } else if Duration::from_millis(now - at.min(now)) >= ROOM_AGAIN {
            self.full.store(0, Ordering::Relaxed);
        }
    }

    /// The place by which it can be opened anew after it was [lost](Self::lost): this client is never let in again, and what
    /// it has sent must not land any more.
    pub fn gone(&self, place: &Place) -> Place {
        match self.owner().filter(|_| self.lost().is_some()) {
            Some(owner) => Place { before: Some(owner.to_owned()), is_open: true, ..place.clone() },
            None => place.clone(),
        }
    }

    /// Refuses a change of an image whose lock this client does not have: a call that needs it would wait for the lock and
    /// take it, whoever is to have it. One that is lost meanwhile was not given back, so this client is shut out, and the call
    /// fails.
    pub(crate) fn must_be_locked(&self) -> Result<(), Error> {
        let is_own = self.is_locked() && self.lost().is_none();
        if is_own { Ok(()) } else { Err(Error::NotLocked) }
    }

    /// Makes the image so many bytes long. Blocks.
    ///
    /// # Errors
    /// It is longer than that: what a caller has seen of its size may be old, and what lies behind the new end would be lost.
    /// And the cluster's.
    pub fn grow(&self, size: u64) -> Result<(), Error> {
        self.must_be_locked()?;
        // SAFETY: the image is open, and the callback needs nothing.
        let grown =
            unsafe { (self.rbd().rbd_resize2)(self.handle, size, false, goes_on, ptr::null_mut()) };
        if grown == -libc::EINVAL {
            let bytes = self.size()?;
            if bytes > size {
                return Err(Error::Longer { bytes });
            }
        }
        changed("resize the image", grown)
    }

    /// Waits for all writes in flight. Blocks.
    ///
    /// # Errors
    /// The negative error number of librbd.
    pub fn flush(&self) -> Result<(), i32> {
        // SAFETY: the image is open.
        checked(unsafe { (self.rbd().rbd_flush)(self.handle) })
    }

    /// The parts of a range that have data, in order, as far as whole objects tell. Blocks.
    ///
    /// # Errors
    /// The error number of librbd.
    pub fn parts(&self, offset: u64, len: u64) -> Result<Vec<Part>, i32> {
        self.parts_of(offset, len, true)
    }

    /// How many bytes of it have data of its own, by whole objects: without what snapshots keep, and what it has of the image
    /// that it was cloned from. `None` if a look at each object would be needed. A minute old at most. Blocks.
    ///
    /// # Errors
    /// The error number of librbd.
    pub fn used(&self) -> Result<Option<u64>, i32> {
        if !self.fast_diff {
            return Ok(None);
        }
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, bytes)) = used.filter(|(at, _)| at.elapsed() < USED_FOR) {
            return Ok(Some(bytes));
        }
        let size = self.size().map_err(|_| libc::EIO)?;
        let bytes = self.parts_of(0, size, false)?.iter().map(|part| part.len).sum();
        *used = Some((Instant::now(), bytes));
        Ok(Some(bytes))
    }

    fn parts_of(&self, offset: u64, len: u64, with_parent: bool) -> Result<Vec<Part>, i32> {
        unsafe extern "C" fn found(
            at: u64,
            len: usize,
            exists: c_int,
            parts: *mut c_void,
        ) -> c_int {
            // SAFETY: `parts` is the list below, which nobody else uses until the call ends.
            let parts = unsafe { &mut *parts.cast::<Vec<Part>>() };
            if exists != 0 {
                parts.push(Part { offset: at, len: len as u64 });
            }
            0
        }
        let mut parts = Vec::<Part>::new();
        // SAFETY: the image is open; the callback runs during this call alone, and gets the list. No snapshot to compare
        // with; by whole objects.
        let code = unsafe {
            (self.rbd().rbd_diff_iterate2)(
                self.handle,
                ptr::null(),
                offset,
                len,
                u8::from(with_parent),
                1,
                found,
                ptr::from_mut(&mut parts).cast(),
            )
        };
        if code < 0 {
            return Err(-code);
        }
        parts.sort_by_key(|part| part.offset);
        Ok(parts)
    }

    pub(crate) fn rbd(&self) -> &ffi::RbdTable {
        &self.pool.client.library.rbd
    }

    pub(crate) fn library(&self) -> &Arc<Library> {
        &self.pool.client.library
    }

    pub(crate) const fn handle(&self) -> ImagePtr {
        self.handle
    }

    pub(crate) const fn client(&self) -> &Arc<Client> {
        &self.pool.client
    }

    pub(crate) const fn pool(&self) -> &Pool {
        &self.pool
    }

    /// What never changes while it is open.
    fn look(&mut self) -> Result<(), Error> {
        // SAFETY: the structure is plain data, for which zeroes are valid.
        let mut info: ImageInfo = unsafe { std::mem::zeroed() };
        // SAFETY: the image is open; fills the structure, whose size it is told.
        let asked =
            unsafe { (self.rbd().rbd_stat)(self.handle, &mut info, size_of::<ImageInfo>()) };
        done("look at the image", asked)?;
        self.object = info.obj_size;
        let mut id = [0 as c_char; 64];
        // SAFETY: the image is open; writes at most so many bytes, with a NUL at the end.
        let asked = unsafe { (self.rbd().rbd_get_id)(self.handle, id.as_mut_ptr(), id.len()) };
        done("ask for the image's id", asked)?;
        self.id = text_of(&id);
        Ok(())
    }

    fn features(&self) -> Result<u64, Error> {
        let mut features = 0;
        // SAFETY: the image is open; writes the number.
        let asked = unsafe { (self.rbd().rbd_get_features)(self.handle, &mut features) };
        done("ask for the image's features", asked).map(|()| features)
    }

    /// Refuses an image with an object map. By that librbd answers for objects that nobody has written as far as it knows,
    /// without a word to the cluster: reads with zeroes, discards with success. So does one that was shut out, of objects
    /// that another client has written since.
    ///
    /// # Errors
    /// It has one, or the cluster's.
    pub fn has_no_object_map(&self) -> Result<(), Error> {
        let features = self.features()?;
        if features & ffi::FEATURE_OBJECT_MAP == 0 {
            return Ok(());
        }
        let text = "the image has an object map, by which a gateway that was shut out would answer reads of what another one \
                    has written since";
        let with = features & ffi::FEATURE_FAST_DIFF != 0;
        let feature = if with { "object-map fast-diff" } else { "object-map" };
        Err(Error::Feature { name: self.name.clone(), text, step: "disable", feature })
    }

    /// Looks at its features; `writes`: refuses those with which nobody may write.
    fn see_features(&mut self, writes: bool) -> Result<(), Error> {
        let features = self.features()?;
        self.fast_diff = features & ffi::FEATURE_FAST_DIFF != 0;
        if !writes {
            return Ok(());
        }
        let name = self.name.clone();
        if features & ffi::FEATURE_EXCLUSIVE_LOCK == 0 {
            let text = "the image has no exclusive lock, so nobody would keep a second writer away";
            return Err(Error::Feature { name, text, step: "enable", feature: "exclusive-lock" });
        }
        if features & ffi::FEATURE_JOURNALING != 0 {
            let text = "the image has a journal, whose writes may be replayed over newer ones";
            return Err(Error::Feature { name, text, step: "disable", feature: "journaling" });
        }
        Ok(())
    }

    /// Refuses settings that pools and images have of their own.
    fn check_settings(&self) -> Result<(), Error> {
        let mut count: c_int = 0;
        let list = self.rbd().rbd_config_image_list;
        // SAFETY: the image is open; with room for none it only tells how many there are.
        let asked = unsafe { list(self.handle, ptr::null_mut(), &mut count) };
        if asked < 0 && asked != -libc::ERANGE {
            return done("read the image's settings", asked);
        }
        let empty = ConfigOption { name: ptr::null_mut(), value: ptr::null_mut(), source: 0 };
        let mut settings = vec![empty; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the image is open; there is room for as many as it was told.
        let asked = unsafe { list(self.handle, settings.as_mut_ptr(), &mut count) };
        done("read the image's settings", asked)?;
        settings.truncate(usize::try_from(count).unwrap_or(0));
        let judged = settings.iter().try_for_each(|setting| {
            // SAFETY: both are texts of the list, which is freed below.
            let (option, value) = unsafe { (text_at(setting.name), text_at(setting.value)) };
            check(&option, &value, forbidden_of_image)
        });
        // SAFETY: the list of above, once.
        unsafe { (self.rbd().rbd_config_image_list_cleanup)(settings.as_mut_ptr(), count) };
        judged
    }

    /// Who has the exclusive lock: addresses of clients.
    fn owners(&self) -> Result<Vec<String>, Error> {
        let (mut mode, mut count) = (0, 16);
        let mut owners = [ptr::null_mut::<c_char>(); 16];
        // SAFETY: the image is open; there is room for as many as it is told.
        let asked = unsafe {
            (self.rbd().rbd_lock_get_owners)(
                self.handle,
                &mut mode,
                owners.as_mut_ptr(),
                &mut count,
            )
        };
        if asked == -libc::ENOENT {
            return Ok(Vec::new());
        }
        done("ask who has the image's lock", asked)?;
        // SAFETY: each is a text of the list, which is freed below.
        let found = owners.iter().take(count).map(|owner| unsafe { text_at(*owner) }).collect();
        // SAFETY: the list of above, once.
        unsafe { (self.rbd().rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count) };
        Ok(found)
    }

    /// Takes the exclusive lock: never from somebody who may be alive.
    fn lock(&self, place: &Place) -> Result<(), Error> {
        let locked = |owner: String| Error::Locked { name: self.name.clone(), owner };
        let client = &self.pool.client;
        match (self.owners()?.into_iter().next(), place.before.as_deref()) {
            (Some(owner), Some(before)) if owner == before => {
                // The process is gone, but what it has sent may still be on its way.
                client.shut_out(before)?;
                let what = "break the lock of this server's last process";
                self.break_lock(before).map_err(|errno| Error::of(what, -errno))?;
            }
            (Some(owner), _) => return Err(locked(owner)),
            // Somebody has broken the lock and is gone; the client of before has the image open still.
            (None, Some(before)) if place.is_open => client.shut_out(before)?,
            (None, _) => {}
        }
        match self.acquire() {
            Err(libc::EROFS | libc::EBUSY) => {
                let owner = self.owners()?.into_iter().next();
                Err(locked(owner.unwrap_or_else(|| "that nobody knows".to_owned())))
            }
            taken => taken.map_err(|errno| Error::of("take the image's lock", -errno)),
        }
    }

    /// Takes the exclusive lock, from nobody, and keeps it until it is [released](Self::release). Blocks.
    ///
    /// # Errors
    /// The error number: EROFS or EBUSY if another client has it.
    pub fn acquire(&self) -> Result<(), i32> {
        // SAFETY: the image is open.
        checked(unsafe { (self.rbd().rbd_lock_acquire)(self.handle, ffi::LOCK_EXCLUSIVE) })?;
        if self.owner.get().is_none() {
            let owner = self.owners().map_err(|_| libc::EIO)?.into_iter().next();
            // Two threads that do this find the same.
            let _ = self.owner.set(owner.ok_or(libc::EROFS)?);
        }
        self.locked.store(true, Ordering::Release);
        Ok(())
    }

    /// Gives the exclusive lock back. Writes in flight are waited for; none is begun any more. Blocks.
    ///
    /// # Errors
    /// The error number of librbd.
    pub fn release(&self) -> Result<(), i32> {
        self.locked.store(false, Ordering::Release);
        // SAFETY: the image is open.
        checked(unsafe { (self.rbd().rbd_lock_release)(self.handle) })
    }

    /// Breaks the exclusive lock if the client with that address has it, and nobody else's. That client has to be
    /// [blocklisted](Client::blocklist) before, and this one has to [know](Client::wait_for_map). Blocks.
    ///
    /// # Errors
    /// The error number of librbd.
    pub fn break_lock(&self, address: &str) -> Result<(), i32> {
        let address = c_string(address);
        // SAFETY: the image is open; reads the text.
        let broken = unsafe {
            (self.rbd().rbd_lock_break)(self.handle, ffi::LOCK_EXCLUSIVE, address.as_ptr())
        };
        match broken {
            // Nobody has it, or another one.
            code if code == -libc::ENOENT || code == -libc::EBUSY => Ok(()),
            code => checked(code),
        }
    }

    /// Who has the exclusive lock: the address of the client, and its name. The image's header is asked, as librbd's own list is
    /// as old as its last look. Blocks.
    ///
    /// # Errors
    /// The error number of librados.
    pub fn locker(&self) -> Result<Option<(String, String)>, i32> {
        // One of each, as the lock is exclusive: a name of 64 bytes has room for any.
        let (mut exclusive, mut texts) = (0, [[0 as c_char; 512]; 4]);
        let mut lengths = [512_usize; 4];
        let ([tag, names, cookies, addresses], [tags, of_names, of_cookies, of_addresses]) =
            (&mut texts, &mut lengths);
        let header = c_string(&format!("rbd_header.{}", self.id));
        // SAFETY: the pool is open; reads two names, and each text has as many bytes as its length says.
        let found = unsafe {
            (self.library().rados.rados_list_lockers)(
                self.pool.io,
                header.as_ptr(),
                c"rbd_lock".as_ptr(),
                &mut exclusive,
                tag.as_mut_ptr(),
                tags,
                names.as_mut_ptr(),
                of_names,
                cookies.as_mut_ptr(),
                of_cookies,
                addresses.as_mut_ptr(),
                of_addresses,
            )
        };
        match found {
            0 => Ok(None),
            code if code < 0 => Err(i32::try_from(-code).unwrap_or(libc::EIO)),
            _ => Ok(Some((plain(&text_of(addresses)).to_owned(), text_of(names)))),
        }
    }

    /// Has the image's header read again if it has changed. Blocks.
    ///
    /// # Errors
    /// The error number of librbd.
    pub fn refresh(&self) -> Result<(), i32> {
        let mut size = 0;
        // SAFETY: the image is open; writes the number. It reads a header that is known to have changed.
        checked(unsafe { (self.rbd().rbd_get_size)(self.handle, &mut size) })
    }

    /// Has librbd tell when the image's header changes.
    fn watch(&mut self) -> Result<(), Error> {
        unsafe extern "C" fn changed(news: *mut c_void) {
            // SAFETY: the image keeps it until it has ended the watch, which waits for callbacks.
            let news = unsafe { &*news.cast::<News>() };
            news.changed.store(true, Ordering::Release);
        }
        let mut watch = 0;
        let news = Arc::as_ptr(&self.news).cast_mut().cast();
        // SAFETY: the image is open; what the callback gets lives until the watch has ended.
        let watched =
            unsafe { (self.rbd().rbd_update_watch)(self.handle, &mut watch, changed, news) };
        done("watch the image", watched)?;
        self.watch = Some(watch);
        Ok(())
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let rbd = &self.pool.client.library.rbd;
        if let Some(watch) = self.watch {
            // SAFETY: the watch of this handle, once.
            unsafe { (rbd.rbd_update_unwatch)(self.handle, watch) };
        }
        if self.is_locked() && self.lost().is_none() {
            // SAFETY: the image is open. An error means that the lock is gone already, or that the cluster is.
            unsafe { (rbd.rbd_lock_release)(self.handle) };
        }
        // SAFETY: opened once, and used by nobody any more: whoever uses it has a reference to this. It waits for requests in
        // flight, whose callbacks own what they touch.
        unsafe { (rbd.rbd_close)(self.handle) };
    }
}
