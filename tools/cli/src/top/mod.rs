//! `lunet top`: a running server on a screen.

mod fit;
mod screen;
mod terminal;

pub use terminal::top;
