//! A greedy loop written directly against llama.cpp's C API, with none of our functions: the yardstick for what
//! `ramforge` computes and for how fast.
//!
//! ```text
//! direct MODEL (--prompt TEXT | --prompt-file FILE) --max-tokens N --threads N [--no-repack] [--thread-pool]
//! ```
//!
//! The settings are those of `ramforge run`: the context holds the prompt and the answer, batches have 512
//! tokens, only the last token of the prompt has logits. By default no thread pool is attached, so ggml starts
//! its threads anew for every graph, which is for every token; `--thread-pool` attaches one with ggml's
//! default settings, as llama.cpp's own tools do.
//!
//! One JSON object goes to standard output.

use std::error::Error;
use std::ffi::{CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;
use std::time::Instant;

use clap::Parser;
use forge_sys as sys;
use serde_json::json;

/// Tokens in one decode call.
const BATCH_TOKENS: usize = 512;

/// Generate greedily with nothing but llama.cpp's C API.
#[derive(Parser)]
struct Arguments {
    /// The model, or the first of its shards.
    model: PathBuf,

    /// The text to continue.
    #[arg(long, required_unless_present = "prompt_file", conflicts_with = "prompt_file")]
    prompt: Option<String>,

    /// Read the text to continue from a file.
    #[arg(long)]
    prompt_file: Option<PathBuf>,

    /// Most tokens to generate.
    #[arg(short = 'n', long)]
    max_tokens: u32,

    /// Compute threads.
    #[arg(short, long)]
    threads: u32,

    /// Keep the weights in the file's own layout.
    #[arg(long)]
    no_repack: bool,

    /// Attach a thread pool with ggml's default settings.
    #[arg(long)]
    thread_pool: bool,
}

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let prompt = match (&arguments.prompt, &arguments.prompt_file) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) => std::fs::read_to_string(file)?,
        (None, None) => return Err("there is no prompt".into()),
    };
    let mut run = Run::start(&arguments, &prompt)?;
    println!("{}", run.generate(arguments.max_tokens)?);
    Ok(())
}

/// What lives from the load to the last token; the process's end frees it.
struct Run {
    vocab: *const sys::llama_vocab,
    context: *mut sys::llama_context,
    prompt: Vec<sys::llama_token>,
    load_ms: f64,
}

impl Run {
    fn start(arguments: &Arguments, prompt: &str) -> Result<Self> {
        let path = CString::new(arguments.model.as_os_str().as_bytes())?;
        let started = Instant::now();
        // SAFETY: the first native calls of the process; the callback ignores what it is given.
        unsafe {
            sys::llama_log_set(Some(discard), ptr::null_mut());
            sys::llama_backend_init();
        }
        // SAFETY: the path is NUL-terminated and outlives the call.
        let model = unsafe {
            let mut params = sys::llama_model_default_params();
            params.load_mode = sys::LLAMA_LOAD_MODE_MMAP;
            params.use_extra_bufts = !arguments.no_repack;
            sys::llama_model_load_from_file(path.as_ptr(), params)
        };
        if model.is_null() {
            return Err(format!("cannot load {}", arguments.model.display()).into());
        }
        let load_ms = milliseconds(started);
        // SAFETY: the model is alive until the process ends.
        let vocab = unsafe { sys::llama_model_get_vocab(model) };
        let prompt = tokenize(vocab, prompt)?;

        let threads = i32::try_from(arguments.threads)?;
        let batch_tokens = u32::try_from(BATCH_TOKENS)?;
        let needed = u32::try_from(prompt.len())?.saturating_add(arguments.max_tokens);
        // SAFETY: the model is alive; the parameters are a plain structure.
        let context = unsafe {
            let mut params = sys::llama_context_default_params();
            params.n_ctx = needed.min(sys::llama_model_n_ctx_train(model).cast_unsigned()).max(1);
            params.n_batch = batch_tokens;
            params.n_ubatch = batch_tokens;
            params.n_outputs_max = 1;
            params.n_threads = threads;
            params.n_threads_batch = threads;
            sys::llama_init_from_model(model, params)
        };
        if context.is_null() {
            return Err("cannot make a context".into());
        }
        if arguments.thread_pool {
            attach_thread_pool(context, threads)?;
        }
        Ok(Self { vocab, context, prompt, load_ms })
    }

