//! `lunet bench scale`

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::bench::curve::{self, Options};
use anyhow::Result;
use clap::Args;
use lunet_os::cpus::Cpus;

use super::output::Page;
use super::{runtime, say, stop};
use lunet_cli::print;

#[derive(Args)]
pub struct Scale {
    /// Numbers of shards, as 1,2,4 [default: doubled up to half of the processors, at least up to 8]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = shards)]
    shards: Vec<usize>,
    /// Duration for each number of shards, 100ms to 1h
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = runtime)]
    runtime: Duration,
    /// Reads of each session at a time, 1 to 1024
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,
    /// Also write the page to a file, as Markdown
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

fn shards(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(number) if (1..=256).contains(&number) => Ok(number),
        _ => Err("a number of shards is 1 to 256".to_owned()),
    }
}

pub fn run(options: &Scale) -> Result<ExitCode> {
    let page = options.out.as_deref().map(Page::check).transpose()?;
    let mut numbers = options.shards.clone();
    if numbers.is_empty() {
        numbers = curve::usual(Cpus::allowed()?.numbers().len());
    }
    let wanted =
        Options { shards: numbers.clone(), runtime: options.runtime, depth: options.depth };
    let report = curve::run(wanted, &*stop()?, &mut |at, _| {
        say(&format!("{} ...", curve::shards_in_words(numbers[at])));
    })?;
    let text = report.page();
    if let Some(page) = page {
        page.write(&text)?;
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
