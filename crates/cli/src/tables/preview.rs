//! `lunet config apply --dry-run`

use lunet_api::Preview;

use super::layout::harmless;

/// Says what a change would do.
pub fn preview(preview: &Preview) -> String {
    let Preview { file, changes, notes, sessions, refused } = preview;
    let nothing = changes.is_empty() && notes.is_empty() && sessions.is_empty();
    if nothing && refused.is_none() {
        return format!("{file} is already in effect: nothing would change\n");
    }
    let mut out = format!("with {file} in effect:\n");
    let lines = changes.iter().map(ToString::to_string);
    let lines = lines.chain(notes.iter().cloned()).chain(sessions.iter().map(ToString::to_string));
    for line in lines {
        out.push_str(&format!("  {}\n", harmless(&line)));
    }
    match refused {
        Some(why) => out.push_str(&format!("it would be refused: {}\n", harmless(why))),
        None => out.push_str("nothing has been changed\n"),
    }
    out
}

#[cfg(test)]
mod tests {
    use lunet_api::Difference;

    use super::*;

    #[test]
    fn what_would_change_is_a_list() {
        let file = "lunet.toml".to_owned();
        let mut answer = Preview { file, ..Preview::default() };
        assert_eq!(preview(&answer), "lunet.toml is already in effect: nothing would change\n");
        let [what, name, change] = ["volume", "n", "is new"].map(str::to_owned);
        answer.changes.push(Difference { what, name, change });
        answer.notes.push("server.shards takes effect after a restart".into());
        let list = "with lunet.toml in effect:\n  volume n is new\n  \
                    server.shards takes effect after a restart\n";
        assert_eq!(preview(&answer), format!("{list}nothing has been changed\n"));
        answer.refused = Some("1 session uses it".into());
        assert_eq!(preview(&answer), format!("{list}it would be refused: 1 session uses it\n"));
    }
}
