//! Any text as a configuration.
use std::path::Path;

use lunet_config::edit::{Editor, size};
use lunet_config::{Config, Shared, check, check_with, placed, summary};
use zeroize::Zeroizing;

/// A gateway of a group that shares its volumes and its target.
const GATEWAY: &str =
    "[server]\nalua = 'implicit'\n[group.g]\nrecord = 'rbd://p/g'\ngateway = 1\nshared = true\n";

/// One input.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    share(text);
    match check(text) {
        Ok(config) => {
            assert!(!summary(&config).is_empty());
            for volume in &config.volumes {
                let _ = (volume.path(Path::new("/data")), volume.size());
            }
            for target in &config.targets {
                assert!(target.portals.iter().all(|portal| *portal < config.portals.len()));
                assert!(target.luns.iter().all(|(_, volume)| *volume < config.volumes.len()));
            }
            edit(text, &config);
        }
        Err(mistakes) => {
            assert!((1..=100).contains(&mistakes.len()));
            let lines = text.split('\n').count();
            assert!(mistakes.iter().all(|mistake| (1..=lines).contains(&mistake.line)));
            assert!(mistakes.iter().all(|mistake| !mistake.to_string().is_empty()));
        }
    }
}

/// The same text as what a group shares.
fn share(text: &str) {
    let text = Zeroizing::new(text.to_owned());
    let lines = text.split('\n').count();
    let shared = [Shared { group: "g".into(), revision: 1, text }];
    match check_with(GATEWAY, &shared) {
        Ok(config) => {
            let [group] = &config.groups[..] else { panic!("one group") };
            assert!(group.target < config.targets.len());
            assert!(config.volumes.iter().all(|volume| volume.group.as_deref() == Some("g")));
        }
        Err(mistakes) => {
            let own = GATEWAY.split('\n').count();
            for (group, mistake) in placed(mistakes, GATEWAY, &shared) {
                let lines = if group.is_some() { lines } else { own };
                assert!((1..=lines).contains(&mistake.line), "{mistake}");
            }
        }
    }
}

/// Every kind of change to a configuration that is right. A change that cannot be made is refused, and
/// whatever comes out is still read as TOML; the server checks what it says.
fn edit(text: &str, config: &Config) {
    let same = Editor::new(text).expect("it has been read").text();
    assert_eq!(check(&same).as_ref(), Ok(config));
    let try_to = |change: &dyn Fn(&mut Editor) -> bool| {
        let mut editor = Editor::new(text).expect("it has been read");
        if change(&mut editor) {
            let _ = Editor::new(&editor.text()).expect("it is TOML still");
        }
    };
    let keys = [("backend", "null".into()), ("size", size(4096))];
    try_to(&|editor| editor.add_volume("added", &keys).is_ok());
    try_to(&|editor| editor.add_target("iqn.2026-11.added:x", Some("added"), false).is_ok());
    for volume in &config.volumes {
        try_to(&|editor| editor.remove_volume(&volume.name).is_ok());
        try_to(&|editor| editor.set_size(&volume.name, 8192).is_ok());
        try_to(&|editor| editor.inherited(&volume.name).is_ok());
    }
    for target in &config.targets {
        try_to(&|editor| editor.remove_target(&target.name).is_ok());
        try_to(&|editor| editor.add_lun(&target.name, 16_383, "added").is_ok());
        try_to(&|editor| editor.add_lun(&target.name, target.luns.len() as u16, "added").is_ok());
        for (lun, _) in &target.luns {
            try_to(&|editor| editor.remove_lun(&target.name, *lun).is_ok());
        }
    }
}
