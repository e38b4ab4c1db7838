//! What the two libraries declare in `infiniband/verbs.h` and `rdma/rdma_cma.h`, written down by
//! hand: the build needs neither headers nor a C compiler.
//!
//! Structures that this crate makes itself are whole; of those that only the libraries make,
//! nothing is written down behind the last field in use. `layout` compares all of it with what
//! a C compiler says.

mod cm;
#[cfg(test)]
mod layout;
mod table;
mod verbs;

pub(crate) use cm::*;
pub(crate) use table::{CmTable, VerbsTable};
pub(crate) use verbs::*;

// A token is kept in the user's pointer of an id.
#[cfg(not(target_pointer_width = "64"))]
compile_error!("lunet-verbs needs pointers of 64 bits");
