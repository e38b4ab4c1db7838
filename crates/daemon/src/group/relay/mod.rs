//! The threads that pass commands on to the owner of a group, one for each protocol. Shards may not connect(2), so these do, with
//! the limits of before the sandbox. They are not on the way of a command that the owner gets itself, and so wait with poll(2).

mod iscsi;
mod nvme;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use lunet_gateway::{Epoch, GatewayId};
use lunet_relay::{Became, News, Passed, Relays, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

pub(super) use self::iscsi::Initiator;
pub(super) use self::nvme::Host;

/// Relays of a group and protocol at the most; and of one host where but a part of them is free, which is left to others.
const MOST: usize = 256;
const FEW: usize = 4;
const LEFT_TO_OTHERS: usize = 64;
/// How long a connection and a login may take.
const LOGIN: Duration = Duration::from_secs(2);
/// How long a relay without commands stays.
const IDLE: Duration = Duration::from_secs(60);
/// For how long a host is told to try again while no relay can be opened.
const DOWN: Duration = Duration::from_secs(5);
/// How much is read at a time.
const SCRATCH: usize = 256 << 10;
/// How long the end of a relay may take that the owner wants.
const LEAVES: Duration = Duration::from_secs(3);
/// For how long what was sent may be without an acknowledgement of TCP: a wire that was cut.
const UNACKNOWLEDGED: Duration = Duration::from_secs(5);

/// Whether there is room for one more relay of a host that has some, of all that there are, and may have so many. Whoever has
/// many finds none before others do.
const fn has_room(all: usize, of_host: usize, most: usize) -> bool {
    let room = if of_host < FEW { MOST } else { MOST - LEFT_TO_OTHERS };
    all < room && of_host < most
}

/// Where relays go, and for what.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Aim {
    epoch: Epoch,
    owner: SocketAddr,
    /// The group's secret.
    secret: [u8; 32],
}

/// What a relay is opened with.
pub(super) struct Opening<'a> {
    aim: &'a Aim,
    me: GatewayId,
    /// The target or the subsystem.
    target: &'a str,
    /// Commands of the host may still be on their way that nobody waits for.
    renews: bool,
}

/// A relay as its protocol knows it: bytes and time in, bytes and what has happened out. Times are since it was begun.
pub(super) trait Carrier: Sized + Send + 'static {
    /// What is passed on.
    type Passed: Passed;
    /// Relays of one host at the most.
    const OF_HOST: usize;
    /// How long a relay that could not be opened is waited for: whoever has commands for it tries again at once.
    const PAUSE: Duration;

    /// A relay that has sent nothing yet. `None` without random numbers.
    fn open(opening: &Opening<'_>, whose: &<Self::Passed as Passed>::Whose) -> Option<Self>;
    /// The name of the host.
    fn host(whose: &<Self::Passed as Passed>::Whose) -> &str;
    /// The connection is there.
    fn start(&mut self, at: Duration, out: &mut Vec<u8>);
    /// Bytes have come.
    fn received(&mut self, bytes: &[u8], at: Duration, out: &mut Vec<u8>, told: &mut Told<Self>);
    /// Time has passed.
    fn tick(&mut self, at: Duration, out: &mut Vec<u8>, told: &mut Told<Self>);
    /// When it has to be told so.
    fn due(&self) -> Option<Duration>;
    /// Commands may go by it.
    fn is_ready(&self) -> bool;
    /// The owner takes this command now.
    fn takes(&self, command: &<Self::Passed as Passed>::Command) -> bool;
    /// Sends a command. If it cannot be sent nothing becomes of it, and it is to be answered by that.
    fn submit(
        &mut self,
        command: <Self::Passed as Passed>::Command,
        out: &mut Vec<u8>,
    ) -> Result<(), u64>;
    /// Has the owner do something.
    fn manage(
        &mut self,
        function: <Self::Passed as Passed>::Function,
        done: Box<dyn Send>,
        out: &mut Vec<u8>,
        told: &mut Told<Self>,
    );
    /// Commands whose outcome nobody knows.
    fn has_sent(&self) -> bool;
    /// Something is waited for.
    fn waits(&self) -> bool;
    /// The owner has something of the host that ends with the relay: it stays although nothing goes by it.
    fn keeps(&self) -> bool {
        false
    }
    /// Nothing is left: says so. True if the connection may be closed at once.
    fn leave(&mut self, at: Duration, out: &mut Vec<u8>) -> bool;
    /// What a command is answered by.
    fn ticket(command: &<Self::Passed as Passed>::Command) -> u64;
    /// The answer to one that was not sent.
    fn not_sent() -> <Self::Passed as Passed>::Answer;
}

