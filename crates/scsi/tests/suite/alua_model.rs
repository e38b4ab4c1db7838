//! Access states against a model: a list of states, changed one after the other.

use proptest::prelude::*;

use crate::common::*;
use lunet_scsi::alua::{AccessState, Change, PortGroup, PortGroups, Request};
use lunet_scsi::reserve::{Port, TargetPort};
use lunet_scsi::{Action, CommandIn, Reply, Target, execute, status};

const STATES: [AccessState; 4] = [
    AccessState::Optimized,
    AccessState::NonOptimized,
    AccessState::Standby,
    AccessState::Unavailable,
];

/// Tags 10, 20 ... 160, all that there may be.
fn tag(group: usize) -> u16 {
    10 * (group as u16 + 1)
}

fn groups(states: &[AccessState]) -> PortGroups {
    let group = |(at, state): (usize, &AccessState)| PortGroup {
        tag: tag(at),
        state: *state,
        preferred: false,
    };
    PortGroups::new(states.iter().enumerate().map(group).collect()).expect("not too many")
}

#[derive(Clone, Debug)]
enum Step {
    /// SET TARGET PORT GROUPS. Group 16 does not exist.
    Set(Vec<(usize, usize)>),
    /// Another configuration.
    Configure(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let set = prop::collection::vec((0..=PortGroups::MAX, 0..4_usize), 1..5).prop_map(Step::Set);
    let configure = (0..PortGroups::MAX, 0..4_usize).prop_map(|(at, to)| Step::Configure(at, to));
    prop_oneof![3 => set, 1 => configure]
}

proptest! {
    #[test]
    fn states_are_what_was_said_last(steps in prop::collection::vec(step(), 1..40)) {
        let unit = unit();
        let states = &unit.state.access;
        let ports: Vec<Port> = (0..PortGroups::MAX)
            .map(|at| Port {
                name: TargetPort { target: "iqn.t".into(), tag: tag(at) },
                relative: at as u16 + 1,
            })
            .collect();
        let mut configured = vec![AccessState::Optimized; PortGroups::MAX];
        // State and what changed it last.
        let mut model = vec![(AccessState::Optimized, 0); PortGroups::MAX];
        states.configure(&groups(&configured));
        for step in steps {
            let before = model.clone();
            let changed = match &step {
                Step::Set(list) => {
                    let change = |at, to| Change { tag: tag(at), state: STATES[to] };
                    let request =
                        Request::Set(list.iter().map(|(at, to)| change(*at, *to)).collect());
                    let done = groups(&configured).execute(states, &ports, &request);
                    if list.iter().any(|(at, _)| *at == PortGroups::MAX) {
                        prop_assert_eq!(done.reply.status, status::CHECK_CONDITION);
                    } else {
                        prop_assert_eq!(&done.reply, &Reply::GOOD);
                        for (at, to) in list {
                            if model[*at].0 != STATES[*to] {
                                model[*at] = (STATES[*to], 1);
                            }
                        }
                    }
                    done.changed
                }
                Step::Configure(at, to) => {
                    let old = groups(&configured);
                    let news = configured[*at] != STATES[*to] && model[*at].0 != STATES[*to];
                    configured[*at] = STATES[*to];
                    if news {
                        model[*at] = (STATES[*to], 2);
                    }
                    groups(&configured).reconfigure(states, &old)
                }
            };
            // Who is told too often only asks again; who is told too little goes wrong.
            prop_assert!(changed || before == model, "{:?}", step);
            let request = Request::Report { extended: false, allocation: u32::MAX };
            let data = groups(&configured).execute(states, &ports, &request).reply.data;
            for (at, (state, cause)) in model.iter().enumerate() {
                let d = &data[4 + 12 * at..16 + 12 * at];
                prop_assert_eq!((d[0], d[5]), (*state as u8, *cause), "{} after {:?}", at, step);
                let through = Target { group: at, groups: groups(&configured), ..target() };
                let command = CommandIn { cdb: &[0; 6], expects_read: 0, expects_write: 0 };
                let task = execute(&through, Some(&unit), None, &command);
                let ready = task.action == Action::Complete(Reply::GOOD);
                prop_assert_eq!(ready, STATES[..2].contains(state));
            }
        }
    }
}
