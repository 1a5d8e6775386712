//! A model as its shards together make it.

use std::{collections::HashSet, path::Path};

use super::{
    error::Error,
    header::{Metadata, TensorInfo},
    hyperparameters::Hyperparameters,
    shards::{self, ShardFile},
    text::printable,
    validate,
    value::Value,
};

/// A validated model: the metadata of its first file, and the tensors of all of them.
#[derive(Clone, Debug)]
pub struct Model {
    files: Vec<ShardFile>,
    architecture: String,
    hyperparameters: Option<Hyperparameters>,
}

impl Model {
    /// Finds the files of the model at `path` (a file, any shard, or a folder with one model), reads their
    /// headers and checks everything that can be checked without the data.
    ///
    /// # Errors
    /// When there is no such model, or something is wrong with it; the error names the file and the field.
    pub fn open(path: &Path) -> crate::Result<Self> {
        Self::new(shards::resolve(path)?)
    }

    /// The model that `files` make, in the order of their shards; there is at least one.
    ///
    /// # Errors
    /// When the files contradict each other or themselves.
    pub fn new(files: Vec<ShardFile>) -> crate::Result<Self> {
        let Some(first) = files.first() else {
            return Err(crate::Error::failed("a model has at least one file"));
        };
        unique_tensors(&files)?;
        let model = || {
            let metadata = &first.header.metadata;
            tensor_total(metadata, &files)?;
            let architecture = architecture(metadata)?;
            no_adapter(metadata, &files)?;
            let hyperparameters = match has_layers(&architecture) {
                true => Some(Hyperparameters::read(metadata, &architecture)?),
                false => None,
            };
            Ok((architecture, hyperparameters))
        };
        let (architecture, hyperparameters) = model().map_err(|error: Error| error.at(&first.path))?;
        let model = Self { architecture, hyperparameters, files };
        validate::check(&model).map_err(|error| error.at(&model.files[0].path))?;
        Ok(model)
    }

    /// Its files, in the order of their shards.
    pub fn files(&self) -> &[ShardFile] {
        &self.files
    }

    /// The metadata of the first file.
    pub fn metadata(&self) -> &Metadata {
        &self.files[0].header.metadata
    }

    /// The value of `general.architecture`.
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// The hyper-parameters; `None` for a file that is no language model, such as an image encoder.
    pub fn hyperparameters(&self) -> Option<&Hyperparameters> {
        self.hyperparameters.as_ref()
    }

    /// All tensors in the order of the files, each with the index of its file.
    pub fn tensors(&self) -> impl Iterator<Item = (usize, &TensorInfo)> {
        let numbered = self.files.iter().enumerate();
        numbered.flat_map(|(shard, file)| file.header.tensors.iter().map(move |tensor| (shard, tensor)))
    }

    /// How many tensors there are.
    pub fn tensor_count(&self) -> usize {
        self.files.iter().map(|file| file.header.tensors.len()).sum()
    }

    /// Bytes of all tensors, without padding.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors().map(|(_, tensor)| tensor.bytes).sum()
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// Image and audio encoders come as GGUF files of their own and have no hyper-parameters of a language model.
fn has_layers(architecture: &str) -> bool {
    architecture != "clip"
}

fn architecture(metadata: &Metadata) -> Result<String, Error> {
    let key = "general.architecture";
    let Some(bytes) = metadata.string(key)? else {
        return Err(Error::MissingKey { key: key.into(), why: String::new() });
    };
    let wrong = || Error::KeyValue {
        key: key.into(),
        value: format!("\"{}\"", printable(bytes)),
        rule: "it must be the name of an architecture".into(),
    };
    match std::str::from_utf8(bytes) {
        Ok(name) if !name.is_empty() && !name.chars().any(|c| c.is_control() || c.is_whitespace()) => {
            Ok(name.to_owned())
        }
        _ => Err(wrong()),
    }
}

/// An adapter names the architecture that it adapts, but has nothing else of the model.
fn no_adapter(metadata: &Metadata, files: &[ShardFile]) -> Result<(), Error> {
    let mut tensors = files.iter().flat_map(|file| &file.header.tensors);
    match metadata.get("general.type") {
        Some(Value::String(kind))
            if kind == b"adapter" && !tensors.any(|t| &*t.name == "token_embd.weight") =>
        {
            Err(Error::KeyValue {
                key: "general.type".into(),
                value: "\"adapter\"".into(),
                rule: "an adapter is not a model; give the model that it adapts".into(),
            })
        }
        _ => Ok(()),
    }
}

/// A tensor may be in one shard only. Within a file the header reader has already made sure.
fn unique_tensors(files: &[ShardFile]) -> crate::Result<()> {
    if files.len() < 2 {
        return Ok(());
    }
    let mut seen = HashSet::new();
    for file in files {
        for tensor in &file.header.tensors {
            if !seen.insert(&*tensor.name) {
                let problem = "is in another shard too".to_owned();
                return Err(Error::Tensor { name: printable(&*tensor.name), problem }.at(&file.path));
            }
        }
    }
    Ok(())
}

/// The tensors that the first of several shards promises.
fn tensor_total(metadata: &Metadata, files: &[ShardFile]) -> Result<(), Error> {
    if files.len() < 2 {
        return Ok(());
    }
    let key = "split.tensors.count";
    let promised = metadata.typed(key, "i32", |value| match value {
        Value::I32(count) => Some(*count),
        _ => None,
    })?;
    let promised =
        promised.ok_or_else(|| Error::MissingKey { key: key.into(), why: " from the first shard".into() })?;
    let found: usize = files.iter().map(|file| file.header.tensors.len()).sum();
    if i64::from(promised) == found as i64 {
        return Ok(());
    }
    Err(Error::KeyValue {
        key: key.into(),
        value: promised.to_string(),
        rule: format!("the shards together have {found} tensors"),
    })
}
