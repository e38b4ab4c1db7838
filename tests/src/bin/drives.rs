//! Serves drives with volatile caches to an emulated machine (see `lunet_e2e::nbd`), until it is killed.
//!
//! ```text
//! drives FOLDER COUNT MIB
//! ```
//!
//! FOLDER gets a socket `nvmeN.img` for each drive, which `lab/run -D FOLDER` uses. A client that goes without a farewell is a power
//! cut: what it had not flushed is lost, or not, as the dice say.

use std::env;
use std::fs::{self, File};
use std::io::{Write, stdout};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use lunet_block::Random;
use lunet_e2e::nbd::{Drive, Left, serve};

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [folder, count, mib] = arguments.as_slice() else {
        bail!("usage: drives FOLDER COUNT MIB");
    };
    let (count, mib): (u64, u64) = (count.parse()?, mib.parse()?);
    let mut random = lunet_e2e::random_from_environment();
    let drives: Vec<_> = (0..count)
        .map(|number| {
            let (listener, drive) = make(Path::new(folder), number, mib << 20)?;
            let random = Random::new(random.bits());
            Ok(thread::spawn(move || run(number, &listener, drive, random)))
        })
        .collect::<Result<_>>()?;
    println!("{count} drives are ready");
    stdout().flush()?;
    for drive in drives {
        drive.join().map_err(|_| anyhow!("a drive panicked"))??;
    }
    Ok(())
}

/// The socket and the medium of a drive.
fn make(folder: &Path, number: u64, size: u64) -> Result<(UnixListener, Drive)> {
    let socket = folder.join(format!("nvme{number}.img"));
    if socket.exists() {
        fs::remove_file(&socket)?;
    }
    let mut options = File::options();
    let medium = folder.join(format!("medium{number}"));
    let medium = options.read(true).write(true).create(true).truncate(true).open(medium)?;
    medium.set_len(size)?;
    Ok((
        UnixListener::bind(&socket).with_context(|| socket.display().to_string())?,
        Drive::new(medium)?,
    ))
}

/// One client after another.
fn run(number: u64, listener: &UnixListener, mut drive: Drive, mut random: Random) -> Result<()> {
    loop {
        let (mut stream, _) = listener.accept()?;
        match serve(&mut drive, &mut stream).with_context(|| format!("drive {number}"))? {
            Left::Farewell => drive.flush()?,
            Left::Gone => {
                let (kept, lost) = drive.cut(&mut random)?;
                println!("drive {number}: power cut, {kept} unflushed pages kept, {lost} lost");
                stdout().flush()?;
            }
        }
    }
}
