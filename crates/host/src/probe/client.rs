//! An initiator with one connection that waits for each answer.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use lunet_iscsi::initiator::{
    Command, Completion, Connection, Cx, Data, DiscoveredTarget, Event, LoginInfo, Options,
    Outcome, SubmitError,
};
use lunet_iscsi::pdu::{LogoutReason, TaskAttribute};

/// Bytes of one receive.
const PIECE: usize = 64 << 10;

type Events = Vec<Event<Vec<u8>, Vec<u8>>>;

/// Why a target cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The connection could not be made, or broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The target did not answer in time.
    #[error("no answer for {} s", .0.as_secs())]
    Silent(Duration),
    /// The target and this side do not agree.
    #[error("{0}")]
    Protocol(#[from] lunet_iscsi::initiator::Error),
    /// The login was refused.
    #[error("the login was refused: {0}")]
    Refused(&'static str),
    /// A request could not be sent.
    #[error("{0}")]
    Submit(#[from] SubmitError),
    /// The target rejected or dropped a command.
    #[error("the target did not answer a command: {0}")]
    Unanswered(String),
}

/// A connection with a target.
pub struct Client {
    stream: TcpStream,
    connection: Connection,
    start: Instant,
    out: Vec<u8>,
    events: Events,
    patience: Duration,
    info: LoginInfo,
}

/// The answer to a command.
#[derive(Debug)]
pub struct Answer {
    /// SCSI status, sense data and residual.
    pub completion: Completion,
    /// What was read.
    pub data: Vec<u8>,
    /// From the request to the answer.
    pub took: Duration,
}

impl Client {
    /// Connects and logs in. Nothing takes longer than `patience`.
    ///
    /// # Errors
    /// There is no such target, or it does not want this initiator.
    pub fn open(
        address: SocketAddr,
        mut options: Options,
        patience: Duration,
    ) -> Result<Self, ClientError> {
        let stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(patience))?;
        options.login_timeout = patience;
        options.ping_interval = None;
        options.isid = isid();
        let (start, info) = (Instant::now(), None);
        let mut client = Opening { stream, start, out: Vec::new(), events: Vec::new(), info };
        let mut connection = Connection::new(options);
        connection.start(Duration::ZERO, &mut client.out);
        let info = client.log_in(&mut connection, patience)?;
        let Opening { stream, start, out, events, .. } = client;
        Ok(Self { stream, connection, start, out, events, patience, info })
    }

    /// What the login gave.
    pub fn info(&self) -> &LoginInfo {
        &self.info
    }

    /// How many commands the target has room for now.
    pub fn window(&self) -> u32 {
        self.connection.window()
    }

    /// The targets of this portal; only on a discovery session.
    ///
    /// # Errors
    /// The connection breaks.
    pub fn targets(&mut self) -> Result<Vec<DiscoveredTarget>, ClientError> {
        self.connection.send_targets("All", &mut self.out)?;
        self.wait(|event| match event {
            Event::Targets { targets, .. } => Ok(Ok(targets)),
            other => Err(other),
        })
    }

    /// Sends a ping; how long its answer took.
    ///
    /// # Errors
    /// The connection breaks.
    pub fn ping(&mut self) -> Result<Duration, ClientError> {
        let sent = Instant::now();
        self.connection.ping(b"lunet doctor", &mut self.out)?;
        self.wait(|event| match event {
            Event::Pong { .. } => Ok(Ok(sent.elapsed())),
            other => Err(other),
        })
    }

    /// Sends a command that reads at most `length` bytes, and waits for its end.
    ///
    /// # Errors
    /// The connection breaks, or the target rejects the command itself.
    pub fn command(&mut self, lun: u16, cdb: &[u8], length: usize) -> Result<Answer, ClientError> {
        let data = if length > 0 { Data::Read(vec![0; length]) } else { Data::None };
        let sent = Instant::now();
        let command = Command {
            token: 0,
            lun: lun_bytes(lun),
            cdb,
            attribute: TaskAttribute::Simple,
            immediate: false,
            data,
        };
        self.connection.submit(command, &mut self.out).map_err(|refused| refused.error)?;
        self.wait(|event| match event {
            Event::Finished(finished) => {
                let took = sent.elapsed();
                Ok(match (finished.outcome, finished.data) {
                    (Outcome::Completed(completion), Data::Read(mut data)) => {
                        data.truncate(completion.received as usize);
                        Ok(Answer { completion, data, took })
                    }
                    (Outcome::Completed(completion), _) => {
                        Ok(Answer { completion, data: Vec::new(), took })
                    }
                    (outcome, _) => Err(ClientError::Unanswered(format!("{outcome:?}"))),
                })
            }
            other => Err(other),
        })
    }

    /// Logs out; whether the target answers no longer matters.
    pub fn close(mut self) {
        let now = self.start.elapsed();
        if self.connection.logout(LogoutReason::CloseSession, now, &mut self.out).is_ok() {
            let _ = self.wait(|event| match event {
                Event::LoggedOut { .. } => Ok(Ok(())),
                other => Err(other),
            });
        }
    }

    /// Waits for the event that `wanted` takes; gives back the others to be dropped.
    fn wait<T>(
        &mut self,
        mut wanted: impl FnMut(
            Event<Vec<u8>, Vec<u8>>,
        ) -> Result<Result<T, ClientError>, Event<Vec<u8>, Vec<u8>>>,
    ) -> Result<T, ClientError> {
        let deadline = (Instant::now() + self.patience).min(self.start + super::WHOLE);
        loop {
            for event in std::mem::take(&mut self.events) {
                match wanted(event) {
                    Ok(done) => return done,
                    Err(Event::Failed(error)) => return Err(error.into()),
                    Err(_) => {}
                }
            }
            exchange(
                &mut self.stream,
                &mut self.connection,
                self.start,
                &mut self.out,
                &mut self.events,
                deadline,
                self.patience,
            )?;
        }
    }
}

/// A connection that is not logged in yet.
struct Opening {
    stream: TcpStream,
    start: Instant,
    out: Vec<u8>,
    events: Events,
    info: Option<LoginInfo>,
}

impl Opening {
    fn log_in(
        &mut self,
        connection: &mut Connection,
        patience: Duration,
    ) -> Result<LoginInfo, ClientError> {
        let deadline = Instant::now() + patience;
        loop {
            for event in self.events.drain(..) {
                match event {
                    Event::LoggedIn(info) => self.info = Some(*info),
                    Event::Failed(lunet_iscsi::initiator::Error::LoginRefused {
                        status, ..
                    }) => {
                        return Err(ClientError::Refused(refusal(status)));
                    }
                    Event::Failed(error) => return Err(error.into()),
                    _ => {}
                }
            }
            if let Some(info) = self.info.take() {
                return Ok(info);
            }
            let Self { stream, start, out, events, .. } = self;
            exchange(stream, connection, *start, out, events, deadline, patience)?;
        }
    }
}

/// Sends what is to be sent and waits for something to arrive.
fn exchange(
    stream: &mut TcpStream,
    connection: &mut Connection,
    start: Instant,
    out: &mut Vec<u8>,
    events: &mut Events,
    deadline: Instant,
    patience: Duration,
) -> Result<(), ClientError> {
    stream.write_all(out)?;
    out.clear();
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ClientError::Silent(patience));
    }
    stream.set_read_timeout(Some(left))?;
    let mut piece = [0; PIECE];
    let received = match stream.read(&mut piece) {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
        {
            return Err(ClientError::Silent(patience));
        }
        other => other?,
    };
    if received == 0 {
        connection.transport_closed(events);
        return Ok(());
    }
    let mut cx = Cx { now: start.elapsed(), tx: out, events };
    connection.rx_bytes(&piece[..received], &mut cx);
    Ok(())
}

