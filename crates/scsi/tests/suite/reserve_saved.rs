//! Reservations through power loss.

use crate::cluster::*;
use lunet_reservations::{Kind, Saved};
use lunet_scsi::Code;

#[test]
fn what_is_kept_through_power_loss() {
    let mut c = Cluster::new();
    assert_eq!(c.register(0, 0, 1), GOOD);
    assert_eq!(c.state.saved(), None);
    assert_eq!(c.out(1, 0, 0, &list(0, 2, 1)).status, GOOD);
    assert_eq!(c.report(0, 2)[3], 0xB1, "PTPL_A");
    for kind in [1, 8] {
        assert_eq!(c.plain(1, 1, kind, 2, 0), GOOD);
        let saved = c.state.saved().expect("it is activated");
        let mut fresh = State::new(vec![leading(port(1))], true);
        assert_eq!(fresh.restore(saved.clone()), Ok(()));
        assert_eq!(fresh.saved(), Some(saved));
        let mut after = Cluster::over(fresh);
        assert_eq!((after.keys(0), after.kind(0)), (vec![1, 2], kind));
        assert_eq!(after.report(0, 0)[0..4], [0; 4], "PRGENERATION starts anew");
        assert_eq!((after.write(1), after.write(3)), (GOOD, CONFLICT));
        assert_eq!(c.plain(1, 2, kind, 2, 0), GOOD);
    }
    assert_eq!(c.told(0), [4]);
    assert_eq!(c.register(0, 1, 3), GOOD);
    assert_eq!(c.state.saved(), None, "the latest registration says no");
    // A unit that cannot keep anything says so.
    let mut c = Cluster::over(State::new(vec![leading(port(1))], false));
    assert_eq!(c.report(0, 2)[2..4], [0x1C, 0xB0]);
    let sense = c.out(0, 0, 0, &list(0, 2, 1)).sense.map(|sense| sense.code);
    assert_eq!(sense, Some(Code::INVALID_FIELD_IN_PARAMETER_LIST));
}

#[test]
fn what_was_kept_must_make_sense() {
    let mut c = Cluster::new();
    assert_eq!(c.out(1, 0, 0, &list(0, 2, 1)).status, GOOD);
    assert_eq!(c.plain(1, 1, 1, 2, 0), GOOD);
    let good = c.state.saved().expect("it is activated");
    let all = Kind::WriteExclusiveAllRegistrants;
    let cases: [fn(&mut Saved); 6] = [
        |s| s.registrations[0].key = 0,
        |s| s.registrations.push(s.registrations[0].clone()),
        |s| s.holder = Some(1),
        |s| s.holder = None,
        |s| s.kind = None,
        |s| {
            s.registrations.clear();
            s.holder = None;
        },
    ];
    for (n, damage) in cases.into_iter().enumerate() {
        let mut saved = good.clone();
        if n == 5 {
            saved.kind = Some(all);
        }
        damage(&mut saved);
        let mut state = State::new(vec![], true);
        assert!(state.restore(saved).is_err(), "{n}");
        assert_eq!(state.saved(), None, "{n}");
    }
}
