//! Writing: the same file again, and never half a file.

use std::path::Path;

use crate::build::{Builder, f32s, files, small, text};
use draftgauge_core::gguf::{self, GgufFile, Metadata, Strings, TensorSpec, ValueType, Writer};
use draftgauge_kernels::quant::QuantType;

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn written_again(bytes: Vec<u8>) -> Vec<u8> {
    let (folder, paths) = files(&[("a.gguf", bytes)]);
    let copy = folder.path().join("b.gguf");
    GgufFile::open(&paths[0]).unwrap().write_to(&copy).unwrap();
    assert_eq!(names(folder.path()), ["a.gguf", "b.gguf"]);
    std::fs::read(copy).unwrap()
}

#[test]
fn an_untouched_file_is_the_same_byte_for_byte() {
    let mut every_type = Builder::new().str("general.architecture", "llama").str("empty", "");
    for element in (0..13).filter(|&element| element != 9) {
        every_type = every_type.array(&format!("empty {element}"), element, 0, &[]);
        let (count, bytes) =
            if element == 8 { (2, [text(b"a"), text(b"")].concat()) } else { (2, vec![1; 2 * width(element)]) };
        every_type = every_type.array(&format!("two {element}"), element, count, &bytes);
        every_type = every_type.raw_pair(
            format!("one {element}").as_bytes(),
            element,
            &if element == 8 { text(b"\xff") } else { vec![1; width(element)] },
        );
    }
    let inner = [&0u32.to_le_bytes()[..], &2u64.to_le_bytes(), &[5, 6]].concat();
    let mut not_padded = small().bytes();
    not_padded.truncate(not_padded.len() - 30);
    let mut trailing = small().bytes();
    trailing.extend(b"something else");
    let cases = [
        Builder::new().bytes(),
        small().bytes(),
        small().version(2).bytes(),
        every_type.clone().bytes(),
        every_type.tensor("t", &[], 0, &[0; 4]).bytes(),
        Builder::new().array("nested", 9, 1, &inner).bytes(),
        Builder::new().alignment(64).tensor("a", &[3], 0, &[1; 12]).tensor("b", &[3, 1, 1], 0, &[1; 12]).bytes(),
        Builder::new().alignment(1).tensor("a", &[3], 24, &[1; 3]).tensor("b", &[5], 24, &[1; 5]).bytes(),
        Builder::new()
            .tensor("a", &[4], 99, &[1; 64])
            .tensor("b", &[0], 0, &[])
            .tensor("c", &[4], 99, &[2; 32])
            .bytes(),
        not_padded,
        trailing,
    ];
    for (index, bytes) in cases.into_iter().enumerate() {
        assert!(written_again(bytes.clone()) == bytes, "case {index} differs");
    }
}

fn width(element: u32) -> usize {
    ValueType::from_id(element).unwrap().min_bytes() as usize
}

#[test]
fn metadata_and_tensors_are_written_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    metadata.set("general.alignment", 64u32);
    metadata.set("tokens", ["a", "", "ü"].into_iter().collect::<Strings>());
    metadata.set("layers", vec![1i32, 5, 9]);
    let tensors = [
        (TensorSpec::new("a", QuantType::F32, &[2, 3]).unwrap(), f32s(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])),
        (TensorSpec::new("z", QuantType::F32, &[0, 3]).unwrap(), vec![]),
        (TensorSpec::new("b", QuantType::Q8_0, &[1, 32]).unwrap(), vec![7; 34]),
    ];
    gguf::write(&path, &metadata, tensors.iter().map(|(spec, data)| (spec.clone(), data.as_slice()))).unwrap();
    let file = GgufFile::open(&path).unwrap();
    assert_eq!((file.metadata(), file.alignment(), file.version()), (&metadata, 64, 3));
    for (info, (_, data)) in file.tensors().iter().zip(&tensors) {
        assert_eq!(file.data(info).unwrap(), data);
    }
    assert_eq!(file.tensors().iter().map(|info| info.offset).collect::<Vec<_>>(), [0, 64, 64]);
    file.require_valid().unwrap();
    assert_eq!(names(folder.path()), ["a.gguf"]);
}

