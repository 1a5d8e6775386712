//! A minimal GGUF header reader, written apart from the product's own so that each can check the other.
//!
//! It trusts the file: a broken one is an error or a panic, which is all a test needs.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::path::Path;

use crate::gguf_writer::{ALIGNMENT, Value};

/// A tensor as the header names it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The name.
    pub name: String,
    /// Elements in each dimension; the first is the row.
    pub dimensions: Vec<u64>,
    /// The number of its ggml type.
    pub type_id: u32,
    /// Bytes from the start of the data section.
    pub offset: u64,
}

/// The header of one file.
#[derive(Clone, Debug)]
pub struct Header {
    /// Keys and values, in order.
    pub metadata: Vec<(String, Value)>,
    /// Tensors, in order.
    pub tensors: Vec<Tensor>,
    /// Bytes from the start of the file to the data section.
    pub data_start: u64,
}

impl Header {
    /// Reads the header of the file at `path`.
    ///
    /// # Errors
    /// Whatever opening or reading it gives; a file that is not GGUF version 3.
    pub fn read(path: &Path) -> io::Result<Self> {
        let mut input = BufReader::new(File::open(path)?);
        let mut magic = [0; 4];
        input.read_exact(&mut magic)?;
        if &magic != b"GGUF" || u32_from(&mut input)? != 3 {
            return Err(invalid(format!("{} is not GGUF version 3", path.display())));
        }
        let tensor_count = u64_from(&mut input)?;
        let key_count = u64_from(&mut input)?;
        let mut metadata = Vec::new();
        for _ in 0..key_count {
            let key = string_from(&mut input)?;
            let type_id = u32_from(&mut input)?;
            metadata.push((key, value_from(&mut input, type_id)?));
        }
        let mut tensors = Vec::new();
        for _ in 0..tensor_count {
            let name = string_from(&mut input)?;
            let rank = u32_from(&mut input)?;
            let dimensions = (0..rank).map(|_| u64_from(&mut input)).collect::<io::Result<_>>()?;
            let type_id = u32_from(&mut input)?;
            tensors.push(Tensor { name, dimensions, type_id, offset: u64_from(&mut input)? });
        }
        let data_start = input.stream_position()?.next_multiple_of(ALIGNMENT);
        Ok(Self { metadata, tensors, data_start })
    }

    /// The value of `key`, if the file has it.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }
}

fn value_from(input: &mut impl Read, type_id: u32) -> io::Result<Value> {
    Ok(match type_id {
        0 => Value::U8(u8::from_le_bytes(bytes(input)?)),
        1 => Value::I8(i8::from_le_bytes(bytes(input)?)),
        2 => Value::U16(u16::from_le_bytes(bytes(input)?)),
        3 => Value::I16(i16::from_le_bytes(bytes(input)?)),
        4 => Value::U32(u32_from(input)?),
        5 => Value::I32(i32::from_le_bytes(bytes(input)?)),
        6 => Value::F32(f32::from_le_bytes(bytes(input)?)),
        7 => Value::Bool(bytes::<1>(input)? != [0]),
        8 => Value::String(string_from(input)?),
        9 => {
            let element = u32_from(input)?;
            let count = u64_from(input)?;
            Value::Array(element, (0..count).map(|_| value_from(input, element)).collect::<io::Result<_>>()?)
        }
        10 => Value::U64(u64_from(input)?),
        11 => Value::I64(i64::from_le_bytes(bytes(input)?)),
        12 => Value::F64(f64::from_le_bytes(bytes(input)?)),
        other => return Err(invalid(format!("no value type {other}"))),
    })
}

fn string_from(input: &mut impl Read) -> io::Result<String> {
    let length = u64_from(input)?;
    let mut string = String::new();
    input.take(length).read_to_string(&mut string)?;
    if string.len() as u64 == length { Ok(string) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn u32_from(input: &mut impl Read) -> io::Result<u32> {
    Ok(u32::from_le_bytes(bytes(input)?))
}

fn u64_from(input: &mut impl Read) -> io::Result<u64> {
    Ok(u64::from_le_bytes(bytes(input)?))
}

fn bytes<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