/// What has happened on relays.
pub(super) type Told<C> = Vec<Happened<<<C as Carrier>::Passed as Passed>::Answer>>;

/// Something has happened on a relay.
pub(super) enum Happened<A> {
    /// It is open.
    Opened,
    /// A command is answered.
    Answered(u64, A),
    /// A command was not sent, and is to be answered by that.
    NotSent(u64),
    /// The owner wants it to end.
    Leaves,
    /// It is over; what this is for waits for nothing more, and hears so behind that.
    Over(Option<Box<dyn Send>>),
}

type Whose<C> = <<C as Carrier>::Passed as Passed>::Whose;
type Command<C> = <<C as Carrier>::Passed as Passed>::Command;
type Function<C> = <<C as Carrier>::Passed as Passed>::Function;
type NewsOf<C> = News<<C as Carrier>::Passed>;

enum Order<C: Carrier> {
    Shard(Request<C::Passed>),
    Aim(Option<Aim>),
}

/// What a thread has passed on.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Relays that there are now.
    relays: AtomicU64,
    /// Commands that were sent to the owner.
    commands: AtomicU64,
    /// The owner is not reached.
    down: Arc<AtomicBool>,
}

impl Counts {
    /// Relays that there are now, and commands that were sent to the owner since the start.
    pub(super) fn passed_on(&self) -> (u64, u64) {
        (self.relays.load(Ordering::Relaxed), self.commands.load(Ordering::Relaxed))
    }

    /// True if the owner is not reached.
    pub(super) fn are_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }
}

/// The way to the thread. It ends when the last one is dropped.
pub(super) struct Handle<C: Carrier> {
    orders: Sender<Order<C>>,
    bell: Arc<UnixStream>,
    counts: Arc<Counts>,
}

impl<C: Carrier> Clone for Handle<C> {
    fn clone(&self) -> Self {
        Self { orders: self.orders.clone(), bell: self.bell.clone(), counts: self.counts.clone() }
    }
}

impl<C: Carrier> Handle<C> {
    /// Starts the thread of a group with this target, or subsystem, at this gateway.
    ///
    /// # Errors
    /// There is no thread.
    pub(super) fn start(target: &str, me: GatewayId) -> std::io::Result<Self> {
        let (orders, taken) = channel();
        let (bell, rung) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        rung.set_nonblocking(true)?;
        let counts = Arc::<Counts>::default();
        let thread = Thread::<C> {
            target: target.to_owned(),
            me,
            orders: taken,
            rung,
            counts: counts.clone(),
            aim: None,
            relays: HashMap::new(),
            late: Vec::new(),
            fails_since: None,
            clean: HashSet::new(),
            lost: 0,
            again: false,
            scratch: vec![0; SCRATCH],
        };
        lunet_group::spawn("lunet-relay", move || thread.run())?;
        Ok(Self { orders, bell: Arc::new(bell), counts })
    }

    /// What is passed on.
    pub(super) fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    fn tell(&self, order: Order<C>) {
        // Without a receiver the thread has failed: nothing is passed on then.
        if self.orders.send(order).is_ok() {
            // A full pipe has woken it already.
            let _ = (&*self.bell).write(&[0]);
        }
    }

    /// What shards need.
    pub(super) fn relays(&self, secret: [u8; 32]) -> Relays<C::Passed> {
        let this = self.clone();
        let takes = Arc::new(move |request| this.tell(Order::Shard(request)));
        Relays { secret, takes, down: self.counts.down.clone(), load: Arc::default() }
    }

    /// Relays go to the owner of this epoch from now on, or nowhere. Others are over.
    pub(super) fn aim(&self, epoch: Epoch, owner: Option<SocketAddr>, secret: [u8; 32]) {
        self.tell(Order::Aim(owner.map(|owner| Aim { epoch, owner, secret })));
    }
}

/// A command that is not sent yet, or a function.
enum Queued<C: Carrier> {
    Command(Command<C>),
    Function(Function<C>, Box<dyn Send>),
}

