//! The tokenizer and its vocabulary.

use std::collections::HashSet;

use super::{Error, Facts};
use crate::gguf::{
    header::Metadata,
    text::printable,
    value::{Array, Strings, Value, ValueType},
};

/// The token ids that a file can name. The spelling of `seperator` is the format's.
const SPECIAL_TOKENS: &[&str] = &[
    "bos",
    "eos",
    "eot",
    "eom",
    "unknown",
    "seperator",
    "padding",
    "mask",
    "fim_pre",
    "fim_suf",
    "fim_mid",
    "fim_pad",
    "fim_rep",
    "fim_sep",
    "prefix",
    "suffix",
    "middle",
];

/// What kind of tokenizer a vocabulary is made for, and the tokens that it puts around a text where the file
/// names none.
struct Tokenizer {
    kind: Kind,
    bos: Option<u32>,
    eos: Option<u32>,
    adds_bos: bool,
    adds_eos: bool,
}

#[derive(PartialEq)]
enum Kind {
    SentencePiece,
    WordPiece,
    BytePair,
    Unigram,
    Rwkv,
    Other,
}

impl Tokenizer {
    /// The tokenizer that `tokenizer.ggml.model` names; `Ok(None)` for a model without a vocabulary.
    fn named(name: &[u8]) -> Option<Self> {
        let new = |kind, bos, eos, adds_bos, adds_eos| Some(Self { kind, bos, eos, adds_bos, adds_eos });
        match name {
            b"llama" => new(Kind::SentencePiece, Some(1), Some(2), true, false),
            b"bert" => new(Kind::WordPiece, Some(101), None, true, false),
            b"gpt2" | b"hybriddna" | b"whitespace" => new(Kind::BytePair, Some(11), Some(11), false, false),
            b"gemma4" => new(Kind::BytePair, None, None, true, false),
            b"t5" => new(Kind::Unigram, None, Some(1), false, true),
            b"plamo2" => new(Kind::Other, Some(1), Some(2), false, false),
            b"rwkv" => new(Kind::Rwkv, None, None, false, false),
            b"test" => new(Kind::Other, None, None, false, false),
            _ => None,
        }
    }
}

/// The tokenizer is known, its tables have the lengths and types that the native code reads them with, and
/// the vocabulary has what the tokenizer relies on.
pub(super) fn tokenizer(facts: &Facts) -> Result<(), Error> {
    if facts.model.hyperparameters().is_none() {
        return Ok(());
    }
    let metadata = facts.metadata;
    let key = "tokenizer.ggml.model";
    let name = metadata.string(key)?.ok_or_else(|| missing(key, ""))?;
    let pre = metadata.string("tokenizer.ggml.pre")?.unwrap_or_default();
    if matches!(name, b"no_vocab" | b"none") {
        return Ok(());
    }
    let tokenizer = Tokenizer::named(name).ok_or_else(|| Error::KeyValue {
        key: key.into(),
        value: format!("\"{}\"", printable(name)),
        rule: "the native code has no such tokenizer".into(),
    })?;
    let tokens =
        metadata.strings("tokenizer.ggml.tokens")?.ok_or_else(|| missing("tokenizer.ggml.tokens", ""))?;
    tables(metadata, tokens.len())?;
    match tokenizer.kind {
        Kind::BytePair => merges(metadata, name, pre)?,
        Kind::SentencePiece => byte_tokens(tokens)?,
        Kind::Unigram => character_map(metadata)?,
        Kind::Rwkv => newline_token(tokens)?,
        Kind::WordPiece => no_byte_tokens(metadata, tokens.len())?,
        Kind::Other => {}
    }
    if tokens.is_empty() {
        return Err(Error::KeyValue {
            key: "tokenizer.ggml.tokens".into(),
            value: "an array of 0 strings".into(),
            rule: "a vocabulary must have at least one token".into(),
        });
    }
    unique(tokens)?;
    special_tokens(metadata, &tokenizer, tokens.len())
}

fn missing(key: &str, why: &str) -> Error {
    Error::MissingKey { key: key.to_owned(), why: why.to_owned() }
}

/// The scores and types of the tokens: the native code reads as many as there are tokens.
fn tables(metadata: &Metadata, tokens: usize) -> Result<(), Error> {
    let table = |key: &str, expected: &str, types: &[ValueType]| -> Result<(), Error> {
        let length = metadata.typed(key, expected, |value| match value {
            Value::Array(array) if types.contains(&array.element_type()) => Some(array.len()),
            _ => None,
        })?;
        match length {
            Some(length) if length < tokens => Err(Error::KeyValue {
                key: key.to_owned(),
                value: format!("an array of {length}"),
                rule: format!("there are {tokens} tokens, so it must not have fewer elements"),
            }),
            _ => Ok(()),
        }
    };
    table("tokenizer.ggml.scores", "array of f32 or i32", &[ValueType::F32, ValueType::I32])?;
    table("tokenizer.ggml.token_type", "array of i32", &[ValueType::I32])
}

fn merges(metadata: &Metadata, name: &[u8], pre: &[u8]) -> Result<(), Error> {
    let key = "tokenizer.ggml.merges";
    if metadata.strings(key)?.is_none() && (pre != b"kimi-k2" || name == b"gemma4") {
        return Err(missing(key, ", but the tokenizer is byte-pair encoding"));
    }
    Ok(())
}

/// A text with a character that is no token is spelled in bytes, and the native code throws where it cannot.
fn byte_tokens(tokens: &Strings) -> Result<(), Error> {
    let is_byte = |token: &[u8]| token.len() == 6 && token.starts_with(b"<0x") && token.ends_with(b">");
    if tokens.iter().any(is_byte) {
        return Ok(());
    }
    Err(Error::KeyValue {
        key: "tokenizer.ggml.tokens".into(),
        value: format!("an array of {} strings", tokens.len()),
        rule: "a SentencePiece vocabulary must have the byte tokens <0x00> to <0xFF>, and it has none".into(),
    })
}

