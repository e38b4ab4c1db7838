//! A session that waits for each answer: for logins, discovery and questions about a unit.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use lunet_iscsi::initiator::{
    Command, Connection, Cx, Data, DiscoveredTarget, Error as ProtocolError, Event, LoginInfo,
    Options, Outcome, Tag, Transmit,
};
use lunet_iscsi::iser::{ConnectData, Remote};
use lunet_iscsi::pdu::{LogoutReason, TaskAttribute};

use super::cdb::Cdb;
use super::sense::Failure;
use super::{Error, Login, Target, cdb};
use crate::place;
use crate::rdma::{Arrived, Line, Message, Plain, Port, Shared, Wants};

/// Bytes of one receive.
const PIECE: usize = 64 << 10;

/// Over RDMA, the most that a command reads.
const MOST_READ: usize = 1 << 20;

/// A target may send an initiator on so often.
const MOST_MOVES: usize = 4;

/// Something may have happened to a unit so often before it takes a command.
const MOST_ATTENTIONS: usize = 16;

/// A unit that is busy is asked so often before its word counts, and this long apart.
const BUSY_TRIES: usize = 5;
const BUSY_PAUSE: Duration = Duration::from_millis(200);

/// A session in its full feature phase. `R` and `W` are the buffers that its commands have later.
pub struct Link<R = Vec<u8>, W = Vec<u8>> {
    wire: Wire,
    proto: Connection<R, W>,
    info: LoginInfo,
    start: Instant,
    events: Vec<Event<R, W>>,
    patience: Duration,
    /// No answer is waited for beyond this.
    end: Option<Instant>,
}

/// The end of a command.
pub(super) struct Ended<R> {
    /// How it failed, if it did.
    pub failure: Option<Failure>,
    /// What was read into, and how many bytes of it.
    pub read: Option<(R, usize)>,
    /// From the request to the answer.
    pub took: Duration,
}

/// What a session is on.
pub(super) enum Wire {
    Tcp(TcpStream),
    Rdma(Box<Line>),
}

impl<W: AsRef<[u8]>> Transmit<W> for Plain {
    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn data(&mut self, data: &W, range: std::ops::Range<usize>) {
        self.bytes.extend_from_slice(&data.as_ref()[range]);
    }

    fn end_send(&mut self) {
        self.ends.push(self.bytes.len());
    }
}

impl<R: AsMut<[u8]>, W: AsRef<[u8]>> Link<R, W> {
    /// Connects and logs in; `name` is the target's, `None` makes a discovery session. Goes where
    /// the target has moved to.
    pub(super) fn open(
        target: &Target,
        login: &Login,
        name: Option<&str>,
        max_tasks: u16,
        start: Instant,
    ) -> Result<Self, Error> {
        Self::open_at(None, target, login, name, max_tasks, start)
    }

    /// The same, over RDMA on this port.
    pub(super) fn open_at(
        port: Option<&Shared>,
        target: &Target,
        login: &Login,
        name: Option<&str>,
        max_tasks: u16,
        start: Instant,
    ) -> Result<Self, Error> {
        if target.cannot_ask_for_proof() {
            return Err(Error::Proof);
        }
        let mut place = (target.host.clone(), target.port);
        for _ in 0..MOST_MOVES {
            let options = login.options(target, name, max_tasks);
            let wire = Wire::connect(port, (target.rdma, &place.0, place.1), &options)?;
            match Self::log_in(wire, Connection::new(options), login.patience, start) {
                Err(Error::Protocol(ProtocolError::LoginRefused { address, .. })) => {
                    place = address.as_deref().and_then(portal).ok_or(Error::Answer("login"))?;
                }
                Err(Error::Protocol(ProtocolError::TransportClosed)) if !target.rdma => {
                    let is_nvme = crate::nvme::answers(&place.0, place.1, login.patience);
                    return Err(if is_nvme { Error::Nvme } else { Error::Stranger });
                }
                Err(Error::NoTarget { .. }) => {
                    let target = name.unwrap_or_default().to_owned();
                    return Err(Error::NoTarget {
                        target,
                        initiator: login.initiator_name.clone(),
                    });
                }
                other => return other,
            }
        }
        Err(ProtocolError::LoginRefused { status: 0x0101, address: None }.into())
    }

