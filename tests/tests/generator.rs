//! The generated files: the same bytes for the same spec, and where the header says they are.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ramforge_tests::dequantize;
use ramforge_tests::gguf_reader::Header;
use ramforge_tests::gguf_writer::{ALIGNMENT, Contents, Data, TensorInfo, TensorType, Value};
use ramforge_tests::shapes::{self, ModelSpec};
use ramforge_tests::weights::{self, Distribution};

fn tiny() -> [ModelSpec; 4] {
    [shapes::tiny_llama(), shapes::tiny_qwen2(), shapes::tiny_gptneox(), shapes::tiny_moe()]
}

/// Length of the data section if the last tensor ends where the file does, padding included.
fn data_end(header: &Header, contents: &Contents) -> u64 {
    let last = header.tensors.last().unwrap();
    header.data_start + last.offset + contents.tensors.last().unwrap().bytes().next_multiple_of(ALIGNMENT)
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_others() {
    let folder = tempfile::tempdir().unwrap();
    for spec in tiny() {
        let bytes = |spec: &ModelSpec, name: &str| {
            let path = folder.path().join(name);
            spec.write(&path).unwrap();
            fs::read(path).unwrap()
        };
        let first = bytes(&spec, "first");
        assert!(first == bytes(&spec, "again"), "{} differs from itself", spec.name);
        let other = bytes(&ModelSpec { seed: spec.seed + 1, ..spec.clone() }, "other");
        assert_eq!(first.len(), other.len());
        assert!(first != other, "{} does not depend on its seed", spec.name);
    }
}

/// If this fails, the generator's bytes changed: add one to `shapes::GENERATOR_VERSION`, so that no cache
/// hands out the old ones, record the oracle's values again, and put the new sums here.
#[test]
fn the_bytes_are_those_of_this_generator_version() {
    let sums = tiny().map(|spec| {
        let file = tempfile::NamedTempFile::new().unwrap();
        spec.write(file.path()).unwrap();
        let bytes = fs::read(file.path()).unwrap();
        let words =
            bytes.chunks(8).map(|chunk| chunk.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)));
        words.fold(0, |sum: u64, word| (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3))
    });
    assert_eq!(shapes::GENERATOR_VERSION, 1);
    assert_eq!(sums, [14710362736375771855, 2893048364723180023, 15176885002617560790, 6239284531841837056]);
}

#[test]
fn the_header_reads_back_as_it_was_meant_and_every_tensor_is_where_it_says() {
    for spec in tiny() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let length = spec.write(file.path()).unwrap();
        assert_eq!(fs::metadata(file.path()).unwrap().len(), length);

        let contents = spec.contents().unwrap();
        let header = Header::read(file.path()).unwrap();
        assert_eq!(header.metadata, contents.metadata);
        assert_eq!(header.data_start % ALIGNMENT, 0);
        assert_eq!(data_end(&header, &contents), length);
        let bytes = fs::read(file.path()).unwrap();
        let mut end = 0;
        for ((info, values), read) in spec.tensors().iter().zip(&header.tensors) {
            assert_eq!((&info.name, &info.dimensions), (&read.name, &read.dimensions));
            assert_eq!((info.kind.id(), read.offset % ALIGNMENT), (read.type_id, 0));
            assert!(read.offset >= end && read.offset - end < ALIGNMENT, "{} is out of place", info.name);
            end = read.offset + info.bytes();
            let mut data = Vec::new();
            weights::write(spec.seed, info, *values, &mut data).unwrap();
            let at = (header.data_start + read.offset) as usize;
            assert!(bytes[at..at + data.len()] == data, "{} has other bytes", info.name);
        }
        assert_eq!(header.tensors.len(), contents.tensors.len());
    }
}

#[test]
fn metadata_values_of_every_type_read_back() {
    let every = vec![
        Value::U8(200),
        Value::I8(-100),
        Value::U16(60_000),
        Value::I16(-30_000),
        Value::U32(4_000_000_000),
        Value::I32(-2_000_000_000),
        Value::F32(1.5),
        Value::Bool(true),
        Value::String("Ġ tensor".to_owned()),
        Value::strings(["a", ""]),
        Value::U64(u64::MAX),
        Value::I64(i64::MIN),
        Value::F64(-0.1),
        Value::Array(9, vec![Value::i32s([1, 2]), Value::i32s([])]),
    ];
    let metadata: Vec<_> =
        every.into_iter().enumerate().map(|(n, value)| (format!("key.{n}"), value)).collect();
    let contents = Contents { metadata, tensors: Vec::new() };
    let file = tempfile::NamedTempFile::new().unwrap();
    contents.write(file.path(), Data::Sparse).unwrap();
    assert_eq!(Header::read(file.path()).unwrap().metadata, contents.metadata);
}

