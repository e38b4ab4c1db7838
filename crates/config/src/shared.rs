//! What the gateways of a failover group share of their configuration: its volumes and its target. It is in the cluster, and
//! is read as if it stood behind the file of each gateway.

use std::fmt;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};
use zeroize::Zeroizing;

use super::mistake::{Mistake, Mistakes};

/// What a group's configuration may have.
const KEYS: [&str; 2] = ["volumes", "target"];

/// The configuration that the gateways of a group share.
#[derive(Clone, PartialEq, Eq)]
pub struct Shared {
    /// The group, as the file of this gateway calls it.
    pub group: String,
    /// Counts its changes, from 1.
    pub revision: u64,
    /// TOML. There may be secrets in it.
    pub text: Zeroizing<String>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut told = f.debug_struct("Shared");
        told.field("group", &self.group).field("revision", &self.revision).finish_non_exhaustive()
    }
}

/// Where a line of the whole is: the group whose configuration it is in, `None` for the file, and the line there, from 1.
pub fn place<'s>(line: usize, text: &str, shared: &'s [Shared]) -> (Option<&'s str>, usize) {
    let lines = |text: &str| text.matches('\n').count() + 1;
    let Some(mut line) = line.checked_sub(lines(text)).filter(|line| *line > 0) else {
        return (None, line);
    };
    for one in shared {
        match line.checked_sub(lines(&one.text)).filter(|line| *line > 0) {
            Some(rest) => line = rest,
            None => return (Some(&one.group), line),
        }
    }
    (None, line)
}

/// Puts mistakes of the whole where they are: with each, the group whose configuration it is in.
pub fn placed(
    mistakes: Vec<Mistake>,
    text: &str,
    shared: &[Shared],
) -> Vec<(Option<String>, Mistake)> {
    let put = |mistake: Mistake| {
        let (group, line) = place(mistake.line, text, shared);
        (group.map(str::to_owned), Mistake { line, ..mistake })
    };
    mistakes.into_iter().map(put).collect()
}

/// The text of a group, with as much before it as is before it in the whole: what is parsed of it has its place there.
struct Padded {
    group: String,
    start: usize,
    text: Zeroizing<String>,
}

/// All texts, one behind the other.
pub(super) struct Whole {
    /// For the lines of mistakes.
    pub(super) text: Zeroizing<String>,
    /// Those of the groups.
    padded: Vec<Padded>,
}

impl Whole {
    pub(super) fn new(text: &str, shared: &[Shared]) -> Self {
        let length: usize = shared.iter().map(|one| one.text.len() + 1).sum();
        // Room for all of it: what grows out of its place leaves a copy behind.
        let mut whole = Zeroizing::new(String::with_capacity(text.len() + length));
        whole.push_str(text);
        let mut padded = Vec::new();
        for one in shared {
            let start = whole.len();
            whole.push('\n');
            whole.push_str(&one.text);
            let mut alone = Zeroizing::new(String::with_capacity(whole.len()));
            alone.extend(std::iter::repeat_n(' ', start));
            alone.push_str(&whole[start..]);
            padded.push(Padded { group: one.group.clone(), start: start + 1, text: alone });
        }
        Self { text: whole, padded }
    }

    /// Reads the file, and puts what groups share into it. `None` if one of the texts cannot be read as TOML, which is noted.
    pub(super) fn parse<'t>(
        &'t self,
        text: &'t str,
        mistakes: &mut Mistakes,
    ) -> Option<DeTable<'t>> {
        let mut root = super::parse(text, mistakes)?.into_inner();
        for Padded { group, start, text } in &self.padded {
            let part = super::parse(text, mistakes)?;
            let names = is_shared_by(&root, group);
            check(group, *start, part.get_ref(), names, mistakes);
            if names {
                join(&mut root, part.into_inner(), mistakes);
            }
        }
        Some(root)
    }
}

/// The group says that its volumes and its target are in the cluster.
pub(super) fn says_shared(group: &DeValue<'_>) -> bool {
    let shared = group.as_table().and_then(|table| table.get("shared"));
    shared.and_then(|value| value.get_ref().as_bool()) == Some(true)
}

/// The file has a group of that name that says so.
fn is_shared_by(root: &DeTable<'_>, name: &str) -> bool {
    let groups = root.get("group").and_then(|groups| groups.get_ref().as_table());
    groups.and_then(|groups| groups.get(name)).is_some_and(|group| says_shared(group.get_ref()))
}

