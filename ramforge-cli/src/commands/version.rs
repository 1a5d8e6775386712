//! `ramforge --version`.

/// The program's version with what is linked in: native versions, their source, and the patches.
pub fn long_version() -> String {
    let origin = forge_core::backend::origin();
    let patches = if origin.patches.is_empty() { "none".to_owned() } else { origin.patches.join(", ") };
    let target = if origin.portable { "portable" } else { "this machine" };
    format!(
        "{}\nllama.cpp {}, ggml {} (from {} {}, built for {target})\npatches: {patches}",
        env!("CARGO_PKG_VERSION"),
        origin.llama_cpp,
        origin.ggml,
        origin.source,
        origin.source_version,
    )
}
