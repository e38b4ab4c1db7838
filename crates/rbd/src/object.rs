//! A small object that several clients share: read whole, replaced whole if nobody was quicker, watched, and notified about.

use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::client::Pool;
use crate::error::checked;
use crate::ffi::{self, WriteOp};
use crate::place::c_string;
use crate::{Client, Error};

/// The attribute that a replacement compares.
const VERSION: &std::ffi::CStr = c"lunet.version";

/// Bytes that are read at first.
const ROOM: usize = 64 << 10;
/// Bytes that an object has at the most.
const MOST: usize = 16 << 20;

/// What a watch tells. It is told on a thread of librados, which has to return soon.
#[derive(Debug)]
pub enum Watched {
    /// Somebody has notified the watchers: it is to be [acknowledged](Object::acknowledge) by that number.
    Notified(u64, Vec<u8>),
    /// The watch is broken, with that error number: it tells nothing any more.
    Failed(i32),
}

/// Who has answered a notify.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acks {
    /// The answers.
    pub answers: Vec<Vec<u8>>,
    /// All watchers have answered. Without watchers this is so, too.
    pub all: bool,
}

type Sink = Box<dyn Fn(Watched) + Send + Sync>;

/// What the callbacks of a watch get.
struct Told {
    sink: Sink,
}

/// A watch: its number, and what its callbacks get, which lives until it has ended.
struct Watch {
    cookie: u64,
    told: *mut Told,
}

/// An object of a pool. Used by many threads; all calls block.
pub struct Object {
    name: CString,
    watch: Mutex<Option<Watch>>,
    pool: Pool,
}

