//! The `lunet` program.

fn main() {}
