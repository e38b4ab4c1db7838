//! What a program says, read while it runs.

use std::io::{ErrorKind, Read};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// So long is waited for the end of a pipe after the end of the program: a daemon that it has left behind may hold the pipe for good.
pub const GRACE: Duration = Duration::from_secs(2);

/// Bytes that are read at once.
const PIECE: usize = 64 << 10;

/// A pipe that is read by a thread of its own.
#[derive(Debug)]
pub struct Reading(Receiver<Vec<u8>>);

/// Reads a pipe, up to its end or to so many bytes.
pub fn read(pipe: impl Read + Send + 'static, most: u64) -> Reading {
    let (pieces, reading) = mpsc::channel();
    thread::spawn(move || {
        let mut pipe = pipe.take(most);
        loop {
            let mut piece = vec![0; PIECE];
            match pipe.read(&mut piece) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // What cannot be read ends it.
                Ok(0) | Err(_) => return,
                Ok(len) => piece.truncate(len),
            }
            if pieces.send(piece).is_err() {
                return;
            }
        }
    });
    Reading(reading)
}

impl Reading {
    /// What has come up to the end of the pipe, which is waited for so long at most.
    #[must_use]
    pub fn within(self, limit: Duration) -> Vec<u8> {
        let since = Instant::now();
        let mut bytes = Vec::new();
        while let Ok(piece) = self.0.recv_timeout(limit.saturating_sub(since.elapsed())) {
            bytes.extend(piece);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc::{Receiver, Sender};

    use super::*;

    /// A pipe with three bytes that somebody else holds then.
    struct Held {
        is_read: Sender<()>,
        end: Receiver<()>,
        bytes: &'static [u8],
    }

    impl Read for Held {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.bytes.is_empty() {
                let _ = self.is_read.send(());
                let _ = self.end.recv();
            }
            self.bytes.read(into)
        }
    }

    #[test]
    fn a_pipe_that_does_not_end_is_given_up() {
        let (is_read, told) = mpsc::channel();
        let (end, held) = mpsc::channel();
        let reading = read(Held { is_read, end: held, bytes: b"abc" }, 1 << 20);
        told.recv().expect("all three are read");
        assert_eq!(reading.within(Duration::from_millis(1)), b"abc");
        drop(end);
    }

    #[test]
    fn a_pipe_is_read_to_its_end_or_as_far_as_it_may() {
        let text = vec![7; 3 * PIECE + 1];
        let all = |most| read(io::Cursor::new(text.clone()), most).within(Duration::from_secs(60));
        assert_eq!(all(1 << 30), text);
        assert_eq!(all(PIECE as u64 + 5).len(), PIECE + 5);
    }
}
