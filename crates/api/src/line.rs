//! The framing of the control socket: one line each way, within a bound of bytes and a bound of time.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::Serialize;
use zeroize::Zeroizing;

/// Room for almost every request, in bytes: what grows out of its place leaves a copy behind.
pub const ROOM: usize = 4096;

/// Reads up to the next line feed, which is not part of the result. The line may have a secret in it: it is
/// overwritten when it is done with.
///
/// # Errors
/// `InvalidData` if there are more than `most` bytes, `TimedOut` at the deadline, `UnexpectedEof`
/// if the stream ends before the line does.
pub fn receive(
    mut stream: &UnixStream,
    most: usize,
    deadline: Instant,
) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut line = Zeroizing::new(Vec::new());
    let mut chunk = Zeroizing::new([0; ROOM]);
    loop {
        stream.set_read_timeout(Some(left(deadline)?))?;
        let n = match stream.read(&mut chunk[..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => n,
            Err(error) => {
                retry(error)?;
                continue;
            }
        };
        let end = chunk[..n].iter().position(|byte| *byte == b'\n');
        append(&mut line, &chunk[..end.unwrap_or(n)]);
        if line.len() > most {
            return Err(io::Error::new(ErrorKind::InvalidData, "the line is too long"));
        }
        if end.is_some() {
            return Ok(line);
        }
    }
}

/// Appends bytes without leaving a copy of the others where they were.
fn append(line: &mut Zeroizing<Vec<u8>>, bytes: &[u8]) {
    let len = line.len() + bytes.len();
    if len > line.capacity() {
        let mut roomier = Zeroizing::new(Vec::with_capacity(ROOM.max(2 * len)));
        roomier.extend_from_slice(line);
        // The one before is overwritten here.
        *line = roomier;
    }
    line.extend_from_slice(bytes);
}

/// Something as one line of JSON, with room for the line feed. It may be a secret, and is overwritten when it is
/// done with.
///
/// # Errors
/// It has no form in JSON.
pub fn of(it: &impl Serialize) -> serde_json::Result<Zeroizing<Vec<u8>>> {
    let mut line = Zeroizing::new(Vec::with_capacity(ROOM));
    serde_json::to_writer(&mut *line, it)?;
    Ok(line)
}

/// Writes a line and the line feed behind it.
///
/// # Errors
/// `TimedOut` at the deadline, or what the stream says.
pub fn send(
    mut stream: &UnixStream,
    mut line: Zeroizing<Vec<u8>>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use zeroize::ZeroizeOnDrop;

    fn is_overwritten(_: &impl ZeroizeOnDrop) {}

    #[test]
    fn a_line_is_overwritten_and_grows_without_a_change() {
        let mut line = Zeroizing::new(Vec::new());
        let pieces: Vec<Vec<u8>> = (0..9).map(|n| vec![n; 1500]).collect();
        pieces.iter().for_each(|piece| append(&mut line, piece));
        assert_eq!(*line, pieces.concat());
        let (here, there) = UnixStream::pair().expect("a pair");
        let deadline = Instant::now() + Duration::from_secs(20);
        send(&here, of(&"a secret").expect("JSON"), deadline).expect("it is sent");
        let line = receive(&there, 100, deadline).expect("it comes");
        is_overwritten(&line);
        assert_eq!(&line[..], br#""a secret""#);
    }
}
