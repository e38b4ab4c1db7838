//! Every unauthorised try, and what came back.

use anyhow::{Context, Result, bail, ensure};
use lunet_e2e::wire::handshake::{
    Challenge, Chap, Handshake, SECURITY, TO_FULL_FEATURE, TO_OPERATIONAL, hex,
};
use lunet_e2e::wire::{Login, Pdu, Session, opcode, scsi};

use super::{ALICE, BOB, FINDER, GUARDED, HOST_B, LISTED, NEARBY, STORAGE, STRONG};

/// A try with a login of its own.
type Try = fn(&Login<'_>) -> Result<String>;

/// The tries, in the words of the page.
pub const TRIES: &[(&str, Try)] = &[
    ("A CHAP name that nobody has", |l| chap(l, Chap::new("mallory", ALICE.1))),
    ("The right name with a wrong secret", |l| chap(l, Chap::new(ALICE.0, "a wrong secret"))),
    ("The right name with another user's secret", |l| chap(l, Chap::new(ALICE.0, BOB.1))),
    ("Name and secret of a user that is for other initiators", |l| {
        chap(l, Chap::new(BOB.0, BOB.1))
    }),
    ("The target's own name and secret (mutual CHAP)", |l| {
        chap(l, Chap::new(STORAGE.0, STORAGE.1))
    }),
    ("The discovery user's name and secret, at a target", |l| {
        chap(l, Chap::new(FINDER.0, FINDER.1))
    }),
    ("No authentication: `AuthMethod=None`", |l| first(l, TO_OPERATIONAL, &["AuthMethod=None"])),
    ("No security negotiation at all", |l| first(l, TO_FULL_FEATURE, &[])),
    ("Security negotiation left without authentication", |l| first(l, TO_OPERATIONAL, &[])),
    ("Security negotiation left in the middle of CHAP", left_in_the_middle),
    ("A SCSI command before the login is complete", early_command),
    ("Only a weak algorithm (MD5), where the target wants SHA-256", weak_algorithm),
    ("A downgrade: the list of algorithms turned round, weak ones first", turned_round),
    ("A downgrade: `CHAP_A` a second time, with MD5", |l| {
        after_challenge(l, |_| vec!["CHAP_A=5".into()])
    }),
    ("A response that was recorded on another connection (replay)", replayed),
    ("The response to one connection's challenge, on another at the same time", crossed),
    ("The target's own challenge sent back to it (reflection)", |l| after_challenge(l, reflected)),
    ("Mutual CHAP where the target has no secret for it", |l| {
        let login = Login { target: Some(STRONG), ..l.clone() };
        chap(&login, Chap { target: Some(STORAGE), ..Chap::new(ALICE.0, ALICE.1) })
    }),
    ("A response before the challenge", |l| {
        first(l, SECURITY, &["AuthMethod=CHAP", "CHAP_N=alice", "CHAP_R=0x00"])
    }),
    ("A response of the wrong length", |l| after_challenge(l, |_| named("0x00"))),
    ("A response of more than 1024 bytes", |l| after_challenge(l, |_| named(&hex(&[0; 1025])))),
    ("A response that is no binary value", |l| after_challenge(l, |_| named("0x0"))),
    ("An empty name and an empty response", |l| {
        after_challenge(l, |_| vec!["CHAP_N=".into(), "CHAP_R=".into()])
    }),
    ("After authentication: another initiator's name", |l| {
        changed(l, &format!("InitiatorName={HOST_B}"))
    }),
    ("After authentication: another target's name", |l| {
        changed(l, &format!("TargetName={STRONG}"))
    }),
    ("After authentication: another type of session", |l| changed(l, "SessionType=Discovery")),
    ("A target that does not exist", |l| at(l, "iqn.2026-11.local.lunet:none")),
    ("A target that is for other initiators, by their names", |l| {
        at(&Login { initiator: HOST_B, ..l.clone() }, LISTED)
    }),
    ("A target that is for other addresses", |l| at(l, NEARBY)),
    ("Discovery without a secret", |l| {
        first(&Login { target: None, ..l.clone() }, TO_FULL_FEATURE, &[])
    }),
    ("Discovery with the secret of a target", |l| {
        chap(&Login { target: None, ..l.clone() }, Chap::new(ALICE.0, ALICE.1))
    }),
    ("Discovery from an address that it is not for", |l| {
        let from = Some(std::net::Ipv4Addr::new(127, 1, 0, 1));
        let login = Login { target: None, from, ..l.clone() };
        chap(&login, Chap::new(FINDER.0, FINDER.1))
    }),
    ("Discovery, for targets of others", targets_of_others),
    ("In a session: `SendTargets` for another target", other_target),
    ("In a session: REPORT LUNS, for a hidden LUN", |l| {
        let mut session = host_b(l)?;
        let answer = settled(&mut session, 0, &REPORT_LUNS, 64)?;
        ensure!(answer.data.get(3) == Some(&8), "{answer:?}");
        Ok("not listed".into())
    }),
    ("In a session: INQUIRY of a hidden LUN", |l| {
        let answer = settled(&mut host_b(l)?, 1, &[0x12, 0, 0, 0, 36, 0], 36)?;
        ensure!(answer.data.first() == Some(&0x7f), "{answer:?}");
        Ok("peripheral `7F`: there cannot be a device".into())
    }),
    ("In a session: READ of a hidden LUN", |l| sense(l, &scsi::read16(0, 1), 512, &[])),
    ("In a session: WRITE to a hidden LUN", |l| sense(l, &scsi::write16(0, 1), 0, &[1; 512])),
    ("In a session: PERSISTENT RESERVE IN of a hidden LUN", |l| {
        sense(l, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 64, 0], 64, &[])
    }),
    ("In a session: a LUN that does not exist", |l| {
        let answer = settled(&mut host_b(l)?, 9, &scsi::read16(0, 1), 512)?;
        described(&answer)
    }),
    ("More than five wrong secrets in a row from one address, then the right one", guessing),
    ("More than five wrong names of targets in a row from one address", scanning),
];

