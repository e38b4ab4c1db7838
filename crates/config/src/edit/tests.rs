use proptest::prelude::*;

use super::*;
use crate::{Config, check};

const FILE: &str = "\
# lunet.toml: two volumes, two targets

[server]
data = \"/d\" # here

# the first
[volumes.vm1]            # a sparse file
backend = \"file\"
size = \"2GiB\"   # for now
block-size = 4096
serial = \"77\"

# a paragraph of its own

# the second
[volumes.db]
backend = \"null\"
size = 8192

[[target]]
name = \"iqn.2026-11.l:x\"
luns = {0 = \"vm1\", 1 = \"db\"}   # both

# the last
[[target]]
name = \"iqn.2026-11.l:y\"
luns = [\"db\"]
# the end
";

fn edited(text: &str, change: impl FnOnce(&mut Editor)) -> String {
    let mut editor = Editor::new(text).unwrap();
    change(&mut editor);
    let text = editor.text();
    check(&text).unwrap_or_else(|mistakes| panic!("{mistakes:?}\n{text}"));
    text
}

/// `FILE` with each of the pieces replaced.
fn with(pieces: &[(&str, &str)]) -> String {
    pieces.iter().fold(FILE.to_owned(), |text, (old, new)| {
        assert_eq!(text.matches(old).count(), 1, "{old}");
        text.replace(old, new)
    })
}

#[test]
fn what_is_added_stands_behind_its_like() {
    let keys = [("backend", "memory".into()), ("size", size(3 << 20))];
    let text = edited(FILE, |editor| editor.add_volume("new", &keys).unwrap());
    let new = "size = 8192\n\n[volumes.new]\nbackend = \"memory\"\nsize = \"3MiB\"\n";
    assert_eq!(text, with(&[("size = 8192\n", new)]));
    let text =
        edited(FILE, |editor| editor.add_target("iqn.2026-11.l:z", Some("Z"), false).unwrap());
    let new = "luns = [\"db\"]\n\n[[target]]\nname = \"iqn.2026-11.l:z\"\nalias = \"Z\"\n";
    assert_eq!(text, with(&[("luns = [\"db\"]\n", new)]));
}

#[test]
fn what_is_removed_takes_the_comment_about_it_along() {
    let text = edited(FILE, |editor| {
        editor.remove_lun("iqn.2026-11.l:x", 0).unwrap();
        editor.remove_volume("vm1").unwrap();
    });
    let gone = FILE.find("# the first").unwrap()..FILE.find("# a paragraph").unwrap();
    let luns = ("{0 = \"vm1\", 1 = \"db\"}", "{ 1 = \"db\" }");
    assert_eq!(text, with(&[(&FILE[gone], ""), luns]));
    let text = edited(FILE, |editor| editor.remove_target("iqn.2026-11.l:y").unwrap());
    let gone = FILE.find("\n# the last").unwrap()..FILE.find("# the end").unwrap();
    assert_eq!(text, with(&[(&FILE[gone], "")]));
}

#[test]
fn a_paragraph_above_what_is_removed_stays() {
    let text = edited(FILE, |editor| {
        editor.remove_lun("iqn.2026-11.l:x", 1).unwrap();
        editor.add_lun("iqn.2026-11.l:y", 1, "vm1").unwrap();
        editor.remove_lun("iqn.2026-11.l:y", 0).unwrap();
        editor.remove_volume("db").unwrap();
    });
    let gone = FILE.find("# the second").unwrap()..FILE.find("\n[[target]]").unwrap();
    let luns = ("{0 = \"vm1\", 1 = \"db\"}", "{ 0 = \"vm1\" }");
    let expected = with(&[(&FILE[gone], ""), luns, ("[\"db\"]", "{ 1 = \"vm1\" }")]);
    assert_eq!(text, expected.replace("own\n\n\n", "own\n\n"));
}

#[test]
fn a_size_changes_in_its_place() {
    let text = edited(FILE, |editor| editor.set_size("vm1", 3 << 30).unwrap());
    assert_eq!(text, with(&[("\"2GiB\"", "\"3GiB\"")]));
    let text = edited(FILE, |editor| editor.set_size("db", 512).unwrap());
    assert_eq!(text, with(&[("size = 8192", "size = 512")]));
    for (bytes, words) in [
        (512, "512"),
        (1 << 10, "\"1KiB\""),
        (3 << 40, "\"3TiB\""),
        (1 << 60, "\"1024PiB\""),
        ((1 << 30) + 512, "1073742336"),
        (1536 << 20, "\"1536MiB\""),
    ] {
        assert_eq!(size(bytes).to_string(), words);
    }
}

#[test]
fn a_clone_inherits_what_is_not_the_sources_own() {
    let inherited = Editor::new(FILE).unwrap().inherited("vm1").unwrap();
    let words: Vec<String> = inherited.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(words, ["block-size=4096"]);
}

#[test]
fn luns_in_lines_keep_their_comments() {
    let head = "[volumes.a]\nbackend='null'\nsize=512\n[volumes.b]\nbackend='null'\nsize=512\n\
                [volumes.c]\nbackend='null'\nsize=512\n[[target]]\nname = 'iqn.2026-11.l:x'\n";
    let target = "iqn.2026-11.l:x";
    for (before, number, after) in [
        (
            "luns = [\n  'a', # one\n  'b', # two\n]",
            2,
            "luns = [\n  'a', # one\n  'b', # two\n  \"c\",\n]",
        ),
        (
            "luns = [\n  'a', # one\n  'b' # two\n]",
            2,
            "luns = [\n  'a', # one\n  'b', # two\n  \"c\"\n]",
        ),
        (
            "luns = {\n  0 = 'a', # one\n  1 = 'b', # two\n}",
            7,
            "luns = {\n  0 = 'a', # one\n  1 = 'b', # two\n  7 = \"c\",\n}",
        ),
        (
            "luns = {\n  0 = 'a', # one\n  1 = 'b' # two\n}",
            7,
            "luns = {\n  0 = 'a', # one\n  1 = 'b', # two\n  7 = \"c\"\n}",
        ),
        (
            "luns = [\n  'a', # one\n  'b', # two\n]",
            7,
            "luns = {\n  0 = 'a', # one\n  1 = 'b', # two\n  7 = \"c\",\n}",
        ),
        ("luns.1 = 'b' # two", 7, "luns.1 = 'b' # two\nluns.7 = \"c\""),
        (
            "[target.luns]\n0 = 'a'\n# two\n1 = 'b'",
            7,
            "[target.luns]\n0 = 'a'\n# two\n1 = 'b'\n7 = \"c\"",
        ),
        ("alias = 'x'", 7, "alias = 'x'\nluns = { 7 = \"c\" }"),
    ] {
        let text = format!("{head}{before}\n");
        let added = edited(&text, |editor| editor.add_lun(target, number, "c").unwrap());
        assert_eq!(added, format!("{head}{after}\n"));
        let removed = edited(&added, |editor| editor.remove_lun(target, number).unwrap());
        assert_eq!(comments(&removed), comments(&text), "{removed}");
        let removed = edited(&added, |editor| {
            let _ = editor.remove_lun(target, 1);
        });
        // A line of its own goes with the comments about it.
        let own_line = before.starts_with("luns.1") || before.starts_with('[');
        let gone = usize::from(own_line);
        assert_eq!(comments(&removed).len(), comments(&text).len() - gone, "{removed}");
    }
}

#[test]
fn what_is_not_there_is_said() {
    let mut editor = Editor::new(FILE).unwrap();
    let missing = |result: Result<(), EditError>| result.unwrap_err().to_string();
    assert!(missing(editor.remove_volume("x")).ends_with("has no volume \"x\""));
    assert!(missing(editor.set_size("x", 1)).ends_with("has no volume \"x\""));
    assert!(missing(editor.remove_target("iqn.x")).ends_with("has no target iqn.x"));
    assert!(missing(editor.remove_lun("iqn.2026-11.l:y", 1)).contains("no LUN 1 of target"));
    assert_eq!(editor.text(), FILE);
    assert_eq!(Editor::new("[x").unwrap_err(), EditError::NotToml);
}

/// The comments of a text, in their order.
fn comments(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.find('#').map(|at| line[at..].trim_end())).collect()
}

fn lines(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.trim().is_empty()).collect()
}

