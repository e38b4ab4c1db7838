//! Both ends of a connection against each other: in memory, in virtual time, with the byte stream
//! cut at random, and a model disk behind the target.

mod chap;
mod damage;
mod data;
mod disk;
mod driver;
mod life;
mod settings;
mod wire;
mod world;
