//! One program for all targets: `TARGET=text fuzz corpus/text seeds/text`.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use lunet_fuzz::targets::{ALL, Target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("TARGET").unwrap_or_default();
    let found = ALL.iter().find(|(target, _)| *target == name);
    *found.unwrap_or_else(|| panic!("TARGET has to name a target; there is no {name:?}"))
});

fuzz_target!(|data: &[u8]| (TARGET.1)(data));
