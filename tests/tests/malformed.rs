//! Malformed files of many kinds: each is refused with one line that names the file and the field, in no
//! time, before native code could abort on it.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use ramforge::gguf::Model;
use ramforge_tests::{
    gguf_writer::{Contents, Data, TensorInfo, TensorType, Value},
    programs, shapes,
};

type SpoilContents = dyn Fn(&mut Contents);
type SpoilBytes = dyn Fn(&mut Vec<u8>, &mut u64);

/// How a variant spoils a good file.
enum Spoil {
    /// Other contents, written as they should be.
    Contents(Box<SpoilContents>),
    /// Other bytes in the header, whose end and the file's can move.
    Bytes(Box<SpoilBytes>),
}

/// A kind of malformed file.
struct Kind {
    name: &'static str,
    /// What every message of the kind says.
    says: &'static str,
    variants: Vec<Spoil>,
}

#[derive(Default)]
struct Kinds(Vec<Kind>);

impl Kinds {
    fn add(&mut self, name: &'static str, says: &'static str, variants: impl IntoIterator<Item = Spoil>) {
        self.0.push(Kind { name, says, variants: variants.into_iter().collect() });
    }

    /// A kind whose variants give `key` one of `values`.
    fn values(&mut self, key: &'static str, says: &'static str, values: impl IntoIterator<Item = Value>) {
        self.add(
            key,
            says,
            values.into_iter().map(|value| contents(move |file| set(file, key, value.clone()))),
        );
    }
}

fn contents(spoil: impl Fn(&mut Contents) + 'static) -> Spoil {
    Spoil::Contents(Box::new(spoil))
}

fn bytes(spoil: impl Fn(&mut Vec<u8>, &mut u64) + 'static) -> Spoil {
    Spoil::Bytes(Box::new(spoil))
}

/// Variants that write `values` at a place of the header that `at` finds.
fn patches<const N: usize>(
    at: impl Fn(&[u8]) -> usize + Copy + 'static,
    values: impl IntoIterator<Item = [u8; N]>,
) -> Vec<Spoil> {
    let patch = |value: [u8; N]| {
        bytes(move |header, _| {
            let at = at(header);
            header[at..at + N].copy_from_slice(&value);
        })
    };
    values.into_iter().map(patch).collect()
}

/// Where what follows the string `text` begins.
fn after(header: &[u8], text: &str) -> usize {
    let mut wanted = (text.len() as u64).to_le_bytes().to_vec();
    wanted.extend(text.as_bytes());
    let found = header.windows(wanted.len()).position(|window| window == wanted);
    found.unwrap_or_else(|| panic!("no {text}")) + wanted.len()
}

fn set(file: &mut Contents, key: &str, value: Value) {
    match file.metadata.iter_mut().find(|(name, _)| name == key) {
        Some((_, old)) => *old = value,
        None => file.metadata.push((key.to_owned(), value)),
    }
}

fn remove(file: &mut Contents, key: &str) {
    let before = file.metadata.len();
    file.metadata.retain(|(name, _)| name != key);
    assert_eq!(file.metadata.len() + 1, before, "{key}");
}

fn tensor<'a>(file: &'a mut Contents, name: &str) -> &'a mut TensorInfo {
    file.tensors.iter_mut().find(|tensor| tensor.name == name).unwrap_or_else(|| panic!("no {name}"))
}

/// `name` with a type that the writer has not: number `id`. Of as many bytes as `kind`, unless it is the last
/// tensor, which may have more.
fn retyped(name: &'static str, kind: TensorType, id: u32) -> Spoil {
    bytes(move |header, total| {
        let mut file = shapes::tiny_llama().contents().unwrap();
        let tensor = tensor(&mut file, name);
        tensor.kind = kind;
        let shape = 8 * tensor.dimensions.len();
        *header = file.header();
        // More than any type takes.
        *total = header.len() as u64 + file.data_bytes() + (1 << 23);
        let at = after(header, name) + 4 + shape;
        header[at..at + 4].copy_from_slice(&id.to_le_bytes());
    })
}

fn text(value: &str) -> Value {
    Value::String(value.to_owned())
}

fn u32s(numbers: impl IntoIterator<Item = u32>) -> Value {
    Value::Array(Value::U32_ID, numbers.into_iter().map(Value::U32).collect())
}

fn f32s(count: usize) -> Value {
    Value::Array(Value::F32_ID, vec![Value::F32(0.0); count])
}

