//! The decode loop.

use std::io::{ErrorKind as IoErrorKind, Write};
use std::time::{Duration, Instant};

use forge_core::{Batch, Context, ErrorKind as ForgeErrorKind, Sampler, Token};

use crate::engine::text::Utf8Stream;
use crate::residency::operations::{Failed, Operations};
use crate::{Error, Result};

/// Why generation stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended its text.
    EndOfText,
    /// As many tokens as were asked for.
    MaxTokens,
    /// The context is full.
    ContextFull,
    /// Ctrl-C or SIGTERM.
    Interrupted,
    /// Whoever read the text has closed the pipe.
    OutputClosed,
}

impl StopReason {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::EndOfText => "end-of-text",
            Self::MaxTokens => "max-tokens",
            Self::ContextFull => "context-full",
            Self::Interrupted => "interrupted",
            Self::OutputClosed => "output-closed",
        }
    }
}

/// What was generated.
#[derive(Clone, Debug)]
pub struct Generated {
    /// The tokens, without the one that ended the text.
    pub tokens: Vec<Token>,
    /// Why it stopped.
    pub stop: StopReason,
    /// From the first token to the last.
    pub elapsed: Duration,
    /// The logits that the tokens were chosen from, when they were measured.
    pub logits: Option<LogitsFingerprint>,
}

/// A hash over the bits of logits: FNV-1a, a logit at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogitsFingerprint(u64);

impl Default for LogitsFingerprint {
    fn default() -> Self {
        Self(FNV_OFFSET)
    }
}

impl LogitsFingerprint {
    fn add(&mut self, logits: &[f32]) {
        self.0 = logits.iter().fold(self.0, |hash, logit| fnv(hash, u64::from(logit.to_bits())));
    }

    /// In hexadecimal.
    pub fn text(self) -> String {
        format!("{:016x}", self.0)
    }
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

const fn fnv(hash: u64, value: u64) -> u64 {
    (hash ^ value).wrapping_mul(0x0000_0100_0000_01b3)
}

impl Generated {
    /// Tokens a second after the first, whose logits the prompt gave; `None` below two tokens.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let decoded = self.tokens.len().checked_sub(1).filter(|&count| count > 0)?;
        Some(decoded as f64 / self.elapsed.as_secs_f64())
    }

    /// 64-bit FNV-1a over the token numbers as little-endian 32-bit integers, in hexadecimal: equal for equal
    /// texts.
    pub fn fingerprint(&self) -> String {
        let bytes = self.tokens.iter().flat_map(|token| token.0.to_le_bytes());
        format!("{:016x}", bytes.fold(FNV_OFFSET, |hash, byte| fnv(hash, u64::from(byte))))
    }
}

/// What the loop needs beside the context.
pub struct Request<'run, 'model, 'pages> {
    /// Decodes, and does what there is to do between decodes.
    pub operations: &'run mut Operations<'pages>,
    /// Chooses the tokens.
    pub sampler: &'run mut Sampler<'model>,
    /// Where the text goes.
    pub out: &'run mut dyn Write,
    /// The position of the next token: the number of tokens the prompt has.
    pub position: u32,
    /// The index of the prompt's last token in the batch that was decoded last.
    pub last_output: usize,
    /// Most tokens to generate.
    pub max_tokens: u32,
    /// Go on after a token that ends the text, and take the logits' fingerprint.
    pub measured: bool,
}

/// Generates from where the prompt ended; `on_first` is called when the first token is known, and its time is not
/// the generation's.
pub fn generate(
    context: &mut Context<'_>,
    batch: &mut Batch,
    request: Request<'_, '_, '_>,
    mut on_first: impl FnMut(&mut Context<'_>) -> Result<()>,
) -> Result<Generated> {
    let Request { operations, sampler, out, mut position, mut last_output, max_tokens, measured } = request;
    let vocab = context.model().vocab();
    let mut started = Instant::now();
    let mut text = Utf8Stream::default();
    let mut tokens = Vec::new();
    let mut logits = LogitsFingerprint::default();
    let mut bytes = Vec::new();
    let stop = loop {
        if tokens.len() >= max_tokens as usize {
            break StopReason::MaxTokens;
        }
        if measured {
            logits.add(&context.logits(last_output)?);
        }
        let token = sampler.sample(context, last_output)?;
        if tokens.is_empty() {
            on_first(context)?;
            started = Instant::now();
        }
        if !measured && vocab.ends_generation(token) {
            break StopReason::EndOfText;
        }
        tokens.push(token);
        bytes.clear();
        vocab.decode(token, false, &mut bytes)?;
        if !write(out, &text.push(&bytes))? {
            break StopReason::OutputClosed;
        }
        if tokens.len() >= max_tokens as usize {
            break StopReason::MaxTokens;
        }
        if position >= context.sizes().sequence_tokens {
            break StopReason::ContextFull;
        }
        batch.clear();
        batch.push(token, position, &[0], true)?;
        match operations.decode(context, batch) {
            Ok(()) => {}
            Err(Failed::Decode(error)) if error.kind() == ForgeErrorKind::Cancelled => {
                break StopReason::Interrupted;
            }
            Err(failed) => return Err(failed.into()),
        }
        position += 1;
        last_output = 0;
    };
    let elapsed = started.elapsed();
    if stop != StopReason::OutputClosed {
        write(out, &text.finish())?;
    }
    Ok(Generated { tokens, stop, elapsed, logits: measured.then_some(logits) })
}

/// Writes text at once; `false` means that nobody reads any more.
fn write(out: &mut dyn Write, text: &str) -> Result<bool> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == IoErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Error::failed("cannot write the text to standard output").caused_by(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generated(tokens: &[i32], elapsed: Duration) -> Generated {
        let tokens = tokens.iter().copied().map(Token).collect();
        Generated { tokens, stop: StopReason::MaxTokens, elapsed, logits: None }
    }

    #[test]
    fn the_fingerprint_is_fnv_1a() {
        // The published test vector for the empty string, and a value worked out with another program.
        assert_eq!(generated(&[], Duration::ZERO).fingerprint(), "cbf29ce484222325");
        assert_eq!(generated(&[0x6162_6364], Duration::ZERO).fingerprint(), published(b"dcba"));
    }

    #[test]
    fn one_bit_of_one_logit_makes_another_fingerprint() {
        let of = |logits: &[f32]| {
            let mut fingerprint = LogitsFingerprint::default();
            fingerprint.add(logits);
            fingerprint.text()
        };
        assert_eq!(of(&[1.0, 2.0]), of(&[1.0, 2.0]));
        assert_ne!(of(&[1.0, 2.0]), of(&[1.0, f32::from_bits(2.0_f32.to_bits() + 1)]));
        assert_ne!(of(&[0.0]), of(&[-0.0]));
    }

    fn published(bytes: &[u8]) -> String {
        let mut hash = 14_695_981_039_346_656_037_u128;
        for &byte in bytes {
            hash = (hash ^ u128::from(byte)) * 1_099_511_628_211 % (1 << 64);
        }
        format!("{hash:016x}")
    }

    #[test]
    fn the_rate_counts_decoded_tokens_only() {
        assert_eq!(generated(&[1], Duration::from_secs(1)).tokens_per_second(), None);
        assert_eq!(generated(&[1, 2, 3], Duration::from_secs(1)).tokens_per_second(), Some(2.0));
    }
}
