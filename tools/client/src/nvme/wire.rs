//! A socket, or an RDMA connection, of which each answer is waited for.

use std::io::{ErrorKind, Read, Write};
use std::marker::PhantomData;
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lunet_nvme::command::Cqe;
use lunet_nvme::digest::Crc32c;
use lunet_nvme::host::Options;
use lunet_nvme::rdma::{ConnectRequest, Rejection, Remote};
use lunet_nvme::transmit::{Payload, Transmit};
use lunet_ring::Buf;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::error::Parties;
use super::secure::secure;
use super::{Error, Target};
use crate::front::Source;
use crate::place;
use crate::rdma::{self, Arrived, Line, Memory, Message, Port, Shared, Wants};

/// Bytes of one receive.
const PIECE: usize = 64 << 10;

impl Payload for Source {
    fn crc32c(&self, range: Range<usize>, crc: &mut Crc32c) {
        crc.update(&self.as_ref()[range]);
    }
}

/// What goes out as plain bytes: all there is before the load begins.
pub(super) struct Plain<W>(pub rdma::Plain, PhantomData<W>);

impl<W> Default for Plain<W> {
    fn default() -> Self {
        Self(rdma::Plain::default(), PhantomData)
    }
}

impl<W: Payload + AsRef<[u8]>> Transmit for Plain<W> {
    type Payload = W;

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.bytes.extend_from_slice(bytes);
    }

    fn payload(&mut self, payload: W, range: Range<usize>) {
        self.0.bytes.extend_from_slice(&payload.as_ref()[range]);
    }

    fn end_send(&mut self, _: Option<u32>) {
        self.0.ends.push(self.0.bytes.len());
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.0.keep(bytes);
    }

    fn kept(&mut self, into: &mut [u8]) {
        self.0.kept(into);
    }
}

/// Until when an answer is waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    at: Instant,
    patience: Duration,
}

/// What a queue is on.
pub(super) enum Carrier {
    Tcp(TcpStream),
    Rdma(Box<Line>),
}

/// What has come.
pub(super) enum Came<'a> {
    /// Bytes of a stream.
    Bytes(&'a [u8]),
    /// A message. Its buffer goes back with [`Wire::repost`].
    Message(Message),
    /// The other end has closed.
    End,
}

/// What ended a wait.
pub(super) enum Woken {
    /// Something has come.
    Ready,
    /// The other descriptor is readable.
    Other,
    /// It is time.
    Time,
}

/// A connected socket, or an RDMA connection.
pub(super) struct Wire {
    carrier: Carrier,
    /// The moment from which the time is counted.
    start: Instant,
    patience: Duration,
    /// No answer is waited for beyond this.
    pub end: Option<Instant>,
    piece: Vec<u8>,
}

