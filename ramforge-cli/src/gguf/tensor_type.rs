//! The tensor types of ggml, as far as the size of a tensor depends on them.

use std::fmt;

/// One row of [`LAYOUTS`]: how a type packs its elements.
struct Layout {
    name: &'static str,
    /// Elements in a block; 0 for a type that was removed from GGUF.
    elements: u64,
    /// Bytes of a block.
    bytes: u64,
}

const fn layout(name: &'static str, elements: u64, bytes: u64) -> Layout {
    Layout { name, elements, bytes }
}

const fn removed(name: &'static str) -> Layout {
    layout(name, 0, 0)
}

/// Indexed by the type's number in the file. Names, numbers and block sizes are those of ggml 0.26.0.
static LAYOUTS: [Layout; 43] = [
    layout("f32", 1, 4),
    layout("f16", 1, 2),
    layout("q4_0", 32, 18),
    layout("q4_1", 32, 20),
    removed("q4_2"),
    removed("q4_3"),
    layout("q5_0", 32, 22),
    layout("q5_1", 32, 24),
    layout("q8_0", 32, 34),
    layout("q8_1", 32, 36),
    layout("q2_K", 256, 84),
    layout("q3_K", 256, 110),
    layout("q4_K", 256, 144),
    layout("q5_K", 256, 176),
    layout("q6_K", 256, 210),
    layout("q8_K", 256, 292),
    layout("iq2_xxs", 256, 66),
    layout("iq2_xs", 256, 74),
    layout("iq3_xxs", 256, 98),
    layout("iq1_s", 256, 50),
    layout("iq4_nl", 32, 18),
    layout("iq3_s", 256, 110),
    layout("iq2_s", 256, 82),
    layout("iq4_xs", 256, 136),
    layout("i8", 1, 1),
    layout("i16", 1, 2),
    layout("i32", 1, 4),
    layout("i64", 1, 8),
    layout("f64", 1, 8),
    layout("iq1_m", 256, 56),
    layout("bf16", 1, 2),
    removed("q4_0_4_4"),
    removed("q4_0_4_8"),
    removed("q4_0_8_8"),
    layout("tq1_0", 256, 54),
    layout("tq2_0", 256, 66),
    removed("iq4_nl_4_4"),
    removed("iq4_nl_4_8"),
    removed("iq4_nl_8_8"),
    layout("mxfp4", 32, 17),
    layout("nvfp4", 64, 36),
    layout("q1_0", 128, 18),
    layout("q2_0", 64, 18),
];

/// How a tensor's elements are encoded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorType(u8);

/// Why a number in a file names no usable type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnusableType {
    /// The type existed once and was removed from GGUF.
    Removed(&'static str),
    /// No such type.
    Unknown,
}

impl TensorType {
    /// The type with this number in a file.
    pub(super) fn from_id(id: u32) -> Result<Self, UnusableType> {
        let layout = LAYOUTS.get(id as usize).ok_or(UnusableType::Unknown)?;
        match layout.elements {
            0 => Err(UnusableType::Removed(layout.name)),
            _ => u8::try_from(id).map(Self).map_err(|_| UnusableType::Unknown),
        }
    }

    /// Every type that a file may use, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..LAYOUTS.len() as u32).filter_map(|id| Self::from_id(id).ok())
    }

    fn layout(self) -> &'static Layout {
        &LAYOUTS[usize::from(self.0)]
    }

    /// The type's number in a file, which is its `ggml_type`.
    pub fn id(self) -> u32 {
        u32::from(self.0)
    }

    /// ggml's name for it, such as `q4_K`.
    pub fn name(self) -> &'static str {
        self.layout().name
    }

    /// Elements in one block; rows are whole blocks.
    pub fn block_elements(self) -> u64 {
        self.layout().elements
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> u64 {
        self.layout().bytes
    }

    /// Whether the CPU multiplies matrices of it; the others hold indices or intermediate values: q8_1, q8_K,
    /// integers and f64.
    pub fn is_multiplied(self) -> bool {
        !matches!(self.0, 9 | 15 | 24..=28)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl serde::Serialize for TensorType {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_names_and_removed_types() {
        let name = |id| TensorType::from_id(id).map(TensorType::name);
        assert_eq!(name(12), Ok("q4_K"));
        assert_eq!(name(30), Ok("bf16"));
        assert_eq!(name(42), Ok("q2_0"));
        assert_eq!(name(4), Err(UnusableType::Removed("q4_2")));
        assert_eq!(name(38), Err(UnusableType::Removed("iq4_nl_8_8")));
        assert_eq!(name(43), Err(UnusableType::Unknown));
        assert_eq!(name(u32::MAX), Err(UnusableType::Unknown));
        assert_eq!(TensorType::all().count(), 35);
    }
}
