//! Random numbers for identifiers and challenges.

use lunet_block::Random;

/// Fills with bytes that cannot be guessed.
pub fn unpredictable(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        // Fails only by a signal, or on a system without it: then the clock has to do.
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(n) => filled += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => {
                let time = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
                Random::new(time.as_nanos() as u64).fill(&mut bytes[filled..]);
                return;
            }
        }
    }
}
