//! One image: the client of its cluster, the handle, and the exclusive lock.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::closing::Counted;
use crate::error::errno;
use crate::ffi::{self, ConfigOption, ImageInfo, ImagePtr, IoCtx, Rados};
use crate::options::{self, check, forbidden, forbidden_of_image};
use crate::place::c_string;
use crate::{Error, ImageName, Library, Place};

/// How long a client that was shut out stays so, in seconds: ten years. A shorter time would end while a machine that stood
/// still has writes in its memory, and those would land over newer ones.
const SHUT_OUT: u32 = 315_360_000;

/// The longest value of a setting that is read, in bytes.
const MAX_VALUE: usize = 4096;

/// A part of an image that has data, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where it begins.
    pub offset: u64,
    /// How long it is.
    pub len: u64,
}

/// A client of a cluster, and the pool that it uses.
struct Client {
    library: Arc<Library>,
    rados: Rados,
    pool: IoCtx,
}

// SAFETY: librados locks its objects itself: a client and a pool may be used by any thread, and by many at once.
unsafe impl Send for Client {}
// SAFETY: as above.
unsafe impl Sync for Client {}

impl Client {
    /// Connects to the cluster, with the settings that must be.
    fn connect(place: &Place) -> Result<Self, Error> {
        let library = Library::open()?;
        let mut rados = ptr::null_mut();
        let user = c_string(place.user_name());
        // SAFETY: writes the pointer, and copies the name.
        let made = unsafe { (library.rados.rados_create)(&mut rados, user.as_ptr()) };
        done("make a client of Ceph", made)?;
        let mut client = Self { library, rados, pool: ptr::null_mut() };
        client.configure(place)?;
        // SAFETY: the client is there until `client` is dropped.
        let connected = unsafe { (client.library.rados.rados_connect)(client.rados) };
        if connected < 0 {
            return Err(not_let_in(place, connected));
        }
        // The monitors have settings of their own, which hold from now on.
        client.check_settings()?;
        let pool = c_string(place.name.pool());
        // SAFETY: the client is connected; writes the pointer, and copies the name.
        let used = unsafe {
            (client.library.rados.rados_ioctx_create)(client.rados, pool.as_ptr(), &mut client.pool)
        };
        if used < 0 {
            let pool = place.name.pool().to_owned();
            return Err(Error::Pool { pool, source: errno(used) });
        }
        let namespace = c_string(place.name.namespace());
        // SAFETY: the pool is open; copies the name.
        unsafe {
            (client.library.rados.rados_ioctx_set_namespace)(client.pool, namespace.as_ptr())
        };
        Ok(client)
    }

    /// Reads the configuration of Ceph, refuses what must not be in it, and sets what must be.
    fn configure(&self, place: &Place) -> Result<(), Error> {
        let path = place.conf_path();
        let file = c_string(&path.to_string_lossy());
        // SAFETY: the client is there; reads the name.
        let read = unsafe { (self.library.rados.rados_conf_read_file)(self.rados, file.as_ptr()) };
        if read < 0 {
            return Err(Error::Conf { path: path.display().to_string(), source: errno(read) });
        }
        self.check_settings()?;
        for (option, value) in options::SET {
            self.set(option, value)?;
        }
        match &place.keyring {
            Some(keyring) => self.set("keyring", &keyring.to_string_lossy()),
            None => Ok(()),
        }
    }

    fn check_settings(&self) -> Result<(), Error> {
        let mut values =
            options::looked_at().filter_map(|option| Some((option, self.get(option)?)));
        values.try_for_each(|(option, value)| check(option, &value, forbidden))
    }

    fn set(&self, option: &str, value: &str) -> Result<(), Error> {
        let (option, value) = (c_string(option), c_string(value));
        // SAFETY: the client is there; copies both.
        let set = unsafe {
            (self.library.rados.rados_conf_set)(self.rados, option.as_ptr(), value.as_ptr())
        };
        match set {
            // An older or newer Ceph has not this setting.
            code if code == -libc::ENOENT => Ok(()),
            code => done("set what lunet needs for the client of Ceph", code),
        }
    }

