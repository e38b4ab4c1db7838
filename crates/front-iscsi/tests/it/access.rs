//! An initiator sees and reaches what is its own, and nothing else.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use lunet_backends::Volume;
use lunet_front_iscsi::{
    Access, Config, Guard, Initiators, Layout, Server, TargetEntry, User, VolumeEntry,
};
use lunet_iscsi::chap::{Account, Algorithms, Secret};
use lunet_iscsi::initiator::{Chap, ChapError, Data, Error, Mutual, Options};
use lunet_iscsi::pdu::{TmfFunction, TmfResponse};
use lunet_scsi::{Identity, Unit};
use lunet_server::Network;
use lunet_volume::Health;

use crate::support::client::Client;
use crate::support::{TARGET, config, memory, on_each_driver, start};

const OTHER: &str = "iqn.2026-11.local.lunet:other";
const A: &str = "iqn.2026-11.local.lunet:host-a";
const B: &str = "iqn.2026-11.local.lunet:host-b";

fn account(name: &str, secret: &str) -> Account {
    Account { name: name.into(), secret: Secret::new(secret.as_bytes().to_vec()) }
}

fn alice() -> Account {
    account("alice", "the secret of alice")
}

fn names(names: &[&str]) -> Initiators {
    let mut set = Initiators::default();
    names.iter().for_each(|name| set.add_name(name));
    set
}

fn from(address: &str, bits: u8) -> Access {
    let mut initiators = Initiators::default();
    let address = address.parse().expect("an address");
    initiators.add_network(Network::new(address, bits).expect("it fits"));
    Access { initiators, ..Access::default() }
}

/// CHAP for Alice, and for Bob on host B only.
fn guarded(mutual: bool) -> Access {
    let user = |account, initiators| User { account, initiators };
    let users = vec![
        user(alice(), Initiators::default()),
        user(account("bob", "the secret of bob"), names(&[B])),
    ];
    let mutual = mutual.then(|| account("storage", "the secret of the target"));
    let guard = Guard { algorithms: Algorithms::ALL, users, mutual };
    Access { guard: Some(guard), ..Access::default() }
}

/// Two volumes as LUNs 0 and 1 of a target, and another target.
fn layout(volumes: &[Volume; 2], access: Access, discovery: Access) -> Layout {
    let entry = |(n, volume): (usize, &Volume)| VolumeEntry {
        name: format!("v{n}"),
        volume: Arc::clone(volume),
        unit: Unit::new(Identity::from_seed(&format!("test {n}")), volume.caps().clone()),
        health: Health::new("v"),
        path: None,
        reservations: None,
    };
    let target = |name: &str, luns, access| TargetEntry {
        name: name.into(),
        luns,
        access,
        ..TargetEntry::default()
    };
    Layout {
        groups: vec![],
        volumes: volumes.iter().enumerate().map(entry).collect(),
        targets: vec![
            target(TARGET, vec![(0, 0), (1, 1)], access),
            target(OTHER, vec![(0, 1)], from("192.0.2.0", 24)),
        ],
        discovery,
        ..Layout::default()
    }
}

fn serve(access: Access, discovery: Access) -> (Server, SocketAddr, [Volume; 2]) {
    let volumes = [memory(1), memory(1)];
    let layout = layout(&volumes, access, discovery);
    let config = Config { layout, ..config(vec![], lunet_ring::DriverChoice::Auto) };
    let (server, address) = start(config);
    (server, address, volumes)
}

fn as_host(name: &str) -> Options {
    Options { initiator_name: name.into(), ..Client::options() }
}

fn with_chap(options: Options, account: Account, mutual: Option<&str>) -> Options {
    let mutual = mutual.map(|secret| Mutual {
        account: self::account("storage", secret),
        id: 3,
        challenge: vec![0x3c; 32],
    });
    Options { chap: Some(Chap { account, algorithms: Algorithms::ALL, mutual }), ..options }
}

fn refused(status: u16) -> Option<Error> {
    Some(Error::LoginRefused { status, address: None })
}