/// Looks for what cannot be the same on all gateways.
fn check(group: &str, start: usize, part: &DeTable<'_>, names: bool, mistakes: &mut Mistakes) {
    if !names {
        let text = format!("the file has no [group.{group}] with `shared = true`");
        mistakes.add(start, format!("group.{group}"), text);
    }
    for key in part.keys().filter(|key| !KEYS.contains(&key.get_ref().as_ref())) {
        let text = "belongs into the file of each gateway: a group shares [volumes.NAME] and one [[target]]";
        mistakes.add(key.span().start, key.get_ref().to_string(), text);
    }
    let target = part.get("target");
    let all = target.and_then(|value| value.get_ref().as_array());
    let one = all.is_some_and(|all| all.len() == 1);
    if !one {
        let at = target.map_or(start, |target| target.span().start);
        mistakes.add(at, "target", "must be written as [[target]], once: a group has one target");
    }
    for (name, value) in part {
        own(name.get_ref(), value, mistakes);
    }
}

/// Notes keys whose values are a gateway's own.
fn own(path: &str, value: &Spanned<DeValue<'_>>, mistakes: &mut Mistakes) {
    match value.get_ref() {
        DeValue::Array(all) => all.iter().for_each(|value| own(path, value, mistakes)),
        DeValue::Table(table) => {
            for (key, value) in table {
                let (name, at) = (key.get_ref().as_ref(), key.span().start);
                let path = format!("{path}.{name}");
                let why = match name {
                    _ if name.ends_with("secret-file") || name.ends_with("key-file") => {
                        "is a file of one gateway: write the secret itself here"
                    }
                    _ if name.ends_with("secret-env") || name.ends_with("key-env") => {
                        "is of the environment of one gateway: write the secret itself here"
                    }
                    "portals" => {
                        "are addresses of one gateway: all portals of a gateway lead to the group"
                    }
                    "ceph-conf" | "ceph-user" | "ceph-keyring" => {
                        "belongs into [group.NAME] of each gateway"
                    }
                    _ => {
                        own(&path, value, mistakes);
                        continue;
                    }
                };
                mistakes.add(at, path, why);
            }
        }
        _ => {}
    }
}

/// Puts the volumes and the target of a group beside those of the file.
fn join<'t>(root: &mut DeTable<'t>, part: DeTable<'t>, mistakes: &mut Mistakes) {
    for (key, value) in part {
        let (at, name) = (value.span(), key.get_ref().clone().into_owned());
        match (root.get_mut(name.as_str()).map(Spanned::get_mut), value.into_inner()) {
            (None, value) if KEYS.contains(&name.as_str()) => {
                root.insert(key, Spanned::new(at, value));
            }
            (Some(DeValue::Table(ours)), DeValue::Table(theirs)) if name == "volumes" => {
                for (volume, value) in theirs {
                    if ours.contains_key(&volume) {
                        let text = "is the name of a volume in the file of this gateway already";
                        let key = format!("volumes.{}", volume.get_ref());
                        mistakes.add(volume.span().start, key, text);
                        continue;
                    }
                    ours.insert(volume, value);
                }
            }
            (Some(DeValue::Array(ours)), DeValue::Array(theirs)) if name == "target" => {
                push(ours, theirs);
            }
            // Others are noted already, or will be as what they are in the file.
            _ => {}
        }
    }
}

fn push<'t>(ours: &mut DeArray<'t>, theirs: DeArray<'t>) {
    theirs.into_iter().for_each(|value| ours.push(value));
}

#[cfg(test)]
mod tests {
    use super::super::{check, check_with};
    use super::*;

    const FILE: &str = "[server]\nalua = 'implicit'\n[[portal]]\naddress = '192.0.2.12'\ntag = 2\n\
                        [group.vms]\nrecord = 'rbd://p/vms'\ngateway = 2\nshared = true\nceph-user = 'l'\n";
    const PART: &str = "[volumes.a]\nbackend = 'rbd'\nimage = 'rbd://p/a'\n\
                        [[target]]\nname = 'iqn.2026-11.l:x'\nluns = ['a']\n";

    fn shared(text: &str) -> Vec<Shared> {
        vec![Shared { group: "vms".into(), revision: 7, text: Zeroizing::new(text.to_owned()) }]
    }

    fn wrong(file: &str, part: &str) -> Vec<(Option<String>, Mistake)> {
        let part = shared(part);
        placed(check_with(file, &part).unwrap_err(), file, &part)
    }

    #[test]
    fn a_gateway_without_the_groups_configuration_waits_for_it() {
        let config = check(FILE).unwrap();
        assert!(config.groups.is_empty() && config.targets.is_empty());
        let [group] = &config.pending[..] else { panic!("one group") };
        assert_eq!((&*group.name, group.gateway), ("vms", 2));
        assert_eq!(group.place().user_name(), "l");
    }

