//! Both machines side by side, and how far the model may be off.

use serde::Serialize;

use super::machine::Changed;
use crate::ceilings::assumed::{Assumed, Assumption, Level};
use crate::ceilings::{Ceilings, Direction, Kind, Layer, Measured, View, narrowest, of};
use crate::facts::Facts;

/// From the least to the most that it may be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Range {
    /// The least.
    pub from: f64,
    /// The most.
    pub to: f64,
}

impl Range {
    fn of(values: impl Iterator<Item = Option<f64>>) -> Option<Self> {
        values.flatten().fold(None, |range: Option<Self>, value| {
            let Self { from, to } = range.unwrap_or(Self { from: value, to: value });
            Some(Self { from: from.min(value), to: to.max(value) })
        })
    }
}

/// A layer, or the whole machine, now and changed. Bytes per second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What it is.
    pub name: String,
    /// What it carries now; `null` if that is not known.
    pub now: Option<f64>,
    /// What it would carry.
    pub changed: Option<f64>,
    /// What it would carry if the model's assumptions were off.
    pub changed_range: Option<Range>,
    /// Changed by now.
    pub ratio: Option<f64>,
    /// The same if the assumptions were off.
    pub ratio_range: Option<Range>,
}

/// Both machines in one direction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Which one.
    pub direction: Direction,
    /// The layers.
    pub layers: Vec<Row>,
    /// All layers together: the narrowest one.
    pub machine: Row,
    /// The layer that binds now.
    pub binds_now: Option<String>,
    /// The layer that would bind.
    pub binds_changed: Option<String>,
    /// Others that would bind if the assumptions were off.
    pub may_bind: Vec<String>,
    /// Why the machines cannot be compared.
    pub incomparable: Option<String>,
}

/// An assumption that moves a figure of the changed machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Uncertainty {
    /// Which one.
    pub assumption: Assumption,
    /// Its range, and why that is.
    pub why: &'static str,
    /// The directions that it moves alone, and what the whole machine carries then.
    pub moves: Vec<(Direction, Range)>,
}

/// Both machines under the same assumptions.
struct Sample {
    now: Ceilings,
    changed: Ceilings,
}

/// The machine and the changed one.
pub(super) struct Pair<'a> {
    now: View<'a>,
    changed: View<'a>,
    usual: Sample,
    /// Each assumption that moves anything, at both ends of its range, with the others at the usual place.
    alone: Vec<(Assumption, [Sample; 2])>,
    /// All assumptions that move anything, at all ends.
    corners: Vec<Sample>,
}

impl<'a> Pair<'a> {
    pub fn new(facts: &'a Facts, measured: Option<&'a Measured>, changed: &'a Changed) -> Self {
        let assumed = Assumed::default();
        let now = View { facts, measured, assumed, figures: None };
        let changed = View {
            facts: &changed.facts,
            measured: measured.filter(|_| changed.measured),
            assumed,
            figures: changed.figures.as_ref(),
        };
        let sample = |assumed: Assumed| Sample {
            now: of(&View { assumed, ..now }),
            changed: of(&View { assumed, ..changed }),
        };
        let usual = sample(assumed);
        let moves = |(_, ends): &(Assumption, [Sample; 2])| {
            ends.iter().any(|end| {
                figures(&end.now) != figures(&usual.now)
                    || figures(&end.changed) != figures(&usual.changed)
            })
        };
        let ends = |assumption| {
            let end = |level| sample(assumed.with(assumption, level));
            (assumption, [end(Level::Low), end(Level::High)])
        };
        let alone: Vec<_> = Assumption::ALL.into_iter().map(ends).filter(moves).collect();
        // An assumption scales its layers alike in both machines, so a ratio of narrowest layers rises or falls with it
        // and has its extremes at the ends.
        let corner = |bits: usize| {
            alone.iter().enumerate().fold(assumed, |assumed, (number, (assumption, _))| {
                let level = if bits >> number & 1 == 0 { Level::Low } else { Level::High };
                assumed.with(*assumption, level)
            })
        };
        let corners = (0..1 << alone.len()).map(|bits| sample(corner(bits))).collect();
        Self { now, changed, usual, alone, corners }
    }

    pub fn now(&self) -> Ceilings {
        of(&self.now)
    }

    pub fn changed(&self) -> Ceilings {
        of(&self.changed)
    }

    fn samples(&self) -> impl Iterator<Item = &Sample> {
        let alone = self.alone.iter().flat_map(|(_, ends)| ends);
        std::iter::once(&self.usual).chain(alone).chain(&self.corners)
    }

    pub fn comparisons(&self) -> Vec<Comparison> {
        Direction::ALL.into_iter().map(|direction| self.comparison(direction)).collect()
    }

