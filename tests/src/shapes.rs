//! Models of any size with seeded random weights, in the shapes of real architectures.

use std::io;
use std::path::{Path, PathBuf};

use crate::gguf_writer::{Contents, Data, TensorInfo, TensorType, Value};
use crate::tokenizer::{self, Tokenizer};
use crate::weights::{self, Distribution};

/// Part of every cached model's name: add one when the same spec comes to give other bytes.
pub const GENERATOR_VERSION: u32 = 1;

/// An architecture, with the parameters that only it has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Architecture {
    /// RMS norms, grouped-query attention, rotary positions in adjacent pairs, SwiGLU.
    Llama,
    /// Llama's blocks with biases on query, key and value, and rotary positions in halves.
    Qwen2,
    /// Layer norms, one matrix for query, key and value, rotary positions on part of a head, GELU, and a
    /// bias on everything.
    GptNeoX {
        /// Dimensions of a head that are rotated.
        rope_dimensions: u32,
        /// Whether attention and feed-forward read the same input and are added together.
        parallel_residual: bool,
    },
    /// Qwen2's blocks without biases, norms on every query and key head, and a mixture of experts.
    Qwen3Moe {
        /// Experts in a layer, each `ff` wide.
        experts: u32,
        /// Experts that a token is sent to.
        experts_used: u32,
    },
}

impl Architecture {
    /// `general.architecture`, which is also the prefix of its other keys.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::GptNeoX { .. } => "gptneox",
            Self::Qwen3Moe { .. } => "qwen3moe",
        }
    }
}

/// All there is to know about a generated model: the same spec gives the same bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// What people and file names call it.
    pub name: &'static str,
    /// The architecture.
    pub architecture: Architecture,
    /// Transformer blocks.
    pub layers: u32,
    /// Width of the residual stream.
    pub embd: u32,
    /// Width of the feed-forward network, of one expert in a mixture.
    pub ff: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads; for gptneox as many as query heads.
    pub kv_heads: u32,
    /// Elements in a head; for qwen2 and gptneox `embd / heads`.
    pub head_dim: u32,
    /// Entries in the vocabulary.
    pub vocab: u32,
    /// Tokens of context the model says it was trained on.
    pub context: u32,
    /// The type of every matrix but a router; vectors and routers are F32, as converters leave them.
    pub kind: TensorType,
    /// Whether the output matrix is the embedding matrix; gptneox always has its own.
    pub tied: bool,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// Where the weights start from.
    pub seed: u64,
}

