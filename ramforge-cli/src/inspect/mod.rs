//! `ramforge inspect`: what a model's headers say.

mod human;

use std::{collections::BTreeMap, path::Path};

use serde::Serialize;

use crate::gguf::{Array, Model, TensorInfo, TensorType, Value};

/// What the headers of a model say. Sizes are in bytes; what a file does not say is null.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// `general.architecture`.
    pub architecture: String,
    /// `general.name`.
    pub name: Option<String>,
    /// The version of the GGUF format.
    pub gguf_version: u32,
    /// The files, in the order of their shards.
    pub files: Vec<FileSummary>,
    /// Bytes of all files.
    pub file_bytes: u64,
    /// Tensors in all files.
    pub tensor_count: usize,
    /// Bytes of all tensors, without padding.
    pub tensor_bytes: u64,
    /// Elements of all tensors.
    pub parameters: u64,
    /// The numbers that shape the model; null for a file that is no language model.
    pub hyperparameters: Option<HyperparameterSummary>,
    /// The tokenizer; null where the file has none.
    pub tokenizer: Option<TokenizerSummary>,
    /// The tensor types, the largest first.
    pub types: Vec<TypeSummary>,
    /// The layers in their order.
    pub layers: Vec<LayerSummary>,
    /// The tensors outside of the layers, in the order of the files.
    pub outside_layers: Vec<TensorSummary>,
}

/// One file of the model.
#[derive(Clone, Debug, Serialize)]
pub struct FileSummary {
    /// Its path.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// Tensors in it.
    pub tensors: usize,
    /// Bytes of its tensors.
    pub tensor_bytes: u64,
    /// Bytes before the tensors' data.
    pub header_bytes: u64,
}

/// The hyper-parameters. Where layers differ, the lists have one entry a layer; otherwise one for all.
#[derive(Clone, Debug, Serialize)]
pub struct HyperparameterSummary {
    /// Tokens of context the model was trained with.
    pub context_length: u32,
    /// Width of the residual stream.
    pub embedding_length: u32,
    /// Layers.
    pub block_count: u32,
    /// Attention heads.
    pub head_count: Vec<u32>,
    /// Key and value heads.
    pub head_count_kv: Vec<u32>,
    /// Elements of a key head.
    pub key_length: u32,
    /// Elements of a value head.
    pub value_length: u32,
    /// Width of the feed-forward network.
    pub feed_forward_length: Vec<u32>,
    /// Experts in a layer; 0 for a dense model.
    pub expert_count: u32,
    /// Experts that a token uses.
    pub expert_used_count: Vec<u32>,
    /// Width of one expert.
    pub expert_feed_forward_length: Option<u32>,
    /// Tokens that a sliding-window layer looks back.
    pub sliding_window: Option<u32>,
    /// Elements of a head that are rotated.
    pub rope_dimension_count: u32,
    /// The base of the rotary frequencies.
    pub rope_freq_base: Option<f32>,
    /// How the context is stretched.
    pub rope_scaling_type: Option<String>,
    /// By how much.
    pub rope_scaling_factor: Option<f32>,
}

/// The tokenizer and its vocabulary.
#[derive(Clone, Debug, Serialize)]
pub struct TokenizerSummary {
    /// `tokenizer.ggml.model`.
    pub model: String,
    /// `tokenizer.ggml.pre`, how text is cut before it is tokenized.
    pub pre: Option<String>,
    /// Tokens in the vocabulary.
    pub tokens: usize,
    /// Merges of a byte-pair encoding.
    pub merges: Option<usize>,
    /// The special tokens that the file names, by what they are for.
    pub special_tokens: BTreeMap<String, SpecialToken>,
    /// Whether a beginning-of-text token is put before a text.
    pub add_bos_token: Option<bool>,
    /// Whether an end-of-text token is put after it.
    pub add_eos_token: Option<bool>,
    /// Whether the file has a chat template.
    pub chat_template: bool,
}

/// A token with a purpose.
#[derive(Clone, Debug, Serialize)]
pub struct SpecialToken {
    /// Its id.
    pub id: u32,
    /// Its text; null where the id is outside of the vocabulary.
    pub text: Option<String>,
}

