//! The bindings: a narrow allowlist of what forge-core calls.

use std::path::Path;

use crate::Result;

/// Functions that forge-core calls directly because they cannot throw.
const FUNCTIONS: &[&str] = &[
    "forge_.*",
    "ggml_backend_dev_(by_name|count|get|get_props|type)",
    "ggml_backend_dev_backend_reg",
    "ggml_backend_reg_name",
    "ggml_blck_size",
    "ggml_cpu_has_.*",
    "ggml_get_type_traits_cpu",
    "ggml_graph_(n_nodes|node)",
    "ggml_is_quantized",
    "ggml_(nbytes|op_name)",
    "ggml_set_abort_callback",
    "ggml_threadpool_(free|new|params_init)",
    "ggml_type_(name|size)",
    "ggml_(commit|version)",
    "llama_(attach_threadpool|detach_threadpool|free|synchronize|set_abort_callback)",
    "llama_backend_init",
    "llama_batch_(free|init)",
    "llama_context_default_params",
    "llama_get_(logits_ith|memory)",
    "llama_log_set",
    "llama_memory_(clear|seq_rm|seq_pos_max|seq_pos_min)",
    "llama_model_(chat_template|default_params|desc|free|get_vocab|has_encoder)",
    "llama_model_n_(ctx_train|embd|layer|params|head|head_kv)",
    "llama_model_size",
    "llama_n_(batch|ctx|ctx_seq|seq_max|threads|threads_batch|ubatch)",
    "llama_sampler_(accept|chain_add|chain_default_params|chain_init|free|reset)",
    "llama_sampler_init_(dist|greedy|min_p|penalties|temp|top_k|top_p)",
    "llama_version",
    "llama_vocab_(bos|eos|eot|nl|pad|get_add_bos|get_add_eos|is_control|is_eog|n_tokens|type)",
];

/// Functions that `examples/direct.rs` calls beside those, to do what a plain C program does. They can throw:
/// forge-core has barriers for them.
const DIRECT: &[&str] = &[
    "llama_decode",
    "llama_init_from_model",
    "llama_model_load_from_file",
    "llama_sampler_sample",
    "llama_token_to_piece",
    "llama_tokenize",
];

/// Writes `bindings.rs` to `out`, with bindgen's layout tests.
pub fn generate(native: &Path, tree: &Path, out: &Path) -> Result<()> {
    let mut builder = bindgen::Builder::default()
        .header(native.join("forge_ext.h").to_string_lossy())
        .clang_arg(format!("-I{}", tree.join("include").display()))
        .clang_arg(format!("-I{}", tree.join("ggml/include").display()))
        .allowlist_recursively(true)
        .allowlist_var("GGML_MAX_N_THREADS|LLAMA_DEFAULT_SEED|LLAMA_TOKEN_NULL")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(true)
        .generate_comments(false)
        .layout_tests(true);
    for function in FUNCTIONS.iter().chain(DIRECT) {
        builder = builder.allowlist_function(function);
    }
    let bindings = builder.generate().map_err(|error| format!("bindgen: {error}"))?;
    let path = out.join("bindings.rs");
    bindings.write_to_file(&path).map_err(|error| format!("cannot write {}: {error}", path.display()))
}