    /// The value of a setting; `None` if this Ceph has no such one.
    fn get(&self, option: &str) -> Option<String> {
        let option = c_string(option);
        let mut value = [0 as c_char; MAX_VALUE];
        // SAFETY: the client is there; writes at most so many bytes, with a NUL at the end.
        let got = unsafe {
            (self.library.rados.rados_conf_get)(
                self.rados,
                option.as_ptr(),
                value.as_mut_ptr(),
                MAX_VALUE,
            )
        };
        (got >= 0).then(|| text_of(&value))
    }

    /// Shuts a client out of the cluster for good, and waits until this one knows that: what it asks for from now on comes
    /// after everything that the other one has done.
    fn shut_out(&self, address: &str) -> Result<(), Error> {
        let mut address = c_string(address).into_bytes_with_nul();
        // SAFETY: the client is connected; reads the text, which ends with a NUL.
        let added = unsafe {
            (self.library.rados.rados_blocklist_add)(
                self.rados,
                address.as_mut_ptr().cast(),
                SHUT_OUT,
            )
        };
        done("shut out the client that had the image before", added)?;
        // SAFETY: the client is connected.
        let known = unsafe { (self.library.rados.rados_wait_for_latest_osdmap)(self.rados) };
        done("wait for the cluster's map", known)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !self.pool.is_null() {
            // SAFETY: made once, and not used any more: images in it were closed before.
            unsafe { (self.library.rados.rados_ioctx_destroy)(self.pool) };
        }
        // SAFETY: made once, and not used any more.
        unsafe { (self.library.rados.rados_shutdown)(self.rados) };
    }
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
    /// The address of this client, by which the lock names it.
    owner: Option<String>,
    object: u64,
    id: String,
    /// The error number by which it was found out that the image is this client's no more; 0 if it is.
    lost: AtomicI32,
    /// Closed after the handle.
    client: Client,
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
        let client = Client::connect(place)?;
        let image = c_string(place.name.image());
        let rbd = &client.library.rbd;
        let open = if place.read_only { rbd.rbd_open_read_only } else { rbd.rbd_open };
        let mut handle = ptr::null_mut();
        // SAFETY: the pool is open; writes the pointer, and copies the name. No snapshot.
        let opened = unsafe { open(client.pool, image.as_ptr(), &mut handle, ptr::null()) };
        match opened {
            code if code == -libc::ENOENT => {
                return Err(Error::NoImage { name: place.name.clone() });
            }
            code => done("open the image", code)?,
        }
        let mut image = Self {
            name: place.name.clone(),
            handle,
            watch: None,
            news: Arc::default(),
            owner: None,
            object: 0,
            id: String::new(),
            lost: AtomicI32::new(0),
            client,
            _counted: Counted::new(),
        };
        image.check_settings()?;
        image.look()?;
        if !place.read_only {
            image.check_features()?;
            image.lock(place.before.as_deref())?;
        }
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

    /// The address of this client, by which the lock names its owner. `None` for an image that is only read.
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
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

    /// The place by which it can be opened anew after it was [lost](Self::lost): this client is never let in again, and what
    /// it has sent must not land any more.
    pub fn gone(&self, place: &Place) -> Place {
        let owner = self.owner.clone().filter(|_| self.lost().is_some());
        Place { before: owner.or_else(|| place.before.clone()), ..place.clone() }
    }

    /// Gives the image another size in bytes. Blocks. The caller must not make it smaller.
    ///
    /// # Errors
    /// The cluster's.
    pub fn resize(&self, size: u64) -> Result<(), Error> {
        // SAFETY: the image is open.
        done("resize the image", unsafe { (self.rbd().rbd_resize)(self.handle, size) })
    }

    /// Waits for all writes in flight. Blocks.
    ///
    /// # Errors
    /// The negative error number of librbd.
    pub fn flush(&self) -> Result<(), i32> {
        // SAFETY: the image is open.
        match unsafe { (self.rbd().rbd_flush)(self.handle) } {
            code if code < 0 => Err(-code),
            _ => Ok(()),
        }
    }