/// One line of a file that is made up, with what may stand above and behind it.
fn decorated(line: String) -> impl Strategy<Value = String> {
    let above =
        prop::collection::vec(prop_oneof![Just(""), Just("# about it"), Just("  # more")], 0..3);
    (above, prop_oneof![Just(""), Just(" # behind"), Just("  ")]).prop_map(
        move |(above, behind)| {
            let above: String = above.iter().map(|line| format!("{line}\n")).collect();
            format!("{above}{line}{behind}\n")
        },
    )
}

fn volume(name: &'static str) -> impl Strategy<Value = String> {
    let size = prop_oneof![Just("size = 8192"), Just("size = \"1MiB\""), Just("size='1.5 KiB'")];
    size.prop_flat_map(move |size| {
        let lines = [&format!("[volumes.{name}]"), "backend = \"memory\"", size];
        lines.map(|line| decorated(line.to_owned()).boxed()).to_vec()
    })
    .prop_map(|lines| lines.concat())
}

fn target(name: &'static str) -> impl Strategy<Value = String> {
    let luns = prop_oneof![
        Just(None),
        Just(Some("luns = [\"a\", 'b']")),
        Just(Some("luns = []")),
        Just(Some("luns = { 0 = \"a\", 5 = 'b' }")),
        Just(Some("luns={0='a'}")),
        Just(Some("luns = [ # first\n \"a\", # second\n 'b' # third\n]")),
        Just(Some("luns = [\n # zero\n \"a\", # second\n 'b', # third\n]")),
        Just(Some("luns = {\n 0 = \"a\",\n # above\n 3 = 'b', # behind\n # last\n}")),
        Just(Some("luns = {\n 0 = \"a\",\n # above\n 3 = 'b' # behind\n # last\n}")),
        Just(Some("luns.0 = \"a\"")),
        Just(Some("[target.luns]\n# here\n0 = 'a' # there\n")),
    ];
    luns.prop_flat_map(move |luns| {
        let name = format!("name = 'iqn.2026-11.l:{name}'");
        let head = ["[[target]]", &name].map(|line| decorated(line.to_owned()).boxed());
        let luns = luns.map(|luns| decorated(luns.to_owned()).boxed());
        head.into_iter().chain(luns).collect::<Vec<_>>()
    })
    .prop_map(|lines| lines.concat())
}

