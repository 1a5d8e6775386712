//! GGUF files in memory, right or wrong in chosen ways, for the tests beside the code.

use super::{
    header::Header,
    model::Model,
    shards::ShardFile,
    value::{Array, Strings, Value, ValueType},
};

/// What a file will say; every field is a test's to spoil.
#[derive(Clone)]
pub(crate) struct Builder {
    pub(crate) version: u32,
    pub(crate) metadata: Vec<(String, Value)>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) alignment: u64,
}

#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) type_id: u32,
    /// In place of the offset that follows from the tensors before it.
    pub(crate) offset: Option<u64>,
    pub(crate) bytes: u64,
}

pub(crate) fn string(text: &str) -> Value {
    Value::String(text.as_bytes().to_vec())
}

pub(crate) fn strings<T: AsRef<[u8]>>(texts: impl IntoIterator<Item = T>) -> Value {
    let mut strings = Strings::default();
    for text in texts {
        let text = text.as_ref();
        let copied = strings.push_with(text.len(), |bytes| {
            bytes.copy_from_slice(text);
            Ok::<_, ()>(())
        });
        assert!(copied.is_ok());
    }
    Value::Array(Array::Strings(strings))
}

pub(crate) fn numbers<const N: usize>(element: ValueType, words: impl IntoIterator<Item = [u8; N]>) -> Value {
    Value::Array(Array::Numbers { element, bytes: words.into_iter().flatten().collect() })
}

impl Builder {
    /// A file without metadata and tensors.
    pub(crate) fn new() -> Self {
        Self { version: 3, metadata: Vec::new(), tensors: Vec::new(), alignment: 32 }
    }

