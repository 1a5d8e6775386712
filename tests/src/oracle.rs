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
    /// What was recorded for the real SmolLM2, [`crate::real::smollm2`].
    ///
    /// # Errors
    /// If a recorded file cannot be read.
    pub fn smollm2() -> io::Result<Self> {
        Self::read("smollm2")
    }

    /// What was recorded for [`crate::shapes::pythia_70m_shape`].
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
