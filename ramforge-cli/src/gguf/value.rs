//! Metadata values, kept compactly: a vocabulary of 150,000 tokens is two allocations.

use std::fmt;

use super::text::printable;

/// The type of a metadata value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// An unsigned byte.
    U8,
    /// A signed byte.
    I8,
    /// An unsigned 16-bit integer.
    U16,
    /// A signed 16-bit integer.
    I16,
    /// An unsigned 32-bit integer.
    U32,
    /// A signed 32-bit integer.
    I32,
    /// A 32-bit float.
    F32,
    /// A truth value, one byte.
    Bool,
    /// A string.
    String,
    /// An array of any type but array.
    Array,
    /// An unsigned 64-bit integer.
    U64,
    /// A signed 64-bit integer.
    I64,
    /// A 64-bit float.
    F64,
}

impl ValueType {
    /// In the order of their numbers in a file.
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    pub(super) fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(id as usize).copied()
    }

    #[cfg(test)]
    pub(super) fn id(self) -> u32 {
        self as u32
    }

    /// Bytes of one value; `None` where that depends on the value.
    pub const fn size(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        })
    }
}

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An unsigned byte.
    U8(u8),
    /// A signed byte.
    I8(i8),
    /// An unsigned 16-bit integer.
    U16(u16),
    /// A signed 16-bit integer.
    I16(i16),
    /// An unsigned 32-bit integer.
    U32(u32),
    /// A signed 32-bit integer.
    I32(i32),
    /// A 32-bit float.
    F32(f32),
    /// A truth value.
    Bool(bool),
    /// A string; UTF-8 by the specification, but nothing enforces it.
    String(Vec<u8>),
    /// An array.
    Array(Array),
    /// An unsigned 64-bit integer.
    U64(u64),
    /// A signed 64-bit integer.
    I64(i64),
    /// A 64-bit float.
    F64(f64),
}

impl Value {
    /// The type of this value.
    pub const fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The type in words: `u32`, `array of string`.
    pub(super) fn describe_type(&self) -> String {
        match self {
            Self::Array(array) => format!("array of {}", array.element_type()),
            _ => self.value_type().to_string(),
        }
    }
}

/// One line: numbers and text as they are, arrays as their type and length.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(value) => value.fmt(f),
            Self::I8(value) => value.fmt(f),
            Self::U16(value) => value.fmt(f),
            Self::I16(value) => value.fmt(f),
            Self::U32(value) => value.fmt(f),
            Self::I32(value) => value.fmt(f),
            Self::F32(value) => value.fmt(f),
            Self::Bool(value) => value.fmt(f),
            Self::String(bytes) => write!(f, "\"{}\"", printable(bytes)),
            Self::Array(array) => write!(f, "array of {} {}", array.len(), array.element_type()),
            Self::U64(value) => value.fmt(f),
            Self::I64(value) => value.fmt(f),
            Self::F64(value) => value.fmt(f),
        }
    }
}

/// An array of one type.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Numbers or truth values, little-endian, as they are in the file.
    Numbers {
        /// Never `String` or `Array`.
        element: ValueType,
        /// A whole number of elements.
        bytes: Vec<u8>,
    },
    /// Strings.
    Strings(Strings),
}

impl Array {
    /// The type of the elements.
    pub const fn element_type(&self) -> ValueType {
        match self {
            Self::Numbers { element, .. } => *element,
            Self::Strings(_) => ValueType::String,
        }
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Numbers { element, bytes } => bytes.len() / element.size().map_or(1, |size| size as usize),
            Self::Strings(strings) => strings.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as unsigned integers, where they are `u32`, `i32` or `bool`: the types that the native
    /// loader takes for a value per layer. It copies `i32` bit by bit, so a negative one becomes huge.
    pub fn to_u32s(&self) -> Option<Vec<u32>> {
        match self {
            Self::Numbers { element: ValueType::U32 | ValueType::I32, bytes } => Some(
                bytes
                    .chunks_exact(4)
                    .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
                    .collect(),
            ),
            Self::Numbers { element: ValueType::Bool, bytes } => {
                Some(bytes.iter().map(|&byte| u32::from(byte != 0)).collect())
            }
            _ => None,
        }
    }
}

/// An array of strings in one buffer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strings {
    bytes: Vec<u8>,
    /// Where each string ends in `bytes`.
    ends: Vec<usize>,
}

impl Strings {
    pub(super) fn with_capacity(count: usize) -> Self {
        Self { bytes: Vec::new(), ends: Vec::with_capacity(count) }
    }

    /// Appends a string of `len` bytes that `fill` writes; on an error the array is left unusable.
    pub(super) fn push_with<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let start = self.bytes.len();
        self.bytes.resize(start + len, 0);
        fill(&mut self.bytes[start..])?;
        self.ends.push(self.bytes.len());
        Ok(())
    }

    /// How many strings there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `index`.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |previous| self.ends[previous]);
        Some(&self.bytes[start..end])
    }

    /// The strings in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}
