//! A loaded model.

use std::ffi::{CStr, CString, c_void};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forge_sys as sys;

use crate::backend::Backend;
use crate::callback;
use crate::error::{Error, ErrorKind, Result, native_call};
use crate::vocab::Vocab;

/// How the weights get into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LoadMode {
    /// Read into anonymous memory.
    Read,
    /// Map the file.
    #[default]
    Mmap,
    /// Read into anonymous memory and lock it.
    ReadLocked,
    /// Map the file and lock the mapping.
    MmapLocked,
    /// Read into anonymous memory past the page cache where the file system can.
    DirectIo,
}

impl LoadMode {
    const fn native(self) -> sys::llama_load_mode {
        match self {
            Self::Read => sys::LLAMA_LOAD_MODE_NONE,
            Self::Mmap => sys::LLAMA_LOAD_MODE_MMAP,
            Self::ReadLocked => sys::LLAMA_LOAD_MODE_MLOCK,
            Self::MmapLocked => sys::LLAMA_LOAD_MODE_MMAP_MLOCK,
            Self::DirectIo => sys::LLAMA_LOAD_MODE_DIRECT_IO,
        }
    }
}

/// How to load a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelParams {
    /// How the weights get into memory.
    pub load_mode: LoadMode,
    /// For mapped files: ask the kernel to read the whole file ahead.
    pub prefetch: bool,
    /// Repack weights into the layouts the CPU computes fastest with, in anonymous memory.
    pub extra_buffers: bool,
    /// Check every tensor's data for invalid values while loading.
    pub check_tensors: bool,
    /// Load the vocabulary only.
    pub vocab_only: bool,
    /// Read the header and simulate every allocation: for sizing, not for decoding. Not with a mapping.
    pub no_alloc: bool,
}

impl Default for ModelParams {
    fn default() -> Self {
        Self {
            load_mode: LoadMode::Mmap,
            prefetch: true,
            extra_buffers: true,
            check_tensors: false,
            vocab_only: false,
            no_alloc: false,
        }
    }
}

/// Called with the share of the model that is loaded, 0 to 1; `Break` cancels the load.
pub type Progress<'a> = &'a mut dyn FnMut(f32) -> ControlFlow<()>;

/// A loaded model. Contexts and vocabularies borrow it.
#[derive(Debug)]
pub struct Model {
    raw: NonNull<sys::llama_model>,
    params: ModelParams,
    users: Mutex<Users>,
}

/// Who uses the model's memory now.
#[derive(Debug, Default)]
struct Users {
    contexts: usize,
    claimed: bool,
}

/// The right to rearrange the model's pages: while it is held, the model has one context and gets no other.
#[derive(Debug)]
pub(crate) struct Claim<'model>(&'model Model);

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.users().claimed = false;
    }
}

// SAFETY: llama_model is immutable once loaded (llama.cpp shares one model between contexts on any threads),
// and freeing it has no thread affinity.
unsafe impl Send for Model {}
// SAFETY: as above: every function that takes a model through `&self` only reads it.
unsafe impl Sync for Model {}

impl Model {
    /// Loads the model whose shards are `files`, in order, on the CPU.
    ///
    /// # Errors
    /// [`ErrorKind::Native`] with the library's message, [`ErrorKind::Cancelled`] when `progress` broke off,
    /// [`ErrorKind::NulByte`] for a path C cannot take, [`ErrorKind::Limit`] for parameters the native library
    /// would abort on.
    pub fn load(
        _: Backend,
        files: &[PathBuf],
        params: ModelParams,
        progress: Option<Progress<'_>>,
    ) -> Result<Self> {
        if params.no_alloc && matches!(params.load_mode, LoadMode::Mmap | LoadMode::MmapLocked) {
            return Err(Error::limit("a model is sized without a mapping: no_alloc needs another load mode"));
        }
        let paths = files.iter().map(|file| c_path(file)).collect::<Result<Vec<_>>>()?;
        let pointers: Vec<_> = paths.iter().map(|path| path.as_ptr()).collect();
        let mut state = ProgressState { callback: progress, cancelled: false };
        // SAFETY: returns a plain structure.
        let mut native = unsafe { sys::llama_model_default_params() };
        native.load_mode = params.load_mode.native();
        native.use_extra_bufts = params.extra_buffers;
        native.check_tensors = params.check_tensors;
        native.vocab_only = params.vocab_only;
        native.no_alloc = params.no_alloc;
        // Nothing is offloaded: this wrapper runs models on the CPU, and says so.
        native.n_gpu_layers = 0;
        native.progress_callback = Some(on_progress);
        native.progress_callback_user_data = (&raw mut state).cast();

        let mut raw = std::ptr::null_mut();
        let loaded = native_call(
            || format!("cannot load {}", files.first().map_or(Path::new(""), |p| p).display()),
            // SAFETY: the paths and their pointer array, `state` and `raw` outlive the call; the callback is
            // not called after it.
            |error| unsafe {
                sys::forge_model_load(
                    pointers.as_ptr().cast_mut(),
                    pointers.len(),
                    native,
                    params.prefetch,
                    &raw mut raw,
                    error,
                )
            },
        );
        if state.cancelled {
            return Err(Error::new(ErrorKind::Cancelled, "loading the model was cancelled"));
        }
        loaded?;
        let raw = NonNull::new(raw)
            .ok_or_else(|| Error::new(ErrorKind::Native, "the native library returned no model"))?;
        Ok(Self { raw, params, users: Mutex::default() })
    }

