//! Addresses as the C library has them.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sockaddr_in, sockaddr_in6, sockaddr_storage};

/// As C has it.
pub(crate) fn to_c(address: SocketAddr) -> sockaddr_storage {
    // SAFETY: all zeroes are a valid value of this structure of numbers.
    let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
    let place: *mut sockaddr_storage = &mut storage;
    match address {
        SocketAddr::V4(v4) => {
            // SAFETY: the storage is large enough and aligned for every kind of address.
            let sin = unsafe { &mut *place.cast::<sockaddr_in>() };
            sin.sin_family = libc::AF_INET as libc::sa_family_t;
            sin.sin_port = v4.port().to_be();
            sin.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            // SAFETY: as above.
            let sin6 = unsafe { &mut *place.cast::<sockaddr_in6>() };
            sin6.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            sin6.sin6_port = v6.port().to_be();
            sin6.sin6_flowinfo = v6.flowinfo();
            sin6.sin6_addr.s6_addr = v6.ip().octets();
            sin6.sin6_scope_id = v6.scope_id();
        }
    }
    storage
}

/// From what C has; `None` if there is no IP address in it.
pub(crate) fn from_c(storage: &sockaddr_storage) -> Option<SocketAddr> {
    let place: *const sockaddr_storage = storage;
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that this is what is in the storage.
            let sin = unsafe { &*place.cast::<sockaddr_in>() };
            let ip = Ipv4Addr::from(sin.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(sin.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let sin6 = unsafe { &*place.cast::<sockaddr_in6>() };
            let (ip, port) = (sin6.sin6_addr.s6_addr.into(), u16::from_be(sin6.sin6_port));
            Some(SocketAddrV6::new(ip, port, sin6.sin6_flowinfo, sin6.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_went() {
        for text in ["192.0.2.1:3260", "0.0.0.0:0", "[2001:db8::1]:65535", "[fe80::1%3]:3260"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(from_c(&to_c(address)), Some(address));
        }
    }

    #[test]
    fn the_bytes_are_in_network_order() {
        let c = to_c("192.0.2.1:258".parse().expect("an address"));
        let place: *const sockaddr_storage = &c;
        // SAFETY: the structure is longer than eight bytes, and any byte is one.
        let bytes = unsafe { *place.cast::<[u8; 8]>() };
        assert_eq!(bytes[2..], [1, 2, 192, 0, 2, 1]);
    }

    #[test]
    fn other_families_are_no_address() {
        let mut c = to_c("192.0.2.1:1".parse().expect("an address"));
        c.ss_family = libc::AF_UNIX as libc::sa_family_t;
        assert_eq!(from_c(&c), None);
    }
}