impl ModelSpec {
    /// The tensors in file order, with what their values are to look like.
    ///
    /// # Panics
    /// If the architecture cannot have this shape.
    pub fn tensors(&self) -> Vec<(TensorInfo, Distribution)> {
        let [embd, ff, vocab, head_dim] = [self.embd, self.ff, self.vocab, self.head_dim].map(u64::from);
        let q = u64::from(self.heads) * head_dim;
        let kv = u64::from(self.kv_heads) * head_dim;
        if matches!(self.architecture, Architecture::Qwen2 | Architecture::GptNeoX { .. }) {
            assert_eq!(q, embd, "{}: this architecture's heads are as wide as the model", self.name);
        }
        if matches!(self.architecture, Architecture::GptNeoX { .. }) {
            assert_eq!(q, kv, "{}: gptneox has as many key heads as query heads", self.name);
            assert!(!self.tied, "{}: gptneox has its own output matrix", self.name);
        }

        let mut list = Tensors { kind: self.kind, list: Vec::new() };
        list.matrix("token_embd.weight", &[embd, vocab]);
        for layer in 0..self.layers {
            let blk = |name: &str| format!("blk.{layer}.{name}");
            list.norm(blk("attn_norm.weight"), embd);
            match self.architecture {
                Architecture::GptNeoX { .. } => {
                    list.bias(blk("attn_norm.bias"), embd);
                    list.matrix(blk("attn_qkv.weight"), &[embd, q + 2 * kv]);
                    list.bias(blk("attn_qkv.bias"), q + 2 * kv);
                    list.matrix(blk("attn_output.weight"), &[q, embd]);
                    list.bias(blk("attn_output.bias"), embd);
                    list.norm(blk("ffn_norm.weight"), embd);
                    list.bias(blk("ffn_norm.bias"), embd);
                    list.matrix(blk("ffn_up.weight"), &[embd, ff]);
                    list.bias(blk("ffn_up.bias"), ff);
                    list.matrix(blk("ffn_down.weight"), &[ff, embd]);
                    list.bias(blk("ffn_down.bias"), embd);
                    continue;
                }
                Architecture::Llama | Architecture::Qwen2 | Architecture::Qwen3Moe { .. } => {
                    for (name, width) in [("attn_q", q), ("attn_k", kv), ("attn_v", kv)] {
                        list.matrix(blk(&format!("{name}.weight")), &[embd, width]);
                        if self.architecture == Architecture::Qwen2 {
                            list.bias(blk(&format!("{name}.bias")), width);
                        }
                    }
                    list.matrix(blk("attn_output.weight"), &[q, embd]);
                }
            }
            if let Architecture::Qwen3Moe { experts, .. } = self.architecture {
                let experts = u64::from(experts);
                list.norm(blk("attn_q_norm.weight"), head_dim);
                list.norm(blk("attn_k_norm.weight"), head_dim);
                list.norm(blk("ffn_norm.weight"), embd);
                list.router(blk("ffn_gate_inp.weight"), &[embd, experts]);
                list.matrix(blk("ffn_gate_exps.weight"), &[embd, ff, experts]);
                list.matrix(blk("ffn_up_exps.weight"), &[embd, ff, experts]);
                list.matrix(blk("ffn_down_exps.weight"), &[ff, embd, experts]);
            } else {
                list.norm(blk("ffn_norm.weight"), embd);
                list.matrix(blk("ffn_gate.weight"), &[embd, ff]);
                list.matrix(blk("ffn_up.weight"), &[embd, ff]);
                list.matrix(blk("ffn_down.weight"), &[ff, embd]);
            }
        }
        list.norm("output_norm.weight", embd);
        if matches!(self.architecture, Architecture::GptNeoX { .. }) {
            list.bias("output_norm.bias", embd);
        }
        if !self.tied {
            list.matrix("output.weight", &[embd, vocab]);
        }
        list.list
    }

    /// The header of the file. Copying SmolLM2's tokenizer fetches that model.
    ///
    /// # Errors
    /// What fetching or reading SmolLM2 gives.
    ///
    /// # Panics
    /// As [`ModelSpec::tensors`].
    pub fn contents(&self) -> io::Result<Contents> {
        let mut metadata = self.hyper_parameters();
        let vocab = self.vocab as usize;
        metadata.extend(match &self.tokenizer {
            Tokenizer::Synthetic { pre } => tokenizer::synthetic(vocab, pre),
            Tokenizer::SmolLm2 => tokenizer::copied(&crate::real::smollm2()?, vocab)?,
        });
        let tensors = self.tensors().into_iter().map(|(tensor, _)| tensor).collect();
        Ok(Contents { metadata, tensors })
    }

    /// All metadata but the tokenizer's.
    pub fn hyper_parameters(&self) -> Vec<(String, Value)> {
        let architecture = self.architecture.name();
        let mut metadata = vec![
            ("general.architecture".to_owned(), Value::String(architecture.to_owned())),
            ("general.type".to_owned(), Value::String("model".to_owned())),
            ("general.name".to_owned(), Value::String(self.name.to_owned())),
            ("general.file_type".to_owned(), Value::U32(self.kind.file_type())),
            ("general.quantization_version".to_owned(), Value::U32(2)),
        ];
        let mut key = |name: &str, value| metadata.push((format!("{architecture}.{name}"), value));
        key("vocab_size", Value::U32(self.vocab));
        key("context_length", Value::U32(self.context));
        key("embedding_length", Value::U32(self.embd));
        key("block_count", Value::U32(self.layers));
        key("feed_forward_length", Value::U32(self.ff));
        key("attention.head_count", Value::U32(self.heads));
        key("attention.head_count_kv", Value::U32(self.kv_heads));
        let head_lengths = [("key_length", self.head_dim), ("value_length", self.head_dim)];
        match self.architecture {
            Architecture::Llama => {
                key("attention.layer_norm_rms_epsilon", Value::F32(1e-5));
                key("rope.dimension_count", Value::U32(self.head_dim));
                key("rope.freq_base", Value::F32(10_000.0));
                for (name, length) in head_lengths {
                    key(&format!("attention.{name}"), Value::U32(length));
                }
            }
            Architecture::Qwen2 => {
                key("attention.layer_norm_rms_epsilon", Value::F32(1e-6));
                key("rope.freq_base", Value::F32(1_000_000.0));
            }
            Architecture::GptNeoX { rope_dimensions, parallel_residual } => {
                key("attention.layer_norm_epsilon", Value::F32(1e-5));
                key("rope.dimension_count", Value::U32(rope_dimensions));
                key("use_parallel_residual", Value::Bool(parallel_residual));
            }
            Architecture::Qwen3Moe { experts, experts_used } => {
                key("attention.layer_norm_rms_epsilon", Value::F32(1e-6));
                key("rope.freq_base", Value::F32(1_000_000.0));
                for (name, length) in head_lengths {
                    key(&format!("attention.{name}"), Value::U32(length));
                }
                key("expert_count", Value::U32(experts));
                key("expert_used_count", Value::U32(experts_used));
                key("expert_feed_forward_length", Value::U32(self.ff));
            }
        }
        metadata
    }

