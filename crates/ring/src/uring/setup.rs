//! Making the io_uring instance, with as much as this kernel has.

use std::io;

use io_uring::register::{Probe, Restriction};
use io_uring::squeue::Flags;
use io_uring::{IoUring, Parameters, Submitter, cqueue, opcode, squeue};

use crate::{Arena, Config};

/// The most places in the table of registered files. Sockets and files beyond it are used by
/// their descriptors, which costs a little more per operation.
const MAX_FIXED_FILES: u32 = 4096;

/// The same in rings for NVMe commands, where each namespace has two.
const COMMAND_FILES: u32 = 4096;

/// `IORING_UNREGISTER_FILES` and `IORING_REGISTER_FILES_UPDATE` of linux/io_uring.h: the only registrations once a ring
/// is in use, but for the next two.
const TABLE: [u8; 2] = [3, 6];
/// `IORING_REGISTER_BUFFERS_UPDATE` (Linux 5.13).
const BUFFERS: u8 = 16;
/// `IORING_REGISTER_IOWQ_MAX_WORKERS`. A kernel that does not know it (before Linux 5.15) refuses to restrict to it.
const IOWQ_MAX_WORKERS: u8 = 19;

/// The operations that the driver submits. A ring does no other ones, whoever asks: it cannot open files nor connect.
const OPERATIONS: [u8; 14] = [
    opcode::Accept::CODE,
    opcode::AsyncCancel::CODE,
    opcode::Fallocate::CODE,
    opcode::Fsync::CODE,
    opcode::Nop::CODE,
    opcode::PollAdd::CODE,
    opcode::Read::CODE,
    opcode::ReadFixed::CODE,
    opcode::Recv::CODE,
    opcode::RecvMsg::CODE,
    opcode::Send::CODE,
    opcode::SendMsg::CODE,
    opcode::Write::CODE,
    opcode::WriteFixed::CODE,
];

/// The same, where the kernel knows them (Linux 6.1): one that does not refuses to restrict to them.
const ZERO_COPY: [u8; 2] = [opcode::SendZc::CODE, opcode::SendMsgZc::CODE];

/// An instance and what could be had for it.
pub(super) struct Setup {
    pub(super) ring: IoUring,
    /// Linux 6.1 or later: completions are worked off in `io_uring_enter` only.
    pub(super) deferred: bool,
    /// The kernel raises a flag in shared memory when there is something to be fetched.
    pub(super) taskrun_flag: bool,
    /// Parts of the arena may be registered.
    pub(super) fixed_buffers: bool,
    /// Places in the table of registered files, perhaps none.
    pub(super) fixed_files: u32,
    /// The kernel knows sends without a copy.
    pub(super) zero_copy: bool,
}

/// An instance for NVMe commands.
pub(super) struct CommandSetup {
    pub(super) ring: IoUring<squeue::Entry128, cqueue::Entry32>,
    /// Parts of the arena may be registered.
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
    let fixed_buffers = match register_arena(&ring.submitter(), arena) {
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
    };
    let fixed_files = register_table(&ring.submitter(), MAX_FIXED_FILES);
    let zero_copy = config.zero_copy_send && knows_zero_copy(&ring);
    restrict(&ring, zero_copy, notes);
    // By the thread that submits.
    ring.submitter().register_enable_rings()?;
    Ok(Setup {
        ring,
        deferred: level == Level::Deferred,
        taskrun_flag: level != Level::Plain,
        fixed_buffers,
        fixed_files,
        zero_copy,
    })
}

/// Makes a ring that does NVMe commands and nothing else: they need larger entries than the others, and the ends of those that
/// are polled for come on a ring of their own. With an arena, its parts may be registered with this ring too.
///
/// Its completion work is not deferred: the kernel does it whenever this thread is in the kernel, so mostly while it waits on
/// the other ring, and not in a call of its own.
pub(super) fn setup_commands(
    entries: u32,
    polled: bool,
    arena: Option<&Arena>,
) -> io::Result<CommandSetup> {
    let mut builder = IoUring::<squeue::Entry128, cqueue::Entry32>::builder();
    builder.setup_clamp().setup_cqsize(entries.saturating_mul(8)).setup_r_disabled();
    builder.setup_coop_taskrun().setup_submit_all().setup_taskrun_flag();
    if polled {
        builder.setup_iopoll();
    }
    let ring = builder.build(entries)?;
    check(ring.params())?;
    let submitter = ring.submitter();
    // Said for the other ring already: the limit is the same.
    let fixed_buffers = arena.is_some_and(|arena| register_arena(&submitter, arena).is_ok());
    let fixed_files = register_table(&submitter, COMMAND_FILES);
    let [unregister, update] = TABLE;
    // A kernel that refuses to restrict the other ring has said so.
    let _ = submitter.register_restrictions(&mut [
        Restriction::sqe_op(opcode::UringCmd80::CODE),
        Restriction::sqe_flags_allowed(Flags::FIXED_FILE.bits()),
        Restriction::register_op(unregister),
        Restriction::register_op(update),
        Restriction::register_op(BUFFERS),
    ]);
    // By the thread that submits.
    submitter.register_enable_rings()?;
    Ok(CommandSetup { ring, fixed_buffers, fixed_files })
}