const REPORT_LUNS: [u8; 12] = [0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0];

/// A status in the words of RFC 7143, 11.13.5.
fn words(status: u16) -> Result<String> {
    Ok(match status {
        0x0200 => "`0200` initiator error",
        0x0201 => "`0201` authentication failure",
        0x0202 => "`0202` authorization failure",
        0x0203 => "`0203` not found",
        0x020b => "`020b` invalid during login",
        0x0301 => "`0301` service unavailable",
        other => bail!("status {other:04x}"),
    }
    .to_owned())
}

/// A login with these credentials.
fn chap(login: &Login<'_>, chap: Chap<'_>) -> Result<String> {
    words(Handshake::connect(login)?.authenticate(login, &chap)?.status)
}

/// The first request of a login, with these keys behind the names.
fn first(login: &Login<'_>, flags: u8, keys: &[&str]) -> Result<String> {
    let names = login.names();
    let pairs: Vec<&str> = names.iter().map(String::as_str).chain(keys.iter().copied()).collect();
    words(Handshake::connect(login)?.say(flags, &pairs)?.status)
}

fn at(login: &Login<'_>, target: &str) -> Result<String> {
    first(&Login { target: Some(target), ..login.clone() }, TO_FULL_FEATURE, &[])
}

/// What follows the challenge is made from it.
fn after_challenge(login: &Login<'_>, keys: fn(&Challenge) -> Vec<String>) -> Result<String> {
    let mut handshake = Handshake::connect(login)?;
    let asked = Challenge::of(&handshake.challenge(login, "8,7,6,5")?)?;
    let keys = keys(&asked);
    let pairs: Vec<&str> = keys.iter().map(String::as_str).collect();
    words(handshake.say(TO_OPERATIONAL, &pairs)?.status)
}

fn named(response: &str) -> Vec<String> {
    vec![format!("CHAP_N={}", ALICE.0), format!("CHAP_R={response}")]
}

fn reflected(asked: &Challenge) -> Vec<String> {
    let mut keys = named(&asked.response(ALICE.1));
    keys.extend([format!("CHAP_I={}", asked.id), format!("CHAP_C={}", hex(&asked.bytes))]);
    keys
}

fn left_in_the_middle(login: &Login<'_>) -> Result<String> {
    let mut handshake = Handshake::connect(login)?;
    Challenge::of(&handshake.challenge(login, "7")?)?;
    words(handshake.say(TO_OPERATIONAL, &[])?.status)
}

fn early_command(login: &Login<'_>) -> Result<String> {
    let mut handshake = Handshake::connect(login)?;
    Challenge::of(&handshake.challenge(login, "7")?)?;
    let mut command = Pdu::new(opcode::SCSI_COMMAND);
    command.header[32..48].copy_from_slice(&scsi::read16(0, 1));
    command.send(&mut handshake.stream, false, false)?;
    let answer = Pdu::receive(&mut handshake.stream, false, false)?;
    ensure!(answer.opcode() == opcode::LOGIN_RESPONSE);
    words(u16::from_be_bytes([answer.header[36], answer.header[37]]))
}

fn weak_algorithm(login: &Login<'_>) -> Result<String> {
    let login = Login { target: Some(STRONG), ..login.clone() };
    words(Handshake::connect(&login)?.challenge(&login, "5,6")?.status)
}

fn turned_round(login: &Login<'_>) -> Result<String> {
    let asked = Challenge::of(&Handshake::connect(login)?.challenge(login, "5,6,7,8")?)?;
    ensure!(asked.algorithm == 5, "algorithm {}", asked.algorithm);
    Ok("the first that will do (MD5); `chap-algorithms` keeps weak ones out".into())
}