#[test]
fn chap_opens_a_target_in_one_direction_and_in_both() {
    let (server, address, _) = serve(guarded(true), Access::default());
    let login = |options| Client::try_login(address, options).err();
    assert_eq!(login(with_chap(as_host(A), alice(), None)), None);
    let right = Some("the secret of the target");
    assert_eq!(login(with_chap(as_host(A), alice(), right)), None);
    let wrong = Some("the secret of a thief");
    let error = login(with_chap(as_host(A), alice(), wrong));
    assert_eq!(error, Some(Error::Chap(ChapError::Target)));
    // A name is bound to its initiators.
    let bob = || account("bob", "the secret of bob");
    assert_eq!(login(with_chap(as_host(B), bob(), None)), None);
    assert_eq!(login(with_chap(as_host(A), bob(), None)), refused(0x0201));
    assert_eq!(login(as_host(A)), refused(0x0201));
    assert_eq!(login(Options { skip_security: true, ..as_host(A) }), refused(0x0201));
    let stats = server.handle().stats().protocol;
    assert_eq!((stats.logins, stats.login_failures, stats.login_auth_failures), (3, 3, 3));
}

#[test]
fn who_guesses_has_to_wait_and_others_do_not() {
    let (server, address, _) = serve(guarded(false), guarded(false));
    let login = |options| Client::try_login(address, options).err();
    let wrong = || with_chap(as_host(A), account("alice", "the secret of mallory"), None);
    for _ in 0..5 {
        assert_eq!(login(wrong()), refused(0x0201));
    }
    assert_eq!(login(wrong()), refused(0x0301));
    // Not even the right secret is looked at now,
    assert_eq!(login(with_chap(as_host(A), alice(), None)), refused(0x0301));
    // but for something else it is.
    let discovery = Options { target_name: None, ..as_host(A) };
    assert_eq!(login(with_chap(discovery.clone(), alice(), None)), None);
    assert_eq!(login(discovery), refused(0x0201));
    // Names of targets cannot be guessed without end either.
    let unknown = |n: u8| Options {
        target_name: Some(format!("iqn.2026-11.local.lunet:x{n}")),
        ..as_host(A)
    };
    let answers: Vec<_> = (0..7).map(|n| login(unknown(n))).collect();
    assert_eq!(answers[..5], vec![refused(0x0203); 5]);
    assert_eq!(answers[5..], vec![refused(0x0301); 2]);
    let stats = server.handle().stats().protocol;
    assert_eq!((stats.login_auth_failures, stats.login_not_found), (6, 5));
    assert_eq!((stats.login_throttled, stats.login_failures), (4, 15));
}

/// Many connections at a time do not buy more guesses than one after the other.
#[test]
fn guesses_at_one_time_count_as_well() {
    let (server, address, _) = serve(guarded(false), Access::default());
    std::thread::scope(|scope| {
        for n in 0..40 {
            scope.spawn(move || {
                let guess = account("alice", &format!("a wrong secret {n}"));
                let error = Client::try_login(address, with_chap(as_host(A), guess, None)).err();
                assert!(error == refused(0x0201) || error == refused(0x0301), "{error:?}");
            });
        }
    });
    let stats = server.handle().stats().protocol;
    assert_eq!(stats.login_auth_failures + stats.login_throttled, 40);
    // Each of the two shards may be at one when the other learns of the fifth, and while time
    // passes there are more to be had.
    assert!((5..=8).contains(&stats.login_auth_failures), "{stats:?}");
}

