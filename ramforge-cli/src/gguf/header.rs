//! One file's header: metadata, tensor table, and where the data starts.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::Path,
};

use indexmap::{IndexMap, map::Entry};

use super::{
    error::Error,
    tensor_type::{TensorType, UnusableType},
    text::printable,
    value::{Array, Strings, Value, ValueType},
};

/// Where data starts is a multiple of this unless `general.alignment` says otherwise.
const DEFAULT_ALIGNMENT: u32 = 32;
/// Dimensions of a tensor at most.
const MAX_DIMENSIONS: u32 = 4;
/// The native code keeps a tensor's name in 64 bytes, the last of them zero.
const MAX_NAME: u64 = 63;
/// Bytes of a string and elements of an array at most, the native reader's own limits.
const MAX_STRING: u64 = 1 << 30;
const MAX_ELEMENTS: u64 = 1 << 30;
/// The shortest metadata entry (empty string as the key, type, one byte) and tensor entry (empty name, no
/// dimensions), in bytes: a count of more than fit in the file is wrong.
const MIN_ENTRY: u64 = 8 + 4 + 1;
const MIN_TENSOR: u64 = 8 + 4 + 4 + 8;

/// A file's header.
#[derive(Clone, Debug)]
pub struct Header {
    /// The version of the format, 2 or 3.
    pub version: u32,
    /// The metadata, in the order of the file.
    pub metadata: Metadata,
    /// The tensors, in the order of the file, which is also the order of their data.
    pub tensors: Vec<TensorInfo>,
    /// The tensors' data starts at multiples of this many bytes.
    pub alignment: u32,
    /// Where the data section starts in the file, in bytes.
    pub data_offset: u64,
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name, such as `blk.0.attn_q.weight`.
    pub name: Box<str>,
    /// How its elements are encoded.
    pub tensor_type: TensorType,
    /// Elements in each dimension, the fastest-varying first; 1 beyond [`Self::dimensions`].
    pub shape: [u64; 4],
    /// How many dimensions the file gives, 0 to 4.
    pub dimensions: u8,
    /// Where its data starts, in bytes from the start of its file.
    pub offset: u64,
    /// Bytes of its data.
    pub bytes: u64,
}

impl TensorInfo {
    /// How many elements it has.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// The layer it belongs to: 7 for `blk.7.attn_q.weight`.
    pub fn layer(&self) -> Option<u32> {
        self.name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
    }

    /// Its shape as `[576, 49152]`.
    pub(super) fn describe_shape(&self) -> String {
        format!("{:?}", &self.shape[..usize::from(self.dimensions)])
    }
}

/// Metadata in the order of the file.
#[derive(Clone, Debug, Default)]
pub struct Metadata(IndexMap<Box<str>, Value>);

impl Metadata {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// All keys and values in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (&**key, value))
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of an optional `u32` key; another type is an error, as it is for the native loader.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.typed(key, "u32", |value| match value {
            Value::U32(number) => Some(*number),
            _ => None,
        })
    }

    /// The value of an optional `f32` key; another type is an error.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, Error> {
        self.typed(key, "f32", |value| match value {
            Value::F32(number) => Some(*number),
            _ => None,
        })
    }

    /// The value of an optional `bool` key; another type is an error.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, "bool", |value| match value {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    /// The value of an optional string key; another type is an error.
    pub fn string(&self, key: &str) -> Result<Option<&[u8]>, Error> {
        self.typed(key, "string", |value| match value {
            Value::String(bytes) => Some(bytes.as_slice()),
            _ => None,
        })
    }

    /// The value of an optional array of strings; another type is an error.
    pub fn strings(&self, key: &str) -> Result<Option<&Strings>, Error> {
        self.typed(key, "array of string", |value| match value {
            Value::Array(Array::Strings(strings)) => Some(strings),
            _ => None,
        })
    }

    /// The value of an optional key that `take` accepts; `expected` describes what that is.
    pub(super) fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        take: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match take(value) {
            Some(taken) => Ok(Some(taken)),
            None => Err(Error::KeyType {
                key: printable(key),
                found: value.describe_type(),
                expected: expected.to_owned(),
            }),
        }
    }
}

