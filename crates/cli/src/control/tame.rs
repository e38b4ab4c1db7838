//! What another process says, made fit for a terminal before anything of it is shown.

use lunet_iscsi::printable::{is_printable, printable};
use serde_json::Value;

/// Takes out of an answer what steers a terminal: whoever shows it need not think of that. `key` is where it stands.
pub(super) fn tame(value: &mut Value, key: &str) {
    match value {
        // A configuration has lines, and tabs between its words.
        Value::String(text) if ["text", "pending"].contains(&key) => *text = of_file(text),
        Value::String(text) if ["error", "message", "fix"].contains(&key) => *text = one_line(text),
        Value::String(text) => *text = printable(text).to_string(),
        Value::Array(all) => all.iter_mut().for_each(|one| tame(one, key)),
        // What a command of the server has printed is shown as such, and JSON with its characters escaped.
        Value::Object(all) => {
            let shown = |key: &str| !["config", "result", "progress"].contains(&key);
            all.iter_mut().filter(|(key, _)| shown(key)).for_each(|(key, one)| tame(one, key));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The text of a file. A carriage return at the end of a line alone does not write over what stands in it.
fn of_file(text: &str) -> String {
    let mut rest = text.chars().peekable();
    let mut out = String::with_capacity(text.len());
    while let Some(c) = rest.next() {
        let kept = match c {
            '\n' | '\t' => true,
            '\r' => rest.peek() == Some(&'\n'),
            c => is_printable(c),
        };
        out.push(if kept { c } else { '?' });
    }
    out
}

/// Several lines as one, so that none of them can be taken for one of this program.
pub fn one_line(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| printable(line).to_string()).collect();
    lines.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_says_nothing_to_the_terminal() {
        let mut answer = serde_json::json!([{
            "name": "a\x1b[2Jb\nlunet: c",
            "backend": "\x1b]0;x\x07",
            "luns": [{"target": "x\u{202e}y\u{9b}", "lun": 1}],
            "text": "[a]\r\n\tb = 1 # \x1b[31m\rc\n",
            "error": {"message": "no\nlunet: yes\x1b[A", "fix": "\u{2066}it"},
            "result": {"a": "b\n"},
        }]);
        tame(&mut answer, "");
        let expected = serde_json::json!([{
            "name": "a?[2Jb?lunet: c",
            "backend": "?]0;x?",
            "luns": [{"target": "x?y?", "lun": 1}],
            "text": "[a]\r\n\tb = 1 # ?[31m?c\n",
            "error": {"message": "no; lunet: yes?[A", "fix": "?it"},
            "result": {"a": "b\n"},
        }]);
        assert_eq!(answer, expected);
        assert_eq!(one_line("a\nlunet: b\r\n\x1b[1m"), "a; lunet: b; ?[1m");
    }
}
