//! The page: files that are built into the program.

use hyper::header::{self, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use rust_embed::{EmbeddedFile, RustEmbed};

use crate::app::tag_of_hash;
use crate::problem::Problem;
use crate::reply::{Body, Response, reply};

/// The built page.
#[derive(RustEmbed)]
#[folder = "../../web/dist"]
struct Files;

/// Forms of a file that are smaller, and how they are called in HTTP; the smallest first.
const CODINGS: [(&str, &str); 2] = [("br", "br"), ("gz", "gzip")];

/// The media type of a file, by the end of its name.
fn media(path: &str) -> &'static str {
    match path.rsplit('.').next().unwrap_or_default() {
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
        _ => "application/octet-stream",
    }
}

/// True if a name has a hash of the content in it, as bundlers write it: `app-8f3ab2c1.js`. Such a file never changes.
fn is_hashed(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let hash = stem.rsplit(['-', '.']).next().unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    hash.len() >= 8 && hash.len() < stem.len() && hash.chars().all(plain)
}

/// The file in the form that the client takes.
fn find(path: &str, headers: &HeaderMap) -> Option<(EmbeddedFile, Option<&'static str>)> {
    let plain = Files::get(path)?;
    let accepted = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    for (end, coding) in CODINGS {
        let takes = |one: &str| one.split(';').next().is_some_and(|name| name.trim() == coding);
        if accepted.is_some_and(|all| all.split(',').any(takes)) {
            if let Some(file) = Files::get(&format!("{path}.{end}")) {
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
    let tag = tag_of_hash(&file.metadata.sha256_hash());
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let same = known.is_some_and(|all| all.split(',').any(|one| one.trim() == tag));
    let mut response = match same {
        true => reply(StatusCode::NOT_MODIFIED, media(path), Body::empty()),
        false => reply(StatusCode::OK, media(path), file.data.into_owned()),
    };
    let kept = match is_hashed(path) {
        true => "public, max-age=31536000, immutable",
        false => "no-cache",
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(kept));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
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