const TOKENS: &str = "tokenizer.ggml.tokens";

/// The vocabulary with its last entries replaced.
fn with_tokens(last: &'static [&'static str]) -> Spoil {
    contents(move |file| {
        let (_, value) = file.metadata.iter_mut().find(|(name, _)| name == TOKENS).unwrap();
        let Value::Array(_, tokens) = value else { panic!("no array") };
        let from = tokens.len() - last.len();
        tokens.truncate(from);
        tokens.extend(last.iter().map(|token| text(token)));
    })
}

/// What the bytes themselves can have wrong.
fn damaged(kinds: &mut Kinds) {
    let cut = |len: fn(u64, u64) -> u64| {
        bytes(move |header, total| {
            *total = len(header.len() as u64, *total);
            header.truncate(*total as usize);
        })
    };
    kinds.add("empty", "the file is empty", [cut(|_, _| 0)]);
    kinds.add("cut preamble", "in the file", [cut(|_, _| 3), cut(|_, _| 6), cut(|_, _| 12), cut(|_, _| 23)]);
    kinds.add(
        "cut header",
        "in the file",
        [cut(|_, _| 40), cut(|h, _| h / 2), cut(|h, _| h - 200), cut(|h, _| h - 40)],
    );
    let lengths =
        [cut(|h, _| h), cut(|h, _| h + 1), cut(|h, total| (h + total) / 2), cut(|_, total| total - 500)];
    kinds.add("cut data", "the data of tensor", lengths);
    kinds.add(
        "other magic",
        "not a GGUF file: it starts with",
        patches(|_| 0, [*b"# Re", *b"\x7fELF", *b"PK\x03\x04", *b"GGML"]),
    );
    kinds.add("other byte order", "the file is big-endian", patches(|_| 4, [3, 2, 1].map(u32::to_be_bytes)));
    kinds.add(
        "other version",
        "is not supported, only 2 and 3 are",
        patches(|_| 4, [0, 1, 4, 77].map(u32::to_le_bytes)),
    );
    let counts = [u64::MAX, 1 << 63, 1 << 40, 1 << 20].map(u64::to_le_bytes);
    kinds.add("tensor count", "tensor", patches(|_| 8, counts));
    kinds.add("key count", "metadata key", patches(|_| 16, counts));
    kinds.add(
        "key length",
        "the length of metadata key 0",
        patches(|_| 24, [u64::MAX, 1 << 40, 1 << 31].map(u64::to_le_bytes)),
    );
    kinds.add(
        "long key",
        "metadata key 0 at byte 32 needs",
        patches(|_| 24, [1 << 30, 1 << 29, 1 << 28].map(u64::to_le_bytes)),
    );
    kinds.add("key text", "it must be UTF-8", patches(|_| 33, [[0xff], [0x80], [0xc0]]));
    kinds.add(
        "zero in a key",
        "it must not contain a zero byte",
        [32, 33, 40].map(|at| patches(move |_| at, [[0]]).remove(0)),
    );
    let of_name = |header: &[u8]| after(header, "general.name");
    kinds.add(
        "value type",
        "types have the numbers 0 to 12",
        patches(of_name, [13, 255, u32::MAX].map(u32::to_le_bytes)),
    );
    let length = move |header: &[u8]| of_name(header) + 4;
    kinds.add(
        "text length",
        "the length of the value of general.name",
        patches(length, [u64::MAX, 1 << 40, (1 << 30) + 1].map(u64::to_le_bytes)),
    );
    kinds.add(
        "long text",
        "the value of general.name",
        patches(length, [1 << 30, 1 << 29, 1 << 24].map(u64::to_le_bytes)),
    );
    let of_tokens = |header: &[u8]| after(header, TOKENS) + 4;
    kinds.add(
        "array of arrays",
        "arrays of arrays are not read",
        [TOKENS, "tokenizer.ggml.merges", "tokenizer.ggml.token_type"]
            .map(|key| patches(move |header| after(header, key) + 4, [9_u32.to_le_bytes()]).remove(0)),
    );
    kinds.add(
        "element type",
        "types have the numbers 0 to 12",
        patches(of_tokens, [13, 99, 1 << 31].map(u32::to_le_bytes)),
    );
    kinds.add(
        "array length",
        "tokenizer.ggml.tokens",
        patches(
            move |header| of_tokens(header) + 4,
            [u64::MAX, 1 << 40, 1 << 30, 1 << 28].map(u64::to_le_bytes),
        ),
    );
    of_tensors(kinds);
}

