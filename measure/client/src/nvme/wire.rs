//! A socket of which each answer is waited for.

use std::io::{ErrorKind, Read, Write};
use std::marker::PhantomData;
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::time::{Duration, Instant};

use lunet_nvme::digest::Crc32c;
use lunet_nvme::transmit::{Payload, Transmit};

use super::error::Parties;
use super::secure::secure;
use super::{Error, Target};
use crate::front::Source;
use crate::place;

/// Bytes of one receive.
const PIECE: usize = 64 << 10;

impl Payload for Source {
    fn crc32c(&self, range: Range<usize>, crc: &mut Crc32c) {
        crc.update(&self.as_ref()[range]);
    }
}

/// What goes out as plain bytes: all there is before the load begins.
pub(super) struct Plain<W>(pub Vec<u8>, PhantomData<W>);

impl<W> Default for Plain<W> {
    fn default() -> Self {
        Self(Vec::new(), PhantomData)
    }
}

impl<W: Payload + AsRef<[u8]>> Transmit for Plain<W> {
    type Payload = W;

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn payload(&mut self, payload: W, range: Range<usize>) {
        self.0.extend_from_slice(&payload.as_ref()[range]);
    }
}

/// Until when an answer is waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    at: Instant,
    patience: Duration,
}

/// A connected socket.
pub(super) struct Wire {
    stream: TcpStream,
    /// The moment from which the time is counted.
    start: Instant,
    patience: Duration,
    /// No answer is waited for beyond this.
    pub end: Option<Instant>,
    piece: Vec<u8>,
}

impl Wire {
    /// Connects, by TLS if there is a key for that.
    pub fn connect(
        target: &Target,
        parties: &Parties<'_>,
        patience: Duration,
        start: Instant,
    ) -> Result<Self, Error> {
        let mut stream = place::connect(&target.host, target.port, patience)?;
        if let Some(key) = &target.tls_key {
            stream.set_read_timeout(Some(patience))?;
            secure(&mut stream, key, parties)?;
        }
        Ok(Self { stream, start, patience, end: None, piece: vec![0; PIECE] })
    }

    /// The time, as the protocol counts it.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Until when the answer to what is sent now is waited for.
    pub fn deadline(&self) -> Deadline {
        let at = Instant::now() + self.patience;
        Deadline { at: self.end.map_or(at, |end| end.min(at)), patience: self.patience }
    }

    /// Sends what is to be sent.
    pub fn send<W>(&mut self, out: &mut Plain<W>) -> Result<(), Error> {
        self.stream.write_all(&out.0)?;
        out.0.clear();
        Ok(())
    }

    /// Waits for something to come, at most until `wake`, if that is before the deadline: the time, and
    /// what came. `None`: it is time; nothing in it: the other end has closed.
    pub fn receive(
        &mut self,
        deadline: Deadline,
        wake: Option<Duration>,
    ) -> Result<Option<(Duration, &[u8])>, Error> {
        let left = deadline.at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Silent(deadline.patience));
        }
        let wake = wake.map_or(left, |at| at.saturating_sub(self.now()).min(left));
        if wake.is_zero() {
            return Ok(None);
        }
        self.stream.set_read_timeout(Some(wake))?;
        let read = self.stream.read(&mut self.piece);
        let now = self.start.elapsed();
        match read {
            Ok(n) => Ok(Some((now, &self.piece[..n]))),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(None),
                // How a target ends a connection that it does not want.
                ErrorKind::ConnectionReset => Ok(Some((now, &[]))),
                _ => Err(error.into()),
            },
        }
    }

    /// The address that answered.
    pub fn address(&self) -> Result<SocketAddr, Error> {
        Ok(self.stream.peer_addr()?)
    }

    /// True if what answered is on this machine.
    pub fn is_local(&self) -> Result<bool, Error> {
        Ok(place::is_local(&self.stream)?)
    }

    /// The socket, without time limits: for the event loop.
    pub fn into_stream(self) -> Result<TcpStream, Error> {
        self.stream.set_read_timeout(None)?;
        self.stream.set_write_timeout(None)?;
        Ok(self.stream)
    }

    /// The socket, for waiting.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

/// True if what listens there answers the first PDU of NVMe over TCP (ICReq) by its answer (ICResp).
pub fn answers(host: &str, port: u16, patience: Duration) -> bool {
    /// Type, flags, length of the header, offset of data; all else is 0.
    const REQUEST: [u8; 5] = [0, 0, 128, 0, 128];
    /// The same of the answer: type, flags, length.
    const ANSWER: [u8; 3] = [1, 0, 128];
    let ask = || -> Option<[u8; 3]> {
        let mut stream = place::connect(host, port, patience).ok()?;
        stream.set_read_timeout(Some(patience)).ok()?;
        let mut request = [0; 128];
        request[..REQUEST.len()].copy_from_slice(&REQUEST);
        stream.write_all(&request).ok()?;
        let mut answer = [0; 3];
        stream.read_exact(&mut answer).ok()?;
        Some(answer)
    };
    ask() == Some(ANSWER)
}
