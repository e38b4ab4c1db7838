//! Makes the table of the built page's files, which are embedded. A file of an unknown type fails the build.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Where the built page is, from this crate.
const PAGE: &str = "../../web/dist";

/// Ends of names of files that are another one in a smaller form.
const FORMS: [&str; 2] = ["br", "gz"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed={PAGE}");
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join(PAGE);
    let mut paths = Vec::new();
    collect(&root, "", &mut paths)?;
    paths.sort();
    let mut table = format!("static FILES: [File; {}] = [\n", paths.len());
    for path in &paths {
        let media = media(path).ok_or_else(|| format!("web/dist/{path}: unknown file type"))?;
        let content = format!("concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/{PAGE}/\", {path:?})");
        writeln!(table, "    File::new({path:?}, {media:?}, include_bytes!({content})),")?;
    }
    table.push_str("];\n");
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("page.rs"), table)?;
    Ok(())
}

/// Adds the paths of the files below `directory`. `before` is its own path from the root, with a slash at the end.
fn collect(directory: &Path, before: &str, paths: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().into_string();
        let name = name.map_err(|name| io::Error::other(format!("{name:?} is not UTF-8")))?;
        let path = format!("{before}{name}");
        match entry.file_type()?.is_dir() {
            true => collect(&entry.path(), &format!("{path}/"), paths)?,
            false => paths.push(path),
        }
    }
    Ok(())
}

/// The media type of a file, by the end of its name.
fn media(path: &str) -> Option<&'static str> {
    let (name, end) = path.rsplit_once('.')?;
    Some(match end {
        form if FORMS.contains(&form) => return media(name),
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "json" => "application/json",
        "webmanifest" => "application/manifest+json",
        "woff2" => "font/woff2",
        "txt" => "text/plain; charset=utf-8",
        _ => return None,
    })
}
