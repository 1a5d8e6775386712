//! Where the weights are, and what is done about it: inventory → policy → plan → execute → observe.

pub mod inventory;
pub mod stream;

pub use inventory::{Backing, Inventory, Mapping, Tensor};
