//! Changes to the captured machines that make others of them, with a fault.

use lunet_host::source::{Command, Source, Tree};

use crate::captured::tree;

/// A place, the text that is there, and what becomes of it. The place is a file or the output of a command (`$ ...`).
pub type Replacement = (String, String, String);

/// The machine with an overlay on it and then with the replacements made; what does not fit is an error.
pub fn planted(
    machine: &str,
    overlay: Option<&str>,
    replacements: &[Replacement],
) -> Result<Tree, String> {
    let mut tree = tree(machine);
    if let Some(overlay) = overlay {
        tree.overlay(overlay).map_err(|error| error.to_string())?;
    }
    for replacement in replacements {
        replace(&mut tree, replacement)?;
    }
    Ok(tree)
}

fn replace(tree: &mut Tree, (place, from, to): &Replacement) -> Result<(), String> {
    let has = |text: &str, from: &str| match text.contains(from) {
        true => Ok(()),
        false => Err(format!("there is no {from:?} in {text}")),
    };
    match place.strip_prefix("$ ") {
        Some(line) => {
            let mut words = line.split(' ');
            let program = words.next().unwrap();
            let command = Command::new(program, &words.collect::<Vec<_>>());
            let mut output = tree.run(&command).ok_or_else(|| format!("no {line}"))?;
            has(&output.stdout, from)?;
            output.stdout = output.stdout.replace(from, to);
            tree.command(line, output);
        }
        None => {
            let text = tree.read(place).ok_or_else(|| format!("no {place}"))?;
            has(&text, from)?;
            tree.file(place, &text.replace(from, to));
        }
    }
    Ok(())
}
