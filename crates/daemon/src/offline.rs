//! What commands do with the server's code and without a server.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use lunet_config::{self as config, Shared};
use zeroize::Zeroizing;

use crate::plan::Options;
use crate::{group, plan, serve};

/// Writes the record of a new failover group into its cluster. `shared` has the group's volumes and target. Gives what was
/// done, as a sentence.
///
/// # Errors
/// The configuration is wrong, or the cluster refuses.
pub fn create_group(
    name: &str,
    gateways: u16,
    file: &Path,
    shared: Option<&Path>,
) -> Result<String> {
    match shared {
        None => create(name, gateways, file),
        Some(shared) => create_shared(name, gateways, file, shared),
    }
}

/// The shared configuration of a failover group with its secrets, as the cluster has it.
///
/// # Errors
/// The configuration is wrong, or the cluster refuses.
pub fn group_config(name: &str, file: &Path) -> Result<Zeroizing<String>> {
    let config = plan::read_config(file)?;
    let found = group::read_config(&config, name)?;
    Ok(Zeroizing::new(found.head() + &found.text))
}

fn create(name: &str, gateways: u16, file: &Path) -> Result<String> {
    let config = plan::read_config(file)?;
    if config.pending.iter().any(|group| group.name == name) {
        bail!(
            "group {name} has `shared = true`: name the file with its volumes and its target with --shared"
        );
    }
    group::create(&config, name, gateways, None)
}

fn create_shared(name: &str, gateways: u16, file: &Path, shared: &Path) -> Result<String> {
    let config = plan::read_config(file)?;
    if !config.pending.iter().any(|group| group.name == name) {
        bail!("{} has no [group.{name}] with `shared = true`", file.display());
    }
    let text = lunet_os::fs::read_text(shared, config::MAX_BYTES).map(Zeroizing::new);
    let text = text.with_context(|| format!("cannot read {}", shared.display()))?;
    let text = match lunet_group::split(&text)? {
        Some((_, rest)) => Zeroizing::new(rest.to_owned()),
        None => text,
    };
    ensure!(
        text.len() <= lunet_group::MAX_TEXT,
        "{}: a group shares at most {} bytes",
        shared.display(),
        lunet_group::MAX_TEXT
    );
    let shared = Shared { group: name.to_owned(), revision: 1, text };
    let (options, text) = (Options::default(), plan::read_own(file)?);
    let plan = plan::of_text(&options, file, text, vec![shared.clone()])?;
    group::create(&plan.config, name, gateways, Some(&shared))
}

/// Checks a configuration file as a start does, and prints the result.
///
/// # Errors
/// The file cannot be read, or is not to be trusted.
pub fn check_config(file: &Path) -> Result<ExitCode> {
    match plan::read_config(file) {
        Ok(config) => {
            let mut text = format!("{}: valid: {}", file.display(), config::summary(&config));
            // The kernel's state now, on the machine that checks, is no property of the file.
            if let Err(error) = serve::check_tls(&config) {
                text += &format!("warning: lunet would not start on this machine now: {error}\n");
            }
            // A reader that has seen enough, as `head` has, is no error.
            match io::stdout().write_all(text.as_bytes()) {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                    return Err(error).context("cannot write to standard output");
                }
                _ => {}
            }
            Ok(ExitCode::SUCCESS)
        }
        // The mistakes as compilers write them, for editors that jump to the line.
        Err(error) => {
            let wrong = error.downcast::<plan::Wrong>()?;
            let _ = writeln!(io::stderr(), "{wrong}");
            Ok(ExitCode::FAILURE)
        }
    }
}