    /// Writes the model as one file and returns its length in bytes.
    ///
    /// # Errors
    /// As [`ModelSpec::contents`] and [`Contents::write`].
    pub fn write(&self, path: &Path) -> io::Result<u64> {
        let mut fill = self.fill();
        self.contents()?.write(path, Data::Filled(&mut fill))
    }

    /// Writes the model's header and leaves the data a hole: the file has its full length, reads as zeros
    /// and takes no room on the disk.
    ///
    /// # Errors
    /// As [`ModelSpec::write`].
    pub fn write_sparse(&self, path: &Path) -> io::Result<u64> {
        self.contents()?.write(path, Data::Sparse)
    }

    /// Writes the model as `count` shards, `<prefix>-00001-of-0000N.gguf` and so on.
    ///
    /// # Errors
    /// As [`ModelSpec::write`].
    pub fn write_shards(&self, prefix: &Path, count: u16) -> io::Result<Vec<PathBuf>> {
        let mut fill = self.fill();
        self.contents()?.write_shards(prefix, count, Data::Filled(&mut fill))
    }

    /// What fills the tensors of this spec, one after the other.
    fn fill(&self) -> impl FnMut(&TensorInfo, &mut dyn io::Write) -> io::Result<()> {
        let seed = self.seed;
        let mut expected = self.tensors().into_iter();
        move |tensor, out| {
            let (info, values) = expected.next().expect("one call a tensor");
            assert_eq!(info, *tensor);
            weights::write(seed, tensor, values, out)
        }
    }
}

/// The tensors of a model while they are put together.
struct Tensors {
    kind: TensorType,
    list: Vec<(TensorInfo, Distribution)>,
}

impl Tensors {
    fn push(&mut self, name: impl Into<String>, dimensions: &[u64], kind: TensorType, values: Distribution) {
        self.list.push((TensorInfo { name: name.into(), dimensions: dimensions.to_vec(), kind }, values));
    }

    fn matrix(&mut self, name: impl Into<String>, dimensions: &[u64]) {
        self.push(name, dimensions, self.kind, Distribution::matrix(dimensions[0]));
    }

    fn router(&mut self, name: impl Into<String>, dimensions: &[u64]) {
        self.push(name, dimensions, TensorType::F32, Distribution::matrix(dimensions[0]));
    }

    fn norm(&mut self, name: impl Into<String>, width: u64) {
        self.push(name, &[width], TensorType::F32, Distribution::NORM);
    }

    fn bias(&mut self, name: impl Into<String>, width: u64) {
        self.push(name, &[width], TensorType::F32, Distribution::BIAS);
    }
}

const GPT2: Tokenizer = Tokenizer::Synthetic { pre: "gpt-2" };
const QWEN2: Tokenizer = Tokenizer::Synthetic { pre: "qwen2" };

/// A 7B-like Llama with grouped-query attention: 2.94 GB.
pub fn llama_7b_shape() -> ModelSpec {
    ModelSpec {
        name: "llama-7b-shape",
        architecture: Architecture::Llama,
        layers: 28,
        embd: 4096,
        ff: 11_008,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        vocab: 32_000,
        context: 4096,
        kind: TensorType::Q4_0,
        tied: false,
        tokenizer: GPT2,
        seed: 7,
    }
}

