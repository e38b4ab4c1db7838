//! Tries from inside a server what somebody would try who has taken it over. In a debug build alone, and only if a variable of
//! the environment asks for it: a test does.

use std::fs::{self, OpenOptions};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use lunet_os::role::{self, Role};
use lunet_ring::attempts::{Attempt, NO_SHARD, NO_WRITER, NOBODY};

use crate::log;

/// What has an address to connect to, which somebody listens on, and the path of a file that the server may not write, with a
/// space between them.
const VARIABLE: &str = "LUNET_TEST_ATTEMPTS";

/// Tries everything, by a thread for each role, if the environment asks for it. A line to standard output says of each
/// attempt what has come of it.
pub fn make() {
    let Ok(asked) = std::env::var(VARIABLE) else { return };
    let Some((address, file)) = asked.split_once(' ') else { return };
    let Ok(address) = address.parse() else { return };
    for role in [None, Some(Role::Shard), Some(Role::Disk), Some(Role::Log)] {
        let file = file.to_owned();
        let (tell, told) = std::sync::mpsc::channel();
        let work = move || {
            role.into_iter().for_each(role::enter);
            let _ = tell.send(all(role, address, Path::new(&file)));
        };
        if lunet_os::thread::spawn("attempts", work).is_ok() {
            let name = role.map_or("Server".to_owned(), |role| format!("{role:?}"));
            for (what, error) in told.recv().unwrap_or_default() {
                let error = error.map_or("DONE".to_owned(), |number| number.to_string());
                log::say(&format!("attempt: {name}: {what}: {error}\n"));
            }
        }
    }
    log::say("attempts: over\n");
}

fn all(role: Option<Role>, address: SocketAddr, file: &Path) -> Vec<(String, Option<i32>)> {
    let calls: &[&[Attempt]] = match role {
        None => &[NOBODY],
        Some(Role::Shard) => &[NOBODY, NO_SHARD],
        Some(Role::Disk | Role::Log) => &[NOBODY, NO_SHARD, NO_WRITER],
    };
    let tried = |one: &Attempt| (one.name.to_owned(), one.make());
    let mut out: Vec<_> = calls.iter().copied().flatten().map(tried).collect();
    let mut add = |what: &str, result: io::Result<()>| {
        out.push((what.to_owned(), result.err().map(|error| error.raw_os_error().unwrap_or(0))));
    };
    add("connect over TCP", TcpStream::connect(address).map(drop));
    add("read /etc/shadow", fs::read("/etc/shadow").map(drop));
    add("list /root", fs::read_dir("/root").map(drop));
    add("write a file outside", OpenOptions::new().write(true).open(file).map(drop));
    add("remove a file outside", fs::remove_file(file));
    add("make a file in /etc", fs::write("/etc/lunet-attempt", ""));
    add(
        "write what the kernel does",
        OpenOptions::new().write(true).open("/proc/sys/kernel/core_pattern").map(drop),
    );
    add("read another process's memory", fs::File::open("/proc/1/mem").map(drop));
    out
}
