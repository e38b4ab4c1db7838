//! What the two libraries declare in `rados/librados.h` and `rbd/librbd.h`, as far as it is used, written down by hand: the
//! build needs neither headers nor a C compiler.

use std::ffi::{c_char, c_int, c_void};

use crate::Missing;

/// `rados_t`: a client of a cluster.
pub(crate) type Rados = *mut c_void;
/// `rados_ioctx_t`: a pool.
pub(crate) type IoCtx = *mut c_void;
/// `rados_write_op_t`: changes of one object that are made together.
pub(crate) type WriteOp = *mut c_void;
/// `rados_watchcb2_t`: what was given to the watch, notify, watch, notifier, data and its length.
pub(crate) type WatchCallback =
    unsafe extern "C" fn(*mut c_void, u64, u64, u64, *mut c_void, usize);
/// `rados_watcherrcb_t`: what was given to the watch, watch, negative error number.
pub(crate) type WatchError = unsafe extern "C" fn(*mut c_void, u64, c_int);
/// `rbd_image_t`: an open image.
pub(crate) type ImagePtr = *mut c_void;
/// `rbd_completion_t`: a request in flight.
pub(crate) type CompletionPtr = *mut c_void;
/// `rbd_callback_t`.
pub(crate) type Callback = unsafe extern "C" fn(CompletionPtr, *mut c_void);
/// The callback of `rbd_diff_iterate2`: offset, length, whether there is data.
pub(crate) type DiffCallback = unsafe extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;
/// `librbd_progress_fn_t`: done, of so much, what was given with it.
pub(crate) type ProgressCallback = unsafe extern "C" fn(u64, u64, *mut c_void) -> c_int;
/// `rbd_update_callback_t`.
pub(crate) type UpdateCallback = unsafe extern "C" fn(*mut c_void);

/// `LIBRADOS_CREATE_EXCLUSIVE`.
pub(crate) const CREATE_EXCLUSIVE: c_int = 1;
/// `LIBRADOS_CMPXATTR_OP_EQ`.
pub(crate) const COMPARE_EQUAL: u8 = 1;
/// `RBD_LOCK_MODE_EXCLUSIVE`.
pub(crate) const LOCK_EXCLUSIVE: c_int = 0;
/// `RBD_FEATURE_EXCLUSIVE_LOCK`.
pub(crate) const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;
/// `RBD_FEATURE_OBJECT_MAP`.
pub(crate) const FEATURE_OBJECT_MAP: u64 = 1 << 3;
/// `RBD_FEATURE_FAST_DIFF`, which needs an object map.
pub(crate) const FEATURE_FAST_DIFF: u64 = 1 << 4;
/// `RBD_FEATURE_JOURNALING`.
pub(crate) const FEATURE_JOURNALING: u64 = 1 << 6;
/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`.
pub(crate) const ZEROES_THICK: c_int = 1;

/// `rbd_image_info_t`.
#[repr(C)]
pub(crate) struct ImageInfo {
    pub size: u64,
    pub obj_size: u64,
    pub num_objs: u64,
    pub order: c_int,
    pub block_name_prefix: [c_char; 24],
    pub parent_pool: i64,
    pub parent_name: [c_char; 96],
}

/// `RBD_IMAGE_OPTION_FEATURES_SET` and `RBD_IMAGE_OPTION_CLONE_FORMAT`.
pub(crate) const OPTION_FEATURES_SET: c_int = 8;
pub(crate) const OPTION_CLONE_FORMAT: c_int = 12;
/// `RBD_FEATURE_LAYERING`.
pub(crate) const FEATURE_LAYERING: u64 = 1 << 0;
/// `RBD_SNAP_NAMESPACE_TYPE_USER`.
pub(crate) const SNAPSHOT_OF_USER: c_int = 0;

/// `rbd_image_options_t`.
pub(crate) type Options = *mut c_void;

/// `rbd_snap_info_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SnapInfo {
    pub id: u64,
    pub size: u64,
    pub name: *const c_char,
}

