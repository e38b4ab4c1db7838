//! A machine that was captured: in memory, read from one file or from a folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Command, Output, ParseError, Source, text};

/// How many links may follow each other.
const LINKS: usize = 16;
/// More files than this are no captured tree but a whole file system.
const MOST_FILES: usize = 200_000;

/// The name of a captured tree in a folder with other things.
const TREE_FILE: &str = "tree.txt";

/// A captured machine. Changes make another machine of it, such as one with a fault.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tree {
    pub(super) files: BTreeMap<String, String>,
    pub(super) links: BTreeMap<String, String>,
    pub(super) lists: BTreeMap<String, Vec<String>>,
    pub(super) commands: BTreeMap<String, Output>,
}

/// Why a tree cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file or folder could not be read.
    #[error("{path}: {error}")]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The file is not in the form that `lunet tune capture` writes.
    #[error("{path}: {error}")]
    Form {
        /// Which one.
        path: PathBuf,
        /// Where it goes wrong.
        error: ParseError,
    },
    /// The folder holds too much to be a captured tree.
    #[error("{0}: more than {MOST_FILES} files: this is no captured tree")]
    TooMany(PathBuf),
}

impl Tree {
    /// A tree in which nothing can be found.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a captured tree: the file that `lunet tune capture` wrote, or a folder with files
    /// under their own paths and the outputs of commands under `commands/`.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let read = |error| OpenError::Read { path: path.to_owned(), error };
        let inside = path.join(TREE_FILE);
        if inside.is_file() {
            return Self::open(&inside);
        }
        if fs::metadata(path).map_err(read)?.is_dir() {
            let mut tree = Self::new();
            let mut left = MOST_FILES;
            tree.walk(path, "", &mut left)?;
            return Ok(tree);
        }
        let text = fs::read_to_string(path).map_err(read)?;
        Self::parse(&text).map_err(|error| OpenError::Form { path: path.to_owned(), error })
    }

    /// Reads the form that [`Tree::to_text`] writes.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut tree = Self::new();
        tree.overlay(text)?;
        Ok(tree)
    }

    /// Changes the tree by a text of the same form; a line `- /path` takes something away.
    pub fn overlay(&mut self, text: &str) -> Result<(), ParseError> {
        text::overlay(self, text)
    }

    /// The tree as a text that people can read before they send it.
    pub fn to_text(&self) -> String {
        text::write(self)
    }

    /// Puts a file there.
    pub fn file(&mut self, path: &str, text: &str) {
        self.files.insert(path.to_owned(), text.to_owned());
    }

    /// Puts a symbolic link there.
    pub fn symlink(&mut self, path: &str, target: &str) {
        self.links.insert(path.to_owned(), target.to_owned());
    }

    /// Puts the output of a command there.
    pub fn command(&mut self, line: &str, output: Output) {
        self.commands.insert(line.to_owned(), output);
    }

    /// Takes a file, link or directory away, with all that is in it.
    pub fn remove(&mut self, path: &str) {
        let inside = |key: &str| {
            key.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.files.retain(|key, _| !inside(key));
        self.links.retain(|key, _| !inside(key));
        self.lists.retain(|key, _| !inside(key));
        if let Some((parent, name)) = path.rsplit_once('/') {
            if let Some(names) = self.lists.get_mut(parent) {
                names.retain(|have| have != name);
            }
        }
    }

    /// Takes the output of a command away.
    pub fn remove_command(&mut self, line: &str) {
        self.commands.remove(line);
    }

    /// What is there: paths of files and links, and commands as `$ zpool list`.
    pub fn entries(&self) -> impl Iterator<Item = String> {
        let commands = self.commands.keys().map(|line| format!("$ {line}"));
        self.files.keys().chain(self.links.keys()).cloned().chain(commands)
    }

    /// Whether there is such a file or link, or the output of such a command.
    pub fn has(&self, name: &str) -> bool {
        match name.strip_prefix("$ ") {
            Some(line) => self.commands.contains_key(line),
            None => self.files.contains_key(name) || self.links.contains_key(name),
        }
    }

    /// Looks a path up as it is, and then with the links in it followed.
    fn find<T>(&self, path: &str, get: impl Fn(&Self, &str) -> Option<T>) -> Option<T> {
        let mut path = path.trim_end_matches('/').to_owned();
        for _ in 0..LINKS {
            if let Some(found) = get(self, &path) {
                return Some(found);
            }
            path = self.follow(&path)?;
        }
        None
    }

    /// The path with the first link in it replaced by what it points to.
    fn follow(&self, path: &str) -> Option<String> {
        let ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
        for end in ends {
            if let Some(target) = self.links.get(&path[..end]) {
                return Some(resolve(&path[..end], target) + &path[end..]);
            }
        }
        None
    }

    /// Takes in what a folder holds. `inner` is the folder's path within the tree.
    fn walk(&mut self, folder: &Path, inner: &str, left: &mut usize) -> Result<(), OpenError> {
        let read = |path: &Path, error| OpenError::Read { path: path.to_owned(), error };
        for entry in fs::read_dir(folder).map_err(|error| read(folder, error))? {
            let entry = entry.map_err(|error| read(folder, error))?;
            let path = entry.path();
            let Ok(name) = entry.file_name().into_string() else { continue };
            *left = left.checked_sub(1).ok_or_else(|| OpenError::TooMany(folder.to_owned()))?;
            let kind = entry.file_type().map_err(|error| read(&path, error))?;
            let within = format!("{inner}/{name}");
            if kind.is_dir() {
                self.lists.entry(within.clone()).or_default();
                self.walk(&path, &within, left)?;
            } else if kind.is_symlink() {
                let target = fs::read_link(&path).map_err(|error| read(&path, error))?;
                self.symlink(&within, &target.to_string_lossy());
            } else if kind.is_file() {
                // Copies of /sys may hold files that nobody may read.
                let Ok(bytes) = fs::read(&path) else { continue };
                let text = String::from_utf8_lossy(&bytes).into_owned();
                match inner {
                    "/commands" => {
                        self.command(&unescape(&name), Output { code: 0, stdout: text });
                    }
                    _ => self.file(&within, &text),
                }
            }
        }
        Ok(())
    }
}