#[test]
fn a_target_of_others_is_not_there() {
    let access = Access { initiators: names(&["*:host-a"]), ..Access::default() };
    let (server, address, _) = serve(access, Access::default());
    let login = |options| Client::try_login(address, options).err();
    assert_eq!(login(as_host(A)), None);
    assert_eq!(login(as_host(B)), refused(0x0203));
    let other = Options { target_name: Some(OTHER.into()), ..as_host(A) };
    assert_eq!(login(other), refused(0x0203));
    let discover = |name: &str| {
        let options = Options { target_name: None, ..as_host(name) };
        Client::try_login(address, options).expect("it is for everybody").targets()
    };
    assert_eq!(discover(A), [TARGET]);
    assert_eq!(discover(B), [""; 0]);
    drop(server);
    // Discovery that is not for everybody hides nothing: it says so.
    let (server, address, _) = serve(Access::default(), from("192.0.2.1", 32));
    let options = Options { target_name: None, ..as_host(A) };
    assert_eq!(Client::try_login(address, options).err(), refused(0x0202));
    assert_eq!(Client::try_login(address, as_host(A)).err(), None);
    assert_eq!(server.handle().stats().protocol.login_forbidden, 1);
}

/// Status and sense of TEST UNIT READY.
fn state(client: &mut Client, lun: u16) -> (u8, u8) {
    let answer = client.finish(lun, &[0; 6], Data::None);
    if answer.sense.len() >= 14 { (answer.sense[12], answer.sense[13]) } else { (0, 0) }
}

const READY: (u8, u8) = (0, 0);
const POWER_ON: (u8, u8) = (0x29, 0x00);
const LUNS_CHANGED: (u8, u8) = (0x3f, 0x0e);
const NO_SUCH_LUN: (u8, u8) = (0x25, 0x00);

fn luns(client: &mut Client) -> Vec<u8> {
    let mut cdb = [0; 12];
    (cdb[0], cdb[9]) = (0xa0, 255);
    let tag = client.start(0, &cdb, Data::Read(vec![0; 255]));
    let Data::Read(data) = client.outcome(tag).data else { panic!("no data") };
    let len = usize::from(data[3]);
    data[8..8 + len].chunks(8).map(|lun| lun[1]).collect()
}

#[test]
fn a_hidden_lun_is_not_there() {
    on_each_driver(|driver| {
        let volumes = [memory(1), memory(1)];
        let masked = Access { luns: vec![(1, names(&[A]))], ..Access::default() };
        let layout = |access| layout(&volumes, access, Access::default());
        let config = Config { layout: layout(masked), ..config(vec![], driver) };
        let (server, address) = start(config);
        let mut a = Client::try_login(address, as_host(A)).expect("it may");
        let mut b = Client::try_login(address, as_host(B)).expect("it may");
        assert_eq!((luns(&mut a), luns(&mut b)), (vec![0, 1], vec![0]));
        assert_eq!((state(&mut a, 0), state(&mut a, 0)), (POWER_ON, READY));
        assert_eq!((state(&mut a, 1), state(&mut a, 1)), (POWER_ON, READY));
        assert_eq!(a.write(1, 5, vec![7; 512]), 0);
        // A LUN that does not exist looks the same.
        assert_eq!((state(&mut b, 1), state(&mut b, 2)), (NO_SUCH_LUN, NO_SUCH_LUN));
        assert_eq!(b.write(1, 5, vec![1; 512]), 2);
        assert_eq!(b.read(1, 5, 1).0, 2);
        for lun in [1, 2] {
            let answer = b.manage(TmfFunction::LogicalUnitReset, lun, None);
            assert_eq!(answer, TmfResponse::LunDoesNotExist);
            let inquiry = [0x12, 0, 0, 0, 36, 0];
            let tag = b.start(lun, &inquiry, Data::Read(vec![0; 36]));
            let Data::Read(data) = b.outcome(tag).data else { panic!("no data") };
            assert_eq!(data[0], 0x7f, "no device can be there");
        }
        assert_eq!(a.read(1, 5, 1).1, vec![7; 512]);
        // While sessions run, what they see changes hands.
        let other = Access { luns: vec![(1, names(&[B]))], ..Access::default() };
        server.handle().apply(layout(other)).expect("it changes");
        assert_eq!((state(&mut a, 1), state(&mut a, 0)), (NO_SUCH_LUN, LUNS_CHANGED));
        assert_eq!((luns(&mut a), luns(&mut b)), (vec![0], vec![0, 1]));
        assert_eq!((state(&mut b, 1), b.read(1, 5, 1).1), (POWER_ON, vec![7; 512]));
        // And who may not stay is asked to leave.
        let only_b = Access { initiators: names(&[B]), ..Access::default() };
        server.handle().apply(layout(only_b)).expect("it changes");
        assert!(a.is_closed_by_server());
        assert_eq!(luns(&mut b), [0, 1]);
        assert!(server.stop(Duration::ZERO).flushed);
    });
}

