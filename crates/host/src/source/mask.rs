//! Takes secrets out of what is captured: passwords, keys, tokens, serial numbers.

/// What stands in a secret's place.
pub const MASK: &str = "***";

/// Files that hold nothing but a secret, by the end of their path.
const SECRET_FILES: &[&str] = &[
    "/password",
    "/password_mutual",
    "/dhchap_key",
    "/dhchap_ctrl_key",
    "/dhchap_secret",
    "/dhchap_ctrl_secret",
    "/serial",
    "/product_serial",
    "/board_serial",
    "/chassis_serial",
    "/product_uuid",
    "/vpd_pg80",
    "/wwid",
];

/// Words in the name of a value that must not be seen.
const SECRET_NAMES: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "psk",
    "dhchap_key",
    "dhchap_ctrl_key",
    "apikey",
    "api_key",
    "private",
    "serial",
];

/// A file's text without secrets.
pub(super) fn file(path: &str, content: &str) -> String {
    if SECRET_FILES.iter().any(|end| path.ends_with(end)) {
        return match content.trim().is_empty() {
            true => content.to_owned(),
            false => format!("{MASK}\n"),
        };
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    // SCST's users: `name secret`, on the first line.
    if name.starts_with("IncomingUser") || name.starts_with("OutgoingUser") {
        return content.lines().map(|line| chap_user(line) + "\n").collect();
    }
    text(content)
}

fn chap_user(line: &str) -> String {
    match line.split_once(' ') {
        Some((user, _)) => format!("{user} {MASK}"),
        None => line.to_owned(),
    }
}

/// Any text without secrets.
pub(super) fn text(content: &str) -> String {
    let mut out = String::with_capacity(content.len());
    for line in content.split_inclusive('\n') {
        mask_line(&mut out, line);
    }
    out
}

/// Copies a line; the value after a secret's name and a `=` or `:` becomes the mask.
fn mask_line(out: &mut String, line: &str) {
    let mut rest = line;
    loop {
        let lower = rest.to_ascii_lowercase();
        let found = SECRET_NAMES.iter().filter_map(|name| {
            let at = lower.find(name)?;
            Some((at, at + name.len()))
        });
        let Some((_, end)) = found.min() else { break };
        // The rest of the name, then a separator, then the value.
        let name = end + rest[end..].find(|c: char| !is_name(c)).unwrap_or(rest.len() - end);
        let after = rest[name..].trim_start_matches([' ', '\t', '"', '\'']);
        if !after.starts_with(['=', ':']) {
            out.push_str(&rest[..name]);
            rest = &rest[name..];
            if rest.is_empty() {
                return;
            }
            continue;
        }
        let value = after[1..].trim_start_matches([' ', '\t', '=']);
        out.push_str(&rest[..rest.len() - value.len()]);
        rest = mask_value(out, value);
    }
    out.push_str(rest);
}

/// Masks the value that the text starts with; returns what is behind it.
fn mask_value<'a>(out: &mut String, text: &'a str) -> &'a str {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''));
    if let Some(quote) = quote {
        let inner = &text[1..];
        let end = inner.find(quote).unwrap_or(inner.len());
        out.push(quote);
        if end > 0 {
            out.push_str(MASK);
        }
        return &inner[end..];
    }
    if let Some(word) =
        ["null", "true", "false", "[", "{", "<"].iter().find(|w| text.starts_with(**w))
    {
        out.push_str(word);
        return &text[word.len()..];
    }
    let end = text.find([' ', '\t', ',', '\n', '\r', '}', ']', ';']).unwrap_or(text.len());
    if end > 0 {
        out.push_str(MASK);
    }
    &text[end..]
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '(' | ')' | '[' | ']')
}
