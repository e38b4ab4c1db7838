//! One line each way, within a bound of bytes and a bound of time.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Reads up to the next line feed, which is not part of the result.
///
/// # Errors
/// `InvalidData` if there are more than `most` bytes, `TimedOut` at the deadline, `UnexpectedEof`
/// if the stream ends before the line does.
pub(super) fn receive(
    stream: &mut UnixStream,
    most: usize,
    deadline: Instant,
) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        stream.set_read_timeout(Some(left(deadline)?))?;
        let n = match stream.read(&mut chunk) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => n,
            Err(error) => {
                retry(error)?;
                continue;
            }
        };
        let end = chunk[..n].iter().position(|byte| *byte == b'\n');
        line.extend_from_slice(&chunk[..end.unwrap_or(n)]);
        if line.len() > most {
            return Err(io::Error::new(ErrorKind::InvalidData, "the line is too long"));
        }
        if end.is_some() {
            return Ok(line);
        }
    }
}

/// Writes a line and the line feed behind it.
///
/// # Errors
/// `TimedOut` at the deadline, or what the stream says.
pub(super) fn send(
    stream: &mut UnixStream,
    mut line: Vec<u8>,
    deadline: Instant,
) -> io::Result<()> {
    line.push(b'\n');
    let mut rest = &line[..];
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?))?;
        match stream.write(rest) {
            Ok(n) => rest = &rest[n..],
            Err(error) => retry(error)?,
        }
    }
    Ok(())
}

/// The time until the deadline, never zero: zero would mean no limit.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Passes on every error but those after which the same call may do better.
fn retry(error: io::Error) -> io::Result<()> {
    match error.kind() {
        // A time limit that has run out is `WouldBlock`; the deadline is looked at next.
        ErrorKind::Interrupted | ErrorKind::WouldBlock => Ok(()),
        _ => Err(error),
    }
}