impl Header {
    /// Reads the header of the file at `path`.
    ///
    /// # Errors
    /// When the file cannot be read or is no valid GGUF; the error names the path and the field.
    pub fn open(path: &Path) -> crate::Result<(Self, u64)> {
        let open = || -> io::Result<(File, u64)> {
            let file = File::open(path)?;
            let bytes = file.metadata()?.len();
            Ok((file, bytes))
        };
        let (file, bytes) = open().map_err(|error| {
            crate::Error::failed(format!("cannot open {}", path.display())).caused_by(error)
        })?;
        let header =
            Self::read(BufReader::with_capacity(1 << 16, file), bytes).map_err(|error| error.at(path))?;
        Ok((header, bytes))
    }

    /// Reads a header from `reader`, which stands at the start of a file of `file_bytes` bytes. The reads
    /// are many and small, so `reader` should be buffered.
    ///
    /// # Errors
    /// On anything that is not a valid header of a file of this size.
    pub fn read(reader: impl Read, file_bytes: u64) -> Result<Self, Error> {
        let mut reader = Reader { inner: reader, offset: 0, end: file_bytes };
        let version = reader.preamble()?;
        let tensor_count = reader.count("the number of tensors", MIN_TENSOR)?;
        let entry_count = reader.count("the number of metadata keys", MIN_ENTRY)?;
        let mut metadata = Metadata::default();
        for index in 0..entry_count {
            reader.entry(index, &mut metadata)?;
        }
        let alignment = alignment(&metadata)?;
        let mut tensors = IndexMap::<Box<str>, Entries>::new();
        for index in 0..tensor_count {
            reader.tensor(index, &mut tensors)?;
        }
        let data_offset = match tensor_count {
            0 => reader.offset,
            _ => reader.data_offset(alignment)?,
        };
        let tensors = place(tensors, alignment, data_offset, file_bytes)?;
        Ok(Self { version, metadata, tensors, alignment, data_offset })
    }
}

/// A tensor's entry before its place in the file is known.
struct Entries {
    tensor_type: TensorType,
    shape: [u64; 4],
    dimensions: u8,
    bytes: u64,
    /// Relative to the data section.
    offset: u64,
    /// Where `offset` itself is in the file.
    offset_at: u64,
}

/// A description of a field, made only when there is something to complain about.
type Field<'a> = &'a dyn Fn() -> String;

/// Reads forward and never past `end`.
struct Reader<R> {
    inner: R,
    offset: u64,
    end: u64,
}

impl<R: Read> Reader<R> {
    fn left(&self) -> u64 {
        self.end - self.offset
    }

    /// Fails unless `needed` more bytes are in the file.
    fn need(&self, needed: u64, field: Field) -> Result<(), Error> {
        let available = self.left();
        if needed <= available {
            return Ok(());
        }
        Err(Error::Truncated { field: field(), offset: self.offset, needed, available })
    }

    fn fill(&mut self, buffer: &mut [u8], field: Field) -> Result<(), Error> {
        self.need(buffer.len() as u64, field)?;
        self.inner.read_exact(buffer).map_err(|source| Error::Read {
            field: field(),
            offset: self.offset,
            source,
        })?;
        self.offset += buffer.len() as u64;
        Ok(())
    }

