//! Tokenizer metadata for generated models: a byte-level BPE vocabulary of any size, or SmolLM2's own.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use crate::gguf_reader::Header;
use crate::gguf_writer::Value;

/// Where a generated model's tokenizer comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Tokenizer {
    /// A made-up vocabulary with `pre` as its pre-tokenizer, one that llama.cpp knows.
    Synthetic {
        /// `tokenizer.ggml.pre`.
        pre: &'static str,
    },
    /// Tokens, merges and special tokens of the real SmolLM2, which is fetched for it.
    SmolLm2,
}

/// The control tokens a synthetic vocabulary starts with: unknown and padding, start and end of a turn.
const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// The turns of a chat between those.
const CHAT_TEMPLATE: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
    {{ message.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

const NORMAL: i32 = 1;
const CONTROL_TYPE: i32 = 3;
const UNUSED: i32 = 5;

/// The fewest entries a synthetic vocabulary can have: the control tokens and one token a byte.
pub const SMALLEST_SYNTHETIC: usize = CONTROL.len() + 256;

/// The metadata of a synthetic byte-level BPE vocabulary of `size` entries.
///
/// After the control and byte tokens come the words over the letters a to z, with or without a space
/// before them, shortest first: each is the merge of the word without its last letter and that letter, so
/// every token can be reached and no two are alike.
///
/// # Panics
/// If `size` is under [`SMALLEST_SYNTHETIC`].
pub fn synthetic(size: usize, pre: &str) -> Vec<(String, Value)> {
    assert!(size >= SMALLEST_SYNTHETIC, "a vocabulary of {size} has no room for every byte");
    let mut tokens: Vec<String> = CONTROL.iter().map(|&token| token.to_owned()).collect();
    tokens.extend((0..=255).map(|byte| byte_symbol(byte).to_string()));

    let mut merges = Vec::with_capacity(size - tokens.len());
    let space = byte_symbol(b' ').to_string();
    let mut stems: VecDeque<String> = [space].into_iter().chain(('a'..='z').map(String::from)).collect();
    while tokens.len() < size {
        let stem = stems.pop_front().expect("every stem adds 26 more");
        for letter in ('a'..='z').take(size - tokens.len()) {
            let token = format!("{stem}{letter}");
            merges.push(format!("{stem} {letter}"));
            stems.push_back(token.clone());
            tokens.push(token);
        }
    }

    let types = (0..size).map(|index| if index < CONTROL.len() { CONTROL_TYPE } else { NORMAL });
    vec![
        entry("model", Value::String("gpt2".to_owned())),
        entry("pre", Value::String(pre.to_owned())),
        entry("tokens", Value::strings(tokens)),
        entry("token_type", Value::i32s(types)),
        entry("merges", Value::strings(merges)),
        entry("bos_token_id", Value::U32(1)),
        entry("eos_token_id", Value::U32(2)),
        entry("unknown_token_id", Value::U32(0)),
        entry("padding_token_id", Value::U32(0)),
        entry("add_bos_token", Value::Bool(false)),
        ("tokenizer.chat_template".to_owned(), Value::String(CHAT_TEMPLATE.to_owned())),
    ]
}

/// The tokenizer metadata of the GGUF file at `path`, with unused entries added up to `size`.
///
/// # Errors
/// Whatever reading the file gives, and one without a vocabulary or with one larger than `size`.
pub fn copied(path: &Path, size: usize) -> io::Result<Vec<(String, Value)>> {
    let header = Header::read(path)?;
    let mut metadata: Vec<_> =
        header.metadata.into_iter().filter(|(key, _)| key.starts_with("tokenizer.")).collect();
    let array = |metadata: &mut Vec<(String, Value)>, name: &str| {
        let key = format!("tokenizer.ggml.{name}");
        match metadata.iter().position(|(found, _)| *found == key).map(|index| metadata.remove(index).1) {
            Some(Value::Array(_, values)) if values.len() <= size => Ok(values),
            Some(Value::Array(..)) => {
                Err(io::Error::other(format!("{key} has more than {size} entries in {}", path.display())))
            }
            _ => Err(io::Error::other(format!("no {key} in {}", path.display()))),
        }
    };
    let mut tokens = array(&mut metadata, "tokens")?;
    let mut types = array(&mut metadata, "token_type")?;
    tokens.extend((tokens.len()..size).map(|index| Value::String(format!("<|unused_{index}|>"))));
    types.resize(size, Value::I32(UNUSED));
    metadata.push(entry("tokens", Value::Array(Value::STRING_ID, tokens)));
    metadata.push(entry("token_type", Value::Array(Value::I32_ID, types)));
    Ok(metadata)
}

fn entry(name: &str, value: Value) -> (String, Value) {
    (format!("tokenizer.ggml.{name}"), value)
}

/// The character that stands for `byte` in GPT-2's vocabularies: itself where it is printable in Latin-1,
/// else one from U+0100 on, counted over the bytes that are not.
fn byte_symbol(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        char::from(byte)
    } else {
        let before = (0..byte).filter(|&other| !printable(other)).count();
        char::from_u32(0x100 + before as u32).expect("68 code points from U+0100 on are characters")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn strings<'a>(metadata: &'a [(String, Value)], name: &str) -> Vec<&'a str> {
        let key = format!("tokenizer.ggml.{name}");
        let (_, Value::Array(_, values)) = metadata.iter().find(|(found, _)| *found == key).unwrap() else {
            panic!("{key} is no array")
        };
        let text = |value: &'a Value| if let Value::String(text) = value { text.as_str() } else { panic!() };
        values.iter().map(text).collect()
    }

    #[test]
    fn bytes_have_the_symbols_that_gpt2_gave_them() {
        assert_eq!(byte_symbol(b'a'), 'a');
        assert_eq!(byte_symbol(b' '), 'Ġ');
        assert_eq!(byte_symbol(b'\n'), 'Ċ');
        assert_eq!(byte_symbol(0), 'Ā');
        assert_eq!(byte_symbol(0x7f), 'ġ');
        assert_eq!(byte_symbol(0xad), 'Ń');
        assert_eq!(byte_symbol(0xff), 'ÿ');
    }

    #[test]
    fn a_synthetic_vocabulary_has_the_asked_size_no_duplicates_and_merges_of_its_own_tokens() {
        for size in [SMALLEST_SYNTHETIC, 300, 1024, 32_000] {
            let metadata = synthetic(size, "gpt-2");
            let tokens = strings(&metadata, "tokens");
            let known: HashSet<_> = tokens.iter().copied().collect();
            assert_eq!((tokens.len(), known.len()), (size, size));
            let merges = strings(&metadata, "merges");
            assert_eq!(merges.len(), size - SMALLEST_SYNTHETIC);
            for merge in merges {
                let (left, right) = merge.split_once(' ').unwrap();
                assert!(known.contains(left) && known.contains(right), "{merge}");
                assert!(known.contains(format!("{left}{right}").as_str()), "{merge}");
            }
        }
    }
}
