//! What can go wrong, in sentences that say what to do.

use std::io;
use std::net::IpAddr;

/// Why there is no RDMA in this process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// A library cannot be opened.
    #[error(
        "there is no RDMA here, because {file} cannot be opened ({reason}): install rdma-core, on \
         Debian and Ubuntu the packages libibverbs1, librdmacm1 and ibverbs-providers"
    )]
    File {
        /// The name or path that was tried.
        file: String,
        /// What the system says about it.
        reason: String,
    },
    /// A library is too old.
    #[error(
        "there is no RDMA here, because {file} has no function {function}: install rdma-core 15 or \
         newer"
    )]
    Function {
        /// The library's name or path.
        file: String,
        /// The function's name.
        function: &'static str,
    },
}

/// What went wrong with a device or a connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The libraries are missing.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The kernel's side of rdma_cm is missing.
    #[error(
        "the kernel's RDMA connection manager does not answer ({source}): load it with `modprobe \
         rdma_ucm`, and see that /dev/infiniband/rdma_cm may be opened by this user"
    )]
    NoConnectionManager {
        /// What the system says about it.
        source: io::Error,
    },
    /// The kernel has a device that rdma-core has no driver for.
    #[error(
        "the kernel has the RDMA device {device}, but its user-space driver is missing: install \
         ibverbs-providers (on Fedora and RHEL libibverbs), or the vendor's package"
    )]
    NoProvider {
        /// Name of the RDMA device, such as mlx5_0.
        device: String,
    },
    /// No device carries the address.
    #[error(
        "no RDMA device carries the address {address}: give the address to an interface of an RDMA \
         card in Ethernet mode with RoCE switched on, and see `rdma link`"
    )]
    NoDevice {
        /// IP address that was to be used.
        address: IpAddr,
    },
    /// The device has the address for RoCE v1 only, which no router and no rdma_cm of today takes.
    #[error(
        "the device {device} has no RoCE v2 GID for {address} on port {port}: switch RoCE v2 on in \
         the card's configuration"
    )]
    NoRoceV2 {
        /// Name of the RDMA device, such as mlx5_0.
        device: String,
        /// Its port, from 1 on.
        port: u8,
        /// IP address that was to be used.
        address: IpAddr,
    },
    /// The port is not ACTIVE.
    #[error(
        "port {port} of the RDMA device {device} is {state}: see its cable, its switch port and \
         `ip link`"
    )]
    LinkDown {
        /// Name of the RDMA device, such as mlx5_0.
        device: String,
        /// Its port, from 1 on.
        port: u8,
        /// What the kernel says about it.
        state: String,
    },
    /// The limit of locked memory is too low.
    #[error(
        "{needed} MiB of memory cannot be registered with {device}, because this process may lock \
         {limit} MiB: raise the limit, with LimitMEMLOCK=infinity in the service or `ulimit -l \
         unlimited` in the shell"
    )]
    LockedMemory {
        /// Name of the RDMA device, such as mlx5_0.
        device: String,
        /// What was to be registered, in MiB.
        needed: u64,
        /// RLIMIT_MEMLOCK, in MiB, rounded down.
        limit: u64,
    },
    /// The device or the kernel has no memory left: queues are locked memory too.
    #[error(
        "{what} failed for want of memory: raise the limit of locked memory, with \
         LimitMEMLOCK=infinity in the service or `ulimit -l unlimited` in the shell, or have fewer \
         connections"
    )]
    NoMemory {
        /// What was tried.
        what: &'static str,
    },
    /// The arena has no room for a connection's own buffers.
    #[error(
        "all buffers of this thread are in use, so it takes no more RDMA connections: connect again \
         later, or give it more memory"
    )]
    NoBuffers,
    /// The device cannot do what was asked for.
    #[error("{device} has at most {limit} {what}, and {wanted} were asked for: ask for less")]
    Limit {
        /// Name of the RDMA device, such as mlx5_0.
        device: String,
        /// What there is too little of.
        what: &'static str,
        /// What was asked for.
        wanted: u64,
        /// What the device has.
        limit: u64,
    },
    /// The address and port are taken.
    #[error(
        "an RDMA listener for {address} is there already: stop the other program, or choose \
         another port"
    )]
    InUse {
        /// Address and port.
        address: std::net::SocketAddr,
    },
    /// The id belongs to another device, or to none yet.
    #[error("the connection came in on another device than {device}: open that device first")]
    OtherDevice {
        /// The adapter's device.
        device: String,
    },
    /// There is no endpoint of that number any more.
    #[error("the RDMA connection has ended")]
    Ended,
    /// The device is gone, or has failed.
    #[error("the RDMA device {device} is gone: see the kernel's messages, and connect again")]
    Gone {
        /// Name of the RDMA device, such as mlx5_0.
        device: String,
    },
    /// A system call failed for a reason that has no sentence of its own.
    #[error("{what} failed: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system says about it.
        source: io::Error,
    },
}