    fn log_in(
        mut wire: Wire,
        mut proto: Connection<R, W>,
        patience: Duration,
        start: Instant,
    ) -> Result<Self, Error> {
        let mut out = Plain::default();
        let mut events = Vec::new();
        proto.start(start.elapsed(), &mut out);
        let deadline = Instant::now() + patience;
        loop {
            exchange(&mut wire, &mut proto, start, &mut out, &mut events, (deadline, patience))?;
            for event in events.drain(..) {
                match event {
                    Event::LoggedIn(info) => {
                        return Ok(Self {
                            wire,
                            proto,
                            info: *info,
                            start,
                            events: Vec::new(),
                            patience,
                            end: None,
                        });
                    }
                    Event::Failed(ProtocolError::LoginRefused {
                        status,
                        address: Some(address),
                    }) if status >> 8 == 1 => {
                        let address = Some(address);
                        let moved = ProtocolError::LoginRefused { status, address };
                        return Err(Error::Protocol(moved));
                    }
                    Event::Failed(error) => return Err(error.into()),
                    _ => {}
                }
            }
        }
    }

    /// Waits until the unit takes commands; how it fails if it does not. One that is busy for the moment is asked again.
    pub(super) fn wait_ready(&mut self, lun: u64) -> Result<Option<Failure>, Error> {
        let mut ask = || self.repeat(lun, &cdb::ready(), || Data::None).map(|ended| ended.failure);
        for _ in 1..BUSY_TRIES {
            match ask()? {
                Some(failure) if failure.is_busy() => thread::sleep(BUSY_PAUSE),
                ended => return Ok(ended),
            }
        }
        ask()
    }

    /// Sends a command until it is not answered with a unit attention.
    pub(super) fn repeat(
        &mut self,
        lun: u64,
        cdb: &Cdb,
        data: impl Fn() -> Data<R, W>,
    ) -> Result<Ended<R>, Error> {
        for _ in 1..MOST_ATTENTIONS {
            let ended = self.command(lun, cdb, data())?;
            if !ended.failure.is_some_and(Failure::is_attention) {
                return Ok(ended);
            }
        }
        self.command(lun, cdb, data())
    }

    fn command(&mut self, lun: u64, cdb: &Cdb, data: Data<R, W>) -> Result<Ended<R>, Error> {
        let mut out = Plain::default();
        let attribute = TaskAttribute::Simple;
        let cdb = cdb.as_bytes();
        let command = Command { token: 0, lun, cdb, attribute, immediate: false, data };
        let sent = Instant::now();
        let memory = self.wire.memory(&command.data)?;
        let submitted = self.proto.submit_rdma(command, memory, &mut out);
        let tag: Tag = submitted.map_err(|refused| refused.error)?;
        let ended = self.wait(out, |event| match event {
            Event::Finished(end) if end.tag == tag => {
                let took = sent.elapsed();
                let received = match &end.outcome {
                    Outcome::Completed(done) => done.received as usize,
                    _ => 0,
                };
                let read = match end.data {
                    Data::Read(buf) => Some((buf, received)),
                    _ => None,
                };
                Some(Ended { failure: Failure::of(&end.outcome), read, took })
            }
            _ => None,
        });
        let mut ended = ended?;
        if let Some((buf, received)) = &mut ended.read {
            self.wire.answer(&mut buf.as_mut()[..*received]);
        }
        Ok(ended)
    }

    /// Waits for the event that `wanted` takes.
    fn wait<T>(
        &mut self,
        mut out: Plain,
        mut wanted: impl FnMut(Event<R, W>) -> Option<T>,
    ) -> Result<T, Error> {
        let answer = Instant::now() + self.patience;
        let deadline = (self.end.map_or(answer, |end| end.min(answer)), self.patience);
        loop {
            let (wire, proto) = (&mut self.wire, &mut self.proto);
            exchange(wire, proto, self.start, &mut out, &mut self.events, deadline)?;
            for event in self.events.drain(..) {
                match event {
                    Event::Failed(error) => return Err(error.into()),
                    event => {
                        if let Some(found) = wanted(event) {
                            return Ok(found);
                        }
                    }
                }
            }
        }
    }

