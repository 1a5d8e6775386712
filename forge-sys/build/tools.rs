//! What the native build needs on the machine, asked for before anything slow starts.

use std::panic;
use std::process::{Command, Stdio};

use crate::Result;

/// Fails with one line that names the package to install when a tool is missing.
pub fn require() -> Result<()> {
    for variable in ["CMAKE", "CXX", "LIBCLANG_PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let cmake = std::env::var("CMAKE").unwrap_or_else(|_| "cmake".into());
    let cxx = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    need(&cmake, "cmake", "cmake")?;
    need(&cxx, "a C++ compiler", "g++")?;
    need("make", "make", "make")?;
    need("git", "git, which applies the patches", "git")?;
    need_libclang()
}

/// bindgen loads libclang at run time and panics without it, with a text that names no package.
fn need_libclang() -> Result<()> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let found = panic::catch_unwind(bindgen::clang_version);
    panic::set_hook(hook);
    found.map(|_| ()).map_err(|_| missing("libclang", "libclang-dev"))
}

fn need(program: &str, what: &str, package: &str) -> Result<()> {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match found {
        Ok(status) if status.success() => Ok(()),
        _ => Err(missing(what, package)),
    }
}

fn missing(what: &str, package: &str) -> String {
    format!("{what} is not installed; on Debian or Ubuntu: apt-get install {package}")
}
