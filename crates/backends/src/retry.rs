//! Waiting for what the kernel is about to release.
//!
//! The files, devices and locks of a killed process that used io_uring are released a moment after
//! its end, by a thread of the kernel. Its successor should not fail for that.

use std::time::Duration;

const ATTEMPTS: u32 = 40;
const PAUSE: Duration = Duration::from_millis(50);

/// Tries again while the error says that something is in use, for two seconds.
pub fn while_in_use<T, E>(
    mut attempt: impl FnMut() -> Result<T, E>,
    in_use: impl Fn(&E) -> bool,
) -> Result<T, E> {
    for _ in 0..ATTEMPTS {
        match attempt() {
            Err(error) if in_use(&error) => lunet_os::thread::sleep(PAUSE),
            other => return other,
        }
    }
    attempt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_in_use_is_tried_again() {
        let mut tries = 0;
        let third = while_in_use(
            || {
                tries += 1;
                if tries < 3 { Err("in use") } else { Ok(tries) }
            },
            |error| *error == "in use",
        );
        assert_eq!(third, Ok(3));
        let mut tries = 0;
        let failed = while_in_use(
            || {
                tries += 1;
                Err::<(), _>("missing")
            },
            |error| *error == "in use",
        );
        assert_eq!((failed, tries), (Err("missing"), 1));
    }
}
