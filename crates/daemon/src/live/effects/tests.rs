use lunet_iscsi::chap::{Algorithm, Proof, Secret};
use lunet_server::Origin;

use super::*;
use lunet_config::check;

const ONE: &str = "iqn.2026-11.l:one";
const TWO: &str = "iqn.2026-11.l:two";

const FILE: &str = "\
[volumes.a]
backend = 'null'
size = 512
[volumes.b]
backend = 'null'
size = 512
[[target]]
name = 'iqn.2026-11.l:one'
luns = { 0 = 'a', 1 = { volume = 'b', initiators = ['*:x'] } }
open = true
# rules
[[target]]
name = 'iqn.2026-11.l:two'
open = true
luns = ['b']
[discovery]
initiators = ['10.0.0.0/8']
";

fn session(tsih: u16, initiator: &str, target: Option<&str>, proof: Option<Proof>) -> SessionInfo {
    SessionInfo {
        initiator: initiator.into(),
        target: target.map(str::to_owned),
        user: None,
        peer: format!("10.0.0.{tsih}:5000"),
        portal: "10.0.0.99:3260".into(),
        transport: "tcp",
        rdma: None,
        tcp: None,
        portal_index: 0,
        origin: Origin::new([10, 0, 0, tsih as u8].into(), [10, 0, 0, 99].into()),
        leaving: false,
        through: None,
        proof,
        isid: String::new(),
        tsih,
        shard: 0,
        connected_seconds: 1,
        commands_in_flight: 0,
        commands: 0,
        read_bytes: 0,
        written_bytes: 0,
        keys: Vec::new(),
    }
}

fn proof(user: &str, secret: &str) -> Proof {
    let (id, challenge, algorithm) = (1, vec![7; 16], Algorithm::Md5);
    let secret = Secret::new(secret.as_bytes().to_vec());
    let response = secret.respond(algorithm, id, &challenge).bytes().to_vec();
    Proof { user: user.into(), algorithm, id, challenge, response }
}

/// What happens to four sessions: X and Y at one target, one at the other, one of discovery.
fn told(now: &str, next: &str, keep: bool) -> (Vec<String>, Option<String>) {
    let sessions = [
        session(1, "iqn.2026-11.l:x", Some(ONE), None),
        session(2, "iqn.2026-11.l:y", Some(ONE), Some(proof("alice", "a secret of 16 b"))),
        session(3, "iqn.2026-11.l:x", Some(TWO), None),
        session(4, "iqn.2026-11.l:x", None, None),
    ];
    let (now, next) = (check(now).unwrap(), check(next).unwrap());
    // All have come by the first portal, which without one is the default.
    let slots = |config: &Config| {
        let first = now.portals.first().map(|portal| portal.address);
        let slot = |at: usize| match config.portals.get(at).map(|p| p.address) == first {
            true => vec![0],
            false => Vec::new(),
        };
        (0..config.portals.len().max(1)).map(slot).collect()
    };
    let (before, after) = (View::new(&now, slots(&now)), View::new(&next, slots(&next)));
    let effects = effects(&sessions, &before, &after, keep);
    let refusal = refusal(&effects, "use --force");
    (
        effects.iter().map(|effect| effect.change.to_string()).collect(),
        refusal.map(|error| error.to_string()),
    )
}

const WITH_USER: &str = "[[target.user]]\nname = 'alice'\nsecret = 'a secret of 16 b'\n";

#[test]
fn what_does_not_concern_sessions_is_not_told() {
    let alias = FILE.replace("# rules", "alias = 'x'");
    assert_eq!(told(FILE, FILE, false), (Vec::new(), None));
    assert_eq!(told(FILE, &alias, false), (Vec::new(), None));
    let more = FILE.replace("luns = ['b']", "luns = ['b', 'a']");
    assert_eq!(told(FILE, &more, false), (Vec::new(), None));
}

#[test]
fn sessions_that_could_not_log_in_end_or_stay_on_request() {
    let guarded = FILE.replace("# rules", WITH_USER);
    let who = "session 1 of iqn.2026-11.l:x from 10.0.0.1:5000";
    let why = "it has logged in without CHAP, which is asked for now";
    assert_eq!(told(FILE, &guarded, false), (vec![format!("{who} ends: {why}")], None));
    let stays = vec![format!("{who} stays all the same: {why}")];
    assert_eq!(told(FILE, &guarded, true), (stays, None));
    // Kept once, it stays until these rules change.
    let elsewhere = guarded.replace("luns = ['b']", "luns = ['b', 'a']");
    assert_eq!(told(&guarded, &elsewhere, false), (Vec::new(), None));
    let narrower = guarded.replace("# rules", "").replace("alice'", "alice'\ninitiators = ['*:y']");
    assert_eq!(told(&guarded, &narrower, false).0, [format!("{who} ends: {why}")]);
    let changed = guarded.replace("a secret of 16 b", "another of 16 byt");
    let alice = "session 2 of iqn.2026-11.l:y from 10.0.0.2:5000 ends";
    assert!(
        told(&guarded, &changed, false)
            .0
            .contains(&format!("{alice}: its user has another secret now"))
    );
    let listed = FILE.replace("# rules", "initiators = ['*:x']");
    assert_eq!(
        told(FILE, &listed, false).0,
        [format!("{alice}: the initiator is not let in any more")]
    );
    let finders = FILE.replace("10.0.0.0/8", "11.0.0.0/8");
    let (told, refusal) = told(FILE, &finders, false);
    assert!(
        told.len() == 1 && told[0].starts_with("session 4 ") && told[0].contains(" ends: "),
        "{told:?}"
    );
    assert_eq!(refusal, None);
}