/// Some files, with volumes before targets, behind them, and between them.
fn file() -> impl Strategy<Value = String> {
    let parts = (
        volume("a"),
        target("x"),
        volume("b"),
        target("y"),
        volume("c"),
        decorated("[server]\nshards = 1".into()),
    );
    let parts = parts.prop_map(|(a, x, b, y, c, s)| vec![a, x, b, y, c, s]);
    (parts.prop_shuffle(), prop_oneof![Just(""), Just("# the end"), Just("\n# the end\n")])
        .prop_map(|(parts, end)| parts.concat() + end)
}

/// A target's name and its LUNs.
type Luns = (String, Vec<(u16, String)>);

/// What a configuration says, without the order of its targets' indices.
fn meaning(config: &Config) -> (Vec<String>, Vec<Luns>) {
    let volumes = config.volumes.iter().map(|v| format!("{} {:?}", v.name, v.size())).collect();
    let luns = |luns: &[(u16, usize)]| {
        luns.iter().map(|(lun, at)| (*lun, config.volumes[*at].name.clone())).collect()
    };
    let targets = config.targets.iter().map(|t| (t.name.clone(), luns(&t.luns))).collect();
    (volumes, targets)
}

/// The lines from the comment right above the heading to the last one before the next heading's
/// paragraph: what goes with a table.
fn outside<'a>(text: &'a str, heading: &str, name: &str) -> Vec<&'a str> {
    let lines: Vec<&str> = text.lines().collect();
    let found = (0..lines.len()).find(|at| {
        let here = lines[*at].starts_with(heading);
        here && (heading != "[[target]]"
            || lines[*at..]
                .iter()
                .find(|l| l.starts_with("name"))
                .is_some_and(|l| l.contains(name)))
    });
    let mut from = found.expect(heading);
    let mut to = from + 1;
    while from > 0 && lines[from - 1].trim().starts_with('#') {
        from -= 1;
    }
    while to < lines.len() && (!lines[to].starts_with('[') || lines[to].starts_with("[target.")) {
        to += 1;
    }
    // What stands above the next heading is that heading's.
    while to > 0 && (lines[to - 1].trim().is_empty() || lines[to - 1].trim().starts_with('#')) {
        to -= 1;
    }
    let kept = lines[..from].iter().chain(&lines[to..]);
    kept.copied().filter(|line| !line.trim().is_empty()).collect()
}

