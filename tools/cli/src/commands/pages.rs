//! The commands that the documentation names are commands of this program.

use std::fs;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;

/// What separates commands or words of a shell's line.
#[derive(Default)]
struct Shell {
    commands: Vec<Vec<String>>,
    word: Option<String>,
    /// The next word is the file of a redirection.
    redirected: bool,
}

impl Shell {
    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        if !std::mem::take(&mut self.redirected) {
            self.commands.last_mut().expect("one").push(word);
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.redirected = false;
        self.commands.push(Vec::new());
    }

    /// The words of each command: quotes, comments, continued lines, pipes and redirections as a shell has them.
    fn commands(text: &str) -> Vec<Vec<String>> {
        let mut shell = Shell { commands: vec![Vec::new()], ..Shell::default() };
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '\\' if chars.peek() == Some(&'\n') => drop(chars.next()),
                '#' if shell.word.is_none() => while chars.next_if(|c| *c != '\n').is_some() {},
                '\'' | '"' => {
                    let quoted: String = chars.by_ref().take_while(|inner| *inner != c).collect();
                    shell.word.get_or_insert_default().push_str(&quoted);
                }
                '$' if chars.peek() == Some(&'(') => {}
                '\n' | ';' | '|' | '&' | '(' | ')' => shell.end_command(),
                '<' | '>' => {
                    shell.end_word();
                    shell.redirected = true;
                }
                c if c.is_whitespace() => shell.end_word(),
                c => shell.word.get_or_insert_default().push(c),
            }
        }
        shell.end_command();
        shell.commands
    }
}

/// The arguments of each `lunet` in a shell's text, itself included.
fn calls(text: &str) -> Vec<Vec<String>> {
    let mut calls = Shell::commands(text);
    for words in &mut calls {
        let before = |word: &&String| {
            let assigns = word.contains('=') && !word.starts_with('-');
            assigns || ["sudo", "$", "then", "do"].contains(&word.as_str())
        };
        let skipped = words.iter().take_while(before).count();
        words.drain(..skipped);
    }
    calls
        .retain(|words| words.first().is_some_and(|word| word.rsplit('/').next() == Some("lunet")));
    calls
}

/// Why a command is none of this program. `whole`: it lacks nothing, either.
fn refused(words: &[String], whole: bool) -> Option<String> {
    let error = crate::whole().try_get_matches_from(words).err()?;
    let stands_for = |word: &String| word.len() > 1 && !word.chars().any(char::is_lowercase);
    let fine = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => !whole,
        // `SIZE` and the like stand for a value, and an option is named without one.
        ErrorKind::InvalidValue | ErrorKind::ValueValidation | ErrorKind::InvalidSubcommand => {
            let named = words.last().is_some_and(|word| word.starts_with("--"));
            !whole && (named || words.iter().skip(1).any(stands_for))
        }
        _ => false,
    };
    let said = error.to_string();
    (!fine).then(|| format!("`{}`: {}", words.join(" "), said.lines().next().unwrap_or_default()))
}

/// The commands of a page that are none, and how many were looked at, in examples and within sentences.
fn mistakes(page: &str) -> (Vec<String>, [usize; 2]) {
    let (mut wrong, mut seen) = (Vec::new(), [0, 0]);
    let (mut language, mut example) = (None::<&str>, String::new());
    for line in page.lines() {
        let fence = line.trim_start().strip_prefix("```");
        match (language, fence) {
            (None, Some(info)) => language = Some(info.split(' ').next().unwrap_or_default()),
            (Some(_), Some(_)) => {
                let calls = calls(&std::mem::take(&mut example));
                seen[0] += calls.len();
                wrong.extend(calls.iter().filter_map(|words| refused(words, true)));
                language = None;
            }
            (Some("sh"), None) => example.extend([line, "\n"]),
            (Some("console"), None) if line.starts_with("$ ") || example.ends_with("\\\n") => {
                example.extend([line.trim_start_matches("$ "), "\n"]);
            }
            (Some(_), None) => {}
            (None, None) => {
                let code = line.split('`').skip(1).step_by(2);
                // `[--json]`, `allow|deny` and `...` are the grammar of a command, and no command.
                let is_call = |code: &&str| {
                    code.starts_with("lunet ")
                        && !code.contains(['[', '|', '{'])
                        && !code.contains("...")
                };
                for words in code.filter(is_call).flat_map(calls) {
                    seen[1] += 1;
                    wrong.extend(refused(&words, false));
                }
            }
        }
    }
    (wrong, seen)
}

/// All pages below a folder.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let (folders, mut pages): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.extend(folders.iter().flat_map(|folder| self::pages(folder)));
    pages
}

#[test]
fn the_documentation_names_commands_that_there_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = pages(&root.join("docs"));
    pages.extend(["README.md", "SECURITY.md", "lab/README.md"].map(|page| root.join(page)));
    let (mut wrong, mut seen) = (Vec::new(), [0, 0]);
    for page in pages {
        let text = fs::read_to_string(&page).expect("a page");
        let (mistakes, [examples, sentences]) = mistakes(&text);
        wrong.extend(mistakes.into_iter().map(|what| format!("{}: {what}", page.display())));
        seen = [seen[0] + examples, seen[1] + sentences];
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("commands in examples, in sentences: {seen:?}");
    assert!(seen[0] > 100 && seen[1] > 100, "only {seen:?} commands were found");
}

#[test]
fn planted_mistakes_are_found() {
    let page = "`lunet volume petrify x`, `lunet volume resize NAME SIZE`, `lunet volume list --jason`\n\
        ```sh\nsudo lunet volume create vm1 --size 40GiB | tee x    # lunet nothing\n\
        A=b target/release/lunet volume create vm1 --size 40XB > lunet\n\
        openssl rand -hex 8 | lunet target user add \\\n  iqn.x:y esx1 --forced\n\
        x=$(lunet volume rollback) && echo lunet nothing\n```\n\
        ```text\nlunet nothing\n```\n```console\n$ lunet nothing\nlunet: no\n```\n";
    let (wrong, seen) = mistakes(page);
    assert_eq!(seen, [5, 3]);
    let found = ["petrify", "--jason", "40XB", "--forced", "volume rollback", "nothing"];
    assert_eq!(wrong.len(), found.len(), "{wrong:#?}");
    for (what, word) in wrong.iter().zip(found) {
        assert!(what.contains(word), "{what}: {word}");
    }
}