/// `rbd_config_option_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ConfigOption {
    pub name: *mut c_char,
    pub value: *mut c_char,
    pub source: c_int,
}

/// Declares a table of functions, and how it is filled from a library.
macro_rules! table {
    ($(#[$doc:meta])* $table:ident { $($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)* }) => {
        $(#[$doc])*
        pub(crate) struct $table {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl $table {
            /// Looks the functions up.
            ///
            /// # Errors
            /// The library has not all of them.
            ///
            /// # Safety
            /// The functions of the file have the types that stand here, and the file is never closed.
            pub unsafe fn load(file: &libloading::Library, name: &str) -> Result<Self, Missing> {
                Ok(Self {
                    $($name: {
                        let symbol = concat!(stringify!($name), "\0").as_bytes();
                        let missing = |_| Missing::Function {
                            file: name.to_owned(),
                            function: stringify!($name),
                        };
                        // SAFETY: the caller vouches for the type.
                        *unsafe { file.get::<unsafe extern "C" fn($($arg),*) $(-> $ret)?>(symbol) }
                            .map_err(missing)?
                    },)*
                })
            }
        }
    };
}

table! {
    /// librados.
    RadosTable {
        rados_create: fn(*mut Rados, *const c_char) -> c_int;
        rados_conf_read_file: fn(Rados, *const c_char) -> c_int;
        rados_conf_set: fn(Rados, *const c_char, *const c_char) -> c_int;
        rados_conf_get: fn(Rados, *const c_char, *mut c_char, usize) -> c_int;
        rados_connect: fn(Rados) -> c_int;
        rados_shutdown: fn(Rados);
        rados_ioctx_create: fn(Rados, *const c_char, *mut IoCtx) -> c_int;
        rados_ioctx_set_namespace: fn(IoCtx, *const c_char);
        rados_ioctx_destroy: fn(IoCtx);
        rados_set_pool_full_try: fn(IoCtx);
        rados_mon_command: fn(
            Rados, *mut *const c_char, usize, *const c_char, usize, *mut *mut c_char, *mut usize, *mut *mut c_char, *mut usize
        ) -> c_int;
        rados_buffer_free: fn(*mut c_char);
        rados_getaddrs: fn(Rados, *mut *mut c_char) -> c_int;
        rados_get_instance_id: fn(Rados) -> u64;
        rados_read: fn(IoCtx, *const c_char, *mut c_char, usize, u64) -> c_int;
        rados_list_lockers: fn(
            IoCtx, *const c_char, *const c_char, *mut c_int, *mut c_char, *mut usize, *mut c_char, *mut usize, *mut c_char,
            *mut usize, *mut c_char, *mut usize
        ) -> isize;
        rados_remove: fn(IoCtx, *const c_char) -> c_int;
        rados_create_write_op: fn() -> WriteOp;
        rados_release_write_op: fn(WriteOp);
        rados_write_op_create: fn(WriteOp, c_int, *const c_char);
        rados_write_op_cmpxattr: fn(WriteOp, *const c_char, u8, *const c_char, usize);
        rados_write_op_setxattr: fn(WriteOp, *const c_char, *const c_char, usize);
        rados_write_op_write_full: fn(WriteOp, *const c_char, usize);
        rados_write_op_operate: fn(WriteOp, IoCtx, *const c_char, *mut libc::time_t, c_int) -> c_int;
        rados_watch2: fn(IoCtx, *const c_char, *mut u64, WatchCallback, WatchError, *mut c_void) -> c_int;
        rados_unwatch2: fn(IoCtx, u64) -> c_int;
        rados_watch_flush: fn(Rados) -> c_int;
        rados_notify2: fn(IoCtx, *const c_char, *const c_char, c_int, u64, *mut *mut c_char, *mut usize) -> c_int;
        rados_notify_ack: fn(IoCtx, *const c_char, u64, u64, *const c_char, c_int) -> c_int;
        rados_wait_for_latest_osdmap: fn(Rados) -> c_int;
    }
}

table! {
    /// librbd.
    RbdTable {
        rbd_open: fn(IoCtx, *const c_char, *mut ImagePtr, *const c_char) -> c_int;
        rbd_open_read_only: fn(IoCtx, *const c_char, *mut ImagePtr, *const c_char) -> c_int;
        rbd_close: fn(ImagePtr) -> c_int;
        rbd_stat: fn(ImagePtr, *mut ImageInfo, usize) -> c_int;
        rbd_get_size: fn(ImagePtr, *mut u64) -> c_int;
        rbd_get_features: fn(ImagePtr, *mut u64) -> c_int;
        rbd_get_id: fn(ImagePtr, *mut c_char, usize) -> c_int;
        rbd_resize2: fn(ImagePtr, u64, bool, ProgressCallback, *mut c_void) -> c_int;
        rbd_flush: fn(ImagePtr) -> c_int;
        rbd_lock_acquire: fn(ImagePtr, c_int) -> c_int;
        rbd_lock_release: fn(ImagePtr) -> c_int;
        rbd_lock_break: fn(ImagePtr, c_int, *const c_char) -> c_int;
        rbd_lock_get_owners: fn(ImagePtr, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
        rbd_lock_get_owners_cleanup: fn(*mut *mut c_char, usize);
        rbd_config_image_list: fn(ImagePtr, *mut ConfigOption, *mut c_int) -> c_int;
        rbd_config_image_list_cleanup: fn(*mut ConfigOption, c_int);
        rbd_update_watch: fn(ImagePtr, *mut u64, UpdateCallback, *mut c_void) -> c_int;
        rbd_update_unwatch: fn(ImagePtr, u64) -> c_int;
        rbd_snap_create: fn(ImagePtr, *const c_char) -> c_int;
        rbd_snap_remove: fn(ImagePtr, *const c_char) -> c_int;
        rbd_snap_rollback: fn(ImagePtr, *const c_char) -> c_int;
        rbd_snap_is_protected: fn(ImagePtr, *const c_char, *mut c_int) -> c_int;
        rbd_snap_list: fn(ImagePtr, *mut SnapInfo, *mut c_int) -> c_int;
        rbd_snap_list_end: fn(*mut SnapInfo);
        rbd_snap_get_timestamp: fn(ImagePtr, u64, *mut libc::timespec) -> c_int;
        rbd_snap_get_namespace_type: fn(ImagePtr, u64, *mut c_int) -> c_int;
        rbd_image_options_create: fn(*mut Options);
        rbd_image_options_destroy: fn(Options);
        rbd_image_options_set_uint64: fn(Options, c_int, u64) -> c_int;
        rbd_create4: fn(IoCtx, *const c_char, u64, Options) -> c_int;
        rbd_clone3: fn(IoCtx, *const c_char, *const c_char, IoCtx, *const c_char, Options) -> c_int;
        rbd_diff_iterate2: fn(ImagePtr, *const c_char, u64, u64, u8, u8, DiffCallback, *mut c_void) -> c_int;
        rbd_aio_create_completion: fn(*mut c_void, Callback, *mut CompletionPtr) -> c_int;
        rbd_aio_release: fn(CompletionPtr);
        rbd_aio_get_return_value: fn(CompletionPtr) -> isize;
        rbd_aio_read: fn(ImagePtr, u64, usize, *mut c_char, CompletionPtr) -> c_int;
        rbd_aio_write: fn(ImagePtr, u64, usize, *const c_char, CompletionPtr) -> c_int;
        rbd_aio_write_zeroes: fn(ImagePtr, u64, usize, CompletionPtr, c_int, c_int) -> c_int;
        rbd_aio_flush: fn(ImagePtr, CompletionPtr) -> c_int;
    }
}