proptest! {
    #[test]
    fn an_addition_changes_nothing_else(text in file()) {
        let old = meaning(&check(&text).map_err(|m| TestCaseError::fail(format!("{m:?}\n{text}")))?);
        let keys = [("backend", "memory".into()), ("size", size(4096))];
        let with_volume = edited(&text, |editor| editor.add_volume("d", &keys).unwrap());
        let mut new = old.clone();
        new.0.push("d Some(4096)".to_owned());
        prop_assert_eq!(meaning(&check(&with_volume).unwrap()), new);
        prop_assert_eq!(comments(&with_volume), comments(&text));
        let gone = edited(&with_volume, |editor| editor.remove_volume("d").unwrap());
        prop_assert_eq!(lines(&gone), lines(&text));
        let with_target = edited(&text, |editor| editor.add_target("iqn.2026-11.l:z", None, false).unwrap());
        let mut new = old.clone();
        new.1.push(("iqn.2026-11.l:z".to_owned(), Vec::new()));
        prop_assert_eq!(meaning(&check(&with_target).unwrap()), new);
        prop_assert_eq!(comments(&with_target), comments(&text));
        let gone = edited(&with_target, |editor| editor.remove_target("iqn.2026-11.l:z").unwrap());
        prop_assert_eq!(lines(&gone), lines(&text));
    }

    #[test]
    fn a_removal_takes_its_own_lines(text in file(), index in 0usize..3) {
        let name = ["a", "b", "c"][index];
        let mut editor = Editor::new(&text).unwrap();
        editor.remove_volume(name).unwrap();
        let heading = format!("[volumes.{name}]");
        let gone = editor.text();
        prop_assert_eq!(lines(&gone), outside(&text, &heading, ""), "{}", gone);
        let name = ["iqn.2026-11.l:x", "iqn.2026-11.l:y"][index % 2];
        let gone = edited(&text, |editor| editor.remove_target(name).unwrap());
        prop_assert_eq!(lines(&gone), outside(&text, "[[target]]", name), "{}", gone);
    }

    #[test]
    fn luns_come_and_go_alone(text in file(), lun in prop_oneof![Just(1u16), Just(2), Just(9)]) {
        let name = "iqn.2026-11.l:x";
        let mut new = meaning(&check(&text).unwrap());
        let target = new.1.iter_mut().find(|target| target.0 == name).unwrap();
        prop_assume!(!target.1.iter().any(|(number, _)| *number == lun));
        target.1.push((lun, "c".to_owned()));
        target.1.sort();
        let added = edited(&text, |editor| editor.add_lun(name, lun, "c").unwrap());
        prop_assert_eq!(meaning(&check(&added).unwrap()), new.clone(), "{}", added);
        prop_assert_eq!(comments(&added), comments(&text), "{}", added);
        // And each of them may go again.
        let luns = new.1.iter().find(|target| target.0 == name).unwrap().1.clone();
        for (number, _) in &luns {
            let gone = edited(&added, |editor| editor.remove_lun(name, *number).unwrap());
            let mut left = new.clone();
            left.1.iter_mut().find(|t| t.0 == name).unwrap().1.retain(|(lun, _)| lun != number);
            prop_assert_eq!(meaning(&check(&gone).unwrap()), left, "{}", gone);
            if !added.contains("[target.luns]") && !added.contains("luns.0") {
                prop_assert_eq!(comments(&gone).len(), comments(&text).len(), "{}\n{}", added, gone);
            }
        }
    }

    #[test]
    fn a_size_changes_alone(text in file(), bytes in (1u64..1 << 40).prop_map(|n| n * 512)) {
        let resized = edited(&text, |editor| editor.set_size("b", bytes).unwrap());
        let mut new = meaning(&check(&text).unwrap());
        new.0[1] = format!("b Some({bytes})");
        prop_assert_eq!(meaning(&check(&resized).unwrap()), new);
        prop_assert_eq!(comments(&resized), comments(&text));
        let changed = lines(&resized).iter().zip(lines(&text)).filter(|(a, b)| *a != b).count();
        prop_assert!(changed <= 1);
    }
}

