//! The prompt: where it comes from, and what the model reads of it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use forge_core::{Model, Token, Vocab};

use crate::engine::rendering::{self, Conversation};
use crate::engine::{Message, PromptSource, Role, Settings};
use crate::size::readable;
use crate::{Error, Result};

/// The running program, also when its file has been replaced in the meantime.
const OWN_EXECUTABLE: &str = "/proc/self/exe";

/// No context holds a prompt of more bytes; a source without an end would fill the memory.
const MOST_BYTES: u64 = 64 << 20;

/// Reads the prompt's text.
pub fn read(source: &PromptSource, input: &mut dyn Read) -> Result<String> {
    let (from, bytes) = match source {
        PromptSource::Text(text) => return Ok(text.clone()),
        PromptSource::Measured { .. } => return Ok(String::new()),
        PromptSource::File(path) => {
            (path.display().to_string(), File::open(path).and_then(|mut file| read_most(&mut file)))
        }
        PromptSource::StandardInput => ("standard input".to_owned(), read_most(input)),
    };
    let bytes = bytes
        .map_err(|error| Error::failed(format!("cannot read the prompt from {from}")).caused_by(error))?;
    if bytes.len() as u64 > MOST_BYTES {
        let most = readable(MOST_BYTES);
        return Err(Error::failed(format!(
            "the prompt from {from} is longer than {most}, the most there may be"
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::failed(format!("the prompt from {from} is not UTF-8 text: byte {at} begins no character"))
    })
}

/// The bytes of `input`, one more than [`MOST_BYTES`] at most.
fn read_most(input: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The tokens the model reads for `prompt`: at least one.
pub fn tokens(settings: &Settings, model: &Model, prompt: &str) -> Result<Vec<Token>> {
    let vocab = model.vocab();
    if let PromptSource::Measured { tokens, .. } = settings.prompt {
        return Ok(measured_tokens(vocab, tokens));
    }
    let tokens = if settings.chat {
        let (text, has_bos) = conversation(settings, model, prompt)?;
        vocab.encode(&text, !has_bos, true)?
    } else {
        vocab.encode(prompt, true, false)?
    };
    if tokens.is_empty() { Ok(vec![first_token(vocab)?]) } else { Ok(tokens) }
}

/// The conversation as the model's template writes it, and whether it has the model's beginning token already.
fn conversation(settings: &Settings, model: &Model, prompt: &str) -> Result<(String, bool)> {
    let template = model.chat_template().ok_or_else(|| {
        Error::failed("the model has no chat template")
            .hint("leave out --chat to continue the prompt as text")
    })?;
    let mut messages = Vec::new();
    if let Some(system) = &settings.system {
        messages.push(Message { role: Role::System, content: system.clone() });
    }
    messages.push(Message { role: Role::User, content: prompt.to_owned() });
    let vocab = model.vocab();
    let bos = token_text(vocab, vocab.bos())?;
    let eos = token_text(vocab, vocab.eos())?;
    let conversation = Conversation { template, messages, bos, eos };
    let text = rendering::render(Path::new(OWN_EXECUTABLE), &conversation)
        .map_err(|error| settings.files.iter().take(1).fold(error, |error, file| error.in_file(file)))?;
    let bos = conversation.bos;
    let has_bos = !bos.is_empty() && text.starts_with(&bos);
    Ok((text, has_bos))
}

fn token_text(vocab: Vocab<'_>, token: Option<Token>) -> Result<String> {
    let mut bytes = Vec::new();
    if let Some(token) = token {
        vocab.decode(token, true, &mut bytes)?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Tokens from all over the vocabulary: a step that no vocabulary's size divides meets each one.
fn measured_tokens(vocab: Vocab<'_>, count: u32) -> Vec<Token> {
    const STEP: u64 = 2_654_435_761;
    let size = vocab.len().max(1) as u64;
    (1..=u64::from(count.max(1)))
        .filter_map(|place| i32::try_from(place * STEP % size).ok().map(Token))
        .collect()
}

/// An empty prompt continues from the token that begins a text.
fn first_token(vocab: Vocab<'_>) -> Result<Token> {
    vocab.bos().ok_or_else(|| {
        Error::failed("the prompt is empty and the model has no token to begin a text with")
            .hint("give a prompt with --prompt TEXT")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_without_an_end_is_given_up_on() {
        let file = PromptSource::File("/dev/zero".into());
        for source in [PromptSource::StandardInput, file] {
            let error = read(&source, &mut io::repeat(b'y')).unwrap_err();
            assert!(error.to_string().contains("is longer than 64 MiB"), "{error}");
        }
        assert_eq!(read(&PromptSource::StandardInput, &mut &b"a prompt"[..]).unwrap(), "a prompt");
    }
}
