//! A server that is none, and a client that sends what it is told to.

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use lunet_api::{
    Answer, Change, Code, Configuration, Difference, Done, Error, Group, GroupConfig, GroupGateway,
    Preview, Request, Stats, Target, User, Volume,
};
use lunet_control::{
    AuditEntry, Bound, Control, Limits, Listeners, Notifier, Options, Principal, RefusedLogin,
    Role, Service, concerned, notifier,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use zeroize::Zeroizing;

/// How long anything may take that has no limit of its own.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What the fake server is asked and has done.
pub struct Fake {
    pub changes: Mutex<Vec<Change>>,
    pub size: Mutex<u64>,
    pub text: Mutex<String>,
    /// What was written into the file, until it is applied.
    pub pending: Mutex<Option<String>>,
    /// Who may log in to the target.
    pub initiators: Mutex<Option<String>>,
    /// What the gateways of its group share, with its revision, and whether another gateway writes just before a change does.
    pub shared: Mutex<(u64, String)>,
    pub outpaced: AtomicBool,
    /// Orders to its group.
    pub orders: Mutex<Vec<String>>,
    hangs: Mutex<bool>,
    wake: Condvar,
    pub notifier: Notifier,
    pub ready: AtomicBool,
    /// How often it was asked whether it is ready.
    pub asked: AtomicUsize,
}

impl Fake {
    /// From now on nothing is answered.
    pub fn hang(&self, is: bool) {
        *self.hangs.lock().unwrap() = is;
        self.wake.notify_all();
    }

    fn wait(&self) {
        let mut hangs = self.hangs.lock().unwrap();
        while *hangs {
            hangs = self.wake.wait(hangs).unwrap();
        }
    }

    fn order(&self, who: &Principal, what: String) -> Result<Answer, Error> {
        self.orders.lock().unwrap().push(format!("{what} by {}", who.name));
        match what.as_str() {
            "move 9" => Err(Error::new(Code::NotServed, "that gateway does not answer")),
            _ => {
                self.notifier.differs("groups");
                Ok(Answer::Done(Done { done: what, ..Done::default() }))
            }
        }
    }

    fn share(&self, text: &str, wanted: Option<u64>, force: bool) -> Result<Done, Error> {
        let mut shared = self.shared.lock().unwrap();
        if self.outpaced.load(Ordering::Acquire) {
            shared.0 += 1;
        }
        match wanted {
            Some(wanted) if wanted != shared.0 => {
                Err(Error::new(Code::ChangedByHand, "it was changed meanwhile"))
            }
            _ if text.contains("wrong") => Err(Error::new(Code::Invalid, "line 2: x: is no key")),
            _ => {
                *shared = (shared.0 + 1, text.to_owned());
                Ok(Done { done: format!("force {force}"), incomplete: true, ..Done::default() })
            }
        }
    }

    fn change(&self, who: &Principal, change: Change) -> Result<Done, Error> {
        let result = match &change {
            Change::DeleteVolume { name, force: false, .. } if name == "busy" => {
                Err(Error::new(Code::InUse, "1 session sees volume busy").fix("use --force"))
            }
            Change::ResizeVolume { size: Some(size), .. } => {
                *self.size.lock().unwrap() = *size;
                Ok(Done { done: "it has grown".into(), ..Done::default() })
            }
            Change::Apply { .. } => {
                if let Some(text) = self.pending.lock().unwrap().take() {
                    *self.text.lock().unwrap() = text;
                }
                Ok(Done::default())
            }
            other => Ok(Done { done: serde_json::to_string(other).unwrap(), ..Done::default() }),
        };
        let outcome = match &result {
            Ok(done) => format!("done: {}", done.done),
            Err(error) => format!("refused: {error}"),
        };
        let kind = serde_json::to_value(&change).unwrap()["do"].as_str().unwrap().to_owned();
        let address = who.address().map(|address| address.to_string());
        let name = if address.is_some() { who.name.clone() } else { who.told() };
        let entry = AuditEntry { time: 1, who: name, address, what: kind, outcome };
        if result.is_ok() {
            concerned(&change).iter().for_each(|list| self.notifier.differs(*list));
        }
        self.notifier.record(entry);
        self.changes.lock().unwrap().push(change);
        result
    }
}

impl Service for Fake {
    fn answer(&self, who: &Principal, request: Request) -> Result<Answer, Error> {
        self.wait();
        Ok(match request {
            Request::Volumes => {
                let size_bytes = *self.size.lock().unwrap();
                Answer::Volumes(vec![Volume {
                    name: "vm1".into(),
                    size_bytes,
                    ..Volume::default()
                }])
            }
            Request::Targets => {
                let file = Some("/etc/lunet/secret".into());
                let users = vec![User { name: "u".into(), file, ..User::default() }];
                let initiators = self.initiators.lock().unwrap().clone();
                let name = "iqn.a:x".into();
                Answer::Targets(vec![Target { name, users, initiators, ..Target::default() }])
            }
            Request::Sessions => Answer::Sessions(Vec::new()),
            Request::Stats => {
                Answer::Stats(Box::new(Stats { uptime_seconds: 7, ..Stats::default() }))
            }
            Request::Snapshots { .. } => Answer::Snapshots(Vec::new()),
            Request::Portals => Answer::Portals(Vec::new()),
            Request::Groups => Answer::Groups(vec![Group {
                name: "vms".into(),
                gateway: 2,
                owner: Some(1),
                ..Group::default()
            }]),
            Request::Gateways { group } if group == "vms" => {
                Answer::Gateways(vec![GroupGateway { gateway: 1, ..GroupGateway::default() }])
            }
            Request::MoveGroup { group, gateway } if group == "vms" => {
                self.order(who, format!("move {gateway}"))?
            }
            Request::TakeOverGroup { group } if group == "vms" => {
                self.order(who, "take-over".to_owned())?
            }
            Request::GroupConfig { group } if group == "vms" => {
                let (revision, text) = self.shared.lock().unwrap().clone();
                Answer::GroupConfig(GroupConfig { revision, text })
            }
            Request::SetGroupConfig { group, text, revision, force } if group == "vms" => {
                Answer::Done(self.share(text.text(), revision, force)?)
            }
            Request::Gateways { .. }
            | Request::MoveGroup { .. }
            | Request::TakeOverGroup { .. }
            | Request::GrowGroup { .. }
            | Request::GroupConfig { .. }
            | Request::SetGroupConfig { .. } => {
                return Err(Error::new(Code::NotFound, "there is no such group"));
            }
            Request::Config => {
                let text = self.text.lock().unwrap().clone();
                let pending = self.pending.lock().unwrap().clone();
                let pending_version = pending.as_ref().map(|text| text.len().to_string());
                let more = Configuration::default();
                Answer::Config(Box::new(Configuration { text, pending, pending_version, ..more }))
            }
            Request::Change { change, .. } => Answer::Done(self.change(who, change)?),
            Request::Preview { change: Change::ReopenVolume { .. }, .. } => {
                return Err(Error::new(Code::Unsupported, "nobody knows"));
            }
            Request::Preview { .. } => {
                let change = Difference { what: "volume".into(), ..Difference::default() };
                Answer::Preview(Preview { changes: vec![change], ..Preview::default() })
            }
        })
    }

    fn check(&self, who: &Principal, text: &str) -> Result<Preview, Error> {
        if text.contains("secret-file") && who.role != Role::Administrator {
            return Err(Error::new(Code::from("forbidden"), "not for you"));
        }
        match text.contains("wrong") {
            true => Err(Error::new(Code::Invalid, "lunet.toml:1: x: is not a key")),
            false => Ok(Preview::default()),
        }
    }

    fn write(&self, _: &Principal, text: Zeroizing<String>) -> Result<Done, Error> {
        *self.pending.lock().unwrap() = Some(text.to_string());
        Ok(Done { done: "written".into(), ..Done::default() })
    }

    fn ready(&self) -> Vec<String> {
        self.asked.fetch_add(1, Ordering::AcqRel);
        self.wait();
        match self.ready.load(Ordering::Acquire) {
            true => Vec::new(),
            false => vec!["not served: volume vm1".into()],
        }
    }

    fn refused(&self) -> Vec<RefusedLogin> {
        vec![RefusedLogin { initiator: "iqn.b:y".into(), ..RefusedLogin::default() }]
    }
}

/// An interface in front of the fake server.
pub struct Server {
    pub address: SocketAddr,
    pub fingerprint: Option<String>,
    pub fake: Arc<Fake>,
    pub folder: TempDir,
    /// The last number of entries of the audit log that are said to be written.
    pub written: Arc<Mutex<u64>>,
    pub control: Option<Control>,
}

/// How a test wants it.
#[derive(Default)]
pub struct Wanted {
    /// Where it listens; a free port of 127.0.0.1 if left out.
    pub address: Option<&'static str>,
    pub limits: Limits,
    pub program: Option<std::path::PathBuf>,
    pub folder: Option<TempDir>,
    pub names: Vec<String>,
    /// Unix sockets in the folder, and what those may do who use them.
    pub local: &'static [(&'static str, Role)],
}