/// What the tensor table can have wrong.
fn of_tensors(kinds: &mut Kinds) {
    // A vector of 256 floats, not the first tensor.
    let row = |header: &[u8]| after(header, "blk.1.attn_norm.weight");
    let size = move |header: &[u8]| row(header) + 4;
    let kind = move |header: &[u8]| row(header) + 12;
    let offset = move |header: &[u8]| row(header) + 16;
    kinds.add(
        "dimensions",
        "tensors have at most 4 dimensions",
        patches(row, [5, 6, u32::MAX].map(u32::to_le_bytes)),
    );
    kinds.add(
        "negative size",
        "dimensions are not negative",
        patches(size, [-1, i64::MIN, -256].map(i64::to_le_bytes)),
    );
    kinds.add(
        "huge size",
        "blk.1.attn_norm.weight",
        patches(size, [i64::MAX, 1 << 62, 1 << 40].map(i64::to_le_bytes)),
    );
    kinds.add(
        "removed type",
        "this type was removed from GGUF",
        patches(kind, [4, 5, 31, 33, 36, 38].map(u32::to_le_bytes)),
    );
    kinds.add(
        "unknown type",
        "there is no such type",
        patches(kind, [43, 1000, u32::MAX].map(u32::to_le_bytes)),
    );
    kinds.add(
        "partial blocks",
        "rows must be a multiple of",
        [33_u64, 255, 1].map(|size| {
            bytes(move |header, _| {
                let at = after(header, "blk.1.attn_q.weight") + 4;
                header[at..at + 8].copy_from_slice(&size.to_le_bytes());
            })
        }),
    );
    kinds.add(
        "unaligned offset",
        "it must be a multiple of the alignment, 32",
        patches(offset, [1, 33, u64::MAX].map(u64::to_le_bytes)),
    );
    kinds.add("overlap", "so the two overlap", patches(offset, [0, 32, 1024].map(u64::to_le_bytes)));
    kinds.add(
        "gap",
        "gaps are not allowed",
        patches(offset, [1 << 40, 1 << 63, u64::MAX - 31].map(u64::to_le_bytes)),
    );
    kinds.add(
        "tensor name",
        "it must",
        [[0xff, b'x'], [0, b'x'], [b'x', 0]].map(|start| {
            bytes(move |header, _| {
                let end = after(header, "blk.1.attn_norm.weight");
                header[end - 2..end].copy_from_slice(&start);
            })
        }),
    );
    kinds.add(
        "long name",
        "names have at most 63 bytes",
        [64, 100, 1000].map(|len| contents(move |file| file.tensors[3].name = "x".repeat(len))),
    );
    kinds.add(
        "same tensor",
        "it must be unique, and tensor",
        [1, 5, 9].map(|index| contents(move |file| file.tensors[index].name = file.tensors[0].name.clone())),
    );
    kinds.add(
        "same key",
        "it must be unique, and key",
        ["general.name", "llama.block_count", TOKENS]
            .map(|key| contents(move |file| file.metadata.push((key.to_owned(), Value::U8(1))))),
    );
    kinds.add(
        "empty key",
        "it must not be empty",
        [0, 3, 9].map(|index| contents(move |file| file.metadata[index].0.clear())),
    );
}

