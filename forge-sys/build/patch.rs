//! The patch series, and the patched copy of the source.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::Result;

/// What of the tree is needed to build the libraries.
const PARTS: &[&str] = &["CMakeLists.txt", "LICENSE", "cmake", "ggml", "include", "src", "vendor"];

/// The patches of `patches/series`, in order.
pub struct Series {
    patches: Vec<PathBuf>,
}

impl Series {
    /// Reads `series` in `folder`: one file name a line, `#` starts a comment.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("series");
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let names = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Ok(Self { patches: names.map(|name| folder.join(name)).collect() })
    }

    /// The patches' names without `.patch`.
    pub fn names(&self) -> Vec<String> {
        self.patches.iter().filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect()
    }

    /// Fails unless `tree` already carries every patch.
    pub fn require_applied(&self, tree: &Path) -> Result<()> {
        for patch in &self.patches {
            // Without context: it may differ in a tree of another version, and our own lines say enough.
            let output = git_apply(tree, &["--reverse", "--check", "-C0"], patch)?;
            if !output.status.success() {
                return Err(format!(
                    "FORGE_LLAMA_DIR does not carry {}; apply the series first (build-scripts/patches apply)",
                    patch.display()
                ));
            }
        }
        Ok(())
    }

    /// Everything the patched copy depends on besides the pristine source.
    fn stamp(&self, source: &Path) -> Result<String> {
        let mut stamp = format!("{}\n", source.display());
        for patch in &self.patches {
            let text = fs::read_to_string(patch).map_err(|error| format!("{}: {error}", patch.display()))?;
            stamp.push_str(&text);
        }
        Ok(stamp)
    }
}

/// Copies `source` below `out` and applies the series. A copy made from the same source and patches before
/// is kept, so that the native build stays incremental.
pub fn patched_copy(source: &Path, series: &Series, out: &Path) -> Result<PathBuf> {
    let tree = out.join("llama.cpp");
    let stamp_file = out.join("llama.cpp.stamp");
    let stamp = series.stamp(source)?;
    if fs::read_to_string(&stamp_file).is_ok_and(|made_from| made_from == stamp) {
        return Ok(tree);
    }
    if tree.exists() {
        fs::remove_dir_all(&tree).map_err(|error| format!("cannot clear {}: {error}", tree.display()))?;
    }
    for part in PARTS {
        copy(&source.join(part), &tree.join(part)).map_err(|error| format!("cannot copy {part}: {error}"))?;
    }
    for patch in &series.patches {
        let output = git_apply(&tree, &["--whitespace=nowarn"], patch)?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{} does not apply: {}", patch.display(), reason.trim()));
        }
    }
    fs::write(&stamp_file, stamp).map_err(|error| format!("{}: {error}", stamp_file.display()))?;
    Ok(tree)
}

/// Runs `git apply` on `tree` as a plain folder: without the ceiling, git would find the repository that
/// surrounds the build folder, take the paths for that repository's, and skip the patch in silence.
fn git_apply(tree: &Path, options: &[&str], patch: &Path) -> Result<Output> {
    Command::new("git")
        .arg("apply")
        .args(options)
        .arg(patch)
        .current_dir(tree)
        .env("GIT_CEILING_DIRECTORIES", tree.parent().unwrap_or(tree))
        .env_remove("GIT_DIR")
        .env_remove("GIT_WORK_TREE")
        .output()
        .map_err(|error| format!("cannot run git apply: {error}"))
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    if !from.is_dir() {
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::copy(from, to)?;
        return Ok(());
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}