    /// Logs out. Whether the target answers does not matter any more.
    pub fn close(mut self) {
        let mut out = Plain::default();
        let now = self.start.elapsed();
        if self.proto.logout(LogoutReason::CloseSession, now, &mut out).is_ok() {
            let _ = self.wait(out, |event| matches!(event, Event::LoggedOut { .. }).then_some(()));
        }
    }

    /// What the login gave.
    #[must_use]
    pub fn info(&self) -> &LoginInfo {
        &self.info
    }

    /// How many commands the target has room for now (its CmdSN window).
    #[must_use]
    pub fn window(&self) -> u32 {
        self.proto.window()
    }

    /// The address that answered.
    ///
    /// # Errors
    /// The socket is no longer connected.
    pub fn address(&self) -> Result<SocketAddr, Error> {
        Ok(match &self.wire {
            Wire::Tcp(stream) => stream.peer_addr()?,
            Wire::Rdma(line) => line.address(),
        })
    }

    /// True if the target is on this machine, by the addresses of both ends.
    ///
    /// # Errors
    /// The socket is no longer connected.
    pub fn is_local(&self) -> Result<bool, Error> {
        Ok(match &self.wire {
            Wire::Tcp(stream) => place::is_local(stream)?,
            Wire::Rdma(line) => line.is_local(),
        })
    }

    /// Answers are waited for no longer than until then, whatever the patience of the login.
    pub fn end_by(&mut self, end: Instant) {
        self.end = Some(end);
    }

    /// The targets that this portal tells of; on a discovery session only.
    ///
    /// # Errors
    /// The session broke, or belongs to a target.
    pub fn targets(&mut self) -> Result<Vec<DiscoveredTarget>, Error> {
        let mut out = Plain::default();
        self.proto.send_targets("All", &mut out)?;
        self.wait(out, |event| match event {
            Event::Targets { targets, .. } => Some(targets),
            _ => None,
        })
    }

    /// Sends a ping that the target itself answers; how long that took.
    ///
    /// # Errors
    /// The session has ended.
    pub fn ping(&mut self) -> Result<Duration, Error> {
        let mut out = Plain::default();
        let sent = Instant::now();
        self.proto.ping(b"lunet", &mut out)?;
        self.wait(out, |event| matches!(event, Event::Pong { .. }).then(|| sent.elapsed()))
    }

    /// What it is on, without time limits, and the protocol: for the event loop.
    pub(super) fn into_parts(self) -> Result<(Wire, Connection<R, W>), Error> {
        if let Wire::Tcp(stream) = &self.wire {
            stream.set_read_timeout(None)?;
            stream.set_write_timeout(None)?;
        }
        Ok((self.wire, self.proto))
    }
}

impl Wire {
    /// Connects, over RDMA on this port, or on one of its own.
    fn connect(
        port: Option<&Shared>,
        (rdma, host, number): (bool, &str, u16),
        options: &Options,
    ) -> Result<Self, Error> {
        let patience = options.login_timeout;
        if !rdma {
            return Ok(Self::Tcp(place::connect(host, number, patience)?));
        }
        let wants = Wants {
            receives: options.receives() as u32,
            receive_len: options.receive_len(),
            private: &ConnectData::default().to_bytes(),
            patience,
        };
        let line = match port {
            Some(port) => Line::connect(port, host, number, &wants)?,
            None => Line::connect(&Port::for_questions()?, host, number, &wants)?,
        };
        Ok(Self::Rdma(Box::new(line)))
    }

    /// Over RDMA: the memory for the data of the only command.
    fn memory<R: AsMut<[u8]>, W>(&self, data: &Data<R, W>) -> Result<Option<Remote>, Error> {
        let (Self::Rdma(line), Data::Read(_)) = (self, data) else { return Ok(None) };
        let Some(memory) = line.memory() else { return Ok(None) };
        let place = memory.question(MOST_READ)?;
        Ok(Some(Remote { stag: place.key, offset: place.address }))
    }

    /// Over RDMA: copies what the command has read.
    fn answer(&self, into: &mut [u8]) {
        if let Self::Rdma(line) = self {
            if let Some(memory) = line.memory() {
                memory.answer(into);
            }
        }
    }
}