/// Metadata that the native loader stops on.
fn parameters(kinds: &mut Kinds) {
    kinds.values("general.alignment", "it must be a power of two", [0, 3, 48].map(Value::U32));
    kinds.values("general.alignment", "expected u32", [Value::I32(32), Value::U64(32), text("32")]);
    kinds.values(
        "general.architecture",
        "general.architecture is",
        [Value::U32(1), text(""), text("two words"), text("a\nb")],
    );
    let adapter = |key: &'static str| {
        contents(move |file| {
            set(file, "general.type", text("adapter"));
            remove(file, key);
            file.tensors.clear();
        })
    };
    let keys = ["llama.block_count", TOKENS, "general.name"];
    kinds.add("adapter", "an adapter is not a model", keys.map(adapter));
    kinds.values("llama.block_count", "supports 1 to 512 layers", [0, 513, u32::MAX].map(Value::U32));
    let types = [Value::U64(4), Value::I32(4), Value::F32(4.0), text("4"), Value::U8(4)];
    kinds.values("llama.block_count", "llama.block_count is", types.clone());
    kinds.values("llama.embedding_length", "llama.embedding_length is", types.clone());
    kinds.values("llama.context_length", "llama.context_length is", types.clone());
    kinds.values("llama.embedding_length", "", [0, 255, 512].map(Value::U32));
    kinds.values("llama.attention.head_count", "llama.attention.head_count", [0, 7, 9].map(Value::U32));
    kinds.values(
        "llama.attention.head_count_kv",
        "which must be a multiple of it",
        [3, 5, 16].map(Value::U32),
    );
    kinds.values("llama.attention.head_count", "there are 4 layers", [u32s([8; 3]), u32s([8; 5]), u32s([])]);
    kinds.values(
        "llama.attention.head_count_kv",
        "expected u32, or an array",
        [f32s(4), Value::strings(["2"; 4]), Value::U64(2)],
    );
    kinds.values(
        "llama.feed_forward_length",
        "there are 4 layers",
        [u32s([704; 3]), u32s([704; 5]), u32s([])],
    );
    kinds.values("llama.attention.value_length", "the same size", [16, 31, 64].map(Value::U32));
    kinds.values(
        "llama.rope.dimension_count",
        "rotate whole heads of 32 elements",
        [0, 31, 64].map(Value::U32),
    );
    kinds.values(
        "llama.expert_count",
        "supports at most 1024 experts",
        [1025, 4096, u32::MAX].map(Value::U32),
    );
    kinds.values("llama.expert_used_count", "a token cannot use more", [1, 2, u32::MAX].map(Value::U32));
    kinds.values("llama.expert_count", "uses at least one", [1, 8, 1024].map(Value::U32));
    kinds.values("llama.expert_group_count", "has no groups", [1, 2, 3].map(Value::U32));
    kinds.values(
        "llama.nextn_predict_layers",
        "not be more than block_count",
        [5, 6, u32::MAX].map(Value::U32),
    );
    let names = [text(""), text("su"), text("dynamic"), text("LINEAR")];
    kinds.values("llama.rope.scaling.type", "knows none, linear, yarn and longrope", names);
    let floats = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let epsilons = floats.into_iter().chain([-1e-5]).map(Value::F32);
    kinds.values("llama.attention.layer_norm_rms_epsilon", "it must be a", epsilons);
    kinds.values("llama.rope.freq_base", "it must be a", floats.map(Value::F32));
    kinds.values("llama.rope.scaling.factor", "it must be a", floats.map(Value::F32));
    let not_numbers = [Value::F32(f32::NAN), Value::F32(-f32::NAN), Value::F64(f64::NAN)];
    kinds.values("llama.logit_scale", "it must be a number", not_numbers);
    let required =
        ["general.architecture", "llama.context_length", "llama.embedding_length", "llama.block_count"];
    kinds.add("missing key", "is missing", required.map(|key| contents(move |file| remove(file, key))));
    let groups = [(4, 4, 2), (8, 3, 1), (8, 4, 4), (8, 4, 0)];
    kinds.add(
        "expert groups",
        "expert_group",
        groups.map(|(count, groups, used)| {
            contents(move |file| {
                for (key, number) in
                    [("count", count), ("used_count", 2), ("group_count", groups), ("group_used_count", used)]
                {
                    set(file, &format!("llama.expert_{key}"), Value::U32(number));
                }
            })
        }),
    );
}

