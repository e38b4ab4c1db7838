//! The system calls that threads may make (seccomp), as lists of what is allowed.
//!
//! A call that is in no list fails with EPERM. It does not end the process: the lists were learnt from the libraries and
//! kernels that we know, and a call that only a newer C library makes is to cost a feature, not all sessions. For whoever has
//! taken over a thread it is all the same.

use std::collections::BTreeMap;

use lunet_os::role::Role;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Is, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter,
};

/// What any thread does: memory, locks, time, signals, its end.
const EVERY_THREAD: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getcpu,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_write,
];

/// Reading and writing files that are open.
const OPEN_FILES: &[i64] = &[
    libc::SYS_fallocate,
    libc::SYS_fdatasync,
    libc::SYS_fsync,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
];

/// What the server does besides: files, the event loop, sockets that are there, threads.
const SERVER: &[i64] = &[
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_chdir,
    libc::SYS_clone3,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_copy_file_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fcntl,
    libc::SYS_fgetxattr,
    libc::SYS_flistxattr,
    libc::SYS_flock,
    libc::SYS_fremovexattr,
    libc::SYS_fsetxattr,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpeername,
    libc::SYS_getppid,
    libc::SYS_getrusage,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_getuid,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_restrict_self,
    libc::SYS_lseek,
    libc::SYS_mkdirat,
    libc::SYS_mlock,
    libc::SYS_mmap,
    libc::SYS_munlock,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_read,
    libc::SYS_readahead,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_sched_setaffinity,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_socketpair,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_sync_file_range,
    libc::SYS_sysinfo,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_umask,
    libc::SYS_uname,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
    libc::SYS_writev,
];