pub fn start(wanted: Wanted) -> Server {
    let folder = wanted.folder.unwrap_or_else(|| TempDir::new().unwrap());
    let address = wanted.address.unwrap_or("127.0.0.1:0").parse().unwrap();
    let listeners = Listeners { addresses: vec![address], certificate: None };
    let mut bound = Bound::new(&listeners, &wanted.names, &folder.path().join("control")).unwrap();
    for (name, role) in wanted.local {
        let socket = UnixListener::bind(folder.path().join(name)).unwrap();
        bound = bound.and_local(socket, *role).unwrap();
    }
    let address = bound.addresses()[0];
    let fingerprint = bound.fingerprint().map(str::to_owned);
    let (notifier, notices) = notifier();
    let fake = Arc::new(Fake {
        changes: Mutex::default(),
        size: Mutex::new(1 << 30),
        text: Mutex::new("[server]\n".into()),
        pending: Mutex::default(),
        initiators: Mutex::default(),
        shared: Mutex::default(),
        outpaced: AtomicBool::new(false),
        orders: Mutex::default(),
        hangs: Mutex::new(false),
        wake: Condvar::new(),
        notifier: notifier.clone(),
        ready: AtomicBool::new(true),
        asked: AtomicUsize::new(0),
    });
    let written: Arc<Mutex<u64>> = Arc::default();
    let writes = Arc::clone(&written);
    let options = Options {
        directory: folder.path().join("control"),
        names: wanted.names,
        program: wanted.program,
        environment: Vec::new(),
        limits: wanted.limits,
        user: Box::new(|uid| Some(format!("user{uid}"))),
        written: Box::new(move |last| *writes.lock().unwrap() = last),
    };
    let service = Arc::clone(&fake);
    let control = Control::start(bound, options, service, (notifier, notices)).unwrap();
    Server { address, fingerprint, fake, folder, written, control: Some(control) }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.fake.hang(false);
        // Before its folder goes: in the end it writes once more when tokens were last used.
        drop(self.control.take());
    }
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn json(&self) -> Value {
        let text = || String::from_utf8_lossy(&self.body).into_owned();
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", text()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// Sends bytes as they are; `None` if the connection ends without an answer.
pub fn raw(address: SocketAddr, bytes: &[u8]) -> Option<Reply> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A server that refuses early does not read the rest.
    let _ = stream.write_all(bytes);
    answer(&mut stream)
}

