//! A file that is new in the built page is embedded, too.

fn main() {
    println!("cargo::rerun-if-changed=../../web/dist");
}
