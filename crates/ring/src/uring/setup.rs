//! Making the io_uring instance, with as much as this kernel has.

use std::io;

use io_uring::{IoUring, Parameters};

use crate::{Arena, Config};

/// The most places in the table of registered files. Sockets and files beyond it are used by
/// their descriptors, which costs a little more per operation.
const MAX_FIXED_FILES: u32 = 4096;

/// An instance and what could be had for it.
pub(super) struct Setup {
    pub(super) ring: IoUring,
    /// Linux 6.1 or later: completions are worked off in `io_uring_enter` only.
    pub(super) deferred: bool,
    /// The kernel raises a flag in shared memory when there is something to be fetched.
    pub(super) taskrun_flag: bool,
    /// The arena is registered.
    pub(super) fixed_buffers: bool,
    /// Places in the table of registered files, perhaps none.
    pub(super) fixed_files: u32,
}

/// How much of the newer kernels to ask for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    /// Linux 6.1: all completion work is done in `io_uring_enter`.
    Deferred,
    /// Linux 5.19: no interrupts of the thread for completion work.
    Cooperative,
    /// Linux 5.11.
    Plain,
}

pub(super) fn setup(config: &Config, arena: &Arena, notes: &mut Vec<String>) -> io::Result<Setup> {
    let (ring, level) = build(config.entries)?;
    check(ring.params())?;
    if level != Level::Deferred {
        notes.push(
            "this kernel's io_uring is older than Linux 6.1 and costs more per operation".into(),
        );
    }
    let fixed_buffers = register_arena(&ring, arena, notes);
    let fixed_files = register_table(&ring);
    Ok(Setup {
        ring,
        deferred: level == Level::Deferred,
        taskrun_flag: level != Level::Plain,
        fixed_buffers,
        fixed_files,
    })
}

/// Tries the levels from the top. Only EINVAL, the answer to an unknown flag, leads further.
fn build(entries: u32) -> io::Result<(IoUring, Level)> {
    let mut last = io::Error::from_raw_os_error(libc::EINVAL);
    for level in [Level::Deferred, Level::Cooperative, Level::Plain] {
        let mut builder = IoUring::builder();
        let entries = entries.max(8);
        builder.setup_clamp().setup_cqsize(entries.saturating_mul(4));
        if level != Level::Plain {
            builder.setup_coop_taskrun().setup_submit_all().setup_taskrun_flag();
        }
        if level == Level::Deferred {
            builder.setup_single_issuer().setup_defer_taskrun();
        }
        match builder.build(entries) {
            Ok(ring) => return Ok((ring, level)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// What the driver relies on; all of it is there since Linux 5.11.
fn check(params: &Parameters) -> io::Result<()> {
    let enough = params.is_feature_ext_arg()
        && params.is_feature_nodrop()
        && params.is_feature_submit_stable()
        && params.is_feature_fast_poll();
    if enough {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::Unsupported, "io_uring needs Linux 5.11 or later"))
}

fn register_arena(ring: &IoUring, arena: &Arena, notes: &mut Vec<String>) -> bool {
    let parts: Vec<libc::iovec> = arena
        .parts()
        .map(|(start, len)| libc::iovec { iov_base: start.as_ptr().cast(), iov_len: len })
        .collect();
    // SAFETY: the parts are mapped memory. The kernel holds on to the pages themselves, so even
    // an arena that is unmapped first harms nobody.
    match unsafe { ring.submitter().register_buffers(&parts) } {
        Ok(()) => true,
        Err(error) => {
            notes.push(format!(
                "the buffers ({} MiB) are not registered with io_uring ({error}), which costs a \
                 little on disk operations; raise the limit on locked memory (RLIMIT_MEMLOCK, \
                 LimitMEMLOCK= in systemd) to change that",
                arena.total_bytes() >> 20
            ));
            false
        }
    }
}

/// The kernel allows no more places than the process may have descriptors.
fn register_table(ring: &IoUring) -> u32 {
    let mut size = MAX_FIXED_FILES;
    while size >= 64 {
        if ring.submitter().register_files_sparse(size).is_ok() {
            return size;
        }
        size /= 2;
    }
    0
}
