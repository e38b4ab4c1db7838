//! The command window (RFC 7143 section 4.2.2.1).

/// True when serial number `a` comes before `b` (RFC 1982, 32 bits).
pub(super) const fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// The position of a command in the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// For immediate delivery: it does not count.
    Immediate,
    /// The next one.
    Next,
    /// In the window, behind a gap.
    Ahead,
    /// Not in the window: to be ignored.
    Outside,
}

/// ExpCmdSN and MaxCmdSN.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    expected: u32,
    max: u32,
    depth: u32,
}

impl Window {
    /// The window in front of the first command.
    pub(super) const fn new(first: u32, depth: u32) -> Self {
        Self { expected: first, max: first.wrapping_add(depth).wrapping_sub(1), depth }
    }

    /// ExpCmdSN.
    pub(super) const fn expected(&self) -> u32 {
        self.expected
    }

    /// MaxCmdSN while `outstanding` commands are not answered. It never moves back.
    pub(super) const fn max(&mut self, outstanding: u32) -> u32 {
        let free = self.depth.saturating_sub(outstanding);
        let max = self.expected.wrapping_add(free).wrapping_sub(1);
        if before(self.max, max) {
            self.max = max;
        }
        self.max
    }

    /// The position of a command with this CmdSN.
    pub(super) const fn position(&self, cmd_sn: u32, immediate: bool) -> Position {
        if immediate {
            Position::Immediate
        } else if cmd_sn == self.expected && !before(self.max, cmd_sn) {
            Position::Next
        } else if before(cmd_sn, self.expected) || before(self.max, cmd_sn) {
            Position::Outside
        } else {
            Position::Ahead
        }
    }

    /// The next command was taken.
    pub(super) const fn advance(&mut self) {
        self.expected = self.expected.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn commands_are_placed_in_the_window() {
        let window = Window::new(u32::MAX, 4);
        assert_eq!(window.position(u32::MAX, false), Position::Next);
        assert_eq!(window.position(0, false), Position::Ahead);
        assert_eq!(window.position(2, false), Position::Ahead);
        assert_eq!(window.position(3, false), Position::Outside);
        assert_eq!(window.position(u32::MAX - 1, false), Position::Outside);
        assert_eq!(window.position(77, true), Position::Immediate);
    }

    #[test]
    fn a_full_window_takes_no_command() {
        let mut window = Window::new(10, 1);
        window.advance();
        assert_eq!(window.max(1), 10);
        assert_eq!(window.position(11, false), Position::Outside);
        assert_eq!(window.max(0), 11);
        assert_eq!(window.position(11, false), Position::Next);
    }

    proptest! {
        #[test]
        fn max_cmd_sn_never_moves_back(first: u32, steps in proptest::collection::vec((any::<bool>(), 0u32..20), 0..60)) {
            let mut window = Window::new(first, 16);
            let mut last = window.max(0);
            for (advance, outstanding) in steps {
                if advance {
                    window.advance();
                }
                let max = window.max(outstanding);
                prop_assert!(!before(max, last));
                last = max;
            }
        }
    }
}
