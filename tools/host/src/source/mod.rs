//! Where facts come from: the live machine, or a tree that was captured on another one.
//!
//! Everything is asked by the path that it has on the live machine, or by the command that shows
//! it. Whatever cannot be had is `None`: no file, no right, no such program.

mod command;
pub(crate) mod kernel_log;
mod live;
mod mask;
mod recorder;
mod text;
mod tree;

pub use command::{Command, Output};
pub use live::Live;
pub(crate) use mask::Masked;
pub use mask::{MASK, text as masked};
pub use recorder::Recorder;
pub use text::ParseError;
pub use tree::{OpenError, Tree};

/// Answers what a Linux machine says about itself.
pub trait Source {
    /// The text of a file, by its absolute path.
    fn read(&self, path: &str) -> Option<String>;

    /// The names in a directory, sorted.
    fn list(&self, directory: &str) -> Option<Vec<String>>;

    /// What a symbolic link says, as it says it.
    fn link(&self, path: &str) -> Option<String>;

    /// What a command says that only looks.
    fn run(&self, command: &Command) -> Option<Output>;

    /// The file's text without the white space around it; `None` if nothing is left.
    fn text(&self, path: &str) -> Option<String> {
        self.read(path).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// The file's text as a whole number.
    fn int(&self, path: &str) -> Option<i64> {
        self.text(path)?.parse().ok()
    }

    /// The file's text as a switch: 1, Y, on and enabled are on.
    fn flag(&self, path: &str) -> Option<bool> {
        match self.text(path)?.as_str() {
            "1" | "Y" | "y" | "on" | "yes" | "enabled" | "true" => Some(true),
            "0" | "N" | "n" | "off" | "no" | "disabled" | "false" => Some(false),
            _ => None,
        }
    }

    /// The names in a directory; none if there is no such directory.
    fn names(&self, directory: &str) -> Vec<String> {
        self.list(directory).unwrap_or_default()
    }

    /// The last part of what a symbolic link says.
    fn link_name(&self, path: &str) -> Option<String> {
        let target = self.link(path)?;
        target.trim_end_matches('/').rsplit('/').next().map(str::to_owned)
    }

    /// The output of a command that went well.
    fn output(&self, program: &str, args: &[&str]) -> Option<String> {
        let output = self.run(&Command::new(program, args))?;
        (output.code == 0).then_some(output.stdout)
    }

    /// Seconds since 1970; of a tree, when it was captured.
    fn now(&self) -> Option<i64> {
        self.output("date", &["+%s"])?.trim().parse().ok()
    }
}
