//! The state of a context: what it knows of its sequences' tokens, in a KV cache or a recurrent memory.

use std::ffi::c_int;

use forge_sys as sys;

use crate::batch::SequenceId;
use crate::context::Context;
use crate::error::{Error, Result};

impl Context<'_> {
    /// Forgets the tokens of `sequence` from `position` on. Returns whether the model's memory could do it:
    /// recurrent models cannot forget a part.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`](crate::ErrorKind::Limit) when the sequence does not exist.
    pub fn forget_from(&mut self, sequence: SequenceId, position: u32) -> Result<bool> {
        if sequence >= self.sizes().sequences {
            return Err(Error::limit(format!(
                "sequence {sequence} does not exist: the context was made for {}",
                self.sizes().sequences
            )));
        }
        let position = c_int::try_from(position)
            .map_err(|_| Error::limit(format!("position {position} is too large")))?;
        // SAFETY: the context is alive, the sequence exists.
        Ok(unsafe {
            sys::llama_memory_seq_rm(
                sys::llama_get_memory(self.as_ptr()),
                sequence.cast_signed(),
                position,
                -1,
            )
        })
    }

    /// Forgets every sequence.
    pub fn clear(&mut self) {
        // SAFETY: the context is alive; a null memory is handled by the function.
        unsafe { sys::llama_memory_clear(sys::llama_get_memory(self.as_ptr()), true) };
    }
}