/// The native code aborts where a WordPiece vocabulary has a token of the type that stands for a byte.
fn no_byte_tokens(metadata: &Metadata, tokens: usize) -> Result<(), Error> {
    const BYTE: [u8; 4] = 6_i32.to_le_bytes();
    let key = "tokenizer.ggml.token_type";
    let Some(Value::Array(Array::Numbers { bytes, .. })) = metadata.get(key) else { return Ok(()) };
    let (types, _) = bytes.as_chunks::<4>();
    // There may be more types than tokens.
    match types.iter().take(tokens).position(|kind| *kind == BYTE) {
        Some(index) => Err(Error::KeyValue {
            key: key.into(),
            value: format!("6 at {index}"),
            rule: "a WordPiece vocabulary must not have byte tokens".into(),
        }),
        None => Ok(()),
    }
}

/// A table of character replacements begins with the size of its first part.
fn character_map(metadata: &Metadata) -> Result<(), Error> {
    let key = "tokenizer.ggml.precompiled_charsmap";
    let map = metadata.typed(key, "array of i8 or u8", |value| match value {
        Value::Array(Array::Numbers { element: ValueType::I8 | ValueType::U8, bytes }) => Some(bytes),
        _ => None,
    })?;
    let Some(map) = map else { return Ok(()) };
    let fits =
        map.first_chunk().is_some_and(|size| u64::from(u32::from_le_bytes(*size)) + 4 < map.len() as u64);
    if fits {
        return Ok(());
    }
    Err(Error::KeyValue {
        key: key.into(),
        value: format!("an array of {} bytes", map.len()),
        rule: "it must hold as many bytes as its first four announce, and more".into(),
    })
}

/// While loading, the native tokenizer looks for the token of a line feed, and never ends when there are
/// tokens that begin with one but none that is one.
fn newline_token(tokens: &Strings) -> Result<(), Error> {
    let begins =
        |token: &[u8]| token.starts_with(b"\n") || token.starts_with(br"\n") || token.starts_with(br"\x0a");
    let is = |token: &[u8]| matches!(token, b"\n" | br"\n" | br"\x0a");
    if tokens.iter().any(is) || !tokens.iter().any(begins) {
        return Ok(());
    }
    Err(Error::KeyValue {
        key: "tokenizer.ggml.tokens".into(),
        value: format!("an array of {} strings", tokens.len()),
        rule: "an RWKV vocabulary must have a token for the line feed alone".into(),
    })
}

/// The native code asserts that no two tokens are the same, as C strings: up to their first zero byte, with
/// an empty one replaced by a name made of its number.
fn unique(tokens: &Strings) -> Result<(), Error> {
    let c_string = |token: &'_ [u8]| token.iter().position(|&byte| byte == 0).unwrap_or(token.len());
    let mut seen = HashSet::with_capacity(tokens.len());
    let mut empty = Vec::new();
    let twice = |second: usize, token: &[u8]| {
        let first = tokens.iter().position(|other| &other[..c_string(other)] == token).unwrap_or(second);
        Error::KeyValue {
            key: "tokenizer.ggml.tokens".into(),
            value: format!("\"{}\" at {first} and at {second}", printable(token)),
            rule: "every token must be unique".into(),
        }
    };
    for (index, token) in tokens.iter().enumerate() {
        let token = &token[..c_string(token)];
        if token.is_empty() {
            empty.push(index);
        } else if !seen.insert(token) {
            return Err(twice(index, token));
        }
    }
    for index in empty {
        let name = format!("[EMPTY_{index}]");
        if seen.contains(name.as_bytes()) {
            return Err(twice(index, name.as_bytes()));
        }
    }
    Ok(())
}

/// Token ids are `u32`, flags are `bool`, and what is put around every text exists.
fn special_tokens(metadata: &Metadata, tokenizer: &Tokenizer, tokens: usize) -> Result<(), Error> {
    let exists = |id: &u32| (*id as usize) < tokens;
    for token in SPECIAL_TOKENS {
        metadata.u32(&format!("tokenizer.ggml.{token}_token_id"))?;
    }
    for flag in ["add_sep_token", "add_space_prefix", "remove_extra_whitespaces"] {
        metadata.bool(&format!("tokenizer.ggml.{flag}"))?;
    }
    let flag = |name: &str, default: bool| -> Result<bool, Error> {
        Ok(metadata.bool(&format!("tokenizer.ggml.add_{name}_token"))?.unwrap_or(default))
    };
    // WordPiece puts the first and the separator around every text, whatever the flags say, and never adds the end.
    let word_piece = tokenizer.kind == Kind::WordPiece;
    let around = [
        ("bos", tokenizer.bos, flag("bos", tokenizer.adds_bos)? || word_piece),
        ("eos", tokenizer.eos, flag("eos", tokenizer.adds_eos)? && !word_piece),
        ("seperator", Some(102), word_piece),
    ];
    for (name, default, added) in around {
        let key = format!("tokenizer.ggml.{name}_token_id");
        // An id outside of the vocabulary is ignored in favour of the default.
        let named = metadata.u32(&key)?;
        let id = named.filter(exists).or(default.filter(exists));
        if !added || id.is_some() {
            continue;
        }
        return Err(match named {
            Some(id) => Error::KeyValue {
                key,
                value: id.to_string(),
                rule: format!("the tokenizer adds this token, but the vocabulary has only {tokens} tokens"),
            },
            None => missing(&key, ", but the tokenizer adds this token to every text"),
        });
    }
    Ok(())
}