    fn array<const N: usize>(&mut self, field: Field) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, field)?;
        Ok(bytes)
    }

    fn u32(&mut self, field: Field) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    fn u64(&mut self, field: Field) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// `len` bytes, checked against the file before they are allocated.
    fn bytes(&mut self, len: u64, field: Field) -> Result<Vec<u8>, Error> {
        self.need(len, field)?;
        let mut bytes = vec![0; self.addressable(len, field)?];
        self.fill(&mut bytes, field)?;
        Ok(bytes)
    }

    fn addressable(&self, len: u64, field: Field) -> Result<usize, Error> {
        usize::try_from(len).map_err(|_| self.wrong(8, field(), len, "too large for this machine"))
    }

    /// The length of a string, checked against the file and the native reader's limit.
    fn string_length(&mut self, field: Field) -> Result<u64, Error> {
        let len = self.u64(&|| format!("the length of {}", field()))?;
        if len > MAX_STRING {
            let rule = format!("strings have at most {MAX_STRING} bytes");
            return Err(self.wrong(8, format!("the length of {}", field()), len, &rule));
        }
        self.need(len, field)?;
        Ok(len)
    }

    fn string(&mut self, field: Field) -> Result<Vec<u8>, Error> {
        let len = self.string_length(field)?;
        self.bytes(len, field)
    }

    /// A key or a tensor's name: text that the native code handles as a C string.
    fn name(&mut self, field: Field) -> Result<Box<str>, Error> {
        let start = self.offset;
        let bytes = self.string(field)?;
        let wrong = |bytes: &[u8], rule: &str| Error::Field {
            field: field(),
            offset: start,
            value: format!("\"{}\"", printable(bytes)),
            rule: rule.to_owned(),
        };
        if bytes.contains(&0) {
            return Err(wrong(&bytes, "it must not contain a zero byte"));
        }
        match String::from_utf8(bytes) {
            Ok(name) => Ok(name.into_boxed_str()),
            Err(error) => Err(wrong(error.as_bytes(), "it must be UTF-8")),
        }
    }

    /// The error of a field whose last `read` bytes have just been read.
    fn wrong(&self, read: u64, field: String, value: impl ToString, rule: &str) -> Error {
        Error::Field { field, offset: self.offset - read, value: value.to_string(), rule: rule.to_owned() }
    }

    /// Magic and version.
    fn preamble(&mut self) -> Result<u32, Error> {
        if self.end == 0 {
            return Err(Error::Empty);
        }
        let mut start = [0; 16];
        let start = &mut start[..self.left().min(4) as usize];
        self.fill(start, &|| "the magic number".to_owned())?;
        if !b"GGUF".starts_with(start) {
            return Err(Error::NotGguf { start: printable(start) });
        }
        if start.len() < 4 {
            let available = start.len() as u64;
            return Err(Error::Truncated {
                field: "the magic number".into(),
                offset: 0,
                needed: 4,
                available,
            });
        }
        match self.u32(&|| "the version".to_owned())? {
            version @ 2..=3 => Ok(version),
            // A small number whose bytes are reversed.
            version if version & 0xffff == 0 && version != 0 => Err(Error::BigEndian { version }),
            version => Err(Error::Version { version }),
        }
    }

    /// A number of entries that take at least `each` bytes in the file.
    fn count(&mut self, what: &str, each: u64) -> Result<u64, Error> {
        let count = self.u64(&|| what.to_owned())?;
        let fit = self.left() / each;
        if count > fit {
            let rule = format!("at most {fit} fit in the {} bytes that are left in the file", self.left());
            return Err(self.wrong(8, what.to_owned(), count, &rule));
        }
        Ok(count)
    }

    /// One metadata key and its value.
    fn entry(&mut self, index: u64, metadata: &mut Metadata) -> Result<(), Error> {
        let start = self.offset;
        let key = self.name(&|| format!("metadata key {index}"))?;
        if key.is_empty() {
            let rule = "it must not be empty".into();
            return Err(Error::Field {
                field: format!("metadata key {index}"),
                offset: start,
                value: "\"\"".into(),
                rule,
            });
        }
        let vacant = match metadata.0.entry(key) {
            Entry::Vacant(vacant) => vacant,
            Entry::Occupied(occupied) => {
                return Err(Error::Field {
                    field: format!("metadata key {index}"),
                    offset: start,
                    value: format!("\"{}\"", printable(&**occupied.key())),
                    rule: format!("it must be unique, and key {} has the same name", occupied.index()),
                });
            }
        };
        let key = vacant.key();
        let field = || format!("the value of {}", printable(&**key));
        let value = match self.value_type(&field)? {
            ValueType::Array => Value::Array(self.values(&field)?),
            value_type => self.value(value_type, &field)?,
        };
        vacant.insert(value);
        Ok(())
    }

    fn value_type(&mut self, field: Field) -> Result<ValueType, Error> {
        let id = self.u32(&|| format!("the type of {}", field()))?;
        ValueType::from_id(id).ok_or_else(|| {
            self.wrong(4, format!("the type of {}", field()), id, "types have the numbers 0 to 12")
        })
    }

    /// A value of any type but array.
    fn value(&mut self, value_type: ValueType, field: Field) -> Result<Value, Error> {
        Ok(match value_type {
            ValueType::U8 => Value::U8(u8::from_le_bytes(self.array(field)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.array(field)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.array(field)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.array(field)?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(self.array(field)?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(self.array(field)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.array(field)?)),
            // The native reader takes every byte but zero as true.
            ValueType::Bool => Value::Bool(self.array::<1>(field)? != [0]),
            ValueType::String => Value::String(self.string(field)?),
            ValueType::U64 => Value::U64(u64::from_le_bytes(self.array(field)?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.array(field)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.array(field)?)),
            ValueType::Array => {
                return Err(self.wrong(
                    4,
                    format!("the element type of {}", field()),
                    "array",
                    "arrays of arrays are not read",
                ));
            }
        })
    }

    fn values(&mut self, field: Field) -> Result<Array, Error> {
        let element = self.value_type(&|| format!("the elements of {}", field()))?;
        if element == ValueType::Array {
            return Err(self.wrong(
                4,
                format!("the element type of {}", field()),
                "array",
                "arrays of arrays are not read",
            ));
        }
        let length = || format!("the length of {}", field());
        let count = self.u64(&length)?;
        // A string takes the eight bytes of its length at least.
        let each = element.size().unwrap_or(8);
        if count > MAX_ELEMENTS {
            let rule = format!("arrays have at most {MAX_ELEMENTS} elements");
            return Err(self.wrong(8, length(), count, &rule));
        }
        self.need(count * each, field)?;
        match element {
            ValueType::String => self.strings(count, field).map(Array::Strings),
            _ => Ok(Array::Numbers { element, bytes: self.bytes(count * each, field)? }),
        }
    }

    fn strings(&mut self, count: u64, field: Field) -> Result<Strings, Error> {
        let mut strings = Strings::with_capacity(self.addressable(count, field)?);
        for index in 0..count {
            let field = || format!("element {index} of {}", field());
            let len = self.string_length(&field)?;
            let len = self.addressable(len, &field)?;
            strings.push_with(len, |bytes| self.fill(bytes, &field))?;
        }
        Ok(strings)
    }

    /// One row of the tensor table.
    fn tensor(&mut self, index: u64, tensors: &mut IndexMap<Box<str>, Entries>) -> Result<(), Error> {
        let start = self.offset;
        let field = || format!("the name of tensor {index}");
        let name = self.name(&field)?;
        let wrong_name = |name: &str, rule: String| Error::Field {
            field: field(),
            offset: start,
            value: format!("\"{}\"", printable(name)),
            rule,
        };
        if name.len() as u64 > MAX_NAME {
            return Err(wrong_name(
                &name,
                format!("names have at most {MAX_NAME} bytes, this one has {}", name.len()),
            ));
        }
        let vacant = match tensors.entry(name) {
            Entry::Vacant(vacant) => vacant,
            Entry::Occupied(occupied) => {
                let rule = format!("it must be unique, and tensor {} has the same name", occupied.index());
                return Err(wrong_name(occupied.key(), rule));
            }
        };
        let name = printable(&**vacant.key());
        let (shape, dimensions) = self.shape(&name)?;
        let tensor_type = self.tensor_type(&name)?;
        let bytes = size(tensor_type, &shape).map_err(|rule| {
            self.wrong(
                4,
                format!("the type of tensor {name}"),
                format!("{tensor_type} with shape {shape:?}"),
                &rule,
            )
        })?;
        let offset_at = self.offset;
        let offset = self.u64(&|| format!("the offset of tensor {name}"))?;
        vacant.insert(Entries { tensor_type, shape, dimensions, bytes, offset, offset_at });
        Ok(())
    }

    fn shape(&mut self, name: &str) -> Result<([u64; 4], u8), Error> {
        let field = || format!("the number of dimensions of tensor {name}");
        let dimensions = self.u32(&field)?;
        if dimensions > MAX_DIMENSIONS {
            return Err(self.wrong(4, field(), dimensions, "tensors have at most 4 dimensions"));
        }
        let mut shape = [1; 4];
        for (axis, size) in shape.iter_mut().enumerate().take(dimensions as usize) {
            let field = || format!("dimension {axis} of tensor {name}");
            *size = self.u64(&field)?;
            if *size > i64::MAX as u64 {
                return Err(self.wrong(8, field(), *size as i64, "dimensions are not negative"));
            }
        }
        Ok((shape, dimensions as u8))
    }

    fn tensor_type(&mut self, name: &str) -> Result<TensorType, Error> {
        let field = || format!("the type of tensor {name}");
        let id = self.u32(&field)?;
        TensorType::from_id(id).map_err(|unusable| match unusable {
            UnusableType::Removed(old) => {
                self.wrong(4, field(), format!("{id} ({old})"), "this type was removed from GGUF")
            }
            UnusableType::Unknown => self.wrong(4, field(), id, "there is no such type"),
        })
    }

    /// Where the data section starts: the next multiple of the alignment.
    fn data_offset(&self, alignment: u32) -> Result<u64, Error> {
        let padded = self.offset.checked_next_multiple_of(u64::from(alignment)).unwrap_or(u64::MAX);
        self.need(padded - self.offset, &|| format!("the padding to the alignment of {alignment}"))?;
        Ok(padded)
    }
}

fn alignment(metadata: &Metadata) -> Result<u32, Error> {
    let key = "general.alignment";
    let alignment = metadata.u32(key)?.unwrap_or(DEFAULT_ALIGNMENT);
    if alignment.is_power_of_two() {
        return Ok(alignment);
    }
    Err(Error::KeyValue {
        key: key.into(),
        value: alignment.to_string(),
        rule: "it must be a power of two".into(),
    })
}

/// Bytes of a tensor, or the rule that its shape breaks.
fn size(tensor_type: TensorType, shape: &[u64; 4]) -> Result<u64, String> {
    let block = tensor_type.block_elements();
    if !shape[0].is_multiple_of(block) {
        return Err(format!("rows must be a multiple of {block} elements"));
    }
    shape[1..]
        .iter()
        .try_fold(shape[0], |elements, &size| elements.checked_mul(size))
        .filter(|&elements| elements <= i64::MAX as u64)
        .and_then(|elements| (elements / block).checked_mul(tensor_type.block_bytes()))
        .ok_or_else(|| "it has more elements than can be counted".to_owned())
}

/// Gives each tensor its place in the file. The native reader takes tensors only in the order of their data
/// and without gaps other than padding, so there is one offset each can have.
fn place(
    entries: IndexMap<Box<str>, Entries>,
    alignment: u32,
    data_offset: u64,
    file_bytes: u64,
) -> Result<Vec<TensorInfo>, Error> {
    let alignment = u64::from(alignment);
    let mut expected = 0_u64;
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        if entry.offset != expected {
            let rule = if !entry.offset.is_multiple_of(alignment) {
                format!("it must be a multiple of the alignment, {alignment}")
            } else if entry.offset < expected {
                format!("the data before it reaches to {expected}, so the two overlap")
            } else {
                format!("the data before it ends at {expected}, and gaps are not allowed")
            };
            return Err(Error::Field {
                field: format!("the offset of tensor {}", printable(&*name)),
                offset: entry.offset_at,
                value: entry.offset.to_string(),
                rule,
            });
        }
        let past_end = |offset| Error::Truncated {
            field: format!("the data of tensor {}", printable(&*name)),
            offset,
            needed: entry.bytes,
            available: file_bytes.saturating_sub(offset),
        };
        let offset = data_offset.checked_add(entry.offset).ok_or_else(|| past_end(u64::MAX))?;
        if offset.checked_add(entry.bytes).is_none_or(|end| end > file_bytes) {
            return Err(past_end(offset));
        }
        // The sum is at most the file's size, so only the padding can overflow, in a file of 2^64 bytes.
        expected = (entry.offset + entry.bytes).checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
        tensors.push(TensorInfo {
            name,
            tensor_type: entry.tensor_type,
            shape: entry.shape,
            dimensions: entry.dimensions,
            offset,
            bytes: entry.bytes,
        });
    }
    Ok(tensors)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;
    use crate::gguf::builder::{self, Builder, numbers, string, strings};

    /// Reads the header of a file of which there is less than it claims, and counts what is asked for.
    struct Counting<'a> {
        bytes: &'a [u8],
        requested: &'a Cell<u64>,
    }

    impl Read for Counting<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.requested.set(self.requested.get() + buffer.len() as u64);
            self.bytes.read(buffer)
        }
    }

    fn all_types() -> Builder {
        let mut file = Builder::new();
        file.set("u8", Value::U8(1))
            .set("i8", Value::I8(-2))
            .set("u16", Value::U16(3))
            .set("i16", Value::I16(-4));
        file.set("u32", Value::U32(5)).set("i32", Value::I32(-6)).set("f32", Value::F32(7.5));
        file.set("bool", Value::Bool(true)).set("string", string("text")).set("empty", string(""));
        file.set("u64", Value::U64(u64::MAX)).set("i64", Value::I64(i64::MIN)).set("f64", Value::F64(-0.5));
        file.set("strings", strings(["a", "", "ccc"])).set("none", strings([""; 0]));
        file.set("numbers", numbers(ValueType::I16, [[1, 0], [255, 255]]));
        file.tensor("first", &[3]);
        file.tensor("second.weight", &[4, 5, 6, 7]);
        file.tensors[1].type_id = 1;
        file.tensors[1].bytes /= 2;
        file
    }

    #[test]
    fn every_type_is_read_back_in_order() {
        let file = all_types();
        let header = file.read().unwrap();
        let read: Vec<(String, Value)> =
            header.metadata.iter().map(|(key, value)| (key.to_owned(), value.clone())).collect();
        assert_eq!(read, file.metadata);
        let start = file.header_bytes() as u64;
        assert_eq!((header.version, header.alignment, header.data_offset), (3, 32, start));
        let table: Vec<_> = header
            .tensors
            .iter()
            .map(|tensor| {
                (&*tensor.name, tensor.tensor_type.name(), tensor.offset, tensor.bytes, tensor.elements())
            })
            .collect();
        assert_eq!(table, [("first", "f32", start, 12, 3), ("second.weight", "f16", start + 32, 1680, 840)]);
        assert_eq!(header.tensors[0].shape, [3, 1, 1, 1]);
    }

    #[test]
    fn version_2_and_other_alignments_are_read() {
        let mut file = all_types();
        file.version = 2;
        file.alignment = 128;
        file.set("general.alignment", Value::U32(128));
        let header = file.read().unwrap();
        assert_eq!((header.version, header.alignment, header.data_offset % 128), (2, 128, 0));
    }

    #[test]
    fn the_last_tensor_needs_no_padding_after_it() {
        let mut file = Builder::new();
        file.tensor("odd", &[3]);
        assert_eq!(file.build().len(), file.header_bytes() + 12);
        assert!(file.read().is_ok());
    }

    #[test]
    fn a_file_that_ends_anywhere_is_truncated() {
        let file = all_types().build();
        let header = all_types().header_bytes();
        for len in 0..file.len() {
            let error = Header::read(&file[..len], len as u64).unwrap_err();
            match &error {
                Error::Empty => assert_eq!(len, 0),
                Error::Truncated { needed, available, .. } => assert!(needed > available, "{len}: {error}"),
                // A count that no longer fits is the first sign.
                Error::Field { field, .. } => {
                    assert!(len < header && field.starts_with("the number of"), "{error}")
                }
                _ => panic!("{len}: {error}"),
            }
            let text = error.at(Path::new("cut.gguf"));
            assert!(text.to_string().starts_with("cannot use cut.gguf: ") && text.hints().len() == 1);
        }
    }

    #[test]
    fn a_file_shorter_than_its_metadata_said_is_a_read_error() {
        let file = all_types().build();
        let error = Header::read(&file[..100], file.len() as u64).unwrap_err();
        assert!(matches!(error, Error::Read { .. }), "{error}");
    }

    #[track_caller]
    fn refused(file: &[u8], part: &str) {
        let error = builder::read(file).unwrap_err();
        assert!(error.contains(part), "{error}");
    }

    #[test]
    fn the_first_bytes_say_what_the_file_is() {
        refused(b"", "the file is empty");
        refused(b"# A text file\n", "not a GGUF file: it starts with \"# A \"");
        refused(b"\x7fELF", "not a GGUF file: it starts with \"\\u{7f}ELF\"");
        refused(b"GG", "the magic number at byte 0 needs 4 bytes, but only 2");
        let preamble = |version: [u8; 4]| [&b"GGUF"[..], &version, &[0; 16]].concat();
        refused(&preamble([0, 0, 0, 3]), "big-endian (version field 0x03000000)");
        refused(&preamble([1, 0, 0, 0]), "GGUF version 1 is not supported");
        refused(&preamble([4, 0, 0, 0]), "GGUF version 4 is not supported");
        refused(&preamble([0, 0, 0, 0]), "GGUF version 0 is not supported");
        assert!(builder::read(&preamble([3, 0, 0, 0])).is_ok());
    }

    #[test]
    fn counts_and_lengths_are_checked_before_anything_is_allocated() {
        let counts = |tensors: u64, keys: u64| {
            [&b"GGUF\x03\0\0\0"[..], &tensors.to_le_bytes(), &keys.to_le_bytes(), &[0; 64]].concat()
        };
        refused(
            &counts(u64::MAX, 0),
            "the number of tensors at byte 8 is 18446744073709551615: at most 3 fit",
        );
        refused(
            &counts(0, 1 << 40),
            "the number of metadata keys at byte 16 is 1099511627776: at most 4 fit",
        );
        let entry = |rest: &[u8]| [&counts(0, 1)[..24], &1_u64.to_le_bytes(), b"k", rest, &[0; 32]].concat();
        let number = |n: u32| n.to_le_bytes();
        let long = (1_u64 << 40).to_le_bytes();
        refused(
            &[&counts(0, 1)[..24], &long, &[0; 9]].concat(),
            "the length of metadata key 0 at byte 24 is 10995116",
        );
        refused(
            &entry(&[&number(8)[..], &long].concat()),
            "the length of the value of k at byte 37 is 1099511627776",
        );
        refused(
            &entry(&[&number(8)[..], &1000_u64.to_le_bytes()].concat()),
            "needs 1000 bytes, but only 32 are left",
        );
        refused(
            &entry(&[&number(9)[..], &number(4), &long].concat()),
            "arrays have at most 1073741824 elements",
        );
        refused(
            &entry(&[&number(9)[..], &number(8), &9_u64.to_le_bytes()].concat()),
            "needs 72 bytes, but only 32",
        );
        refused(&entry(&[&number(9)[..], &number(9)].concat()), "arrays of arrays are not read");
        refused(
            &entry(&number(13)),
            "the type of the value of k at byte 33 is 13: types have the numbers 0 to 12",
        );
    }

    #[test]
    fn names_are_unique_text() {
        let mut file = Builder::new();
        file.set("a", Value::U8(1)).set("b", Value::U8(1)).metadata[1].0 = "a".into();
        assert!(
            file.read()
                .unwrap_err()
                .contains("metadata key 1 at byte 38 is \"a\": it must be unique, and key 0")
        );
        file.metadata[1].0 = String::new();
        assert!(file.read().unwrap_err().contains("it must not be empty"));
        file.metadata[1].0 = "b\0".into();
        assert!(file.read().unwrap_err().contains("\"b\\u{0}\": it must not contain a zero byte"));
        let mut file = Builder::new();
        file.tensor("t", &[1]);
        file.tensor("t", &[1]);
        assert!(
            file.read().unwrap_err().contains("the name of tensor 1 at byte 57 is \"t\": it must be unique")
        );
        file.tensors[1].name = "x".repeat(64);
        assert!(file.read().unwrap_err().contains("names have at most 63 bytes, this one has 64"));
        file.tensors[1].name = "x".repeat(63);
        assert!(file.read().is_ok());
        let mut bytes = file.build();
        bytes[32] = 0xff;
        refused(&bytes, "the name of tensor 0 at byte 24 is \"\u{fffd}\": it must be UTF-8");
    }

    #[test]
    fn shapes_types_and_alignment_are_checked() {
        let spoil = |spoil: &dyn Fn(&mut Builder)| {
            let mut file = Builder::new();
            file.tensor("t", &[64, 2]);
            file.tensor("u", &[32]);
            spoil(&mut file);
            file.read().unwrap_err()
        };
        let shape = |shape: &[u64]| spoil(&|file| file.tensors[0].shape = shape.to_vec());
        assert!(shape(&[1; 5]).contains("tensor t at byte 33 is 5: tensors have at most 4 dimensions"));
        assert!(
            shape(&[4, u64::MAX])
                .contains("dimension 1 of tensor t at byte 45 is -1: dimensions are not negative")
        );
        assert!(shape(&[1 << 32, 1 << 32]).contains("more elements than can be counted"));
        assert!(shape(&[1 << 62]).contains("more elements than can be counted"));
        let kind = |id: u32| spoil(&|file| file.tensors[0].type_id = id);
        assert!(
            kind(4).contains("the type of tensor t at byte 53 is 4 (q4_2): this type was removed from GGUF")
        );
        assert!(kind(33).contains("33 (q4_0_8_8)"));
        assert!(kind(43).contains("is 43: there is no such type"));
        assert!(kind(12).contains("q4_K with shape [64, 2, 1, 1]: rows must be a multiple of 256 elements"));
        for alignment in [0, 3, 33] {
            let error = spoil(&|file| {
                file.set("general.alignment", Value::U32(alignment));
            });
            assert!(error.contains(&format!("general.alignment is {alignment}: it must be a power of two")));
        }
        let error = spoil(&|file| {
            file.set("general.alignment", Value::I32(32));
        });
        assert!(error.contains("general.alignment is i32, expected u32"));
        let offset = |offset: u64| spoil(&|file| file.tensors[1].offset = Some(offset));
        assert!(offset(0).contains("the data before it reaches to 512, so the two overlap"));
        assert!(offset(513).contains("is 513: it must be a multiple of the alignment, 32"));
        assert!(offset(1024).contains("the data before it ends at 512, and gaps are not allowed"));
        assert!(offset(u64::MAX - 31).contains("gaps are not allowed"));
    }

    #[test]
    fn a_tensor_must_lie_within_the_file() {
        let mut file = Builder::new();
        file.tensor("t", &[8]).shape = vec![1 << 40];
        let error = file.read().unwrap_err();
        let offset = file.header_bytes();
        let expected = format!(
            "the data of tensor t at byte {offset} needs {} bytes, but only 32 are left in the file",
            1_u64 << 42
        );
        assert_eq!(error, expected);
    }

    proptest! {
        /// Whatever is flipped, the answer is a header or an error, and no more is asked for than there is.
        #[test]
        fn flipped_bytes_never_panic_nor_ask_for_more_than_the_file(
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
            claimed in prop_oneof![Just(0_u64), Just(1 << 20)],
        ) {
            let mut file = Builder::llama().build();
            let header = Builder::llama().header_bytes();
            for (index, byte) in &flips {
                file[index.index(header)] = *byte;
            }
            let requested = Cell::new(0);
            let reader = Counting { bytes: &file, requested: &requested };
            let file_bytes = file.len() as u64 + claimed;
            let result = Header::read(reader, file_bytes);
            if claimed == 0 {
                prop_assert!(requested.get() <= file.len() as u64);
            }
            if let Ok(header) = result {
                prop_assert!(header.tensors.iter().all(|tensor| tensor.offset + tensor.bytes <= file_bytes));
            }
        }
    }
}