    fn comparison(&self, direction: Direction) -> Comparison {
        let binds = |ceilings: &Ceilings| {
            narrowest(&ceilings.layers, direction).map(|layer| layer.name.clone())
        };
        let binds_changed = binds(&self.usual.changed);
        let mut may_bind: Vec<String> =
            self.samples().filter_map(|sample| binds(&sample.changed)).collect();
        may_bind.sort_unstable();
        may_bind.dedup();
        may_bind.retain(|name| Some(name) != binds_changed.as_ref());
        let incomparable = self.incomparable(direction);
        let whole = |ceilings: &Ceilings| direction.of(narrowest(&ceilings.layers, direction)?);
        let mut machine = self.row("the machine", whole);
        if incomparable.is_some() {
            (machine.ratio, machine.ratio_range) = (None, None);
        }
        Comparison {
            direction,
            layers: self.rows(direction),
            machine,
            binds_now: binds(&self.usual.now),
            binds_changed,
            may_bind,
            incomparable,
        }
    }

    fn rows(&self, direction: Direction) -> Vec<Row> {
        let mut keys: Vec<(Kind, &str, &str)> = Vec::new();
        for layer in self.usual.changed.layers.iter().chain(&self.usual.now.layers) {
            let concerns = match direction {
                Direction::OneSession => layer.one_session,
                _ => !layer.one_session,
            };
            let (kind, name) = key(layer);
            if concerns && !keys.iter().any(|(known, same, _)| (*known, *same) == (kind, name)) {
                keys.push((kind, name, &layer.name));
            }
        }
        // From the drives to the wire, whichever machine has them.
        keys.sort_by_key(|(kind, _, _)| *kind as u8);
        let row = |(kind, name, shown): &(Kind, &str, &str)| {
            self.row(shown, |ceilings| {
                let same = |layer: &&Layer| key(layer) == (*kind, *name);
                let found = ceilings.layers.iter().find(same);
                // With one link a host has one session.
                let alone = |layer: &&Layer| *kind == Kind::Host && layer.kind == Kind::Session;
                direction.of(found.or_else(|| ceilings.layers.iter().find(alone))?)
            })
        };
        keys.iter().map(row).collect()
    }

    fn row(&self, name: &str, figure: impl Fn(&Ceilings) -> Option<f64>) -> Row {
        let ratio = |sample: &Sample| Some(figure(&sample.changed)? / figure(&sample.now)?);
        Row {
            name: name.to_owned(),
            now: figure(&self.usual.now),
            changed: figure(&self.usual.changed),
            changed_range: Range::of(self.samples().map(|sample| figure(&sample.changed))),
            ratio: ratio(&self.usual),
            ratio_range: Range::of(self.samples().map(ratio)),
        }
    }

    /// A layer that only one machine has a figure of says nothing of the other one.
    fn incomparable(&self, direction: Direction) -> Option<String> {
        let lacks = |of: &Ceilings, layer: &Layer| {
            let same = |other: &&Layer| key(other) == key(layer) && direction.passes(other);
            of.layers.iter().find(same).and_then(|other| direction.of(other)).is_none()
        };
        let Sample { now, changed } = &self.usual;
        let first = |a: &Ceilings, b: &Ceilings| {
            let passed = a.layers.iter().filter(|layer| direction.passes(layer));
            let mut known = passed.filter(|layer| direction.of(layer).is_some());
            known.find(|layer| lacks(b, layer)).map(|layer| layer.name.clone())
        };
        first(changed, now)
            .map(|name| format!("{name} has no figure now"))
            .or_else(|| first(now, changed).map(|name| format!("{name} would have no figure")))
    }

    pub fn uncertainty(&self) -> Vec<Uncertainty> {
        let whole = |ceilings: &Ceilings, direction: Direction| {
            direction.of(narrowest(&ceilings.layers, direction)?)
        };
        let moved = |ends: &[Sample; 2]| -> Vec<(Direction, Range)> {
            let range = |direction| {
                let of = |end: &Sample| whole(&end.changed, direction);
                let range = Range::of(ends.iter().map(of))?;
                (range.to > range.from).then_some((direction, range))
            };
            Direction::ALL.into_iter().filter_map(range).collect()
        };
        let alone = self.alone.iter().map(|(assumption, ends)| Uncertainty {
            assumption: *assumption,
            why: assumption.range(),
            moves: moved(ends),
        });
        alone.filter(|one| !one.moves.is_empty()).collect()
    }
}

/// What a layer is called in both machines: pools have names, and there is one of everything else.
fn key(layer: &Layer) -> (Kind, &str) {
    (layer.kind, if layer.kind == Kind::Drives { layer.name.as_str() } else { "" })
}

fn figures(ceilings: &Ceilings) -> Vec<[Option<f64>; 3]> {
    ceilings.layers.iter().map(|layer| [layer.read, layer.write, layer.both]).collect()
}