impl Source for Tree {
    fn read(&self, path: &str) -> Option<String> {
        self.find(path, |tree, path| tree.files.get(path).cloned())
    }

    fn list(&self, directory: &str) -> Option<Vec<String>> {
        self.find(directory, |tree, directory| {
            let prefix = format!("{directory}/");
            let mut names: BTreeSet<&str> = BTreeSet::new();
            let listed = tree.lists.get(directory);
            names.extend(listed.into_iter().flatten().map(String::as_str));
            names.extend(below(&tree.files, &prefix));
            names.extend(below(&tree.links, &prefix));
            names.extend(below(&tree.lists, &prefix));
            let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
            (listed.is_some() || !names.is_empty()).then_some(names)
        })
    }

    fn link(&self, path: &str) -> Option<String> {
        self.find(path, |tree, path| tree.links.get(path).cloned())
    }

    fn run(&self, command: &Command) -> Option<Output> {
        self.commands.get(&command.to_string()).cloned()
    }
}

/// The names directly below a directory of which the map holds something.
fn below<'a, T>(
    map: &'a BTreeMap<String, T>,
    prefix: &'a str,
) -> impl Iterator<Item = &'a str> + use<'a, T> {
    map.range(prefix.to_owned()..)
        .map_while(move |(key, _)| key.strip_prefix(prefix))
        .filter_map(|rest| rest.split('/').next())
}

/// Where a link at `path` leads.
pub(crate) fn resolve(path: &str, target: &str) -> String {
    let mut parts: Vec<&str> = match target.starts_with('/') {
        true => Vec::new(),
        false => path.rsplit_once('/').map_or("", |(parent, _)| parent).split('/').collect(),
    };
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    parts.retain(|part| !part.is_empty());
    format!("/{}", parts.join("/"))
}

/// The command line that a file under `commands/` stands for: `%2F` is a slash, `+` a space.
fn unescape(name: &str) -> String {
    name.replace('+', " ").replace("%2F", "/").replace("%2B", "+").replace("%25", "%")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn reads_a_folder_with_files_links_and_commands() {
        let folder = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("sys/devices/pci0000:00/0000:00:03.0/net/eth0/mtu", "9000\n");
        put("sys/devices/pci0000:00/0000:00:03.0/vendor", "0x15b3\n");
        put("commands/nvme+id-ns+-o+json+%2Fdev%2Fnvme0n1", "{}\n");
        fs::create_dir_all(folder.path().join("sys/class/net")).unwrap();
        let eth0 = "../../devices/pci0000:00/0000:00:03.0/net/eth0";
        symlink(eth0, folder.path().join("sys/class/net/eth0")).unwrap();
        let device = "sys/devices/pci0000:00/0000:00:03.0/net/eth0/device";
        symlink("../../../0000:00:03.0", folder.path().join(device)).unwrap();

        let tree = Tree::open(folder.path()).unwrap();
        assert_eq!(tree.int("/sys/class/net/eth0/mtu"), Some(9000));
        assert_eq!(tree.text("/sys/class/net/eth0/device/vendor").as_deref(), Some("0x15b3"));
        assert_eq!(tree.link("/sys/class/net/eth0").as_deref(), Some(eth0));
        assert_eq!(tree.names("/sys/class/net"), ["eth0"]);
        assert_eq!(tree.names("/sys/class/net/eth0"), ["device", "mtu"]);
        let id = tree.output("nvme", &["id-ns", "-o", "json", "/dev/nvme0n1"]);
        assert_eq!(id.as_deref(), Some("{}\n"));
        assert_eq!(tree.read("/sys/class/net/eth1/mtu"), None);
        assert_eq!(tree.list("/nowhere"), None);
    }

    #[test]
    fn links_in_a_circle_end() {
        let tree = Tree::parse("/a -> b\n/b -> a\n").unwrap();
        assert_eq!(tree.read("/a/x"), None);
    }

    #[test]
    fn an_overlay_changes_one_thing() {
        let mut tree = Tree::parse("/a/b: 1\n/a/c: 2\n/a/: b c\n$ x y\n| 1\n").unwrap();
        tree.overlay("/a/b: 3\n- /a/c\n$ x y\nexit 2\n").unwrap();
        assert_eq!((tree.int("/a/b"), tree.int("/a/c")), (Some(3), None));
        assert_eq!(tree.names("/a"), ["b"]);
        assert_eq!(tree.run(&Command::new("x", &["y"])).unwrap().code, 2);
        tree.overlay("- $ x y\n- /a\n").unwrap();
        assert_eq!(tree, Tree::new());
    }

    #[test]
    fn a_text_of_another_kind_is_refused_with_its_line() {
        for (text, line) in [("| lost", 1), ("/a: 1\nexit 2", 2), ("# x\nhello", 2), ("/a", 1)] {
            assert_eq!(Tree::parse(text).unwrap_err().line, line, "{text}");
        }
    }
}
