//! Tensors against the metadata.

use super::{Error, Facts};
use crate::gguf::{header::TensorInfo, hyperparameters::Hyperparameters, text::printable};

/// Architectures that can do without a token embedding of their own: drafts and heads of another model, and
/// one that shares its output matrix.
const WITHOUT_EMBEDDING: &[&str] = &["clip", "codeshell", "dflash", "eagle3"];

/// The CPU buffer that native code lays over a file mapping must start at a multiple of this many bytes.
const BUFFER_ALIGNMENT: u64 = 32;

/// There is a token embedding.
pub(super) fn embedding(facts: &Facts) -> Result<(), Error> {
    let name = "token_embd.weight";
    if facts.tensors.contains_key(name) || WITHOUT_EMBEDDING.contains(&facts.model.architecture()) {
        return Ok(());
    }
    Err(Error::MissingTensor { name: name.into(), why: "every language model has it".into() })
}

/// A layer that has a query matrix has heads.
pub(super) fn heads(facts: &Facts) -> Result<(), Error> {
    let Some(hyperparameters) = facts.model.hyperparameters() else { return Ok(()) };
    for (layer, &heads) in hyperparameters.head_count.iter().enumerate() {
        let name = format!("blk.{layer}.attn_q.weight");
        if heads == 0 && facts.tensors.contains_key(&*name) {
            return Err(Error::KeyValue {
                key: format!("{}.attention.head_count", facts.model.architecture()),
                value: "0".into(),
                rule: format!("tensor {name} needs at least one head"),
            });
        }
    }
    Ok(())
}

/// Where all layers are alike, none lacks a tensor that each must have, and there are no further layers.
pub(super) fn layers(facts: &Facts) -> Result<(), Error> {
    let Some(hyperparameters) = facts.model.hyperparameters().filter(|_| facts.is_uniform()) else {
        return Ok(());
    };
    let architecture = facts.model.architecture();
    let count = hyperparameters.block_count;
    let required = required_parts(architecture, hyperparameters.expert_count);
    let missing = |name: String, why: String| Err(Error::MissingTensor { name, why });
    for layer in 0..count {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let has = |part: &str| facts.tensors.contains_key(&*name(part));
        // The matrices of queries, keys and values may be one.
        let attention: &[&str] = match has("attn_qkv.weight") || architecture == "gptneox" {
            true => &["attn_qkv.weight"],
            false => &["attn_q.weight", "attn_k.weight", "attn_v.weight"],
        };
        if let Some(part) = required.iter().chain(attention).find(|part| !has(part)) {
            return missing(
                name(part),
                format!("{architecture}.block_count is {count}, and every layer has it"),
            );
        }
    }
    if !facts.tensors.contains_key("output_norm.weight") {
        return missing("output_norm.weight".into(), format!("every {architecture} model has it"));
    }
    let beyond = |tensor: &TensorInfo| tensor.layer().is_some_and(|layer| layer >= count);
    match facts.model.tensors().find(|(_, tensor)| beyond(tensor)) {
        Some((_, tensor)) => Err(Error::Tensor {
            name: printable(&*tensor.name),
            problem: format!("belongs to no layer: {architecture}.block_count is {count}"),
        }),
        None => Ok(()),
    }
}

/// What every layer of a uniform architecture has, besides the matrices of queries, keys and values.
fn required_parts(architecture: &str, experts: u32) -> Vec<&'static str> {
    let mut parts = vec!["attn_norm.weight", "attn_output.weight", "ffn_norm.weight"];
    parts.extend_from_slice(match architecture {
        "gptneox" => &[
            "attn_norm.bias",
            "attn_qkv.bias",
            "attn_output.bias",
            "ffn_norm.bias",
            "ffn_up.weight",
            "ffn_up.bias",
            "ffn_down.weight",
            "ffn_down.bias",
        ],
        "qwen3moe" => {
            &["ffn_gate_inp.weight", "ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"]
        }
        "llama" if experts > 0 => &["ffn_gate_inp.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"],
        _ => &["ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"],
    });
    if matches!(architecture, "qwen3" | "qwen3moe" | "gemma3") {
        parts.extend(["attn_q_norm.weight", "attn_k_norm.weight"]);
    }
    if matches!(architecture, "gemma2" | "gemma3") {
        parts.extend(["post_attention_norm.weight", "post_ffw_norm.weight"]);
    }
    parts
}

/// A shape that the metadata asks for; `None` where any size will do.
type Expected = Vec<Option<u64>>;

/// Where shapes follow from the hyper-parameters, the tensors have them.
pub(super) fn shapes(facts: &Facts) -> Result<(), Error> {
    let Some(hyperparameters) = facts.model.hyperparameters().filter(|_| facts.is_uniform()) else {
        return Ok(());
    };
    let vocabulary = facts.metadata.strings("tokenizer.ggml.tokens")?.map(|tokens| tokens.len() as u64);
    let same = |list: &[u32]| list.iter().all(|&entry| entry == list[0]);
    let own_window_heads = ["key_length_swa", "value_length_swa"].into_iter().any(|suffix| {
        facts.metadata.get(&format!("{}.attention.{suffix}", facts.model.architecture())).is_some()
    });
    let layers_alike = !own_window_heads
        && same(&hyperparameters.head_count)
        && same(&hyperparameters.head_count_kv)
        && same(&hyperparameters.feed_forward_length);
    for (_, tensor) in facts.model.tensors() {
        let expected = match layer_part(&tensor.name) {
            Some(part) if layers_alike => layer_shape(part, hyperparameters),
            Some(_) => None,
            None => outer_shape(&tensor.name, hyperparameters, vocabulary),
        };
        if let Some(expected) = expected {
            matches(tensor, &expected)?;
        }
    }
    Ok(())
}

