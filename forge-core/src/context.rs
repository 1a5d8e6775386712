//! A context: what computes the tokens of sequences that a model continues.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forge_sys as sys;

use crate::batch::Batch;
use crate::error::{Error, ErrorKind, Result, logged_since, native_call};
use crate::graph::{Hook, Observer, on_node};
use crate::logits::Logits;
use crate::model::Model;
use crate::native_log;
use crate::threads::{ThreadPool, Threads};

/// When to use the flash attention kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FlashAttention {
    /// Where the native library finds that it can.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Always; a context that cannot is refused.
    On,
}

/// How the keys or values of past tokens are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "each is the ggml type of that name")]
pub enum KvType {
    F32,
    #[default]
    F16,
    Bf16,
    Q8_0,
    Q5_1,
    Q5_0,
    Q4_1,
    Q4_0,
}

impl KvType {
    const fn native(self) -> sys::ggml_type {
        match self {
            Self::F32 => sys::GGML_TYPE_F32,
            Self::F16 => sys::GGML_TYPE_F16,
            Self::Bf16 => sys::GGML_TYPE_BF16,
            Self::Q8_0 => sys::GGML_TYPE_Q8_0,
            Self::Q5_1 => sys::GGML_TYPE_Q5_1,
            Self::Q5_0 => sys::GGML_TYPE_Q5_0,
            Self::Q4_1 => sys::GGML_TYPE_Q4_1,
            Self::Q4_0 => sys::GGML_TYPE_Q4_0,
        }
    }
}

/// Sizes and settings of a context.
#[derive(Clone, Debug)]
pub struct ContextParams {
    /// Tokens of context over all sequences; 0 takes the model's training length. The native library rounds
    /// up to a multiple of 256.
    pub context_tokens: u32,
    /// Most tokens in one decode call.
    pub batch_tokens: u32,
    /// Most tokens computed at once; a batch is cut into pieces of this size.
    pub micro_batch_tokens: u32,
    /// Most outputs in one batch, at least one a sequence; 0 allows one a token. Buffers of
    /// `outputs × vocabulary × 4` bytes are reserved for them, so 1 saves much memory where only the last logits
    /// are wanted.
    pub outputs: u32,
    /// Most sequences.
    pub sequences: u32,
    /// Threads and how they wait.
    pub threads: Threads,
    /// Flash attention.
    pub flash_attention: FlashAttention,
    /// Type of the keys.
    pub key_type: KvType,
    /// Type of the values.
    pub value_type: KvType,
    /// Whether an [`Observer`] will watch the nodes: it costs a few percent of the speed even when idle.
    pub observed: bool,
    /// Setting this stops a decode between two operations, with [`ErrorKind::Cancelled`].
    pub cancel: Option<Arc<AtomicBool>>,
}

impl Default for ContextParams {
    fn default() -> Self {
        Self {
            context_tokens: 4096,
            batch_tokens: 512,
            micro_batch_tokens: 512,
            outputs: 1,
            sequences: 1,
            threads: Threads::default(),
            flash_attention: FlashAttention::Auto,
            key_type: KvType::F16,
            value_type: KvType::F16,
            observed: false,
            cancel: None,
        }
    }
}

/// The limits a decode is checked against, as the native library settled them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextSizes {
    /// Tokens of context over all sequences.
    pub context_tokens: u32,
    /// Tokens of context of one sequence.
    pub sequence_tokens: u32,
    /// Most tokens in one decode call.
    pub batch_tokens: u32,
    /// Most tokens computed at once.
    pub micro_batch_tokens: u32,
    /// Most outputs in one decode call.
    pub outputs: u32,
    /// Most sequences.
    pub sequences: u32,
}