/// The tensors of one type.
#[derive(Clone, Debug, Serialize)]
pub struct TypeSummary {
    /// The type.
    #[serde(rename = "type")]
    pub tensor_type: TensorType,
    /// How many tensors have it.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// The tensors of one layer.
#[derive(Clone, Debug, Serialize)]
pub struct LayerSummary {
    /// Its number, from 0.
    pub index: u32,
    /// How many tensors it has.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// One tensor.
#[derive(Clone, Debug, Serialize)]
pub struct TensorSummary {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub tensor_type: TensorType,
    /// Elements in each dimension, the fastest-varying first.
    pub shape: Vec<u64>,
    /// Its bytes.
    pub bytes: u64,
}

/// Reads the headers of the model at `path` and sums them up.
///
/// # Errors
/// When there is no such model, or something is wrong with it; see [`Model::open`].
pub fn inspect(path: &Path) -> crate::Result<Summary> {
    Ok(Summary::new(&Model::open(path)?))
}

impl Summary {
    /// The summary of a model whose headers have been read.
    pub fn new(model: &Model) -> Self {
        let mut types = BTreeMap::<TensorType, (usize, u64)>::new();
        let mut layers = BTreeMap::<u32, (usize, u64)>::new();
        let mut outside_layers = Vec::new();
        for (_, tensor) in model.tensors() {
            add(types.entry(tensor.tensor_type).or_default(), tensor);
            match tensor.layer() {
                Some(layer) => add(layers.entry(layer).or_default(), tensor),
                None => outside_layers.push(TensorSummary::new(tensor)),
            }
        }
        let mut types: Vec<TypeSummary> = types
            .into_iter()
            .map(|(tensor_type, (tensors, bytes))| TypeSummary { tensor_type, tensors, bytes })
            .collect();
        types.sort_by_key(|summary| std::cmp::Reverse(summary.bytes));
        Self {
            architecture: model.architecture().to_owned(),
            name: text(model, "general.name"),
            gguf_version: model.files()[0].header.version,
            files: files(model),
            file_bytes: model.file_bytes(),
            tensor_count: model.tensor_count(),
            tensor_bytes: model.tensor_bytes(),
            parameters: model.tensors().map(|(_, tensor)| tensor.elements()).sum(),
            hyperparameters: HyperparameterSummary::new(model),
            tokenizer: TokenizerSummary::new(model),
            types,
            layers: layers
                .into_iter()
                .map(|(index, (tensors, bytes))| LayerSummary { index, tensors, bytes })
                .collect(),
            outside_layers,
        }
    }
}

fn add((tensors, bytes): &mut (usize, u64), tensor: &TensorInfo) {
    *tensors += 1;
    *bytes += tensor.bytes;
}

/// A metadata string, whatever is no UTF-8 in it replaced.
fn text(model: &Model, key: &str) -> Option<String> {
    match model.metadata().get(key)? {
        Value::String(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    }
}

fn number(model: &Model, key: &str) -> Option<u32> {
    match model.metadata().get(key)? {
        Value::U32(number) => Some(*number),
        _ => None,
    }
}

fn flag(model: &Model, key: &str) -> Option<bool> {
    match model.metadata().get(key)? {
        Value::Bool(flag) => Some(*flag),
        _ => None,
    }
}

fn files(model: &Model) -> Vec<FileSummary> {
    let summary = |file: &crate::gguf::ShardFile| FileSummary {
        path: file.path.to_string_lossy().into_owned(),
        bytes: file.bytes,
        tensors: file.header.tensors.len(),
        tensor_bytes: file.header.tensors.iter().map(|tensor| tensor.bytes).sum(),
        header_bytes: file.header.data_offset,
    };
    model.files().iter().map(summary).collect()
}

impl TensorSummary {
    fn new(tensor: &TensorInfo) -> Self {
        Self {
            name: tensor.name.to_string(),
            tensor_type: tensor.tensor_type,
            shape: tensor.shape[..usize::from(tensor.dimensions)].to_vec(),
            bytes: tensor.bytes,
        }
    }
}

impl HyperparameterSummary {
    fn new(model: &Model) -> Option<Self> {
        let all = model.hyperparameters()?;
        let once = |list: &[u32]| match list.iter().all(|entry| *entry == list[0]) {
            true => vec![list[0]],
            false => list.to_vec(),
        };
        Some(Self {
            context_length: all.context_length,
            embedding_length: all.embedding_length,
            block_count: all.block_count,
            head_count: once(&all.head_count),
            head_count_kv: once(&all.head_count_kv),
            key_length: all.key_length,
            value_length: all.value_length,
            feed_forward_length: once(&all.feed_forward_length),
            expert_count: all.expert_count,
            expert_used_count: once(&all.expert_used_count),
            expert_feed_forward_length: all.expert_feed_forward_length,
            sliding_window: number(model, &format!("{}.attention.sliding_window", model.architecture())),
            rope_dimension_count: all.rope_dimension_count,
            rope_freq_base: all.rope_freq_base,
            rope_scaling_type: all.rope_scaling_type.clone(),
            rope_scaling_factor: all.rope_scaling_factor,
        })
    }
}

impl TokenizerSummary {
    fn new(model: &Model) -> Option<Self> {
        let strings = |key| match model.metadata().get(key)? {
            Value::Array(Array::Strings(strings)) => Some(strings),
            _ => None,
        };
        let tokens = strings("tokenizer.ggml.tokens");
        let mut special_tokens = BTreeMap::new();
        for (key, value) in model.metadata().iter() {
            let purpose = key.strip_prefix("tokenizer.ggml.").and_then(|key| key.strip_suffix("_token_id"));
            if let (Some(purpose), Value::U32(id)) = (purpose, value) {
                let text = tokens.and_then(|tokens| tokens.get(*id as usize));
                let text = text.map(|text| String::from_utf8_lossy(text).into_owned());
                special_tokens.insert(purpose.to_owned(), SpecialToken { id: *id, text });
            }
        }
        Some(Self {
            model: text(model, "tokenizer.ggml.model")?,
            pre: text(model, "tokenizer.ggml.pre"),
            tokens: tokens.map_or(0, |tokens| tokens.len()),
            merges: strings("tokenizer.ggml.merges").map(|merges| merges.len()),
            special_tokens,
            add_bos_token: flag(model, "tokenizer.ggml.add_bos_token"),
            add_eos_token: flag(model, "tokenizer.ggml.add_eos_token"),
            chat_template: matches!(model.metadata().get("tokenizer.chat_template"), Some(Value::String(_))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::builder::{Builder, string};

    fn summary(change: impl FnOnce(&mut Builder)) -> Summary {
        let mut file = Builder::llama();
        change(&mut file);
        Summary::new(&file.open().unwrap())
    }

    #[test]
    fn sums_add_up() {
        let summary = summary(|_| {});
        let types: u64 = summary.types.iter().map(|row| row.bytes).sum();
        let layers: u64 = summary.layers.iter().map(|row| row.bytes).sum();
        let outside: u64 = summary.outside_layers.iter().map(|row| row.bytes).sum();
        assert_eq!(types, summary.tensor_bytes);
        assert_eq!(layers + outside, summary.tensor_bytes);
        assert_eq!(summary.parameters * 4, summary.tensor_bytes);
        assert_eq!(summary.layers.iter().map(|row| row.tensors).collect::<Vec<_>>(), [9, 9]);
        assert_eq!(summary.files[0].bytes, summary.file_bytes);
    }

    #[test]
    fn json_has_what_the_file_says_and_null_for_what_it_does_not() {
        let summary = summary(|file| {
            file.set("tokenizer.ggml.bos_token_id", Value::U32(3))
                .set("tokenizer.ggml.eos_token_id", Value::U32(99));
        });
        let json = serde_json::to_value(summary).unwrap();
        assert_eq!(json["hyperparameters"]["head_count"], serde_json::json!([2]));
        assert_eq!(json["hyperparameters"]["rope_freq_base"], serde_json::Value::Null);
        assert_eq!(json["types"][0]["type"], "f32");
        let expected = serde_json::json!({
            "bos": { "id": 3, "text": "<0x03>" },
            "eos": { "id": 99, "text": null },
        });
        assert_eq!(json["tokenizer"]["special_tokens"], expected);
    }

    #[test]
    fn text_is_aligned_and_cannot_steer_a_terminal() {
        let summary = summary(|file| {
            file.set("general.name", string("\x1b[2Jevil\nname"));
        });
        let mut text = Vec::new();
        summary.write_human(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.chars().all(|character| character == '\n' || !character.is_control()), "{text}");
        for line in [
            "  name                  \\u{1b}[2Jevil\\nname\n",
            "  heads                 2\n",
            "  0 to 1                9 tensors  2.31 KiB  2,368 bytes each\n",
            "  token_embd.weight     f32 [8, 16]  512 B  512 bytes\n",
            "  output_norm.weight    f32 [8]       32 B   32 bytes\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
