//! `inspect`: the report as JSON, validation of data, the difference of two files.

use crate::build::{Builder, f32s, files, open, small};
use draftgauge_core::gguf::{GgufFile, ValueType};
use draftgauge_core::inspect::{self, compare, validate};
use serde_json::{Value, json, to_value};

#[test]
fn report_has_the_shape_of_the_interface() {
    let bytes = small().str("general.name", "tiny").pair("eps", ValueType::F32, &1e-5f32.to_le_bytes()).bytes();
    let file = open(&bytes).unwrap();
    let report = inspect::inspect(&file);
    let expected = json!({
        "path": "a.gguf", "version": 3, "alignment": 32, "shards": [{"path": "a.gguf", "bytes": bytes.len()}],
        "architecture": "llama", "name": "tiny", "parameters": 38, "bytes": bytes.len(),
        "types": {"Q8_0": {"tensors": 1, "bytes": 34}, "F32": {"tensors": 1, "bytes": 24}},
        "metadata": {"general.architecture": "llama", "llama.block_count": 2, "general.name": "tiny", "eps": 1e-5f32},
        "tensors": [
            {"name": "a", "type": "F32", "shape": [2, 3], "offset": 0, "bytes": 24},
            {"name": "b", "type": "Q8_0", "shape": [32], "offset": 32, "bytes": 34},
        ],
        "problems": [], "notices": [], "pairing": null,
    });
    assert_eq!(to_value(&report).unwrap(), expected);
    // The order of keys and the short form of floats are part of what a person reads.
    let text = serde_json::to_string(&report).unwrap();
    assert!(text.starts_with(r#"{"path":"a.gguf","version":3,"alignment":32,"shards":[{"path":"#), "{text}");
    assert!(text.contains(r#""eps":0.00001"#) || text.contains(r#""eps":1e-5"#), "{text}");
}

#[test]
fn report_has_no_nan_and_no_broken_text() {
    let bytes = Builder::new()
        .pair("nan", ValueType::F32, &f32::NAN.to_le_bytes())
        .array("infinite", 12, 1, &f64::INFINITY.to_le_bytes())
        .pair("text", ValueType::String, &crate::build::text(b"a\xffb"))
        .bytes();
    let report = to_value(inspect::inspect(&open(&bytes).unwrap())).unwrap();
    assert_eq!(report["metadata"], json!({"nan": null, "infinite": [null], "text": "a\u{fffd}b"}));
    assert_eq!(report["architecture"], Value::Null);
    assert_eq!(report["notices"], json!(["general.architecture is missing: the file is no model by itself"]));
}

#[test]
fn c09_unknown_types_are_counted_beside_the_others() {
    let bytes = small().tensor("odd", &[8], 99, &[0; 32]).bytes();
    let report = to_value(inspect::inspect(&open(&bytes).unwrap())).unwrap();
    assert_eq!(report["types"]["unknown (id 99)"], json!({"tensors": 1, "bytes": 32}));
    assert_eq!(report["types"]["F32"], json!({"tensors": 1, "bytes": 24}));
    assert_eq!(report["problems"], json!(["unknown tensor type: tensor odd: expected a type of ggml, found id 99"]));
}

#[test]
fn shards_are_told_apart() {
    let split = |no| Builder::new().u16("split.no", no).u16("split.count", 2);
    let (_folder, paths) = files(&[
        ("m-00001-of-00002.gguf", split(0).tensor("a", &[1], 0, &[0; 4]).bytes()),
        ("m-00002-of-00002.gguf", split(1).tensor("b", &[1], 0, &[0; 4]).bytes()),
    ]);
    let report = to_value(inspect::inspect(&GgufFile::open(&paths[1]).unwrap())).unwrap();
    assert_eq!(
        report["tensors"][1],
        json!({"name": "b", "type": "F32", "shape": [1], "offset": 0, "bytes": 4, "shard": 1})
    );
    assert_eq!(report["shards"].as_array().unwrap().len(), 2);
}

#[test]
fn d06_the_first_block_that_is_not_finite_is_named() {
    let block = |scale: u16| [&scale.to_le_bytes()[..], &[1; 32]].concat();
    // Half precision: 1.0, infinity, NaN, the smallest subnormal.
    let good = [block(0x3c00), block(0x0001)].concat();
    let bad = [block(0x3c00), block(0x3c00), block(0x7c00), block(0x7e00)].concat();
    let bytes = Builder::new()
        .tensor("good", &[64], 8, &good)
        .tensor("bad", &[32, 4], 8, &bad)
        .tensor("plain", &[2], 0, &f32s(&[1.0, f32::NAN]))
        .tensor("odd", &[2], 99, &[0; 32])
        .bytes();
    let problems = validate(&open(&bytes).unwrap());
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert_eq!(
        problems[0],
        "tensor holds a number that is not finite: tensor bad: expected finite scales and values, found block 2: d is inf"
    );
    assert!(problems[1].contains("tensor plain") && problems[1].contains("found block 1: "), "{}", problems[1]);
}

#[test]
fn validation_counts_blocks_over_parts() {
    // More than one part of work; the bad block stands in a late one.
    let blocks = (9 << 20) / 34;
    let mut data = [&[0x00u8, 0x3c][..], &[1; 32]].concat().repeat(blocks);
    data[(blocks - 5) * 34 + 1] = 0x7c;
    let bytes = Builder::new().tensor("t", &[32 * blocks as u64], 8, &data).bytes();
    let problems = validate(&open(&bytes).unwrap());
    assert!(problems[0].contains(&format!("found block {}: d is inf", blocks - 5)), "{problems:?}");
}

#[test]
fn equal_files_do_not_differ() {
    let (a, b) = (open(&small().bytes()).unwrap(), open(&small().bytes()).unwrap());
    let difference = compare(&a, &b, true).unwrap();
    assert!(difference.equal);
    assert!(difference.data.unwrap().iter().all(|d| d.equal && d.relative_error == Some(0.0)));
}

#[test]
fn differences_are_listed_by_side() {
    let one = Builder::new().u32("same", 1).u32("value", 1).u32("type", 1).u32("gone", 1).array(
        "a",
        4,
        2,
        &[1, 0, 0, 0, 2, 0, 0, 0],
    );
    let two = Builder::new().u32("same", 1).u32("value", 2).i32("type", 1).u32("new", 1).array(
        "a",
        4,
        2,
        &[1, 0, 0, 0, 3, 0, 0, 0],
    );
    let one = one.tensor("t", &[4], 0, &f32s(&[0.0, 3.0, 4.0, 0.0])).tensor("shape", &[2, 3], 0, &[0; 24]).tensor(
        "left",
        &[1],
        0,
        &[0; 4],
    );
    let two = two.tensor("t", &[4], 0, &f32s(&[0.0, 3.0, 4.0, 1.0])).tensor("shape", &[3, 2], 0, &[0; 24]).tensor(
        "right",
        &[1],
        0,
        &[0; 4],
    );
    let (a, b) = (open(&one.bytes()).unwrap(), open(&two.bytes()).unwrap());
    let difference = to_value(compare(&a, &b, true).unwrap()).unwrap();
    assert_eq!(difference["equal"], false);
    assert_eq!(
        difference["metadata"],
        json!({"only_left": ["gone"], "only_right": ["new"], "changed": [
            {"name": "value", "left": "u32 1", "right": "u32 2"},
            {"name": "type", "left": "u32 1", "right": "i32 1"},
            {"name": "a", "left": "array of u32 [1, 2] (2 elements)", "right": "array of u32 [1, 3] (2 elements)", "first_difference": 1},
        ]})
    );
    assert_eq!(
        difference["tensors"],
        json!({"only_left": ["left"], "only_right": ["right"], "changed": [
            {"name": "shape", "left": {"type": "F32", "shape": [3, 2]}, "right": {"type": "F32", "shape": [2, 3]}},
        ]})
    );
    assert_eq!(difference["data"], json!([{"name": "t", "equal": false, "relative_error": 0.2, "max_abs_error": 1.0}]));
    assert_eq!(to_value(compare(&a, &b, false).unwrap()).unwrap()["data"], Value::Null);
}

#[test]
fn relative_error_crosses_types() {
    // 32 ones: exact in Q8_0 with scale 1 and quants 1; the other block has 2 in place of 1 once.
    let block = |odd: u8| [&0x3c00u16.to_le_bytes()[..], &[odd], &[1; 31]].concat();
    let floats = Builder::new().tensor("t", &[32], 0, &f32s(&[1.0; 32])).bytes();
    let near = |odd| {
        let quantized = Builder::new().tensor("t", &[32], 8, &block(odd)).bytes();
        compare(&open(&floats).unwrap(), &open(&quantized).unwrap(), true).unwrap()
    };
    let same = near(1);
    assert!(!same.equal, "the types differ");
    assert!(same.data.as_ref().unwrap()[0].equal);
    let data = near(2).data.unwrap();
    assert_eq!((data[0].relative_error, data[0].max_abs_error), (Some((1.0f64 / 32.0).sqrt()), Some(1.0)));
}
