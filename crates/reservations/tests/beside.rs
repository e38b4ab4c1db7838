//! Registrants of two protocols at one volume: paths with long names, and hosts with identifiers of 16 bytes.

use lunet_reservations::{
    Access, Event, Kind, Loss, MAX_REGISTRATIONS, Refusal, Register, Registrant, Registration,
    Reservations,
};

fn path(name: &str) -> Registrant {
    Registrant::new("path", name.as_bytes())
}

fn host(number: u8) -> Registrant {
    Registrant::new("host", &[number; 16])
}

/// Registers by this key, whatever was there.
fn join(state: &mut Reservations, who: &Registrant, key: u64) {
    let asked = Register { existing: None, new_key: key, also: &[], keep: None };
    assert_eq!(state.register(who, asked), Ok(vec![]));
}

fn lost(registrant: &Registrant, loses: Loss) -> Event {
    Event { registrant: registrant.clone(), loses }
}

#[test]
fn families_have_no_registrant_in_common() {
    let (one, two) = (Registrant::new("path", &[7; 16]), host(7));
    assert_ne!(one, two);
    assert_eq!((two.name_in("host"), two.name_in("path")), (Some(&[7; 16][..]), None));
    let mut state = Reservations::new(false);
    join(&mut state, &one, 1);
    assert_eq!((state.key_of(&one), state.key_of(&two)), (Some(1), None));
}

#[test]
fn each_respects_what_the_other_has_reserved() {
    let (a, b, stranger) = (path("a"), host(1), host(2));
    let read_only = Access { status: true, read: true, write: false };
    let status = Access { status: true, read: false, write: false };
    for (holder, other) in [(&a, &b), (&b, &a)] {
        for kind in Kind::ALL {
            let mut state = Reservations::new(false);
            join(&mut state, holder, 1);
            join(&mut state, other, 2);
            assert_eq!(state.reserve(holder, 1, kind), Ok(vec![]));
            let excluded = if kind.reads_are_free() { read_only } else { status };
            assert_eq!(state.access(holder), Access::FULL);
            assert_eq!(state.access(&stranger), excluded, "{kind:?}");
            let shares = if kind.shared() { Access::FULL } else { excluded };
            assert_eq!(state.access(other), shares, "{kind:?}");
            // Where all hold it they may reserve it as it is.
            let again = state.reserve(other, 2, kind);
            assert_eq!(again.is_ok(), kind.all_registrants(), "{kind:?}");
            // The release is told to those who shared the reservation.
            let told = if kind.shared() { vec![lost(other, Loss::Reservation)] } else { vec![] };
            assert_eq!(state.release(holder, 1, kind), Ok(told));
            assert_eq!(state.access(&stranger), Access::FULL);
        }
    }
}

#[test]
fn one_preempts_the_other_and_its_commands_end() {
    let (a, b) = (path("a"), host(1));
    let mut state = Reservations::new(false);
    join(&mut state, &a, 1);
    join(&mut state, &b, 2);
    assert_eq!(state.reserve(&a, 1, Kind::WriteExclusive), Ok(vec![]));
    assert_eq!(state.preempt(&b, (2, 0), None, true), Err(Refusal::NoKey));
    assert_eq!(state.preempt(&b, (2, 1), None, true), Err(Refusal::NoKind));
    assert_eq!(state.preempt(&b, (2, 9), None, true), Err(Refusal::Conflict));
    let taken = state.preempt(&b, (2, 1), Some(Kind::ExclusiveAccess), true);
    assert_eq!(taken, Ok(vec![lost(&a, Loss::Registration), lost(&a, Loss::Commands)]));
    assert_eq!((state.holder(), state.kind()), (Some(&b), Some(Kind::ExclusiveAccess)));
    assert!(!state.access(&a).read);
    join(&mut state, &a, 3);
    assert_eq!(state.clear(&a, 3), Ok(vec![lost(&b, Loss::Everything)]));
    assert_eq!((state.registrations(), state.kind()), (&[][..], None));
}

