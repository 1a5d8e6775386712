//! Where the weights are, and what is done about it: inventory → policy → plan → execute → observe.

pub mod execute;
pub mod inventory;
pub mod lifecycle;
pub mod operations;
pub mod page_sets;
pub mod plan;
pub mod policy;
pub mod profile;
pub mod resident;
pub mod sample;
pub mod settings;
pub mod snapshot;
pub mod stream;
pub mod streaming;
pub mod traced;

pub use inventory::{Backing, Inventory, Mapping, Tensor};
pub use operations::Operations;
pub use settings::{Settings, TraceSettings};