impl Error {
    /// The last error of the system, for a call that sets `errno`.
    pub(crate) fn last(what: &'static str) -> Self {
        Self::of(what, io::Error::last_os_error())
    }

    /// For a call that returns its error's number.
    pub(crate) fn number(what: &'static str, number: i32) -> Self {
        Self::of(what, io::Error::from_raw_os_error(number.abs()))
    }

    fn of(what: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOMEM) => Self::NoMemory { what },
            _ => Self::System { what, source },
        }
    }
}

/// The soft limit of locked memory in bytes; `None` if there is none.
pub(crate) fn locked_memory_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills the structure that it is given.
    let rc = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (rc == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The error of a registration of `bytes` bytes that was refused with `source`.
pub(crate) fn not_registered(
    device: &str,
    bytes: u64,
    source: io::Error,
    limit: Option<u64>,
) -> Error {
    let refused = matches!(source.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM));
    match limit {
        // What else is locked counts too, so a limit that is just enough for this may be too low.
        Some(limit) if refused && limit < bytes.saturating_mul(2).saturating_add(64 << 20) => {
            Error::LockedMemory {
                device: device.to_string(),
                needed: bytes.div_ceil(1 << 20),
                limit: limit >> 20,
            }
        }
        _ => Error::System { what: "registering memory with the RDMA device", source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno(number: i32) -> io::Error {
        io::Error::from_raw_os_error(number)
    }

    #[test]
    fn a_low_limit_of_locked_memory_is_named() {
        let error = not_registered("rxe0", 64 << 20, errno(libc::ENOMEM), Some(8 << 20));
        let text = error.to_string();
        assert!(text.contains("64 MiB") && text.contains("may lock 8 MiB"), "{text}");
        assert!(text.contains("LimitMEMLOCK=infinity") && text.contains("rxe0"), "{text}");
    }

    #[test]
    fn other_reasons_are_not_taken_for_the_limit() {
        for (number, limit) in [(libc::EINVAL, Some(8 << 20)), (libc::ENOMEM, None)] {
            let error = not_registered("rxe0", 64 << 20, errno(number), limit);
            assert!(matches!(error, Error::System { .. }), "{error}");
        }
        let roomy = not_registered("rxe0", 1 << 20, errno(libc::ENOMEM), Some(1 << 40));
        assert!(matches!(roomy, Error::System { .. }), "{roomy}");
    }

    #[test]
    fn every_sentence_says_what_to_do() {
        let device = || "mlx5_0".to_string();
        let address: IpAddr = [192, 0, 2, 1].into();
        let all = [
            Error::NoConnectionManager { source: errno(libc::ENODEV) },
            Error::NoProvider { device: device() },
            Error::number("making an RDMA queue pair", -libc::ENOMEM),
            Error::NoBuffers,
            Error::NoDevice { address },
            Error::NoRoceV2 { device: device(), port: 1, address },
            Error::LinkDown { device: device(), port: 1, state: "DOWN".into() },
            Error::InUse { address: (address, 3260).into() },
            Error::Limit { device: device(), what: "receives", wanted: 9, limit: 8 },
            Error::OtherDevice { device: device() },
            Error::Gone { device: device() },
        ];
        for error in all {
            let text = error.to_string();
            let (_, advice) = text.split_once(": ").expect("a colon in front of the advice");
            assert!(advice.len() > 8 && !text.contains('\n'), "{text}");
        }
    }
}
