//! The machine that this runs on.

use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use lunet_os::{process, program};

use super::{Command, Output, Source};

/// No file that facts are read from is longer; a log may be.
const LONGEST: u64 = 4 << 20;
/// How long a command may take. `zpool` waits for ever on a suspended pool.
const PATIENCE: Duration = Duration::from_secs(15);

/// The machine that this runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Live;

impl Source for Live {
    fn read(&self, path: &str) -> Option<String> {
        // A FIFO would wait for a writer.
        fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        let mut bytes = Vec::new();
        File::open(path).ok()?.take(LONGEST).read_to_end(&mut bytes).ok()?;
        // What separates the words of /proc/PID/cmdline is nothing for a text.
        Some(String::from_utf8_lossy(&bytes).replace('\0', "\n"))
    }

    fn list(&self, directory: &str) -> Option<Vec<String>> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .ok()?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        Some(names)
    }

    fn link(&self, path: &str) -> Option<String> {
        fs::read_link(path).ok()?.into_os_string().into_string().ok()
    }

    fn run(&self, command: &Command) -> Option<Output> {
        debug_assert!(command.only_looks(), "{command} is not known to only look");
        if !command.only_looks() {
            return None;
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let mut child = std::process::Command::new(own_or_named(command));
        child
            .args(command.args())
            .env("LC_ALL", "C")
            // A lunet that is asked is root's, ours or a system service's: a socket may have changed hands.
            .env("LUNET_PEER", "trusted")
            // What an ordinary user's PATH leaves out.
            .env("PATH", format!("{path}:/usr/local/sbin:/usr/sbin:/sbin"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let done = process::run(&mut child, PATIENCE, LONGEST).ok()?;
        let stdout = String::from_utf8_lossy(&done.stdout).into_owned();
        Some(Output { code: done.status.code()?, stdout })
    }
}

/// The program to start. That of this installation, `lunet`, need not be on the PATH.
fn own_or_named(command: &Command) -> PathBuf {
    let name = command.program();
    let own = (name == "lunet").then(|| program::find(name)).flatten();
    own.unwrap_or_else(|| PathBuf::from(name))
}
