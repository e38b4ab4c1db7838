//! What the text of a fix sets on a machine: `NAME=VALUE` and `echo VALUE > PATH`.

use lunet_host::source::{Command, Output, Source, Tree};

/// First parts of the names of sysctls on Linux.
const SYSCTLS: [&str; 5] = ["dev.", "fs.", "kernel.", "net.", "vm."];

/// What the kernel changes by itself when a setting is made: the setting, and where the other one shows, up to its value.
const FOLLOWS: [(&str, &str, &str); 4] = [
    // OpenZFS module/zfs/arc.c: arc_tuning_update.
    ("/sys/module/zfs/parameters/zfs_arc_max", ARC, "c_max 4 "),
    ("/sys/module/zfs/parameters/zfs_arc_min", ARC, "c_min 4 "),
    // FreeBSD sys/dev/acpica/acpi_cpu.c: acpi_cpu_global_cx_lowest_sysctl.
    ("hw.acpi.cpu.cx_lowest", "$ sysctl -a", "dev.cpu.0.cx_lowest: "),
    // OpenZFS module/os/freebsd/zfs/sysctl_os.c: param_set_arc_max.
    ("vfs.zfs.arc_max", "$ sysctl -a", "kstat.zfs.misc.arcstats.c_max: "),
];
const ARC: &str = "/proc/spl/kstat/zfs/arcstats";
const LOADER: &str = "/boot/loader.conf";

/// Where a machine has a setting.
#[derive(Clone, Debug, PartialEq)]
enum Place {
    /// A file below /proc/sys or /sys.
    File(String),
    /// A word of the kernel's command line, and the parameter of a module if it is one.
    Boot(String),
    /// A line of FreeBSD's `sysctl -a`.
    FreeBsd(String),
    /// A property, and whose it is.
    Zfs(String, String),
}

/// A setting as a fix gives it.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    place: Place,
    value: String,
}

/// What a fix sets. What it gives for another machine, and names that only stand for one (`sdX`), are not among it.
pub fn given(fix: &str, tree: &Tree) -> Vec<Given> {
    let mut all = assigned(fix, tree);
    for (at, _) in fix.match_indices("echo ") {
        let line = fix[at + 5..].split([';', '#']).next().unwrap_or_default();
        let Some((value, path)) = line.split_once(" > ").or_else(|| line.split_once(" | tee "))
        else {
            continue;
        };
        let path = path.split_whitespace().next().unwrap_or_default();
        let files = match path.contains('*') {
            true => tree.entries().filter(|entry| like(entry, path)).collect(),
            false => vec![path.to_owned()],
        };
        let real = |path: &String| path.starts_with("/sys/") || path.starts_with("/proc/sys/");
        let value = value.trim().trim_matches(['"', '\'']).to_owned();
        if stands(&value) {
            continue;
        }
        let file = |path| Given { place: Place::File(path), value: value.clone() };
        all.extend(files.into_iter().filter(real).filter(|path| tree.has(path)).map(file));
    }
    all
}

/// Whether a value only stands for one: `MIN PRESSURE MAX`, `NODE`, or nothing.
fn stands(value: &str) -> bool {
    value.len() != 1 && value.chars().all(|c| c.is_ascii_uppercase() || " -".contains(c))
}

/// Whether a path is one of a pattern with stars.
fn like(path: &str, pattern: &str) -> bool {
    let (path, pattern): (Vec<_>, Vec<_>) =
        (path.split('/').collect(), pattern.split('/').collect());
    path.len() == pattern.len()
        && path.iter().zip(&pattern).all(|(name, pattern)| match pattern.split_once('*') {
            Some((start, end)) => name.starts_with(start) && name.ends_with(end),
            None => name == pattern,
        })
}

/// The settings of the form `NAME=VALUE`.
fn assigned(fix: &str, tree: &Tree) -> Vec<Given> {
    let freebsd = tree.has("/lunet-capture");
    let mut all = Vec::new();
    for (at, _) in fix.match_indices('=') {
        let part = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let start = fix[..at].rfind(|c| !part(c)).map_or(0, |before| before + 1);
        let (name, told) = (&fix[start..at], &fix[at + 1..]);
        let value = match told.chars().next() {
            Some(quote @ ('\'' | '"')) => told[1..].split(quote).next(),
            _ => told.split(|c: char| c.is_whitespace() || ";,)".contains(c)).next(),
        };
        let value = value.unwrap_or_default().to_owned();
        if name.is_empty() || stands(&value) || after(fix, at).starts_with("at the other end") {
            continue;
        }
        let place = if freebsd {
            match name.contains('.') && !name.contains(".N.") && !name.contains(".DRIVER.") {
                true => Place::FreeBsd(name.to_owned()),
                false => continue,
            }
        } else if let Some(dataset) = dataset(fix, start, at) {
            Place::Zfs(dataset, name.to_owned())
        } else if SYSCTLS.iter().any(|part| name.starts_with(part)) {
            Place::File(format!("/proc/sys/{}", name.replace('.', "/")))
        } else if fix.contains("command line") {
            Place::Boot(name.to_owned())
        } else {
            continue;
        };
        all.push(Given { place, value });
    }
    all
}

/// What follows on the word that has the character at this place.
fn after(fix: &str, at: usize) -> &str {
    fix[at..].split_once(' ').map_or("", |(_, rest)| rest)
}

