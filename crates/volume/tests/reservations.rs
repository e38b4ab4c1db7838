//! The reservations of a volume that two protocols serve: paths by one, hosts with identifiers of 16 bytes by the other.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use lunet_backends::{Storage, VolumeSpec, open};
use lunet_files as files;
use lunet_reservations::{
    Event, Kind, Loss, Refusal, Register, Registrant, Registration, Reservations,
};
use lunet_volume::reserve::{Listener, Request, Shared, Store, StoredRegistration, Unchanged};
use lunet_volume::{Health, Keeper, Volume};
use serde::{Deserialize, Serialize};

fn path(name: &str) -> Registrant {
    Registrant::new("path", name.as_bytes())
}

fn host(number: u8) -> Registrant {
    Registrant::new("host", &[number; 16])
}

/// What the file holds of each. Files from before there were hosts have paths only.
#[derive(Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Kept {
    Path { path: String, key: u64 },
    Host { host: [u8; 16], key: u64 },
}

impl StoredRegistration for Kept {
    fn of(registration: &Registration) -> Option<Self> {
        let Registration { registrant, key } = registration;
        if let Some(name) = registrant.name_in("path") {
            let path = String::from_utf8(name.to_vec()).ok()?;
            return Some(Self::Path { path, key: *key });
        }
        let host = registrant.name_in("host")?.try_into().ok()?;
        Some(Self::Host { host, key: *key })
    }

    fn registration(self) -> Registration {
        match self {
            Self::Path { path: name, key } => Registration { registrant: path(&name), key },
            Self::Host { host, key } => {
                Registration { registrant: Registrant::new("host", &host), key }
            }
        }
    }
}

/// What a protocol has told its clients of one family.
struct Told(&'static str, Mutex<Vec<Event>>);

impl Told {
    fn new(family: &'static str) -> Arc<Self> {
        Arc::new(Self(family, Mutex::default()))
    }

    fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.1.lock().expect("sound"))
    }
}

impl Listener for Told {
    fn tell(&self, events: &[Event]) {
        let own = events.iter().filter(|event| event.registrant.name_in(self.0).is_some());
        self.1.lock().expect("sound").extend(own.cloned());
    }
}

/// A registration that is to be kept, or not, or a reservation.
enum What {
    Join(u64),
    Visit(u64),
    Take(Kind),
    Throw(u64),
}

struct Asks {
    who: Registrant,
    key: u64,
    what: What,
    stands: AtomicBool,
}

fn asks(who: &Registrant, key: u64, what: What) -> Asks {
    Asks { who: who.clone(), key, what, stands: AtomicBool::new(true) }
}

impl Request for Asks {
    type Refusal = Refusal;

    fn carry_out(&self, state: &mut Reservations) -> Result<Vec<Event>, Refusal> {
        match self.what {
            What::Join(new_key) | What::Visit(new_key) => {
                let keep = Some(matches!(self.what, What::Join(_)));
                let existing = Some(self.key);
                state.register(&self.who, Register { existing, new_key, also: &[], keep })
            }
            What::Take(kind) => state.reserve(&self.who, self.key, kind),
            What::Throw(victim) => {
                let kind = Some(Kind::WriteExclusive);
                state.preempt(&self.who, (self.key, victim), kind, true)
            }
        }
    }

    fn stands(&self) -> bool {
        self.stands.load(Ordering::Relaxed)
    }
}

fn store(dir: &Path) -> Store {
    Store::new::<Kept>(dir.join("v.reservations"), "v1".into())
}

fn volume(dir: &Path, listeners: Vec<Arc<dyn Listener>>) -> Volume<()> {
    let backend = open(&VolumeSpec::new(Storage::Memory { size: 1 << 20 })).expect("a volume");
    let mut volume = Volume::new("v".into(), (backend, Health::new("v")), None, ());
    let store = store(dir);
    let state = Store::reservations(Some(&store)).expect("it can be read");
    volume.reservations = Arc::new(Shared::new(state, listeners));
    volume.store = Some(store);
    volume
}

fn lost(registrant: &Registrant, loses: Loss) -> Event {
    Event { registrant: registrant.clone(), loses }
}

