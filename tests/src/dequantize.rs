//! A copy of a model with every weight as a 32-bit float.
//!
//! Kernels for quantized weights round the activations to 8 bits as well, in blocks; kernels for 32-bit
//! weights do not. On the copy nothing but the order of sums is left between exact arithmetic and ggml's.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use half::f16;

use crate::gguf_reader::{Header, Tensor};
use crate::gguf_writer::{Contents, Data, TensorInfo, TensorType, Value};

/// The values that `data`, whole blocks of `kind`, stands for.
pub fn values(kind: TensorType, data: &[u8]) -> Vec<f32> {
    data.chunks_exact(kind.block_bytes() as usize).flat_map(|block| block_values(kind, block)).collect()
}

fn block_values(kind: TensorType, block: &[u8]) -> Vec<f32> {
    let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    // The low halves of all bytes come before the high ones.
    let nibbles = |at: usize| {
        let low = block[at..].iter().map(|byte| byte & 15);
        low.chain(block[at..].iter().map(|byte| byte >> 4)).map(f32::from)
    };
    match kind {
        TensorType::F32 => vec![f32::from_le_bytes([block[0], block[1], block[2], block[3]])],
        TensorType::F16 => vec![half(0)],
        TensorType::Q4_0 => nibbles(2).map(|quant| (quant - 8.0) * half(0)).collect(),
        TensorType::Q4_1 => nibbles(4).map(|quant| quant * half(0) + half(2)).collect(),
        TensorType::Q8_0 => block[2..].iter().map(|&quant| f32::from(quant as i8) * half(0)).collect(),
    }
}

/// Writes the model at `source` to `target` with every tensor as F32.
///
/// # Errors
/// Whatever reading or writing gives; a tensor of a type that [`TensorType`] does not have.
pub fn f32_copy(source: &Path, target: &Path) -> io::Result<()> {
    let header = Header::read(source)?;
    let mut metadata = header.metadata;
    for (key, value) in &mut metadata {
        if key == "general.file_type" {
            *value = Value::U32(TensorType::F32.file_type());
        }
    }
    let as_f32 = |tensor: &Tensor| TensorInfo {
        name: tensor.name.clone(),
        dimensions: tensor.dimensions.clone(),
        kind: TensorType::F32,
    };
    let contents = Contents { metadata, tensors: header.tensors.iter().map(as_f32).collect() };
    let file = File::open(source)?;
    let mut sources = header.tensors.iter();
    let mut fill = |info: &TensorInfo, out: &mut dyn io::Write| {
        let tensor = sources.next().expect("one call a tensor");
        let kind = TensorType::ALL.into_iter().find(|kind| kind.id() == tensor.type_id).ok_or_else(|| {
            io::Error::other(format!("{}: no reader for tensor type {}", tensor.name, tensor.type_id))
        })?;
        let mut data = vec![0; TensorInfo { kind, ..info.clone() }.bytes() as usize];
        file.read_exact_at(&mut data, header.data_start + tensor.offset)?;
        let values = values(kind, &data);
        out.write_all(&values.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<_>>())
    };
    contents.write(target, Data::Filled(&mut fill)).map(drop)
}