// SAFETY: the pool may be used by any thread, and what the pointer of the watch leads to is `Sync` and freed once.
unsafe impl Send for Object {}
// SAFETY: as above; the watch is behind a lock.
unsafe impl Sync for Object {}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Object {
    /// The object with that name in a pool, which may be there or not.
    ///
    /// # Errors
    /// The pool cannot be used.
    pub fn new(
        client: &Arc<Client>,
        pool: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Self, Error> {
        let pool = Pool::open(client, pool, namespace)?;
        Ok(Self { name: c_string(name), watch: Mutex::new(None), pool })
    }

    /// Its client.
    pub fn client(&self) -> &Arc<Client> {
        &self.pool.client
    }

    /// All of it, by one operation.
    ///
    /// # Errors
    /// The error number: ENOENT if it is not there, EFBIG if it is none of lunet's.
    pub fn read(&self) -> Result<Vec<u8>, i32> {
        let mut room = ROOM;
        while room <= MOST {
            let mut bytes = vec![0_u8; room];
            // SAFETY: the pool is open; writes at most so many bytes.
            let read = unsafe {
                (self.rados().rados_read)(
                    self.pool.io,
                    self.name.as_ptr(),
                    bytes.as_mut_ptr().cast(),
                    room,
                    0,
                )
            };
            let read = usize::try_from(read).map_err(|_| read.saturating_neg())?;
            if read < room {
                bytes.truncate(read);
                return Ok(bytes);
            }
            room *= 4;
        }
        Err(libc::EFBIG)
    }

    /// Makes it, with a version.
    ///
    /// # Errors
    /// The error number: EEXIST if it is there already.
    pub fn create(&self, version: &str, bytes: &[u8]) -> Result<(), i32> {
        self.write(|rados, op| {
            // SAFETY: the operation is there. The category is not used any more.
            unsafe { (rados.rados_write_op_create)(op, ffi::CREATE_EXCLUSIVE, ptr::null()) };
            version_and_bytes(rados, op, version, bytes);
        })
    }

    /// Replaces its content and its version, if it has that version yet.
    ///
    /// # Errors
    /// The error number: ECANCELED if it has another one, ENOENT if it is not there. After ETIMEDOUT and others it may be
    /// replaced or not.
    pub fn replace(&self, expected: &str, version: &str, bytes: &[u8]) -> Result<(), i32> {
        self.write(|rados, op| {
            // SAFETY: the operation is there; copies the text.
            unsafe {
                (rados.rados_write_op_cmpxattr)(
                    op,
                    VERSION.as_ptr(),
                    ffi::COMPARE_EQUAL,
                    expected.as_ptr().cast(),
                    expected.len(),
                );
            }
            version_and_bytes(rados, op, version, bytes);
        })
    }

    /// Removes it.
    ///
    /// # Errors
    /// The error number: ENOENT if it is not there.
    pub fn remove(&self) -> Result<(), i32> {
        // SAFETY: the pool is open.
        checked(unsafe { (self.rados().rados_remove)(self.pool.io, self.name.as_ptr()) })
    }

    fn write(&self, parts: impl FnOnce(&ffi::RadosTable, WriteOp)) -> Result<(), i32> {
        let rados = self.rados();
        // SAFETY: makes an operation, which is released below.
        let op = unsafe { (rados.rados_create_write_op)() };
        parts(rados, op);
        // SAFETY: the pool is open, the operation is there; no time is given.
        let written = unsafe {
            (rados.rados_write_op_operate)(op, self.pool.io, self.name.as_ptr(), ptr::null_mut(), 0)
        };
        // SAFETY: made above, once.
        unsafe { (rados.rados_release_write_op)(op) };
        checked(written)
    }

    /// Watches it, once.
    ///
    /// # Errors
    /// The error number: ENOENT if it is not there, EBUSY if it is watched already.
    pub fn watch(&self, sink: Sink) -> Result<(), i32> {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if watch.is_some() {
            return Err(libc::EBUSY);
        }
        let told = Box::into_raw(Box::new(Told { sink }));
        let mut cookie = 0;
        // SAFETY: the pool is open; what the callbacks get is freed after the watch has ended.
        let watched = unsafe {
            (self.rados().rados_watch2)(
                self.pool.io,
                self.name.as_ptr(),
                &mut cookie,
                notified,
                failed,
                told.cast(),
            )
        };
        if watched < 0 {
            // SAFETY: there is no watch, so nobody else has it.
            drop(unsafe { Box::from_raw(told) });
            return Err(watched.saturating_neg());
        }
        *watch = Some(Watch { cookie, told });
        Ok(())
    }

    /// Notifies all watchers, this client included, and waits for their answers for whole seconds, one at least.
    ///
    /// # Errors
    /// The error number. That not all have answered in time is none.
    pub fn notify(&self, bytes: &[u8], limit: Duration) -> Result<Acks, i32> {
        let (mut reply, mut len) = (ptr::null_mut(), 0_usize);
        let limit = limit.as_millis().max(1000) as u64;
        let size = c_int::try_from(bytes.len()).map_err(|_| libc::EINVAL)?;
        // SAFETY: the pool is open; reads so many bytes, and writes the pointer and the length.
        let told = unsafe {
            (self.rados().rados_notify2)(
                self.pool.io,
                self.name.as_ptr(),
                bytes.as_ptr().cast(),
                size,
                limit,
                &mut reply,
                &mut len,
            )
        };
        let reply = self.pool.client.take(reply, len);
        match told {
            code if code < 0 && code != -libc::ETIMEDOUT => Err(code.saturating_neg()),
            code => {
                let acks = decode(&reply).unwrap_or_default();
                Ok(Acks { all: acks.all && code >= 0, ..acks })
            }
        }
    }

    /// Answers a notify. Does not wait for the cluster, but librados may hold it up while too much I/O is under way.
    pub fn acknowledge(&self, notify: u64, answer: &[u8]) {
        let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(watch), Ok(len)) = (&*watch, c_int::try_from(answer.len())) else { return };
        // SAFETY: the pool is open, and the watch is there; copies the answer. A failure means that the cluster or the watch
        // is gone, and whoever has asked hears nothing.
        unsafe {
            (self.rados().rados_notify_ack)(
                self.pool.io,
                self.name.as_ptr(),
                notify,
                watch.cookie,
                answer.as_ptr().cast::<c_char>(),
                len,
            )
        };
    }

