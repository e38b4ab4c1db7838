//! Whether the figures agree with the capacity model of `lunet doctor --ceilings`.

use lunet_bench::model::{CeilingKind, Results, Run, Unit};
use lunet_host::ceilings::{Ceilings, Layer};

/// A measurement may exceed a model by so much: models round.
const TOLERANCE: f64 = 1.05;
const MIB: f64 = (1 << 20) as f64;

/// Which layers of the model concern these results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// What stores the data is on this machine.
    pub drives: bool,
    /// Data crosses a network card of this machine.
    pub network: bool,
}

impl Scope {
    /// What a layer is named by its model: `drives of tank`, `PCIe of eth0`.
    fn concerns(self, layer: &Layer) -> bool {
        let network = layer.name == "network" || layer.name.starts_with("PCIe of ");
        let drives = layer.name.starts_with("drives of ");
        !layer.one_session && (!network || self.network) && (!drives || self.drives)
    }
}

/// A direction: the model's figure of a layer, and what was measured, both in MiB/s.
struct Direction {
    name: &'static str,
    of_layer: fn(&Layer) -> Option<f64>,
    of_run: fn(&Run) -> f64,
}

const DIRECTIONS: [Direction; 2] = [
    Direction {
        name: "reads",
        of_layer: |layer| layer.read,
        of_run: |run| run.read.as_ref().map_or(0.0, |flow| flow.mib_per_s),
    },
    Direction {
        name: "writes",
        of_layer: |layer| layer.write,
        of_run: |run| run.write.as_ref().map_or(0.0, |flow| flow.mib_per_s),
    },
];

/// What the model says to these results, a sentence each.
pub fn agreement(model: &Ceilings, results: &Results, scope: Scope) -> Vec<String> {
    let layers: Vec<&Layer> = model.layers.iter().filter(|layer| scope.concerns(layer)).collect();
    let mut told = Vec::new();
    for direction in &DIRECTIONS {
        told.extend(compared(direction, &layers, results));
    }
    told.extend(measured(&layers, results));
    let missing: Vec<String> = layers
        .iter()
        .filter_map(|layer| Some(format!("{} ({})", layer.name, layer.missing.as_ref()?)))
        .collect();
    if !missing.is_empty() {
        told.push(format!(
            "The model of lunet doctor has no figure here for: {}. Of these only what was measured counts.",
            missing.join(", ")
        ));
    }
    if scope.drives && !layers.iter().any(|layer| layer.name.starts_with("drives of ")) {
        told.push(
            "The model of lunet doctor knows drives by their pools, and there is none here: of the drives only what was \
             measured counts."
                .to_owned(),
        );
    }
    told
}

/// The fastest run against the narrowest layer.
fn compared(direction: &Direction, layers: &[&Layer], results: &Results) -> Option<String> {
    let known = layers
        .iter()
        .filter_map(|layer| Some(((direction.of_layer)(layer)? / MIB, layer.name.as_str())));
    let (most, name) = known.min_by(|a, b| a.0.total_cmp(&b.0))?;
    let fastest = results.runs.iter().map(direction.of_run).fold(0.0, f64::max);
    if fastest <= 0.0 || most <= 0.0 {
        return None;
    }
    let what = direction.name;
    let head = format!(
        "lunet doctor --ceilings: {what} of at most {most:.0} MiB/s, by its layer \"{name}\"; the fastest run here moved \
         {fastest:.0} MiB/s, {:.0} % of that",
        fastest / most * 100.0
    );
    Some(match fastest <= most * TOLERANCE {
        true => format!("{head}: both agree."),
        // Its figure for a layer is for data that comes from drives and goes to a network card.
        false => format!(
            "{head}: the model does not stand here. It counts every crossing from drives to a network card, and these \
             data came from a cache or memory, or did not leave the machine."
        ),
    })
}

/// Ceilings of which both have a figure of the same thing: the network's wire and the drives.
fn measured(layers: &[&Layer], results: &Results) -> Vec<String> {
    let pairs = [(CeilingKind::Network, "network"), (CeilingKind::Drive, "drives of ")];
    let mut told = Vec::new();
    for (kind, name) in pairs {
        let own = results.ceilings.iter().filter(|one| one.kind == kind);
        let in_mib = |one: &lunet_bench::model::Ceiling| {
            let block = one.workload.as_deref().and_then(|name| results.workload(name));
            match (one.unit, block) {
                (Unit::MibPerS, _) => Some(one.value),
                (Unit::Iops, Some(load)) => Some(one.in_unit(Unit::MibPerS, load.block_bytes)),
                (Unit::Iops, None) => None,
            }
        };
        let Some(most) = own.filter_map(in_mib).max_by(f64::total_cmp) else { continue };
        let layer = layers.iter().find(|layer| layer.name.starts_with(name));
        let Some((layer, model)) = layer.and_then(|layer| Some((layer, layer.read? / MIB))) else {
            continue;
        };
        let words = if most <= model * TOLERANCE { "agrees with" } else { "exceeds" };
        told.push(format!(
            "Measured on the spot, {} carries up to {most:.0} MiB/s, which {words} the model's {model:.0} MiB/s.",
            layer.name
        ));
    }
    told
}

#[cfg(test)]
mod tests {
    use lunet_bench::model::{Ceiling, Flow};

    use super::*;

    const HERE: Scope = Scope { drives: true, network: false };

    fn layer(name: &str, mib: f64) -> Layer {
        let rate = Some(mib * MIB);
        Layer { name: name.into(), read: rate, write: rate, ..Layer::default() }
    }

    fn model(layers: Vec<Layer>) -> Ceilings {
        Ceilings { layers, ..Ceilings::default() }
    }

    fn results(mib: f64) -> Results {
        let flow = Flow { mib_per_s: mib, ..Flow::default() };
        let runs = vec![Run { read: Some(flow), ..Run::default() }];
        Results { runs, ..Results::default() }
    }

    #[test]
    fn less_than_the_model_agrees_and_more_does_not() {
        let model = model(vec![layer("memory", 4000.0), layer("network", 1000.0)]);
        let told = agreement(&model, &results(2000.0), Scope { drives: false, network: false });
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("\"memory\"") && told[0].ends_with("50 % of that: both agree."));
        // The same over a card: its wire is too narrow for what was seen.
        let told = agreement(&model, &results(2000.0), Scope { drives: false, network: true });
        assert!(told[0].contains("\"network\"") && told[0].contains("does not stand"), "{told:?}");
    }

    #[test]
    fn what_the_model_does_not_know_is_said() {
        let unknown = Layer {
            name: "memory".into(),
            missing: Some("the modules".into()),
            ..Layer::default()
        };
        let told = agreement(&model(vec![unknown]), &results(1.0), HERE);
        assert!(told.iter().any(|one| one.contains("memory (the modules)")), "{told:?}");
        assert!(told.iter().any(|one| one.contains("by their pools")), "{told:?}");
    }

    #[test]
    fn a_measured_wire_is_compared_with_its_model() {
        let mut results = results(900.0);
        results.ceilings.push(Ceiling {
            kind: CeilingKind::Network,
            name: "network".into(),
            value: 1100.0,
            unit: Unit::MibPerS,
            how: "measured".into(),
            target: None,
            workload: None,
            outstanding: None,
            latency_us: None,
            generator_busy: None,
        });
        let scope = Scope { drives: false, network: true };
        let told = agreement(&model(vec![layer("network", 1180.0)]), &results, scope);
        assert!(told.iter().any(|one| one.contains("agrees with the model's 1180")), "{told:?}");
    }
}
