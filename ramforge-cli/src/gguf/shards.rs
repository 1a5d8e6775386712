//! From what the user typed to the files of one model.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    error::Error,
    header::{Header, Metadata},
    value::Value,
};

/// One file of a model.
#[derive(Clone, Debug)]
pub struct ShardFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// What it says.
    pub header: Header,
}

/// The files of the model at `path`, in the order of their shards: a file, any shard of a split model, or a
/// folder that holds exactly one model.
///
/// # Errors
/// When there is no such file, when it is no regular file, when a folder holds no model or several, when a
/// shard is missing or there twice, and when a header is not valid.
pub fn resolve(path: &Path) -> crate::Result<Vec<ShardFile>> {
    match kind(path)? {
        Kind::File => from_file(path),
        Kind::Folder => from_file(&only_model(path)?),
    }
}

enum Kind {
    File,
    Folder,
}

/// What is at `path`, after following symbolic links. Opening a FIFO or a device could block for ever, so
/// nothing but files and folders gets further than this.
fn kind(path: &Path) -> crate::Result<Kind> {
    let metadata = fs::metadata(path).map_err(|error| {
        let dangling = error.kind() == io::ErrorKind::NotFound && path.is_symlink();
        let message = match dangling {
            true => format!("cannot open {}: the symbolic link points nowhere", path.display()),
            false => format!("cannot open {}", path.display()),
        };
        crate::Error::failed(message).caused_by(error)
    })?;
    match metadata.file_type() {
        kind if kind.is_file() => Ok(Kind::File),
        kind if kind.is_dir() => Ok(Kind::Folder),
        _ => Err(crate::Error::failed(format!(
            "cannot use {}: it is a device, a pipe or a socket, not a file",
            path.display()
        ))),
    }
}

/// The shards of the model that the file at `path` belongs to.
fn from_file(path: &Path) -> crate::Result<Vec<ShardFile>> {
    let given = read(path)?;
    let split = Split::read(&given.header.metadata).map_err(|error| error.at(path))?;
    let Some(split) = split.filter(|split| split.count > 1) else { return Ok(vec![given]) };
    let name =
        ShardName::parse(path).filter(|name| name.count == u32::from(split.count)).ok_or_else(|| {
            crate::Error::failed(format!(
                "cannot use {}: it is shard {} of {}, but its name does not end in -{:05}-of-{:05}.gguf",
                path.display(),
                u32::from(split.number) + 1,
                split.count,
                u32::from(split.number) + 1,
                split.count
            ))
            .hint("give the shards the names that they were downloaded with")
        })?;
    let mut given = Some(given);
    let mut files = Vec::new();
    for number in 1..=name.count {
        let file = match given.take_if(|_| number == name.number) {
            Some(file) => file,
            None => read_sibling(&name.path(number), path)?,
        };
        check_split(&file, number, split.count)?;
        files.push(file);
    }
    Ok(files)
}

fn read(path: &Path) -> crate::Result<ShardFile> {
    let (header, bytes) = Header::open(path)?;
    Ok(ShardFile { path: path.to_owned(), bytes, header })
}

fn read_sibling(path: &Path, given: &Path) -> crate::Result<ShardFile> {
    if !path.exists() && !path.is_symlink() {
        return Err(crate::Error::failed(format!("shard {} is missing", path.display())).hint(format!(
            "all shards must be in the folder of {}; download the missing one",
            given.display()
        )));
    }
    match kind(path)? {
        Kind::File => read(path),
        Kind::Folder => Err(crate::Error::failed(format!("cannot use {}: it is a folder", path.display()))),
    }
}

/// What a shard says about its place in the set.
struct Split {
    /// Counted from 0.
    number: u16,
    count: u16,
}

impl Split {
    /// The native loader aborts on other types than `u16`.
    fn read(metadata: &Metadata) -> Result<Option<Self>, Error> {
        let u16 = |key| {
            metadata.typed(key, "u16", |value| match value {
                Value::U16(number) => Some(*number),
                _ => None,
            })
        };
        let number = u16("split.no")?;
        match (u16("split.count")?, number) {
            (Some(count), Some(number)) => Ok(Some(Self { number, count })),
            (Some(count), None) if count > 1 => Err(Error::MissingKey {
                key: "split.no".into(),
                why: format!(", but split.count is {count}"),
            }),
            _ => Ok(None),
        }
    }
}