/// Vocabularies that a tokenizer cannot work with.
fn vocabularies(kinds: &mut Kinds) {
    let models = [text("wordle"), text(""), text("GPT2"), Value::U32(1)];
    kinds.values("tokenizer.ggml.model", "tokenizer.ggml.model is", models);
    kinds.values(TOKENS, "tokenizer.ggml.tokens is", [text("a"), u32s([1, 2]), Value::U32(1)]);
    let merges = "tokenizer.ggml.merges";
    kinds.values(merges, "tokenizer.ggml.merges is", [text("a b"), u32s([1, 2]), Value::U32(1)]);
    kinds.values("tokenizer.ggml.scores", "must not have fewer elements", [f32s(2047), f32s(1), f32s(0)]);
    let types = "tokenizer.ggml.token_type";
    let short = [2047, 1, 0].map(|count| Value::i32s(vec![1; count]));
    kinds.values(types, "must not have fewer elements", short);
    kinds.values(types, "expected array of i32", [u32s([1; 2048]), f32s(2048), Value::I32(1)]);
    kinds.values("tokenizer.ggml.bos_token_id", "expected u32", [Value::I32(1), text("<s>"), Value::U64(1)]);
    kinds.values(
        "tokenizer.ggml.add_bos_token",
        "expected bool",
        [Value::U8(1), Value::U32(1), text("true")],
    );
    let same = "every token must be unique";
    kinds.add(
        "same token",
        same,
        [
            with_tokens(&["same", "same"]),
            with_tokens(&["same", "same\0 to C"]),
            with_tokens(&["[EMPTY_2047]", ""]),
        ],
    );
    let missing = ["tokenizer.ggml.model", TOKENS, merges];
    kinds.add("missing table", "is missing", missing.map(|key| contents(move |file| remove(file, key))));
    let model = |name: &'static str, change: fn(&mut Contents)| {
        contents(move |file| {
            set(file, "tokenizer.ggml.model", text(name));
            change(file);
        })
    };
    kinds.add(
        "no bytes",
        "must have the byte tokens",
        [
            model("llama", |_| {}),
            model("llama", |file| set(file, TOKENS, Value::strings(["<unk>", "<0x>", "0x0A"]))),
            model("llama", |file| set(file, TOKENS, Value::strings([""; 0]))),
        ],
    );
    kinds.add(
        "no line feed",
        "must have a token for the line feed alone",
        [
            model("rwkv", |file| set(file, TOKENS, Value::strings(["\\n\\n", "a"]))),
            model("rwkv", |file| set(file, TOKENS, Value::strings(["\n\n", "a"]))),
            model("rwkv", |file| set(file, TOKENS, Value::strings(["\\x0a ", "a"]))),
        ],
    );
    kinds.add(
        "absent special token",
        "the tokenizer adds this token",
        [
            model("bert", |file| set(file, "tokenizer.ggml.bos_token_id", Value::U32(2048))).also(|file| {
                set(file, TOKENS, Value::strings(["a", "b"]));
                remove(file, "tokenizer.ggml.add_bos_token");
            }),
            model("gemma4", |file| set(file, "tokenizer.ggml.bos_token_id", Value::U32(u32::MAX)))
                .also(|file| remove(file, "tokenizer.ggml.add_bos_token")),
            model("t5", |file| set(file, TOKENS, Value::strings(["a"]))),
        ],
    );
    let two_tokens = |file: &mut Contents| {
        set(file, TOKENS, Value::strings(["a", "b"]));
        set(file, "tokenizer.ggml.bos_token_id", Value::U32(0));
    };
    kinds.add(
        "no separator",
        "tokenizer.ggml.seperator_token_id is",
        [
            model("bert", |_| {}).also(two_tokens),
            model("bert", |file| set(file, "tokenizer.ggml.seperator_token_id", Value::U32(2)))
                .also(two_tokens),
            model("bert", |file| set(file, "tokenizer.ggml.add_sep_token", Value::Bool(false)))
                .also(two_tokens),
        ],
    );
    kinds.add(
        "no first token",
        "tokenizer.ggml.bos_token_id is 2: the tokenizer adds this token",
        [false, true].map(|adds| {
            model("bert", |file| set(file, TOKENS, Value::strings(["a", "b"]))).also(move |file| {
                set(file, "tokenizer.ggml.bos_token_id", Value::U32(2));
                set(file, "tokenizer.ggml.add_bos_token", Value::Bool(adds));
            })
        }),
    );
    kinds.add(
        "byte in WordPiece",
        "a WordPiece vocabulary must not have byte tokens",
        [0, 1000, 2047].map(|at| {
            model("bert", |_| {}).also(move |file| {
                let kind = |id| if id == at { 6 } else { 1 };
                set(file, types, Value::i32s((0..2048).map(kind)));
            })
        }),
    );
    kinds.add(
        "no tokens",
        "a vocabulary must have at least one token",
        ["test", "gpt2", "bert", "plamo2"]
            .map(|name| model(name, |file| set(file, TOKENS, Value::strings([""; 0])))),
    );
    let map = "tokenizer.ggml.precompiled_charsmap";
    let maps: [&'static [u8]; 3] = [&[], &[1, 0, 0], &[4, 0, 0, 0, 9]];
    kinds.add(
        "character map",
        map,
        maps.map(|bytes| {
            model("t5", |_| {}).also(move |file| {
                set(file, map, Value::Array(0, bytes.iter().map(|b| Value::U8(*b)).collect()))
            })
        }),
    );
}

impl Spoil {
    /// Spoils the contents in another way too.
    fn also(self, more: impl Fn(&mut Contents) + 'static) -> Self {
        match self {
            Self::Contents(spoil) => contents(move |file| {
                spoil(file);
                more(file);
            }),
            Self::Bytes(_) => panic!("only contents can be spoiled twice"),
        }
    }
}

