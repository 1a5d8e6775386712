//! What is linked: the static libraries of the native build, and the C++ runtime.

use std::path::Path;

/// Static libraries in the order the linker needs them, with their folder below the build folder.
const LIBRARIES: &[(&str, &str)] = &[
    ("llama", "llama.cpp/src"),
    ("ggml", "llama.cpp/ggml/src"),
    ("ggml-cpu", "llama.cpp/ggml/src"),
    ("ggml-base", "llama.cpp/ggml/src"),
];

/// Tells Cargo to link what was compiled in the folder `build`.
pub fn link(build: &Path) {
    for (library, folder) in LIBRARIES {
        println!("cargo::rustc-link-search=native={}", build.join(folder).display());
        println!("cargo::rustc-link-lib=static={library}");
    }
    println!("cargo::rustc-link-lib=dylib=stdc++");
    println!("cargo::rustc-link-lib=dylib=m");
}
