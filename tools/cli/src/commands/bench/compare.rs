//! `lunet bench compare`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use lunet_bench::model::Results;
use lunet_bench::report;

use super::output::Page;
use lunet_cli::{print, width};

#[derive(Args)]
pub struct Compare {
    /// Results before, as printed by --json
    #[arg(value_name = "A.json")]
    before: PathBuf,
    /// Results after
    #[arg(value_name = "B.json")]
    after: PathBuf,
    /// Also write both as an HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub fn run(options: &Compare) -> Result<ExitCode> {
    let (before, after) = (Results::read(&options.before)?, Results::read(&options.after)?);
    let page = options.html.as_deref().map(Page::check).transpose()?;
    let labels = labels(&options.before, &options.after);
    let labels = (labels.0.as_str(), labels.1.as_str());
    print(&report::compare_table(&before, &after, labels, width()))?;
    if let Some(page) = page {
        page.write(&report::compare_page(&before, &after, labels))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What the files are called, as short as it can be told apart.
fn labels(before: &Path, after: &Path) -> (String, String) {
    let stem = |path: &Path| {
        path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
    };
    let long = |path: &Path| path.display().to_string();
    let same = |a: &String, b: &String| a == b || a.is_empty() || b.is_empty();
    let (a, b) = (stem(before), stem(after));
    if !same(&a, &b) {
        return (a, b);
    }
    match (long(before), long(after)) {
        (a, b) if a == b => (format!("{a} (A)"), format!("{b} (B)")),
        both => both,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_differ() {
        let of = |a: &str, b: &str| labels(Path::new(a), Path::new(b));
        assert_eq!(of("x/old.json", "y/new.json"), ("old".into(), "new".into()));
        assert_eq!(of("x/a.json", "y/a.json"), ("x/a.json".into(), "y/a.json".into()));
        assert_eq!(of("a.json", "a.json"), ("a.json (A)".into(), "a.json (B)".into()));
    }
}
