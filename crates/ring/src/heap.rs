//! The heap of the C library.

/// Gives the pages of the heap that are free back to the system.
///
/// The C library by itself gives back only what is free at the end of one of its arenas, and each thread of a server has an arena. So
/// a single small allocation that lives on keeps the memory of thousands of sessions that have ended.
///
/// It holds the lock of one arena at a time, for about a millisecond for each MiB that it gives back there: whoever allocates from that
/// arena waits as long. For a thread that serves nobody.
///
/// Of the C library glibc; others give memory back without being asked, and this does nothing.
pub fn give_back_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time, by any thread (malloc_trim(3)), and touches nothing that is allocated.
    unsafe {
        libc::malloc_trim(0);
    }
}
