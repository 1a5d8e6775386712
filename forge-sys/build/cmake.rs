//! The CMake build of the patched tree, CPU only and static.

use std::path::{Path, PathBuf};

use crate::Result;
use crate::source::{Package, Source};

/// What x86-64-v3 has of the instruction sets that ggml is told of one by one. It has defaults for them, which are
/// others when cross-compiling or with SOURCE_DATE_EPOCH.
const X86_64_V3: &[&str] = &["SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2"];

/// Whether the `portable` feature asked for a build that runs on other machines.
pub fn portable() -> bool {
    std::env::var_os("CARGO_FEATURE_PORTABLE").is_some()
}

/// Configures and compiles, and gives the build folder. Always optimised: a debug ggml is of no use to anybody's tests.
pub fn compile(native: &Path, tree: &Path, source: &Source) -> Result<PathBuf> {
    let commit = match &source.package {
        Package::Pinned { name, version } => format!("{name}-{version}"),
        Package::Checkout => "checkout".into(),
    };
    // Assertions carry __FILE__; a message should name upstream's file, not the build folder.
    let prefix = format!("-ffile-prefix-map={}/=", tree.display());
    let mut config = cmake::Config::new(native);
    config
        .profile("Release")
        .define("FORGE_LLAMA_SOURCE", tree)
        .define("BUILD_SHARED_LIBS", "OFF")
        // Named here, or the build asks git and gets the commit of whatever repository surrounds it.
        .define("LLAMA_BUILD_COMMIT", &commit)
        .define("LLAMA_BUILD_NUMBER", "0")
        .define("GGML_CCACHE", "OFF")
        // ggml's own thread pool, whose polling we set, instead of OpenMP's, which spins as it likes.
        .define("GGML_OPENMP", "OFF")
        .define("GGML_NATIVE", if portable() { "OFF" } else { "ON" })
        .cflag(&prefix)
        .cxxflag(&prefix)
        .build_target("llama");
    for part in ["COMMON", "TESTS", "TOOLS", "EXAMPLES", "SERVER", "APP"] {
        config.define(format!("LLAMA_BUILD_{part}"), "OFF");
    }
    if portable() && crate::variable("CARGO_CFG_TARGET_ARCH")? == "x86_64" {
        for set in X86_64_V3 {
            config.define(format!("GGML_{set}"), "ON");
        }
        config.define("GGML_AVX512", "OFF");
    }
    Ok(config.build().join("build"))
}
