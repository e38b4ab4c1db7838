//! The doctor and the tuner, where both judge a setting.

use std::collections::BTreeSet;
use std::fmt::Write;

use lunet_host::facts::facts;
use lunet_host::plan::{Item, Verdict, plan};
use lunet_host::rules::{Choice, Loader, Profile, Rule, Rules, Setting};

use super::{REPORTS, faults, planted};

/// The names under which a setting stands in the fix of a check.
fn name(setting: &Setting) -> Option<&str> {
    match setting {
        Setting::Sysctl { name } | Setting::Module { name, .. } | Setting::Cmdline { name } => {
            Some(name)
        }
        Setting::FreeBsd { name, .. } => Some(name),
        Setting::Sysfs { path } => Some(path),
        Setting::Zfs { .. }
        | Setting::Conf { .. }
        | Setting::Cpus { .. }
        | Setting::Ring { .. } => None,
    }
}

/// The value that a fix gives this setting: `NAME=VALUE`, `echo VALUE > PATH`.
fn given(fix: &str, name: &str) -> Option<i64> {
    let told = match fix.split_once(&format!("{name}=")) {
        Some((_, told)) => told,
        None => fix.split_once(&format!(" > {name}"))?.0.rsplit("echo ").next()?,
    };
    let digits: String = told.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// What the tuner has against a fix of the doctor, in some words; nothing if it sets or advises it.
fn against(item: &Item, fix: &str) -> Option<String> {
    let name = item.setting.as_ref().and_then(name)?;
    let number =
        |text: &Option<String>| text.as_deref().and_then(|text| text.trim().parse::<i64>().ok());
    match (&item.verdict, given(fix, name)) {
        (Verdict::Good, _) => Some(format!("{name} is as it should be")),
        (Verdict::NotApplicable { because }, _) => Some(format!("{name} stays: {because}")),
        (Verdict::Change, Some(given)) => {
            let (now, wanted) = (number(&item.now)?, number(&item.wanted)?);
            let other = (wanted - now).signum() != (given - now).signum();
            other.then(|| format!("{name}: {now} becomes {wanted}, and not {given}"))
        }
        (Verdict::Change | Verdict::Advice { .. }, _) => None,
    }
}

/// The names under which rules set something, up to what is filled in.
fn names(rules: &Rules) -> Vec<String> {
    let last = |name: &str| {
        let start = name.split('{').next_back().unwrap_or_default();
        start.rsplit('}').next().unwrap_or_default().to_owned()
    };
    let set = |rule: &Rule| Some(last(name(rule.set.as_ref()?.source())?));
    rules.all().iter().filter_map(set).collect()
}

/// What speaks against a fix in all that the tuner says of the machine: nothing if it speaks of none of the settings, or
/// if a rule sets or advises one of them.
fn objections(items: &[Item], fix: &str) -> BTreeSet<String> {
    let advised = |item: &&Item| match &item.verdict {
        Verdict::Advice { advice } => advice
            .split([' ', ',', ';', ':'])
            .any(|word| word.contains(['.', '_']) && fix.contains(word)),
        _ => false,
    };
    if items.iter().any(|item| advised(&item)) {
        return BTreeSet::new();
    }
    let judges =
        |item: &&Item| item.setting.as_ref().and_then(name).is_some_and(|name| fix.contains(name));
    let told: Option<BTreeSet<String>> =
        items.iter().filter(judges).map(|item| against(item, fix)).collect();
    told.unwrap_or_default()
}

/// Where both judge a setting: what the doctor says to set, the tuner sets or advises for some profile, and in the same
/// direction. What is to be done at the other end is no matter of this machine's tuner.
#[test]
fn doctor_and_tuner_do_not_contradict_each_other() {
    let rules = Loader::own().unwrap();
    let sets = names(&rules);
    let (faults, mut wrong, mut both) = (faults(), String::new(), BTreeSet::new());
    for (fault, report) in faults.iter().zip(REPORTS.iter()) {
        let Ok(report) = report else { continue };
        let told = |fix: &str| {
            sets.iter().any(|name| fix.contains(name.as_str())) && !fix.contains("at the other end")
        };
        let findings: Vec<_> =
            report.findings.iter().filter(|finding| told(&finding.fix)).collect();
        if findings.is_empty() {
            continue;
        }
        let tree = planted(fault).unwrap();
        let facts = facts(&tree);
        let plan =
            |profile| plan(&tree, &facts, &rules, profile, &Choice::default()).unwrap().items;
        let items: Vec<Item> = Profile::ALL.into_iter().flat_map(plan).collect();
        for finding in findings {
            both.insert(finding.check.as_str());
            let told = objections(&items, &finding.fix);
            if !told.is_empty() {
                let _ = writeln!(
                    wrong,
                    "{} ({}): {}\n    the tuner: {told:?}",
                    fault.name, finding.check, finding.fix
                );
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    assert!(both.len() >= 20, "{both:?}");
}

/// A fix that names a rule of the tuner (`--only machine.governor`) names one that there is.
#[test]
fn a_fix_names_no_rule_that_is_not_there() {
    let rules = Loader::own().unwrap();
    let mut named = 0;
    for report in REPORTS.iter().flatten() {
        for finding in &report.findings {
            let words: Vec<&str> = finding.fix.split_whitespace().collect();
            for pair in words.windows(2).filter(|pair| ["--only", "explain"].contains(&pair[0])) {
                let id = pair[1].trim_end_matches([')', ';', ',']);
                assert!(rules.all().iter().any(|rule| rule.id == id), "{}: {id}", finding.check);
                named += 1;
            }
        }
    }
    assert!(named >= 4, "{named}");
}
