//! Keeps everything that was asked, and what was answered.

use std::cell::RefCell;

use super::{Command, Output, Source, Tree, mask};

/// A source that keeps what another one answers, without its secrets.
///
/// What it hands on is masked as well: facts that are read through it are those that will be read
/// from its tree.
pub struct Recorder<'a> {
    inner: &'a dyn Source,
    tree: RefCell<Tree>,
}

impl<'a> Recorder<'a> {
    /// Records what `inner` says.
    pub fn new(inner: &'a dyn Source) -> Self {
        Self { inner, tree: RefCell::default() }
    }

    /// What was recorded.
    pub fn into_tree(self) -> Tree {
        self.tree.into_inner()
    }
}

impl Source for Recorder<'_> {
    fn read(&self, path: &str) -> Option<String> {
        let text = mask::file(path, &self.inner.read(path)?);
        self.tree.borrow_mut().file(path, &text);
        Some(text)
    }

    fn list(&self, directory: &str) -> Option<Vec<String>> {
        let names = self.inner.list(directory)?;
        self.tree.borrow_mut().lists.insert(directory.to_owned(), names.clone());
        Some(names)
    }

    fn link(&self, path: &str) -> Option<String> {
        let target = self.inner.link(path)?;
        self.tree.borrow_mut().symlink(path, &target);
        Some(target)
    }

    fn run(&self, command: &Command) -> Option<Output> {
        let mut output = self.inner.run(command)?;
        output.stdout = mask::output(command, &output.stdout);
        self.tree.borrow_mut().command(&command.to_string(), output.clone());
        Some(output)
    }
}
