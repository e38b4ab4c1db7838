//! Announces portals by mDNS with `avahi-publish`, one process for each entry.
//!
//! Avahi removes an entry when the process that published it ends. `avahi-publish` itself ends when Avahi does.

use std::fs;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, Stdio};

use lunet_nvme::name::DISCOVERY_NQN;
use rustix::event::{PollFd, PollFlags, poll};

use super::Setup;
use crate::talk;

/// The most portals of one request. Each has up to two processes.
pub(super) const PORTALS: usize = 64;
/// Starts a program that the kernel kills when this process ends (util-linux).
const STARTER: [&str; 4] = ["setpriv", "--pdeathsig", "KILL", "--"];
const PROGRAM: &str = "avahi-publish";
const SERVICE: &str = "_nvme-disc._tcp";
/// What `avahi-publish` writes once an entry is published.
const ESTABLISHED: &str = "Established under name";
/// The longest label of DNS, in bytes.
const LABEL: usize = 63;
/// Bytes that are kept of what a process has written.
const KEPT: usize = 1024;

/// Announces these until the other end of `stream` is closed, or an entry ends. Answers when all entries are published, and why
/// they no longer are.
pub(super) fn run(stream: &UnixStream, portals: &[SocketAddr], setup: &Setup) -> io::Result<()> {
    let mut all = Vec::new();
    for arguments in entries(portals, &host()) {
        match Entry::start(&arguments, setup) {
            Ok(entry) => all.push(entry),
            Err(error) => {
                let text = format!("cannot run {}: {error}", STARTER[0]);
                return talk::send(stream, &Err::<(), String>(text));
            }
        }
    }
    let mut published = false;
    let reason = loop {
        if !published && all.iter().all(|entry| entry.established) {
            talk::send(stream, &Ok::<(), String>(()))?;
            published = true;
        }
        let own = PollFlags::IN | PollFlags::RDHUP;
        let pipes = all.iter().map(|entry| PollFd::new(&entry.stderr, PollFlags::IN));
        let mut fds: Vec<_> = [PollFd::new(stream, own)].into_iter().chain(pipes).collect();
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            return Ok(());
        }
        let ended = all.iter_mut().zip(&ready[1..]).find_map(|(entry, ready)| {
            let has_ended = *ready && !entry.read();
            has_ended.then(|| entry.last_words())
        });
        if let Some(reason) = ended {
            break reason;
        }
    };
    // Avahi removes the entries before the server is answered.
    drop(all);
    match published {
        true => talk::send(stream, &reason),
        false => talk::send(stream, &Err::<(), String>(reason)),
    }
}

/// A running `avahi-publish`. Killed when dropped.
struct Entry {
    child: Option<Child>,
    stderr: ChildStderr,
    established: bool,
    /// The end of what it has written.
    said: String,
}

impl Entry {
    fn start(arguments: &[String], setup: &Setup) -> io::Result<Self> {
        let mut command = Command::new(STARTER[0]);
        command.args(&STARTER[1..]).arg(PROGRAM).args(arguments).env("LC_ALL", "C");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        if let Some((user, group)) = setup.user {
            command.uid(user).gid(group);
        }
        let mut child = command.spawn()?;
        let stderr = child.stderr.take().ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { child: Some(child), stderr, established: false, said: String::new() })
    }

    /// Reads what it has written. False: it has ended.
    fn read(&mut self) -> bool {
        let mut bytes = [0; KEPT];
        let Ok(length @ 1..) = self.stderr.read(&mut bytes) else { return false };
        self.said.push_str(&String::from_utf8_lossy(&bytes[..length]));
        self.established |= self.said.contains(ESTABLISHED);
        while self.said.len() > KEPT {
            self.said.remove(0);
        }
        true
    }

    fn last_words(&self) -> String {
        match self.said.lines().last() {
            Some(line) => format!("{PROGRAM}: {line}"),
            None => format!("{PROGRAM} ended without a message"),
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            let _ = lunet_os::process::end(child);
        }
    }
}

/// The arguments of each `avahi-publish`. A wildcard is announced under the name of this machine, an address under a name of its
/// own, which has no other address.
fn entries(portals: &[SocketAddr], host: &str) -> Vec<Vec<String>> {
    let nqn = format!("NQN={DISCOVERY_NQN}");
    let mut all = Vec::new();
    for portal in portals {
        let (ip, port) = (portal.ip(), portal.port());
        let own = format!("lunet-{}-{port}.local", ip.to_string().replace(['.', ':'], "-"));
        let (shown, at) = match ip.is_unspecified() {
            true => (host.to_owned(), vec![]),
            false => (ip.to_string(), vec![format!("--host={own}")]),
        };
        let service =
            [label(&format!("lunet {shown}"), port), SERVICE.to_owned(), port.to_string()];
        let txt = ["p=tcp".to_owned(), nqn.clone()];
        let service = ["-s".to_owned()].into_iter().chain(at).chain(service).chain(txt).collect();
        // 0.0.0.0 and [::] with one port are one service.
        if !all.contains(&service) {
            all.push(service);
        }
        if !ip.is_unspecified() {
            // The address has a reverse entry of this machine's name already.
            all.push(vec!["-a".to_owned(), "-R".to_owned(), own, ip.to_string()]);
        }
    }
    all
}

/// The name of this machine, without a domain.
fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().split('.').next().unwrap_or_default().to_owned()
}

/// The name of a service, which is a label of DNS.
fn label(name: &str, port: u16) -> String {
    let end = format!(" {port}");
    let mut name = name.to_owned();
    while name.len() > LABEL - end.len() {
        name.pop();
    }
    name + &end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_labels() {
        assert_eq!(label("lunet nas", 8009), "lunet nas 8009");
        assert_eq!(label(&"\u{fc}".repeat(60), 65_535).len(), 62);
    }

    #[test]
    fn an_address_has_a_name_of_its_own() {
        let portals = ["192.0.2.7:8009", "0.0.0.0:4420", "[::]:4420", "[fd00::1]:4420"];
        let portals = portals.map(|portal| portal.parse().unwrap());
        let found: Vec<String> =
            entries(&portals, "nas").iter().map(|words| words.join("|")).collect();
        let txt = format!("p=tcp|NQN={DISCOVERY_NQN}");
        let wanted = [
            format!(
                "-s|--host=lunet-192-0-2-7-8009.local|lunet 192.0.2.7 8009|_nvme-disc._tcp|8009|{txt}"
            ),
            "-a|-R|lunet-192-0-2-7-8009.local|192.0.2.7".to_owned(),
            format!("-s|lunet nas 4420|_nvme-disc._tcp|4420|{txt}"),
            format!(
                "-s|--host=lunet-fd00--1-4420.local|lunet fd00::1 4420|_nvme-disc._tcp|4420|{txt}"
            ),
            "-a|-R|lunet-fd00--1-4420.local|fd00::1".to_owned(),
        ];
        assert_eq!(found, wanted);
    }
}
