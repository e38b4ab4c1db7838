//! Text for terminals.

/// Columns of a terminal.
const WIDTH: usize = 100;

/// Adds a paragraph that starts with `start` and goes on below its end; lines stay lines.
pub(crate) fn wrap(out: &mut String, start: &str, text: &str) {
    let indent = " ".repeat(start.len());
    let mut start = start.to_owned();
    for line in text.lines() {
        let mut row = start.clone();
        let mut empty = true;
        for word in line.split_whitespace() {
            if !empty && row.len() + 1 + word.len() > WIDTH {
                out.push_str(&row);
                out.push('\n');
                row.clone_from(&indent);
                empty = true;
            }
            if !empty {
                row.push(' ');
            }
            row.push_str(word);
            empty = false;
        }
        out.push_str(&row);
        out.push('\n');
        start.clone_from(&indent);
    }
}