fn replayed(login: &Login<'_>) -> Result<String> {
    let mut first = Handshake::connect(login)?;
    let asked = Challenge::of(&first.challenge(login, "7")?)?;
    let recorded = named(&asked.response(ALICE.1));
    let pairs: Vec<&str> = recorded.iter().map(String::as_str).collect();
    ensure!(first.say(TO_OPERATIONAL, &pairs)?.status == 0, "it was right the first time");
    let mut second = Handshake::connect(login)?;
    let again = Challenge::of(&second.challenge(login, "7")?)?;
    ensure!(again.bytes != asked.bytes, "a challenge came twice");
    words(second.say(TO_OPERATIONAL, &pairs)?.status)
}

fn crossed(login: &Login<'_>) -> Result<String> {
    let (mut one, mut two) = (Handshake::connect(login)?, Handshake::connect(login)?);
    let asked = Challenge::of(&one.challenge(login, "7")?)?;
    Challenge::of(&two.challenge(login, "7")?)?;
    let keys = named(&asked.response(ALICE.1));
    let pairs: Vec<&str> = keys.iter().map(String::as_str).collect();
    words(two.say(TO_OPERATIONAL, &pairs)?.status)
}

/// Authenticates, and then wants to be somebody else.
fn changed(login: &Login<'_>, key: &str) -> Result<String> {
    let mut handshake = Handshake::connect(login)?;
    let reply = handshake.authenticate(login, &Chap::new(ALICE.0, ALICE.1))?;
    ensure!(reply.status == 0, "{reply:?}");
    words(handshake.say(TO_FULL_FEATURE, &[key])?.status)
}

/// A session of host B, which does not see LUN 1.
fn host_b(login: &Login<'_>) -> Result<Session> {
    let chap = Some(Chap::new(BOB.0, BOB.1));
    Session::open(&Login { initiator: HOST_B, chap, ..login.clone() })
}

/// The answer to a command behind the unit attention of a new session.
fn settled(
    session: &mut Session,
    lun: u8,
    cdb: &[u8],
    expected: usize,
) -> Result<lunet_e2e::wire::Answer> {
    session.settle(0)?;
    session.execute(lun, cdb, expected, &[])
}

fn sense(login: &Login<'_>, cdb: &[u8], expected: usize, data: &[u8]) -> Result<String> {
    let answer = host_b(login)?.execute(1, cdb, expected, data)?;
    ensure!(expected == 0 || answer.data.is_empty(), "{answer:?}");
    described(&answer)
}

fn described(answer: &lunet_e2e::wire::Answer) -> Result<String> {
    let code = (answer.sense.get(2), answer.sense.get(12), answer.sense.get(13));
    ensure!(answer.status == scsi::CHECK_CONDITION, "{answer:?}");
    ensure!(code == (Some(&0x05), Some(&0x25), Some(&0x00)), "{answer:?}");
    Ok("CHECK CONDITION, LOGICAL UNIT NOT SUPPORTED".into())
}

/// The text that answers SendTargets.
fn send_targets(session: &mut Session, which: &str) -> Result<String> {
    let mut request = Pdu::new(opcode::TEXT_REQUEST | 0x40);
    request.header[1] = 0x80;
    request.set_word(16, 0x5151);
    request.set_word(20, u32::MAX);
    request.set_word(24, session.cmd_sn());
    request.data = format!("SendTargets={which}\0").into_bytes();
    session.send(&request)?;
    let answer = session.receive()?;
    ensure!(answer.opcode() == opcode::TEXT_RESPONSE, "opcode {:02x}", answer.opcode());
    Ok(String::from_utf8(answer.data)?)
}

fn targets_of_others(login: &Login<'_>) -> Result<String> {
    let chap = Some(Chap::new(FINDER.0, FINDER.1));
    let login = Login { target: None, initiator: HOST_B, chap, ..login.clone() };
    let mut session = Session::open(&login)?;
    let all = send_targets(&mut session, "All")?;
    ensure!(all.contains(GUARDED) && all.contains(STRONG), "{all}");
    ensure!(!all.contains(LISTED) && !all.contains(NEARBY), "{all}");
    let named = send_targets(&mut session, LISTED)?;
    ensure!(named.is_empty(), "{named}");
    Ok("not listed".into())
}

fn other_target(login: &Login<'_>) -> Result<String> {
    let mut session = host_b(login)?;
    let text = send_targets(&mut session, STRONG)?;
    ensure!(text == "SendTargets=Reject\0", "{text}");
    Ok("`Reject`".into())
}

fn guessing(login: &Login<'_>) -> Result<String> {
    for _ in 0..5 {
        let answer = chap(login, Chap::new(ALICE.0, "a wrong secret"))?;
        ensure!(answer.starts_with("`0201`"), "{answer}");
    }
    chap(login, Chap::new(ALICE.0, ALICE.1))
}

fn scanning(login: &Login<'_>) -> Result<String> {
    let name = |n| format!("iqn.2026-11.local.lunet:guess-{n}");
    for n in 0..5 {
        let answer = at(login, &name(n))?;
        ensure!(answer.starts_with("`0203`"), "{answer}");
    }
    at(login, &name(6)).context("the sixth")
}
