//! A client of a cluster, and the pools that it uses.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use crate::blocklist::{self, LONG_ENOUGH, NOBODY, SHUT_OUT};
use crate::error::{checked, errno};
use crate::ffi::{IoCtx, Rados};
use crate::options::{self, check, forbidden};
use crate::place::c_string;
use crate::{Error, Library, Place};

/// The longest value of a setting that is read, in bytes.
const MAX_VALUE: usize = 4096;

/// A client of a cluster. The images that it opens share its connections, and are shut out together.
pub struct Client {
    pub(crate) library: Arc<Library>,
    pub(crate) rados: Rados,
}

// SAFETY: librados locks its objects itself: a client may be used by any thread, and by many at once.
unsafe impl Send for Client {}
// SAFETY: as above.
unsafe impl Sync for Client {}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// What the monitors say to a command.
struct Told {
    /// Its output.
    out: Vec<u8>,
    /// What they say of it.
    status: String,
}

impl Client {
    /// Connects to the cluster of a place, with the settings that must be. Blocks; the threads of the library get the limits
    /// of this one.
    ///
    /// # Errors
    /// [`Error`] says in one sentence what is wrong.
    pub fn connect(place: &Place) -> Result<Self, Error> {
        let library = Library::open()?;
        let mut rados = ptr::null_mut();
        let user = c_string(place.user_name());
        // SAFETY: writes the pointer, and copies the name.
        let made = unsafe { (library.rados.rados_create)(&mut rados, user.as_ptr()) };
        done("make a client of Ceph", made)?;
        let client = Self { library, rados };
        client.configure(place)?;
        // SAFETY: the client is there until `client` is dropped.
        let connected = unsafe { (client.library.rados.rados_connect)(client.rados) };
        if connected < 0 {
            return Err(not_let_in(place, connected));
        }
        // The monitors have settings of their own, which hold from now on.
        client.check_settings()?;
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

    /// Its address, as blocklist and locks have it: `192.0.2.7:0/2719412375`. No other client of the cluster ever has it.
    ///
    /// # Errors
    /// The error number of librados.
    pub fn address(&self) -> Result<String, i32> {
        let mut text = ptr::null_mut();
        // SAFETY: the client is connected; writes the pointer.
        let asked = unsafe { (self.library.rados.rados_getaddrs)(self.rados, &mut text) };
        if asked < 0 || text.is_null() {
            return Err(asked.saturating_neg().max(libc::EIO));
        }
        // SAFETY: a text that librados has made for the caller, who frees it.
        let address = unsafe { text_at(text) };
        // SAFETY: as above, once; it comes from malloc.
        unsafe { libc::free(text.cast()) };
        Ok(blocklist::plain(&address).to_owned())
    }

    /// How it is called as the owner of a lock: `client.4123`.
    pub fn name(&self) -> String {
        // SAFETY: the client is connected.
        let id = unsafe { (self.library.rados.rados_get_instance_id)(self.rados) };
        format!("client.{id}")
    }

    /// Has the monitors carry out a command, given as JSON. Blocks until they have a quorum.
    fn command(&self, command: &str) -> Result<Told, i32> {
        let command = c_string(command);
        let mut commands = [command.as_ptr()];
        let (mut out, mut out_len) = (ptr::null_mut(), 0_usize);
        let (mut status, mut status_len) = (ptr::null_mut(), 0_usize);
        // SAFETY: the client is connected; reads one text, no input, and writes two pointers with their lengths.
        let done = unsafe {
            (self.library.rados.rados_mon_command)(
                self.rados,
                commands.as_mut_ptr(),
                1,
                ptr::null(),
                0,
                &mut out,
                &mut out_len,
                &mut status,
                &mut status_len,
            )
        };
        let told = Told {
            out: self.take(out, out_len),
            status: String::from_utf8_lossy(&self.take(status, status_len)).into_owned(),
        };
        checked(done).map(|()| told)
    }

    /// Takes what librados has made for the caller.
    pub(crate) fn take(&self, buffer: *mut c_char, len: usize) -> Vec<u8> {
        if buffer.is_null() {
            return Vec::new();
        }
        // SAFETY: librados has made it, of that length, and nobody else has it.
        let bytes = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), len) }.to_vec();
        // SAFETY: as above; once.
        unsafe { (self.library.rados.rados_buffer_free)(buffer) };
        bytes
    }

    /// Puts a client on the cluster's blocklist for so many seconds, and tells how long the entry lasts, as the list has it
    /// afterwards: Ceph keeps the end of an entry that there is already. Zero if it is not on the list. Blocks until the
    /// monitors have a quorum.
    ///
    /// # Errors
    /// The error number of librados.
    pub fn blocklist(&self, address: &str, seconds: u32) -> Result<Duration, i32> {
        self.listed(address, seconds).map(|entry| entry.lasts)
    }

    fn listed(&self, address: &str, seconds: u32) -> Result<blocklist::Lasting, i32> {
        let added = self.command(&blocklist::add(address, seconds))?;
        let list = self.command(blocklist::LIST)?;
        Ok(blocklist::lasting(&list.out, address, &added.status, seconds))
    }

    /// Looks whether the place's user may put clients on the blocklist, by asking for an entry of nobody. Blocks until the
    /// monitors have a quorum.
    ///
    /// # Errors
    /// [`Error::Rights`], or the cluster's.
    pub fn may_blocklist(&self, place: &Place) -> Result<(), Error> {
        match self.command(&blocklist::add(NOBODY, 1)).map(drop) {
            // There is no such address, and the user was let that far.
            Ok(()) | Err(libc::EINVAL) => Ok(()),
            Err(libc::EACCES | libc::EPERM) => {
                Err(Error::Rights { user: format!("client.{}", place.user_name()) })
            }
            Err(errno) => {
                Err(Error::of("ask what rights the user of Ceph has", errno.saturating_neg()))
            }
        }
    }

    /// Waits until this client has the latest map of the cluster: what it asks for from now on comes after everything that
    /// clients have done whom the map shuts out. Blocks.
    ///
    /// # Errors
    /// The error number of librados.
    pub fn wait_for_map(&self) -> Result<(), i32> {
        // SAFETY: the client is connected.
        checked(unsafe { (self.library.rados.rados_wait_for_latest_osdmap)(self.rados) })
    }

    /// Shuts a client out of the cluster for good, and waits until this one knows that.
    pub(crate) fn shut_out(&self, address: &str) -> Result<(), Error> {
        let what = "shut out the client that had the image before";
        let entry = self
            .listed(address, SHUT_OUT)
            .map_err(|errno| Error::of(what, errno.saturating_neg()))?;
        if entry.lasts < LONG_ENOUGH {
            let (owner, ends) = (address.to_owned(), entry.ends);
            return Err(Error::ShortEntry { owner, ends });
        }
        self.wait_for_map()
            .map_err(|errno| Error::of("wait for the cluster's map", errno.saturating_neg()))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: made once, and not used any more: whoever uses it has a reference to this.
        unsafe { (self.library.rados.rados_shutdown)(self.rados) };
    }
}