    /// A tiny llama that passes every check: 2 layers, 8 wide, 2 heads, 1 key/value head, 16 tokens.
    pub(crate) fn llama() -> Self {
        let mut builder = Self::new();
        builder.set("general.architecture", string("llama"));
        builder.set("general.name", string("tiny"));
        for (key, number) in [
            ("context_length", 64),
            ("embedding_length", 8),
            ("block_count", 2),
            ("feed_forward_length", 16),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
            ("rope.dimension_count", 4),
        ] {
            builder.set(&format!("llama.{key}"), Value::U32(number));
        }
        builder.set("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
        builder.set("tokenizer.ggml.model", string("llama"));
        let token = |index: u8| match index {
            3..=10 => format!("<0x{:02X}>", index),
            _ => format!("t{index}"),
        };
        builder.set("tokenizer.ggml.tokens", strings((0..16).map(token)));
        builder.set("tokenizer.ggml.scores", numbers(ValueType::F32, [0_f32.to_le_bytes(); 16]));
        builder.set("tokenizer.ggml.token_type", numbers(ValueType::I32, [1_i32.to_le_bytes(); 16]));
        builder.tensor("token_embd.weight", &[8, 16]);
        builder.tensor("output_norm.weight", &[8]);
        for layer in 0..2 {
            for (part, shape) in [
                ("attn_norm", &[8][..]),
                ("attn_q", &[8, 8]),
                ("attn_k", &[8, 4]),
                ("attn_v", &[8, 4]),
                ("attn_output", &[8, 8]),
                ("ffn_norm", &[8]),
                ("ffn_gate", &[8, 16]),
                ("ffn_up", &[8, 16]),
                ("ffn_down", &[16, 8]),
            ] {
                builder.tensor(&format!("blk.{layer}.{part}.weight"), shape);
            }
        }
        builder
    }

    /// Sets `key`, in place if it is there.
    pub(crate) fn set(&mut self, key: &str, value: Value) -> &mut Self {
        match self.metadata.iter_mut().find(|(name, _)| name == key) {
            Some((_, old)) => *old = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
        self
    }

    /// Removes `key`, which is there.
    pub(crate) fn unset(&mut self, key: &str) -> &mut Self {
        let before = self.metadata.len();
        self.metadata.retain(|(name, _)| name != key);
        assert_eq!(self.metadata.len() + 1, before, "{key}");
        self
    }

    /// Appends an f32 tensor.
    pub(crate) fn tensor(&mut self, name: &str, shape: &[u64]) -> &mut Tensor {
        let bytes = 4 * shape.iter().product::<u64>();
        let tensor = Tensor { name: name.to_owned(), shape: shape.to_vec(), type_id: 0, offset: None, bytes };
        self.tensors.push(tensor);
        self.tensors.last_mut().unwrap_or_else(|| unreachable!())
    }

    /// The tensor called `name`.
    pub(crate) fn find(&mut self, name: &str) -> &mut Tensor {
        self.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// Where the data section starts, which is the size of the header.
    pub(crate) fn header_bytes(&self) -> usize {
        self.header().len()
    }

    fn header(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_string(&mut file, key.as_bytes());
            file.extend(value.value_type().id().to_le_bytes());
            put_value(&mut file, value);
        }
        let mut end = 0_u64;
        for tensor in &self.tensors {
            put_string(&mut file, tensor.name.as_bytes());
            file.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().for_each(|size| file.extend(size.to_le_bytes()));
            file.extend(tensor.type_id.to_le_bytes());
            file.extend(tensor.offset.unwrap_or(end).to_le_bytes());
            end = (end + tensor.bytes).next_multiple_of(self.alignment);
        }
        if !self.tensors.is_empty() {
            file.resize(file.len().next_multiple_of(self.alignment as usize), 0);
        }
        file
    }

    /// The file.
    pub(crate) fn build(&self) -> Vec<u8> {
        let mut file = self.header();
        for tensor in &self.tensors {
            file.resize(file.len().next_multiple_of(self.alignment as usize) + tensor.bytes as usize, 0x5a);
        }
        file
    }

    /// What the header reader says to the file, as one line when it is an error.
    pub(crate) fn read(&self) -> Result<Header, String> {
        read(&self.build())
    }

    /// What the whole validation says to the file, as one line when it is an error.
    pub(crate) fn open(&self) -> Result<Model, String> {
        let file = self.build();
        let header = read(&file)?;
        let shard = ShardFile { path: "tiny.gguf".into(), bytes: file.len() as u64, header };
        Model::new(vec![shard]).map_err(|error| error.to_string())
    }
}

/// Reads the header of `file`.
pub(crate) fn read(file: &[u8]) -> Result<Header, String> {
    Header::read(file, file.len() as u64).map_err(|error| error.to_string())
}

fn put_string(file: &mut Vec<u8>, bytes: &[u8]) {
    file.extend((bytes.len() as u64).to_le_bytes());
    file.extend(bytes);
}

fn put_value(file: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(number) => file.push(*number),
        Value::I8(number) => file.extend(number.to_le_bytes()),
        Value::U16(number) => file.extend(number.to_le_bytes()),
        Value::I16(number) => file.extend(number.to_le_bytes()),
        Value::U32(number) => file.extend(number.to_le_bytes()),
        Value::I32(number) => file.extend(number.to_le_bytes()),
        Value::F32(number) => file.extend(number.to_le_bytes()),
        Value::Bool(flag) => file.push(u8::from(*flag)),
        Value::String(bytes) => put_string(file, bytes),
        Value::U64(number) => file.extend(number.to_le_bytes()),
        Value::I64(number) => file.extend(number.to_le_bytes()),
        Value::F64(number) => file.extend(number.to_le_bytes()),
        Value::Array(array) => {
            file.extend(array.element_type().id().to_le_bytes());
            file.extend((array.len() as u64).to_le_bytes());
            match array {
                Array::Numbers { bytes, .. } => file.extend(bytes),
                Array::Strings(strings) => strings.iter().for_each(|text| put_string(file, text)),
            }
        }
    }
}
