//! Choosing the next token from logits.

use std::ffi::CString;
use std::marker::PhantomData;
use std::ptr::NonNull;

use forge_sys as sys;

use crate::context::Context;
use crate::error::{Error, ErrorKind, Result, native_call};
use crate::model::Model;
use crate::vocab::{Token, Vocab};

/// A chain of samplers, applied in the order they were added and closed by a choice:
///
/// ```no_run
/// # fn chain(model: &forge_core::Model) -> forge_core::Result<()> {
/// use forge_core::SamplerChain;
/// let greedy = SamplerChain::new(model.vocab())?.greedy()?;
/// let creative = SamplerChain::new(model.vocab())?
///     .repetition_penalty(64, 1.1)?
///     .top_k(40)?
///     .top_p(0.95)?
///     .min_p(0.05)?
///     .temperature(0.8)?
///     .seeded(42)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SamplerChain<'model> {
    chain: Chain,
    vocab: Vocab<'model>,
}

/// Most tokens a repetition penalty looks back.
const LONGEST_PENALTY: u32 = 1 << 20;

/// A finished chain that chooses tokens.
#[derive(Debug)]
pub struct Sampler<'model> {
    chain: Chain,
    _model: PhantomData<&'model Model>,
}

#[derive(Debug)]
struct Chain(NonNull<sys::llama_sampler>);

// SAFETY: samplers hold plain data and have no tie to the thread that made them.
unsafe impl Send for Chain {}

impl Drop for Chain {
    fn drop(&mut self) {
        // SAFETY: freed once; the chain owns every sampler that was added to it.
        unsafe { sys::llama_sampler_free(self.0.as_ptr()) };
    }
}

impl<'model> SamplerChain<'model> {
    /// An empty chain for the model with this vocabulary.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(vocab: Vocab<'model>) -> Result<Self> {
        // SAFETY: the parameters are a plain structure.
        let chain = unsafe { sys::llama_sampler_chain_init(sys::llama_sampler_chain_default_params()) };
        let chain = NonNull::new(chain).ok_or_else(|| no_sampler("chain"))?;
        Ok(Self { chain: Chain(chain), vocab })
    }

    fn add(self, name: &str, sampler: *mut sys::llama_sampler) -> Result<Self> {
        let sampler = NonNull::new(sampler).ok_or_else(|| no_sampler(name))?;
        // SAFETY: both are alive; the chain takes ownership of the sampler.
        unsafe { sys::llama_sampler_chain_add(self.chain.0.as_ptr(), sampler.as_ptr()) };
        Ok(self)
    }

    /// Lowers the scores of the last `last` tokens: positive ones are divided by `penalty`, negative ones
    /// multiplied. 1 changes nothing.
    ///
    /// # Errors
    /// When `penalty` is not a positive number, or `last` is more than any context holds: the native library
    /// allocates that many entries, and cannot survive failing to.
    pub fn repetition_penalty(self, last: u32, penalty: f32) -> Result<Self> {
        check("repetition penalty", penalty, penalty > 0.0)?;
        if last > LONGEST_PENALTY {
            return Err(Error::limit(format!(
                "the repetition penalty cannot look back {last} tokens, only {LONGEST_PENALTY}"
            )));
        }
        let vocab = i32::try_from(self.vocab.len()).unwrap_or(i32::MAX);
        let last = i32::try_from(last).unwrap_or(i32::MAX);
        // SAFETY: takes plain numbers.
        let sampler = unsafe { sys::llama_sampler_init_penalties(vocab, last, penalty, 0.0, 0.0) };
        self.add("penalties", sampler)
    }

    /// Allows only texts that `grammar` (GBNF) derives from its rule `root`.
    ///
    /// # Errors
    /// When the grammar is empty, which the native library takes for none, or wrong.
    pub fn grammar(self, grammar: &str, root: &str) -> Result<Self> {
        if grammar.is_empty() {
            return Err(Error::limit("the grammar is empty"));
        }
        let text = c_text("grammar", grammar)?;
        let root = c_text("grammar's root", root)?;
        let mut sampler = std::ptr::null_mut();
        let vocab = self.vocab.as_ptr();
        native_call(
            || "the grammar does not parse".into(),
            // SAFETY: the strings outlive the call, which copies them; the vocabulary lives as long as the
            // chain by its lifetime.
            |error| unsafe {
                sys::forge_sampler_grammar(vocab, text.as_ptr(), root.as_ptr(), &raw mut sampler, error)
            },
        )?;
        self.add("grammar", sampler)
    }

    /// Keeps the `k` best tokens; 0 keeps all.
    ///
    /// # Errors
    /// When memory is short.
    pub fn top_k(self, k: u32) -> Result<Self> {
        // SAFETY: takes a plain number.
        let sampler = unsafe { sys::llama_sampler_init_top_k(i32::try_from(k).unwrap_or(i32::MAX)) };
        self.add("top-k", sampler)
    }

    /// Keeps the best tokens whose probabilities add up to `p`; 1 keeps all.
    ///
    /// # Errors
    /// When `p` is not between 0 and 1.
    pub fn top_p(self, p: f32) -> Result<Self> {
        check("top-p", p, (0.0..=1.0).contains(&p))?;
        // SAFETY: takes plain numbers.
        let sampler = unsafe { sys::llama_sampler_init_top_p(p, 1) };
        self.add("top-p", sampler)
    }

    /// Keeps tokens at least `p` times as probable as the best; 0 keeps all.
    ///
    /// # Errors
    /// When `p` is not between 0 and 1.
    pub fn min_p(self, p: f32) -> Result<Self> {
        check("min-p", p, (0.0..=1.0).contains(&p))?;
        // SAFETY: takes plain numbers.
        let sampler = unsafe { sys::llama_sampler_init_min_p(p, 1) };
        self.add("min-p", sampler)
    }

    /// Divides the scores by `temperature`.
    ///
    /// # Errors
    /// When `temperature` is not a positive number; for no randomness choose [`SamplerChain::greedy`].
    pub fn temperature(self, temperature: f32) -> Result<Self> {
        check("temperature", temperature, temperature > 0.0)?;
        // SAFETY: takes a plain number.
        let sampler = unsafe { sys::llama_sampler_init_temp(temperature) };
        self.add("temperature", sampler)
    }

    /// Closes the chain: the best token is chosen.
    ///
    /// # Errors
    /// When memory is short.
    pub fn greedy(self) -> Result<Sampler<'model>> {
        // SAFETY: takes nothing.
        let sampler = unsafe { sys::llama_sampler_init_greedy() };
        self.add("greedy", sampler).map(Sampler::of)
    }

    /// Closes the chain: a token is drawn by its probability. The same seed draws the same tokens; the largest
    /// draws those of the one below it.
    ///
    /// # Errors
    /// When memory is short.
    pub fn seeded(self, seed: u32) -> Result<Sampler<'model>> {
        // The native library takes this one for "any seed".
        let seed = if seed == sys::LLAMA_DEFAULT_SEED { seed - 1 } else { seed };
        // SAFETY: takes a plain number.
        let sampler = unsafe { sys::llama_sampler_init_dist(seed) };
        self.add("seeded choice", sampler).map(Sampler::of)
    }
}