/// A session with the owner.
struct Session<C: Carrier> {
    news: NewsOf<C>,
    host: String,
    stream: TcpStream,
    connected: bool,
    carrier: C,
    begun: Instant,
    out: Vec<u8>,
    /// How much of it is written.
    written: usize,
    queue: VecDeque<Queued<C>>,
    /// When there was a command last.
    used: Instant,
    /// The owner wants it to end, or nobody needs it.
    leaves: Option<Instant>,
    /// Commands of its host were lost since it was begun: no more go by it, as the owner cannot tell them from those.
    outdated: bool,
    opened: bool,
    over: bool,
    /// It has the owner forget what was lost before, so many times altogether.
    renews: Option<u64>,
    /// The owner has executed something by it.
    answered: bool,
    /// Dropped behind the news of the end.
    behind: Option<Box<dyn Send>>,
    /// Commands that were sent and not counted yet.
    sent: u64,
}

struct Thread<C: Carrier> {
    target: String,
    me: GatewayId,
    orders: Receiver<Order<C>>,
    rung: UnixStream,
    counts: Arc<Counts>,
    aim: Option<Aim>,
    relays: HashMap<u64, Session<C>>,
    /// Relays that could not be opened, and when that is told.
    late: Vec<(Instant, u64, NewsOf<C>)>,
    fails_since: Option<Instant>,
    /// Hosts of which the owner executes nothing any more that this gateway has lost.
    clean: HashSet<String>,
    /// How often commands were lost.
    lost: u64,
    /// There is something to do without anything to wait for.
    again: bool,
    scratch: Vec<u8>,
}

/// Hosts at the most that are remembered as clean. To forget them costs another turn of theirs.
const CLEAN: usize = 4096;

