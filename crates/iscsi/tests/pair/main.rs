//! Both ends of a connection against each other: in memory, in virtual time, with the byte stream
//! cut at random or over a simulated RDMA fabric, and a model disk behind the target.

mod chap;
mod damage;
mod data;
mod disk;
mod driver;
mod fabric;
mod life;
mod rdma;
mod settings;
mod wire;
mod world;