impl<'model> Sampler<'model> {
    fn of(chain: SamplerChain<'model>) -> Self {
        Self { chain: chain.chain, _model: PhantomData }
    }

    /// Chooses the token that follows the token at `index` of the last batch, and remembers it for penalties
    /// and grammar.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] when that token has no logits, [`ErrorKind::Exception`] when the grammar rejects
    /// every continuation.
    pub fn sample(&mut self, context: &mut Context<'_>, index: usize) -> Result<Token> {
        let index = context.output_index(index)?;
        let mut token = sys::LLAMA_TOKEN_NULL;
        native_call(
            || "cannot choose the next token".into(),
            // SAFETY: both are alive, the index names an output of the last decode, and the chain ends with
            // a sampler that selects, so upstream's assertions hold.
            |error| unsafe {
                sys::forge_sampler_sample(
                    self.chain.0.as_ptr(),
                    context.as_ptr(),
                    index,
                    &raw mut token,
                    error,
                )
            },
        )?;
        Ok(Token(token))
    }

    /// Forgets the tokens seen, and starts the seed anew.
    pub fn reset(&mut self) {
        // SAFETY: the chain is alive.
        unsafe { sys::llama_sampler_reset(self.chain.0.as_ptr()) };
    }
}

fn check(name: &str, value: f32, holds: bool) -> Result<()> {
    if holds && value.is_finite() { Ok(()) } else { Err(Error::limit(format!("{name} cannot be {value}"))) }
}

fn c_text(what: &str, text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::new(ErrorKind::NulByte, format!("the {what} holds a NUL byte")))
}

fn no_sampler(name: &str) -> Error {
    Error::new(ErrorKind::Native, format!("the native library made no {name} sampler"))
}