/// The dataset of a `zfs set NAME=VALUE DATASET`.
fn dataset(fix: &str, start: usize, at: usize) -> Option<String> {
    let set = fix[..start].ends_with("zfs set ");
    let name = after(fix, at).split([' ', ';']).next().filter(|name| !name.is_empty());
    name.filter(|_| set).map(str::to_owned)
}

impl Given {
    /// Makes it so on the machine, as one does who follows the fix and starts the machine again. `false` if the machine
    /// has no such place.
    pub fn follow(&self, tree: &mut Tree) -> bool {
        let (Place::File(name) | Place::Boot(name) | Place::FreeBsd(name) | Place::Zfs(_, name)) =
            &self.place;
        for (_, place, start) in FOLLOWS.iter().filter(|(setting, ..)| setting == name) {
            let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
            let changed = |have: &str| {
                words(have).starts_with(start).then(|| format!("{start}{}", self.value))
            };
            edit(tree, place, changed, None);
        }
        match &self.place {
            Place::File(path) => {
                tree.file(path, &format!("{}\n", chosen(tree, path, &self.value)));
                true
            }
            Place::Boot(name) => {
                let line = tree.read("/proc/cmdline").unwrap_or_default();
                let start = format!("{name}=");
                let words = line.split_whitespace().filter(|word| !word.starts_with(&start));
                let words: Vec<&str> = words.collect();
                tree.file("/proc/cmdline", &format!("{} {start}{}\n", words.join(" "), self.value));
                if let Some((module, parameter)) = name.split_once('.') {
                    let path = format!("/sys/module/{module}/parameters/{parameter}");
                    tree.file(&path, &format!("{}\n", chosen(tree, &path, &self.value)));
                }
                true
            }
            Place::FreeBsd(name) => {
                let line = |have: &str| have.starts_with(&format!("{name}: "));
                let value = format!("{name}: {}", self.value);
                let loader = tree.read(LOADER).unwrap_or_default();
                tree.file(LOADER, &format!("{loader}{name}=\"{}\"\n", self.value));
                edit(tree, "$ sysctl -a", |have| line(have).then(|| value.clone()), Some(&value))
            }
            Place::Zfs(dataset, property) => self.property(tree, dataset, property),
        }
    }

    /// Changes a column of the lists of datasets.
    fn property(&self, tree: &mut Tree, dataset: &str, property: &str) -> bool {
        let lists: Vec<String> =
            tree.entries().filter(|entry| entry.starts_with("$ zfs list ")).collect();
        let mut done = false;
        for list in lists {
            let names = list.split("-o ").nth(1).unwrap_or_default();
            let Some(column) = names.split(',').position(|name| name == property) else { continue };
            let changed = |have: &str| {
                let mut fields: Vec<&str> = have.split('\t').collect();
                let own = fields.first() == Some(&dataset);
                *fields.get_mut(column).filter(|_| own)? = &self.value;
                Some(fields.join("\t"))
            };
            done |= edit(tree, &list, changed, None);
        }
        done
    }
}

/// Gives an interface another MTU. `false` if the machine has no such interface.
#[allow(dead_code, reason = "for two machines alone")]
pub fn set_mtu(tree: &mut Tree, name: &str, mtu: &str) -> bool {
    let path = format!("/sys/class/net/{name}/mtu");
    if !tree.has(&path) {
        return false;
    }
    tree.file(&path, &format!("{mtu}\n"));
    let start = format!("\"ifname\": \"{name}\", ");
    let text = tree.to_text();
    let lines = text.lines().map(|line| match line.split_once(&start) {
        Some((before, rest)) => match rest.split_once("\"mtu\": ") {
            Some((between, rest)) => {
                let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
                format!("{before}{start}{between}\"mtu\": {mtu}{rest}")
            }
            None => line.to_owned(),
        },
        None => line.to_owned(),
    });
    *tree = Tree::parse(&(lines.collect::<Vec<_>>().join("\n") + "\n")).unwrap();
    true
}

/// The text of a file that has all choices, with another one in brackets; of any other the value.
fn chosen(tree: &Tree, path: &str, value: &str) -> String {
    match tree.read(path).filter(|now| now.contains('[')) {
        Some(now) => now
            .split_whitespace()
            .map(|word| word.trim_matches(['[', ']']))
            .map(|word| if word == value { format!("[{word}]") } else { word.to_owned() })
            .collect::<Vec<_>>()
            .join(" "),
        None => value.to_owned(),
    }
}

/// Changes lines of a file or of what a command says (`$ ...`), or adds one. `false` if there is none that is meant.
fn edit(
    tree: &mut Tree,
    place: &str,
    of: impl Fn(&str) -> Option<String>,
    more: Option<&str>,
) -> bool {
    let command = place.strip_prefix("$ ").map(|line| {
        let mut words = line.split(' ');
        Command::new(words.next().unwrap(), &words.collect::<Vec<_>>())
    });
    let text = match &command {
        Some(command) => tree.run(command).map(|output| output.stdout),
        None => tree.read(place),
    };
    let Some(text) = text else { return false };
    let mut done = false;
    let mut lines: Vec<String> = Vec::new();
    for have in text.lines() {
        let changed = of(have);
        done |= changed.is_some();
        lines.push(changed.unwrap_or_else(|| have.to_owned()));
    }
    if let Some(more) = more.filter(|_| !done) {
        lines.push(more.to_owned());
        done = true;
    }
    let text = lines.join("\n") + "\n";
    match &command {
        Some(_) => tree.command(&place[2..], Output { code: 0, stdout: text }),
        None => tree.file(place, &text),
    }
    done
}