    #[test]
    fn what_is_shared_is_as_if_it_were_in_the_file() {
        let own = "[volumes.b]\nbackend = 'memory'\nsize = 512\n[[target]]\nname = 'iqn.2026-11.l:y'\nluns = ['b']\n";
        for file in [FILE.to_owned(), format!("{FILE}{own}"), format!("{own}{FILE}")] {
            let config = check_with(&file, &shared(PART)).unwrap();
            let [group] = &config.groups[..] else { panic!("one group") };
            assert!(group.shared && config.pending.is_empty());
            assert_eq!(config.targets[group.target].name, "iqn.2026-11.l:x");
            let volumes = &config.volumes;
            let of = |name: &str| volumes.iter().find(|volume| volume.name == name).unwrap();
            assert_eq!(of("a").group.as_deref(), Some("vms"));
        }
        // Written in other ways, and with what would be read as a key of the file's last table.
        for part in [
            "target = [{ name = 'iqn.2026-11.l:x', luns = ['a'] }]\nvolumes.a = { backend = 'rbd', image = 'rbd://p/a' }",
            "volumes.a.backend = 'rbd'\nvolumes.a.image = 'rbd://p/a'\n[[target]]\nname = 'iqn.2026-11.l:x'\nluns = ['a']",
        ] {
            let config = check_with(FILE, &shared(part)).unwrap();
            assert_eq!(config.groups.len(), 1);
        }
    }

    #[test]
    fn mistakes_have_the_line_of_the_groups_configuration() {
        for (part, line, words) in [
            ("[volumes", 1, ""),
            (&*format!("{PART}initiators = 7\n"), 7, "must be an array"),
            (&format!("{PART}[server]\n"), 7, "belongs into the file of each gateway"),
            (&format!("{PART}portals = ['192.0.2.12']\n"), 7, "addresses of one gateway"),
            (&format!("{PART}[[target]]\nname = 'iqn.2026-11.l:z'\n"), 4, "one target"),
            (
                &format!("{PART}[[target.user]]\nname = 'u'\nsecret-file = '/s'\n"),
                9,
                "a file of one gateway",
            ),
            (
                &format!("{PART}[[target.user]]\nname = 'u'\nsecret-env = 'S'\n"),
                9,
                "environment of one",
            ),
            (
                &PART.replace("[[target]]", "ceph-user = 'l'\n[[target]]"),
                4,
                "belongs into [group.NAME]",
            ),
            (
                &format!("{PART}[volumes.c]\nbackend = 'rbd'\nimage = 'rbd://p/c'\n"),
                7,
                "is no LUN of",
            ),
            (&PART.replace("image", "block-size = 512\nimage"), 2, "cannot have `block-size`"),
        ] {
            let mistakes = wrong(FILE, part);
            let (group, mistake) = &mistakes[0];
            assert_eq!((group.as_deref(), mistakes.len()), (Some("vms"), 1), "{mistakes:?}");
            assert!(mistake.text.contains(words), "{mistake}");
            // A volume's mistakes are where its table begins.
            assert!(mistake.line.abs_diff(line) <= 1, "{part}: {mistake}");
        }
        assert!(wrong(FILE, "").iter().all(|(group, _)| group.as_deref() == Some("vms")));
    }

    #[test]
    fn what_is_wrong_with_the_gateway_is_told_of_its_file() {
        let own = "[volumes.a]\nbackend = 'memory'\nsize = 512\n[[target]]\nname = 'iqn.2026-11.l:y'\nluns = ['a']\n";
        let mistakes = wrong(&format!("{FILE}{own}"), PART);
        assert!(mistakes.iter().any(|(_, one)| one.text.contains("in the file of this gateway")));
        let tag = FILE.replace("tag = 2", "tag = 1");
        for text in [check(&tag).unwrap_err(), check_with(&tag, &shared(PART)).unwrap_err()] {
            assert!(text[0].text.contains("`tag = 2`"), "{text:?}");
        }
        let both = FILE.replace("shared = true", "shared = true\ntargets = ['iqn.2026-11.l:x']");
        assert!(check(&both).unwrap_err()[0].text.contains("in the cluster"));
        // A text for a group that is not there is served by nobody.
        let gone = FILE.replace("shared = true", "targets = ['iqn.2026-11.l:x']");
        let mistakes = wrong(&gone, PART);
        assert!(
            mistakes.iter().any(|(_, one)| one.text.contains("has no [group.vms]")),
            "{mistakes:?}"
        );
    }
}
