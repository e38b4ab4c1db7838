//! Both ends driven against each other in memory: random commands, random pieces of the stream,
//! random damage; over RDMA, random orders of what the fabric does.

mod admin;
mod authentication;
mod damage;
mod disk;
mod fabric;
mod hostile;
mod load;
mod rdma;
mod rdma_host;
mod rules;
mod world;