/// The answer on a connection.
pub fn answer(stream: &mut impl Read) -> Option<Reply> {
    let mut all = Vec::new();
    let mut chunk = [0; 65536];
    loop {
        if let Some(reply) = whole(&all) {
            return Some(reply);
        }
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => all.extend_from_slice(&chunk[..n]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => panic!("no answer: {error}"),
        }
    }
    whole(&all).or_else(|| {
        assert!(all.is_empty(), "half an answer: {}", String::from_utf8_lossy(&all));
        None
    })
}

fn whole(bytes: &[u8]) -> Option<Reply> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1)?.parse().unwrap();
    let mut reply = Reply { status, head, body: Vec::new() };
    let length: usize = reply.header("content-length").map_or(0, |n| n.parse().unwrap());
    let body = bytes.get(end + 4..end + 4 + length)?;
    reply.body = body.to_vec();
    Some(reply)
}

/// A request to be sent.
#[derive(Clone)]
pub struct Ask {
    address: SocketAddr,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
}

impl Server {
    pub fn ask(&self, method: &str, path: &str) -> Ask {
        let headers = vec![("Host".to_owned(), self.address.to_string())];
        let (method, path) = (method.to_owned(), path.to_owned());
        Ask { address: self.address, method, path, headers, body: None }
    }

