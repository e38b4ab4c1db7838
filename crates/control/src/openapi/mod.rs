//! The OpenAPI document. It is a file, `openapi.json`, which a test compares with the table of routes and the types:
//! `LUNET_BLESS=1 cargo test -p lunet-control --lib openapi` writes it.

#[cfg(test)]
mod generate;

/// The document, with a line for each member of an object, and with [`VERSION`] and [`COOKIE`] in place of their values.
static HELD: &str = include_str!("../../openapi.json");

/// Stands for the version of lunet.
const VERSION: &str = "{version}";

/// Stands for the name of the session's cookie, which is of each server.
const COOKIE: &str = "{cookie}";

/// The document, as it is served. `cookie` is the name of the session's.
pub(crate) fn document(cookie: &str) -> String {
    // A line break within a JSON string is escaped, so none of these is part of a text.
    let compact = HELD.replace('\n', "");
    compact.replacen(VERSION, env!("CARGO_PKG_VERSION"), 1).replacen(COOKIE, cookie, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPDATE: &str = "LUNET_BLESS=1 cargo test -p lunet-control --lib openapi";

    #[test]
    fn the_document_describes_the_routes_and_the_types() {
        let made = generate::in_lines(VERSION, COOKIE);
        if std::env::var_os("LUNET_BLESS").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
            return std::fs::write(path, made).unwrap();
        }
        for (number, (held, made)) in (1..).zip(HELD.lines().zip(made.lines())) {
            assert_eq!(held, made, "line {number} of openapi.json; update it: {UPDATE}");
        }
        assert_eq!(HELD.len(), made.len(), "the end of openapi.json; update it: {UPDATE}");
        for stands in [VERSION, COOKIE] {
            assert_eq!(HELD.matches(stands).count(), 1, "{stands}");
        }
        // What is served has the values of this server, and no line breaks.
        let compact = generate::compact(env!("CARGO_PKG_VERSION"), "lunet-0123");
        assert_eq!(document("lunet-0123"), compact);
    }
}