/// What has an older name where the C library still uses it.
#[cfg(target_arch = "x86_64")]
const OLDER: &[i64] = &[
    libc::SYS_access,
    libc::SYS_arch_prctl,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_dup2,
    // librados waits for its sockets by it.
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_open,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_rmdir,
    libc::SYS_stat,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[i64] = &[];

/// What begins something: a shard, whose bytes come from strangers, does none of it once it serves.
const BEGINS: &[i64] = &[
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_io_uring_setup,
    libc::SYS_listen,
    // Lets a group use a control socket. A socket cannot be opened, so that fsetxattr(2) will not do.
    libc::SYS_setxattr,
];

/// What neither the REST interface's process does nor a job that it starts (doctor, tune, bench) and its programs. Jobs set
/// the machine up, so there is no list of what they may do.
const NO_JOB: &[i64] = &[
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_fanotify_init,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_perf_event_open,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

/// Families of sockets: Unix, IPv4, IPv6, and Netlink, by which libraries ask for addresses and RDMA devices.
const FAMILIES: &[libc::c_int] = &[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Requests of ioctl(2).
const REQUESTS: &[u64] = &[
    // Block devices: BLKDISCARD, BLKSSZGET, BLKPBSZGET, BLKGETSIZE64.
    DISCARD,
    0x1268,
    0x127b,
    0x8008_1272,
    // NVMe namespaces: NVME_IOCTL_ID.
    0x4e40,
    // Files: FICLONE, FS_IOC_GETFLAGS, FS_IOC_SETFLAGS.
    0x4004_9409,
    0x8008_6601,
    0x4008_6602,
    // Any: FIONBIO, FIOCLEX, and what asks whether something is a terminal, TCGETS.
    0x5421,
    0x5451,
    0x5401,
    // RDMA: RDMA_VERBS_IOCTL.
    0xc018_1b01,
];

const DISCARD: u64 = 0x1277;

/// Operations of prctl(2) that name threads and memory, ask, or give up more.
const PRCTL: &[u64] = &[
    libc::PR_SET_NAME as u64,
    libc::PR_GET_NAME as u64,
    libc::PR_SET_TIMERSLACK as u64,
    libc::PR_SET_NO_NEW_PRIVS as u64,
    libc::PR_CAPBSET_READ as u64,
    libc::PR_GET_DUMPABLE as u64,
    libc::PR_SET_VMA as u64,
    // PR_GET_AUXV.
    0x4155_5856,
];

/// What is not thread-like of clone(2): a process, or a namespace.
const NAMESPACES: libc::c_int = libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS;

/// A list of system calls; those with conditions are allowed where one of them holds.
type List = BTreeMap<i64, Vec<SeccompRule>>;

/// The filters of a process, made before any of them is in force.
#[derive(Debug)]
pub struct Filters {
    server: BpfProgram,
    /// Has the C library fall back to clone(2), whose flags can be seen.
    no_clone3: BpfProgram,
    shard: BpfProgram,
    disk: BpfProgram,
    log: BpfProgram,
}

impl Filters {
    /// Makes them.
    ///
    /// # Errors
    /// There are none for this processor.
    pub fn new() -> Result<Self, seccompiler::Error> {
        let mut server = every_thread()?;
        allow(&mut server, OPEN_FILES);
        allow(&mut server, SERVER);
        allow(&mut server, OLDER);
        server.insert(libc::SYS_ioctl, any_of(1, Length::Dword, REQUESTS)?);
        server.insert(libc::SYS_clone, a_thread()?);
        server.insert(libc::SYS_prlimit64, looks_at_limits()?);
        // Threads that are limited further.
        server.insert(libc::SYS_seccomp, any_of(0, Length::Dword, &[1])?);
        let shard = server.clone();
        allow(&mut server, BEGINS);
        let families: Vec<u64> = FAMILIES.iter().map(|family| *family as u64).collect();
        server.insert(libc::SYS_socket, any_of(0, Length::Dword, &families)?);
        let mut disk = every_thread()?;
        allow(&mut disk, OPEN_FILES);
        disk.insert(libc::SYS_ioctl, any_of(1, Length::Dword, &[DISCARD])?);
        let clone3 = [(libc::SYS_clone3, Vec::new())].into_iter().collect();
        let refuse = |number: i32| SeccompAction::Errno(number.unsigned_abs());
        Ok(Self {
            server: program(server)?,
            no_clone3: compile(clone3, SeccompAction::Allow, refuse(libc::ENOSYS))?,
            shard: program(shard)?,
            disk: program(disk)?,
            log: program(every_thread()?)?,
        })
    }

    /// Limits this thread of the REST interface's process, and all that it starts.
    ///
    /// # Errors
    /// As for [`limit_server`](Self::limit_server).
    pub fn limit_interface() -> Result<(), seccompiler::Error> {
        let mut list = List::new();
        allow(&mut list, NO_JOB);
        let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
        apply_filter(&compile(list, SeccompAction::Allow, refuse)?)
    }

    /// Limits this thread, and all that it starts, to what the server does.
    ///
    /// # Errors
    /// The kernel has no such filters.
    pub fn limit_server(&self) -> Result<(), seccompiler::Error> {
        apply_filter(&self.server)?;
        // The last one that refuses says how.
        apply_filter(&self.no_clone3)
    }

    /// Limits this thread further.
    ///
    /// # Errors
    /// As for [`limit_server`](Self::limit_server).
    pub fn limit_to(&self, role: Role) -> Result<(), seccompiler::Error> {
        apply_filter(match role {
            Role::Shard => &self.shard,
            Role::Disk => &self.disk,
            Role::Log => &self.log,
        })
    }
}

fn allow(list: &mut List, calls: &[i64]) {
    list.extend(calls.iter().map(|call| (*call, Vec::new())));
}

fn every_thread() -> Result<List, seccompiler::Error> {
    let mut list = List::new();
    allow(&mut list, EVERY_THREAD);
    // Memory of a new thread or of the heap: none whose content can be run. What loads libraries has a rule of its own.
    list.insert(libc::SYS_mmap, vec![masked(2, libc::PROT_EXEC, 0)?]);
    list.insert(libc::SYS_mprotect, vec![masked(2, libc::PROT_EXEC, 0)?]);
    list.insert(libc::SYS_prctl, any_of(0, Length::Dword, PRCTL)?);
    if let Some(rule) = list.get_mut(&libc::SYS_prctl) {
        // From a thread that has a new secret: no dumps.
        let dumpable = equal(0, Length::Dword, libc::PR_SET_DUMPABLE as u64)?;
        rule.push(SeccompRule::new(vec![dumpable, equal(1, Length::Qword, 0)?])?);
    }
    // A signal is told by a socket pair, on whatever thread it comes.
    list.insert(libc::SYS_sendto, vec![SeccompRule::new(vec![equal(4, Length::Qword, 0)?])?]);
    // abort(3).
    list.insert(libc::SYS_tgkill, any_of(0, Length::Dword, &[u64::from(std::process::id())])?);
    Ok(list)
}

fn a_thread() -> Result<Vec<SeccompRule>, seccompiler::Error> {
    Ok(vec![masked(0, NAMESPACES | libc::CLONE_THREAD, libc::CLONE_THREAD)?])
}

/// Of this process, without setting any.
fn looks_at_limits() -> Result<Vec<SeccompRule>, seccompiler::Error> {
    let (this, no_new) = (equal(0, Length::Dword, 0)?, equal(2, Length::Qword, 0)?);
    Ok(vec![SeccompRule::new(vec![this, no_new])?])
}

fn equal(at: u8, length: Length, value: u64) -> Result<SeccompCondition, seccompiler::Error> {
    Ok(SeccompCondition::new(at, length, Is::Eq, value)?)
}

/// An argument that is `value` as far as `mask` goes.
fn masked(at: u8, mask: i32, value: i32) -> Result<SeccompRule, seccompiler::Error> {
    let (mask, value) = (u64::from(mask as u32), u64::from(value as u32));
    let condition = SeccompCondition::new(at, Length::Dword, Is::MaskedEq(mask), value)?;
    Ok(SeccompRule::new(vec![condition])?)
}

fn any_of(at: u8, length: Length, all: &[u64]) -> Result<Vec<SeccompRule>, seccompiler::Error> {
    let rule = |value: &u64| Ok(SeccompRule::new(vec![equal(at, length.clone(), *value)?])?);
    all.iter().map(rule).collect()
}

fn program(list: List) -> Result<BpfProgram, seccompiler::Error> {
    compile(list, SeccompAction::Errno(libc::EPERM.unsigned_abs()), SeccompAction::Allow)
}

fn compile(
    list: List,
    others: SeccompAction,
    these: SeccompAction,
) -> Result<BpfProgram, seccompiler::Error> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(list, others, these, arch)?.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_has_a_program_that_the_kernel_takes_and_no_more_than_the_server() {
        let filters = Filters::new().expect("this processor is known");
        let Filters { server, no_clone3, shard, disk, log } = &filters;
        for program in [server, no_clone3, shard, disk, log] {
            // BPF_MAXINSNS.
            assert!((1..4096).contains(&program.len()), "{}", program.len());
        }
        assert!(log.len() < disk.len() && disk.len() < shard.len() && shard.len() < server.len());
    }

    #[test]
    fn a_thread_is_limited_to_its_role() {
        let filters = Filters::new().expect("this processor is known");
        let work = move || {
            filters.limit_to(Role::Log).expect("the kernel has seccomp");
            (std::fs::File::open("/dev/null").err(), std::env::current_dir().err())
        };
        let (opened, asked) = std::thread::spawn(work).join().expect("it does not end by that");
        for refused in [opened, asked] {
            assert_eq!(refused.and_then(|error| error.raw_os_error()), Some(libc::EPERM));
        }
    }
}