impl<C: Carrier> Thread<C> {
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
            self.look_whether_clean();
            self.count();
            over.into_iter().for_each(|number| self.end(number));
            self.counts.relays.store(self.relays.len() as u64, Ordering::Relaxed);
            self.tell_late(now);
            self.wait();
        }
    }

    /// Counts what was sent since this was called last.
    fn count(&mut self) {
        let sent: u64 = self.relays.values_mut().map(|relay| std::mem::take(&mut relay.sent)).sum();
        self.counts.commands.fetch_add(sent, Ordering::Relaxed);
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
        self.counts.down.store(false, Ordering::Relaxed);
        self.clean.clear();
        let all: Vec<u64> = self.relays.keys().copied().collect();
        all.into_iter().for_each(|number| self.end(number));
    }

    fn take(&mut self, request: Request<C::Passed>) {
        match request {
            Request::Open(number, whose, news) => self.open(number, &whose, news),
            Request::Command(number, command, news) => match self.relays.get_mut(&number) {
                Some(relay) => relay.queue.push_back(Queued::Command(command)),
                None => news(Became::Answered(C::ticket(&command), C::not_sent())),
            },
            Request::Function(number, function, done) => {
                // The end of one that is not there any more was told before this is dropped.
                if let Some(relay) = self.relays.get_mut(&number) {
                    relay.queue.push_back(Queued::Function(function, done));
                }
            }
            Request::Close(number) => {
                self.late.retain(|(_, late, _)| *late != number);
                if let Some(relay) = self.relays.remove(&number) {
                    self.forget(&relay);
                }
            }
        }
    }

    fn open(&mut self, number: u64, whose: &Whose<C>, news: NewsOf<C>) {
        let host = C::host(whose).to_ascii_lowercase();
        let same = self.relays.values().filter(|relay| relay.host == host).count();
        if !has_room(self.relays.len(), same, C::OF_HOST) {
            // It says nothing of the owner.
            return self.tell_soon(number, news);
        }
        let renews = (!self.clean.contains(&host)).then_some(self.lost);
        let opened = self.aim.and_then(|aim| {
            let stream = connect(aim.owner).ok()?;
            let (me, target, renews) = (self.me, self.target.as_str(), renews.is_some());
            Some((stream, C::open(&Opening { aim: &aim, me, target, renews }, whose)?))
        });
        match opened {
            Some((stream, carrier)) => {
                let session = Session::new((news, host, renews), stream, carrier);
                drop(self.relays.insert(number, session));
            }
            None => {
                self.failed();
                self.tell_soon(number, news);
            }
        }
    }

    /// A relay is over. Its shard is told, unless it has no part in it any more.
    fn end(&mut self, number: u64) {
        let Some(mut relay) = self.relays.remove(&number) else { return };
        self.forget(&relay);
        if relay.leaves.is_none() {
            self.failed();
        }
        if !relay.opened {
            return self.tell_soon(number, relay.news.clone());
        }
        // Nothing has become of what was not sent. Functions are done when these are dropped, which is behind the news.
        let mut functions = Vec::new();
        for queued in std::mem::take(&mut relay.queue) {
            match queued {
                Queued::Command(command) => {
                    (relay.news)(Became::Answered(C::ticket(&command), C::not_sent()));
                }
                Queued::Function(_, done) => functions.push(done),
            }
        }
        if relay.leaves.is_none() || relay.carrier.waits() || !functions.is_empty() {
            (relay.news)(Became::Ended(number));
        }
    }

    /// A relay that is over may leave commands on the wire that nobody waits for. Its host sends what is newer by others that it
    /// has: they are opened anew, so that the owner begins a new turn first.
    fn forget(&mut self, relay: &Session<C>) {
        if !relay.carrier.has_sent() {
            return;
        }
        // What was not sent yet is not.
        let _ = SockRef::from(&relay.stream).set_linger(Some(Duration::ZERO));
        self.lost += 1;
        self.clean.remove(&relay.host);
        for (number, other) in &mut self.relays {
            if other.host == relay.host {
                (other.outdated, self.again) = (true, true);
                if other.opened {
                    other.leave(*number);
                } else {
                    // The owner may have let it in before.
                    other.over = true;
                }
            }
        }
    }

    /// A host is clean whose relay was opened since something was lost last, and at which the owner has executed something.
    fn look_whether_clean(&mut self) {
        let lost = self.lost;
        for relay in self.relays.values_mut() {
            if relay.answered && relay.renews.take_if(|then| *then == lost).is_some() {
                if self.clean.len() >= CLEAN {
                    self.clean.clear();
                }
                self.clean.insert(relay.host.clone());
            }
        }
    }

    /// No relay could be opened.
    fn failed(&mut self) {
        let since = *self.fails_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= DOWN && !self.counts.down.swap(true, Ordering::Relaxed) {
            tracing::warn!(target = %self.target, "the owner of the group is not reached");
        }
    }

    /// A relay was not opened.
    fn tell_soon(&mut self, number: u64, news: NewsOf<C>) {
        if C::PAUSE.is_zero() {
            news(Became::Ended(number));
        } else {
            self.late.push((Instant::now() + C::PAUSE, number, news));
        }
    }

    fn tell_late(&mut self, now: Instant) {
        self.late.retain(|(at, number, news)| {
            if *at <= now {
                news(Became::Ended(*number));
            }
            *at > now
        });
    }

    /// Waits until there is something to do.
    fn wait(&mut self) {
        let now = Instant::now();
        if self.relays.values().any(|relay| relay.carrier.is_ready()) {
            self.fails_since = None;
            self.counts.down.store(false, Ordering::Relaxed);
        }
        let late = self.late.iter().map(|(at, ..)| *at);
        let due = self.relays.values().map(Session::due).chain(late).min();
        let limit = due.map(|due| due.saturating_duration_since(now) + Duration::from_millis(1));
        let limit = if std::mem::take(&mut self.again) { Some(Duration::ZERO) } else { limit };
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

impl<C: Carrier> Session<C> {
    fn new(
        (news, host, renews): (NewsOf<C>, String, Option<u64>),
        stream: TcpStream,
        carrier: C,
    ) -> Self {
        let begun = Instant::now();
        // Without it the system is patient for a quarter of an hour.
        let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(UNACKNOWLEDGED));
        Self {
            news,
            host,
            stream,
            connected: false,
            carrier,
            begun,
            out: Vec::new(),
            written: 0,
            queue: VecDeque::new(),
            used: begun,
            leaves: None,
            outdated: false,
            opened: false,
            over: false,
            renews,
            answered: false,
            behind: None,
            sent: 0,
        }
    }

    /// When there is something to do, if nothing happens before.
    fn due(&self) -> Instant {
        let login = (!self.carrier.is_ready()).then(|| self.begun + LOGIN);
        let carrier = self.carrier.due().map(|at| self.begun + at);
        let idle = if self.carrier.keeps() { Instant::now() } else { self.used } + IDLE;
        let own = self.leaves.unwrap_or(idle);
        login.into_iter().chain(carrier).fold(own, Instant::min)
    }

    /// Does all that can be done now.
    fn work(&mut self, number: u64, now: Instant, scratch: &mut [u8]) {
        let at = now.duration_since(self.begun);
        let mut told = Vec::new();
        self.over |= self.leaves.is_some_and(|leaves| now >= leaves);
        self.over |= !self.opened && at >= LOGIN;
        self.over |= !self.hear(at, scratch, &mut told);
        if self.connected && !self.over {
            self.carrier.tick(at, &mut self.out, &mut told);
        }
        self.send(&mut told);
        told.into_iter().for_each(|happened| self.happened(number, happened));
        self.look_whether_used(number, now, at);
        self.over |= !self.write();
    }

    /// Reads what has come. False if the connection has ended.
    fn hear(&mut self, at: Duration, scratch: &mut [u8], told: &mut Told<C>) -> bool {
        if !self.connected {
            match (self.stream.take_error(), self.stream.peer_addr()) {
                (Ok(None), Ok(_)) => {
                    self.connected = true;
                    self.carrier.start(at, &mut self.out);
                }
                (Ok(None), Err(_)) => return true,
                _ => return false,
            }
        }
        loop {
            match self.stream.read(scratch) {
                Ok(0) => return false,
                Ok(read) => self.carrier.received(&scratch[..read], at, &mut self.out, told),
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

    fn happened(&mut self, number: u64, happened: Happened<<C::Passed as Passed>::Answer>) {
        match happened {
            Happened::Opened => {
                self.opened = true;
                (self.news)(Became::Opened(number));
            }
            Happened::Answered(ticket, answer) => {
                self.answered = true;
                (self.news)(Became::Answered(ticket, answer));
            }
            Happened::NotSent(ticket) => (self.news)(Became::Answered(ticket, C::not_sent())),
            Happened::Leaves => self.leave(number),
            Happened::Over(waits) => {
                self.over = true;
                self.behind = self.behind.take().or(waits);
            }
        }
    }

    /// Sends commands and functions, in their order, as far as the owner takes them.
    fn send(&mut self, told: &mut Told<C>) {
        if self.outdated {
            self.refuse(told);
        }
        while self.carrier.is_ready() && !self.over {
            if matches!(self.queue.front(), Some(Queued::Command(it)) if !self.carrier.takes(it)) {
                return;
            }
            match self.queue.pop_front() {
                None => return,
                Some(Queued::Command(command)) => {
                    self.used = Instant::now();
                    match self.carrier.submit(command, &mut self.out) {
                        Ok(()) => self.sent += 1,
                        Err(ticket) => told.push(Happened::NotSent(ticket)),
                    }
                }
                Some(Queued::Function(function, done)) => {
                    self.carrier.manage(function, done, &mut self.out, told);
                }
            }
        }
    }

    /// Commands that were not sent are not; functions are.
    fn refuse(&mut self, told: &mut Told<C>) {
        for queued in std::mem::take(&mut self.queue) {
            match queued {
                Queued::Command(command) => {
                    told.push(Happened::NotSent(C::ticket(&command)));
                }
                Queued::Function(..) => self.queue.push_back(queued),
            }
        }
    }

    /// Nothing more goes by it; when nothing is left that has, it ends.
    fn leave(&mut self, number: u64) {
        if self.leaves.is_none() {
            self.leaves = Some(Instant::now() + LEAVES);
            (self.news)(Became::Stale(number));
        }
    }

    fn look_whether_used(&mut self, number: u64, now: Instant, at: Duration) {
        if self.carrier.is_ready() && self.queue.is_empty() && !self.carrier.waits() {
            if self.leaves.is_some() {
                // Otherwise it is over when the answer is there, or the time.
                self.over |= self.carrier.leave(at, &mut self.out);
            } else if now.duration_since(self.used) >= IDLE && !self.carrier.keeps() {
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
        for most in [Initiator::OF_HOST, Host::OF_HOST] {
            let greedy = (0..).take_while(|all| has_room(*all, *all, most)).count();
            assert_eq!(greedy, most);
            // Many hosts that want as many as they get.
            let mut hosts = vec![0; MOST];
            let (mut all, mut host) = (0, 0);
            while all < MOST - LEFT_TO_OTHERS {
                assert!(has_room(all, hosts[host], most));
                hosts[host] += 1;
                all += 1;
                host += usize::from(hosts[host] == most);
            }
            assert!(!has_room(all, FEW, most), "who has some");
            for _ in 0..LEFT_TO_OTHERS {
                assert!(has_room(all, 0, most), "who has none");
                all += 1;
            }
            assert!(!has_room(all, 0, most));
        }
    }
}
