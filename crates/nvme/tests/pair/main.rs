//! Both ends driven against each other in memory: random commands, random pieces of the stream,
//! random damage.

mod admin;
mod authentication;
mod damage;
mod disk;
mod hostile;
mod load;
mod rules;
mod world;