#[test]
fn shards_hold_each_tensor_once_and_say_which_they_are() {
    let folder = tempfile::tempdir().unwrap();
    for spec in tiny() {
        let whole_path = folder.path().join("whole.gguf");
        spec.write(&whole_path).unwrap();
        let whole = Header::read(&whole_path).unwrap();
        let whole_bytes = fs::read(&whole_path).unwrap();
        let contents = spec.contents().unwrap();
        for count in [1, 3, 7] {
            let shards = spec.write_shards(&folder.path().join(spec.name), count).unwrap();
            assert_eq!(shards.len(), usize::from(count));
            let mut expected = whole.tensors.iter().zip(&contents.tensors);
            for (number, (path, shard)) in (0u16..).zip(shards.iter().zip(contents.split(count))) {
                let name = format!("{}-{:05}-of-{count:05}.gguf", spec.name, number + 1);
                assert_eq!(*path, folder.path().join(name));
                let header = Header::read(path).unwrap();
                assert_eq!(header.get("split.no"), Some(&Value::U16(number)));
                assert_eq!(header.get("split.count"), Some(&Value::U16(count)));
                let total = whole.tensors.len() as i32;
                assert_eq!(header.get("split.tensors.count"), Some(&Value::I32(total)));
                assert_eq!(header.get("general.architecture").is_some(), number == 0);
                assert!(!header.tensors.is_empty());
                let bytes = fs::read(path).unwrap();
                assert_eq!(data_end(&header, &shard), bytes.len() as u64);
                for read in &header.tensors {
                    let (whole_tensor, info) = expected.next().unwrap();
                    assert_eq!(read.name, whole_tensor.name);
                    let part = |bytes: &[u8], start: u64| {
                        bytes[start as usize..(start + info.bytes()) as usize].to_vec()
                    };
                    assert!(
                        part(&bytes, header.data_start + read.offset)
                            == part(&whole_bytes, whole.data_start + whole_tensor.offset)
                    );
                }
            }
            assert_eq!(expected.next(), None, "every tensor is in a shard");
        }
    }
}

#[test]
fn shards_are_of_about_the_same_size() {
    let contents = shapes::llama_7b_shape().contents().unwrap();
    let largest_tensor = contents.tensors.iter().map(TensorInfo::bytes).max().unwrap();
    for count in [2, 3, 5] {
        let fair = contents.data_bytes() / u64::from(count);
        for shard in contents.split(count) {
            assert!(shard.data_bytes().abs_diff(fair) <= largest_tensor, "{} of {fair}", shard.data_bytes());
        }
    }
}

#[test]
fn the_named_shapes_have_their_sizes() {
    let bytes = |spec: ModelSpec| {
        let contents = spec.contents().unwrap();
        contents.header().len() as u64 + contents.data_bytes()
    };
    assert_eq!(bytes(shapes::llama_7b_shape()) / 10_000_000, 294);
    assert_eq!(bytes(shapes::qwen2_1_5b_shape()) / 1_000_000, 873);
    assert_eq!(bytes(shapes::pythia_70m_shape()) / 1_000_000, 76);
    assert_eq!(bytes(shapes::gptneox_20b_shape()) / 100_000_000, 128);
    for spec in tiny() {
        let name = spec.name;
        assert!((1_000_000..20_000_000).contains(&bytes(spec)), "{name}");
    }
}

#[test]
fn a_sparse_model_has_its_full_length_and_takes_no_room() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let length = shapes::gptneox_20b_shape().write_sparse(file.path()).unwrap();
    let metadata = fs::metadata(file.path()).unwrap();
    assert_eq!(metadata.len(), length);
    assert!(length > 12_000_000_000);
    assert!(metadata.blocks() * 512 < 8 << 20, "{} blocks on the disk", metadata.blocks());
    assert_eq!(Header::read(file.path()).unwrap().tensors.len(), 44 * 12 + 4);
}

#[test]
fn weights_of_every_type_have_the_wanted_mean_and_deviation() {
    for kind in TensorType::ALL {
        let tensor = TensorInfo { name: "w".to_owned(), dimensions: vec![4096, 64], kind };
        let wanted = Distribution::matrix(4096);
        let mut data = Vec::new();
        weights::write(5, &tensor, wanted, &mut data).unwrap();
        assert_eq!(data.len() as u64, tensor.bytes());
        let values = dequantize::values(kind, &data);
        assert_eq!(values.len(), 4096 * 64);
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < 0.01 * wanted.deviation, "{kind:?}: mean {mean}");
        let ratio = variance.sqrt() / wanted.deviation;
        assert!((0.97..1.03).contains(&ratio), "{kind:?}: deviation {ratio} of the wanted one");
    }
}

