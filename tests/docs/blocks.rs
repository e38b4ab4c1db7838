//! The shell examples of pages and their marks.
//!
//! A fence of `sh` or `console` (what a terminal shows: commands behind `$ `, and their output) says how it was tried:
//!
//! - `run`: this suite runs it, and `run background` one command, which serves on while the blocks behind it run;
//! - `make`: its commands are targets of the Makefile;
//! - `by=FILE`: FILE, a test, runs the same programs, elsewhere or against other addresses;
//! - `recorded`: it shows a real run, which would be another one each time;
//! - `untried`: nothing here can run it, and the page tells so.
//!
//! The fence `text printed` is the output of the block before it. A comment `<!-- sh: ... -->` is run where it is: it prepares
//! what the page takes for granted.

use std::fs;
use std::path::Path;

use super::{manual, root};

/// How a block is tried.
#[derive(Debug, Clone, PartialEq)]
pub enum Mark {
    /// Run, and no reader sees it.
    Prepare,
    Run,
    Background,
    Make,
    By(String),
    Recorded,
    Untried,
    /// The output of the block before it.
    Printed,
    None,
}

/// A block of a page, or a comment of commands.
#[derive(Debug)]
pub struct Block {
    /// The line of the page with its fence.
    pub line: usize,
    /// `sh`, `console`, `text` ...
    pub language: String,
    pub mark: Mark,
    pub text: String,
    /// Whether the reader is told that it was not tried: in its section, or before the page's first one.
    told: bool,
}

impl Block {
    /// Commands, and what each prints as far as the block shows it.
    pub fn commands(&self) -> Vec<(String, String)> {
        if self.language != "console" {
            return vec![(self.text.clone(), String::new())];
        }
        let mut commands: Vec<(String, String)> = Vec::new();
        let mut continued = false;
        for line in self.text.lines() {
            match (line.strip_prefix("$ "), commands.last_mut()) {
                (Some(command), _) => commands.push((format!("{command}\n"), String::new())),
                (None, Some(last)) if continued => last.0.push_str(&format!("{line}\n")),
                (None, Some(last)) => last.1.push_str(&format!("{line}\n")),
                (None, None) => commands.push((format!("false # no command: {line}\n"), "".into())),
            }
            let is_command = line.starts_with("$ ") || continued;
            continued = is_command && line.ends_with('\\');
        }
        commands
    }
}

/// The blocks of a page, in order.
pub fn blocks(text: &str) -> Vec<Block> {
    let lines: Vec<&str> = text.lines().collect();
    let told = told(&lines);
    let (mut blocks, mut n) = (Vec::new(), 0);
    while n < lines.len() {
        let (line, start) = (lines[n].trim_start(), n);
        let (language, mark, end) = if let Some(info) = line.strip_prefix("```") {
            let (language, mark) = info.split_once(' ').unwrap_or((info, ""));
            (language, mark, "```")
        } else if line.starts_with("<!-- sh:") {
            ("sh", "prepare", "-->")
        } else {
            n += 1;
            continue;
        };
        n += 1;
        let mut inner = String::new();
        while n < lines.len() && lines[n].trim() != end {
            inner.push_str(lines[n]);
            inner.push('\n');
            n += 1;
        }
        n += 1;
        let (language, mark) = (language.to_owned(), mark_of(mark));
        blocks.push(Block { line: start + 1, language, mark, text: inner, told: told[start] });
    }
    blocks
}

fn mark_of(words: &str) -> Mark {
    match words {
        "prepare" => Mark::Prepare,
        "run" => Mark::Run,
        "run background" => Mark::Background,
        "make" => Mark::Make,
        "recorded" => Mark::Recorded,
        "untried" => Mark::Untried,
        "printed" => Mark::Printed,
        _ => words.strip_prefix("by=").map_or(Mark::None, |file| Mark::By(file.to_owned())),
    }
}

/// For each line, whether its section, or what is before the page's first section, says that something was not tried.
fn told(lines: &[&str]) -> Vec<bool> {
    let mut code = false;
    let heads: Vec<usize> = (0..lines.len())
        .filter(|n| {
            code ^= lines[*n].trim_start().starts_with("```");
            !code && lines[*n].starts_with("##")
        })
        .collect();
    let says = |from: usize, to: usize| {
        let section = lines[from..to].join(" ").to_lowercase();
        section.contains("not tried")
    };
    let first = heads.first().copied().unwrap_or(lines.len());
    let lead = says(0, first);
    let mut told = vec![lead; lines.len()];
    for (n, from) in heads.iter().enumerate() {
        let to = heads.get(n + 1).copied().unwrap_or(lines.len());
        let own = lead || says(*from, to);
        told[*from..to].fill(own);
    }
    told
}

/// The words that name what a block's commands do: each program, and with `lunet` its command.
fn programs(text: &str) -> Vec<String> {
    const KEYWORDS: &[&str] =
        &["for", "do", "done", "sudo", "if", "then", "fi", "export", "echo", "cat"];
    let mut programs = Vec::new();
    let text = text.replace("\\\n", " ");
    let lines = text.lines().map(|line| line.split(" #").next().unwrap_or_default());
    for command in lines.flat_map(|line| line.split(['|', ';'])).flat_map(|part| part.split("&&")) {
        let mut words =
            command.trim_matches(['(', ')', ' ']).split_whitespace().skip_while(|word| {
                KEYWORDS.contains(word) || (word.contains('=') && !word.starts_with('-'))
            });
        // A variable of several words.
        if command.split_whitespace().next().is_some_and(|word| word.contains("=\"")) {
            continue;
        }
        let Some(program) = words.next().filter(|word| !word.starts_with('#')) else { continue };
        programs.push(program.to_owned());
        if program == "lunet" {
            let plain = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
            let command = words.take_while(|word| plain(word) && !word.starts_with('-'));
            programs.extend(command.map(str::to_owned));
        }
    }
    programs
}