/// A context of a model. It borrows the model, so it cannot outlive it. This compiles:
///
/// ```no_run
/// use forge_core::{Backend, Context, ContextParams, Model, ModelParams};
/// let model = Model::load(Backend::init(), &["m.gguf".into()], ModelParams::default(), None)?;
/// let context = Context::new(&model, &ContextParams::default())?;
/// drop(context);
/// drop(model);
/// # Ok::<(), forge_core::Error>(())
/// ```
///
/// and this, with the last two lines exchanged, does not:
///
/// ```compile_fail,E0505
/// use forge_core::{Backend, Context, ContextParams, Model, ModelParams};
/// let model = Model::load(Backend::init(), &["m.gguf".into()], ModelParams::default(), None)?;
/// let context = Context::new(&model, &ContextParams::default())?;
/// drop(model);
/// drop(context);
/// # Ok::<(), forge_core::Error>(())
/// ```
///
/// Logits borrow the context, so no decode can overwrite them while they are held, and they cannot outlive it.
/// This compiles:
///
/// ```
/// use forge_core::{Batch, Context};
/// fn use_logits(context: &mut Context<'_>, batch: &mut Batch) -> forge_core::Result<f32> {
///     let logits = context.logits(0)?;
///     let first = logits[0];
///     context.decode(batch)?;
///     Ok(first)
/// }
/// ```
///
/// and this does not:
///
/// ```compile_fail,E0502
/// use forge_core::{Batch, Context};
/// fn misuse_logits(context: &mut Context<'_>, batch: &mut Batch) -> forge_core::Result<f32> {
///     let logits = context.logits(0)?;
///     context.decode(batch)?;
///     let first = logits[0];
///     Ok(first)
/// }
/// ```
///
/// and neither does this:
///
/// ```compile_fail,E0505
/// use forge_core::Context;
/// fn keep_logits(context: Context<'_>) -> forge_core::Result<f32> {
///     let logits = context.logits(0)?;
///     drop(context);
///     Ok(logits[0])
/// }
/// ```
#[derive(Debug)]
pub struct Context<'model> {
    raw: NonNull<sys::llama_context>,
    model: &'model Model,
    sizes: ContextSizes,
    /// For each token of the last batch that was decoded, whether it has logits.
    decoded_outputs: Vec<i8>,
    // The native context refers to these until it is freed.
    hook: Option<OwnedHook<'model>>,
    _counted: Counted<'model>,
    threads: ThreadPool,
    _cancel: Option<Arc<AtomicBool>>,
    _borrows: PhantomData<&'model Model>,
}

// SAFETY: a llama_context may be used from any thread as long as it is one at a time, which `&mut self` of
// every changing function ensures; its thread pool's workers wait on their own and have no tie to the thread
// that made them.
unsafe impl Send for Context<'_> {}

impl<'model> Context<'model> {
    /// Makes a context of `model`.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] for sizes the native library would abort on, and for a model that does not generate
    /// text token by token unless it was loaded for sizing only; [`ErrorKind::Native`] with the library's message
    /// when it refuses or memory is short.
    pub fn new(model: &'model Model, params: &ContextParams) -> Result<Self> {
        if params.batch_tokens == 0 || params.micro_batch_tokens == 0 {
            return Err(Error::limit("a context needs a batch and a micro-batch of at least one token"));
        }
        if model.params().vocab_only {
            return Err(Error::limit("the model was loaded with its vocabulary only"));
        }
        let outputs = match (params.outputs, params.context_tokens) {
            (0, 0) => params.batch_tokens.min(model.trained_context()),
            (0, context_tokens) => params.batch_tokens.min(context_tokens),
            (outputs, _) => outputs,
        };
        if outputs < params.sequences {
            return Err(Error::limit(format!(
                "a context of {} sequences needs an output for each, and has {outputs}",
                params.sequences
            )));
        }
        let threads = ThreadPool::new(params.threads)?;
        // SAFETY: returns a plain structure.
        let mut native = unsafe { sys::llama_context_default_params() };
        native.n_ctx = params.context_tokens;
        native.n_batch = params.batch_tokens;
        native.n_ubatch = params.micro_batch_tokens;
        native.n_seq_max = params.sequences;
        native.n_outputs_max = params.outputs;
        native.n_threads = threads.decode();
        native.n_threads_batch = threads.prompt();
        native.flash_attn_type = match params.flash_attention {
            FlashAttention::Auto => sys::LLAMA_FLASH_ATTN_TYPE_AUTO,
            FlashAttention::Off => sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
            FlashAttention::On => sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
        };
        native.type_k = params.key_type.native();
        native.type_v = params.value_type.native();
        native.offload_kqv = false;
        native.op_offload = false;
        if let Some(cancel) = &params.cancel {
            native.abort_callback = Some(is_cancelled);
            native.abort_callback_data = Arc::as_ptr(cancel).cast_mut().cast();
        }
        // Boxed and given away as a pointer, so that no Rust reference to it lives during a decode.
        let hook = params.observed.then(OwnedHook::new);
        if let Some(hook) = &hook {
            native.cb_eval = Some(on_node);
            native.cb_eval_user_data = hook.0.as_ptr().cast();
        }
        model.add_context()?;
        let counted = Counted(model);
        let mut raw = std::ptr::null_mut();
        native_call(
            || format!("cannot make a context of {} tokens", params.context_tokens),
            // SAFETY: the model outlives the context by its borrow; the cancel flag's memory is kept alive by
            // the clone in `_cancel`.
            |error| unsafe { sys::forge_context_new(model.as_ptr(), native, &raw mut raw, error) },
        )?;
        let raw = NonNull::new(raw)
            .ok_or_else(|| Error::new(ErrorKind::Native, "the native library returned no context"))?;
        // SAFETY: the context was just made, of a model that outlives it; both thread pool pointers live in
        // `threads`, which is dropped after the context is freed.
        let (sizes, decodes) = unsafe {
            sys::llama_attach_threadpool(raw.as_ptr(), threads.as_ptr(), threads.as_ptr());
            let batch_tokens = sys::llama_n_batch(raw.as_ptr());
            let sizes = ContextSizes {
                context_tokens: sys::llama_n_ctx(raw.as_ptr()),
                sequence_tokens: sys::llama_n_ctx_seq(raw.as_ptr()),
                batch_tokens,
                micro_batch_tokens: sys::llama_n_ubatch(raw.as_ptr()),
                outputs: if params.outputs == 0 { batch_tokens } else { params.outputs },
                sequences: sys::llama_n_seq_max(raw.as_ptr()),
            };
            // Others compute a text in one piece, or want it encoded first, and abort in a decode.
            let remembers = !sys::llama_get_memory(raw.as_ptr()).is_null();
            (sizes, remembers && !sys::llama_model_has_encoder(model.as_ptr()))
        };
        let context = Self {
            raw,
            model,
            sizes,
            decoded_outputs: Vec::with_capacity(sizes.batch_tokens as usize),
            hook,
            _counted: counted,
            threads,
            _cancel: params.cancel.clone(),
            _borrows: PhantomData,
        };
        if !decodes && !model.params().no_alloc {
            return Err(Error::limit("models of this architecture do not generate text token by token"));
        }
        Ok(context)
    }