#[test]
fn a_session_goes_with_its_user() {
    let (server, address, volumes) = serve(guarded(false), Access::default());
    let apply = |access| server.handle().apply(layout(&volumes, access, Access::default()));
    let chap = |account| with_chap(as_host(B), account, None);
    let isid = [0x80, 0, 0, 0, 0, 9];
    let mut alices = Client::try_login(address, chap(alice())).expect("it may");
    let bob = account("bob", "the secret of bob");
    let mut bobs = Client::try_login(address, Options { isid, ..chap(bob) }).expect("it may");
    let users = || {
        let mut users: Vec<_> = server.handle().sessions().into_iter().map(|s| s.user).collect();
        users.sort();
        users
    };
    assert_eq!(users(), [Some("alice".to_owned()), Some("bob".to_owned())]);
    // Nobody expects RDMA on a loopback address: nothing is said about it.
    let ways: Vec<_> = server.handle().sessions().into_iter().filter_map(|s| s.tcp).collect();
    assert_eq!(ways.len(), 2);
    assert!(ways.iter().all(|way| !way.rdma_offered && way.why.is_none()), "{ways:?}");
    let portal = server.handle().stats().portals.remove(0);
    assert_eq!((portal.tcp, portal.rdma, portal.why), (true, false, None));
    assert_eq!(portal.reason, Some(lunet_server::Reason::SwitchedOff));
    // A user that is gone is asked to leave.
    let mut access = guarded(false);
    access.guard.as_mut().expect("there is one").users.truncate(1);
    apply(access.clone()).expect("it changes");
    assert!(bobs.is_closed_by_server());
    assert_eq!((state(&mut alices, 0), users()), (POWER_ON, vec![Some("alice".to_owned())]));
    // So is one who has proved to know what is no secret any more.
    let guard = access.guard.as_mut().expect("there is one");
    guard.users[0].account = account("alice", "the next secret of alice");
    apply(access).expect("it changes");
    assert!(alices.is_closed_by_server());
    let old = Client::try_login(address, Options { isid, ..chap(alice()) }).err();
    assert_eq!(old, refused(0x0201));
    assert!(server.stop(Duration::ZERO).flushed);
}

/// Who came before there was something to prove has not proved it.
#[test]
fn a_session_without_chap_ends_when_chap_is_asked_for() {
    let (server, address, volumes) = serve(Access::default(), Access::default());
    let apply = |layout| server.handle().apply(layout).expect("it changes");
    let rules = |access, discovery| layout(&volumes, access, discovery);
    let isid = [0x80, 0, 0, 0, 0, 9];
    let mut plain = Client::try_login(address, as_host(A)).expect("it may");
    let finder = Options { target_name: None, isid, ..as_host(A) };
    let mut finder = Client::try_login(address, finder).expect("it may");
    apply(Layout { keep_sessions: true, ..rules(guarded(false), guarded(false)) });
    assert_eq!(state(&mut plain, 0), POWER_ON, "kept on request");
    assert_eq!(finder.targets(), [TARGET]);
    // What does not concern these rules does not end what was kept.
    let mut more = rules(guarded(false), guarded(false));
    more.targets[1].luns.clear();
    apply(more);
    assert_eq!(state(&mut plain, 0), READY, "still kept");
    assert_eq!(finder.targets(), [TARGET]);
    // Rules that are new count.
    let mut access = guarded(false);
    access.guard.as_mut().expect("there is one").users.truncate(1);
    apply(rules(access.clone(), access));
    assert!(plain.is_closed_by_server() && finder.is_closed_by_server());
    assert!(server.stop(Duration::ZERO).flushed);
}