/// Checks that the file named as shard `number` of `count` is that shard.
fn check_split(file: &ShardFile, number: u32, count: u16) -> crate::Result<()> {
    let wrong = |error: Error| error.at(&file.path);
    let split = Split::read(&file.header.metadata).map_err(wrong)?.ok_or_else(|| {
        wrong(Error::MissingKey {
            key: "split.count".into(),
            why: format!(", but this is one of {count} shards"),
        })
    })?;
    if split.count != count {
        return Err(wrong(Error::KeyValue {
            key: "split.count".into(),
            value: split.count.to_string(),
            rule: format!("the other shards say {count}"),
        }));
    }
    if u32::from(split.number) + 1 != number {
        return Err(wrong(Error::KeyValue {
            key: "split.no".into(),
            value: split.number.to_string(),
            rule: format!(
                "by its name this is shard {number}, which has the number {}; is another shard here twice?",
                number - 1
            ),
        }));
    }
    Ok(())
}

/// A name such as `model-00002-of-00003.gguf`, taken apart.
#[derive(Debug, PartialEq, Eq)]
struct ShardName {
    folder: PathBuf,
    prefix: String,
    /// Counted from 1.
    number: u32,
    count: u32,
}

impl ShardName {
    fn parse(path: &Path) -> Option<Self> {
        let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| -> Option<u32> {
            (text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
        };
        let (number, count) = (digits(number)?, digits(count)?);
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        (1..=count).contains(&number).then(|| Self { folder, prefix: prefix.to_owned(), number, count })
    }

    fn path(&self, number: u32) -> PathBuf {
        self.folder.join(format!("{}-{number:05}-of-{:05}.gguf", self.prefix, self.count))
    }
}

/// The one model in a folder: a file of it that is there.
fn only_model(folder: &Path) -> crate::Result<PathBuf> {
    let failed = |error: io::Error| {
        crate::Error::failed(format!("cannot read the folder {}", folder.display())).caused_by(error)
    };
    // The shards of a set share the key; the value is its first file.
    let mut models = BTreeMap::<(String, u32), PathBuf>::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_none_or(|extension| extension != "gguf") || path.is_dir() {
            continue;
        }
        let key = match ShardName::parse(&path) {
            Some(name) => (name.prefix, name.count),
            None => (path.to_string_lossy().into_owned(), 0),
        };
        let first = models.entry(key).or_insert_with(|| path.clone());
        if path < *first {
            *first = path;
        }
    }
    let mut paths = models.into_values();
    match (paths.next(), paths.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => {
            Err(crate::Error::failed(format!("the folder {} holds no .gguf file", folder.display()))
                .hint("give the path of a GGUF file"))
        }
        (Some(first), Some(second)) => {
            let all: Vec<String> =
                [first, second].into_iter().chain(paths).map(|path| path.display().to_string()).collect();
            Err(crate::Error::failed(format!(
                "the folder {} holds {} models: {}",
                folder.display(),
                all.len(),
                all.join(", ")
            ))
            .hint("give the path of the one to use"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::symlink, net::UnixListener};

    use super::*;
    use crate::gguf::{
        Model,
        builder::{Builder, string},
    };

    /// Three shards of the tiny llama in a folder, spoiled by `spoil` before they are written.
    fn shards(folder: &Path, spoil: impl Fn(usize, &mut Builder)) -> Vec<PathBuf> {
        let whole = Builder::llama();
        let each = whole.tensors.len().div_ceil(3);
        let write = |(number, tensors): (usize, &[_])| {
            let mut file = if number == 0 { whole.clone() } else { Builder::new() };
            file.tensors = tensors.to_vec();
            file.set("split.no", Value::U16(number as u16)).set("split.count", Value::U16(3));
            file.set("split.tensors.count", Value::I32(whole.tensors.len() as i32));
            spoil(number, &mut file);
            let path = folder.join(format!("tiny-{:05}-of-00003.gguf", number + 1));
            fs::write(&path, file.build()).unwrap();
            path
        };
        whole.tensors.chunks(each).enumerate().map(write).collect()
    }

    #[track_caller]
    fn refused(path: &Path, part: &str) {
        let error = Model::open(path).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }

    #[test]
    fn any_shard_and_the_folder_lead_to_the_whole_model() {
        let folder = tempfile::tempdir().unwrap();
        let paths = shards(folder.path(), |_, _| {});
        for path in paths.iter().map(PathBuf::as_path).chain([folder.path()]) {
            let model = Model::open(path).unwrap();
            let files: Vec<_> = model.files().iter().map(|file| file.path.clone()).collect();
            assert_eq!(files, paths);
            assert_eq!(model.tensor_count(), Builder::llama().tensors.len());
            let names: Vec<_> = model.tensors().map(|(shard, tensor)| (shard, &*tensor.name)).collect();
            assert_eq!((names[0], names[names.len() - 1].0), ((0, "token_embd.weight"), 2));
        }
    }

    #[test]
    fn shards_that_are_missing_or_contradict_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let spoiled = |part: &str, spoil: &dyn Fn(usize, &mut Builder)| {
            let paths = shards(folder, spoil);
            refused(&paths[0], part);
            refused(folder, part);
        };
        spoiled(
            "tiny-00002-of-00003.gguf: metadata key split.count is 4: the other shards say 3",
            &|number, file| {
                if number == 1 {
                    file.set("split.count", Value::U16(4));
                }
            },
        );
        spoiled("tiny-00003-of-00003.gguf: metadata key split.no is u32, expected u16", &|number, file| {
            if number == 2 {
                file.set("split.no", Value::U32(2));
            }
        });
        spoiled("split.tensors.count is u32, expected i32", &|_, file| {
            file.set("split.tensors.count", Value::U32(20));
        });
        spoiled("split.tensors.count is 21: the shards together have 20 tensors", &|_, file| {
            file.set("split.tensors.count", Value::I32(21));
        });
        spoiled("split.no is missing, but split.count is 3", &|_, file| {
            file.unset("split.no");
        });
        spoiled(
            "tiny-00002-of-00003.gguf: tensor token_embd.weight is in another shard too",
            &|number, file| {
                if number == 1 {
                    file.tensors[0].clone_from(&Builder::llama().tensors[0]);
                }
            },
        );
        let paths = shards(folder, |_, _| {});
        fs::copy(&paths[0], &paths[1]).unwrap();
        refused(
            &paths[2],
            "tiny-00002-of-00003.gguf: metadata key split.no is 0: by its name this is shard 2",
        );
        fs::remove_file(&paths[1]).unwrap();
        refused(&paths[2], "tiny-00002-of-00003.gguf is missing");
        refused(folder, "tiny-00002-of-00003.gguf is missing");
        let renamed = folder.join("renamed.gguf");
        fs::rename(&paths[0], &renamed).unwrap();
        refused(&renamed, "it is shard 1 of 3, but its name does not end in -00001-of-00003.gguf");
    }

    #[test]
    fn what_is_no_model() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        refused(&at("none.gguf"), "none.gguf: No such file");
        refused(folder.path(), "holds no .gguf file");
        fs::write(at("readme.txt"), "# About the model\n").unwrap();
        refused(&at("readme.txt"), "not a GGUF file: it starts with \"# Ab\"");
        refused(folder.path(), "holds no .gguf file");
        symlink(at("gone.gguf"), at("dangling.gguf")).unwrap();
        refused(&at("dangling.gguf"), "the symbolic link points nowhere");
        let _socket = UnixListener::bind(at("socket.gguf")).unwrap();
        refused(&at("socket.gguf"), "it is a device, a pipe or a socket, not a file");
        refused(Path::new("/dev/zero"), "it is a device, a pipe or a socket, not a file");
        fs::remove_file(at("socket.gguf")).unwrap();
        fs::remove_file(at("dangling.gguf")).unwrap();
        fs::write(at("empty.gguf"), "").unwrap();
        refused(folder.path(), "empty.gguf: the file is empty");
        fs::remove_file(at("empty.gguf")).unwrap();
        fs::write(at("a.gguf"), Builder::llama().build()).unwrap();
        assert!(Model::open(folder.path()).is_ok());
        fs::write(at("b.gguf"), Builder::llama().build()).unwrap();
        refused(folder.path(), "holds 2 models: ");
    }

    #[test]
    fn a_whole_model_may_be_called_like_a_shard() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny-00001-of-00003.gguf");
        fs::write(&path, Builder::llama().set("general.name", string("whole")).build()).unwrap();
        assert_eq!(Model::open(&path).unwrap().files().len(), 1);
    }

    #[test]
    fn names_are_taken_apart_and_put_together() {
        let name = ShardName::parse(Path::new("/models/a-b-00002-of-00010.gguf")).unwrap();
        assert_eq!((name.number, name.count), (2, 10));
        assert_eq!(name.path(10), Path::new("/models/a-b-00010-of-00010.gguf"));
        for wrong in
            ["a-00000-of-00002.gguf", "a-00003-of-00002.gguf", "a-1-of-2.gguf", "a-00001-of-00002.bin", "a"]
        {
            assert_eq!(ShardName::parse(Path::new(wrong)), None, "{wrong}");
        }
    }
}
