//! Where the program says that tensors are is where they are: compared with another reader of the header, and
//! with page arithmetic that counts pages one by one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ramforge_tests::gguf_reader::Header;
use ramforge_tests::programs::{ramforge, ramforge_with_report};
use ramforge_tests::{cache, real, shapes};
use serde_json::Value;

const PAGE: u64 = 4096;

/// A tensor as its header places it.
struct Placed {
    file: u64,
    name: String,
    offset: u64,
    bytes: u64,
}

/// Elements and bytes of a block, by the number of the type.
fn block(type_id: u32) -> (u64, u64) {
    match type_id {
        0 => (1, 4),
        1 => (1, 2),
        2 => (32, 18),
        3 => (32, 20),
        6 => (32, 22),
        8 => (32, 34),
        12 => (256, 144),
        13 => (256, 176),
        14 => (256, 210),
        other => panic!("the test knows no type {other}"),
    }
}

fn placed(files: &[PathBuf]) -> Vec<Placed> {
    let mut placed = Vec::new();
    for (file, path) in files.iter().enumerate() {
        let header = Header::read(path).unwrap();
        for tensor in header.tensors {
            let (elements, bytes) = block(tensor.type_id);
            placed.push(Placed {
                file: file as u64,
                name: tensor.name,
                offset: header.data_start + tensor.offset,
                bytes: tensor.dimensions.iter().product::<u64>() / elements * bytes,
            });
        }
    }
    placed
}

/// How many tensors are read from each page.
fn readers<'a>(tensors: impl Iterator<Item = &'a Placed>) -> BTreeMap<(u64, u64), u64> {
    let mut readers = BTreeMap::new();
    for tensor in tensors {
        for page in tensor.offset / PAGE..(tensor.offset + tensor.bytes).div_ceil(PAGE) {
            *readers.entry((tensor.file, page)).or_insert(0) += 1;
        }
    }
    readers
}