/// A login request of one session, with the stages in `flags` and these keys.
fn login_request(flags: u8, keys: &[&str]) -> Vec<u8> {
    let text: String = keys.iter().map(|key| format!("{key}\0")).collect();
    let mut pdu = vec![0; 48];
    (pdu[0], pdu[1], pdu[7], pdu[8], pdu[13]) = (0x43, flags, text.len() as u8, 0x80, 5);
    pdu.extend(text.as_bytes());
    pdu.resize(pdu.len().next_multiple_of(4), 0);
    pdu
}

/// The stages and the status of the next login response.
fn login_response(stream: &mut TcpStream) -> (u8, u16) {
    let mut header = [0; 48];
    stream.read_exact(&mut header).expect("a response");
    let length = usize::from(header[7]).next_multiple_of(4);
    stream.read_exact(&mut vec![0; length]).expect("its text");
    (header[1], u16::from_be_bytes([header[36], header[37]]))
}

#[test]
fn a_login_under_way_is_held_to_the_rules_of_its_end() {
    let (server, address, volumes) = serve(Access::default(), Access::default());
    let name = format!("InitiatorName={A}");
    for (target, kind) in [(Some(TARGET), "Normal"), (None, "Discovery")] {
        let open = layout(&volumes, Access::default(), Access::default());
        server.handle().apply(open).expect("it changes");
        let mut stream = TcpStream::connect(address).expect("the server listens");
        let target = target.map(|target| format!("TargetName={target}"));
        let kind = format!("SessionType={kind}");
        let mut keys = vec![&*name, &*kind, "AuthMethod=None"];
        keys.extend(target.as_deref());
        stream.write_all(&login_request(0x81, &keys)).expect("sent");
        assert_eq!(login_response(&mut stream), (0x81, 0), "nothing has to be proved yet");
        let closed = layout(&volumes, guarded(false), guarded(false));
        server.handle().apply(closed).expect("it changes");
        stream.write_all(&login_request(0x87, &["HeaderDigest=None"])).expect("sent");
        assert_eq!(login_response(&mut stream).1, 0x0201, "{kind}");
    }
    assert_eq!(server.handle().sessions().len(), 0);
    assert!(server.stop(Duration::ZERO).flushed);
}

#[test]
fn sessions_are_ended_by_their_handles() {
    let (server, address, _) = serve(Access::default(), Access::default());
    let isid = [0x80, 0, 0, 0, 0, 9];
    let mut a = Client::try_login(address, as_host(A)).expect("it may");
    let mut b = Client::try_login(address, as_host(B)).expect("it may");
    let finder = Options { target_name: None, isid, ..as_host(A) };
    let mut finder = Client::try_login(address, finder).expect("it may");
    let handle = server.handle();
    let all = handle.all_sessions().expect("every shard answers");
    let handles: Vec<u16> = all.iter().filter(|s| s.initiator == A).map(|s| s.tsih).collect();
    assert_eq!((all.len(), handles.len()), (3, 2));
    handle.end_sessions(&handles).expect("every shard is told");
    assert!(a.is_closed_by_server() && finder.is_closed_by_server());
    assert_eq!((state(&mut b, 0), state(&mut b, 0)), (POWER_ON, READY));
    assert!(server.stop(Duration::ZERO).flushed);
}

#[test]
fn addresses_decide_too() {
    let loopback: IpAddr = [127, 0, 0, 1].into();
    for (network, bits, status) in [
        ("127.0.0.0", 8, None),
        (&*loopback.to_string(), 32, None),
        ("127.0.0.2", 32, refused(0x0203)),
        ("::1", 128, refused(0x0203)),
        ("0.0.0.0", 0, None),
    ] {
        let (_server, address, _) = serve(from(network, bits), Access::default());
        assert_eq!(Client::try_login(address, as_host(A)).err(), status, "{network}/{bits}");
    }
}
