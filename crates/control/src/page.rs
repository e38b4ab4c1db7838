//! The page: files that are built into the program.

use std::sync::OnceLock;

use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use sha2::{Digest, Sha256};

use crate::app::tag_of_hash;
use crate::problem::Problem;
use crate::reply::{Body, Response, reply};

/// A file of the built page.
struct File {
    /// From the root, without a slash at the start.
    path: &'static str,
    media: &'static str,
    content: &'static [u8],
    tag: OnceLock<String>,
}

impl File {
    const fn new(path: &'static str, media: &'static str, content: &'static [u8]) -> Self {
        Self { path, media, content, tag: OnceLock::new() }
    }

    fn find(path: &str) -> Option<&'static Self> {
        FILES.iter().find(|file| file.path == path)
    }

    /// Its ETag, a hash of the content.
    fn tag(&self) -> &str {
        self.tag.get_or_init(|| tag_of_hash(&Sha256::digest(self.content)))
    }
}

// Made by build.rs of the files in web/dist.
include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// Forms of a file that are smaller, and how they are called in HTTP; the smallest first.
const CODINGS: [(&str, &str); 2] = [("br", "br"), ("gz", "gzip")];

/// True if a name has a hash of the content in it, as bundlers write it: `app-8f3ab2c1.js`. Such a file never changes.
fn is_hashed(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let hash = stem.rsplit(['-', '.']).next().unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    hash.len() >= 8 && hash.len() < stem.len() && hash.chars().all(plain)
}

/// The file in the form that the client takes.
fn find(path: &str, headers: &HeaderMap) -> Option<(&'static File, Option<&'static str>)> {
    let plain = File::find(path)?;
    let accepted = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    for (end, coding) in CODINGS {
        let takes = |one: &str| one.split(';').next().is_some_and(|name| name.trim() == coding);
        if accepted.is_some_and(|all| all.split(',').any(takes)) {
            if let Some(file) = File::find(&format!("{path}.{end}")) {
                return Some((file, Some(coding)));
            }
        }
    }
    Some((plain, None))
}

/// The answer to a request for a file.
///
/// # Errors
/// There is none.
pub(crate) fn file(path: &str, headers: &HeaderMap) -> Result<Response, Problem> {
    let path = match path.trim_start_matches('/') {
        "" => "index.html",
        path => path,
    };
    let is_form = CODINGS.iter().any(|(end, _)| path.ends_with(&format!(".{end}")));
    let Some((file, coding)) = find(path, headers).filter(|_| !is_form) else {
        return Err(Problem::not_found("there is no such page"));
    };
    let tag = file.tag();
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let same = known.is_some_and(|all| all.split(',').any(|one| one.trim() == tag));
    let mut response = match same {
        true => reply(StatusCode::NOT_MODIFIED, file.media, Body::empty()),
        false => reply(StatusCode::OK, file.media, file.content),
    };
    let kept = match is_hashed(path) {
        true => "public, max-age=31536000, immutable",
        false => "no-cache",
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(kept));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if let Ok(tag) = HeaderValue::from_str(tag) {
        headers.insert(header::ETAG, tag);
    }
    if let Some(coding) = coding {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding));
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_with_a_hash_are_kept_for_ever() {
        for (path, is) in [
            ("assets/app-8f3ab2c1.js", true),
            ("assets/index-BDHXyZ_1.css", true),
            ("index.html", false),
            ("app.js", false),
            ("favicon-32.png", false),
            ("12345678.js", false),
        ] {
            assert_eq!(is_hashed(path), is, "{path}");
        }
    }

    #[test]
    fn a_file_has_its_media_type_and_the_hash_of_its_content() {
        for (end, media) in [
            (".css", "text/css; charset=utf-8"),
            (".html", "text/html; charset=utf-8"),
            (".js", "text/javascript; charset=utf-8"),
            (".svg", "image/svg+xml"),
            (".txt", "text/plain; charset=utf-8"),
        ] {
            let file = FILES.iter().find(|file| file.path.ends_with(end)).expect(end);
            let found = super::file(file.path, &HeaderMap::new()).unwrap();
            assert_eq!(found.headers()[header::CONTENT_TYPE], media, "{}", file.path);
            let hash = Sha256::digest(file.content)
                .iter()
                .take(16)
                .fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
            assert_eq!(found.headers()[header::ETAG], format!("\"{hash}\""), "{}", file.path);
        }
    }

    #[test]
    fn every_built_file_is_embedded() {
        fn count(directory: &std::path::Path) -> usize {
            let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
            entries.map(|path| if path.is_dir() { count(&path) } else { 1 }).sum()
        }
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web/dist");
        assert_eq!(FILES.len(), count(&root));
        for file in &FILES {
            assert_eq!(std::fs::read(root.join(file.path)).unwrap(), file.content, "{}", file.path);
        }
    }

    #[test]
    fn the_page_is_there_and_known_again_by_its_tag() {
        let mut headers = HeaderMap::new();
        let first = file("/", &headers).unwrap();
        assert_eq!(first.status(), StatusCode::OK);
        assert_eq!(first.headers()[header::CONTENT_TYPE], "text/html; charset=utf-8");
        headers.insert(header::IF_NONE_MATCH, first.headers()[header::ETAG].clone());
        assert_eq!(file("/", &headers).unwrap().status(), StatusCode::NOT_MODIFIED);
        for path in ["/nothing", "/../Cargo.toml", "/./index.html", "//index.htm", "/index.html\0"]
        {
            assert!(file(path, &HeaderMap::new()).is_err(), "{path}");
        }
    }
}
