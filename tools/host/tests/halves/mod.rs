//! What is worked out once for all tests of a file, by two threads.

/// What becomes of each, in the same order.
pub fn in_halves<T: Sync, R: Send>(all: &[T], of: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (first, second) = all.split_at(all.len() / 2);
    let half = |some: &[T]| -> Vec<R> { some.iter().map(&of).collect() };
    std::thread::scope(|scope| {
        let second = scope.spawn(|| half(second));
        let mut done = half(first);
        done.extend(second.join().unwrap());
        done
    })
}
