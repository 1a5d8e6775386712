//! Where the llama.cpp tree comes from.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;

/// The package that carries the pinned source.
const CARRIER: &str = "llama-cpp-sys-2";

/// A llama.cpp tree and what is known of its origin.
pub struct Source {
    pub path: PathBuf,
    pub package: Package,
}

/// What the tree belongs to.
pub enum Package {
    /// The package that Cargo.lock pins, pristine.
    Pinned { name: String, version: String },
    /// The tree that FORGE_LLAMA_DIR names, used as it is.
    Checkout,
}

/// Finds the tree: FORGE_LLAMA_DIR, from the workspace's folder `root` where it is relative, or the package that
/// Cargo.lock pins.
pub fn locate(root: &Path) -> Result<Source> {
    println!("cargo::rerun-if-env-changed=FORGE_LLAMA_DIR");
    let source = match std::env::var_os("FORGE_LLAMA_DIR") {
        Some(dir) => {
            let path = root.join(dir);
            for watched in ["src", "include", "ggml/src", "ggml/include"] {
                println!("cargo::rerun-if-changed={}", path.join(watched).display());
            }
            Source { path, package: Package::Checkout }
        }
        None => pinned(root)?,
    };
    if source.path.join("include/llama.h").is_file() {
        Ok(source)
    } else {
        Err(format!("{} holds no llama.cpp tree: include/llama.h is missing", source.path.display()))
    }
}

/// Asks Cargo where the carrier package lies; Cargo downloads and verifies it if it must.
fn pinned(root: &Path) -> Result<Source> {
    let cargo = crate::variable("CARGO")?;
    let output = Command::new(cargo)
        .args(["metadata", "--locked", "--format-version", "1"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot run cargo metadata: {error}"))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo metadata --locked failed: {}", reason.trim()));
    }
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    let package = metadata["packages"]
        .as_array()
        .and_then(|packages| packages.iter().find(|package| package["name"] == CARRIER))
        .ok_or_else(|| format!("Cargo.lock does not pin {CARRIER}"))?;
    let text = |key: &str| package[key].as_str().map(str::to_owned).ok_or(format!("{CARRIER} has no {key}"));
    let path = Path::new(&text("manifest_path")?).with_file_name("llama.cpp");
    Ok(Source { path, package: Package::Pinned { name: CARRIER.into(), version: text("version")? } })
}
