//! The addresses of this machine, and the IPv6 networks that its interfaces are on.
//!
//! Read from /proc, where no privilege and no library is needed for it. What cannot be read is taken for not
//! there: then an address of IPv6 counts together with its /64, and a warning names no address.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::network::Network;

/// IPv6 addresses with their prefixes: `address ifindex prefix scope flags name`, all in hexadecimal.
const IPV6: &str = "/proc/net/if_inet6";
/// The routing table of IPv4, with the local addresses in it.
const IPV4: &str = "/proc/net/fib_trie";

/// The addresses of this machine that others may reach: neither loopback nor link-local ones.
pub fn addresses() -> Vec<IpAddr> {
    let v4 = local_v4(&fs::read_to_string(IPV4).unwrap_or_default());
    let v6 = prefixes_v6(&fs::read_to_string(IPV6).unwrap_or_default());
    let v6 = v6.into_iter().map(|(address, _)| address);
    let all = v4.into_iter().map(IpAddr::from).chain(v6.map(IpAddr::from));
    all.filter(|ip| !ip.is_loopback() && !is_link_local(*ip)).collect()
}

/// The IPv6 networks that this machine is on: whoever has an address of them is a neighbour, and one of many.
pub fn networks() -> Vec<Network> {
    networks_of(&fs::read_to_string(IPV6).unwrap_or_default())
}

fn networks_of(text: &str) -> Vec<Network> {
    // Link-local addresses are always those of neighbours (RFC 4291 section 2.5.6).
    let mut out = vec![Network::new(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0).into(), 10)];
    for (address, bits) in prefixes_v6(text) {
        // A shorter prefix is a route, not a network of hosts; a single address has no neighbours.
        if (64..128).contains(&bits) {
            out.push(Network::new(address.into(), bits));
        }
    }
    out.into_iter().flatten().collect()
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn prefixes_v6(text: &str) -> Vec<(Ipv6Addr, u8)> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let address = u128::from_str_radix(words.next()?, 16).ok()?;
        let bits = u8::from_str_radix(words.nth(1)?, 16).ok()?;
        Some((Ipv6Addr::from_bits(address), bits))
    };
    text.lines().filter_map(line).collect()
}

fn local_v4(text: &str) -> Vec<Ipv4Addr> {
    let mut out: Vec<Ipv4Addr> = Vec::new();
    let mut last = None;
    for line in text.lines() {
        let line = line.trim_start();
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse().ok();
        } else if line == "/32 host LOCAL" {
            // The main and the local table have the same.
            out.extend(last.filter(|address| !out.contains(address)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_the_kernel_are_read() {
        let v6 = "00000000000000000000000000000001 01 80 10 80       lo\n\
                  fe8000000000000000fc00fffe000001 04 40 20 80     eth0\n\
                  fd000000000000000000000000000002 04 40 00 82     eth0\n\
                  20010db8000000000000000000000001 05 30 00 80     wide\nnonsense\n";
        let networks = networks_of(v6);
        let on = |address: &str| {
            let address = address.parse().expect("an address");
            networks.iter().any(|network| network.has(address))
        };
        assert!(on("fd00::77") && on("fe80::1") && on("febf::1"));
        assert!(!on("fd00:0:0:1::77") && !on("2001:db8::1") && !on("::1") && !on("10.0.0.1"));
        let v4 = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n\
                  \x20       |-- 127.0.0.1\n           /32 host LOCAL\n\
                  \x20       |-- 192.0.2.0\n              /24 link UNICAST\n\
                  \x20       |-- 192.0.2.2\n              /32 host LOCAL\nLocal:\n\
                  \x20       |-- 192.0.2.2\n              /32 host LOCAL\n";
        let local = |text: &str| text.parse::<Ipv4Addr>().expect("an address");
        assert_eq!(local_v4(v4), [local("127.0.0.1"), local("192.0.2.2")]);
    }
}