/// A pool, or a namespace of it, as a client uses it.
pub(crate) struct Pool {
    pub io: IoCtx,
    /// Ends after it.
    pub client: Arc<Client>,
}

// SAFETY: librados locks its objects itself: a pool may be used by any thread, and by many at once.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    pub fn open(client: &Arc<Client>, name: &str, namespace: &str) -> Result<Self, Error> {
        let rados = &client.library.rados;
        let (pool, namespace) = (c_string(name), c_string(namespace));
        let mut io = ptr::null_mut();
        // SAFETY: the client is connected; writes the pointer, and copies the name.
        let used = unsafe { (rados.rados_ioctx_create)(client.rados, pool.as_ptr(), &mut io) };
        if used < 0 {
            return Err(Error::Pool { pool: name.to_owned(), source: errno(used) });
        }
        // SAFETY: the pool is open; copies the name.
        unsafe { (rados.rados_ioctx_set_namespace)(io, namespace.as_ptr()) };
        Ok(Self { io, client: Arc::clone(client) })
    }

    /// The same for images: what needs room in a pool that is full, or at its quota, fails (ENOSPC, EDQUOT). librados would have
    /// it wait for room otherwise, for as long as that takes.
    pub fn open_for_images(
        client: &Arc<Client>,
        name: &str,
        namespace: &str,
    ) -> Result<Self, Error> {
        let pool = Self::open(client, name, namespace)?;
        // SAFETY: the pool is open. What is opened by it, such as an image, gets the same flag.
        unsafe { (client.library.rados.rados_set_pool_full_try)(pool.io) };
        Ok(pool)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: made once, and not used any more: images in it were closed before.
        unsafe { (self.client.library.rados.rados_ioctx_destroy)(self.io) };
    }
}

pub(crate) fn done(what: &'static str, returned: c_int) -> Result<(), Error> {
    if returned < 0 { Err(Error::of(what, returned)) } else { Ok(()) }
}

/// The same of a call that changes something. Whoever is shut out of the cluster meanwhile does not hear whether it came about.
pub(crate) fn changed(what: &'static str, returned: c_int) -> Result<(), Error> {
    if returned == -libc::ESHUTDOWN { Err(Error::Unsure { what }) } else { done(what, returned) }
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
pub(crate) fn text_of(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> = bytes.iter().take_while(|b| **b != 0).map(|b| *b as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A text of a library.
///
/// # Safety
/// The pointer is null, or leads to a text that ends with a NUL.
pub(crate) unsafe fn text_at(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_shut_out_does_not_know_whether_his_change_has_come_about() {
        let text = |result: Result<(), Error>| result.expect_err("it failed").to_string();
        let unsure = text(changed("remove the snapshot", -libc::ESHUTDOWN));
        assert!(unsure.contains("may have been done") && unsure.contains("remove the snapshot"));
        // Who only looks has changed nothing.
        assert!(!text(done("list the snapshots", -libc::ESHUTDOWN)).contains("may have been"));
        assert!(!text(changed("remove the snapshot", -libc::EBUSY)).contains("may have been"));
        assert!(changed("remove the snapshot", 0).is_ok());
    }
}
