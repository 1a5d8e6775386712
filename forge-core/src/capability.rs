//! What the native build can run, asked of the native build: architectures, tensor types, CPU features.

use std::ffi::CStr;

use forge_sys as sys;

use crate::backend::Backend;
use crate::error::{Result, native_call};

/// A tensor type of ggml.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorType(pub(crate) sys::ggml_type);

impl TensorType {
    /// The type's number in GGUF files.
    pub const fn id(self) -> u32 {
        self.0
    }

    /// The native name, such as `q4_0`.
    pub fn name(self) -> &'static str {
        // SAFETY: ids come from the native library or from `all`, so they are below GGML_TYPE_COUNT, for
        // which the function returns a static string.
        let name = unsafe { sys::ggml_type_name(self.0) };
        if name.is_null() {
            return "unknown";
        }
        // SAFETY: not null, static and NUL-terminated.
        unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("unknown")
    }

    /// Whether the CPU backend can multiply a matrix of this type.
    pub fn runs_on_cpu(self) -> bool {
        // SAFETY: the id is below GGML_TYPE_COUNT, the length of the table the function indexes.
        let traits = unsafe { sys::ggml_get_type_traits_cpu(self.0) };
        // SAFETY: the function returns a pointer into a static table.
        !traits.is_null() && unsafe { (*traits).vec_dot.is_some() }
    }

    /// Every type that the native library still knows, in the order of their ids.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..sys::GGML_TYPE_COUNT).map(Self).filter(|tensor_type| {
            // SAFETY: the id is below GGML_TYPE_COUNT. Removed types have no block size.
            let block = unsafe { sys::ggml_blck_size(tensor_type.0) };
            block > 0
        })
    }
}

impl std::fmt::Debug for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The architectures the native library has code for, by the names GGUF files use, sorted.
pub fn architectures(_: Backend) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for index in 0.. {
        let mut name = std::ptr::null();
        native_call(
            || "cannot list the architectures".into(),
            // SAFETY: `name` outlives the call; the error pointer comes from native_call.
            |error| unsafe { sys::forge_architecture_at(index, &raw mut name, error) },
        )?;
        if name.is_null() {
            break;
        }
        // SAFETY: not null; the native table of names is static.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        // Upstream's own placeholder for "none of these".
        if name != "(unknown)" {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// The x86 and ARM features that the native code in this binary uses, by name.
pub fn cpu_features() -> Vec<&'static str> {
    type Probe = unsafe extern "C" fn() -> std::ffi::c_int;
    let probes: &[(&str, Probe)] = &[
        ("avx", sys::ggml_cpu_has_avx),
        ("avx2", sys::ggml_cpu_has_avx2),
        ("avx-vnni", sys::ggml_cpu_has_avx_vnni),
        ("avx512", sys::ggml_cpu_has_avx512),
        ("avx512-vbmi", sys::ggml_cpu_has_avx512_vbmi),
        ("avx512-vnni", sys::ggml_cpu_has_avx512_vnni),
        ("avx512-bf16", sys::ggml_cpu_has_avx512_bf16),
        ("amx-int8", sys::ggml_cpu_has_amx_int8),
        ("bmi2", sys::ggml_cpu_has_bmi2),
        ("f16c", sys::ggml_cpu_has_f16c),
        ("fma", sys::ggml_cpu_has_fma),
        ("neon", sys::ggml_cpu_has_neon),
        ("dotprod", sys::ggml_cpu_has_dotprod),
        ("matmul-int8", sys::ggml_cpu_has_matmul_int8),
        ("sve", sys::ggml_cpu_has_sve),
    ];
    // SAFETY: each probe takes nothing and only reads how the library was compiled.
    probes.iter().filter(|(_, probe)| unsafe { probe() } != 0).map(|(name, _)| *name).collect()
}
