//! `[sandbox]`: what the server gives up.

use std::path::PathBuf;

use super::mistake::Mistakes;
use super::reader::{Convert, Section, boolean, string};
use super::schema;

/// The most paths.
const MOST: usize = 256;

/// `[sandbox]`: what the server gives up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Whether system calls, files and connections are limited.
    pub enabled: bool,
    /// Where files may be besides those that are configured; `None`: everywhere but in the system's directories.
    pub paths: Option<Vec<PathBuf>>,
}

impl Default for Sandbox {
    fn default() -> Self {
        Self { enabled: true, paths: None }
    }
}

pub(super) fn sandbox(top: &Section<'_>, mistakes: &mut Mistakes) -> Sandbox {
    let mut out = Sandbox::default();
    let Some(value) = top.raw("sandbox") else { return out };
    let table = Section::open(value, "sandbox".to_owned(), &schema::SANDBOX, mistakes);
    let Some(table) = table else { return out };
    table.set("enabled", &mut out.enabled, &boolean, mistakes);
    let paths: Convert<'_, Option<Vec<PathBuf>>> = &|v| {
        let items = v.as_array().ok_or("must be an array of directories")?;
        if items.len() > MOST {
            return Err(format!("has at most {MOST} directories"));
        }
        let one = |text: String| match text.starts_with('/') && !text.contains('\0') {
            true => Ok(PathBuf::from(text)),
            false => Err(format!("\"{}\" must begin with /", text.escape_debug())),
        };
        let all = items.iter().map(|item| one(string(item.get_ref())?));
        Ok(Some(all.collect::<Result<_, String>>()?))
    };
    table.set("paths", &mut out.paths, paths, mistakes);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;

    fn of(text: &str) -> Result<Sandbox, String> {
        let all = format!("[[target]]\nname = 'iqn.2026-11.l:x'\n{text}");
        let told = |mistakes: Vec<crate::Mistake>| mistakes[0].to_string();
        check(&all).map(|config| config.sandbox).map_err(told)
    }

    #[test]
    fn paths_that_are_left_out_are_not_the_same_as_none() {
        assert_eq!(of("").unwrap(), Sandbox { enabled: true, paths: None });
        let none = of("[sandbox]\nenabled = false\npaths = []\n").unwrap();
        assert_eq!(none, Sandbox { enabled: false, paths: Some(Vec::new()) });
        let one = of("[sandbox]\npaths = ['/tank/a b']\n").unwrap();
        assert_eq!(one.paths, Some(vec![PathBuf::from("/tank/a b")]));
        for wrong in ["paths = ['tank']", "paths = '/tank'", "paths = [1]", "user = 'x'"] {
            let mistake = of(&format!("[sandbox]\n{wrong}\n")).unwrap_err();
            assert!(mistake.starts_with("4: sandbox."), "{mistake}");
        }
    }
}