/// Rules of access stay with their target, and LUNs that only some see are LUNs like others.
#[test]
fn rules_of_access_stay_as_they_are() {
    let file = "\
[volumes]
a = { backend = 'null', size = 512 }
b = { backend = 'null', size = 512 }
c = { backend = 'null', size = 512 }

[[target]]
name = 'iqn.2026-11.l:x'
initiators = ['iqn.x:*'] # ours
luns = { 0 = 'a', 1 = { volume = 'b', initiators = ['*:b'] } }

[[target.user]]
name = 'u' # who
secret-env = 'U'

[target.mutual]
name = 'm'
secret-env = 'M'

[[target]]
name = 'iqn.2026-11.l:y'

[target.luns.3]
volume = 'a'
initiators = ['10.0.0.0/8']

[[target.user]]
name = 'v'
secret-env = 'V'
";
    let config = |text: &str| check(text).unwrap();
    let (x, y) = ("iqn.2026-11.l:x", "iqn.2026-11.l:y");
    let before = config(file);
    let same_rules = |text: &str| {
        let after = config(text);
        for (old, new) in before.targets.iter().zip(&after.targets) {
            assert_eq!(old.access.initiators, new.access.initiators);
            let names = |of: &crate::Target| {
                of.access.logins().map(|login| login.name.clone()).collect::<Vec<_>>()
            };
            assert_eq!((&old.name, names(old)), (&new.name, names(new)), "{text}");
        }
        assert_eq!(comments(text), comments(file), "{text}");
        after
    };
    let added = edited(file, |editor| {
        editor.add_lun(x, 2, "c").unwrap();
        editor.add_lun(y, 0, "b").unwrap();
        editor.add_target("iqn.2026-11.l:z", None, false).unwrap();
    });
    let after = same_rules(&added);
    assert_eq!(after.targets[0].luns, [(0, 0), (1, 1), (2, 2)]);
    assert_eq!(after.targets[1].luns, [(0, 1), (3, 0)]);
    assert_eq!(after.targets[0].access.luns, before.targets[0].access.luns);
    assert_eq!(after.targets[2].access, Default::default(), "{added}");
    let removed = edited(file, |editor| {
        editor.remove_lun(x, 1).unwrap();
        editor.remove_lun(y, 3).unwrap();
    });
    let after = same_rules(&removed);
    assert_eq!((&after.targets[0].luns[..], after.targets[1].luns.len()), (&[(0, 0)][..], 0));
    assert!(after.targets.iter().all(|target| target.access.luns.is_empty()));
    let gone = edited(file, |editor| editor.remove_target(x).unwrap());
    let after = config(&gone);
    assert_eq!((after.targets.len(), &after.targets[0].access.users[0].login.name[..]), (1, "v"));
}