#[test]
fn both_protocols_are_told_and_both_are_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let (paths, hosts) = (Told::new("path"), Told::new("host"));
    let served = volume(dir.path(), vec![paths.clone(), hosts.clone()]);
    let (a, b) = (path("a"), host(7));
    for (who, key) in [(&a, 1), (&b, 2)] {
        assert_eq!(served.reserve_and_keep(&asks(who, 0, What::Join(key))), Ok(vec![]));
    }
    let shared = Kind::WriteExclusiveRegistrantsOnly;
    assert_eq!(served.reserve_and_keep(&asks(&a, 1, What::Take(shared))), Ok(vec![]));
    let news = served.reservations.news();
    let refused = served.reserve_and_keep(&asks(&b, 2, What::Take(shared)));
    assert_eq!(refused, Err(Unchanged::Refused(Refusal::Conflict)));
    assert_eq!(served.reservations.news(), news, "nobody has to look");

    let events = vec![lost(&a, Loss::Registration), lost(&a, Loss::Commands)];
    assert_eq!(served.reserve_and_keep(&asks(&b, 2, What::Throw(1))), Ok(events.clone()));
    assert_ne!(served.reservations.news(), news);
    assert_eq!((paths.take(), hosts.take()), (events, vec![]));
    assert!(!served.reservations.look(|state| state.access(&a)).write);

    // What a power loss would find.
    let after = volume(dir.path(), vec![]);
    let same = |state: &Reservations| after.reservations.look(|found| found.decides_like(state));
    assert!(served.reservations.look(same));
    assert!(after.reservations.look(|state| state.holds(&b)));
}

#[test]
fn what_cannot_be_kept_changes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let told = Told::new("path");
    let served = volume(dir.path(), vec![told.clone()]);
    let (a, b) = (path("a"), host(7));
    for (who, key) in [(&a, 1), (&b, 2)] {
        assert_eq!(served.reserve_and_keep(&asks(who, 0, What::Join(key))), Ok(vec![]));
    }
    let file = dir.path().join("v.reservations");
    let image = fs::read(&file).expect("it is kept");
    let (before, news) =
        (served.reservations.look(Reservations::clone), served.reservations.news());
    let same = |served: &Volume<()>| {
        served.reservations.look(|state| state.decides_like(&before))
            && served.reservations.news() == news
            && fs::read(&file).expect("it is kept") == image
    };

    fs::create_dir(files::fresh(&file)).expect("something in the way");
    let failed = served.reserve_and_keep(&asks(&b, 2, What::Throw(1)));
    assert_eq!((failed, same(&served)), (Err(Unchanged::Failed), true));
    fs::remove_dir(files::fresh(&file)).expect("it is empty");
    // Whoever asks is gone.
    let gone = asks(&b, 2, What::Throw(1));
    gone.stands.store(false, Ordering::Relaxed);
    assert_eq!((served.reserve_and_keep(&gone), same(&served)), (Err(Unchanged::Failed), true));
    // The file has no room for a stranger.
    let stranger = Registrant::new("other", b"x");
    let failed = served.reserve_and_keep(&asks(&stranger, 0, What::Join(3)));
    assert_eq!((failed, same(&served)), (Err(Unchanged::Failed), true));
    assert_eq!(told.take(), []);
}

#[test]
fn files_from_before_there_were_hosts_are_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let before = r#"{"version": 1, "unit": "v1", "kind": 7, "holder": null,
        "registrations": [{"path": "a", "key": 1}]}"#;
    fs::write(dir.path().join("v.reservations"), before).expect("written");
    let served = volume(dir.path(), vec![]);
    assert!(served.reservations.look(|state| state.holds(&path("a"))));
    for damage in [("\"key\": 1", "\"key\": 0"), ("7", "2"), ("path", "road"), ("null", "0")] {
        let text = before.replacen(damage.0, damage.1, 1);
        fs::write(dir.path().join("v.reservations"), text).expect("written");
        let error = Store::reservations(Some(&store(dir.path()))).expect_err(damage.1).to_string();
        assert!(error.contains("v.reservations is damaged"), "{error}");
    }
}

/// A server that ends in good order is no power loss.
#[test]
fn what_does_not_survive_a_power_loss_survives_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let served = volume(dir.path(), vec![]);
    let (a, b) = (path("a"), host(7));
    for (who, key) in [(&a, 1), (&b, 2)] {
        assert_eq!(served.reserve_and_keep(&asks(who, 0, What::Visit(key))), Ok(vec![]));
    }
    let shared = Kind::WriteExclusiveRegistrantsOnly;
    assert_eq!(served.reserve_and_keep(&asks(&a, 1, What::Take(shared))), Ok(vec![]));
    let registered = || {
        let after = volume(dir.path(), vec![]);
        (after.reservations.look(|state| state.registrations().len()), after)
    };
    assert_eq!(registered().0, 0, "after a power loss");
    served.pass_on();
    // A start that fails takes nothing away from the next one.
    for _ in 0..2 {
        let (count, after) = registered();
        let same = |state: &Reservations| after.reservations.look(|it| it.decides_like(state));
        assert!(count == 2 && served.reservations.look(same));
        let generation = after.reservations.look(Reservations::generation);
        assert_eq!(generation, served.reservations.look(Reservations::generation));
    }
    let (_, after) = registered();
    after.forget_passed();
    assert_eq!(registered().0, 0, "the next server has served");
    assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 0);
    // It still does not survive a power loss, until somebody asks for that.
    assert!(after.reservations.look(|state| state.saved().is_none()));
    assert_eq!(after.reserve_and_keep(&asks(&b, 2, What::Join(3))), Ok(vec![]));
    after.pass_on();
    assert!(!dir.path().join("v.restart").exists(), "it is kept anyway");
    assert_eq!(registered().0, 2);
}