    pub fn get(&self, path: &str) -> Ask {
        self.ask("GET", path)
    }

    /// Makes the first account, and logs in.
    pub fn begin(&self) -> Login {
        let code = self.control.as_ref().unwrap().code().expect("there is no account");
        let body = json!({"code": code, "name": "root", "password": "a good password"});
        let reply = self.ask("POST", "/api/v1/first-start").json(&body).send();
        assert_eq!(reply.status, 200, "{reply:?}");
        Login::of(&reply)
    }

    /// A token of this role.
    pub fn token(&self, login: &Login, role: &str, seconds: u64) -> (String, String) {
        let body = json!({"name": format!("t-{role}"), "role": role, "expires_seconds": seconds});
        let reply = self.ask("POST", "/api/v1/tokens").by(login).json(&body).send();
        assert_eq!(reply.status, 201, "{reply:?}");
        let made = reply.json();
        let text = |key: &str| made[key].as_str().unwrap().to_owned();
        (text("id"), text("token"))
    }

    /// The lines of the audit log, once there are so many.
    pub fn audit(&self, lines: usize) -> Vec<Value> {
        let path = self.folder.path().join("control/audit.jsonl");
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        until(|| (read(&path).lines().count() >= lines).then_some(()));
        read(&path).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Waits until there is something.
pub fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "it does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A session.
#[derive(Clone)]
pub struct Login {
    pub cookie: String,
    pub csrf: String,
}

impl Login {
    pub fn of(reply: &Reply) -> Self {
        let cookie = reply.header("set-cookie").expect("a cookie");
        let cookie = cookie.split(';').next().unwrap().to_owned();
        Self { cookie, csrf: reply.json()["csrf"].as_str().unwrap().to_owned() }
    }
}

impl Ask {
    /// Adds a header, in place of one of this name.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds a header beside those that there are.
    pub fn also(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        self
    }

    pub fn by(self, login: &Login) -> Self {
        self.with("Cookie", &login.cookie).with("X-Lunet-CSRF", &login.csrf)
    }

    pub fn bearer(self, token: &str) -> Self {
        self.with("Authorization", &format!("Bearer {token}"))
    }

    pub fn json(self, body: &Value) -> Self {
        self.body("application/json", body.to_string().as_bytes())
    }

    pub fn body(mut self, media: &str, body: &[u8]) -> Self {
        self.body = Some(body.to_vec());
        self.with("Content-Type", media)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        let told = self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        let body = self.body.clone().unwrap_or_default();
        if !told && self.method != "GET" {
            let _ = write!(head, "Content-Length: {}\r\n", body.len());
        }
        head.push_str("Connection: close\r\n\r\n");
        [head.into_bytes(), body].concat()
    }

    pub fn send(&self) -> Reply {
        raw(self.address, &self.bytes()).expect("an answer")
    }

    /// The same over a Unix socket.
    pub fn send_to(&self, socket: &Path) -> Reply {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&self.bytes()).unwrap();
        answer(&mut stream).expect("an answer")
    }

    pub fn try_send(&self) -> Option<Reply> {
        raw(self.address, &self.bytes())
    }
}