/// The shape of Qwen2.5-1.5B: 873 MB, of which a quarter is the vocabulary's.
pub fn qwen2_1_5b_shape() -> ModelSpec {
    ModelSpec {
        name: "qwen2-1.5b-shape",
        architecture: Architecture::Qwen2,
        layers: 28,
        embd: 1536,
        ff: 8960,
        heads: 12,
        kv_heads: 2,
        head_dim: 128,
        vocab: 151_936,
        context: 32_768,
        kind: TensorType::Q4_0,
        tied: true,
        tokenizer: QWEN2,
        seed: 15,
    }
}

/// The shape of Qwen3-30B-A3B with a quarter of its layers: 4.4 GB, of which a token uses 0.5.
pub fn qwen3_moe_30b_quarter() -> ModelSpec {
    ModelSpec {
        name: "qwen3-moe-30b-quarter",
        architecture: Architecture::Qwen3Moe { experts: 128, experts_used: 8 },
        layers: 12,
        embd: 2048,
        ff: 768,
        heads: 32,
        kv_heads: 4,
        head_dim: 128,
        vocab: 151_936,
        context: 32_768,
        kind: TensorType::Q4_0,
        tied: false,
        tokenizer: QWEN2,
        seed: 30,
    }
}

/// The shape of Pythia-70M: 76 MB in 8-bit blocks.
pub fn pythia_70m_shape() -> ModelSpec {
    ModelSpec {
        name: "pythia-70m-shape",
        architecture: Architecture::GptNeoX { rope_dimensions: 16, parallel_residual: true },
        layers: 6,
        embd: 512,
        ff: 2048,
        heads: 8,
        kv_heads: 8,
        head_dim: 64,
        vocab: 50_304,
        context: 2048,
        kind: TensorType::Q8_0,
        tied: false,
        tokenizer: GPT2,
        seed: 70,
    }
}

/// The shape of GPT-NeoX-20B: 12.8 GB at 5 bits a weight.
pub fn gptneox_20b_shape() -> ModelSpec {
    ModelSpec {
        name: "gptneox-20b-shape",
        architecture: Architecture::GptNeoX { rope_dimensions: 24, parallel_residual: true },
        layers: 44,
        embd: 6144,
        ff: 24_576,
        heads: 64,
        kv_heads: 64,
        head_dim: 96,
        vocab: 50_432,
        context: 2048,
        kind: TensorType::Q4_1,
        tied: false,
        tokenizer: GPT2,
        seed: 20,
    }
}

/// A Llama of 4 layers and 4 MB.
pub fn tiny_llama() -> ModelSpec {
    ModelSpec {
        name: "tiny-llama",
        architecture: Architecture::Llama,
        layers: 4,
        embd: 256,
        ff: 704,
        heads: 8,
        kv_heads: 2,
        head_dim: 32,
        vocab: 2048,
        context: 1024,
        kind: TensorType::Q8_0,
        tied: false,
        tokenizer: GPT2,
        seed: 1,
    }
}

/// A Qwen2 of 4 layers and 2 MB, its output tied to its embeddings.
pub fn tiny_qwen2() -> ModelSpec {
    ModelSpec {
        name: "tiny-qwen2",
        architecture: Architecture::Qwen2,
        kind: TensorType::Q4_0,
        tied: true,
        tokenizer: QWEN2,
        seed: 2,
        ..tiny_llama()
    }
}

/// A GPT-NeoX of 4 layers and 8 MB, its blocks' halves one after the other.
pub fn tiny_gptneox() -> ModelSpec {
    ModelSpec {
        name: "tiny-gptneox",
        architecture: Architecture::GptNeoX { rope_dimensions: 8, parallel_residual: false },
        kv_heads: 8,
        ff: 1024,
        kind: TensorType::F16,
        seed: 3,
        ..tiny_llama()
    }
}

/// A mixture of experts of 4 layers and 9 MB: 16 experts, of which a token uses 4.
pub fn tiny_moe() -> ModelSpec {
    ModelSpec {
        name: "tiny-moe",
        architecture: Architecture::Qwen3Moe { experts: 16, experts_used: 4 },
        ff: 256,
        kind: TensorType::Q4_1,
        tokenizer: QWEN2,
        seed: 4,
        ..tiny_llama()
    }
}

/// Every named shape, in the order that help lists them.
pub fn named() -> Vec<ModelSpec> {
    vec![
        tiny_llama(),
        tiny_qwen2(),
        tiny_gptneox(),
        tiny_moe(),
        pythia_70m_shape(),
        qwen2_1_5b_shape(),
        llama_7b_shape(),
        qwen3_moe_30b_quarter(),
        gptneox_20b_shape(),
    ]
}
