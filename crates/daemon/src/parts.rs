//! The parts of the machine that data passes: found by a program of its own, and counted here.
//!
//! What they are and what they carry at most takes commands and hundreds of files to find out, and some of these may hang. So
//! this program is run for it, when somebody asks for statistics and nothing newer is known. What the kernel counts for
//! them is a few short files of /proc and /sys.

use std::fs;
use std::io::{self, Read, Write};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use lunet_api::{Part, PartKind, PartsOf};
use lunet_os::{process, program};

use crate::helper;

/// The hidden command of the tools that finds them: a [`PartsOf`] comes by its standard input, the parts go to its output, as JSON.
pub const COMMAND: &str = "parts";

/// What was found is looked for again after so long: a link may have come up since.
const AGE: Duration = Duration::from_secs(600);

/// How long it may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long it may take to end when it has answered.
const ENDING: Duration = Duration::from_secs(5);

/// No answer is longer, in bytes: a thousand drives have less.
const LONGEST: u64 = 4 << 20;

/// Ethernet's preamble, checksum and gap, in bytes: no interface counts them.
const FRAME: u64 = 24;

/// What is known of the parts.
#[derive(Clone, Default)]
pub struct Parts(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    parts: Vec<Part>,
    /// Of what they are, and when they were looked for.
    last: Option<(PartsOf, Instant)>,
    /// They are being looked for.
    looks: bool,
}

impl Parts {
    /// The parts with their counts of now, and whether others are being looked for. Nobody waits for that: a later call
    /// has them.
    pub fn now(&self, of: PartsOf) -> (Vec<Part>, bool) {
        let mut known = self.known();
        let is_fresh =
            known.last.as_ref().is_some_and(|(last, at)| *last == of && at.elapsed() < AGE);
        if !is_fresh && !known.looks {
            known.looks = true;
            let here = self.clone();
            let look = move || here.look(of);
            if let Err(error) = lunet_os::thread::spawn("parts", look) {
                tracing::debug!("cannot start a thread to look for drives and links: {error}");
                known.looks = false;
            }
        }
        let (mut parts, looks) = (known.parts.clone(), known.looks);
        drop(known);
        count(&mut parts);
        (parts, looks)
    }

