//! Links on the way of a path (path_resolution(7)).

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

/// How many links of a path are followed, as many as Linux does.
const MOST: usize = 40;

/// Where a whole path leads to, by the links that there are; what is not there counts as it is written, and so does what is
/// behind a place at which to stop. `None` if there are too many links.
pub fn followed(path: &Path, stops: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let parts = |path: &Path| path.iter().map(PathBuf::from).collect::<VecDeque<_>>();
    let (mut left, mut at, mut links) = (parts(path), PathBuf::from("/"), 0);
    while let Some(part) = left.pop_front() {
        if part == Path::new("..") {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        if stops(&next) {
            return Some(left.iter().fold(next, |path, part| path.join(part)));
        }
        match fs::read_link(&next) {
            Ok(target) => {
                links += 1;
                let mut before = parts(&target);
                before.append(&mut left);
                left = before;
            }
            Err(_) => at = next,
        }
        if links > MOST {
            return None;
        }
    }
    Some(at)
}