    /// The parts of a range that have data, in order, as far as whole objects tell. Blocks.
    ///
    /// # Errors
    /// The error number of librbd.
    pub fn parts(&self, offset: u64, len: u64) -> Result<Vec<Part>, i32> {
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
        // with; with the parent, by whole objects.
        let code = unsafe {
            (self.rbd().rbd_diff_iterate2)(
                self.handle,
                ptr::null(),
                offset,
                len,
                1,
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
        &self.client.library.rbd
    }

    pub(crate) fn library(&self) -> &Arc<Library> {
        &self.client.library
    }

    pub(crate) const fn handle(&self) -> ImagePtr {
        self.handle
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

    fn check_features(&self) -> Result<(), Error> {
        let mut features = 0;
        // SAFETY: the image is open; writes the number.
        let asked = unsafe { (self.rbd().rbd_get_features)(self.handle, &mut features) };
        done("ask for the image's features", asked)?;
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
    fn lock(&mut self, before: Option<&str>) -> Result<(), Error> {
        let locked = |owner: String| Error::Locked { name: self.name.clone(), owner };
        if let Some(owner) = self.owners()?.into_iter().next() {
            if before != Some(&owner) {
                return Err(locked(owner));
            }
            // The process is gone, but what it has sent may still be on its way.
            self.client.shut_out(&owner)?;
            let address = c_string(&owner);
            // SAFETY: the image is open; reads the text.
            let broken = unsafe {
                (self.rbd().rbd_lock_break)(self.handle, ffi::LOCK_EXCLUSIVE, address.as_ptr())
            };
            if broken != -libc::ENOENT {
                done("break the lock of this server's last process", broken)?;
            }
        }
        // SAFETY: the image is open.
        let taken = unsafe { (self.rbd().rbd_lock_acquire)(self.handle, ffi::LOCK_EXCLUSIVE) };
        if taken == -libc::EROFS || taken == -libc::EBUSY {
            let owner = self.owners()?.into_iter().next();
            return Err(locked(owner.unwrap_or_else(|| "that nobody knows".to_owned())));
        }
        done("take the image's lock", taken)?;
        self.owner = self.owners()?.into_iter().next();
        Ok(())
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
        let rbd = &self.client.library.rbd;
        if let Some(watch) = self.watch {
            // SAFETY: the watch of this handle, once.
            unsafe { (rbd.rbd_update_unwatch)(self.handle, watch) };
        }
        if self.owner.is_some() && self.lost().is_none() {
            // SAFETY: the image is open. An error means that the lock is gone already, or that the cluster is.
            unsafe { (rbd.rbd_lock_release)(self.handle) };
        }
        // SAFETY: opened once, and used by nobody any more: whoever uses it has a reference to this. It waits for requests in
        // flight, whose callbacks own what they touch.
        unsafe { (rbd.rbd_close)(self.handle) };
    }
}

fn done(what: &'static str, returned: i32) -> Result<(), Error> {
    if returned < 0 { Err(Error::of(what, returned)) } else { Ok(()) }
}

fn not_let_in(place: &Place, returned: i32) -> Error {
    let step = match -returned {
        libc::ETIMEDOUT => "see that its monitors run and are reached from here",
        libc::ENOENT => "its key is not where Ceph looks for it: name the file as `ceph-keyring`",
        libc::EACCES | libc::EPERM | libc::EOPNOTSUPP => {
            "give the right `ceph-user` and `ceph-keyring`, and see `ceph auth get`"
        }
        _ => "see `ceph -s` with the same configuration and user",
    };
    Error::Connect {
        conf: place.conf_path().display().to_string(),
        user: place.user_name().to_owned(),
        source: errno(returned),
        step,
    }
}

/// The text up to the first NUL.
fn text_of(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().take_while(|b| **b != 0).map(|b| *b as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A text of a library.
///
/// # Safety
/// The pointer is null, or leads to a text that ends with a NUL.
unsafe fn text_at(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