#[test]
fn what_is_in_use_is_not_taken_away_without_consent() {
    let without_b = FILE.replace("[volumes.b]\nbackend = 'null'\nsize = 512\n", "");
    let without_b = without_b.replace(", 1 = { volume = 'b', initiators = ['*:x'] }", "");
    let without_b = without_b.replace("luns = ['b']", "");
    let (effects, refusal) = told(FILE, &without_b, false);
    let who = |n, lun| {
        format!(
            "session {n} of iqn.2026-11.l:x from 10.0.0.{n}:5000 loses LUN {lun} (volume b): the LUN is gone"
        )
    };
    assert_eq!(effects, [who(1, 1), who(3, 0)], "the LUN is hidden from the other one");
    assert_eq!(
        refusal.unwrap(),
        "2 sessions use volume b as LUN 0 of iqn.2026-11.l:two and 1 more, which would be gone \
         (iqn.2026-11.l:x from 10.0.0.1:5000, iqn.2026-11.l:x from 10.0.0.3:5000): log out there \
         first, or use --force"
    );
    let swapped = FILE.replace("luns = ['b']", "luns = ['a']");
    let refusal = told(FILE, &swapped, false).1.unwrap();
    assert!(
        refusal.starts_with("1 session uses volume b as LUN 0 of iqn.2026-11.l:two, "),
        "{refusal}"
    );
    let gone = FILE
        .split("[[target]]\nname = 'iqn.2026-11.l:two'\nopen = true\nluns = ['b']\n")
        .collect::<String>();
    let (effects, refusal) = told(FILE, &gone, true);
    assert_eq!(effects.len(), 1);
    assert!(refusal.unwrap().starts_with("1 session uses target iqn.2026-11.l:two, which would"));
    // A LUN that is shown to fewer is meant.
    let hidden = FILE.replace("['*:x']", "['*:z']");
    let (effects, refusal) = told(FILE, &hidden, false);
    assert!(
        effects.len() == 1 && effects[0].ends_with("not for this initiator any more"),
        "{effects:?}"
    );
    assert_eq!(refusal, None);
}

#[test]
fn a_target_that_closes_takes_its_sessions_from_other_machines_with_it() {
    let closed = FILE.replace("open = true\n# rules", "# rules");
    let why = "nothing says who may use the target any more, so it is for this machine alone";
    let ends = |n, who: &str| format!("session {n} of {who} from 10.0.0.{n}:5000 ends: {why}");
    let both = vec![ends(1, "iqn.2026-11.l:x"), ends(2, "iqn.2026-11.l:y")];
    let (told_so, refused) = told(FILE, &closed, false);
    assert_eq!(told_so, both);
    assert_eq!(
        refused.unwrap(),
        "2 sessions use target iqn.2026-11.l:one, which would be for this machine alone, as nothing would \
         say any more who may use it (iqn.2026-11.l:x from 10.0.0.1:5000, iqn.2026-11.l:y from \
         10.0.0.2:5000): say who first with `lunet target allow`, or use --force"
    );
    // Kept on request, as the event loops do; and closed before, nothing ends by another change.
    let (kept, refused) = told(FILE, &closed, true);
    assert!(kept.iter().all(|words| words.contains(" stays all the same: ")), "{kept:?}");
    assert_eq!((kept.len(), refused), (2, None));
    let elsewhere = closed.replace("open = true\nluns = ['b']", "open = true\nluns = ['b', 'a']");
    assert_eq!(told(&closed, &elsewhere, false), (Vec::new(), None));
    // A LUN for everybody closes a target whose LUNs have all named their initiators.
    let masked = closed.replace("0 = 'a'", "0 = { volume = 'a', initiators = ['*'] }");
    assert_eq!(told(&masked, &closed, false).0, both);
}

#[test]
fn many_sessions_are_counted_and_some_named() {
    let all: Vec<(String, String)> = (0..5).map(|n| (format!("i{n}"), format!("p{n}"))).collect();
    let refs = |n: usize| named(all[..n].iter().map(|(a, b)| (a.as_str(), b.as_str())));
    assert_eq!(refs(1), "i0 from p0");
    assert_eq!(refs(5), "i0 from p0, i1 from p1, i2 from p2 and 2 more");
}
