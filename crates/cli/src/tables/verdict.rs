//! `lunet verdict`

use lunet_api::{Binding, BoundBy, StageShare, Verdict};

use super::layout::harmless;

/// Describes what binds a server and each volume that has something to do.
pub fn verdict(verdict: &Verdict) -> String {
    let mut out = format!("{}\n", harmless(&verdict.server.sentence));
    details(&mut out, &verdict.server);
    let busy = |bound: &BoundBy| *bound != BoundBy::Idle;
    let (at_work, idle): (Vec<_>, Vec<_>) =
        verdict.volumes.iter().partition(|volume| busy(&volume.binding.bound_by));
    for volume in at_work {
        let (name, binding) = (harmless(&volume.name), &volume.binding);
        out.push_str(&format!("\nvolume {name}: {}\n", harmless(&binding.sentence)));
        details(&mut out, binding);
    }
    match idle.len() {
        0 => {}
        1 => out.push_str("\n1 volume is idle\n"),
        n => out.push_str(&format!("\n{n} volumes are idle\n")),
    }
    out
}

fn details(out: &mut String, binding: &Binding) {
    if let Some(stages) = stages(&binding.stages) {
        out.push_str(&format!("  time: {stages} ({} operations timed)\n", binding.sampled));
    }
    for line in &binding.evidence {
        out.push_str(&format!("  {}\n", harmless(line)));
    }
}

/// Where time went: `storage 93 %, initiator 7 %`. What is less than a hundredth is left out; `None` if nothing is known.
pub(super) fn stages(shares: &[StageShare]) -> Option<String> {
    let shown = shares.iter().filter(|one| one.share >= 0.005);
    let shown: Vec<String> = shown
        .map(|one| format!("{} {:.0} %", harmless(one.stage.as_str()), one.share * 100.0))
        .collect();
    (!shown.is_empty()).then(|| shown.join(", "))
}

#[cfg(test)]
mod tests {
    use lunet_api::{Stage, VolumeBinding};

    use super::*;

    #[test]
    fn busy_volumes_are_described_and_idle_ones_counted() {
        let binding = Binding {
            bound_by: BoundBy::Storage,
            sentence: "Bound by the storage.".to_owned(),
            at_limit: None,
            evidence: vec!["8000 operations/s.".to_owned()],
            stages: vec![
                StageShare { stage: Stage::Storage, share: 0.93 },
                StageShare { stage: Stage::Initiator, share: 0.068 },
                StageShare { stage: Stage::Queue, share: 0.002 },
            ],
            sampled: 125,
        };
        let idle = Binding { bound_by: BoundBy::Idle, ..Binding::default() };
        let volumes = vec![
            VolumeBinding { name: "vm\u{1b}".to_owned(), binding: binding.clone() },
            VolumeBinding { name: "old".to_owned(), binding: idle },
        ];
        let text = verdict(&Verdict { server: binding, volumes, ..Verdict::default() });
        let details =
            "  time: storage 93 %, initiator 7 % (125 operations timed)\n  8000 operations/s.\n";
        assert_eq!(
            text,
            format!(
                "Bound by the storage.\n{details}\nvolume vm?: Bound by the storage.\n{details}\n1 volume is idle\n"
            )
        );
    }
}
