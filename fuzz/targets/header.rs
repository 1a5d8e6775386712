//! One GGUF file of any bytes: the header reader, the validation, and what is said and planned about a model.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::{Corpus, fuzz_target};
use ramforge::gguf::{Header, Model, ShardFile};
use ramforge::inspect::Summary;
use ramforge::plan::{Fit, Footprint, NativeSizes};
use ramforge_fuzz::{assert_printable, bounded};

/// What a file may cost whatever its size, and for each of its bytes.
const FIXED_BYTES: usize = 128 << 10;
const BYTES_PER_BYTE: usize = 64;

fuzz_target!(|file: &[u8]| -> Corpus {
    let mut read = false;
    bounded(FIXED_BYTES + BYTES_PER_BYTE * file.len(), || read = check(file));
    // Anything without magic and version says the same.
    if read || file.starts_with(b"GGUF") { Corpus::Keep } else { Corpus::Reject }
});

/// Whether there is a header to read.
fn check(file: &[u8]) -> bool {
    let bytes = file.len() as u64;
    let mut reader = Cursor::new(file);
    let header = match Header::read(&mut reader, bytes) {
        Ok(header) => header,
        Err(error) => {
            assert_printable(&error.at("fuzzed.gguf".as_ref()).to_string());
            return false;
        }
    };
    assert!(reader.position() <= header.data_offset, "data was read");
    check_tensors(&header, bytes);
    match Model::new(vec![ShardFile { path: "fuzzed.gguf".into(), bytes, header }]) {
        Ok(model) => check_model(&model),
        Err(error) => assert_printable(&error.to_string()),
    }
    true
}

/// Tensors lie in the file one after the other, where their alignment and their types say.
fn check_tensors(header: &Header, file_bytes: u64) {
    assert!(header.alignment.is_power_of_two());
    let alignment = u64::from(header.alignment);
    let mut end = header.data_offset;
    for tensor in &header.tensors {
        assert_eq!(tensor.offset, end.next_multiple_of(alignment), "{tensor:?}");
        end = tensor.offset + tensor.bytes;
        let blocks = tensor.elements() / tensor.tensor_type.block_elements();
        assert_eq!(tensor.bytes, blocks * tensor.tensor_type.block_bytes(), "{tensor:?}");
        assert!(tensor.name.len() < 64 && !tensor.name.contains('\0'), "{tensor:?}");
    }
    assert!(end <= file_bytes, "data ends at {end} of {file_bytes}");
}

fn check_model(model: &Model) {
    if let Some(numbers) = model.hyperparameters() {
        let layers = numbers.block_count as usize;
        for list in [&numbers.head_count, &numbers.head_count_kv, &numbers.feed_forward_length] {
            assert_eq!(list.len(), layers);
        }
    }
    let summary = Summary::new(model);
    assert!(serde_json::to_string(&summary).is_ok());
    let mut text = Vec::new();
    assert!(summary.write_human(&mut text).is_ok());
    assert_printable(&String::from_utf8_lossy(&text));

    let facts = ramforge::plan::Model::of(model);
    assert_eq!(facts.weights.total_bytes, model.tensor_bytes());
    let footprint = Footprint { file_bytes: model.file_bytes(), sizes: NativeSizes::default() };
    for budget in [1, 20 << 20, 1 << 40] {
        for way in Fit::new(&facts, footprint, budget).ways {
            assert!(way.pinned_bytes.is_none_or(|bytes| bytes <= budget), "{budget}: {way:?}");
        }
    }
}
