//! Text to tokens and back.

use std::ffi::c_int;
use std::marker::PhantomData;

use forge_sys as sys;

use crate::error::{Error, Result, native_call};
use crate::model::Model;

/// A token's number in its model's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub i32);

/// A model's vocabulary.
#[derive(Clone, Copy, Debug)]
pub struct Vocab<'model> {
    raw: *const sys::llama_vocab,
    _model: PhantomData<&'model Model>,
}

impl<'model> Vocab<'model> {
    pub(crate) fn of(model: &'model Model) -> Self {
        // SAFETY: the model is alive, and owns the vocabulary for as long as the lifetime says.
        Self { raw: unsafe { sys::llama_model_get_vocab(model.as_ptr()) }, _model: PhantomData }
    }

    pub(crate) const fn as_ptr(&self) -> *const sys::llama_vocab {
        self.raw
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        // SAFETY: the vocabulary is alive.
        usize::try_from(unsafe { sys::llama_vocab_n_tokens(self.raw) }).unwrap_or(0)
    }

    /// Whether the model has no vocabulary at all.
    pub fn is_empty(&self) -> bool {
        // SAFETY: the vocabulary is alive.
        self.len() == 0 || unsafe { sys::llama_vocab_type(self.raw) } == sys::LLAMA_VOCAB_TYPE_NONE
    }

    /// The tokens of `text`. `add_special` adds the tokens the model wants around a text (such as its
    /// beginning token); `parse_special` reads special tokens written in the text, which text from outside
    /// should not be allowed.
    ///
    /// # Errors
    /// When the model has no tokenizer, lacks the special token it asks for, or its vocabulary cannot spell
    /// the text.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<Token>> {
        if self.is_empty() {
            return Err(Error::limit("the model has no tokenizer: use one that has"));
        }
        let length = i32::try_from(text.len())
            .ok()
            // A text never has more tokens than bytes, plus what `add_special` adds.
            .filter(|&length| length < i32::MAX - 16)
            .ok_or_else(|| Error::limit(format!("a text of {} bytes is too long to tokenize", text.len())))?;
        if add_special {
            self.require_special_tokens()?;
        }
        let mut tokens = vec![0; text.len() + 16];
        let mut count = 0;
        native_call(
            || "cannot tokenize the text".into(),
            // SAFETY: both buffers are passed with their lengths and outlive the call.
            |error| unsafe {
                sys::forge_tokenize(
                    self.raw,
                    text.as_ptr().cast(),
                    length,
                    tokens.as_mut_ptr(),
                    length + 16,
                    add_special,
                    parse_special,
                    &raw mut count,
                    error,
                )
            },
        )?;
        let count = usize::try_from(count)
            .map_err(|_| Error::limit("the tokenizer made more tokens than the text has bytes"))?;
        tokens.truncate(count);
        Ok(tokens.into_iter().map(Token).collect())
    }

    /// The tokenizer asserts that a special token it is told to add exists.
    fn require_special_tokens(&self) -> Result<()> {
        // SAFETY: the vocabulary is alive.
        let (add_bos, add_eos) =
            unsafe { (sys::llama_vocab_get_add_bos(self.raw), sys::llama_vocab_get_add_eos(self.raw)) };
        if add_bos && self.bos().is_none() {
            return Err(Error::limit("the model asks for a beginning token and has none"));
        }
        if add_eos && self.eos().is_none() {
            return Err(Error::limit("the model asks for an end token and has none"));
        }
        Ok(())
    }

    /// Appends the bytes of `token` to `out`. They need not be whole characters. `special` writes special
    /// tokens as their text; otherwise they are empty.
    ///
    /// # Errors
    /// When the token is not in the vocabulary.
    pub fn decode(&self, token: Token, special: bool, out: &mut Vec<u8>) -> Result<()> {
        self.check(token)?;
        let mut buffer = [0_u8; 64];
        let needed = self.piece(token, special, &mut buffer)?;
        match usize::try_from(needed) {
            Ok(length) => out.extend_from_slice(&buffer[..length]),
            Err(_) => {
                let mut long = vec![0_u8; needed.unsigned_abs() as usize];
                let length = usize::try_from(self.piece(token, special, &mut long)?)
                    .map_err(|_| Error::limit(format!("token {} has no fixed length", token.0)))?;
                out.extend_from_slice(&long[..length]);
            }
        }
        Ok(())
    }

    fn piece(&self, token: Token, special: bool, buffer: &mut [u8]) -> Result<c_int> {
        let mut result = 0;
        native_call(
            || format!("cannot decode token {}", token.0),
            // SAFETY: the buffer is passed with its length; the token was checked against the vocabulary.
            |error| unsafe {
                sys::forge_token_to_piece(
                    self.raw,
                    token.0,
                    buffer.as_mut_ptr().cast(),
                    c_int::try_from(buffer.len()).unwrap_or(c_int::MAX),
                    special,
                    &raw mut result,
                    error,
                )
            },
        )?;
        Ok(result)
    }

    pub(crate) fn check(&self, token: Token) -> Result<()> {
        match usize::try_from(token.0) {
            Ok(index) if index < self.len() => Ok(()),
            _ => Err(Error::limit(format!(
                "token {} is not in the vocabulary of {} tokens",
                token.0,
                self.len()
            ))),
        }
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<Token> {
        // SAFETY: the vocabulary is alive.
        special(unsafe { sys::llama_vocab_bos(self.raw) })
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<Token> {
        // SAFETY: the vocabulary is alive.
        special(unsafe { sys::llama_vocab_eos(self.raw) })
    }

    /// The token that ends a turn of a conversation.
    pub fn eot(&self) -> Option<Token> {
        // SAFETY: the vocabulary is alive.
        special(unsafe { sys::llama_vocab_eot(self.raw) })
    }

    /// Whether the model wants its beginning token before a text.
    pub fn adds_bos(&self) -> bool {
        // SAFETY: the vocabulary is alive.
        unsafe { sys::llama_vocab_get_add_bos(self.raw) }
    }

    /// Whether generation ends with this token.
    pub fn ends_generation(&self, token: Token) -> bool {
        // SAFETY: the vocabulary is alive; an unknown token is simply not in the set of ending tokens.
        unsafe { sys::llama_vocab_is_eog(self.raw, token.0) }
    }
}

fn special(token: sys::llama_token) -> Option<Token> {
    (token != sys::LLAMA_TOKEN_NULL).then_some(Token(token))
}
