//! Tokens to decode in one call.

use forge_sys as sys;

use crate::error::{Error, Result};
use crate::vocab::Token;

/// A sequence's number; each has its own history in the context.
pub type SequenceId = u32;

/// Tokens with their positions, sequences and whether their logits are wanted. The memory for `capacity`
/// tokens of up to `sequences` sequences each is allocated once, and [`Batch::clear`] keeps it.
#[derive(Debug)]
pub struct Batch {
    capacity: usize,
    sequences: usize,
    tokens: Vec<sys::llama_token>,
    positions: Vec<sys::llama_pos>,
    sequence_counts: Vec<i32>,
    /// `sequences` slots a token, in one piece.
    sequence_ids: Vec<sys::llama_seq_id>,
    outputs: Vec<i8>,
    /// Where each token's slots begin, made anew for each decode.
    pointers: Vec<*mut sys::llama_seq_id>,
}

// SAFETY: the raw pointers point into `sequence_ids`, which moves with the batch; they are rewritten before
// every use.
unsafe impl Send for Batch {}

impl Batch {
    /// An empty batch for `capacity` tokens that belong to at most `sequences` sequences each.
    pub fn new(capacity: usize, sequences: usize) -> Self {
        let sequences = sequences.clamp(1, MAX_SEQUENCES);
        Self {
            capacity,
            sequences,
            tokens: Vec::with_capacity(capacity),
            positions: Vec::with_capacity(capacity),
            sequence_counts: Vec::with_capacity(capacity),
            sequence_ids: Vec::with_capacity(capacity * sequences),
            outputs: Vec::with_capacity(capacity),
            pointers: Vec::with_capacity(capacity),
        }
    }

    /// Adds a token at `position` of each of `sequences`; `output` asks for its logits.
    ///
    /// # Errors
    /// When the batch is full, no or too many sequences are named, or a number is too large.
    pub fn push(
        &mut self,
        token: Token,
        position: u32,
        sequences: &[SequenceId],
        output: bool,
    ) -> Result<()> {
        if self.tokens.len() == self.capacity {
            return Err(Error::limit(format!("the batch is full: it holds {} tokens", self.capacity)));
        }
        if sequences.is_empty() || sequences.len() > self.sequences {
            return Err(Error::limit(format!(
                "a token belongs to 1 to {} sequences, not {}",
                self.sequences,
                sequences.len()
            )));
        }
        let position =
            i32::try_from(position).map_err(|_| Error::limit(format!("position {position} is too large")))?;
        let mut ids = [0_i32; MAX_SEQUENCES];
        for (id, &sequence) in ids.iter_mut().zip(sequences) {
            *id = i32::try_from(sequence)
                .map_err(|_| Error::limit(format!("sequence {sequence} is too large")))?;
        }
        let start = self.sequence_ids.len();
        self.sequence_ids.extend_from_slice(&ids[..sequences.len()]);
        self.sequence_ids.resize(start + self.sequences, 0);
        self.tokens.push(token.0);
        self.positions.push(position);
        self.sequence_counts.push(i32::try_from(sequences.len()).unwrap_or(i32::MAX));
        self.outputs.push(i8::from(output));
        Ok(())
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.sequence_counts.clear();
        self.sequence_ids.clear();
        self.outputs.clear();
    }

    /// Number of tokens.
    pub const fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is no token.
    pub const fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Number of tokens whose logits are wanted.
    pub fn output_count(&self) -> usize {
        self.outputs.iter().filter(|&&output| output != 0).count()
    }

    pub(crate) fn outputs(&self) -> &[i8] {
        &self.outputs
    }

    /// Whether a token belongs to more than one sequence.
    pub(crate) fn shares_tokens(&self) -> bool {
        self.sequence_counts.iter().any(|&count| count > 1)
    }

    /// The largest sequence number in use.
    pub(crate) fn largest_sequence(&self) -> Option<u32> {
        self.sequence_ids.iter().copied().max().map(i32::cast_unsigned)
    }

    /// The native view of the batch, valid until it is changed.
    pub(crate) fn native(&mut self) -> sys::llama_batch {
        self.pointers.clear();
        self.pointers.extend(self.sequence_ids.chunks_mut(self.sequences).map(<[i32]>::as_mut_ptr));
        sys::llama_batch {
            n_tokens: i32::try_from(self.tokens.len()).unwrap_or(i32::MAX),
            token: self.tokens.as_mut_ptr(),
            embd: std::ptr::null_mut(),
            pos: self.positions.as_mut_ptr(),
            n_seq_id: self.sequence_counts.as_mut_ptr(),
            seq_id: self.pointers.as_mut_ptr(),
            logits: self.outputs.as_mut_ptr(),
        }
    }
}

/// Most sequences a context can have (LLAMA_MAX_SEQ).
const MAX_SEQUENCES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refilling_reuses_the_memory() {
        let mut batch = Batch::new(4, 2);
        let fill = |batch: &mut Batch| {
            for i in 0..4 {
                batch.push(Token(i), i.cast_unsigned(), &[0, 1], i == 3).unwrap();
            }
            let native = batch.native();
            (native.token.addr(), native.pos.addr(), native.seq_id.addr(), native.logits.addr())
        };
        let before = fill(&mut batch);
        batch.clear();
        assert!(batch.is_empty());
        assert_eq!(fill(&mut batch), before);
        assert_eq!(batch.output_count(), 1);
    }

    #[test]
    fn limits_are_checked() {
        let mut batch = Batch::new(1, 1);
        assert!(batch.push(Token(1), 0, &[], true).is_err());
        assert!(batch.push(Token(1), 0, &[0, 1], true).is_err());
        assert!(batch.push(Token(1), u32::MAX, &[0], true).is_err());
        assert!(batch.push(Token(1), 0, &[u32::MAX], true).is_err());
        assert!(batch.is_empty());
        batch.push(Token(1), 0, &[0], true).unwrap();
        assert!(batch.push(Token(1), 1, &[0], true).is_err());
    }
}
