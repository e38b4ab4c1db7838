//! Servers on this machine: whose processor time belongs to the figures.

use std::fs;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

/// Whether packets to this host stay on this machine.
pub fn is_here(host: &str, port: u16) -> bool {
    let Ok(addresses) = (host, port).to_socket_addrs() else { return false };
    addresses.into_iter().any(|address| own(address.ip()) || stays(address))
}

/// Whether the address is one of this machine's: only such a one can be bound to, unless the system allows any.
fn own(address: IpAddr) -> bool {
    let address = address.to_canonical();
    if address.is_loopback() {
        return true;
    }
    let version = if address.is_ipv4() { "ipv4" } else { "ipv6" };
    let any = fs::read_to_string(format!("/proc/sys/net/{version}/ip_nonlocal_bind"));
    any.is_ok_and(|any| any.trim() == "0") && UdpSocket::bind((address, 0)).is_ok()
}

/// The kernel takes the destination's address as its own source only if it is one of its own. Nothing is sent.
fn stays(address: SocketAddr) -> bool {
    let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
    let own = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(address)?;
        socket.local_addr()
    });
    own.is_ok_and(|own| own.ip() == address.ip())
}

/// The processes that listen on a TCP port of this machine, as far as the caller may see them. A target in the kernel has none.
pub fn listeners(port: u16) -> Vec<i32> {
    let text = |path| fs::read_to_string(path).unwrap_or_default();
    let tables = [text("/proc/net/tcp"), text("/proc/net/tcp6")];
    let sockets: Vec<String> = tables.iter().flat_map(|table| inodes(table, port)).collect();
    if sockets.is_empty() {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let number = |entry: std::io::Result<fs::DirEntry>| {
        entry.ok()?.file_name().to_str()?.parse::<i32>().ok()
    };
    let mut found: Vec<i32> =
        entries.filter_map(number).filter(|pid| holds(*pid, &sockets)).collect();
    found.sort_unstable();
    found
}

/// The sockets of a table (proc(5), /proc/net/tcp) that listen on this port, as links to them are named.
fn inodes(table: &str, port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let inode = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, own) = fields.get(1)?.rsplit_once(':')?;
        let fits = u16::from_str_radix(own, 16) == Ok(port) && fields.get(3) == Some(&LISTEN);
        fits.then(|| format!("socket:[{}]", fields.get(9).copied().unwrap_or_default()))
    };
    table.lines().skip(1).filter_map(inode).collect()
}

fn holds(pid: i32, sockets: &[String]) -> bool {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let link = |entry: std::io::Result<fs::DirEntry>| fs::read_link(entry.ok()?.path()).ok();
    entries.filter_map(link).any(|link| sockets.iter().any(|socket| link.as_os_str() == &**socket))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_listener_of_this_process_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let own = i32::try_from(std::process::id()).expect("it fits");
        assert!(listeners(port).contains(&own));
        drop(listener);
        assert!(!listeners(port).contains(&own));
    }

    #[test]
    fn addresses_of_this_machine_are_known() {
        // The kernel would send to the second one from the first.
        for own in ["127.0.0.1", "127.0.0.2", "127.255.255.254", "::1", "::ffff:127.0.0.3"] {
            assert!(is_here(own, 3260), "{own}");
        }
        // Of the block for documentation (RFC 5737): nobody has it.
        assert!(!is_here("192.0.2.7", 3260));
    }

    #[test]
    fn only_listening_sockets_of_the_port_count() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                     0: 0100007F:0CBC 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 4711 1 x\n\
                     1: 0100007F:0CBC 0100007F:D2F0 01 00000000:00000000 00:00000000 00000000  0 0 4712 1 x\n\
                     2: 0100007F:0CBD 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 4713 1 x\n";
        assert_eq!(inodes(table, 3260), ["socket:[4711]"]);
    }
}
