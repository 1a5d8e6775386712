//! Generated models that are made once and kept, beside the real ones that `fetch-model` keeps.

use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::dequantize;
use crate::shapes::{GENERATOR_VERSION, ModelSpec};
use crate::weights::fnv1a;

/// The cache folder: `$RAMFORGE_CACHE`, or `ramforge` in the user's cache folder.
///
/// # Errors
/// If no variable names a folder.
pub fn folder() -> io::Result<PathBuf> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable("RAMFORGE_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|cache| cache.join("ramforge")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache/ramforge")))
        .ok_or_else(|| io::Error::other("no cache folder: set RAMFORGE_CACHE, XDG_CACHE_HOME or HOME"))
}

/// The path of the generated model; the first call makes it, and calls at the same time wait for that.
///
/// # Errors
/// As [`ModelSpec::write`], and what the cache folder gives.
pub fn model(spec: &ModelSpec) -> io::Result<PathBuf> {
    model_in(&folder()?.join("generated"), spec)
}

fn model_in(folder: &Path, spec: &ModelSpec) -> io::Result<PathBuf> {
    let hash = fnv1a(format!("{GENERATOR_VERSION} {spec:?}").as_bytes());
    made_once(folder.join(format!("{}-{hash:016x}.gguf", spec.name)), |path| spec.write(path).map(drop))
}

/// The path of a copy of the cached model at `source` with every weight as F32; made as [`model`] is.
///
/// # Errors
/// As [`dequantize::f32_copy`], and what the cache folder gives.
pub fn f32_copy(source: &Path) -> io::Result<PathBuf> {
    let stem = source.file_stem().ok_or_else(|| io::Error::other("the model has no file name"))?;
    let name = format!("{}-as-f32.gguf", stem.display());
    made_once(folder()?.join("generated").join(name), |path| dequantize::f32_copy(source, path))
}

fn made_once(path: PathBuf, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<PathBuf> {
    if path.exists() {
        return Ok(path);
    }
    let folder = path.parent().expect("a file in the cache folder");
    fs::create_dir_all(folder)?;
    let lock = File::create(path.with_extension("lock"))?;
    let _lock = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, errno)| io::Error::from(errno))?;
    if !path.exists() {
        let file = tempfile::Builder::new().prefix(".generating-").tempfile_in(folder)?;
        make(file.path())?;
        // Written back now, or it would be while the first test measures; and dirty pages cannot be dropped.
        file.as_file().sync_all()?;
        file.persist(&path)?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::{tiny_llama, tiny_qwen2};

    #[test]
    fn a_model_is_made_once_even_when_several_ask_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let paths: Vec<_> = std::thread::scope(|scope| {
            let asked: Vec<_> =
                (0..4).map(|_| scope.spawn(|| model_in(folder.path(), &tiny_llama()).unwrap())).collect();
            asked.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let made = fs::metadata(&paths[0]).unwrap().modified().unwrap();
        assert!(paths.iter().all(|path| *path == paths[0]));
        assert_eq!(model_in(folder.path(), &tiny_llama()).unwrap(), paths[0]);
        assert_eq!(fs::metadata(&paths[0]).unwrap().modified().unwrap(), made);
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "the model and its lock, and no leftovers: {names:?}");
    }

    #[test]
    fn another_spec_has_another_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = |spec: &ModelSpec| model_in(folder.path(), spec).unwrap();
        let seeded = ModelSpec { seed: 99, ..tiny_llama() };
        assert_ne!(path(&tiny_llama()), path(&seeded));
        assert_ne!(path(&tiny_llama()), path(&tiny_qwen2()));
    }
}