    fn generate(&mut self, max_tokens: u32) -> Result<serde_json::Value> {
        // SAFETY: the functions take plain data; the chain owns the sampler that is added to it.
        let sampler = unsafe {
            let chain = sys::llama_sampler_chain_init(sys::llama_sampler_chain_default_params());
            sys::llama_sampler_chain_add(chain, sys::llama_sampler_init_greedy());
            chain
        };

        let started = Instant::now();
        let prompt_tokens = self.prompt.len();
        for chunk in std::mem::take(&mut self.prompt).chunks_mut(BATCH_TOKENS) {
            self.decode(chunk)?;
        }
        let prompt_ms = milliseconds(started);

        // SAFETY: the context is alive.
        let context_tokens = unsafe { sys::llama_n_ctx_seq(self.context) } as usize;
        let mut tokens = Vec::new();
        let mut text = Vec::new();
        let started = Instant::now();
        while tokens.len() < max_tokens as usize {
            // SAFETY: the last decode computed logits for its last token, which is what -1 names.
            let mut token = unsafe { sys::llama_sampler_sample(sampler, self.context, -1) };
            // SAFETY: the vocabulary is alive.
            if unsafe { sys::llama_vocab_is_eog(self.vocab, token) } {
                break;
            }
            tokens.push(token);
            text.extend(self.piece(token)?);
            if tokens.len() == max_tokens as usize || prompt_tokens + tokens.len() > context_tokens {
                break;
            }
            self.decode(std::slice::from_mut(&mut token))?;
        }
        let seconds = started.elapsed().as_secs_f64();
        Ok(json!({
            "prompt_tokens": prompt_tokens,
            "tokens": tokens,
            "text": String::from_utf8_lossy(&text),
            "load_ms": self.load_ms,
            "prompt_ms": prompt_ms,
            "decode_tokens_per_second": (tokens.len() > 1).then(|| (tokens.len() - 1) as f64 / seconds),
        }))
    }

    /// Adds `tokens` to the one sequence, and computes the logits that follow the last of them.
    fn decode(&self, tokens: &mut [sys::llama_token]) -> Result<()> {
        let batch = sys::llama_batch {
            n_tokens: i32::try_from(tokens.len())?,
            token: tokens.as_mut_ptr(),
            ..sys::llama_batch::default()
        };
        // SAFETY: the tokens outlive the calls. Without the other arrays the library counts positions on from
        // where the sequence ends, and computes logits for the last token only.
        let result = unsafe {
            let result = sys::llama_decode(self.context, batch);
            sys::llama_synchronize(self.context);
            result
        };
        if result == 0 { Ok(()) } else { Err(format!("llama_decode returned {result}").into()) }
    }

    fn piece(&self, token: sys::llama_token) -> Result<Vec<u8>> {
        let mut buffer = vec![0_u8; 256];
        // SAFETY: the buffer is passed with its length.
        let length = unsafe {
            sys::llama_token_to_piece(self.vocab, token, buffer.as_mut_ptr().cast(), 256, 0, false)
        };
        buffer.truncate(usize::try_from(length).map_err(|_| format!("token {token} is too long"))?);
        Ok(buffer)
    }
}

fn tokenize(vocab: *const sys::llama_vocab, text: &str) -> Result<Vec<sys::llama_token>> {
    // A text never has more tokens than bytes, but for the special ones around it.
    let mut tokens = vec![0; text.len() + 16];
    // SAFETY: both buffers are passed with their lengths.
    let count = unsafe {
        sys::llama_tokenize(
            vocab,
            text.as_ptr().cast(),
            i32::try_from(text.len())?,
            tokens.as_mut_ptr(),
            i32::try_from(tokens.len())?,
            true,
            false,
        )
    };
    tokens.truncate(usize::try_from(count).map_err(|_| "cannot tokenize the prompt")?);
    if tokens.is_empty() { Err("the prompt has no tokens".into()) } else { Ok(tokens) }
}

fn attach_thread_pool(context: *mut sys::llama_context, threads: i32) -> Result<()> {
    let mut params = sys::ggml_threadpool_params::default();
    // SAFETY: the first function fills the structure and the second copies it; context and pool both live until
    // the process ends.
    unsafe {
        sys::ggml_threadpool_params_init(&raw mut params, threads);
        let pool = sys::ggml_threadpool_new(&raw mut params);
        if pool.is_null() {
            return Err("cannot make a thread pool".into());
        }
        sys::llama_attach_threadpool(context, pool, pool);
    }
    Ok(())
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}

extern "C" fn discard(_: sys::ggml_log_level, _: *const c_char, _: *mut c_void) {}
