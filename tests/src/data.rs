//! Scratch directories, files of random bytes, and their comparison.

use std::env;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

/// A new directory on a disk, taken away when dropped.
///
/// It lies in $TMPDIR, or in /var/tmp: Debian 13 keeps /tmp in memory, where O_DIRECT means nothing.
pub fn scratch(prefix: &str) -> Result<TempDir> {
    let parent = env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    TempDir::with_prefix_in(prefix, &parent).with_context(|| parent.display().to_string())
}

/// Makes a file of random bytes.
pub fn random_file(path: &Path, len: u64) -> Result<()> {
    let mut source = File::open("/dev/urandom")?.take(len);
    let mut file = File::create(path)?;
    let copied = io::copy(&mut source, &mut file)?;
    ensure!(copied == len, "only {copied} of {len} bytes written to {}", path.display());
    Ok(())
}

/// Demands that the first `len` bytes of both files are the same; names the first difference.
pub fn same_bytes(left: &Path, right: &Path, len: u64) -> Result<()> {
    const PIECE: usize = 1 << 20;
    let (mut a, mut b) = (vec![0; PIECE], vec![0; PIECE]);
    let mut left_file = File::open(left)?;
    let mut right_file = File::open(right)?;
    let mut at = 0;
    while at < len {
        let n = usize::try_from((len - at).min(PIECE as u64))?;
        for (file, piece, path) in
            [(&mut left_file, &mut a, left), (&mut right_file, &mut b, right)]
        {
            file.read_exact(&mut piece[..n])
                .with_context(|| format!("{} is shorter than {len}", path.display()))?;
        }
        if a[..n] != b[..n] {
            let differs = a.iter().zip(&b).position(|(x, y)| x != y).unwrap_or_default();
            anyhow::bail!(
                "{} and {} differ first at byte {}",
                left.display(),
                right.display(),
                at + differs as u64
            );
        }
        at += n as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_difference_and_a_short_file_are_found() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        random_file(&a, 3 << 20)?;
        fs::copy(&a, &b)?;
        same_bytes(&a, &b, 3 << 20)?;
        let mut bytes = fs::read(&b)?;
        bytes[2_500_000] ^= 1;
        fs::write(&b, &bytes)?;
        let message = same_bytes(&a, &b, 3 << 20).map_err(|e| e.to_string());
        assert!(message.is_err_and(|m| m.ends_with("at byte 2500000")));
        fs::write(&b, &bytes[..1 << 20])?;
        assert!(same_bytes(&a, &b, 3 << 20).is_err());
        Ok(())
    }
}
