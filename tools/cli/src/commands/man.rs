//! `lunet man`: the manual pages, which packages come with.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

#[derive(Args)]
pub struct Man {
    /// Directory to write the pages into
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Page of the documentation, docs/configuration.md, of which lunet.toml(5) is made
    #[arg(long, value_name = "FILE")]
    configuration: Option<PathBuf>,
}

/// Writes lunet(1) and a page for each command, and lunet.toml(5).
pub fn run(options: &Man) -> Result<ExitCode> {
    let directory = &options.directory;
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    clap_mangen::generate_to(crate::whole(), directory)
        .with_context(|| format!("cannot write the pages into {}", directory.display()))?;
    if let Some(file) = &options.configuration {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let path = directory.join("lunet.toml.5");
        fs::write(&path, configuration(&text)).with_context(|| path.display().to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The page of the documentation as lunet.toml(5): its tables of keys, which a test compares with those that are read.
fn configuration(page: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut out = format!(
        ".TH lunet.toml 5 \"\" \"lunet {version}\"\n.SH NAME\nlunet.toml \\- configuration of lunet\n"
    );
    out.push_str(".SH SYNOPSIS\n/etc/lunet/lunet.toml\n.SH DESCRIPTION\n");
    let (mut in_code, mut in_table, mut in_text) = (false, false, false);
    for line in page.lines().skip_while(|line| !line.starts_with("# ")).skip(1) {
        if line.starts_with("```") {
            in_code = !in_code;
            out.push_str(if in_code { ".PP\n.nf\n.RS 4\n" } else { ".RE\n.fi\n" });
        } else if in_code {
            let _ = writeln!(out, "{}", plain(line));
        } else if let Some(row) = line.strip_prefix('|') {
            let cells = cells(row);
            // A heading has a line of dashes behind it: neither is shown.
            match (in_table, &cells[..]) {
                (true, [first, ..]) if !first.starts_with("---") => entry(&mut out, &cells),
                _ => {}
            }
            in_table = true;
            in_text = false;
            continue;
        } else if let Some(heading) = line.strip_prefix("## ") {
            let _ = writeln!(out, ".SH \"{}\"", inline(heading).replace('"', "\\(dq"));
        } else if let Some(heading) =
            line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'))
        {
            let _ = writeln!(out, ".SS \"{}\"", inline(heading).replace('"', "\\(dq"));
        } else if let Some(item) = line.strip_prefix("- ") {
            let _ = writeln!(out, ".IP \\(bu 2\n{}", inline(item));
        } else if !line.trim().is_empty() {
            if !in_text {
                out.push_str(".PP\n");
            }
            let _ = writeln!(out, "{}", inline(line.trim()));
            in_text = true;
            in_table = false;
            continue;
        }
        (in_table, in_text) = (false, false);
    }
    out.push_str(".SH SEE ALSO\n.BR lunet (1),\n.BR lunet (8)\n");
    out
}

/// A row of a table: what it is about as a tag, with its type and default, and the last cell as text.
fn entry(out: &mut String, cells: &[String]) {
    let Some((last, first)) = cells.split_last() else { return };
    let tag: Vec<String> = first.iter().map(|cell| inline(cell)).collect();
    let tag = match &tag[..] {
        [name, kind, default] => format!("{name} ({kind}; default: {default})"),
        tag => tag.join(", "),
    };
    let _ = writeln!(out, ".TP\n{tag}\n{}", inline(last));
}

/// The cells of a row; `\|` is no border.
fn cells(row: &str) -> Vec<String> {
    let row = row.trim().trim_end_matches('|').replace("\\|", "\u{0}");
    row.split('|').map(|cell| cell.trim().replace('\u{0}', "|")).collect()
}

/// Text of the documentation as roff: code in bold, links by their words.
fn inline(text: &str) -> String {
    let mut out = String::new();
    for (index, part) in text.split('`').enumerate() {
        match index % 2 {
            0 => out.push_str(&plain_words(part)),
            _ => drop(write!(out, "\\fB{}\\fR", escaped(part))),
        }
    }
    guarded(&out)
}

/// Without the addresses of links, and without marks of emphasis.
fn plain_words(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("](") {
        let (before, after) = rest.split_at(at);
        out.push_str(&escaped(&before.replace('[', "")));
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    out.push_str(&escaped(&rest.replace("**", "")));
    out
}

/// A line of an example.
fn plain(line: &str) -> String {
    guarded(&escaped(line))
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

/// A line that is no request of roff.
fn guarded(line: &str) -> String {
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_the_configuration_has_every_key() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let page = configuration(&fs::read_to_string(root).unwrap());
        for table in lunet_config::schema::TABLES {
            for name in table.names() {
                let tag = format!(".TP\n\\fB{}\\fR (", escaped(name));
                assert!(page.contains(&tag), "{}: {name}", table.heading);
            }
        }
    }

    #[test]
    fn documentation_becomes_roff() {
        let page = "# T\n\nA [link](x.md#y) and `a-b\\n`.\n\n## `[x]`\n\n| key | type | default | meaning |\n\
                    |---|---|---|---|\n| `k` | size | none | `a\\|b` |\n\n```toml\n.x = 1\n```\n";
        let roff = configuration(page);
        let (_, text) = roff.split_once(".SH DESCRIPTION\n").unwrap();
        let wanted = ".PP\nA link and \\fBa\\-b\\en\\fR.\n.SH \"\\fB[x]\\fR\"\n\
                      .TP\n\\fBk\\fR (size; default: none)\n\\fBa|b\\fR\n.PP\n.nf\n.RS 4\n\\&.x = 1\n.RE\n.fi\n";
        assert!(text.starts_with(wanted), "{text}");
    }
}