    fn rados(&self) -> &ffi::RadosTable {
        &self.pool.client.library.rados
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let watch = self.watch.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Watch { cookie, told }) = watch else { return };
        let (rados, client) = (self.rados(), &self.pool.client);
        // SAFETY: the watch of this object, once. An error means that it is broken already.
        unsafe { (rados.rados_unwatch2)(self.pool.io, cookie) };
        // SAFETY: the client is connected. It waits for callbacks that run.
        unsafe { (rados.rados_watch_flush)(client.rados) };
        // SAFETY: made by `Box::into_raw`; no callback runs or begins any more.
        drop(unsafe { Box::from_raw(told) });
    }
}

fn version_and_bytes(rados: &ffi::RadosTable, op: WriteOp, version: &str, bytes: &[u8]) {
    // SAFETY: the operation is there; copies both.
    unsafe {
        (rados.rados_write_op_setxattr)(
            op,
            VERSION.as_ptr(),
            version.as_ptr().cast(),
            version.len(),
        );
        (rados.rados_write_op_write_full)(op, bytes.as_ptr().cast(), bytes.len());
    }
}

/// Runs on a thread of librados.
unsafe extern "C" fn notified(
    told: *mut c_void,
    notify: u64,
    _watch: u64,
    _notifier: u64,
    data: *mut c_void,
    len: usize,
) {
    // SAFETY: the object keeps it until the watch has ended, which waits for callbacks.
    let told = unsafe { &*told.cast::<Told>() };
    let bytes = if data.is_null() || len == 0 {
        Vec::new()
    } else {
        // SAFETY: librados gives so many bytes, for this call.
        unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) }.to_vec()
    };
    (told.sink)(Watched::Notified(notify, bytes));
}

/// Runs on a thread of librados.
unsafe extern "C" fn failed(told: *mut c_void, _watch: u64, returned: c_int) {
    // SAFETY: as in `notified`.
    let told = unsafe { &*told.cast::<Told>() };
    (told.sink)(Watched::Failed(returned.saturating_abs()));
}

/// The reply of a notify, as `rados/librados.h` describes it: a list of client, watch and answer, and one of clients and
/// watches that have not answered.
fn decode(mut reply: &[u8]) -> Option<Acks> {
    let count = take_u32(&mut reply)?;
    let mut answers = Vec::new();
    for _ in 0..count {
        reply = reply.get(16..)?;
        let len = take_u32(&mut reply)? as usize;
        answers.push(reply.get(..len)?.to_vec());
        reply = &reply[len..];
    }
    let missing = take_u32(&mut reply)?;
    Some(Acks { answers, all: missing == 0 })
}

fn take_u32(from: &mut &[u8]) -> Option<u32> {
    let (word, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(u32::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(answers: &[&[u8]], missing: u32) -> Vec<u8> {
        let mut bytes = (answers.len() as u32).to_le_bytes().to_vec();
        for answer in answers {
            bytes.extend([7; 16]);
            bytes.extend((answer.len() as u32).to_le_bytes());
            bytes.extend(*answer);
        }
        bytes.extend(missing.to_le_bytes());
        bytes.extend(vec![9; 16 * missing as usize]);
        bytes
    }

    #[test]
    fn answers_to_a_notify_are_counted() {
        let acks = |answers: &[&[u8]], all| {
            Some(Acks { answers: answers.iter().map(|answer| answer.to_vec()).collect(), all })
        };
        assert_eq!(decode(&reply(&[], 0)), acks(&[], true));
        assert_eq!(decode(&reply(&[b"one", b""], 0)), acks(&[b"one", b""], true));
        assert_eq!(decode(&reply(&[b"one"], 2)), acks(&[b"one"], false));
        let whole = reply(&[b"one"], 0);
        for len in 0..whole.len() {
            assert_eq!(decode(&whole[..len]), None, "{len} bytes");
        }
    }
}