#[test]
fn secrets_are_hidden_and_nothing_else() {
    let file = "\
[volumes.secret] # a name like others
backend = 'null'
size = 512

[[target]]
name = 'iqn.2026-11.l:x'
user = [{ name = 'u', secret = 'HIDDEN-HIDDEN' }, { name = 'v', secret-env = 'V' }]
mutual = { name = 'm', secret = \"HIDDEN-TOO-HERE\" } # theirs

[[discovery.user]]
name = 'd'
secret = 'HIDDEN-HIDDEN' # who
";
    let mut editor = Editor::new(file).unwrap();
    editor.hide_secrets();
    let shown = file
        .replace("'HIDDEN-HIDDEN'", "\"not shown\"")
        .replace("\"HIDDEN-TOO-HERE\"", "\"not shown\"");
    assert_eq!(editor.text(), shown);
    // It is no configuration that somebody could use by mistake.
    assert_eq!(check(&shown).unwrap_err().len(), 3);
    let mut editor = Editor::new(FILE).unwrap();
    editor.hide_secrets();
    assert_eq!(editor.text(), FILE);
}

#[test]
fn initiators_come_and_go_and_the_list_stays() {
    let x = "iqn.2026-11.l:x";
    let allow = |text: &str, entries: &[&str]| {
        let entries: Vec<String> = entries.iter().map(|entry| (*entry).to_owned()).collect();
        edited(text, |editor| editor.allow(x, &entries).unwrap())
    };
    let one = allow(FILE, &["iqn.a:1"]);
    let luns = "luns = {0 = \"vm1\", 1 = \"db\"}   # both\n";
    assert_eq!(one, with(&[(luns, &format!("{luns}initiators = [\"iqn.a:1\"]\n"))]));
    let two = allow(&one, &["10.0.0.0/8", "iqn.a:*"]);
    assert!(two.contains("initiators = [\"iqn.a:1\", \"10.0.0.0/8\", \"iqn.a:*\"]\n"), "{two}");
    // Names are the same in either case.
    let less = edited(&two, |editor| editor.deny(x, "IQN.A:1").unwrap());
    assert!(less.contains("[\"10.0.0.0/8\", \"iqn.a:*\"]"), "{less}");
    let none = edited(&one, |editor| editor.deny(x, "iqn.a:1").unwrap());
    assert!(none.contains("initiators = []\n"), "{none}");
    assert!(check(&none).unwrap().targets[0].access.initiators.is_nobody());
    assert_eq!(allow(&none, &["iqn.a:1"]), one);
    let mut editor = Editor::new(&one).unwrap();
    assert!(editor.deny(x, "iqn.b:1").is_err() && editor.deny("iqn.no:x", "iqn.a:1").is_err());
    // In lines, with comments.
    let lines = FILE.replace(luns, "initiators = [\n  # the first\n  \"iqn.a:1\",\n]\n");
    let more = allow(&lines, &["iqn.a:2"]);
    assert!(more.contains("[\n  # the first\n  \"iqn.a:1\",\n  \"iqn.a:2\",\n]\n"), "{more}");
}

#[test]
fn a_target_is_opened_in_its_place() {
    let x = "iqn.2026-11.l:x";
    let open = |text: &str| edited(text, |editor| editor.open(x).unwrap());
    let luns = "luns = {0 = \"vm1\", 1 = \"db\"}   # both\n";
    let opened = with(&[(luns, &format!("{luns}open = true\n"))]);
    assert_eq!(open(FILE), opened);
    assert!(check(&opened).unwrap().targets[0].access.open);
    assert_eq!(open(&opened), opened);
    let shut = with(&[(luns, &format!("open = false # not yet\n{luns}"))]);
    assert_eq!(open(&shut), shut.replace("open = false", "open = true"));
    assert!(Editor::new(FILE).unwrap().open("iqn.2026-11.l:no").is_err());
    // Whoever is named later takes it back, in its place: nobody else comes in when they go.
    let opened = opened.replace("open = true", "open = true   # for now");
    let user = [("name", Value::from("u")), ("secret", Value::from("a secret of 16 b"))];
    for closed in [
        edited(&opened, |editor| editor.allow(x, &["iqn.a:1".to_owned()]).unwrap()),
        edited(&opened, |editor| editor.add_user(x, &user).unwrap()),
    ] {
        assert!(closed.contains("\nopen = false   # for now\n"), "{closed}");
        assert!(!check(&closed).unwrap().targets[0].access.open);
    }
}

#[test]
fn portals_come_and_go_alone() {
    let address = |text: &str| crate::parse_portal(text).unwrap();
    let keys = |text: &str| vec![("address", Value::from(text)), ("tag", Value::from(2))];
    let add = |text: &str, new: &str| edited(text, |editor| editor.add_portal(&keys(new)).unwrap());
    let remove =
        |text: &str, old: &str| edited(text, |editor| editor.remove_portal(address(old)).unwrap());
    let one = add(FILE, "192.0.2.1:3260");
    let portal = |address: &str| format!("\n[[portal]]\naddress = \"{address}\"\ntag = 2\n");
    assert_eq!(
        one,
        format!(
            "{}{}# the end\n",
            FILE.strip_suffix("# the end\n").unwrap(),
            portal("192.0.2.1:3260")
        )
    );
    assert_eq!(remove(&one, "192.0.2.1"), FILE, "however the address is written");
    // Behind its like, and with the comment about it.
    let first = format!(
        "# ours\n[[portal]] # the first\naddress = '192.0.2.1' # of the storage net\n\n{FILE}"
    );
    let two = add(&first, "[2001:db8::1]:3260");
    let (before, after) = first.split_at(first.find("\n# lunet.toml").unwrap());
    assert_eq!(two, format!("{before}{}{after}", portal("[2001:db8::1]:3260")));
    let left = remove(&two, "192.0.2.1:3260");
    assert!(
        !left.contains("192.0.2.1") && !left.contains("# ours") && left.contains("2001:db8"),
        "{left}"
    );
    assert_eq!(comments(&left), comments(FILE), "{left}");
    // In a line.
    let inline =
        format!("portal = [{{ address = '192.0.2.1' }}, {{ address = '192.0.2.2' }}]\n{FILE}");
    assert_eq!(remove(&inline, "192.0.2.2"), inline.replace(", { address = '192.0.2.2' }", ""));
    let three = add(&inline, "192.0.2.3");
    assert!(three.contains("{ address = \"192.0.2.3\", tag = 2 }]"), "{three}");
    let missing = Editor::new(&inline).unwrap().remove_portal(address("192.0.2.9")).unwrap_err();
    assert!(missing.to_string().contains("192.0.2.9"), "{missing}");
    assert!(Editor::new(FILE).unwrap().remove_portal(address("192.0.2.1")).is_err());
}

#[test]
fn the_comment_of_an_entry_goes_with_it() {
    let address = |text: &str| crate::parse_portal(text).unwrap();
    let removed = |list: &str, last: &str| {
        let text = format!("portal = {list}\n{FILE}");
        check(&text).unwrap_or_else(|mistakes| panic!("{mistakes:?}\n{text}"));
        let gone = edited(&text, |editor| {
            editor.remove_portal(address(&format!("192.0.2.{last}"))).unwrap();
        });
        check(&gone).unwrap_or_else(|mistakes| panic!("{mistakes:?}\n{gone}"));
        let list = gone.strip_prefix("portal = ").and_then(|rest| rest.strip_suffix(FILE));
        list.unwrap_or_else(|| panic!("{gone}")).trim_end_matches('\n').to_owned()
    };
    let [one, two, three] = [1, 2, 3].map(|last| format!("{{ address = '192.0.2.{last}' }}"));
    let lines = format!(
        "[ # open\n  # all\n\n  # first\n  {one}, # one\n  # second\n  {two}, # two\n  # third\n  {three}, # three\n]"
    );
    let without = |what: &str| lines.replace(what, "");
    let gone = format!("\n  # second\n  {two}, # two");
    assert_eq!(removed(&lines, "2"), without(&gone));
    assert_eq!(removed(&lines, "3"), without(&format!("\n  # third\n  {three}, # three")));
    let first = without(&format!("  # first\n  {one}, # one\n"));
    assert_eq!(removed(&lines, "1"), first, "what is about no entry stays");
    // Without a comma at the end, and with others on the line.
    let bare = format!("[\n  {one}, # one\n  # second\n  {two}\n]");
    assert_eq!(removed(&bare, "2"), format!("[\n  {one} # one\n  ]"));
    let mixed = format!("[\n  # first\n  {one}, {two}, # two\n  {three} ]");
    assert_eq!(removed(&mixed, "1"), format!("[\n  {two}, # two\n  {three} ]"));
    assert_eq!(removed(&mixed, "2"), format!("[\n  # first\n  {one},\n  {three} ]"));
}

#[test]
fn line_ends_stay_as_they_are() {
    let crlf = FILE.replace('\n', "\r\n");
    let keys = [("address", Value::from("192.0.2.1:3260"))];
    let added = edited(&crlf, |editor| editor.add_portal(&keys).unwrap());
    let expected = edited(FILE, |editor| editor.add_portal(&keys).unwrap());
    assert_eq!(added, expected.replace('\n', "\r\n"));
    let gone = edited(&added, |editor| {
        editor.remove_portal("192.0.2.1:3260".parse().unwrap()).unwrap();
    });
    assert_eq!(gone, crlf);
}

#[test]
fn users_come_and_go_with_their_headings() {
    let x = "iqn.2026-11.l:x";
    let keys = |name: &str| vec![("name", Value::from(name)), ("secret-file", "/s".into())];
    let add =
        |text: &str, name: &str| edited(text, |editor| editor.add_user(x, &keys(name)).unwrap());
    let one = add(FILE, "alice");
    let heading = "\n[[target.user]]\nname = \"alice\"\nsecret-file = \"/s\"\n";
    let luns = "luns = {0 = \"vm1\", 1 = \"db\"}   # both\n";
    assert_eq!(one, with(&[(luns, &format!("{luns}{heading}"))]));
    let both = add(&one, "bob");
    assert_eq!(check(&both).unwrap().targets[0].access.users.len(), 2, "{both}");
    let bob = edited(&both, |editor| editor.remove_user(x, "alice").unwrap());
    assert_eq!(check(&bob).unwrap().targets[0].access.users[0].login.name, "bob");
    assert_eq!(edited(&one, |editor| editor.remove_user(x, "alice").unwrap()), FILE);
    let other = edited(&one, |editor| {
        editor.set_secret(x, "alice", ("secret-file", "/other".into())).unwrap();
    });
    assert_eq!(other, one.replace("\"/s\"", "\"/other\""));
    // Where the secret itself stood, there is the file's name then.
    let here = one.replace("secret-file = \"/s\"", "secret = \"a secret of 16 b\"");
    let moved = edited(&here, |editor| {
        editor.set_secret(x, "alice", ("secret-file", "/s".into())).unwrap();
    });
    assert_eq!(moved, one);
    // In the line.
    let inline = FILE.replace(luns, "user = [{ name = \"carol\", secret-file = \"/c\" }]\n");
    let more = add(&inline, "alice");
    let users = "user = [{ name = \"carol\", secret-file = \"/c\" }, { name = \"alice\", secret-file = \"/s\" }]";
    assert!(more.contains(users), "{more}");
    assert_eq!(edited(&more, |editor| editor.remove_user(x, "alice").unwrap()), inline);
    let mut editor = Editor::new(&one).unwrap();
    assert!(editor.remove_user(x, "bob").is_err());
}

#[test]
fn hosts_come_and_go_with_their_secrets() {
    let text = edited("", |editor| editor.add_target("iqn.2026-11.l:z", None, true).unwrap());
    assert_eq!(text, "[[target]]\nname = \"iqn.2026-11.l:z\"\nprotocols = [\"iscsi\", \"nvme\"]\n");
    // NQNs are compared as they are, unlike names of initiators.
    let names = ["nqn.2026-11.l:ONE", "nqn.2026-11.l:one", "nqn.2026-11.l:two"];
    let names = names.map(str::to_owned);
    let text = edited(&text, |editor| editor.allow_hosts("iqn.2026-11.l:z", &names).unwrap());
    let before = "hosts = [\"nqn.2026-11.l:ONE\", \"nqn.2026-11.l:one\", \"nqn.2026-11.l:two\"]\n";
    assert!(text.ends_with(before), "{text}");
    let list = "hosts = [\"nqn.2026-11.l:ONE\", \"nqn.2026-11.l:two\"]\n";
    let text = edited(&text, |editor| {
        editor.deny_host("iqn.2026-11.l:z", "nqn.2026-11.l:one").unwrap();
    });
    assert!(text.ends_with(list), "{text}");
    let secret =
        "hosts = [{ nqn = \"nqn.2026-11.l:ONE\", secret-file = \"s\" }, \"nqn.2026-11.l:two\"]\n";
    let text = edited(&text.replace(list, secret), |editor| {
        editor.deny_host("iqn.2026-11.l:z", "nqn.2026-11.l:ONE").unwrap();
    });
    assert!(text.ends_with("hosts = [\"nqn.2026-11.l:two\"]\n"), "{text}");
}

#[test]
fn what_was_hidden_comes_back_where_it_was_and_nowhere_else() {
    let text = "[[target]]
name = 'iqn.a'
user = [{ name = 'u', secret = 'FIRST-SECRET-HERE' }]
[[target]]
name = 'iqn.b'
user = [{ name = 'u', secret = 'OTHER-SECRET-HERE' }]
[[subsystem]]
nqn = 'nqn.a'
hosts = [{ nqn = 'nqn.h', secret = 'S', controller-secret = 'C', tls-key = 'K' }]
";
    let mut old = Editor::new(text).unwrap();
    let mut shown = old.clone();
    shown.hide_secrets();
    assert_eq!(shown.text().matches("not shown").count(), 5);
    let edited =
        shown.text().replace("'iqn.b'", "'iqn.c'").replace("[[target]]", "[[target]] # mine");
    let mut edited = Editor::new(&edited).unwrap();
    edited.restore_secrets(&mut old);
    let back = edited.text();
    assert!(back.contains("FIRST-SECRET-HERE") && back.contains("# mine"), "{back}");
    assert!(!back.contains("OTHER-SECRET-HERE"), "another target has no right to it: {back}");
    for secret in ["secret = \"S\"", "controller-secret = \"C\"", "tls-key = \"K\""] {
        assert!(back.contains(secret), "{back}");
    }
}

#[test]
fn new_places_are_found_and_known_ones_are_not() {
    let text = "\
[server]
data = '/srv'
[volumes.a]
size = '1MiB'
path = '/srv/a.img'
[[target]]
name = 'iqn.x:1'
luns = {0 = 'a'}
[[target.user]]
name = 'bob'
secret = 'a-secret-of-bob'
[[target.user]]
name = 'eve'
secret-file = '/etc/lunet/eve' # hers
";
    let known = || [Editor::new(text).unwrap()];
    let place = |text: &str| Editor::new(text).unwrap().new_place(&mut known());
    let mut shown = Editor::new(text).unwrap();
    shown.hide_secrets();
    let shown = shown.text();
    assert_eq!(place(&shown), None);
    assert_eq!(place(&shown.replace("1MiB", "2MiB").replace(" # hers", "")), None);
    // Whoever knows the secret is not told so.
    assert_eq!(place(text).as_deref(), Some("secret"));
    for (old, new, key) in [
        ("\"not shown\"", "'a-guess'", "secret"),
        ("name = 'bob'", "name = 'bo'", "secret"),
        ("'/etc/lunet/eve'", "'/etc/shadow'", "secret-file"),
        ("secret-file = '/etc/lunet/eve'", "secret-env = 'HOME'", "secret-env"),
        ("/srv/a.img", "/etc/shadow", "path"),
        ("'/srv'", "'/root'", "data"),
        ("luns = {0 = 'a'}", "mutual = {name = 'm', secret-file = '/x'}", "secret-file"),
        ("iqn.x:1", "iqn.x:2", "secret"),
    ] {
        assert!(shown.contains(old), "{old}");
        assert_eq!(place(&shown.replace(old, new)).as_deref(), Some(key), "{old}: {new}");
    }
}
