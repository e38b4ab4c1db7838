//! The pools and secrets of libvirt that pages show are what libvirt's schemas know. Its disks are the lab's (`lab/libvirt.py`).

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use lunet_e2e::data::scratch;
use lunet_e2e::process::run;

use super::blocks::{blocks, pages};

/// The schema of a document, by its first element.
fn schema(text: &str) -> Option<&'static str> {
    [("<pool ", "storagepool"), ("<secret ", "secret")]
        .into_iter()
        .find_map(|(element, schema)| text.trim_start().starts_with(element).then_some(schema))
}

/// Whether libvirt's schema knows it.
fn is_valid(text: &str) -> Result<bool> {
    let dir = scratch("lunet-docs-xml-")?;
    let file = dir.path().join("page.xml");
    fs::write(&file, text)?;
    let mut validate = Command::new("virt-xml-validate");
    validate.arg(&file).args(schema(text));
    let finished = run(&mut validate, Duration::from_secs(60))?;
    Ok(finished.status.is_some_and(|status| status.success()))
}

#[test]
fn libvirt_knows_the_pools_of_pages() -> Result<()> {
    let mut seen = 0;
    for page in pages() {
        let documents = blocks(&fs::read_to_string(&page)?);
        for document in documents.iter().filter(|block| schema(&block.text).is_some()) {
            let line = document.line;
            ensure!(is_valid(&document.text)?, "{}: line {line} is not valid", page.display());
            let misspelled =
                document.text.replace("<source>", "<sauce>").replace("</source>", "</sauce>");
            ensure!(!is_valid(&misspelled)?, "{}: line {line}: all is valid?", page.display());
            seen += 1;
        }
    }
    ensure!(seen >= 2, "only {seen} pools were found");
    Ok(())
}