#[test]
fn a_fill_that_writes_too_little_is_an_error() {
    let tensor = TensorInfo { name: "short".to_owned(), dimensions: vec![8], kind: TensorType::F32 };
    let contents = Contents { metadata: Vec::new(), tensors: vec![tensor] };
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = contents.write(file.path(), Data::Filled(&mut |_, out| out.write_all(&[0; 31]))).unwrap_err();
    assert_eq!(error.to_string(), "short: 31 bytes of data written, not 32");
}

#[test]
fn smollm2s_tokenizer_is_copied_and_padded() {
    let real = ramforge_tests::real::smollm2().unwrap();
    let original = Header::read(&real).unwrap();
    let copy = ramforge_tests::tokenizer::copied(Path::new(&real), 50_000).unwrap();
    let get = |key: &str| &copy.iter().find(|(name, _)| name == key).unwrap().1;
    for key in ["tokenizer.ggml.merges", "tokenizer.ggml.pre", "tokenizer.chat_template"] {
        assert_eq!(get(key), original.get(key).unwrap());
    }
    let (Value::Array(_, padded), Some(Value::Array(_, tokens))) =
        (get("tokenizer.ggml.tokens"), original.get("tokenizer.ggml.tokens"))
    else {
        panic!("tokens are an array")
    };
    assert_eq!((padded.len(), tokens.len()), (50_000, 49_152));
    assert_eq!(padded[..tokens.len()], tokens[..]);
    assert_eq!(padded[49_999], Value::String("<|unused_49999|>".to_owned()));
    assert!(ramforge_tests::tokenizer::copied(Path::new(&real), 49_151).is_err());
}

#[test]
fn blocks_mean_what_the_format_says() {
    // A scale of 2 and a minimum of -1, both as 16-bit floats; the quants count up.
    let (scale, minimum) = ([0x00, 0x40], [0x00, 0xbc]);
    let nibbles: Vec<u8> = (0..16).map(|n| n | (15 - n) << 4).collect();
    let counting: Vec<f32> = (0u8..16).chain((0..16).rev()).map(f32::from).collect();
    let q4_0 = [&scale[..], &nibbles].concat();
    let expected: Vec<f32> = counting.iter().map(|quant| quant * 2.0 - 16.0).collect();
    assert_eq!(dequantize::values(TensorType::Q4_0, &q4_0), expected);
    let q4_1 = [&scale[..], &minimum, &nibbles].concat();
    let expected: Vec<f32> = counting.iter().map(|quant| quant * 2.0 - 1.0).collect();
    assert_eq!(dequantize::values(TensorType::Q4_1, &q4_1), expected);
    let q8_0 = [&scale[..], &(0..32).map(|n| n as u8 ^ 0x80).collect::<Vec<_>>()].concat();
    let expected: Vec<f32> = (0u8..32).map(|n| f32::from(n) * 2.0 - 256.0).collect();
    assert_eq!(dequantize::values(TensorType::Q8_0, &q8_0), expected);
}

#[test]
fn the_f32_copy_has_the_same_tensors_with_the_same_values() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source.gguf"), folder.path().join("target.gguf"));
    let spec = shapes::tiny_moe();
    spec.write(&source).unwrap();
    dequantize::f32_copy(&source, &target).unwrap();
    let (before, after) = (Header::read(&source).unwrap(), Header::read(&target).unwrap());
    assert_eq!(after.get("general.file_type"), Some(&Value::U32(0)));
    assert_eq!(after.get("tokenizer.ggml.tokens"), before.get("tokenizer.ggml.tokens"));
    let (source, target) = (fs::read(source).unwrap(), fs::read(target).unwrap());
    for ((info, _), (old, new)) in spec.tensors().iter().zip(before.tensors.iter().zip(&after.tensors)) {
        assert_eq!((&old.name, &old.dimensions, 0), (&new.name, &new.dimensions, new.type_id));
        let old_at = (before.data_start + old.offset) as usize;
        let new_at = (after.data_start + new.offset) as usize;
        let expected = dequantize::values(info.kind, &source[old_at..old_at + info.bytes() as usize]);
        let found = dequantize::values(TensorType::F32, &target[new_at..new_at + 4 * expected.len()]);
        assert!(expected == found, "{} has other values", info.name);
    }
}
