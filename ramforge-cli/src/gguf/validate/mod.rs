//! What must hold between the parts of a file before native code opens it.
//!
//! The native loader stops the whole process on some of these, and others end in a crash, an endless loop or
//! nonsense much later. A file that it runs correctly is never refused: where the native code is lenient, so
//! are these checks.

mod parameters;
mod tensors;
mod vocabulary;

use std::collections::HashMap;

use super::{
    error::Error,
    header::{Metadata, TensorInfo},
    model::Model,
};

/// What the checks look at.
struct Facts<'a> {
    model: &'a Model,
    metadata: &'a Metadata,
    tensors: HashMap<&'a str, &'a TensorInfo>,
}

/// Architectures whose layers all have the same tensors, of shapes that follow from the hyper-parameters in
/// the same way. Others mix kinds of layers, and the native loader alone knows which tensors each must have.
const UNIFORM: &[&str] = &["llama", "qwen2", "qwen3", "qwen3moe", "gptneox", "gemma", "gemma2", "gemma3"];

impl Facts<'_> {
    fn is_uniform(&self) -> bool {
        UNIFORM.contains(&self.model.architecture())
    }
}

type Check = fn(&Facts<'_>) -> Result<(), Error>;

/// In the order in which a reader of the message would want to know.
const CHECKS: &[Check] = &[
    parameters::general_types,
    parameters::numbers,
    parameters::epsilons,
    parameters::heads,
    vocabulary::tokenizer,
    tensors::embedding,
    tensors::heads,
    tensors::layers,
    tensors::shapes,
    tensors::types,
    tensors::mappable,
];

/// Runs every check; the first that fails is the answer.
pub(super) fn check(model: &Model) -> Result<(), Error> {
    let tensors = model.tensors().map(|(_, tensor)| (&*tensor.name, tensor)).collect();
    let facts = Facts { model, metadata: model.metadata(), tensors };
    CHECKS.iter().try_for_each(|check| check(&facts))
}

#[cfg(test)]
mod tests {
    use crate::gguf::{
        builder::{Builder, numbers, string, strings},
        value::{Value, ValueType},
    };

    /// A llama spoiled by `spoil` is refused, and the message contains `part`.
    #[track_caller]
    fn refused(part: &str, spoil: impl FnOnce(&mut Builder)) {
        let mut file = Builder::llama();
        spoil(&mut file);
        let error = file.open().unwrap_err();
        assert!(error.contains(part), "{error}");
    }

    /// A llama changed by `change` is as good as before.
    #[track_caller]
    fn accepted(change: impl FnOnce(&mut Builder)) {
        let mut file = Builder::llama();
        change(&mut file);
        assert_eq!(file.open().err(), None);
    }

    /// `key` with `value` is refused.
    #[track_caller]
    fn value_refused(key: &str, value: Value, part: &str) {
        refused(part, |file| {
            file.set(key, value);
        });
    }

    /// `key` without the architecture, with a number, is refused.
    #[track_caller]
    fn number_refused(key: &str, number: u32, part: &str) {
        value_refused(
            &format!("llama.{key}"),
            Value::U32(number),
            &format!("llama.{key} is {number}: {part}"),
        );
    }

    fn per_layer(values: impl IntoIterator<Item = u32>) -> Value {
        numbers(ValueType::U32, values.into_iter().map(u32::to_le_bytes))
    }

    #[test]
    fn the_tiny_llama_is_valid() {
        accepted(|_| {});
    }

    #[test]
    fn required_keys_are_there_and_have_the_types_that_are_read() {
        for key in [
            "general.architecture",
            "llama.context_length",
            "llama.embedding_length",
            "llama.block_count",
            "tokenizer.ggml.model",
            "tokenizer.ggml.tokens",
        ] {
            refused(&format!("metadata key {key} is missing"), |file| {
                file.unset(key);
            });
            value_refused(key, Value::U64(2), &format!("metadata key {key} is u64, expected"));
        }
        for key in ["general.name", "tokenizer.ggml.pre", "llama.rope.scaling.type"] {
            value_refused(key, Value::U32(1), &format!("{key} is u32, expected string"));
        }
        for key in ["general.file_type", "llama.expert_count", "tokenizer.ggml.bos_token_id"] {
            value_refused(key, Value::I32(1), &format!("{key} is i32, expected u32"));
        }
        value_refused("llama.rope.freq_base", Value::F64(1e4), "llama.rope.freq_base is f64, expected f32");
        value_refused("tokenizer.ggml.add_bos_token", Value::U8(1), "add_bos_token is u8, expected bool");
        value_refused("general.architecture", string(""), "it must be the name of an architecture");
        refused("general.type is \"adapter\": an adapter is not a model", |file| {
            file.set("general.type", string("adapter")).unset("llama.block_count").tensors.clear();
        });
        accepted(|file| {
            file.set("general.type", string("adapter"));
        });
    }

    #[test]
    fn numbers_that_native_code_asserts() {
        let blocks = "the native code supports 1 to 512 layers";
        number_refused("block_count", 0, blocks);
        number_refused("block_count", 513, blocks);
        number_refused("embedding_length", 0, "it must not be 0");
        number_refused("nextn_predict_layers", 3, "it must not be more than block_count");
        number_refused("attention.head_count", 0, "tensor blk.0.attn_q.weight needs at least one head");
        number_refused("rope.dimension_count", 2, "llama models rotate whole heads of 4 elements");
        number_refused(
            "attention.value_length",
            2,
            "keys and values must have the same size, and keys have 4",
        );
        refused("llama.rope.dimension_count is 3: the elements of a head are rotated in pairs", |file| {
            for key in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
                file.set(&format!("llama.{key}"), Value::U32(3));
            }
        });
        number_refused("expert_used_count", 1, "expert_count is 0, and a token cannot use more");
        number_refused("expert_group_count", 1, "a model without experts has no groups");
        refused(
            "llama.attention.head_count_kv is 2: layer 0 has 3 heads, which must be a multiple",
            |file| {
                file.set("llama.attention.head_count", Value::U32(3))
                    .set("llama.attention.head_count_kv", Value::U32(2));
            },
        );
    }

    #[test]
    fn shapes_that_cannot_be_counted() {
        refused(
            "tensor blk.0.attn_qkv.weight has shape [8, 8], but the metadata asks for [8, 1844674",
            |file| {
                for key in ["attention.head_count", "attention.head_count_kv"] {
                    file.set(&format!("llama.{key}"), Value::U32(u32::MAX));
                }
                for key in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
                    file.set(&format!("llama.{key}"), Value::U32(u32::MAX - 1));
                }
                for layer in 0..2 {
                    file.find(&format!("blk.{layer}.attn_q.weight")).name =
                        format!("blk.{layer}.attn_qkv.weight");
                }
            },
        );
    }

    #[test]
    fn experts() {
        let experts = |count: u32, used: u32, groups: u32, groups_used: u32| {
            let mut file = Builder::llama();
            file.set("llama.expert_count", Value::U32(count))
                .set("llama.expert_used_count", Value::U32(used));
            file.set("llama.expert_group_count", Value::U32(groups));
            file.set("llama.expert_group_used_count", Value::U32(groups_used));
            file.open().err().unwrap_or_default()
        };
        assert!(
            experts(1025, 8, 0, 0).contains("expert_count is 1025: the native code supports at most 1024")
        );
        assert!(experts(4, 5, 0, 0).contains("expert_used_count is 5: expert_count is 4"));
        assert!(experts(4, 0, 0, 0).contains("a model with experts uses at least one"));
        assert!(experts(4, 2, 4, 1).contains("expert_group_count is 4: it must be less than expert_count"));
        assert!(experts(8, 2, 3, 1).contains("expert_count, 8, must be a multiple of it"));
        assert!(experts(8, 2, 4, 4).contains("expert_group_used_count is 4: it must be at least 1 and less"));
        for valid in [experts(8, 2, 4, 2), experts(1024, 1024, 0, 0)] {
            assert!(valid.contains("tensor blk.0.ffn_gate_inp.weight is missing"), "{valid}");
        }
    }

    #[test]
    fn lists_have_one_entry_a_layer() {
        for key in
            ["attention.head_count", "attention.head_count_kv", "feed_forward_length", "expert_used_count"]
        {
            let key = format!("llama.{key}");
            let part = format!("{key} is an array of 3: there are 2 layers");
            value_refused(&key, per_layer([1, 1, 1]), &part);
            value_refused(&key, per_layer([1]), &format!("{key} is an array of 1"));
            value_refused(
                &key,
                numbers(ValueType::F32, [[0; 4]; 2]),
                "is array of f32, expected u32, or an array",
            );
        }
        accepted(|file| {
            file.set("llama.attention.head_count", per_layer([2, 2]));
            file.set("llama.feed_forward_length", numbers(ValueType::I32, [16_i32.to_le_bytes(); 2]));
        });
    }

    #[test]
    fn floats_are_numbers() {
        for value in [f32::NAN, f32::INFINITY, -1e-5] {
            let key = "llama.attention.layer_norm_rms_epsilon";
            value_refused(key, Value::F32(value), &format!("{key} is {value}: it must be a"));
        }
        refused("llama.attention.layer_norm_rms_epsilon is missing", |file| {
            file.unset("llama.attention.layer_norm_rms_epsilon");
        });
        value_refused("llama.rope.freq_base", Value::F32(f32::INFINITY), "it must be a finite number");
        value_refused(
            "llama.logit_scale",
            Value::F32(f32::NAN),
            "llama.logit_scale is NaN: it must be a number",
        );
        value_refused(
            "llama.rope.scaling.type",
            string("su"),
            "\"su\": the native code knows none, linear, yarn",
        );
        accepted(|file| {
            file.set("llama.rope.scaling.type", string("yarn"))
                .set("llama.rope.scaling.factor", Value::F32(4.0));
        });
    }

    #[test]
    fn tokenizers() {
        let key = "tokenizer.ggml.tokens";
        value_refused(
            "tokenizer.ggml.model",
            string("wordle"),
            "\"wordle\": the native code has no such tokenizer",
        );
        value_refused(
            "tokenizer.ggml.model",
            string("gpt2"),
            "merges is missing, but the tokenizer is byte-pair",
        );
        value_refused(
            "tokenizer.ggml.scores",
            numbers(ValueType::F32, [[0; 4]; 15]),
            "is an array of 15: there are 16",
        );
        value_refused(
            "tokenizer.ggml.token_type",
            numbers(ValueType::I32, [[0; 4]; 2]),
            "array of 2: there are 16",
        );
        value_refused(
            "tokenizer.ggml.token_type",
            numbers(ValueType::U32, [[0; 4]; 16]),
            "expected array of i32",
        );
        value_refused(
            key,
            strings((0..16).map(|n| format!("t{n}"))),
            "must have the byte tokens <0x00> to <0xFF>",
        );
        let tokens = |last: &str| strings((0..15).map(|n| format!("<0x{n:02X}>")).chain([last.to_owned()]));
        value_refused(
            key,
            tokens("<0x03>"),
            "tokens is \"<0x03>\" at 3 and at 15: every token must be unique",
        );
        value_refused(key, tokens("<0x03>\0more"), "\"<0x03>\" at 3 and at 15");
        accepted(|file| {
            file.set(key, tokens(""));
        });
        let clash =
            strings((0..14).map(|n| format!("<0x{n:02X}>")).chain(["[EMPTY_15]".into(), String::new()]));
        value_refused(key, clash, "\"[EMPTY_15]\" at 14 and at 15");
        accepted(|file| {
            file.set("tokenizer.ggml.scores", numbers(ValueType::F32, [[0; 4]; 20]));
        });
        accepted(|file| {
            file.set("tokenizer.ggml.model", string("none")).unset(key);
        });
    }

    #[test]
    fn tokenizers_have_the_tokens_they_add() {
        let with = |model: &str, keys: &[(&str, Value)]| {
            let mut file = Builder::llama();
            file.set("tokenizer.ggml.model", string(model)).set("tokenizer.ggml.merges", strings(["a b"]));
            for (key, value) in keys {
                file.set(&format!("tokenizer.ggml.{key}"), value.clone());
            }
            file.open().err().unwrap_or_default()
        };
        assert_eq!(with("gpt2", &[("add_bos_token", Value::Bool(true))]), "");
        assert!(with("bert", &[]).contains("bos_token_id is missing, but the tokenizer adds this token"));
        let first = ("bos_token_id", Value::U32(0));
        let around = [first.clone(), ("seperator_token_id", Value::U32(1))];
        let byte = numbers(ValueType::I32, (0..16).map(|id| i32::to_le_bytes(if id == 3 { 6 } else { 1 })));
        assert!(with("bert", &[("add_bos_token", Value::Bool(false))]).contains("bos_token_id is missing"));
        assert!(with("bert", &[first]).contains("seperator_token_id is missing, but the tokenizer adds"));
        let refused = with("bert", &[("token_type", byte)]);
        assert!(refused.contains("token_type is 6 at 3: a WordPiece vocabulary"), "{refused}");
        assert_eq!(with("bert", &around), "");
        assert!(with("test", &[("tokens", strings([""; 0]))]).contains("must have at least one token"));
        let bos = [("bos_token_id", Value::U32(16))];
        assert!(
            with("gemma4", &bos)
                .contains("bos_token_id is 16: the tokenizer adds this token, but the vocabulary")
        );
        assert_eq!(with("llama", &bos), "");
        let lines = strings(["\\n\\n", "a"]);
        assert!(with("rwkv", &[("tokens", lines)]).contains("must have a token for the line feed alone"));
        let map = numbers(ValueType::U8, [[8], [0], [0], [0], [1]]);
        assert!(with("t5", &[("precompiled_charsmap", map)]).contains("charsmap is an array of 5 bytes"));
    }

    #[test]
    fn tensors_follow_from_the_metadata() {
        for name in
            ["token_embd.weight", "blk.1.attn_norm.weight", "blk.1.attn_k.weight", "blk.0.attn_v.weight"]
        {
            refused(&format!("tensor {name} is missing"), |file| {
                file.tensors.retain(|tensor| tensor.name != name)
            });
        }
        refused("tensor blk.2.attn_norm.weight is missing: llama.block_count is 3", |file| {
            file.set("llama.block_count", Value::U32(3));
        });
        refused("tensor blk.1.attn_norm.weight belongs to no layer: llama.block_count is 1", |file| {
            file.set("llama.block_count", Value::U32(1));
        });
        refused("tensor output_norm.weight is missing", |file| {
            file.find("output_norm.weight").name = "x".into()
        });
        let shape = |name: &str, shape: &[u64]| {
            let mut file = Builder::llama();
            file.find(name).shape = shape.to_vec();
            file.open().unwrap_err()
        };
        let asked = "tensor token_embd.weight has shape [16, 8], but the metadata asks for [8, 16]";
        assert!(shape("token_embd.weight", &[16, 8]).contains(asked));
        assert!(shape("blk.1.attn_k.weight", &[4, 8]).contains("asks for [8, 4]"));
        assert!(shape("blk.0.ffn_down.weight", &[8, 16]).contains("asks for [16, 8]"));
        assert!(shape("blk.0.ffn_norm.weight", &[4, 2]).contains("asks for [8]"));
        accepted(|file| {
            file.tensor("rope_freqs.weight", &[2]);
            file.tensor("blk.0.attn_q.bias", &[8]);
        });
    }

    #[test]
    fn tensors_have_types_that_the_cpu_computes_with() {
        let open = |architecture: &str, name: &str, type_id: u32, bytes: u64| {
            let mut file = Builder::llama();
            for (key, value) in &mut file.metadata {
                *key = key.replace("llama.", &format!("{architecture}."));
                if key == "general.architecture" {
                    *value = string(architecture);
                }
            }
            file.tensor("blk.0.attn_q.bias", &[8]);
            if architecture != "llama" {
                file.tensor("blk.0.ffn_gate_tid2eid.weight", &[8, 16]);
            }
            let tensor = file.find(name);
            (tensor.type_id, tensor.bytes) = (type_id, bytes);
            file.open().err().unwrap_or_default()
        };
        for name in ["blk.0.attn_norm.weight", "output_norm.weight", "blk.0.attn_q.bias"] {
            let says = format!("tensor {name} is f16: norms, biases and rope factors must be f32");
            assert!(open("llama", name, 1, 16).contains(&says), "{name}");
            assert_eq!(open("deepseek4", name, 1, 16), "");
        }
        for architecture in ["llama", "deepseek4"] {
            let type_of = |type_id, size: u64| open(architecture, "blk.1.attn_q.weight", type_id, 64 * size);
            assert!(type_of(26, 4).contains("tensor blk.1.attn_q.weight is i32: weights must be"));
            assert!(type_of(24, 1).contains("is i8: weights must be of a type"));
            assert!(open(architecture, "token_embd.weight", 28, 8 * 128).contains("is f64: weights must be"));
            assert_eq!(type_of(1, 2), "");
            assert_eq!(type_of(30, 2), "");
        }
        assert_eq!(open("deepseek4", "blk.0.ffn_gate_tid2eid.weight", 26, 4 * 128), "");
    }

    #[test]
    fn data_starts_where_native_code_can_map_it() {
        let starts: Vec<bool> = (0..8)
            .map(|padding| {
                let mut file = Builder::llama();
                file.alignment = 8;
                file.set("general.alignment", Value::U32(8))
                    .set("general.name", string(&"n".repeat(8 * padding)));
                match file.open() {
                    Ok(_) => true,
                    Err(error) => {
                        assert!(error.contains("no multiple of 32; general.alignment is 8"), "{error}");
                        false
                    }
                }
            })
            .collect();
        assert_eq!(starts.iter().filter(|starts| **starts).count(), 2);
    }

    #[test]
    fn an_image_encoder_has_no_layers_to_check() {
        let mut file = Builder::new();
        file.set("general.architecture", string("clip")).tensor("v.patch_embd.weight", &[4]);
        let model = file.open().unwrap();
        assert_eq!(model.hyperparameters(), None);
    }
}
