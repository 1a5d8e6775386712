//! The prompt: where it comes from, and what the model reads of it.

use std::io::Read;
use std::path::Path;

use forge_core::{Model, Token, Vocab};

use crate::engine::rendering::{self, Conversation};
use crate::engine::{Message, PromptSource, Role, Settings};
use crate::{Error, Result};

/// The running program, also when its file has been replaced in the meantime.
const OWN_EXECUTABLE: &str = "/proc/self/exe";

/// Reads the prompt's text.
pub fn read(source: &PromptSource, input: &mut dyn Read) -> Result<String> {
    let mut bytes = Vec::new();
    let from = match source {
        PromptSource::Text(text) => return Ok(text.clone()),
        PromptSource::Measured { .. } => return Ok(String::new()),
        PromptSource::File(path) => {
            bytes = std::fs::read(path).map_err(|error| {
                Error::failed(format!("cannot read the prompt from {}", path.display())).caused_by(error)
            })?;
            path.display().to_string()
        }
        PromptSource::StandardInput => {
            input.read_to_end(&mut bytes).map_err(|error| {
                Error::failed("cannot read the prompt from standard input").caused_by(error)
            })?;
            "standard input".to_owned()
        }
    };
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::failed(format!("the prompt from {from} is not UTF-8 text: byte {at} begins no character"))
    })
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