/// Tries the levels from the top. Only EINVAL, the answer to an unknown flag, leads further.
fn build(entries: u32) -> io::Result<(IoUring, Level)> {
    let mut last = io::Error::from_raw_os_error(libc::EINVAL);
    for level in [Level::Deferred, Level::Cooperative, Level::Plain] {
        let mut builder = IoUring::builder();
        let entries = entries.max(8);
        // Until it is restricted.
        builder.setup_clamp().setup_cqsize(entries.saturating_mul(4)).setup_r_disabled();
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

/// Makes a table for the parts of the arena, which are registered when they are needed first. One is now, to see
/// whether that can be done.
fn register_arena(ring: &Submitter<'_>, arena: &Arena) -> io::Result<()> {
    let count = arena.part_count();
    let nothing = vec![libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; count];
    // SAFETY: no memory is named.
    unsafe { ring.register_buffers2(&nothing, &vec![0; count]) }?;
    register_part(ring, arena, 0)
}

/// Registers a part of the arena, which is memory from then on.
pub(super) fn register_part(ring: &Submitter<'_>, arena: &Arena, part: usize) -> io::Result<()> {
    let (start, len) = arena.part(part);
    let vector = libc::iovec { iov_base: start.as_ptr().cast(), iov_len: len };
    // SAFETY: the part is mapped memory. The kernel holds on to the pages themselves, so even
    // an arena that is unmapped first harms nobody.
    unsafe { ring.register_buffers_update(part as u32, &[vector], None) }?;
    arena.note_memory(part);
    Ok(())
}

/// Takes a part of the arena, of which nothing is in use, out of the table.
pub(super) fn unregister_part(ring: &Submitter<'_>, part: usize) -> io::Result<()> {
    let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    // SAFETY: no memory is named.
    unsafe { ring.register_buffers_update(part as u32, &[nothing], None) }
}

/// True if the kernel has the operations for sends without a copy.
fn knows_zero_copy(ring: &IoUring) -> bool {
    let mut probe = Probe::new();
    let known = ring.submitter().register_probe(&mut probe).is_ok();
    known && ZERO_COPY.iter().all(|operation| probe.is_supported(*operation))
}

/// Has a ring that is not enabled yet do what the driver does, and nothing else.
fn restrict(ring: &IoUring, zero_copy: bool, notes: &mut Vec<String>) {
    let zero_copy: &[u8] = if zero_copy { &ZERO_COPY } else { &[] };
    let restrict_to = |registrations: &[u8]| {
        let mut all: Vec<Restriction> = OPERATIONS.map(Restriction::sqe_op).into();
        all.extend(zero_copy.iter().map(|one| Restriction::sqe_op(*one)));
        all.push(Restriction::sqe_flags_allowed((Flags::FIXED_FILE | Flags::ASYNC).bits()));
        all.extend(registrations.iter().map(|one| Restriction::register_op(*one)));
        ring.submitter().register_restrictions(&mut all)
    };
    let [unregister, update] = TABLE;
    let restricted = restrict_to(&[unregister, update, BUFFERS, IOWQ_MAX_WORKERS])
        .or_else(|_| restrict_to(&[unregister, update, BUFFERS]))
        .or_else(|_| restrict_to(&TABLE));
    if let Err(error) = restricted {
        notes.push(format!("the operations of io_uring are not restricted ({error})"));
    }
}

/// The kernel allows no more places than the process may have descriptors.
fn register_table(ring: &Submitter<'_>, most: u32) -> u32 {
    let mut size = most;
    while size >= 64 {
        if ring.register_files_sparse(size).is_ok() {
            return size;
        }
        size /= 2;
    }
    0
}

#[cfg(test)]
mod tests {
    use io_uring::types;

    use super::*;

    /// What a ring answers to one operation.
    fn answer(ring: &mut IoUring, entry: io_uring::squeue::Entry) -> i32 {
        // SAFETY: the operations here refer to no memory, or to such as lives for ever.
        unsafe { ring.submission().push(&entry) }.expect("there is room");
        ring.submit_and_wait(1).expect("the ring takes it");
        ring.completion().next().expect("it is done").result()
    }

    #[test]
    fn a_ring_does_what_the_driver_does_and_nothing_else() {
        let Ok((mut ring, _)) = build(8) else { return eprintln!("skipped: no io_uring here") };
        let mut notes = Vec::new();
        let zero_copy = knows_zero_copy(&ring);
        restrict(&ring, zero_copy, &mut notes);
        assert_eq!(notes, [""; 0]);
        ring.submitter().register_enable_rings().expect("it is the first time");
        assert_eq!(answer(&mut ring, opcode::Nop::new().build()), 0);
        let fd = types::Fd(libc::AT_FDCWD);
        let open = opcode::OpenAt::new(fd, c"/etc/hostname".as_ptr()).build();
        let socket = opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build();
        let linked = opcode::Nop::new().build().flags(Flags::IO_LINK);
        for entry in [open, socket, linked] {
            assert_eq!(answer(&mut ring, entry), -libc::EACCES);
        }
        if zero_copy {
            let send = opcode::SendZc::new(types::Fd(-1), std::ptr::null(), 0).build();
            assert_eq!(answer(&mut ring, send), -libc::EBADF);
        }
        assert!(ring.submitter().register_files_sparse(4).is_err());
        let again = ring.submitter().register_restrictions(&mut [Restriction::sqe_op(18)]);
        assert!(again.is_err(), "restrictions stay as they are");
    }
}