#[test]
fn what_was_passed_on_is_taken_up_soon_on_the_same_machine_or_not_at_all() {
    let dir = tempfile::tempdir().expect("a directory");
    let served = volume(dir.path(), vec![]);
    assert_eq!(served.reserve_and_keep(&asks(&path("a"), 0, What::Visit(1))), Ok(vec![]));
    served.pass_on();
    let file = dir.path().join("v.restart");
    let good: serde_json::Value =
        serde_json::from_slice(&fs::read(&file).expect("it is there")).expect("JSON");
    let up = good["up_ms"].as_u64().expect("a time");
    let changed = |field: &str, value: serde_json::Value| {
        let mut other = good.clone();
        other[field] = value;
        other.to_string()
    };
    let of_another = good.to_string().replace("\"v1\"", "\"v2\"");
    let twice = good.to_string().replace("\"key\":1", "\"key\":0");
    for (what, text) in [
        ("another boot", changed("boot", "x".into())),
        ("long ago", changed("up_ms", up.saturating_sub(601_000).into())),
        ("damaged", "{".to_owned()),
        ("of another volume", of_another),
        ("contradicts itself", twice),
    ] {
        // A machine that has just started was not there that long.
        if what == "long ago" && up < 601_000 {
            continue;
        }
        fs::write(&file, text).expect("written");
        let count =
            volume(dir.path(), vec![]).reservations.look(|state| state.registrations().len());
        assert_eq!(count, 0, "{what}");
    }
    fs::write(&file, good.to_string()).expect("written");
    assert!(volume(dir.path(), vec![]).reservations.look(|state| state.registrations().len()) == 1);
}

#[test]
fn the_keeper_does_what_it_was_told_before_it_ends() {
    let keeper = Keeper::start().expect("a thread");
    let done = Arc::new(Mutex::new(vec![]));
    let (orders, mut given) = (keeper.orders(), 0);
    for number in 0..1000 {
        let done = done.clone();
        let work = move || done.lock().expect("sound").push(number);
        // It may have too much to do already.
        given += usize::from(orders.give(Box::new(work)));
    }
    keeper.stop(std::time::Duration::from_secs(60));
    let done = done.lock().expect("sound");
    assert_eq!(done.len(), given);
    assert!(given >= 256 && done.is_sorted(), "{done:?}");
}

#[test]
fn a_change_that_nobody_waits_for_any_more_is_not_wanted() {
    let shared = Arc::new(Shared::default());
    let (order, wanted) = shared.order();
    assert!(shared.is_keeping() && order.is_wanted());
    let (next, _kept) = shared.order();
    drop(wanted);
    assert!(!order.is_wanted() && next.is_wanted());
    drop(order);
    assert!(shared.is_keeping(), "the other one is on its way");
    drop(next);
    assert!(!shared.is_keeping());
}

#[test]
fn an_aborted_change_is_neither_made_nor_kept() {
    struct Given(Asks, lunet_volume::reserve::Order);

    impl Request for Given {
        type Refusal = Refusal;

        fn carry_out(&self, state: &mut Reservations) -> Result<Vec<Event>, Refusal> {
            self.0.carry_out(state)
        }

        fn stands(&self) -> bool {
            self.1.is_wanted()
        }
    }

    let dir = tempfile::tempdir().expect("a directory");
    let served = volume(dir.path(), Vec::new());
    let (order, wanted) = served.reservations.order();
    let given = Given(asks(&path("a"), 0, What::Join(1)), order);
    drop(wanted);
    assert_eq!(served.reserve_and_keep(&given), Err(Unchanged::Failed));
    assert_eq!(served.reservations.look(|state| state.registrations().len()), 0);
    assert!(!dir.path().join("v.reservations").exists());
}
