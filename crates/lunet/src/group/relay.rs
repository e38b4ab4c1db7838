//! The thread that passes commands on to the owner of a group. Shards may not connect(2), so it does, with the limits of before
//! the sandbox. It is not on the way of a command that the owner gets itself, and so waits with poll(2).

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use lunet_front_iscsi::{
    Answered, Charge, News, RelayFor, RelayNews, RelayRequest, Relayed, Relays, accounts,
    algorithms,
};
use lunet_gateway::{Epoch, GatewayId};
use lunet_iscsi::Through;
use lunet_iscsi::initiator::{
    Chap, Command, Connection, Cx, Data, Event, Finished, Mutual, Options, Outcome, Residual, Tag,
};
use lunet_iscsi::pdu::{AsyncEvent, LogoutReason, TmfFunction, TmfResponse};
use lunet_scsi::status;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

/// Relays of a group at the most; of one host; and of one host where but a part of them is free, which is left to others.
const MOST: usize = 256;
const OF_HOST: usize = 32;
const FEW: usize = 4;
const LEFT_TO_OTHERS: usize = 64;
/// How long a connection and a login may take.
const LOGIN: Duration = Duration::from_secs(2);
/// The silence after which the owner is pinged, and how long its answer may take.
const SILENCE: Duration = Duration::from_secs(2);
/// How long a relay without commands stays.
const IDLE: Duration = Duration::from_secs(60);
/// For how long BUSY is said while no relay can be opened.
const DOWN: Duration = Duration::from_secs(5);
/// How much is read at a time.
const SCRATCH: usize = 256 << 10;
/// How long the end of a relay may take that the owner wants.
const LEAVES: Duration = Duration::from_secs(3);

type Proto = Connection<Vec<u8>, Vec<u8>>;

enum Order {
    Shard(RelayRequest),
    Aim(Option<Aim>),
}

/// Where relays go.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Aim {
    epoch: Epoch,
    owner: SocketAddr,
    /// The group's secret.
    secret: [u8; 32],
}

/// The way to the thread. It ends when the last one is dropped.
#[derive(Clone)]
pub(super) struct Handle {
    orders: Sender<Order>,
    bell: Arc<UnixStream>,
    down: Arc<AtomicBool>,
}

impl Handle {
    /// Starts the thread of a group with this target, at this gateway.
    ///
    /// # Errors
    /// There is no thread.
    pub(super) fn start(target: &str, me: GatewayId) -> std::io::Result<Self> {
        let (orders, taken) = channel();
        let (bell, rung) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        rung.set_nonblocking(true)?;
        let down = Arc::new(AtomicBool::new(false));
        let thread = Thread {
            target: target.to_owned(),
            me,
            orders: taken,
            rung,
            down: down.clone(),
            aim: None,
            relays: HashMap::new(),
            fails_since: None,
            scratch: vec![0; SCRATCH],
        };
        lunet_group::spawn("lunet-relay", move || thread.run())?;
        Ok(Self { orders, bell: Arc::new(bell), down })
    }

    fn tell(&self, order: Order) {
        // Without a receiver the thread has failed: nothing is passed on then.
        if self.orders.send(order).is_ok() {
            // A full pipe has woken it already.
            let _ = (&*self.bell).write(&[0]);
        }
    }

    /// What shards need.
    pub(super) fn relays(&self, secret: [u8; 32]) -> Relays {
        let this = self.clone();
        let takes = Arc::new(move |request| this.tell(Order::Shard(request)));
        Relays { secret, takes, down: self.down.clone(), load: Arc::default() }
    }

    /// Relays go to the owner of this epoch from now on, or nowhere. Others are over.
    pub(super) fn aim(&self, epoch: Epoch, owner: Option<SocketAddr>, secret: [u8; 32]) {
        self.tell(Order::Aim(owner.map(|owner| Aim { epoch, owner, secret })));
    }
}

/// A command that is not sent yet, or a function.
enum Queued {
    Command(Relayed),
    Manage { function: TmfFunction, lun: u64, ticket: Option<u64>, done: Box<dyn Send> },
}

/// Whether there is room for one more relay of a host that has some, of all that there are. Whoever has many finds none before
/// others do.
const fn has_room(all: usize, of_host: usize) -> bool {
    let room = if of_host < FEW { MOST } else { MOST - LEFT_TO_OTHERS };
    all < room && of_host < OF_HOST
}

/// A session with the owner.
struct Session {
    /// The initiator that it stands for.
    initiator: String,
    news: RelayNews,
    stream: TcpStream,
    connected: bool,
    proto: Proto,
    begun: Instant,
    out: Vec<u8>,
    /// How much of it is written.
    written: usize,
    queue: VecDeque<Queued>,
    /// What was sent and is not answered, by ticket.
    sent: HashMap<u64, (Tag, Charge)>,
    managed: HashMap<u32, Box<dyn Send>>,
    /// When there was a command last.
    used: Instant,
    /// The owner wants it to end, or nobody needs it.
    leaves: Option<Instant>,
    over: bool,
}

