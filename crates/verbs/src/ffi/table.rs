//! The functions of the two libraries, looked up by name.

use std::ffi::{c_int, c_uint, c_void};

use libloading::Library;

use super::{
    IbvAsyncEvent, IbvCompChannel, IbvContext, IbvCq, IbvDeviceAttr, IbvMr, IbvPd, IbvPortAttr,
    IbvQp, IbvQpAttr, IbvQpInitAttr, IbvSrq, IbvSrqInitAttr, RdmaCmEvent, RdmaCmId, RdmaConnParam,
    RdmaEventChannel,
};
use crate::Missing;

/// Declares a table of functions and how it is filled.
macro_rules! table {
    ($(#[$doc:meta])* $table:ident { $(fn $name:ident($($arg:ty),*) $(-> $result:ty)?;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $table {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
        }

        impl $table {
            /// Functions that must not be called: a test puts those in their place that may.
            #[cfg(any(test, feature = "simulated"))]
            pub(crate) fn absent() -> Self {
                Self {
                    $($name: {
                        unsafe extern "C" fn absent($(_: $arg),*) $(-> $result)? {
                            unreachable!("{} was called", stringify!($name))
                        }
                        absent
                    },)*
                }
            }

            /// Looks all functions up.
            ///
            /// # Safety
            /// The library must be the one whose header declares these functions, and must stay
            /// open for as long as one of them may be called.
            pub(crate) unsafe fn load(library: &Library, file: &str) -> Result<Self, Missing> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the caller's promise: this is the function's declaration.
                        let found = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        *found.map_err(|_| Missing::Function {
                            file: file.to_string(),
                            function: stringify!($name),
                        })?
                    },)*
                })
            }
        }
    };
}

table! {
    /// libibverbs.so.1, as of rdma-core 15 (2017) and later.
    VerbsTable {
        fn ibv_fork_init() -> c_int;
        fn ibv_query_device(*mut IbvContext, *mut IbvDeviceAttr) -> c_int;
        fn ibv_query_port(*mut IbvContext, u8, *mut IbvPortAttr) -> c_int;
        fn ibv_get_async_event(*mut IbvContext, *mut IbvAsyncEvent) -> c_int;
        fn ibv_ack_async_event(*mut IbvAsyncEvent);
        fn ibv_alloc_pd(*mut IbvContext) -> *mut IbvPd;
        fn ibv_dealloc_pd(*mut IbvPd) -> c_int;
        fn ibv_reg_mr(*mut IbvPd, *mut c_void, usize, c_int) -> *mut IbvMr;
        fn ibv_dereg_mr(*mut IbvMr) -> c_int;
        fn ibv_create_comp_channel(*mut IbvContext) -> *mut IbvCompChannel;
        fn ibv_destroy_comp_channel(*mut IbvCompChannel) -> c_int;
        fn ibv_create_cq(*mut IbvContext, c_int, *mut c_void, *mut IbvCompChannel, c_int) -> *mut IbvCq;
        fn ibv_destroy_cq(*mut IbvCq) -> c_int;
        fn ibv_get_cq_event(*mut IbvCompChannel, *mut *mut IbvCq, *mut *mut c_void) -> c_int;
        fn ibv_ack_cq_events(*mut IbvCq, c_uint);
        fn ibv_create_srq(*mut IbvPd, *mut IbvSrqInitAttr) -> *mut IbvSrq;
        fn ibv_destroy_srq(*mut IbvSrq) -> c_int;
        fn ibv_modify_qp(*mut IbvQp, *mut IbvQpAttr, c_int) -> c_int;
        fn ibv_query_qp(*mut IbvQp, *mut IbvQpAttr, c_int, *mut IbvQpInitAttr) -> c_int;
        fn ibv_destroy_qp(*mut IbvQp) -> c_int;
    }
}

table! {
    /// librdmacm.so.1.
    CmTable {
        fn rdma_get_devices(*mut c_int) -> *mut *mut IbvContext;
        fn rdma_free_devices(*mut *mut IbvContext);
        fn rdma_create_event_channel() -> *mut RdmaEventChannel;
        fn rdma_destroy_event_channel(*mut RdmaEventChannel);
        fn rdma_create_id(*mut RdmaEventChannel, *mut *mut RdmaCmId, *mut c_void, c_uint) -> c_int;
        fn rdma_destroy_id(*mut RdmaCmId) -> c_int;
        fn rdma_bind_addr(*mut RdmaCmId, *mut libc::sockaddr) -> c_int;
        fn rdma_listen(*mut RdmaCmId, c_int) -> c_int;
        fn rdma_resolve_addr(*mut RdmaCmId, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
        fn rdma_resolve_route(*mut RdmaCmId, c_int) -> c_int;
        fn rdma_create_qp(*mut RdmaCmId, *mut IbvPd, *mut IbvQpInitAttr) -> c_int;
        fn rdma_connect(*mut RdmaCmId, *mut RdmaConnParam) -> c_int;
        fn rdma_accept(*mut RdmaCmId, *mut RdmaConnParam) -> c_int;
        fn rdma_reject(*mut RdmaCmId, *const c_void, u8) -> c_int;
        fn rdma_disconnect(*mut RdmaCmId) -> c_int;
        fn rdma_migrate_id(*mut RdmaCmId, *mut RdmaEventChannel) -> c_int;
        fn rdma_set_option(*mut RdmaCmId, c_int, c_int, *mut c_void, usize) -> c_int;
        fn rdma_get_cm_event(*mut RdmaEventChannel, *mut *mut RdmaCmEvent) -> c_int;
        fn rdma_ack_cm_event(*mut RdmaCmEvent) -> c_int;
    }
}
