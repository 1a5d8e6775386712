//! What the oracle in `oracle/` computed: prompts, and the logits that follow them.

use std::fs;
use std::io;
use std::path::Path;

use half::f16;

/// The recorded prompts of one model.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The prompts, in order.
    pub prompts: Vec<RecordedPrompt>,
}

/// A prompt and the logits after its last token.
#[derive(Clone, Debug)]
pub struct RecordedPrompt {
    /// The text, where the model has a tokenizer that makes sense of it.
    pub text: Option<String>,
    /// The tokens.
    pub tokens: Vec<i32>,
    /// The token with the highest logit.
    pub top_token: i32,
    /// One logit for each entry of the vocabulary, rounded to 16 bits.
    pub logits: Vec<f32>,
}

#[derive(serde::Deserialize)]
struct File {
    prompts: Vec<Prompt>,
}

#[derive(serde::Deserialize)]
struct Prompt {
    text: Option<String>,
    tokens: Vec<i32>,
    top_token: i32,
    logits: String,
}

impl Recorded {
    /// SmolLM2 as it is meant to be asked: a question in its chat format, where its logits are far from
    /// zero. llama.cpp's own rounding leaves a cosine of 0.99994 or more on [`crate::real::smollm2`].
    ///
    /// # Errors
    /// If a recorded file cannot be read.
    pub fn smollm2_chat() -> io::Result<Self> {
        Self::read("smollm2-chat")
    }

    /// SmolLM2 on plain text, code and what is hard to tokenize. Here the rounding of the activations by
    /// llama.cpp's quantized kernels costs up to 0.0025 of the cosine; on the F32 copy that
    /// [`crate::cache::f32_copy`] makes, 0.999998 is left.
    ///
    /// # Errors
    /// If a recorded file cannot be read.
    pub fn smollm2_text() -> io::Result<Self> {
        Self::read("smollm2-text")
    }

    /// [`crate::shapes::pythia_70m_shape`] on arbitrary tokens: 0.99991 as it is, 0.9999997 as F32.
    ///
    /// # Errors
    /// If a recorded file cannot be read.
    pub fn pythia_70m_shape() -> io::Result<Self> {
        Self::read("pythia-70m-shape")
    }

    fn read(model: &str) -> io::Result<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("oracle/recorded");
        let file: File = serde_json::from_slice(&fs::read(folder.join(format!("{model}.json")))?)?;
        let read = |prompt: Prompt| {
            let bytes = fs::read(folder.join(prompt.logits))?;
            let (logits, rest) = bytes.as_chunks();
            if !rest.is_empty() {
                return Err(io::Error::other("a file of logits has an odd length"));
            }
            Ok(RecordedPrompt {
                text: prompt.text,
                tokens: prompt.tokens,
                top_token: prompt.top_token,
                logits: logits.iter().map(|&logit| f16::from_le_bytes(logit).to_f32()).collect(),
            })
        };
        Ok(Self { prompts: file.prompts.into_iter().map(read).collect::<io::Result<_>>()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recording_is_whole_and_its_top_token_is_the_one_of_its_logits() {
        for (recorded, vocab) in [
            (Recorded::smollm2_chat(), 49_152),
            (Recorded::smollm2_text(), 49_152),
            (Recorded::pythia_70m_shape(), 50_304),
        ] {
            let recorded = recorded.unwrap();
            assert!(recorded.prompts.len() >= 5);
            for prompt in recorded.prompts {
                assert_eq!(prompt.logits.len(), vocab);
                assert!(prompt.logits.iter().all(|logit| logit.is_finite()));
                let highest = prompt.logits.iter().copied().fold(f32::MIN, f32::max);
                assert_eq!(prompt.logits[prompt.top_token as usize], highest);
                assert!(prompt.tokens.iter().all(|&token| (0..vocab as i32).contains(&token)));
            }
        }
    }
}