struct Thread {
    target: String,
    me: GatewayId,
    orders: Receiver<Order>,
    rung: UnixStream,
    down: Arc<AtomicBool>,
    aim: Option<Aim>,
    relays: HashMap<u64, Session>,
    fails_since: Option<Instant>,
    scratch: Vec<u8>,
}

impl Thread {
    fn run(mut self) {
        loop {
            if !self.take_orders() {
                return;
            }
            let now = Instant::now();
            let mut over = Vec::new();
            for (number, relay) in &mut self.relays {
                relay.work(*number, now, &mut self.scratch);
                if relay.over {
                    over.push(*number);
                }
            }
            over.into_iter().for_each(|number| self.end(number));
            self.wait();
        }
    }

    /// False if nobody gives any more.
    fn take_orders(&mut self) -> bool {
        let mut bytes = [0; 256];
        while matches!((&self.rung).read(&mut bytes), Ok(read) if read == bytes.len()) {}
        loop {
            match self.orders.try_recv() {
                Ok(Order::Aim(aim)) => self.take_aim(aim),
                Ok(Order::Shard(request)) => self.take(request),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn take_aim(&mut self, aim: Option<Aim>) {
        if aim == self.aim {
            return;
        }
        self.aim = aim;
        self.fails_since = None;
        self.down.store(false, Ordering::Relaxed);
        let all: Vec<u64> = self.relays.keys().copied().collect();
        all.into_iter().for_each(|number| self.end(number));
    }

    fn take(&mut self, request: RelayRequest) {
        match request {
            RelayRequest::Open(number, whose, news) => self.open(number, &whose, news),
            RelayRequest::Command(number, command, news) => match self.relays.get_mut(&number) {
                Some(relay) => relay.queue.push_back(Queued::Command(command)),
                None => news(News::Answered(command.ticket, busy())),
            },
            RelayRequest::Manage { relay, function, lun, ticket, done } => {
                // The end of one that is not there any more was told before this is dropped.
                if let Some(relay) = self.relays.get_mut(&relay) {
                    relay.queue.push_back(Queued::Manage { function, lun, ticket, done });
                }
            }
            RelayRequest::Close(number) => drop(self.relays.remove(&number)),
        }
    }

    fn open(&mut self, number: u64, whose: &RelayFor, news: RelayNews) {
        let same = |relay: &&Session| relay.initiator.eq_ignore_ascii_case(&whose.initiator);
        if !has_room(self.relays.len(), self.relays.values().filter(same).count()) {
            // It says nothing of the owner.
            return news(News::Ended(number));
        }
        let opened = self.aim.and_then(|aim| {
            let stream = connect(aim.owner).ok()?;
            let options = self.options(&aim, whose)?;
            Some((stream, options))
        });
        match opened {
            Some((stream, options)) => {
                let session = Session::new((whose, news), stream, options);
                drop(self.relays.insert(number, session));
            }
            None => {
                self.failed();
                news(News::Ended(number));
            }
        }
    }

    fn options(&self, aim: &Aim, whose: &RelayFor) -> Option<Options> {
        let RelayFor { initiator, isid, host } = whose;
        let through = Through { gateway: self.me.0, epoch: aim.epoch.0, host: *host };
        let (account, owner) = accounts(&aim.secret, &through, (initiator, *isid), &self.target);
        let mut random = [0; 33];
        lunet_os::random::fill(&mut random).ok()?;
        let mutual = Mutual { account: owner, id: random[0], challenge: random[1..].to_vec() };
        Some(Options {
            isid: *isid,
            through: Some(through),
            chap: Some(Chap { account, algorithms: algorithms(), mutual: Some(mutual) }),
            login_timeout: LOGIN,
            ping_interval: Some(SILENCE),
            ping_timeout: SILENCE,
            ..Options::new(initiator, Some(&self.target))
        })
    }

    /// A relay is over. Its shard is told, unless it has no part in it any more.
    fn end(&mut self, number: u64) {
        let Some(mut relay) = self.relays.remove(&number) else { return };
        // Nothing has become of what was not sent. Functions are done when these are dropped, which is behind the news.
        let mut functions: Vec<Box<dyn Send>> =
            relay.managed.drain().map(|(_, done)| done).collect();
        for queued in std::mem::take(&mut relay.queue) {
            match queued {
                Queued::Command(command) => (relay.news)(News::Answered(command.ticket, busy())),
                Queued::Manage { done, .. } => functions.push(done),
            }
        }
        let leaves = relay.leaves.is_some();
        if !leaves || !relay.sent.is_empty() || !functions.is_empty() {
            (relay.news)(News::Ended(number));
        }
        if !relay.proto.is_ready() && !leaves {
            self.failed();
        }
    }

    /// No relay could be opened.
    fn failed(&mut self) {
        let since = *self.fails_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= DOWN && !self.down.swap(true, Ordering::Relaxed) {
            tracing::warn!(target = %self.target, "the owner of the group is not reached");
        }
    }

    /// Waits until there is something to do.
    fn wait(&mut self) {
        let now = Instant::now();
        if self.relays.values().any(|relay| relay.proto.is_ready()) {
            self.fails_since = None;
            self.down.store(false, Ordering::Relaxed);
        }
        let due = self.relays.values().map(Session::due).min();
        let limit = due.map(|due| due.saturating_duration_since(now) + Duration::from_millis(1));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut fds = vec![PollFd::from_borrowed_fd(self.rung.as_fd(), PollFlags::IN)];
        for relay in self.relays.values() {
            let writes = !relay.connected || !relay.out.is_empty();
            let flags = if writes { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            fds.push(PollFd::from_borrowed_fd(relay.stream.as_fd(), flags));
        }
        // Whatever it says, everything is looked at.
        let _ = poll(&mut fds, limit.as_ref());
    }
}

/// The answer to a command that was not sent.
fn busy() -> Answered {
    Answered { status: status::BUSY, ..Answered::default() }
}

/// Begins to connect.
fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&to.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    Ok(socket.into())
}

impl Session {
    fn new((whose, news): (&RelayFor, RelayNews), stream: TcpStream, options: Options) -> Self {
        let begun = Instant::now();
        Self {
            initiator: whose.initiator.clone(),
            news,
            stream,
            connected: false,
            proto: Connection::new(options),
            begun,
            out: Vec::new(),
            written: 0,
            queue: VecDeque::new(),
            sent: HashMap::new(),
            managed: HashMap::new(),
            used: begun,
            leaves: None,
            over: false,
        }
    }

    /// When there is something to do, if nothing happens before.
    fn due(&self) -> Instant {
        let login = (!self.proto.is_ready()).then(|| self.begun + LOGIN);
        let proto = self.proto.poll_timeout().map(|at| self.begun + at);
        let own = self.leaves.unwrap_or(self.used + IDLE);
        login.into_iter().chain(proto).fold(own, Instant::min)
    }

    /// Does all that can be done now.
    fn work(&mut self, number: u64, now: Instant, scratch: &mut [u8]) {
        let at = now.duration_since(self.begun);
        let mut events = Vec::new();
        self.over |= self.leaves.is_some_and(|leaves| now >= leaves);
        self.over |= !self.connected && at >= LOGIN;
        self.over |= !self.hear(at, scratch, &mut events);
        if self.connected && !self.over {
            self.proto.handle_timeout(&mut Cx { now: at, tx: &mut self.out, events: &mut events });
        }
        events.into_iter().for_each(|event| self.happened(number, event));
        self.send();
        self.look_whether_used(number, now, at);
        self.over |= !self.write();
    }

    /// Reads what has come. False if the connection has ended.
    fn hear(
        &mut self,
        at: Duration,
        scratch: &mut [u8],
        events: &mut Vec<Event<Vec<u8>, Vec<u8>>>,
    ) -> bool {
        if !self.connected {
            match (self.stream.take_error(), self.stream.peer_addr()) {
                (Ok(None), Ok(_)) => {
                    self.connected = true;
                    self.proto.start(at, &mut self.out);
                }
                (Ok(None), Err(_)) => return true,
                _ => return false,
            }
        }
        loop {
            match self.stream.read(scratch) {
                Ok(0) => return false,
                Ok(read) => {
                    let mut cx = Cx { now: at, tx: &mut self.out, events };
                    self.proto.rx_bytes(&scratch[..read], &mut cx);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    /// Writes what there is room for. False if the connection has ended.
    fn write(&mut self) -> bool {
        while self.connected && self.written < self.out.len() {
            match self.stream.write(&self.out[self.written..]) {
                Ok(written) => self.written += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        self.out.clear();
        self.written = 0;
        true
    }

    fn happened(&mut self, number: u64, event: Event<Vec<u8>, Vec<u8>>) {
        match event {
            Event::LoggedIn(_) => (self.news)(News::Opened(number)),
            Event::Finished(finished) => self.finished(finished),
            Event::Managed { tag, response } => {
                let done = self.managed.remove(&tag.number());
                match response {
                    Some(Ok(TmfResponse::Complete | TmfResponse::TaskDoesNotExist)) => drop(done),
                    // Nobody knows what the owner does with the commands.
                    _ => self.fail(done),
                }
            }
            Event::Async(notice) if notice.event == Some(AsyncEvent::LogoutRequest) => {
                self.leave(number);
            }
            Event::LoggedOut { .. } | Event::Failed(_) => self.over = true,
            _ => {}
        }
    }

    /// Ends the relay before whoever waits for this hears that it is done.
    fn fail(&mut self, waits: Option<Box<dyn Send>>) {
        self.over = true;
        self.managed.extend(waits.map(|waits| (u32::MAX, waits)));
    }

    fn finished(&mut self, finished: Finished<Vec<u8>, Vec<u8>>) {
        let Finished { token, outcome, data, .. } = finished;
        let completion = match outcome {
            Outcome::Completed(completion) if completion.response == 0 => completion,
            // Whoever has aborted it waits for no answer.
            Outcome::Aborted => return drop(self.sent.remove(&token)),
            // It counts as sent: nobody knows what has become of it.
            Outcome::Completed(_) | Outcome::Rejected(_) | Outcome::Lost => {
                self.over = true;
                return;
            }
        };
        let mut data = match data {
            Data::Read(data) => data,
            Data::None | Data::Discard(_) | Data::Write(_) => Vec::new(),
        };
        data.truncate(completion.received as usize);
        let residual = match completion.residual {
            Residual::None => 0,
            Residual::Underflow(less) => -i64::from(less),
            Residual::Overflow(more) => i64::from(more),
        };
        let (status, sense) = (completion.status, completion.sense);
        drop(self.sent.remove(&token));
        (self.news)(News::Answered(token, Answered { status, sense, residual, data }));
    }

    /// Sends commands and functions, in their order, as far as the owner takes them.
    fn send(&mut self) {
        while self.proto.is_ready() && !self.over {
            let manages = matches!(self.queue.front(), Some(Queued::Manage { .. }));
            if !manages && self.proto.window() == 0 {
                return;
            }
            match self.queue.pop_front() {
                None => return,
                Some(Queued::Command(command)) => self.send_command(command),
                Some(Queued::Manage { function, lun, ticket, done }) => {
                    self.send_function(function, (lun, ticket), done);
                }
            }
        }
    }

    fn send_command(&mut self, command: Relayed) {
        self.used = Instant::now();
        let Relayed { ticket, lun, cdb, attribute, expects_read, data, charge } = command;
        let data = match (data.is_empty(), expects_read) {
            (false, _) => Data::Write(data),
            (true, 0) => Data::None,
            (true, bytes) => Data::Read(vec![0; bytes as usize]),
        };
        let immediate = false;
        let command = Command { token: ticket, lun, cdb: &cdb, attribute, immediate, data };
        match self.proto.submit(command, &mut self.out) {
            Ok(tag) => drop(self.sent.insert(ticket, (tag, charge))),
            Err(_) => {
                (self.news)(News::Answered(ticket, busy()));
            }
        }
    }

    fn send_function(
        &mut self,
        function: TmfFunction,
        (lun, ticket): (u64, Option<u64>),
        done: Box<dyn Send>,
    ) {
        let referenced = match ticket {
            None => None,
            // It is answered already.
            Some(ticket) => match self.sent.get(&ticket) {
                None => return drop(done),
                Some((tag, _)) => Some(*tag),
            },
        };
        match self.proto.manage(function, lun, referenced, &mut self.out) {
            Ok(tag) => drop(self.managed.insert(tag.number(), done)),
            Err(_) => self.fail(Some(done)),
        }
    }

    /// Nothing more goes by it; when nothing is left that has, it ends.
    fn leave(&mut self, number: u64) {
        if self.leaves.is_none() {
            self.leaves = Some(Instant::now() + LEAVES);
            (self.news)(News::Stale(number));
        }
    }

    fn look_whether_used(&mut self, number: u64, now: Instant, at: Duration) {
        let nothing = self.sent.is_empty() && self.queue.is_empty() && self.managed.is_empty();
        if self.proto.is_ready() && nothing {
            if self.leaves.is_some() {
                // It is over when the answer is there, or the time.
                let _ = self.proto.logout(LogoutReason::CloseSession, at, &mut self.out);
            } else if now.duration_since(self.used) >= IDLE {
                self.leave(number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_leaves_room_for_others() {
        let greedy = (0..).take_while(|all| has_room(*all, *all)).count();
        assert_eq!(greedy, OF_HOST);
        // Many hosts that want as many as they get.
        let mut hosts = vec![0; MOST];
        let (mut all, mut host) = (0, 0);
        while all < MOST - LEFT_TO_OTHERS {
            assert!(has_room(all, hosts[host]));
            hosts[host] += 1;
            all += 1;
            host += usize::from(hosts[host] == OF_HOST);
        }
        assert!(!has_room(all, FEW), "who has some");
        for _ in 0..LEFT_TO_OTHERS {
            assert!(has_room(all, 0), "who has none");
            all += 1;
        }
        assert!(!has_room(all, 0));
    }
}
