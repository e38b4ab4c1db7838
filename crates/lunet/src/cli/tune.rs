//! `lunet tune`: needs no running lunet.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use lunet_host::facts::{facts, page};
use lunet_host::source::{Live, Recorder, Source, Tree};

use super::print;

#[derive(Subcommand)]
pub enum TuneCommand {
    /// Show what is known of this machine
    Facts {
        /// Print everything as JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        machine: Machine,
    },
    /// Write what is known of this machine into a file, to send to somebody who can help
    ///
    /// It is a text that can be read beforehand. Passwords, keys and serial numbers are masked;
    /// addresses and names of initiators are not.
    #[command(verbatim_doc_comment)]
    Capture {
        /// The new file; `-` is the standard output
        #[arg(value_name = "FILE", default_value = "lunet-machine.txt")]
        file: PathBuf,
        #[command(flatten)]
        machine: Machine,
    },
}

/// Which machine.
#[derive(Args)]
pub struct Machine {
    /// A machine that was captured, instead of this one: its file, or a folder with its files
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

impl Machine {
    /// Where its facts come from.
    pub fn source(&self) -> Result<Box<dyn Source>> {
        Ok(match &self.root {
            Some(path) => Box::new(Tree::open(path)?),
            None => Box::new(Live),
        })
    }
}

pub fn run(command: TuneCommand) -> Result<ExitCode> {
    match command {
        TuneCommand::Facts { json, machine } => {
            let facts = facts(machine.source()?.as_ref());
            match json {
                true => print(&format!("{}\n", serde_json::to_string_pretty(&facts)?))?,
                false => print(&page(&facts))?,
            }
        }
        TuneCommand::Capture { file, machine } => capture(machine.source()?.as_ref(), &file)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes what the facts are read from.
fn capture(source: &dyn Source, path: &Path) -> Result<()> {
    let recorder = Recorder::new(source);
    let found = facts(&recorder);
    // When it was: a tree has no other clock.
    recorder.now();
    let text = recorder.into_tree().to_text();
    if path == Path::new("-") {
        return print(&text);
    }
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    match written {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            bail!("{} is there already: name another file, or remove it", path.display())
        }
        other => other.with_context(|| path.display().to_string())?,
    }
    let missing = match found.platform.root {
        Some(false) => "; run it as root for all of it",
        _ => "",
    };
    print(&format!("wrote {}, {} lines{missing}\n", path.display(), text.lines().count()))
}