/// The 8 bytes of a LUN: flat space addressing from 256 on (SAM-5).
fn lun_bytes(lun: u16) -> u64 {
    let method = if lun < 256 { 0 } else { 0x4000 };
    u64::from(method | lun) << 48
}

/// An identifier that no other session of this name has: a target ends an old session that has the
/// same (RFC 7143 section 6.3.5).
fn isid() -> [u8; 6] {
    let random = RandomState::new().build_hasher().finish().to_be_bytes();
    [0x80, random[0], random[1], random[2], random[3], random[4]]
}

/// Status-Class and Status-Detail in words (RFC 7143 section 11.13.5).
fn refusal(status: u16) -> &'static str {
    match status {
        0x0101 | 0x0102 => "the target has moved to another address",
        0x0201 => "wrong name or secret (CHAP), or none where one is wanted",
        0x0202 => "this initiator is not on the target's list",
        0x0203 => "there is no target of this name",
        0x0204 => "the target was removed",
        0x0206 => "the target takes no more connections of this session",
        0x0207 => "a key that the target wants is missing",
        0x0208 => "the target does not take this session",
        0x0301 => "the target is out of order for the moment",
        0x0302 => "the target has no room for another session",
        0x0200 => "the target calls the login wrong",
        0x0300 => "the target failed",
        _ => "for a reason of the target's own",
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// What a client says to a server that answers the first bytes with these.
    fn against(answer: &'static [u8], keep: Duration) -> Result<(), ClientError> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("somebody comes");
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(answer);
            thread::sleep(keep);
        });
        let options = Options::new("iqn.2026-11.local.lunet:test", Some("iqn.2026-11.x:y"));
        let result = Client::open(address, options, Duration::from_millis(300)).map(drop);
        server.join().expect("the server ends");
        result
    }

    #[test]
    fn a_silent_server_is_left() {
        let result = against(b"", Duration::from_millis(600));
        assert!(matches!(result, Err(ClientError::Silent(_))), "{result:?}");
    }

    #[test]
    fn a_server_of_another_protocol_is_no_target() {
        let http = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        let result = against(http, Duration::ZERO);
        assert!(matches!(result, Err(ClientError::Protocol(_))), "{result:?}");
    }

    #[test]
    fn a_server_that_hangs_up_is_no_target() {
        let result = against(b"", Duration::ZERO);
        let gone = matches!(result, Err(ClientError::Protocol(_) | ClientError::Io(_)));
        assert!(gone, "{result:?}");
    }

    #[test]
    fn large_luns_are_flat() {
        assert_eq!(lun_bytes(5), 0x0005_0000_0000_0000);
        assert_eq!(lun_bytes(300), 0x412c_0000_0000_0000);
    }
}