#[test]
fn a_claim_and_registrations_exclude_each_other() {
    let (a, b) = (path("a"), host(1));
    let mut state = Reservations::new(false);
    assert_eq!(state.claim(&a), Ok(vec![]));
    assert_eq!((state.access(&a), state.access(&b)), (Access::FULL, Access::NONE));
    let asked = Register { existing: Some(0), new_key: 1, also: &[], keep: None };
    assert_eq!(state.register(&b, asked), Err(Refusal::Conflict));
    assert_eq!((state.give_up_claim(&b), state.claimed()), (Ok(vec![]), true), "not its own");
    state.session_ended(&b);
    assert!(state.claimed());
    state.session_ended(&a);
    assert_eq!((state.claimed(), state.register(&b, asked)), (false, Ok(vec![])));
    assert_eq!(
        (state.claim(&a), state.claim(&b)),
        (Err(Refusal::Conflict), Err(Refusal::Conflict))
    );
    assert_eq!(state.reserve(&b, 1, Kind::ExclusiveAccess), Ok(vec![]));
    assert_eq!((state.claim(&b), state.claimed()), (Ok(vec![]), false), "without effect");
}

#[test]
fn a_reservation_moves_from_one_to_the_other() {
    let (a, b) = (path("a"), host(1));
    let mut state = Reservations::new(true);
    join(&mut state, &a, 1);
    let to = |registrant: &Registrant, key| Registration { registrant: registrant.clone(), key };
    assert_eq!(state.move_to((&a, 1), to(&b, 2), true, None), Err(Refusal::NotHeld));
    assert_eq!(state.reserve(&a, 1, Kind::ExclusiveAccess), Ok(vec![]));
    assert_eq!(state.move_to((&a, 1), to(&b, 0), true, None), Err(Refusal::NoKey));
    assert_eq!(state.move_to((&a, 1), to(&a, 2), true, None), Err(Refusal::Conflict));
    assert_eq!(state.move_to((&a, 1), to(&b, 2), true, Some(true)), Ok(vec![]));
    assert_eq!((state.registrations(), state.holder()), (&[to(&b, 2)][..], Some(&b)));
    // What is saved of both kinds is taken up again.
    join(&mut state, &a, 3);
    let saved = state.saved().expect("it is to be kept");
    let mut again = Reservations::new(true);
    assert_eq!(again.restore(saved), Ok(()));
    assert!(again.decides_like(&state));
    assert_eq!(again.generation(), 0);
}

#[test]
fn a_refusal_changes_nothing() {
    let (a, b) = (path("a"), host(1));
    let mut state = Reservations::new(false);
    join(&mut state, &a, 1);
    let (before, changes) = (state.clone(), state.changes());
    let kept = Register { existing: Some(1), new_key: 2, also: &[], keep: Some(true) };
    assert_eq!(state.register(&a, kept), Err(Refusal::NotKept));
    let many: Vec<Registrant> = (0..MAX_REGISTRATIONS).map(|n| path(&n.to_string())).collect();
    let crowd = Register { existing: Some(0), new_key: 2, also: &many, keep: None };
    assert_eq!(state.register(&b, crowd), Err(Refusal::NoRoom));
    assert_eq!(state.reserve(&a, 2, Kind::WriteExclusive), Err(Refusal::Conflict), "a wrong key");
    assert_eq!(state.reserve(&b, 0, Kind::WriteExclusive), Err(Refusal::Conflict), "no key");
    assert!(state.decides_like(&before));
    assert_eq!((state.changes(), state.generation()), (changes, 1));
    // As many as there is room for.
    let crowd = Register { also: &many[..MAX_REGISTRATIONS - 2], ..crowd };
    assert_eq!(state.register(&b, crowd), Ok(vec![]));
    assert_eq!(state.registrations().len(), MAX_REGISTRATIONS);
    let gone = Register { existing: Some(2), new_key: 0, ..crowd };
    assert_eq!((state.register(&b, gone), state.registrations().len()), (Ok(vec![]), 1));
}