/// Tensors that do not go with the metadata.
fn tensors(kinds: &mut Kinds) {
    let without =
        |name: &'static str| contents(move |file| file.tensors.retain(|tensor| tensor.name != name));
    kinds.add(
        "missing tensor",
        "is missing",
        [
            without("token_embd.weight"),
            without("output_norm.weight"),
            without("blk.0.attn_norm.weight"),
            without("blk.3.ffn_down.weight"),
            without("blk.2.attn_k.weight"),
        ],
    );
    let shape = |name: &'static str, shape: &'static [u64]| {
        contents(move |file| tensor(file, name).dimensions = shape.to_vec())
    };
    kinds.add(
        "other shape",
        "but the metadata asks for",
        [
            shape("token_embd.weight", &[2048, 256]),
            shape("token_embd.weight", &[256, 2047]),
            shape("output.weight", &[256, 2049]),
            shape("blk.1.attn_q.weight", &[256, 128]),
            shape("blk.1.attn_k.weight", &[64, 256]),
            shape("blk.2.ffn_up.weight", &[704, 256]),
            shape("output_norm.weight", &[256, 2]),
            shape("blk.0.ffn_norm.weight", &[0]),
        ],
    );
    kinds.add(
        "layers beyond",
        "belongs to no layer",
        [1, 2, 3].map(|count| contents(move |file| set(file, "llama.block_count", Value::U32(count)))),
    );
    kinds.add(
        "layers missing",
        "every layer has it",
        [5, 100, 512].map(|count| contents(move |file| set(file, "llama.block_count", Value::U32(count)))),
    );
    let half = |name: &'static str| contents(move |file| tensor(file, name).kind = TensorType::F16);
    let bias = TensorInfo { name: "blk.0.attn_q.bias".into(), dimensions: vec![256], kind: TensorType::F16 };
    kinds.add(
        "vector type",
        "is f16: norms, biases and rope factors must be f32",
        [
            half("blk.0.attn_norm.weight"),
            half("output_norm.weight"),
            contents(move |file| file.tensors.push(bias.clone())),
        ],
    );
    // Numbers of types: q8_1, q8_K, i8, i16, i32, i64 and f64.
    kinds.add(
        "matrix type",
        "weights must be of a type that `ramforge support` lists",
        [9, 15, 24, 27, 28].map(|id| retyped("output.weight", TensorType::Q8_0, id)).into_iter().chain([
            retyped("token_embd.weight", TensorType::F32, 26),
            retyped("blk.1.attn_q.weight", TensorType::F32, 26),
            retyped("blk.3.ffn_down.weight", TensorType::F16, 25),
        ]),
    );
    kinds.add("no tensors", "tensor token_embd.weight is missing", [contents(|file| file.tensors.clear())]);
}

fn all() -> Vec<Kind> {
    let mut kinds = Kinds::default();
    damaged(&mut kinds);
    parameters(&mut kinds);
    vocabularies(&mut kinds);
    tensors(&mut kinds);
    kinds.0
}

fn write(path: &Path, good: &Contents, spoil: &Spoil) {
    match spoil {
        Spoil::Contents(spoil) => {
            let mut contents = good.clone();
            spoil(&mut contents);
            contents.write(path, Data::Sparse).unwrap();
        }
        Spoil::Bytes(spoil) => {
            let mut header = good.header();
            let mut total = header.len() as u64 + good.data_bytes();
            spoil(&mut header, &mut total);
            let mut file = File::create(path).unwrap();
            file.write_all(&header).unwrap();
            file.set_len(total).unwrap();
        }
    }
}

/// Opens what must not open, and gives the message.
fn refusal(path: &Path) -> String {
    let start = Instant::now();
    let error = Model::open(path).map(|model| model.tensor_count()).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(1), "{error}: took {:?}", start.elapsed());
    assert_eq!(error.kind().exit_code(), 1, "{error}");
    let message = error.to_string();
    assert!(message.contains(&*path.to_string_lossy()), "{message}");
    assert!(!message.contains(char::is_control), "{message:?}");
    assert!(message.len() < 1000, "{message}");
    message
}

