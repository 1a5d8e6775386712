//! Writes GGUF version 3: a header held in memory, tensor data that never is.
//!
//! Values, types and names are written as given, so the files can also be wrong on purpose.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// The boundary, in bytes, on which the data section and every tensor in it start.
pub const ALIGNMENT: u64 = 32;

/// A metadata value, with the type it is written as.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is the GGUF type of its name")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    /// The type of the elements, as a number of [`Value::type_id`], and the elements.
    Array(u32, Vec<Value>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    /// The type id of [`Value::U32`].
    pub const U32_ID: u32 = 4;
    /// The type id of [`Value::I32`].
    pub const I32_ID: u32 = 5;
    /// The type id of [`Value::F32`].
    pub const F32_ID: u32 = 6;
    /// The type id of [`Value::String`].
    pub const STRING_ID: u32 = 8;

    /// The number that stands for this value's type in the file.
    pub const fn type_id(&self) -> u32 {
        match self {
            Self::U8(_) => 0,
            Self::I8(_) => 1,
            Self::U16(_) => 2,
            Self::I16(_) => 3,
            Self::U32(_) => Self::U32_ID,
            Self::I32(_) => Self::I32_ID,
            Self::F32(_) => Self::F32_ID,
            Self::Bool(_) => 7,
            Self::String(_) => Self::STRING_ID,
            Self::Array(..) => 9,
            Self::U64(_) => 10,
            Self::I64(_) => 11,
            Self::F64(_) => 12,
        }
    }

    /// An array of strings.
    pub fn strings<S: Into<String>>(strings: impl IntoIterator<Item = S>) -> Self {
        Self::Array(Self::STRING_ID, strings.into_iter().map(|s| Self::String(s.into())).collect())
    }

    /// An array of 32-bit integers.
    pub fn i32s(numbers: impl IntoIterator<Item = i32>) -> Self {
        Self::Array(Self::I32_ID, numbers.into_iter().map(Self::I32).collect())
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::U8(v) => out.push(*v),
            Self::I8(v) => out.extend(v.to_le_bytes()),
            Self::U16(v) => out.extend(v.to_le_bytes()),
            Self::I16(v) => out.extend(v.to_le_bytes()),
            Self::U32(v) => out.extend(v.to_le_bytes()),
            Self::I32(v) => out.extend(v.to_le_bytes()),
            Self::F32(v) => out.extend(v.to_le_bytes()),
            Self::Bool(v) => out.push(u8::from(*v)),
            Self::String(v) => put_string(v, out),
            Self::Array(element, values) => {
                out.extend(element.to_le_bytes());
                out.extend((values.len() as u64).to_le_bytes());
                for value in values {
                    value.put(out);
                }
            }
            Self::U64(v) => out.extend(v.to_le_bytes()),
            Self::I64(v) => out.extend(v.to_le_bytes()),
            Self::F64(v) => out.extend(v.to_le_bytes()),
        }
    }
}

/// The tensor types the generator can fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// Blocks of 32: a 16-bit scale and 4-bit values around 8.
    Q4_0,
    /// Blocks of 32: a 16-bit scale, a 16-bit minimum and 4-bit values.
    Q4_1,
    /// Blocks of 32: a 16-bit scale and 8-bit values.
    Q8_0,
}

impl TensorType {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Q4_0, Self::Q4_1, Self::Q8_0];

    /// The number that stands for this type in the file.
    pub const fn id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q8_0 => 8,
        }
    }

    /// `general.file_type` of a model whose matrices have this type.
    pub const fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q8_0 => 7,
        }
    }

    /// Elements in a block; a row is a whole number of blocks.
    pub const fn block_elements(self) -> u64 {
        match self {
            Self::F32 | Self::F16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q8_0 => 32,
        }
    }

    /// Bytes in a block.
    pub const fn block_bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::Q4_0 => 2 + 16,
            Self::Q4_1 => 2 + 2 + 16,
            Self::Q8_0 => 2 + 32,
        }
    }
}

/// A tensor's entry in the header, without its offset: the writer lays tensors out in order.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// The name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// Elements in each dimension; the first is the row.
    pub dimensions: Vec<u64>,
    /// The type of the elements.
    pub kind: TensorType,
}

impl TensorInfo {
    /// Bytes of data.
    ///
    /// # Panics
    /// If a row is not a whole number of blocks.
    pub fn bytes(&self) -> u64 {
        let row = self.dimensions.first().copied().unwrap_or(1);
        assert!(
            row.is_multiple_of(self.kind.block_elements()),
            "{}: a row of {row} elements is not a whole number of {:?} blocks",
            self.name,
            self.kind
        );
        self.dimensions.iter().product::<u64>() / self.kind.block_elements() * self.kind.block_bytes()
    }
}

/// Where the bytes of the tensors come from.
pub enum Data<'a> {
    /// Called once for each tensor, in order; writes exactly [`TensorInfo::bytes`].
    Filled(&'a mut dyn FnMut(&TensorInfo, &mut dyn Write) -> io::Result<()>),
    /// Nowhere: the file gets its full length and reads as zeros, but takes no room on the disk.
    Sparse,
}