/// What is wrong with the marks of one page.
fn mistakes(root: &Path, text: &str) -> Vec<String> {
    let blocks = blocks(text);
    let mut wrong = Vec::new();
    for (n, block) in blocks.iter().enumerate() {
        let mut say = |what: &str| wrong.push(format!("line {}: {what}", block.line));
        let is_shell = ["sh", "console"].contains(&block.language.as_str());
        let runs = |block: &Block| matches!(block.mark, Mark::Run);
        match &block.mark {
            Mark::None if is_shell => say("a shell example without a mark"),
            Mark::None if block.language == "powershell" && !block.told => {
                say("its section does not say that it was not tried");
            }
            Mark::None if block.text.lines().any(|line| line.starts_with("$ ")) => {
                say("what a terminal shows is a block `console`");
            }
            Mark::None => {}
            Mark::Printed if n == 0 || !runs(&blocks[n - 1]) => say("nothing before it is run"),
            Mark::Printed => {}
            _ if !is_shell => say("a mark of shell examples"),
            Mark::Untried if !block.told => say("its section does not say that it was not tried"),
            Mark::Make => {
                let makefile = fs::read_to_string(root.join("Makefile")).unwrap_or_default();
                for line in block.text.lines() {
                    let target = line.split_whitespace().skip_while(|word| *word != "make").nth(1);
                    let rule = format!("{}:", target.unwrap_or_default());
                    if !makefile.lines().any(|line| line.starts_with(&rule)) {
                        say(&format!("`{line}` is no target of the Makefile"));
                    }
                }
            }
            Mark::By(files) => {
                let texts = files.split(',').map(|file| fs::read_to_string(root.join(file)));
                match texts.collect::<Result<String, _>>() {
                    Ok(test) => {
                        let all: String = block.commands().into_iter().map(|(it, _)| it).collect();
                        let unknown =
                            programs(&all).into_iter().filter(|word| !test.contains(word));
                        unknown.for_each(|word| say(&format!("{files} does not run {word}")));
                    }
                    Err(_) => say(&format!("{files} does not exist")),
                }
            }
            Mark::Prepare | Mark::Run | Mark::Background | Mark::Recorded | Mark::Untried => {}
        }
    }
    wrong
}

/// The pages with shell examples that users follow.
pub fn pages() -> Vec<std::path::PathBuf> {
    let mut pages = manual(&root());
    pages.push(root().join("README.md"));
    pages
}

#[test]
fn every_shell_example_says_how_it_was_tried() {
    let (mut wrong, mut seen) = (Vec::new(), [0; 5]);
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        let name = page.strip_prefix(root()).expect("below").display().to_string();
        wrong.extend(mistakes(&root(), &text).into_iter().map(|what| format!("{name}: {what}")));
        for block in blocks(&text) {
            match block.mark {
                Mark::Run | Mark::Background => seen[0] += 1,
                Mark::By(_) => seen[1] += 1,
                Mark::Make => seen[2] += 1,
                Mark::Recorded => seen[3] += 1,
                Mark::Untried => seen[4] += 1,
                Mark::Prepare | Mark::Printed | Mark::None => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    println!("run, by another test, make, recorded, untried: {seen:?}");
    assert!(seen.iter().sum::<i32>() > 80, "only {seen:?} shell examples were found");
}

/// The checks find what is wrong.
#[test]
fn planted_mistakes_are_found() {
    let page = "# Page\n\
        ```sh\nls\n```\n\
        ```text\n$ ls\n```\n\
        ```text printed\nx\n```\n\
        ```toml run\n```\n\
        ## ESXi\nNot tried: needs ESXi.\n\
        ```sh untried\nesxcli\n```\n\
        ## Others\n\
        ```sh untried\nls\n```\n\
        ```powershell\nls\n```\n\
        ```sh make\nmake nothing-of-this-kind\nmake test\n```\n\
        ```sh by=lab/suites/open-iscsi.sh\niscsiadm -m session -P 2; nonesuch\nlunet volume petrify x\n```\n\
        ```sh by=tests/none.rs\nls\n```\n\
        ```console run\n$ ls \\\n  -l\nx\n$ true\n```\n\
        ```text printed\nx\n```\n";
    let expected = [
        "line 2: a shell example without a mark",
        "line 5: what a terminal shows is a block `console`",
        "line 8: nothing before it is run",
        "line 11: a mark of shell examples",
        "line 19: its section does not say that it was not tried",
        "line 22: its section does not say that it was not tried",
        "line 25: `make nothing-of-this-kind` is no target of the Makefile",
        "line 29: lab/suites/open-iscsi.sh does not run nonesuch",
        "line 29: lab/suites/open-iscsi.sh does not run petrify",
        "line 33: tests/none.rs does not exist",
    ];
    assert_eq!(mistakes(&root(), page), expected);
    let console = blocks(page).into_iter().find(|block| block.language == "console");
    let console = console.expect("the one of the page");
    let commands = [("ls \\\n  -l\n", "x\n"), ("true\n", "")];
    assert_eq!(console.commands(), commands.map(|(a, b)| (a.to_owned(), b.to_owned())));
}
