//! What somebody waits for who looks at the server.

use std::fs::File;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lunet_e2e::process::run;
use lunet_e2e::rest::Page;
use lunet_e2e::server::lunet_binary;
use lunet_e2e::wire::scsi::{GOOD, capacity};
use lunet_e2e::wire::{Login, Session};

use super::Crowd;
use super::config::{self, LARGE, LARGE_BYTES};
use super::figures::{Bound, Figures};

const SECTOR: usize = 512;

/// How long a command may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Times of a question, of which the least is given: what else runs only adds.
const TIMES: usize = 5;

fn least(mut ask: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..TIMES {
        let begun = Instant::now();
        ask()?;
        best = best.min(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(best)
}

/// Everything that is asked by commands and over HTTP.
pub fn all(crowded: &mut Crowd, alone: &mut Crowd, figures: &mut Figures) -> Result<()> {
    let data = crowded.server.data().join("lunet.toml");
    let file = data.to_str().context("the directory's name is not UTF-8")?.to_owned();
    let commands: [(&str, &[&str]); 6] = [
        ("`lunet sessions`", &["sessions"]),
        ("`lunet sessions --json`", &["sessions", "--json"]),
        ("`lunet stats`, what `lunet top` asks in each interval", &["stats"]),
        ("`lunet volume list`", &["volume", "list"]),
        ("`lunet target list`", &["target", "list"]),
        ("`lunet verdict`", &["verdict"]),
    ];
    for (name, command) in commands {
        let [many, few] =
            [&*crowded, &*alone].map(|crowd| least(|| crowd.server.tell(command).map(drop)));
        let how =
            format!("the whole command, the least of {TIMES}; {:.0} ms with 64 sessions", few?);
        figures.add(name, many?, "ms", &how, Bound::None);
    }
    let took = least(|| {
        let mut check = Command::new(lunet_binary()?);
        run(check.args(["config", "check", &file]), PATIENCE)?.success().map(drop)
    })?;
    figures.add(
        "`lunet config check`",
        took,
        "ms",
        "of all volumes, the whole command",
        Bound::None,
    );
    let mut pages = Vec::new();
    for crowd in [&mut *crowded, &mut *alone] {
        let mut page = Page::of(&mut crowd.server)?;
        page.begin()?;
        pages.push(page);
    }
    for path in ["/metrics", "/api/v1/volumes", "/api/v1/sessions", "/api/v1/stats", "/"] {
        let ask = |page: &Page| {
            least(|| {
                let reply = page.ask("GET", path, &serde_json::Value::Null)?;
                ensure!(reply.status == 200, "{path}: {} {}", reply.status, reply.json);
                Ok(())
            })
        };
        let (many, few) = (ask(&pages[0])?, ask(&pages[1])?);
        let how = format!("GET over HTTP, the least of {TIMES}; {few:.1} ms with 64 sessions");
        figures.add(&format!("`{path}`"), many, "ms", &how, Bound::None);
    }
    Ok(())
}

/// A list of snapshots of all volumes, as many of each. Their files are empty: what is in them is no part of a list.
pub fn snapshots(
    crowd: &Crowd,
    (luns, count): (usize, usize),
    figures: &mut Figures,
) -> Result<()> {
    let data = crowd.server.data();
    for number in 0..count {
        let (volume, snapshot) = (number % luns, number / luns);
        File::create(data.join(format!("v{volume}@s{snapshot}.img")))?;
    }
    for (name, command, lines) in [
        ("`lunet volume snapshots` of all volumes", &["volume", "snapshots"][..], count),
        ("`lunet volume snapshots` of one", &["volume", "snapshots", "v0"], count.div_ceil(luns)),
    ] {
        let mut text = String::new();
        let took = least(|| {
            text = crowd.server.tell(command)?;
            Ok(())
        })?;
        let found = text.lines().filter(|line| line.contains('@')).count();
        ensure!(found == lines, "{found} snapshots in the place of {lines}");
        let how = format!("{found} of {count} files, the whole command, the least of {TIMES}");
        figures.add(name, took, "ms", &how, Bound::None);
    }
    Ok(())
}

/// REPORT LUNS of the target with the most.
pub fn report_luns(crowd: &Crowd, figures: &mut Figures) -> Result<()> {
    let mut session = Session::open(&Login::new(crowd.server.portal(), &config::target(0)))?;
    session.settle(0)?;
    let mut cdb = [0; 12];
    cdb[0] = 0xa0;
    cdb[6..10].copy_from_slice(&65_536_u32.to_be_bytes());
    let mut count = 0;
    let took = least(|| {
        let answer = session.execute(0, &cdb, 65_536, &[])?;
        ensure!(answer.status == GOOD, "REPORT LUNS: {answer:02x?}");
        count = (answer.data.len() - 8) / 8;
        Ok(())
    })?;
    ensure!(count > 256, "only {count} LUNs");
    figures.add(
        "REPORT LUNS",
        took * 1e3,
        "us",
        &format!("of {count} LUNs, the least of {TIMES}"),
        Bound::None,
    );
    session.logout()
}

/// Writes and reads the end of the volume of 4 PiB.
pub fn large(crowd: &Crowd, figures: &mut Figures) -> Result<()> {
    let mut session =
        Session::open(&Login::new(crowd.server.portal(), &config::target(config::TARGETS - 1)))?;
    session.settle(LARGE)?;
    let capacity = capacity(&mut session, LARGE)?;
    let bytes = capacity.blocks * u64::from(capacity.block_size);
    ensure!(bytes == LARGE_BYTES, "{bytes} bytes");
    let data: Vec<u8> = (0..4096_u32).map(|at| (at * 7 + 1) as u8).collect();
    let last = capacity.blocks - (data.len() / SECTOR) as u64;
    session.write(LARGE, last, &data, SECTOR)?;
    session.flush(LARGE)?;
    let blocks = (data.len() / SECTOR) as u32;
    ensure!(session.read(LARGE, last, blocks, SECTOR)? == data, "other data at the end of 4 PiB");
    let beyond = session.read(LARGE, last + 1, blocks, SECTOR);
    ensure!(beyond.is_err(), "a read beyond the end");
    figures.add(
        "largest volume written and read at its end",
        bytes as f64 / (1_u64 << 50) as f64,
        "PiB",
        "a sparse file on tmpfs; the read gave what was written, one beyond the end is refused",
        Bound::None,
    );
    session.logout()
}