#[test]
fn every_malformed_file_is_refused_with_one_line_that_says_why() {
    let good = shapes::tiny_llama().contents().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("malformed.gguf");
    good.write(&path, Data::Sparse).unwrap();
    Model::open(&path).unwrap();
    let kinds = all();
    let mut other = Vec::new();
    for kind in &kinds {
        for (index, spoil) in kind.variants.iter().enumerate() {
            write(&path, &good, spoil);
            let message = refusal(&path);
            if !message.contains(kind.says) {
                other.push(format!("{} {index}: {:?} is not in {message}", kind.name, kind.says));
            }
        }
    }
    assert!(other.is_empty(), "{}", other.join("\n"));
    let variants: usize = kinds.iter().map(|kind| kind.variants.len()).sum();
    println!("{} kinds of malformed file in {variants} variants", kinds.len());
    let varied = kinds.iter().filter(|kind| kind.variants.len() >= 3).count();
    assert!(varied >= 60, "only {varied} kinds in three variants or more");
}

/// The commands that take a model say the same of each file, in one line, and end with exit code 1 and no signal.
#[test]
fn inspect_plan_and_run_agree_on_what_is_wrong() {
    let good = shapes::tiny_llama().contents().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("malformed.gguf");
    for kind in all() {
        for spoil in &kind.variants {
            write(&path, &good, spoil);
            let said = [&["inspect"][..], &["plan"], &["run", "--prompt", "a"]].map(|command| {
                let output = programs::ramforge().unwrap().args(command).arg(&path).output().unwrap();
                let said = String::from_utf8(output.stderr).unwrap();
                assert_eq!(output.status.code(), Some(1), "{} {command:?}: {said}", kind.name);
                assert_eq!(said.lines().filter(|line| !line.starts_with("  hint: ")).count(), 1, "{said}");
                said
            });
            assert!(said[0].contains(kind.says) && said.iter().all(|other| *other == said[0]), "{said:#?}");
        }
    }
}

/// Kinds on which the native library aborts. Others it refuses, or it computes or allocates without end: they are
/// not tried.
const ABORTS: [&str; 9] = [
    "llama.block_count",
    "llama.expert_count",
    "llama.expert_used_count",
    "llama.expert_group_count",
    "llama.nextn_predict_layers",
    "llama.rope.scaling.type",
    "llama.attention.layer_norm_rms_epsilon",
    "expert groups",
    "same token",
];

/// That the checks are needed: the native library alone aborts the process on some of these files.
#[test]
fn native_code_alone_aborts_on_ten_kinds() {
    let good = shapes::tiny_llama().contents().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("malformed.gguf");
    let aborts = |spoil: &Spoil| {
        write(&path, &good, spoil);
        let loaded =
            programs::direct(&[path.to_str().unwrap(), "--prompt", "a", "-n", "1", "--threads", "1"]);
        loaded.is_err_and(|error| error.to_string().contains("SIGABRT"))
    };
    let counts = all().into_iter().filter(|kind| ABORTS.contains(&kind.name)).map(|kind| {
        let variants = kind.variants.iter().filter(|spoil| aborts(spoil)).count();
        (kind.name, variants)
    });
    let counts: Vec<_> = counts.filter(|(_, variants)| *variants > 0).collect();
    println!("native aborts: {counts:?}");
    assert!(counts.len() >= 10, "{counts:?}");
}

/// A chat template is run, so what it does without end is stopped.
#[test]
fn a_chat_template_without_end_is_stopped() {
    // `changes` to a variable that keeps its value from one turn of a loop to the next.
    let many_times = |changes: &str, then: &str| {
        format!(
            "{{% set ns = namespace(x='12345678', y=[1], z=[1]) %}}{{% for a in range(40) %}}{changes}\
             {{% endfor %}}{{{{ {then} }}}}"
        )
    };
    let endless = "does not come to an end";
    let too_much = "takes too much memory, or puts values into values without end";
    let templates = [
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}".to_owned(), "recursion limit"),
        (many_times("{% for b in range(99999) %}{{ b }}{% endfor %}", "1"), "fuel"),
        (many_times("{% set ns.x = ns.x ~ ns.x %}", "ns.x"), "fuel"),
        (many_times("{% set ns.y = [ns.y, ns.y] %}{% set ns.z = [ns.z, ns.z] %}", "ns.y == ns.z"), endless),
        ("{{ 'x' * 1000000000 }}".to_owned(), "fuel"),
        ("{{ '{:1000000000}'.format(1) }}".to_owned(), too_much),
        ("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}".to_owned(), too_much),
        (
            "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns == ns.x[0] }}{{ ns ~ '' }}".to_owned(),
            too_much,
        ),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("template.gguf");
    for (template, says) in templates {
        let mut contents = shapes::tiny_llama().contents().unwrap();
        set(&mut contents, "tokenizer.chat_template", text(&template));
        contents.write(&path, Data::Sparse).unwrap();
        let started = Instant::now();
        let run = ["run", path.to_str().unwrap(), "--chat", "--prompt", "a", "-n", "1"];
        let output = programs::ramforge().unwrap().args(run).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{template}: {said}");
        for words in [says, "tokenizer.chat_template", "template.gguf", "leave out --chat"] {
            assert!(said.contains(words), "{template}: {words} is not in {said}");
        }
        // One without end takes all the time there is.
        assert!(started.elapsed() < Duration::from_secs(20), "{template}: {:?}", started.elapsed());
    }
}

