//! Streaming weights from disk while the model computes: mechanism without policy.
//!
//! A [`StreamPlan`] says which pages of the model's files are pinned in anonymous memory and which are read
//! anew in every pass, in units of whole pages. [`stream`] pins the former and keeps reading the
//! latter, in the order in which the graph uses them and across passes, into a pool of blocks. When the
//! computation comes to a unit, its blocks' pages are laid over the tensors' own addresses (mremap); when the
//! unit's last use is computed, the pages go back to the pool and the file is mapped there again. Units that are kept
//! are read in the same way, until a thread has memory ready for them: their next read goes there, they are laid over
//! for good, and are not read again. Of a tensor of experts, one token needs few: they are read when the graph has
//! chosen them.
//!
//! Addresses never change, and at every moment an address yields the file's bytes: from a block whose read
//! has completed, from pinned memory, or from the file's mapping. A graph that differs from the planned one is
//! therefore slow, not wrong.

mod bandwidth;
mod eviction;
mod experts;
mod kept;
mod memory;
mod pin;
mod plan;
mod queue;
mod reader;
mod schedule;
mod streamer;

pub use bandwidth::{Bandwidth, measure_bandwidth};
pub use plan::{PAGE_BYTES, Region, StreamPlan, Unit};
pub use reader::{ReadAt, Target, buffered_reader, direct_reader, preceded_reader};
pub use streamer::{StreamHandle, StreamStats, stream};