    fn look(&self, of: PartsOf) {
        let parts = helper::parts(of.clone()).unwrap_or_else(|error| {
            tracing::debug!("which drives and links the data passes is not known: {error:#}");
            Vec::new()
        });
        let mut known = self.known();
        (known.parts, known.looks) = (parts, false);
        known.last = Some((of, Instant::now()));
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has the program find them. The [helper] does it: a server may start none.
pub(crate) fn found(of: &PartsOf) -> Result<Vec<Part>> {
    let mut child = program::tools()?
        .arg(COMMAND)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start the program that looks")?;
    let answer = talk(&mut child, of);
    // It ends with its answer.
    let limit = if answer.is_ok() { ENDING } else { Duration::ZERO };
    let ended = process::wait(child, limit);
    let answer = answer?;
    if !ended.map_err(|failed| anyhow!("the program that looks {failed}"))?.success() {
        bail!("the program that looks has failed");
    }
    serde_json::from_slice(&answer).context("the program that looks answers nonsense")
}

/// Asks, and takes the whole answer.
fn talk(child: &mut Child, of: &PartsOf) -> Result<Vec<u8>> {
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let (mut stdin, stdout) = stdin.zip(stdout).context("it has no pipes")?;
    let question = serde_json::to_vec(of)?;
    let reader = thread::spawn(move || -> io::Result<Vec<u8>> {
        // It reads all of it before it answers.
        stdin.write_all(&question)?;
        drop(stdin);
        let mut answer = Vec::new();
        stdout.take(LONGEST).read_to_end(&mut answer)?;
        Ok(answer)
    });
    let begun = Instant::now();
    while !reader.is_finished() {
        if begun.elapsed() > PATIENCE {
            bail!("it has not answered in {} s", PATIENCE.as_secs());
        }
        thread::sleep(Duration::from_millis(10));
    }
    let answer = reader.join().map_err(|_| io::Error::other("its reader has failed"))?;
    Ok(answer?)
}

/// Fills in what the kernel has counted. What it does not count stays as it was.
fn count(parts: &mut [Part]) {
    let is_drive = |part: &Part| part.kind == PartKind::Drive;
    let disks = match parts.iter().any(is_drive) {
        true => fs::read_to_string("/proc/diskstats").unwrap_or_default(),
        false => String::new(),
    };
    for part in parts {
        let ways = match part.kind {
            PartKind::Drive => {
                let Some((ways, busy_us)) = disk(&disks, &part.name) else { continue };
                part.busy_us = busy_us;
                ways
            }
            PartKind::Link | PartKind::Slot => {
                let all = part.counted.iter().map(|name| network(name));
                all.fold([0, 0], |sum, one| [sum[0] + one[0], sum[1] + one[1]])
            }
            _ => continue,
        };
        [part.read_bytes, part.written_bytes] = ways;
    }
}

/// Bytes read and written by a drive, and how long it was busy, in microseconds: fields of Documentation/admin-guide/iostats.rst,
/// sectors of 512 bytes and milliseconds.
fn disk(stats: &str, name: &str) -> Option<([u64; 2], u64)> {
    let line = stats.lines().find(|line| line.split_whitespace().nth(2) == Some(name))?;
    let mut fields = line.split_whitespace().skip(3).map(|field| field.parse::<u64>().ok());
    let read = fields.nth(2)??;
    let written = fields.nth(3)??;
    let busy = fields.nth(2)??;
    Some(([read * 512, written * 512], busy * 1000))
}

/// Bytes that an interface or RDMA port has sent and received, on the wire.
fn network(name: &str) -> [u64; 2] {
    let number = |path: String| -> u64 {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    if name.contains('/') {
        // In words of four bytes (InfiniBand Architecture Specification, PortCounters).
        return ["xmit", "rcv"].map(|way| {
            number(format!("/sys/class/infiniband/{name}/counters/port_{way}_data")).wrapping_mul(4)
        });
    }
    ["tx", "rx"].map(|way| {
        let of = |what: &str| number(format!("/sys/class/net/{name}/statistics/{way}_{what}"));
        of("bytes") + FRAME * of("packets")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drives_are_counted_in_bytes_and_microseconds() {
        let stats = " 259       0 nvme0n1 10 1 4096 7 20 2 8192 9 0 33 44 0 0 0 0 1 2\n \
                     259       1 nvme0n1p1 1 0 8 0 0 0 0 0 0 0 0\n";
        assert_eq!(disk(stats, "nvme0n1"), Some(([4096 * 512, 8192 * 512], 33_000)));
        assert_eq!(disk(stats, "nvme0n1p1"), Some(([8 * 512, 0], 0)));
        assert_eq!(disk(stats, "nvme0"), None);
        assert_eq!(disk("259 0 sda 1 2", "sda"), None);
    }

    #[test]
    fn what_is_gone_keeps_its_counts() {
        let gone = Part {
            kind: PartKind::Drive,
            name: "no-such-drive".to_owned(),
            read_bytes: 5,
            ..Part::default()
        };
        let lo = Part {
            kind: PartKind::Link,
            counted: vec!["lo".to_owned(), "no_such/ports/1".to_owned()],
            ..Part::default()
        };
        let mut parts = [gone.clone(), lo];
        count(&mut parts);
        assert_eq!(parts[0], gone);
        let bytes =
            fs::read_to_string("/sys/class/net/lo/statistics/tx_bytes").expect("there is lo");
        let bytes: u64 = bytes.trim().parse().expect("it is a number");
        assert!(parts[1].read_bytes > 0 || bytes == 0, "{:?}", parts[1]);
    }
}