#[test]
fn a_file_cut_at_fifty_places_is_refused() {
    let good = shapes::tiny_gptneox().contents().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.gguf");
    let whole = good.write(&path, Data::Sparse).unwrap();
    let header = good.header().len() as u64;
    let places = (0..25)
        .map(|place| place * header / 25)
        .chain((0..25).map(|place| header + place * (whole - header) / 25));
    for place in places {
        write(
            &path,
            &good,
            &bytes(move |header, total| {
                header.truncate(place as usize);
                *total = place;
            }),
        );
        refusal(&path);
    }
}

#[test]
fn generated_models_are_valid_whole_and_in_shards() {
    let folder = tempfile::tempdir().unwrap();
    for spec in [shapes::tiny_llama(), shapes::tiny_qwen2(), shapes::tiny_gptneox(), shapes::tiny_moe()] {
        let contents = spec.contents().unwrap();
        let path = folder.path().join("whole.gguf");
        contents.write(&path, Data::Sparse).unwrap();
        assert_eq!(Model::open(&path).unwrap().tensor_bytes(), contents.tensor_bytes());
        let shards = contents.write_shards(&folder.path().join("split"), 3, Data::Sparse).unwrap();
        assert_eq!(Model::open(&shards[1]).unwrap().tensor_bytes(), contents.tensor_bytes());
    }
}

#[test]
fn shards_that_do_not_go_together_are_refused() {
    let good = shapes::tiny_moe().contents().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let split = |spoil: &dyn Fn(usize, &mut Contents)| {
        for (number, mut shard) in good.split(3).into_iter().enumerate() {
            spoil(number, &mut shard);
            shard
                .write(&folder.join(format!("split-{:05}-of-00003.gguf", number + 1)), Data::Sparse)
                .unwrap();
        }
    };
    let refused = |shard: usize, says: &str| {
        for given in [folder.join("split-00001-of-00003.gguf"), folder.join("split-00003-of-00003.gguf")] {
            let error = Model::open(&given).map(|model| model.tensor_count()).unwrap_err().to_string();
            assert!(
                error.contains(&format!("split-{shard:05}-of-00003.gguf")) && error.contains(says),
                "{error}"
            );
        }
    };
    for (key, value, says) in [
        ("split.no", Value::U32(1), "split.no is u32, expected u16"),
        ("split.no", Value::I32(1), "split.no is i32, expected u16"),
        ("split.no", Value::U16(0), "by its name this is shard 2"),
        ("split.no", Value::U16(2), "by its name this is shard 2"),
        ("split.count", Value::U16(2), "the other shards say 3"),
        ("split.count", Value::I32(3), "split.count is i32, expected u16"),
    ] {
        split(&|number, shard| {
            if number == 1 {
                set(shard, key, value.clone());
            }
        });
        refused(2, says);
    }
    for (value, says) in [
        (Value::U16(51), "split.tensors.count is u16, expected i32"),
        (Value::I32(50), "the shards together have 51 tensors"),
        (Value::I32(-1), "the shards together have 51 tensors"),
    ] {
        split(&|_, shard| set(shard, "split.tensors.count", value.clone()));
        refused(1, says);
    }
    for number in 1..3 {
        split(&|this, shard| {
            if this == number {
                shard.tensors[0] = TensorInfo {
                    name: "token_embd.weight".into(),
                    dimensions: vec![32],
                    kind: TensorType::F32,
                };
            }
        });
        refused(number + 1, "is in another shard too");
    }
    split(&|_, _| {});
    fs::remove_file(folder.join("split-00002-of-00003.gguf")).unwrap();
    refused(2, "is missing");
}