#[test]
fn data_can_come_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    let specs = ["a", "b"].map(|name| TensorSpec::new(name, QuantType::I8, &[5]).unwrap());
    let mut writer = Writer::create(&path, &Metadata::new(), &specs).unwrap();
    writer.write(&[1, 2]).unwrap();
    writer.write(&[]).unwrap();
    assert_eq!(writer.current().map(|(info, written)| (info.name.as_str(), written)), Some(("a", 2)));
    let error = writer.write(&[0; 4]).unwrap_err().to_string();
    assert!(error.ends_with("tensor a: expected at most 3 bytes, found 4"), "{error}");
    writer.write(&[3, 4, 5]).unwrap();
    writer.write(&[6, 7, 8, 9, 10]).unwrap();
    assert!(writer.current().is_none());
    writer.finish().unwrap();
    let file = GgufFile::open(&path).unwrap();
    assert_eq!(file.data(file.tensor("b").unwrap()).unwrap(), [6, 7, 8, 9, 10]);
}

#[test]
fn nothing_is_left_of_a_file_that_was_not_finished() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    std::fs::write(&path, "before").unwrap();
    let specs = [TensorSpec::new("a", QuantType::I8, &[5]).unwrap()];
    let mut writer = Writer::create(&path, &Metadata::new(), &specs).unwrap();
    writer.write(&[1]).unwrap();
    drop(writer);
    let writer = Writer::create(&path, &Metadata::new(), &specs).unwrap();
    let error = writer.finish().unwrap_err().to_string();
    assert!(error.ends_with("tensor a: expected 5 bytes, found 0 bytes"), "{error}");
    let wrong = gguf::write(&path, &Metadata::new(), [(specs[0].clone(), &[1u8, 2][..])]).unwrap_err().to_string();
    assert!(
        wrong.starts_with("tensor data has the wrong size: ") && wrong.ends_with("expected 5 bytes, found 2"),
        "{wrong}"
    );
    assert_eq!((names(folder.path()), std::fs::read(&path).unwrap()), (vec!["a.gguf".into()], b"before".to_vec()));
}

#[test]
fn a_file_can_replace_the_one_it_was_read_from() {
    let (folder, paths) = files(&[("a.gguf", small().bytes())]);
    let file = GgufFile::open(&paths[0]).unwrap();
    file.write_to(&paths[0]).unwrap();
    assert_eq!(file.data(file.tensor("b").unwrap()).unwrap(), [7; 34]);
    assert_eq!((names(folder.path()), std::fs::read(&paths[0]).unwrap()), (vec!["a.gguf".into()], small().bytes()));
}

#[test]
fn what_could_not_be_read_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    let spec = |name: &str| TensorSpec::new(name, QuantType::F32, &[1]);
    assert!(spec(&"n".repeat(64)).is_err());
    assert!(TensorSpec::new("t", QuantType::F32, &[1; 5]).is_err());
    assert!(TensorSpec::new("t", QuantType::Q4K, &[100]).is_err());
    assert!(TensorSpec::new("t", QuantType::F32, &[1 << 62, 4]).is_err());
    let create = |metadata: &Metadata, specs: &[TensorSpec]| {
        Writer::create(&path, metadata, specs).map(|_| ()).unwrap_err().to_string()
    };
    let twice = [spec("a").unwrap(), spec("a").unwrap()];
    assert!(create(&Metadata::new(), &twice).starts_with("tensor name occurs twice"));
    let half = [("a", 1u64 << 61), ("b", 1 << 61)].map(|(n, k)| TensorSpec::new(n, QuantType::I16, &[k]).unwrap());
    assert!(create(&Metadata::new(), &half).starts_with("tensor sizes add up to too much"));
    let with = |key: &str, value: gguf::Value| {
        let mut metadata = Metadata::new();
        metadata.set(key, value);
        metadata
    };
    assert!(create(&with("", 1u32.into()), &[]).starts_with("metadata key is empty"));
    assert!(create(&with("general.alignment", 3u32.into()), &[]).starts_with("alignment is out of range"));
    assert!(create(&with("general.alignment", 32i32.into()), &[]).starts_with("metadata value has the wrong type"));
    assert!(Writer::create(folder.path(), &Metadata::new(), &[]).is_err());
    assert!(Writer::create("/dev/null", &Metadata::new(), &[]).is_err());
    assert!(Writer::create(folder.path().join("no/such/a.gguf"), &Metadata::new(), &[]).is_err());
    assert_eq!(names(folder.path()), [] as [&str; 0]);
}
