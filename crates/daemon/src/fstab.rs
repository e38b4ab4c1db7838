//! The table of file systems (fstab(5)).

use std::path::PathBuf;

/// The file.
pub const FILE: &str = "/etc/fstab";

/// A file system, and where it is mounted.
#[derive(Debug)]
pub struct Entry<'a> {
    /// Where it is mounted; swap space and the like is nowhere.
    pub place: PathBuf,
    /// The kind of the file system.
    pub kind: &'a str,
    options: &'a str,
}

impl Entry<'_> {
    /// True if an option is set.
    pub fn has(&self, option: &str) -> bool {
        self.options.split(',').any(|one| one == option)
    }
}

/// The file systems in the text of the table. Lines that are none are left out.
pub fn entries(text: &str) -> impl Iterator<Item = Entry<'_>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (place, kind) = (fields.next()?, fields.next()?);
        Some(Entry { place: unescaped(place).into(), kind, options: fields.next().unwrap_or("") })
    })
}

/// A field, which has white space and backslashes as octal numbers.
fn unescaped(field: &str) -> String {
    let known = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    known.iter().fold(field.to_owned(), |text, (octal, plain)| text.replace(octal, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_as_it_is_written() {
        let text = "# /dev/x /none nfs\n\nUUID=1 /a\\040b\\134c ext4 noatime,_netdev 0 2\n\
                    /dev/sdb1 none swap sw\nbroken\n/dev/sdc1 /d xfs\n";
        let found: Vec<_> = entries(text)
            .map(|entry| (entry.place.display().to_string(), entry.kind, entry.has("_netdev")))
            .collect();
        let wanted = [("/a b\\c", "ext4", true), ("none", "swap", false), ("/d", "xfs", false)];
        assert_eq!(found, wanted.map(|(place, kind, remote)| (place.to_owned(), kind, remote)));
    }
}
