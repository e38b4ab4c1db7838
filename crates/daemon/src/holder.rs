//! Who listens where we want to.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::Path;

use crate::helper;
use lunet_config::CONTROL_PORT;

/// How many ports are tried.
const MOST_PORTS: u16 = 64;

/// What to say when an address is in use: who has it, as far as we may know, and what to do.
/// `file` is the configuration that asks for the address, if one does; else `option` of `lunet serve` names another one.
pub fn in_use(address: SocketAddr, file: Option<&Path>, option: &str) -> String {
    sentence(address, known(address).as_deref(), file, option)
}

/// The program that listens at an address, as far as this process may know, or the helper.
fn known(address: SocketAddr) -> Option<String> {
    if helper::is_there() { helper::holder(address) } else { who(address) }
}

/// The program that listens at an address, as far as this process may know.
pub(crate) fn who(address: SocketAddr) -> Option<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    let inode = tables.iter().flatten().find_map(|table| inode(table, address));
    inode.and_then(|inode| holder(Path::new("/proc"), &inode))
}

/// The same for a command that asks for the address.
pub fn taken(address: SocketAddr) -> String {
    let (who, stop) = words(known(address).as_deref());
    format!(
        "cannot listen on {address}: {who} listens there already: {stop}, or take another address"
    )
}

fn sentence(address: SocketAddr, who: Option<&str>, file: Option<&Path>, option: &str) -> String {
    let (who, stop) = words(who);
    let elsewhere = match file {
        Some(file) => format!("change [[portal]] in {}", file.display()),
        None => {
            let free = SocketAddr::new(address.ip(), free_port(address));
            let words: Vec<String> = std::env::args_os()
                .skip(1)
                .map(|word| word.to_string_lossy().into_owned())
                .collect();
            format!("take another port: `lunet {}`", again(&words, option, free))
        }
    };
    format!("cannot listen on {address}: {who} listens there already: {stop}, or {elsewhere}")
}

/// A port that is free now, behind the one that is not and those that lunet takes itself.
fn free_port(address: SocketAddr) -> u16 {
    let is_free = |port: &u16| {
        *port != CONTROL_PORT && TcpListener::bind(SocketAddr::new(address.ip(), *port)).is_ok()
    };
    // 0: the kernel chooses one.
    let Some(next) = address.port().checked_add(1) else { return 0 };
    (next..=next.saturating_add(MOST_PORTS)).find(is_free).unwrap_or(0)
}

/// The words of this command with another value of an option, as a shell reads them.
fn again(words: &[String], option: &str, address: SocketAddr) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut words = words.iter();
    if words.as_slice().first().is_none_or(|word| word != "serve") {
        // Not from the command line.
        return format!("serve {option} {address}");
    }
    while let Some(word) = words.next() {
        match word.split_once('=') {
            Some((name, _)) if name == option => {}
            None if word == option => drop(words.next()),
            _ => out.push(quoted(word)),
        }
    }
    out.push(format!("{option} {address}"));
    out.join(" ")
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=@,+%[]".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Who it is, and what to do about that.
fn words(who: Option<&str>) -> (String, &'static str) {
    match who {
        Some(who) => (who.to_owned(), "stop it"),
        None => ("another program".to_owned(), "stop it (`ss -ltnp` as root says which one it is)"),
    }
}

/// The inode of the socket that listens at an address, from a table of the kernel's.
fn inode(table: &str, address: SocketAddr) -> Option<String> {
    let line = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (local, state) = (words.next()?, words.nth(1)?);
        let inode = words.nth(5)?;
        let (ip, port) = local.split_once(':')?;
        let same = u16::from_str_radix(port, 16).ok()? == address.port() && state == "0A";
        (same && overlaps(ip_of(ip)?, address.ip())).then(|| inode.to_owned())
    };
    table.lines().skip(1).find_map(line)
}

/// True if nobody can listen at both.
fn overlaps(one: IpAddr, other: IpAddr) -> bool {
    let (one, other) = (one.to_canonical(), other.to_canonical());
    one == other || one.is_unspecified() || other.is_unspecified()
}

/// An address as the kernel writes it: 32-bit words of this machine's byte order.
fn ip_of(text: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = text.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    if text.len() == 8 {
        return Some(Ipv4Addr::from(word(0)?).into());
    }
    let mut bytes = [0; 16];
    for at in 0..4 {
        bytes[at * 4..at * 4 + 4].copy_from_slice(&word(at)?);
    }
    Some(Ipv6Addr::from(bytes).into())
}

/// The process that has a socket: of another user only root may know it.
fn holder(proc: &Path, inode: &str) -> Option<String> {
    let link = format!("socket:[{inode}]");
    for process in fs::read_dir(proc).ok()?.flatten() {
        let name = process.file_name().into_string().unwrap_or_default();
        if !name.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let Ok(files) = fs::read_dir(process.path().join("fd")) else { continue };
        let has = |file: fs::DirEntry| {
            fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == &*link)
        };
        if files.flatten().any(has) {
            let program = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            let program: String = program.trim().escape_debug().collect();
            return Some(format!("{program} (process {name})"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn who_listens_is_named_with_the_next_step() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let text = in_use(address, None, "--listen");
        let me = format!("(process {}) listens there already: stop it, or", std::process::id());
        assert!(text.starts_with(&format!("cannot listen on {address}: ")), "{text}");
        assert!(text.contains(&me), "{text}");
        assert!(text.contains("`lunet serve --listen 127.0.0.1:"), "{text}");
        let file = in_use(address, Some(Path::new("/etc/lunet.toml")), "--listen");
        assert!(file.ends_with("or change [[portal]] in /etc/lunet.toml"), "{file}");
        let unknown = sentence("[::1]:65535".parse().unwrap(), None, None, "--listen-nvme");
        assert!(unknown.contains("another program listens there") && unknown.contains("ss -ltnp"));
        assert!(unknown.ends_with("`lunet serve --listen-nvme [::1]:0`"), "{unknown}");
    }

    #[test]
    fn the_command_is_proposed_as_it_was_with_a_port_that_is_free() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let port = free_port(address);
        assert!(port == 0 || port > address.port());
        assert_ne!(free_port("127.0.0.1:3260".parse().unwrap()), CONTROL_PORT);
        let told = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            again(&words, "--listen", "127.0.0.1:3262".parse().unwrap())
        };
        assert_eq!(told(&["serve"]), "serve --listen 127.0.0.1:3262");
        let options = ["serve", "--listen", "127.0.0.1:1", "--data", "a b", "--open"];
        assert_eq!(told(&options), "serve --data 'a b' --open --listen 127.0.0.1:3262");
        let joined = told(&["serve", "--listen=127.0.0.1:1", "--listen-nvme=[::1]:1"]);
        assert_eq!(joined, "serve --listen-nvme=[::1]:1 --listen 127.0.0.1:3262");
    }

    #[test]
    fn all_addresses_are_in_the_way_of_each() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 0100007F:0CBD 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1\n   \
            1: 0100007F:0CBC 0100007F:8000 01 00000000:00000000 00:00000000 00000000     0        0 22 1\n   \
            2: 00000000:0CBC 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 33 1\n";
        let found = |address: &str| inode(table, address.parse().unwrap());
        assert_eq!(found("127.0.0.1:3260").as_deref(), Some("33"));
        assert_eq!(found("0.0.0.0:3261").as_deref(), Some("11"));
        assert_eq!((found("127.0.0.2:3261"), found("127.0.0.1:3262")), (None, None));
        assert_eq!(ip_of("00000000000000000000000001000000"), Some(Ipv6Addr::LOCALHOST.into()));
    }
}
