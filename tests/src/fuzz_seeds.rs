//! Where the fuzz targets that read GGUF files start from: tiny files of every kind, and some that are wrong.

use crate::gguf_writer::{Contents, TensorType, Value};
use crate::shapes::{Architecture, ModelSpec, tiny_llama};

/// An input of a fuzz target.
pub struct Seed {
    /// The target, whose corpus it belongs to.
    pub target: &'static str,
    /// Its name there.
    pub name: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// What the target `shards` takes for the end of one file and the beginning of the next.
const SEPARATOR: u8 = 0x1e;

/// All of them.
pub fn seeds() -> Vec<Seed> {
    let headers = good().into_iter().map(|(name, contents)| (name, file(&contents))).chain(bad());
    let headers = headers.map(|(name, bytes)| Seed { target: "header", name: format!("{name}.gguf"), bytes });
    let shards = folders().into_iter();
    let shards = shards.map(|(name, bytes)| Seed { target: "shards", name: name.to_owned(), bytes });
    headers.chain(shards).collect()
}

/// A model of about four kilobytes, most of which are its header.
fn spec(architecture: Architecture, layers: u32) -> ModelSpec {
    ModelSpec {
        name: "tiny",
        architecture,
        layers,
        embd: 8,
        ff: 16,
        heads: 2,
        kv_heads: if matches!(architecture, Architecture::GptNeoX { .. }) { 2 } else { 1 },
        head_dim: 4,
        vocab: 16,
        kind: TensorType::F16,
        ..tiny_llama()
    }
}

fn contents(spec: &ModelSpec, vocabulary: Vec<(&str, Value)>) -> Contents {
    let mut metadata = spec.hyper_parameters();
    metadata.extend(vocabulary.into_iter().map(|(key, value)| (format!("tokenizer.{key}"), value)));
    Contents { metadata, tensors: spec.tensors().into_iter().map(|(tensor, _)| tensor).collect() }
}

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn vocabulary(model: &str, first: &[&str]) -> Vec<(&'static str, Value)> {
    let first = first.iter().map(|&token| token.to_owned());
    let tokens = first.chain((0..).map(|index| format!("t{index}"))).take(16);
    vec![
        ("ggml.model", text(model)),
        ("ggml.tokens", Value::strings(tokens)),
        ("ggml.token_type", Value::i32s([1; 16])),
        ("ggml.bos_token_id", Value::U32(1)),
        ("ggml.eos_token_id", Value::U32(2)),
        ("ggml.add_bos_token", Value::Bool(false)),
    ]
}

fn sentence_piece() -> Vec<(&'static str, Value)> {
    let mut all = vocabulary("llama", &["<unk>", "<s>", "</s>", "<0x00>", "<0x01>"]);
    all.push(("ggml.scores", Value::Array(Value::F32_ID, vec![Value::F32(0.0); 16])));
    all
}

fn byte_pairs() -> Vec<(&'static str, Value)> {
    let mut all = vocabulary("gpt2", &["<|endoftext|>", "a", "b", "ab"]);
    all.extend([
        ("ggml.pre", text("gpt-2")),
        ("ggml.merges", Value::strings(["a b"])),
        ("chat_template", text("{{ messages[0].content }}")),
    ]);
    all
}

/// One model of each architecture and each kind of vocabulary.
fn good() -> Vec<(&'static str, Contents)> {
    let llama = spec(Architecture::Llama, 1);
    let neox = Architecture::GptNeoX { rope_dimensions: 2, parallel_residual: true };
    let moe = Architecture::Qwen3Moe { experts: 4, experts_used: 2 };
    let blocks = ModelSpec { embd: 32, ff: 32, head_dim: 16, kind: TensorType::Q8_0, ..llama.clone() };
    let mut unigram = vocabulary("t5", &["<pad>", "</s>"]);
    unigram.push(("ggml.precompiled_charsmap", Value::Array(0, vec![Value::U8(0); 6])));
    let mut layers = contents(&spec(Architecture::Llama, 2), sentence_piece());
    let per_layer = Value::Array(Value::U32_ID, vec![Value::U32(16); 2]);
    set(&mut layers, "llama.feed_forward_length", per_layer);
    set(&mut layers, "general.alignment", Value::U32(64));
    let mut scaled = contents(&llama, vec![("ggml.model", text("no_vocab"))]);
    set(&mut scaled, "llama.rope.scaling.type", text("yarn"));
    set(&mut scaled, "llama.rope.scaling.factor", Value::F32(4.0));
    vec![
        ("llama", contents(&llama, sentence_piece())),
        ("llama-per-layer", layers),
        ("llama-blocks", contents(&blocks, sentence_piece())),
        ("llama-no-vocabulary", scaled),
        ("llama-unigram", contents(&llama, unigram)),
        ("llama-rwkv", contents(&llama, vocabulary("rwkv", &["<s>", "\n", "\\n\\n"]))),
        ("qwen2-tied", contents(&ModelSpec { tied: true, ..spec(Architecture::Qwen2, 1) }, byte_pairs())),
        ("gptneox", contents(&spec(neox, 1), byte_pairs())),
        ("qwen3moe", contents(&spec(moe, 1), byte_pairs())),
        ("clip", clip()),
        ("empty", Contents::default()),
    ]
}

/// A file that is no language model.
fn clip() -> Contents {
    let mut clip = contents(&spec(Architecture::Llama, 1), Vec::new());
    clip.metadata.retain(|(key, _)| key.starts_with("general."));
    set(&mut clip, "general.architecture", text("clip"));
    clip
}

/// Files that are wrong where the bytes themselves have to be.
fn bad() -> Vec<(&'static str, Vec<u8>)> {
    let llama = contents(&spec(Architecture::Llama, 1), sentence_piece());
    let whole = file(&llama);
    let patched = |at: usize, bytes: &[u8]| {
        let mut file = whole.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    let mut twice = llama.clone();
    twice.tensors.push(llama.tensors[0].clone());
    let mut wide = llama.clone();
    for key in ["attention.head_count", "attention.head_count_kv"] {
        set(&mut wide, &format!("llama.{key}"), Value::U32(u32::MAX));
    }
    for key in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
        set(&mut wide, &format!("llama.{key}"), Value::U32(u32::MAX - 1));
    }
    for tensor in &mut wide.tensors {
        tensor.name = tensor.name.replace("attn_q.", "attn_qkv.");
    }
    let first = llama.tensors[0].name.as_bytes();
    let name_at = whole.windows(first.len()).position(|window| window == first).expect("its own tensor");
    // Behind the name and the number of dimensions.
    let size_at = name_at + first.len() + 4;
    vec![
        ("cut-in-the-header", whole[..200].to_vec()),
        ("cut-in-the-data", whole[..whole.len() - 64].to_vec()),
        ("other-byte-order", patched(4, &3_u32.to_be_bytes())),
        ("too-many-tensors", patched(8, &u64::MAX.to_le_bytes())),
        ("too-many-keys", patched(16, &(1_u64 << 40).to_le_bytes())),
        ("long-key", patched(24, &(1_u64 << 30).to_le_bytes())),
        ("tensor-twice", file(&twice)),
        ("heads-wider-than-can-be-counted", file(&wide)),
        ("huge-tensor", patched(size_at, &(1_u64 << 62).to_le_bytes())),
    ]
}

/// Folders, as the target `shards` takes them: the name that is given, then each file's name and bytes.
fn folders() -> Vec<(&'static str, Vec<u8>)> {
    let llama = contents(&spec(Architecture::Llama, 1), sentence_piece());
    let shards: Vec<Vec<u8>> = llama.split(3).iter().map(file).collect();
    let name = |number: usize| format!("tiny-{number:05}-of-00003.gguf");
    let folder = |given: &str, files: &[(String, &Vec<u8>)]| {
        let mut input = given.as_bytes().to_vec();
        for (name, bytes) in files {
            input.push(SEPARATOR);
            assert!(!bytes.contains(&SEPARATOR), "{name} would be taken for two files");
            input.extend(name.bytes());
            input.push(b'\n');
            input.extend(*bytes);
        }
        input
    };
    let [first, second, third] = [1, 2, 3].map(|number| (name(number), &shards[number - 1]));
    let small = file(&Contents { metadata: llama.metadata[..1].to_vec(), tensors: Vec::new() });
    let named = |name: &str| (name.to_owned(), &small);
    vec![
        ("three-shards", folder("", &[first.clone(), second.clone(), third.clone()])),
        ("the-second-is-given", folder(&name(2), &[first.clone(), second.clone(), third.clone()])),
        ("the-third-is-missing", folder(&name(1), &[first.clone(), second])),
        ("a-shard-twice", folder("", &[first.clone(), (name(2), first.1), third])),
        ("a-shard-without-its-name", folder("model.gguf", &[("model.gguf".to_owned(), first.1)])),
        ("one-model", folder("", &[named("a.gguf"), named("a.txt")])),
        ("two-models", folder("", &[named("a.gguf"), named("b.gguf")])),
        ("called-like-a-shard", folder("", &[named("a-00001-of-00003.gguf")])),
    ]
}

fn set(contents: &mut Contents, key: &str, value: Value) {
    match contents.metadata.iter_mut().find(|(name, _)| name == key) {
        Some((_, old)) => *old = value,
        None => contents.metadata.push((key.to_owned(), value)),
    }
}

/// The whole file, all weights zero.
fn file(contents: &Contents) -> Vec<u8> {
    let mut file = contents.header();
    file.resize(file.len() + contents.data_bytes() as usize, 0);
    file
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn the_committed_seeds_are_these() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
        for Seed { target, name, bytes } in seeds() {
            let path = corpus.join(target).join(name);
            let committed = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(committed == bytes, "{}: write it again with generate-fuzz-seeds", path.display());
        }
    }
}