impl Wire {
    /// Connects, by TLS if there is a key for that; over RDMA on this port, or on one of its own.
    pub fn connect(
        port: Option<&Shared>,
        target: &Target,
        parties: &Parties<'_>,
        options: &Options,
        start: Instant,
    ) -> Result<Self, Error> {
        let patience = options.connect_timeout;
        let (carrier, piece) = if target.rdma {
            let own;
            let port = match port {
                Some(port) => port,
                None => {
                    own = Port::for_questions()?;
                    &own
                }
            };
            (Carrier::Rdma(Box::new(line(port, target, options)?)), Vec::new())
        } else {
            let mut stream = place::connect(&target.host, target.port, patience)?;
            if let Some(key) = &target.tls_key {
                stream.set_read_timeout(Some(patience))?;
                secure(&mut stream, key, parties)?;
            }
            (Carrier::Tcp(stream), vec![0; PIECE])
        };
        Ok(Self { carrier, start, patience, end: None, piece })
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

    /// Over RDMA: the memory of the queue's own commands, which `out` is told.
    pub fn own<W>(&self, out: &mut Plain<W>) -> Option<Remote> {
        let memory = self.memory()?;
        out.0.own = Some(Arc::clone(memory.region()));
        Some(remote(memory.own()))
    }

    /// True over RDMA.
    pub const fn is_rdma(&self) -> bool {
        matches!(self.carrier, Carrier::Rdma(_))
    }

    fn memory(&self) -> Option<&Memory> {
        match &self.carrier {
            Carrier::Rdma(line) => line.memory(),
            Carrier::Tcp(_) => None,
        }
    }

    /// Over RDMA: the memory for the data of the only command, which reads so many bytes.
    pub fn room(&self, len: usize) -> Result<Option<Remote>, Error> {
        let Some(memory) = self.memory().filter(|_| len > 0) else { return Ok(None) };
        Ok(Some(remote(memory.question(len)?)))
    }

    /// Over RDMA: copies what that command has read.
    pub fn answer(&self, into: &mut [u8]) {
        if let Some(memory) = self.memory() {
            memory.answer(into);
        }
    }

    /// Sends what is to be sent.
    pub fn send<W>(&mut self, out: &mut Plain<W>) -> Result<(), Error> {
        let end = self.deadline().at;
        match &mut self.carrier {
            Carrier::Tcp(stream) => stream.write_all(&out.0.bytes)?,
            Carrier::Rdma(line) => line.send(&mut out.0, end)?,
        }
        out.0.clear();
        Ok(())
    }

    /// Waits for something to come, at most until `wake`, if that is before the deadline: the time, and
    /// what came. `None`: it is time.
    pub fn receive(
        &mut self,
        deadline: Deadline,
        wake: Option<Duration>,
    ) -> Result<Option<(Duration, Came<'_>)>, Error> {
        let left = deadline.at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Silent(deadline.patience));
        }
        let wake = wake.map_or(left, |at| at.saturating_sub(self.now()).min(left));
        if wake.is_zero() {
            return Ok(None);
        }
        let (start, stream) = (
            self.start,
            match &mut self.carrier {
                Carrier::Rdma(line) => {
                    let came = match line.receive(Instant::now() + wake, None)? {
                        Arrived::Message(message) => Some(Came::Message(message)),
                        Arrived::Closed => Some(Came::End),
                        Arrived::Nothing => None,
                    };
                    return Ok(came.map(|came| (self.start.elapsed(), came)));
                }
                Carrier::Tcp(stream) => stream,
            },
        );
        stream.set_read_timeout(Some(wake))?;
        let read = stream.read(&mut self.piece);
        let now = start.elapsed();
        match read {
            Ok(0) => Ok(Some((now, Came::End))),
            Ok(n) => Ok(Some((now, Came::Bytes(&self.piece[..n])))),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(None),
                // How a target ends a connection that it does not want.
                ErrorKind::ConnectionReset => Ok(Some((now, Came::End))),
                _ => Err(error.into()),
            },
        }
    }

    /// Gives the buffer of a message back.
    pub fn repost(&self, buf: Buf) {
        if let Carrier::Rdma(line) = &self.carrier {
            line.repost(buf);
        }
    }

    /// Waits for something to come, for so long, or for `other` to be readable.
    pub fn wait(&mut self, other: BorrowedFd<'_>, time: Duration) -> Result<Woken, Error> {
        let (mut stream, mut time) = (None, time);
        match &self.carrier {
            Carrier::Tcp(tcp) => stream = Some(tcp.as_fd()),
            Carrier::Rdma(line) => {
                if line.wait(other, time)? {
                    return Ok(Woken::Ready);
                }
                time = Duration::ZERO;
            }
        }
        let mut fds: Vec<PollFd<'_>> = [Some(other), stream]
            .into_iter()
            .flatten()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let time =
            Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        match poll(&mut fds, Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::Io(errno.into())),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        Ok(match ready[..] {
            [true, ..] => Woken::Other,
            [_, true] => Woken::Ready,
            _ => Woken::Time,
        })
    }

    /// The address that answered.
    pub fn address(&self) -> Result<SocketAddr, Error> {
        Ok(match &self.carrier {
            Carrier::Tcp(stream) => stream.peer_addr()?,
            Carrier::Rdma(line) => line.address(),
        })
    }

    /// True if what answered is on this machine.
    pub fn is_local(&self) -> Result<bool, Error> {
        Ok(match &self.carrier {
            Carrier::Tcp(stream) => place::is_local(stream)?,
            Carrier::Rdma(line) => line.is_local(),
        })
    }

    /// What it is on, without time limits: for the event loop.
    pub fn into_carrier(self) -> Result<Carrier, Error> {
        if let Carrier::Tcp(stream) = &self.carrier {
            stream.set_read_timeout(None)?;
            stream.set_write_timeout(None)?;
        }
        Ok(self.carrier)
    }
}

/// An RDMA connection for this queue.
fn line(port: &Shared, target: &Target, options: &Options) -> Result<Line, Error> {
    let connect = &options.connect;
    let request = ConnectRequest {
        qid: connect.qid,
        receives: connect.sqsize + 1,
        sqsize: connect.sqsize,
        cntlid: if connect.qid == 0 { 0 } else { connect.cntlid },
    };
    let wants = Wants {
        // Some controllers send a completion before a receive was posted again.
        receives: u32::from(request.receives) + 1,
        receive_len: size_of::<Cqe>(),
        private: &request.to_bytes(),
        patience: options.connect_timeout,
    };
    Line::connect(port, &target.host, target.port, &wants).map_err(|error| match error {
        rdma::Error::Rejected { address, private } => match Rejection::parse(&private) {
            Some(rejection) => Error::Rejected { address, rejection },
            None => rdma::Error::Rejected { address, private }.into(),
        },
        other => other.into(),
    })
}

/// Memory as the protocol names it.
pub(super) const fn remote(place: lunet_verbs::Remote) -> Remote {
    Remote { address: place.address, key: place.key }
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
