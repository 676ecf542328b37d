//! Models in several files.

use crate::build::{Builder, f32s, files, small};
use draftgauge_core::gguf::GgufFile;

fn shard(no: u16, count: u16) -> Builder {
    Builder::new().u16("split.no", no).u16("split.count", count).i32("split.tensors.count", 3)
}

/// Three shards; the first holds the metadata and, as llama-gguf-split may leave it, no tensor.
fn set() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("m-00001-of-00003.gguf", shard(0, 3).str("general.architecture", "llama").bytes()),
        (
            "m-00002-of-00003.gguf",
            shard(1, 3).tensor("a", &[1], 0, &f32s(&[1.0])).tensor("b", &[1], 0, &f32s(&[2.0])).bytes(),
        ),
        ("m-00003-of-00003.gguf", shard(2, 3).tensor("output.weight", &[1], 0, &f32s(&[3.0])).bytes()),
    ]
}

fn refusal(set: &[(&str, Vec<u8>)], opened: usize) -> String {
    let (folder, paths) = files(set);
    let error = GgufFile::open(&paths[opened]).unwrap_err().to_string();
    error.replace(&format!("{}/", folder.path().display()), "")
}

#[test]
fn c12_any_shard_opens_the_set() {
    let (_folder, paths) = files(&set());
    for path in &paths {
        let file = GgufFile::open(path).unwrap();
        assert_eq!(file.path(), path);
        assert_eq!(file.shards().iter().map(|shard| &shard.path).collect::<Vec<_>>(), paths.iter().collect::<Vec<_>>());
        assert_eq!(file.metadata().required_str("general.architecture").unwrap(), "llama");
        let names: Vec<_> = file.tensors().iter().map(|info| (info.name.as_str(), info.shard)).collect();
        assert_eq!(names, [("a", 1), ("b", 1), ("output.weight", 2)]);
        // The head is found whichever shard holds it, so that nothing takes the embedding for it.
        assert_eq!(file.data(file.tensor("output.weight").unwrap()).unwrap(), f32s(&[3.0]));
        file.require_valid().unwrap();
    }
}

#[test]
fn c12_a_missing_shard_is_named() {
    let mut two = set();
    two.remove(1);
    let expected = "missing 00002-of-00003: m-00001-of-00003.gguf: expected 3 shards beside each other, found 2";
    assert_eq!(refusal(&two, 0), expected);
    assert!(refusal(&two, 1).starts_with("missing 00002-of-00003: m-00003-of-00003.gguf"));
    assert!(refusal(&set()[..1], 0).starts_with("missing 00002-of-00003, 00003-of-00003: "));
}

#[test]
fn c12_shards_must_agree() {
    let mut other = set();
    other[1].1 = shard(1, 4).bytes();
    assert_eq!(
        refusal(&other, 0),
        "shards disagree about their number: m-00002-of-00003.gguf, split.count: expected 3, found 4"
    );
    other[1].1 = shard(2, 3).bytes();
    assert_eq!(
        refusal(&other, 0),
        "shard has another index than its name: m-00002-of-00003.gguf, split.no: expected 1, found 2"
    );
    other[1].1 = small().bytes();
    assert_eq!(
        refusal(&other, 0),
        "metadata key is missing: m-00002-of-00003.gguf, split.count: expected u16, found nothing"
    );
    other[1].1 = shard(1, 3).bytes();
    assert_eq!(
        refusal(&other, 0),
        "shards hold another number of tensors: m-00001-of-00003.gguf, split.tensors.count: expected 3, found 1"
    );
    other[1].1 = shard(1, 3).tensor("output.weight", &[1], 0, &[0; 4]).bytes();
    assert_eq!(refusal(&other, 0), "tensor occurs in two shards: m-00003-of-00003.gguf, tensor output.weight");
}

#[test]
fn c12_one_of_one_is_complete() {
    let (_folder, paths) =
        files(&[("m-00001-of-00001.gguf", shard(0, 1).str("general.architecture", "llama").bytes())]);
    let file = GgufFile::open(&paths[0]).unwrap();
    assert_eq!((file.shards().len(), file.notices().len()), (1, 0));
}

#[test]
fn c12_a_name_and_its_keys_must_agree() {
    assert_eq!(
        refusal(&[("model.gguf", shard(0, 3).bytes())], 0),
        "file is one of several but is not named like it: model.gguf, split.count: expected a name ending in -00001-of-00003.gguf, found model.gguf"
    );
    assert_eq!(
        refusal(&[("m-00001-of-00002.gguf", shard(0, 3).bytes())], 0),
        "number of shards differs from the file name: m-00001-of-00002.gguf, split.count: expected 2, found 3"
    );
    // A name alone makes no set.
    let (_folder, paths) = files(&[("m-00002-of-00003.gguf", small().bytes())]);
    let file = GgufFile::open(&paths[0]).unwrap();
    assert_eq!(file.notices(), ["file name says shard 00002-of-00003, but the file has no split.count: opened alone"]);
}

#[test]
fn split_keys_of_another_type_are_refused() {
    let bytes = Builder::new().u32("split.count", 3).bytes();
    assert_eq!(
        refusal(&[("m-00001-of-00003.gguf", bytes)], 0),
        "metadata value has the wrong type: m-00001-of-00003.gguf, split.count: expected u16, found u32"
    );
}

#[test]
fn a_set_is_written_as_one_file() {
    let (folder, paths) = files(&set());
    let whole = folder.path().join("whole.gguf");
    GgufFile::open(&paths[2]).unwrap().write_to(&whole).unwrap();
    let file = GgufFile::open(&whole).unwrap();
    assert_eq!(file.metadata().keys().collect::<Vec<_>>(), ["general.architecture"]);
    assert_eq!(file.tensors().iter().map(|info| info.name.as_str()).collect::<Vec<_>>(), ["a", "b", "output.weight"]);
    assert_eq!(file.data(file.tensor("output.weight").unwrap()).unwrap(), f32s(&[3.0]));
    file.require_valid().unwrap();
}