    /// The parameters it was loaded with.
    pub const fn params(&self) -> ModelParams {
        self.params
    }

    fn users(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more context.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] while the model is claimed.
    pub(crate) fn add_context(&self) -> Result<()> {
        let mut users = self.users();
        if users.claimed {
            return Err(Error::limit("the model is being streamed for another context"));
        }
        users.contexts += 1;
        Ok(())
    }

    pub(crate) fn remove_context(&self) {
        self.users().contexts -= 1;
    }

    /// Claims the model for its only context.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] when it has several contexts, or is claimed.
    pub(crate) fn claim(&self) -> Result<Claim<'_>> {
        let mut users = self.users();
        if users.claimed || users.contexts != 1 {
            return Err(Error::limit("a model is streamed for one context only"));
        }
        users.claimed = true;
        Ok(Claim(self))
    }

    /// Keeps the model unclaimed for as long as the result is held.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] when it is claimed.
    pub(crate) fn unclaimed(&self) -> Result<impl Sized> {
        let users = self.users();
        if users.claimed {
            return Err(Error::limit("the model's pages are being streamed"));
        }
        Ok(users)
    }

    pub(crate) const fn as_ptr(&self) -> *mut sys::llama_model {
        self.raw.as_ptr()
    }

    /// The vocabulary.
    pub fn vocab(&self) -> Vocab<'_> {
        Vocab::of(self)
    }

    /// The native library's short description, such as `llama 1B Q4_0`.
    pub fn description(&self) -> String {
        let mut buffer = [0_u8; 256];
        // SAFETY: the buffer's own length is passed; the function writes a NUL-terminated string into it.
        unsafe { sys::llama_model_desc(self.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
        CStr::from_bytes_until_nul(&buffer)
            .map(|text| text.to_string_lossy().into_owned())
            .unwrap_or_default()
    }

    /// Has products with the matrix at `address` computed in pieces of `rows` rows, each a node of the graph that
    /// reads its part only. What is computed stays the same, bit for bit. Says whether there is such a matrix,
    /// with more rows, and with products that can be split.
    ///
    /// # Errors
    /// When the native library throws, or `rows` is 0.
    pub fn split_matrix(&mut self, address: usize, rows: u32) -> Result<bool> {
        let data = std::ptr::without_provenance(address);
        let rows = i32::try_from(rows).unwrap_or(i32::MAX);
        let mut split = false;
        native_call(
            || format!("cannot split the matrix at {address:#x}"),
            // SAFETY: the model is alive, and `&mut self` says that nothing else uses it now; the address is
            // compared and not read.
            |error| unsafe {
                sys::forge_model_split_matrix(self.as_ptr(), data, rows, &raw mut split, error)
            },
        )?;
        Ok(split)
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_size(self.as_ptr()) }
    }

    /// Number of parameters.
    pub fn parameters(&self) -> u64 {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_n_params(self.as_ptr()) }
    }

    /// Tokens of context the model was trained with.
    pub fn trained_context(&self) -> u32 {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_n_ctx_train(self.as_ptr()) }.cast_unsigned()
    }

    /// Number of layers.
    pub fn layers(&self) -> u32 {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_n_layer(self.as_ptr()) }.cast_unsigned()
    }

    /// Width of the embedding.
    pub fn embedding_width(&self) -> u32 {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_n_embd(self.as_ptr()) }.cast_unsigned()
    }

    /// The chat template in the file, if it has one.
    pub fn chat_template(&self) -> Option<String> {
        // SAFETY: the model is alive, and owns the string that is returned.
        let text = unsafe { sys::llama_model_chat_template(self.as_ptr(), std::ptr::null()) };
        // SAFETY: not null, so a NUL-terminated string.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: the pointer came from the loader and is freed once; everything that uses it borrows `self`.
        unsafe { sys::llama_model_free(self.as_ptr()) };
    }
}

struct ProgressState<'a> {
    callback: Option<Progress<'a>>,
    cancelled: bool,
}

/// A panic cancels the load like a `Break`; it continues once the loader has returned.
extern "C" fn on_progress(share: f32, user: *mut c_void) -> bool {
    callback::guard(|| {
        // SAFETY: `user` is the ProgressState that `load` keeps alive and does not touch during the call.
        let state = unsafe { &mut *user.cast::<ProgressState<'_>>() };
        if let Some(callback) = state.callback.as_mut() {
            state.cancelled |= callback(share).is_break();
        }
        !state.cancelled
    })
    .unwrap_or(false)
}

fn c_path(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::new(ErrorKind::NulByte, format!("the path {} holds a NUL byte", path.display())))
}
