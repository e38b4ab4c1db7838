//! Any text as a configuration.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use lunet::config::{check, summary};

fuzz_target!(|text: &str| {
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
        }
        Err(mistakes) => {
            assert!((1..=100).contains(&mistakes.len()));
            let lines = text.split('\n').count();
            assert!(mistakes.iter().all(|mistake| (1..=lines).contains(&mistake.line)));
            assert!(mistakes.iter().all(|mistake| !mistake.to_string().is_empty()));
        }
    }
});
