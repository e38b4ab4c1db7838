//! Any lines as the changes of `lunet doctor --ceilings --what-if`, and what they would give on a captured machine.
use std::sync::LazyLock;

use lunet_host::ceilings::what_if::{Answer, Change, Layout, page, what_if};
use lunet_host::facts::{Facts, facts};
use lunet_host::source::Tree;

/// To compute a machine of more drives takes longer than a run has.
const DRIVES: u64 = 500;
const TREE: &str = include_str!("../../../tools/host/tests/machines/recipe/tree.txt");

static RECIPE: LazyLock<Facts> =
    LazyLock::new(|| facts(&Tree::parse(TREE).expect("it is a machine")));

/// One input.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut changes = Vec::new();
    for line in text.lines() {
        match line.parse::<Change>() {
            Ok(change) => {
                let again = change.to_string();
                assert_eq!(again.parse().as_ref(), Ok(&change), "{again}");
                changes.push(change);
            }
            Err(mistake) => {
                assert!((1..=line.chars().count() + 1).contains(&mistake.at), "{mistake:?}");
                assert!(!mistake.to_string().contains(char::is_control), "{mistake:?}");
            }
        }
    }
    if changes.is_empty() || changes.iter().any(large) {
        return;
    }
    // Another machine: nothing is known of this one.
    for facts in [&RECIPE, &Facts::default()] {
        match what_if(facts, None, &changes) {
            Ok(answer) => look(&answer),
            Err(conflict) => assert!(!conflict.to_string().contains(char::is_control)),
        }
    }
}

fn large(change: &Change) -> bool {
    match change {
        Change::Pool(Layout { groups, .. }) => {
            groups.iter().map(|group| group.count * group.width).sum::<u64>() > DRIVES
        }
        Change::Drives(count) | Change::Nic(count, _) | Change::Memory(count, _) => *count > DRIVES,
        _ => false,
    }
}

/// Figures are figures, and each is in its range.
fn look(answer: &Answer) {
    for row in answer.comparisons.iter().flat_map(|one| one.layers.iter().chain([&one.machine])) {
        assert!(row.changed.is_none_or(|figure| figure.is_finite() && figure >= 0.0), "{row:?}");
        assert!(row.ratio.is_none_or(f64::is_finite), "{row:?}");
        if let (Some(figure), Some(range)) = (row.changed, row.changed_range) {
            assert!(range.from <= figure && figure <= range.to, "{row:?}");
        }
    }
    assert!(page(answer).lines().count() > 3);
}
