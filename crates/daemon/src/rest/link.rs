//! What a server and the process of its REST interface say to each other, over a pair of sockets ([`talk`](crate::talk)).

use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use lunet_api::{
    Answer, Configuration, Done, Error, Group, GroupConfig, GroupGateway, Portal, Preview, Request,
    Session, Snapshot, Stats, Target, Volume,
};
use lunet_control::{AuditEntry, RefusedLogin, Role};
use serde::{Deserialize, Serialize};

use lunet_config::LogLevel;

pub use crate::talk::{receive, receive_sockets, send, send_sockets};

/// What the server says.
#[derive(Debug, Serialize, Deserialize)]
pub enum Down {
    /// The first thing that it says.
    Setup(Box<Setup>),
    /// The answer to the question of this number.
    Reply(u64, Box<Reply>),
    /// Lists of this kind are different now.
    Changed(Vec<String>),
    /// Something for the audit log, with its number. It comes again if the process before has not said that it is written.
    Entry(u64, AuditEntry),
}

/// What the process of the interface says.
#[derive(Debug, Serialize, Deserialize)]
pub enum Up {
    /// It serves. The code of the first start, while there is no account.
    Started(Option<String>),
    /// It cannot serve, and ends.
    Failed(String),
    /// The entries of the audit log up to this number are on stable storage.
    Written(u64),
    /// A question, and its number.
    Ask(u64, Box<Ask>),
}

/// What the process needs to know. The sockets come before it, in the order of addresses and roles.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    pub addresses: Vec<SocketAddr>,
    /// What those may do who can use the Unix sockets.
    pub roles: Vec<Role>,
    /// Files of the certificate and its key.
    pub certificate: Option<(Text, Text)>,
    pub names: Vec<String>,
    pub directory: Text,
    pub program: Option<Text>,
    /// The data directory of the server.
    pub data: Text,
    pub log_level: LogLevel,
}

/// A text of the operating system, which need not be UTF-8.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Text(Vec<u8>);

impl Text {
    pub fn of(text: impl AsRef<OsStr>) -> Self {
        Self(text.as_ref().as_bytes().to_vec())
    }

    pub fn to_path(&self) -> PathBuf {
        OsStr::from_bytes(&self.0).into()
    }
}

/// A question: a method of [`Service`](lunet_control::Service).
#[derive(Debug, Serialize, Deserialize)]
pub enum Ask {
    Answer { who: String, address: Option<IpAddr>, request: Box<Request> },
    Check { text: String, administrator: bool },
    Write { who: String, text: String },
    Ready,
    Refused,
}

/// The answer to a question.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    Answer(Result<Told, Error>),
    Check(Result<Preview, Error>),
    Write(Result<Done, Error>),
    Ready(Vec<String>),
    Refused(Vec<RefusedLogin>),
    /// There is no answer.
    None,
}

/// An [`Answer`] that says which it is: by itself it leaves that to whoever has asked.
#[derive(Debug, Serialize, Deserialize)]
pub struct Told(#[serde(with = "Tagged")] pub Answer);

/// The form of an [`Answer`] in a [`Told`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Answer")]
enum Tagged {
    Sessions(Vec<Session>),
    Stats(Box<Stats>),
    Volumes(Vec<Volume>),
    Snapshots(Vec<Snapshot>),
    Targets(Vec<Target>),
    Portals(Vec<Portal>),
    Config(Box<Configuration>),
    Groups(Vec<Group>),
    Gateways(Vec<GroupGateway>),
    GroupConfig(GroupConfig),
    Done(Done),
    Preview(Preview),
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn messages_and_sockets_arrive_as_they_were_sent() {
        let (here, there) = UnixStream::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        send_sockets(&here, &[listener.into()]).unwrap();
        let ask = Ask::Answer {
            who: "anna (session)".into(),
            address: Some([127, 0, 0, 1].into()),
            request: Box::new(Request::Snapshots { volume: Some("a".into()) }),
        };
        send(&here, &Up::Ask(7, Box::new(ask))).unwrap();
        let sockets = receive_sockets(&there).unwrap();
        let [socket] = <[OwnedFd; 1]>::try_from(sockets).unwrap();
        assert_eq!(TcpListener::from(socket).local_addr().unwrap(), address);
        let Up::Ask(7, ask) = receive(&there).unwrap() else { panic!("another message") };
        let Ask::Answer { request, .. } = *ask else { panic!("another question") };
        assert_eq!(*request, Request::Snapshots { volume: Some("a".into()) });
        drop(here);
        assert!(receive::<Up>(&there).is_err());
    }

    #[test]
    fn each_answer_is_the_same_after_its_way() {
        let answers = [
            Answer::Sessions(vec![Session::default()]),
            Answer::Stats(Box::default()),
            Answer::Volumes(vec![Volume::default()]),
            Answer::Snapshots(Vec::new()),
            Answer::Targets(vec![Target::default()]),
            Answer::Portals(vec![Portal::default()]),
            Answer::Config(Box::default()),
            Answer::Groups(vec![Group::default()]),
            Answer::Gateways(vec![GroupGateway::default()]),
            Answer::GroupConfig(GroupConfig::default()),
            Answer::Done(Done::default()),
            Answer::Preview(Preview::default()),
        ];
        let (here, there) = UnixStream::pair().unwrap();
        for answer in answers {
            send(&here, &Told(answer.clone())).unwrap();
            let told: Told = receive(&there).unwrap();
            assert_eq!(told.0, answer);
        }
    }

    #[test]
    fn paths_need_not_be_text() {
        let path = PathBuf::from(OsStr::from_bytes(&[b'/', 0xff, b'a']));
        let json = serde_json::to_vec(&Text::of(&path)).unwrap();
        assert_eq!(serde_json::from_slice::<Text>(&json).unwrap().to_path(), path);
    }
}
