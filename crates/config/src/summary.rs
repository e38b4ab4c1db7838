//! A configuration in a few lines, for `lunet config check`.

use super::Config;
use crate::units;

/// Says what a configuration would serve, and what of it is of no use.
pub fn summary(config: &Config) -> String {
    let luns = config.targets.iter().map(|target| target.luns.len()).sum();
    let sizes: u64 =
        config.volumes.iter().filter_map(|volume| volume.size()).fold(0, u64::saturating_add);
    let mut out = format!(
        "{}, {} ({} configured), {}, {}\n",
        number(portals(config), "portal"),
        number(config.volumes.len(), "volume"),
        units::size(sizes),
        number(config.targets.len(), "target"),
        number(luns, "LUN"),
    );
    for subsystem in &config.nvme.subsystems {
        let namespaces = number(subsystem.namespaces.len(), "namespace");
        out.push_str(&format!("over NVMe: {}, {namespaces}\n", subsystem.nqn));
    }
    for group in &config.pending {
        out.push_str(&format!(
            "group {}: its volumes and its target are in the cluster\n",
            group.name
        ));
    }
    for note in &config.notes {
        out.push_str(&format!("note: line {note}\n"));
    }
    for (index, volume) in config.volumes.iter().enumerate() {
        let mut luns = config.targets.iter().flat_map(|target| &target.luns);
        let mut namespaces = config.nvme.subsystems.iter().flat_map(|it| &it.namespaces);
        let is_namespace = namespaces.any(|(_, volume)| *volume == index);
        if !is_namespace && !luns.any(|(_, volume)| *volume == index) {
            out.push_str(&format!("note: volume \"{}\" is no LUN of any target\n", volume.name));
        }
    }
    for target in config.targets.iter().filter(|target| target.luns.is_empty()) {
        out.push_str(&format!("note: target {} has no LUNs\n", target.name));
    }
    out
}

/// How many portals are listened on, those included that there are where none is named.
fn portals(config: &Config) -> usize {
    match config.portals.len() + config.nvme.portals.len() {
        0 if config.nvme.subsystems.is_empty() => 1,
        0 => 2,
        named => named,
    }
}

fn number(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;

    #[test]
    fn what_is_of_no_use_is_said() {
        let text = "[volumes.a]\nbackend = 'null'\nsize = '1TiB'\n[volumes.b]\nbackend = 'memory'\n\
                    size = '1GiB'\n[[target]]\nname = 'iqn.2026-11.l:x'\nluns = ['a']\n\
                    [[target]]\nname = 'iqn.2026-11.l:y'\n";
        assert_eq!(
            summary(&check(text).unwrap()),
            "1 portal, 2 volumes (1 TiB configured), 2 targets, 1 LUN\n\
             note: volume \"b\" is no LUN of any target\n\
             note: target iqn.2026-11.l:y has no LUNs\n"
        );
        let more = "[[subsystem]]\nnqn = 'nqn.2026-11.l:s'\nnamespaces = ['b']\n";
        let told = summary(&check(&format!("{text}{more}")).unwrap());
        assert!(told.contains("\nover NVMe: nqn.2026-11.l:s, 1 namespace\n"), "{told}");
        assert!(!told.contains("\"b\" is no LUN"), "{told}");
    }
}
