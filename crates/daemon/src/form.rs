//! The form of a data directory: which lunet may use it.
//!
//! A lunet that finds a directory of a later form would not know what it must not break. So it reads the number first, and
//! leaves everything as it is. Packages ask for the same number before they replace a later lunet by an earlier one.

use std::path::Path;

use anyhow::{Result, bail};
use lunet_files as files;

use crate::trouble::{At, unread};

/// The file in the data directory.
pub const FILE: &str = "form";

/// The form that this lunet makes, and the latest that it reads. It rises when an earlier lunet would misunderstand what
/// is kept; a file that an earlier one ignores without harm does not change it. The scripts of the packages have it, too.
pub const FORM: u32 = 1;

/// The longest file in bytes.
const MOST: u64 = 4096;

/// Refuses a directory of a later form. One without a form gets this lunet's: it is new, or of a time before there were
/// forms, which is the first one.
///
/// # Errors
/// A sentence with the next step; or the file cannot be read or written.
pub fn check(data: &Path) -> Result<()> {
    let path = data.join(FILE);
    let own = env!("CARGO_PKG_VERSION");
    let Some(text) = files::read(&path, MOST).map_err(unread)? else {
        let text = format!("{FORM}\nlunet {own}\n");
        return files::replace(&path, text.as_bytes()).at("write", &path);
    };
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines();
    let Some(form) = lines.next().and_then(|line| line.trim().parse::<u32>().ok()) else {
        bail!(
            "{}: it does not say the form of the data directory: restore it, or write the line `{FORM}` if no later lunet \
             than {own} has used the directory",
            path.display()
        );
    };
    if form > FORM {
        let writer = lines.next().filter(|writer| writer.starts_with("lunet "));
        bail!(
            "{}: the data directory has form {form}, made by {}, and lunet {own} knows forms up to {FORM}: start that \
             lunet, or a later one; nothing was changed",
            data.display(),
            writer.unwrap_or("a later lunet")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use tempfile::TempDir;

    #[test]
    fn a_directory_of_a_later_form_is_refused_and_left_alone() {
        let dir = TempDir::new().unwrap();
        check(dir.path()).expect("it is new");
        let path = dir.path().join(FILE);
        assert!(fs::read_to_string(&path).unwrap().starts_with("1\nlunet "));
        check(dir.path()).expect("it is ours");
        let later = "2\nlunet 9.0.0\n";
        for (text, words) in [
            (later, "made by lunet 9.0.0, and lunet"),
            ("4294967295\n", "made by a later lunet"),
            ("", "does not say the form"),
            ("x\n", "does not say the form"),
        ] {
            fs::write(&path, text).unwrap();
            let error = check(dir.path()).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn what_cannot_be_written_is_named() {
        let dir = TempDir::new().unwrap();
        // Where the temporary file would be.
        let path = dir.path().join(FILE);
        fs::create_dir(files::fresh(&path)).unwrap();
        let error = check(dir.path()).unwrap_err().to_string();
        let words = format!("cannot write {}: Is a directory", path.display());
        let step = "move it away, or name another place";
        assert!(error.starts_with(&words) && error.ends_with(step), "{error}");
    }

    /// A package of an earlier lunet does not replace a later one that has made the directory its own.
    #[test]
    fn the_scripts_of_the_packages_know_the_form() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
        for script in ["deb/preinst", "rpm/preinstall.sh"] {
            let text = fs::read_to_string(root.join(script)).unwrap();
            for known in
                [format!("form={FORM}"), format!("version={}", lunet_config::schema::VERSION)]
            {
                assert!(text.lines().any(|line| line == known), "{script}: {known}");
            }
        }
        // What they ask, they ask in the same way.
        let [deb, rpm] = ["deb/preinst", "rpm/preinstall.sh"].map(|script| {
            let text = fs::read_to_string(root.join(script)).unwrap();
            let (_, from) = text.split_once("\nform=").unwrap();
            from.split_once("of its configuration: ").unwrap().0.to_owned()
        });
        assert_eq!(deb, rpm);
    }
}
