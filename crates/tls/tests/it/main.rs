//! Both ends of a handshake against each other, against damage, and against other programs.

mod damage;
mod hostile;
mod pair;
mod peers;
mod support;