/// `attn_q.weight` of `blk.7.attn_q.weight`.
fn layer_part(name: &str) -> Option<&str> {
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    layer.bytes().all(|byte| byte.is_ascii_digit()).then_some(part)
}

fn outer_shape(name: &str, hyperparameters: &Hyperparameters, vocabulary: Option<u64>) -> Option<Expected> {
    let width = Some(u64::from(hyperparameters.embedding_length));
    match name {
        "token_embd.weight" | "output.weight" => Some(vec![width, vocabulary]),
        "output_norm.weight" | "output_norm.bias" => Some(vec![width]),
        _ => None,
    }
}

fn layer_shape(part: &str, hyperparameters: &Hyperparameters) -> Option<Expected> {
    let count = |number: u32| Some(u64::from(number));
    let product = |heads: &[u32], length: u32| Some(u64::from(heads[0]) * u64::from(length));
    let width = count(hyperparameters.embedding_length);
    let queries = product(&hyperparameters.head_count, hyperparameters.key_length);
    let keys = product(&hyperparameters.head_count_kv, hyperparameters.key_length);
    let values = product(&hyperparameters.head_count_kv, hyperparameters.value_length);
    let inner = count(hyperparameters.feed_forward_length[0]);
    let experts = count(hyperparameters.expert_count);
    let expert = hyperparameters.expert_feed_forward_length.filter(|&length| length > 0).and_then(count);
    Some(match part {
        "attn_norm.weight" | "ffn_norm.weight" => vec![width],
        "attn_q.weight" => vec![width, queries],
        "attn_k.weight" => vec![width, keys],
        "attn_v.weight" => vec![width, values],
        "attn_output.weight" => vec![queries, width],
        // No tensor is as large as what does not fit.
        "attn_qkv.weight" => vec![width, Some(queries?.saturating_add(keys?).saturating_add(values?))],
        "ffn_gate.weight" | "ffn_up.weight" => vec![width, inner],
        "ffn_down.weight" => vec![inner, width],
        "ffn_gate_inp.weight" => vec![width, experts],
        "ffn_gate_exps.weight" | "ffn_up_exps.weight" => vec![width, expert, experts],
        "ffn_down_exps.weight" => vec![expert, width, experts],
        _ => return None,
    })
}

fn matches(tensor: &TensorInfo, expected: &Expected) -> Result<(), Error> {
    let fits = tensor.shape.iter().enumerate().all(|(axis, size)| match expected.get(axis) {
        Some(Some(expected)) => size == expected,
        Some(None) => true,
        None => *size == 1,
    });
    if fits {
        return Ok(());
    }
    let sizes: Vec<String> =
        expected.iter().map(|size| size.map_or("?".into(), |size| size.to_string())).collect();
    Err(Error::Shape {
        name: printable(&*tensor.name),
        found: tensor.describe_shape(),
        expected: format!("[{}]", sizes.join(", ")),
    })
}

/// The native code stops the process, or calls a function that is not there, when it computes with another type.
pub(super) fn types(facts: &Facts) -> Result<(), Error> {
    if facts.model.hyperparameters().is_none() {
        return Ok(());
    }
    let uniform = facts.is_uniform();
    let wrong = |tensor: &TensorInfo| {
        let vector = uniform && is_vector(&tensor.name);
        let matrix = tensor.name.ends_with(".weight")
            && (uniform || tensor.dimensions > 1)
            // DeepSeek 4 looks the experts of a token up in a table of i32.
            && !tensor.name.ends_with(".ffn_gate_tid2eid.weight");
        if vector && tensor.tensor_type.name() != "f32" {
            Some("norms, biases and rope factors must be f32")
        } else if matrix && !tensor.tensor_type.is_multiplied() {
            Some("weights must be of a type that `ramforge support` lists for matrices")
        } else {
            None
        }
    };
    for (_, tensor) in facts.model.tensors() {
        if let Some(rule) = wrong(tensor) {
            return Err(Error::Tensor {
                name: printable(&*tensor.name),
                problem: format!("is {}: {rule}", tensor.tensor_type),
            });
        }
    }
    Ok(())
}

/// Whether a uniform architecture adds the tensor to activations, multiplies them with it element by element, or
/// divides angles by it: all are f32, and the CPU does none of these with an f32 and another type.
fn is_vector(name: &str) -> bool {
    let in_graph = name.starts_with("blk.") || name.starts_with("output");
    (in_graph && (name.ends_with("norm.weight") || name.ends_with(".bias")))
        || matches!(name, "rope_freqs.weight" | "rope_factors_long.weight" | "rope_factors_short.weight")
}

/// With an alignment below 32 the first tensor may start where the native code refuses to lay its buffer.
pub(super) fn mappable(facts: &Facts) -> Result<(), Error> {
    for file in facts.model.files() {
        let Some(first) = file.header.tensors.first() else { continue };
        if !first.offset.is_multiple_of(BUFFER_ALIGNMENT) {
            return Err(Error::Tensor {
                name: printable(&*first.name),
                problem: format!(
                    "starts at byte {} of {}, no multiple of {BUFFER_ALIGNMENT}; general.alignment is {}",
                    first.offset,
                    file.path.display(),
                    file.header.alignment
                ),
            });
        }
    }
    Ok(())
}