    /// The model.
    pub const fn model(&self) -> &'model Model {
        self.model
    }

    /// The sizes, as the native library settled them.
    pub const fn sizes(&self) -> ContextSizes {
        self.sizes
    }

    /// The most threads that compute.
    pub(crate) fn most_threads(&self) -> c_int {
        self.threads.decode().max(self.threads.prompt())
    }

    pub(crate) const fn as_ptr(&self) -> *mut sys::llama_context {
        self.raw.as_ptr()
    }

    /// Computes a batch and extends its sequences.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] for a batch that the native library would abort on, [`ErrorKind::ContextFull`]
    /// when no cell is free, [`ErrorKind::Cancelled`] when the cancel flag was set, [`ErrorKind::Native`]
    /// with the library's message otherwise.
    pub fn decode(&mut self, batch: &mut Batch) -> Result<()> {
        self.check(batch)?;
        self.hook_mut().map_or(Ok(()), |hook| hook.begin(batch.len()))?;
        let decoded = self.decode_checked(batch);
        // The observer's own reason comes first: the native library only knows that it was stopped.
        if let Some(Err(error)) = self.hook_mut().map(Hook::end) {
            self.decoded_outputs.clear();
            return Err(error);
        }
        decoded
    }

    /// Has `observer` watch every later decode; returns the one before it.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] when the context was not made with [`ContextParams::observed`].
    pub fn observe(
        &mut self,
        observer: Box<dyn Observer + 'model>,
    ) -> Result<Option<Box<dyn Observer + 'model>>> {
        match self.hook_mut() {
            Some(hook) => Ok(hook.set(observer)),
            None => Err(Error::limit("the context was not made to be observed")),
        }
    }

    /// Has the observer come to the state that it would come to after many batches, so that the next ones show what
    /// the later ones cost. For measurements. `go_on` is asked now and then; `false` gives up.
    ///
    /// # Errors
    /// What keeps the observer from that; [`ErrorKind::Cancelled`] when it was given up.
    pub fn settle(&mut self, go_on: &mut dyn FnMut() -> bool) -> Result<()> {
        self.hook_mut().map_or(Ok(()), |hook| hook.settle(go_on))
    }

    /// Has the observer end what it does between batches, so that nothing changes any more while the process is
    /// looked at.
    pub fn quiesce(&mut self) {
        if let Some(hook) = self.hook_mut() {
            hook.quiesce();
        }
    }

    fn hook_mut(&mut self) -> Option<&mut Hook<'model>> {
        // SAFETY: the hook lives as long as the context; native code uses it during a decode only, which
        // borrows the context as this does.
        self.hook.as_ref().map(|hook| unsafe { &mut *hook.0.as_ptr() })
    }

    fn decode_checked(&mut self, batch: &mut Batch) -> Result<()> {
        // The last logits are gone from here on, whatever happens.
        self.decoded_outputs.clear();
        let mark = native_log::mark();
        let mut result = 0;
        let tokens = batch.len();
        native_call(
            || format!("cannot decode {tokens} tokens"),
            // SAFETY: the batch's arrays outlive the call and hold `n_tokens` entries each; every limit that
            // upstream asserts was checked.
            |error| unsafe { sys::forge_decode(self.as_ptr(), batch.native(), &raw mut result, error) },
        )?;
        let attempted = || format!("cannot decode {tokens} tokens");
        match result {
            0 => {
                // Only on success are there logits: a failed decode may leave the output rows unset.
                // SAFETY: the context is alive. Decoding is synchronous on the CPU; this makes it certain.
                unsafe { sys::llama_synchronize(self.as_ptr()) };
                self.decoded_outputs.extend_from_slice(batch.outputs());
                Ok(())
            }
            1 => Err(logged_since(
                mark,
                ErrorKind::ContextFull,
                format!("the context of {} tokens has no room for {tokens} more", self.sizes.context_tokens),
            )),
            2 => Err(Error::new(ErrorKind::Cancelled, "the decode was cancelled")),
            _ => Err(logged_since(mark, ErrorKind::Native, attempted())),
        }
    }

    fn check(&self, batch: &Batch) -> Result<()> {
        let sizes = self.sizes;
        if self.model.params().no_alloc {
            return Err(Error::limit(
                "the model was loaded for sizing only: it has no weights to decode with",
            ));
        }
        if batch.is_empty() {
            return Err(Error::limit("the batch is empty"));
        }
        if batch.len() > sizes.batch_tokens as usize {
            return Err(Error::limit(format!(
                "the batch has {} tokens, more than the context's batch size of {}",
                batch.len(),
                sizes.batch_tokens
            )));
        }
        // SAFETY: the context is alive.
        let causal = unsafe { sys::forge_is_causal(self.as_ptr()) };
        if !causal && batch.len() > sizes.micro_batch_tokens as usize {
            return Err(Error::limit(format!(
                "the batch has {} tokens, more than the micro-batch of {}, which this model's tokens see whole",
                batch.len(),
                sizes.micro_batch_tokens
            )));
        }
        if batch.output_count() > sizes.outputs as usize {
            return Err(Error::limit(format!(
                "the batch asks for {} outputs, the context was made for {}",
                batch.output_count(),
                sizes.outputs
            )));
        }
        if batch.shares_tokens() {
            return Err(Error::limit(
                "a token of the batch belongs to several sequences: the context keeps each on its own",
            ));
        }
        if let Some(sequence) = batch.largest_sequence().filter(|&sequence| sequence >= sizes.sequences) {
            return Err(Error::limit(format!(
                "sequence {sequence} does not exist: the context was made for {}",
                sizes.sequences
            )));
        }
        Ok(())
    }

    /// The logits of the token at `index` of the last batch, which must have asked for them.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] when that token has no logits.
    pub fn logits(&self, index: usize) -> Result<Logits<'_>> {
        let index = self.output_index(index)?;
        // SAFETY: the index names an output of the last successful decode.
        let scores = unsafe { sys::llama_get_logits_ith(self.as_ptr(), index) };
        if scores.is_null() {
            return Err(Error::new(ErrorKind::Native, "the native library has no logits for this token"));
        }
        // SAFETY: a row of the output buffer has one float a token of the vocabulary, and stays as it is
        // until the next decode, which needs `&mut self`.
        Ok(Logits::new(unsafe { std::slice::from_raw_parts(scores, self.model.vocab().len()) }))
    }

    /// `index` as the native library wants it, checked: sampling from a token without logits aborts.
    pub(crate) fn output_index(&self, index: usize) -> Result<c_int> {
        match self.decoded_outputs.get(index) {
            Some(&output) if output != 0 => Ok(c_int::try_from(index).unwrap_or(c_int::MAX)),
            _ => Err(Error::limit(format!("token {index} of the last batch has no logits"))),
        }
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        // SAFETY: freed once; the thread pool and the flag it refers to are dropped after this.
        unsafe { sys::llama_free(self.as_ptr()) };
    }
}

/// A context that its model knows of.
#[derive(Debug)]
struct Counted<'model>(&'model Model);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.remove_context();
    }
}

/// A hook at a fixed address, freed with its owner.
#[derive(Debug)]
struct OwnedHook<'model>(NonNull<Hook<'model>>);

impl OwnedHook<'_> {
    fn new() -> Self {
        Self(NonNull::from(Box::leak(Box::new(Hook::new()))))
    }
}

impl Drop for OwnedHook<'_> {
    fn drop(&mut self) {
        // SAFETY: made from a Box in `new`, freed once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Asked by the computing thread between operations.
extern "C" fn is_cancelled(user: *mut c_void) -> bool {
    // SAFETY: `user` points to the AtomicBool that the context's Arc keeps alive.
    unsafe { &*user.cast::<AtomicBool>() }.load(Ordering::Relaxed)
}
