//! What the fuzz targets share.

mod heap;
mod text;

pub use heap::bounded;
pub use text::assert_printable;
