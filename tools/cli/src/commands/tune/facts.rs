//! `lunet tune facts` and `lunet tune capture`

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use lunet_host::capture::capture as record;
use lunet_host::facts::{facts, page};

use super::{Look, Machine};
use lunet_cli::print;

#[derive(Args)]
pub struct FactsArgs {
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    machine: Machine,
}

#[derive(Args)]
pub struct CaptureArgs {
    /// File to write; `-` is standard output
    #[arg(value_name = "FILE", default_value = "lunet-machine.txt")]
    file: PathBuf,
    #[command(flatten)]
    look: Look,
}

/// Shows what is known of a machine.
pub fn show(args: &FactsArgs) -> Result<ExitCode> {
    let facts = facts(args.machine.source()?.as_ref());
    match args.json {
        true => print(&format!("{}\n", serde_json::to_string_pretty(&facts)?))?,
        false => print(&page(&facts))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes what the facts and plans of a machine are read from into a file.
pub fn capture(args: &CaptureArgs) -> Result<ExitCode> {
    let (tree, found) = record(&*args.look.source()?, &args.look.load()?)?;
    let text = tree.to_text();
    let path = args.file.as_path();
    if path == Path::new("-") {
        print(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    match written {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            bail!("{} already exists: name another file, or remove it", path.display())
        }
        other => other.with_context(|| path.display().to_string())?,
    }
    let missing = match found.platform.root {
        Some(false) => "; run it as root for all of it",
        _ => "",
    };
    print(&format!("wrote {}, {} lines{missing}\n", path.display(), text.lines().count()))?;
    Ok(ExitCode::SUCCESS)
}
