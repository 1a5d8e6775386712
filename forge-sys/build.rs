//! The native build, step by step: find the pinned llama.cpp, copy and patch it, compile it with our own
//! sources joined in, and generate the bindings. Each step is a module under `build/`.

#[path = "build/bindgen.rs"]
mod bindgen;
#[path = "build/cmake.rs"]
mod cmake;
#[path = "build/link.rs"]
mod link;
#[path = "build/patch.rs"]
mod patch;
#[path = "build/source.rs"]
mod source;
#[path = "build/tools.rs"]
mod tools;

use std::path::{Path, PathBuf};
use std::{env, process};

/// A step failed; the text is one line that says what to do.
type Result<T> = std::result::Result<T, String>;

fn main() {
    if let Err(message) = build() {
        // The last line of a failed build script is what the user sees first.
        eprintln!("error: forge-sys: {message}");
        process::exit(1);
    }
}

fn build() -> Result<()> {
    let manifest = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(variable("OUT_DIR")?);
    let root = manifest.parent().ok_or("forge-sys has no parent folder")?.to_path_buf();
    for watched in ["forge-sys/build", "native", "patches"] {
        println!("cargo::rerun-if-changed={}", root.join(watched).display());
    }

    tools::require()?;
    let series = patch::Series::read(&root.join("patches"))?;
    let source = source::locate(&root)?;
    let tree = match &source.package {
        source::Package::Pinned { .. } => patch::patched_copy(&source.path, &series, &out)?,
        source::Package::Checkout => {
            series.require_applied(&source.path)?;
            source.path.clone()
        }
    };
    link::link(&cmake::compile(&root.join("native"), &tree, &source)?);
    bindgen::generate(&root.join("native"), &tree, &out)?;
    write_origin(&source, &series, &out.join("origin.rs"))
}

/// Writes the constants that say what was built, which the crate includes.
fn write_origin(source: &source::Source, series: &patch::Series, path: &Path) -> Result<()> {
    let (name, version) = match &source.package {
        source::Package::Pinned { name, version } => (name.as_str(), version.as_str()),
        source::Package::Checkout => ("checkout", "unknown"),
    };
    let text = format!(
        "pub const SOURCE: &str = {name:?};\npub const SOURCE_VERSION: &str = {version:?};\n\
         pub const PATCHES: &[&str] = &{:?};\npub const PORTABLE: bool = {};\n",
        series.names(),
        cmake::portable(),
    );
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// A variable that Cargo always sets for a build script.
fn variable(name: &str) -> Result<String> {
    env::var(name).map_err(|_| format!("{name} is not set; build with cargo"))
}