fn inventory(files: &[PathBuf], options: &[&str]) -> Value {
    let model = files[0].to_str().unwrap();
    let arguments =
        ["run", model, "--prompt", "Hello", "-n", "2", "--threads", "1", "--residency-policy", "off"];
    let (output, report) = ramforge_with_report(&[&arguments[..], options].concat()).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    report["inventory"].clone()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Checks every number of an inventory; gives how many tensors are in each kind of memory.
fn check(inventory: &Value, files: &[PathBuf]) -> BTreeMap<String, u64> {
    let placed = placed(files);
    let tensors = inventory["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), placed.len());
    let by_name: BTreeMap<&str, &Value> =
        tensors.iter().map(|tensor| (tensor["name"].as_str().unwrap(), tensor)).collect();
    let is_read = |tensor: &&Placed| by_name[tensor.name.as_str()]["backing"] == "file";
    let readers = readers(placed.iter().filter(is_read));

    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    let mut bytes: BTreeMap<String, u64> = BTreeMap::new();
    for expected in &placed {
        let tensor = by_name[expected.name.as_str()];
        assert_eq!(tensor["bytes"], expected.bytes, "{tensor:#}");
        assert_eq!(tensor["offset"], expected.offset, "{tensor:#}");
        assert_eq!(tensor["file"], expected.file, "{tensor:#}");
        let backing = tensor["backing"].as_str().unwrap();
        let buffer = tensor["buffer"].as_str().unwrap_or_default();
        assert_eq!(backing == "file", buffer.ends_with("_Mapped"), "{tensor:#}");
        *kinds.entry(backing.to_owned()).or_default() += 1;
        *bytes.entry(backing.to_owned()).or_default() += expected.bytes;

        if backing != "file" {
            assert!(tensor["pages"].is_null(), "{tensor:#}");
            continue;
        }
        let start = expected.offset / PAGE * PAGE;
        let end = (expected.offset + expected.bytes).next_multiple_of(PAGE);
        assert_eq!(tensor["pages"]["start"], start, "{tensor:#}");
        assert_eq!(tensor["pages"]["bytes"], end - start, "{tensor:#}");
        let shared = (start / PAGE..end / PAGE).filter(|&page| readers[&(expected.file, page)] > 1).count();
        assert_eq!(tensor["pages"]["shared_bytes"], shared as u64 * PAGE, "{tensor:#}");
    }
    for kind in ["file", "anonymous", "unknown"] {
        let name = if kind == "file" { "file_backed" } else { kind };
        let expected = bytes.get(kind).copied().unwrap_or(0);
        assert_eq!(number(&inventory[format!("{name}_bytes")]), expected, "{kind}");
    }
    let all: u64 = placed.iter().map(|tensor| tensor.bytes).sum();
    assert_eq!(bytes.values().sum::<u64>(), all);
    check_layers(inventory, &placed, &by_name);
    kinds
}

fn check_layers(inventory: &Value, placed: &[Placed], by_name: &BTreeMap<&str, &Value>) {
    for layer in inventory["layers"].as_array().unwrap() {
        let prefix = format!("blk.{}.", layer["index"]);
        let own: Vec<&Placed> = placed.iter().filter(|tensor| tensor.name.starts_with(&prefix)).collect();
        assert_eq!(layer["tensors"], own.len() as u64);
        assert_eq!(number(&layer["bytes"]), own.iter().map(|tensor| tensor.bytes).sum::<u64>());
        let is_read = |tensor: &&Placed| by_name[tensor.name.as_str()]["backing"] == "file";
        let inside = readers(own.iter().copied().filter(is_read));
        let outside =
            readers(placed.iter().filter(|tensor| !tensor.name.starts_with(&prefix)).filter(is_read));
        let shared = inside.keys().filter(|page| outside.contains_key(page)).count() as u64;
        assert_eq!(number(&layer["shared_page_bytes"]), shared * PAGE, "{layer:#}");
        assert_eq!(
            number(&layer["exclusive_page_bytes"]),
            (inside.len() as u64 - shared) * PAGE,
            "{layer:#}"
        );
    }
}

#[test]
fn a_model_in_the_files_own_layout_is_all_pages_of_the_file() {
    for model in [real::smollm2().unwrap(), real::gemma3().unwrap()] {
        let files = [model];
        let kinds = check(&inventory(&files, &["--no-repack"]), &files);
        assert_eq!(kinds.keys().collect::<Vec<_>>(), ["file"]);
    }
}

#[test]
fn shards_have_a_mapping_each() {
    let folder = tempfile::tempdir().unwrap();
    let files = shapes::tiny_llama().write_shards(&folder.path().join("split"), 3).unwrap();
    let inventory = inventory(&files, &["--no-repack"]);
    check(&inventory, &files);
    let mappings = inventory["mappings"].as_array().unwrap();
    assert_eq!(mappings.len(), 3);
    for (mapping, path) in mappings.iter().zip(&files) {
        assert_eq!(mapping["path"].as_str().unwrap(), path.to_str().unwrap());
        assert_eq!(mapping["resident_bytes"], mapping["mapped_bytes"], "{mapping:#}");
        assert!(number(&mapping["mapped_bytes"]) > 0);
    }
}

#[test]
fn repacked_tensors_are_anonymous_and_a_tied_embedding_is_in_both_places() {
    let files = [cache::model(&shapes::tiny_qwen2()).unwrap()];
    let inventory = inventory(&files, &[]);
    let kinds = check(&inventory, &files);
    if !kinds.contains_key("anonymous") {
        println!(
            "SKIP repacked_tensors_are_anonymous_and_a_tied_embedding_is_in_both_places: \
             this processor repacks nothing"
        );
        return;
    }
    let of = |name: &str| {
        let tensors = inventory["tensors"].as_array().unwrap();
        tensors.iter().find(|tensor| tensor["name"] == name).unwrap().clone()
    };
    assert_eq!(of("blk.0.ffn_up.weight")["backing"], "anonymous");
    assert!(of("blk.0.ffn_up.weight")["buffer"].as_str().unwrap().contains("REPACK"));
    // Norms are never repacked; rows of the embedding are read from the file.
    assert_eq!(of("blk.0.attn_norm.weight")["backing"], "file");
    let embedding = of("token_embd.weight");
    assert_eq!(embedding["backing"], "file");
    assert_eq!(inventory["copy_bytes"], embedding["bytes"], "{inventory:#}");
}

#[test]
fn a_layer_is_printed_for_people_and_the_text_stays_alone_on_standard_output() {
    let model = cache::model(&shapes::tiny_llama()).unwrap();
    let run = |more: &[&str]| {
        let mut command = ramforge().unwrap();
        command.args(["run", text(&model), "--prompt", "Hello", "-n", "4", "--no-repack"]).args(more);
        command.output().unwrap()
    };
    let plain = run(&[]);
    let inspected = run(&["--inspect-layer", "2", "--residency-report"]);
    assert_eq!(inspected.stdout, plain.stdout);
    let said = String::from_utf8(inspected.stderr).unwrap();
    assert!(said.contains("layer 2: 9 tensors"), "{said}");
    for name in ["blk.2.attn_norm.weight", "blk.2.ffn_down.weight"] {
        assert!(said.contains(name), "{said}");
    }
    assert!(!said.contains("blk.1."), "{said}");
    assert!(said.contains("layers from 0"), "{said}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