/// Sends what is to be sent, and waits for something to come.
fn exchange<R: AsMut<[u8]>, W: AsRef<[u8]>>(
    wire: &mut Wire,
    proto: &mut Connection<R, W>,
    start: Instant,
    out: &mut Plain,
    events: &mut Vec<Event<R, W>>,
    (deadline, patience): (Instant, Duration),
) -> Result<(), Error> {
    match wire {
        Wire::Tcp(stream) => {
            let Some((piece, n)) = receive(stream, out, (deadline, patience))? else {
                return Ok(());
            };
            if n == 0 {
                proto.transport_closed(events);
                return Ok(());
            }
            proto.rx_bytes(&piece[..n], &mut Cx { now: start.elapsed(), tx: out, events });
        }
        Wire::Rdma(line) => {
            line.send(out, deadline)?;
            match line.receive(deadline, None)? {
                Arrived::Message(Message { buf, len, invalidated }) => {
                    let mut cx = Cx { now: start.elapsed(), tx: out, events };
                    proto.rx_send(&buf[..len], invalidated, &mut cx);
                    line.repost(buf);
                }
                Arrived::Closed => proto.transport_closed(events),
                Arrived::Nothing => return Err(Error::Silent(patience)),
            }
        }
    }
    Ok(())
}

/// Sends what is to be sent, and receives: what came, and how much of it; `None`: a signal came.
fn receive(
    mut stream: &TcpStream,
    out: &mut Plain,
    (deadline, patience): (Instant, Duration),
) -> Result<Option<(Vec<u8>, usize)>, Error> {
    stream.write_all(&out.bytes)?;
    out.clear();
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Error::Silent(patience));
    }
    stream.set_read_timeout(Some(left))?;
    let mut piece = vec![0; PIECE];
    match stream.read(&mut piece) {
        Ok(n) => Ok(Some((piece, n))),
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Err(Error::Silent(patience)),
            ErrorKind::Interrupted => Ok(None),
            _ => Err(error.into()),
        },
    }
}

/// The host and port of a TargetAddress: `host[:port][,tag]`.
fn portal(address: &str) -> Option<(String, u16)> {
    let place = address.split(',').next()?;
    let target = Target::parse(&format!("iscsi://{place}")).ok()?;
    Some((target.host, target.port))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// How a login ends at a server that answers the first bytes with these, and then closes the connection or says nothing more.
    fn against(answer: &'static [u8], closes: bool) -> Error {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("somebody comes");
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer);
            (!closes).then_some(stream)
        });
        let target = Target::parse(&format!("iscsi://{address}/iqn.x")).expect("an address");
        // Of one that closes the answer comes, however slow this machine is.
        let patience = Duration::from_millis(if closes { 60_000 } else { 300 });
        let login = Login { patience, ..Login::default() };
        let name = target.name.as_deref();
        let link = <Link>::open(&target, &login, name, 1, Instant::now());
        drop(server.join().expect("the server ends"));
        link.map(drop).expect_err("this is no target")
    }

    #[test]
    fn what_is_no_target_is_left() {
        let silent = against(b"", false);
        assert!(matches!(silent, Error::Silent(_)), "{silent}");
        let http = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        let error = against(http, true);
        assert!(matches!(error, Error::Protocol(_)), "{error}");
        let error = against(b"", true);
        assert!(matches!(error, Error::Stranger | Error::Io(_)), "{error}");
    }

    #[test]
    fn a_closed_port_says_where_it_was_tried() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        drop(listener);
        let error = place::connect("127.0.0.1", address.port(), Duration::from_secs(5));
        let error = Error::from(error.map(drop).expect_err("closed"));
        assert!(error.to_string().contains(&address.to_string()));
    }

    #[test]
    fn addresses_of_targets_are_read() {
        assert_eq!(portal("10.0.0.1:3261,1"), Some(("10.0.0.1".into(), 3261)));
        assert_eq!(portal("[fd00::1]:3260,2"), Some(("fd00::1".into(), 3260)));
        assert_eq!(portal("nas"), Some(("nas".into(), 3260)));
        assert_eq!(portal(""), None);
    }
}
