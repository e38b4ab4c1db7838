//! What the tests of the sandbox try from inside a server: system calls of which it makes none. Not in a release build.

use std::ffi::c_long;
use std::ptr;

/// What is tried.
pub struct Attempt {
    /// The system call's name, and what it is tried with.
    pub name: &'static str,
    number: c_long,
    arguments: [c_long; 3],
}

const fn attempt(name: &'static str, number: c_long, arguments: [c_long; 3]) -> Attempt {
    Attempt { name, number, arguments }
}

/// A thread has to share memory and signals, which these do not.
const NAMESPACE: c_long = (libc::CLONE_NEWUSER | libc::CLONE_THREAD) as c_long;

/// What no thread of a server may do. None of it changes anything: where it gets through, the kernel finds arguments that are
/// no good, or that ask for nothing.
pub const NOBODY: &[Attempt] = &[
    attempt("execve", libc::SYS_execve, [0; 3]),
    attempt("execveat", libc::SYS_execveat, [-1, 0, 0]),
    attempt("clone of a process", libc::SYS_clone, [libc::CLONE_SIGHAND as c_long, 0, 0]),
    attempt("clone into a namespace", libc::SYS_clone, [NAMESPACE, 0, 0]),
    attempt("clone3", libc::SYS_clone3, [0; 3]),
    attempt("unshare", libc::SYS_unshare, [0; 3]),
    attempt("setns", libc::SYS_setns, [-1, 0, 0]),
    attempt("ptrace", libc::SYS_ptrace, [libc::PTRACE_ATTACH as c_long, 1, 0]),
    attempt("process_vm_readv", libc::SYS_process_vm_readv, [1, 0, 0]),
    attempt("process_vm_writev", libc::SYS_process_vm_writev, [1, 0, 0]),
    attempt("pidfd_open", libc::SYS_pidfd_open, [1, 0, 0]),
    attempt("kill", libc::SYS_kill, [1, 0, 0]),
    attempt("tgkill of another process", libc::SYS_tgkill, [1, 1, 0]),
    attempt("mount", libc::SYS_mount, [0; 3]),
    attempt("umount2", libc::SYS_umount2, [0; 3]),
    attempt("open_tree", libc::SYS_open_tree, [-1, 0, 0]),
    attempt("pivot_root", libc::SYS_pivot_root, [0; 3]),
    attempt("chroot", libc::SYS_chroot, [0; 3]),
    attempt("init_module", libc::SYS_init_module, [0; 3]),
    attempt("finit_module", libc::SYS_finit_module, [-1, 0, 0]),
    attempt("delete_module", libc::SYS_delete_module, [0; 3]),
    attempt("kexec_load", libc::SYS_kexec_load, [0, 0, 0]),
    attempt("bpf", libc::SYS_bpf, [0; 3]),
    attempt("perf_event_open", libc::SYS_perf_event_open, [0, 0, -1]),
    attempt("userfaultfd", libc::SYS_userfaultfd, [0; 3]),
    attempt("keyctl", libc::SYS_keyctl, [0, -1, 0]),
    attempt("add_key", libc::SYS_add_key, [0; 3]),
    attempt("request_key", libc::SYS_request_key, [0; 3]),
    attempt("setuid", libc::SYS_setuid, [0; 3]),
    attempt("setgid", libc::SYS_setgid, [0; 3]),
    attempt("setgroups", libc::SYS_setgroups, [-1, 0, 0]),
    attempt("capset", libc::SYS_capset, [0; 3]),
    attempt("prctl for dumps", libc::SYS_prctl, [libc::PR_SET_DUMPABLE as c_long, 1, 0]),
    attempt(
        "prctl for ambient capabilities",
        libc::SYS_prctl,
        [libc::PR_CAP_AMBIENT as c_long, 2, 0],
    ),
    attempt("prlimit64 of another process", libc::SYS_prlimit64, [1, 0, 0]),
    attempt("socket of packets", libc::SYS_socket, [libc::AF_PACKET as c_long, 3, 0]),
    attempt("socket to the hypervisor", libc::SYS_socket, [libc::AF_VSOCK as c_long, 1, 0]),
    attempt("ioctl that types (TIOCSTI)", libc::SYS_ioctl, [-1, libc::TIOCSTI as c_long, 0]),
    attempt("mknodat", libc::SYS_mknodat, [-1, 0, 0]),
    attempt("memfd_create", libc::SYS_memfd_create, [0; 3]),
    attempt("mprotect to run memory", libc::SYS_mprotect, [0, 0, libc::PROT_EXEC as c_long]),
    attempt("open_by_handle_at", libc::SYS_open_by_handle_at, [-1, 0, 0]),
    attempt("fanotify_init", libc::SYS_fanotify_init, [-1, 0, 0]),
    attempt("swapon", libc::SYS_swapon, [0; 3]),
    attempt("reboot", libc::SYS_reboot, [0; 3]),
    attempt("sethostname", libc::SYS_sethostname, [0, -1, 0]),
    attempt("settimeofday", libc::SYS_settimeofday, [0; 3]),
    attempt("syslog", libc::SYS_syslog, [-1, 0, 0]),
    attempt("personality", libc::SYS_personality, [0xffff_ffff, 0, 0]),
];

/// What a shard may not do either, once it serves.
pub const NO_SHARD: &[Attempt] = &[
    attempt("io_uring_setup", libc::SYS_io_uring_setup, [0; 3]),
    attempt("socket", libc::SYS_socket, [libc::AF_INET as c_long, libc::SOCK_STREAM as c_long, 0]),
    attempt("connect", libc::SYS_connect, [-1, 0, 0]),
    attempt("bind", libc::SYS_bind, [-1, 0, 0]),
    attempt("setxattr", libc::SYS_setxattr, [0; 3]),
];

/// What a thread may not do that writes the log, or open files.
pub const NO_WRITER: &[Attempt] = &[
    attempt("openat", libc::SYS_openat, [-1, 0, 0]),
    attempt("io_uring_enter", libc::SYS_io_uring_enter, [-1, 0, 0]),
    attempt("sendmsg", libc::SYS_sendmsg, [-1, 0, 0]),
    attempt("unlinkat", libc::SYS_unlinkat, [-1, 0, 0]),
    attempt("clone of a thread", libc::SYS_clone, [libc::CLONE_THREAD as c_long, 0, 0]),
];

impl Attempt {
    /// Tries it. The error number, or none if nothing has refused it.
    pub fn make(&self) -> Option<i32> {
        let [one, two, three] = self.arguments;
        let nothing = ptr::null::<u8>();
        // SAFETY: no address among the arguments is valid, and none of these calls touches memory without one; no call
        // here ends a thread, starts one that would run, or gives up what the process has.
        let result = unsafe { libc::syscall(self.number, one, two, three, nothing, nothing) };
        (result == -1).then(crate::sys::last_errno)
    }
}