/// What a GGUF file holds, but for the data of its tensors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    /// Keys and values, in order.
    pub metadata: Vec<(String, Value)>,
    /// Tensors, in order.
    pub tensors: Vec<TensorInfo>,
}

impl Contents {
    /// The header up to the start of the data section, padding included.
    pub fn header(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(b"GGUF");
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_string(key, &mut out);
            out.extend(value.type_id().to_le_bytes());
            value.put(&mut out);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            put_string(&tensor.name, &mut out);
            out.extend((tensor.dimensions.len() as u32).to_le_bytes());
            for dimension in &tensor.dimensions {
                out.extend(dimension.to_le_bytes());
            }
            out.extend(tensor.kind.id().to_le_bytes());
            out.extend(u64::to_le_bytes(offset));
            offset += aligned(tensor.bytes());
        }
        out.resize(aligned(out.len() as u64) as usize, 0);
        out
    }

    /// Bytes of tensor data, without the padding between tensors.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(TensorInfo::bytes).sum()
    }

    /// Bytes of the data section: every tensor padded to [`ALIGNMENT`], the last one too.
    pub fn data_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| aligned(tensor.bytes())).sum()
    }

    /// Writes one file and returns its length in bytes.
    ///
    /// # Errors
    /// Whatever creating or writing `path` gives, or `data` itself.
    pub fn write(&self, path: &Path, data: Data<'_>) -> io::Result<u64> {
        let header = self.header();
        let length = header.len() as u64 + self.data_bytes();
        let mut file = File::create(path)?;
        file.write_all(&header)?;
        match data {
            Data::Sparse => file.set_len(length)?,
            Data::Filled(fill) => {
                let mut out = BufWriter::with_capacity(1 << 20, file);
                for tensor in &self.tensors {
                    let mut counted = Counted { out: &mut out, bytes: 0 };
                    fill(tensor, &mut counted)?;
                    let bytes = counted.bytes;
                    if bytes != tensor.bytes() {
                        return Err(io::Error::other(format!(
                            "{}: {bytes} bytes of data written, not {}",
                            tensor.name,
                            tensor.bytes()
                        )));
                    }
                    out.write_all(&[0; ALIGNMENT as usize][..(aligned(bytes) - bytes) as usize])?;
                }
                out.into_inner()?;
            }
        }
        Ok(length)
    }

    /// The contents of `count` shards that split the tensors into runs of about the same size. The
    /// first has all the metadata, the others only what says which shard they are.
    ///
    /// # Panics
    /// If there are fewer tensors than shards.
    pub fn split(&self, count: u16) -> Vec<Contents> {
        assert!(count > 0 && usize::from(count) <= self.tensors.len(), "cannot make {count} shards");
        let total = self.data_bytes();
        let mut shards = vec![Contents::default(); usize::from(count)];
        let (mut shard, mut placed) = (0, 0);
        for (index, tensor) in self.tensors.iter().enumerate() {
            let behind = shards.len() - shard - 1;
            let due = placed * u64::from(count) >= total * (shard as u64 + 1);
            let none_to_spare = self.tensors.len() - index <= behind;
            if behind > 0 && !shards[shard].tensors.is_empty() && (due || none_to_spare) {
                shard += 1;
            }
            placed += aligned(tensor.bytes());
            shards[shard].tensors.push(tensor.clone());
        }
        for (number, contents) in (0u16..).zip(&mut shards) {
            if number == 0 {
                contents.metadata.clone_from(&self.metadata);
            }
            contents.metadata.extend([
                ("split.no".to_owned(), Value::U16(number)),
                ("split.count".to_owned(), Value::U16(count)),
                ("split.tensors.count".to_owned(), Value::I32(self.tensors.len() as i32)),
            ]);
        }
        shards
    }

    /// Writes `count` shards named `<prefix>-00001-of-0000N.gguf` and returns their paths.
    ///
    /// # Errors
    /// As [`Contents::write`].
    ///
    /// # Panics
    /// As [`Contents::split`].
    pub fn write_shards(&self, prefix: &Path, count: u16, mut data: Data<'_>) -> io::Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for (number, shard) in (1u16..).zip(self.split(count)) {
            let mut name = prefix.as_os_str().to_owned();
            name.push(format!("-{number:05}-of-{count:05}.gguf"));
            let path = PathBuf::from(name);
            let data = match &mut data {
                Data::Filled(fill) => Data::Filled(*fill),
                Data::Sparse => Data::Sparse,
            };
            shard.write(&path, data)?;
            paths.push(path);
        }
        Ok(paths)
    }
}

/// `bytes` rounded up to the alignment.
const fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT)
}

fn put_string(string: &str, out: &mut Vec<u8>) {
    out.extend((string.len() as u64).to_le_bytes());
    out.extend(string.as_bytes());
}

/// Counts what goes through.
struct Counted<W> {
    out: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let written = self.out.write(buffer)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
