//! One test a lie that a header can tell, and the words in which it is refused.

use crate::allocation;
use crate::build::{Builder, files, open, refusal, small, text};
use draftgauge_core::gguf::{GgufFile, ValueType};

const MIB: usize = 1 << 20;

#[test]
fn c01_huge_counts_in_a_tiny_file() {
    let mut bytes = vec![0x47, 0x47, 0x55, 0x46, 3, 0, 0, 0];
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(500_000_000u64.to_le_bytes());
    assert_eq!(bytes.len(), 24);
    let (message, peak) = allocation::peak(|| refusal(&bytes));
    assert_eq!(message, "metadata count exceeds the file: a.gguf: expected at most 0, found 500000000");
    assert!(peak < MIB, "{peak} bytes were held");
    // From a disk too, where the bytes are mapped.
    let (_folder, paths) = files(&[("a.gguf", bytes)]);
    let (result, peak) = allocation::peak(|| GgufFile::open(&paths[0]).map(|_| ()));
    assert!(result.is_err() && peak < MIB, "{peak} bytes were held");
}

#[test]
fn c01_every_count_and_length_of_a_small_file_at_its_largest() {
    let string_array = |count: u64| Builder::new().array("k", ValueType::String.id(), count, &[0; 16]).bytes();
    for count in [1 << 20, 1 << 30, 1 << 40, u64::MAX / 8, u64::MAX] {
        let mut tensors = vec![0x47, 0x47, 0x55, 0x46, 3, 0, 0, 0];
        tensors.extend(count.to_le_bytes());
        tensors.extend(0u64.to_le_bytes());
        let key = [&tensors[..8], &0u64.to_le_bytes(), &1u64.to_le_bytes(), &count.to_le_bytes(), &[65; 16]].concat();
        let mut cases = vec![tensors, key, string_array(count)];
        cases.extend((0..13).map(|element| Builder::new().array("k", element, count, &[0; 32]).bytes()));
        for bytes in cases {
            let (message, peak) = allocation::peak(|| refusal(&bytes));
            assert!(peak < MIB, "{message}: {peak} bytes were held");
        }
    }
}

#[test]
fn rejects_empty_file() {
    assert_eq!(refusal(b""), "file ends within the magic: a.gguf: expected 4 bytes at byte 0, found 0 bytes");
    let (_folder, paths) = files(&[("a.gguf", Vec::new())]);
    assert!(GgufFile::open(&paths[0]).unwrap_err().to_string().starts_with("file ends within the magic"));
}

#[test]
fn rejects_other_magic() {
    let expected = "not a GGUF file: a.gguf: expected magic GGUF, found magic 66 6d 67 67";
    // The formats before GGUF (C19): `ggml`, `ggmf`, `ggjt`.
    assert_eq!(refusal(b"fmgg\x01\0\0\0"), expected);
    assert!(refusal(b"lmgg\0\0\0\0").starts_with("not a GGUF file"));
    assert!(refusal(b"tjgg\x03\0\0\0").starts_with("not a GGUF file"));
    assert!(refusal(b"GGUE\x03\0\0\0").starts_with("not a GGUF file"));
    assert!(refusal(b"PK\x03\x04").starts_with("not a GGUF file"));
}

#[test]
fn rejects_version_0() {
    assert_eq!(
        refusal(&small().version(0).bytes()),
        "bad GGUF version: a.gguf: expected version 2 or 3, found version 0"
    );
}

#[test]
fn c15_version_1_is_refused_and_2_and_3_are_read() {
    assert_eq!(
        refusal(&small().version(1).bytes()),
        "GGUF version 1 is no longer supported: a.gguf: expected version 2 or 3, found version 1"
    );
    assert_eq!(open(&small().version(2).bytes()).unwrap().version(), 2);
    assert_eq!(open(&small().version(3).bytes()).unwrap().version(), 3);
}

#[test]
fn rejects_newer_version() {
    assert_eq!(
        refusal(&small().version(4).bytes()),
        "GGUF version is newer than this reader: a.gguf: expected version 2 or 3, found version 4"
    );
}

#[test]
fn rejects_big_endian() {
    assert_eq!(
        refusal(&small().version(3u32.swap_bytes()).bytes()),
        "GGUF file is big-endian: a.gguf: expected version 2 or 3, found version 3 in the other byte order"
    );
}

#[test]
fn rejects_every_truncation_of_the_header_without_a_panic() {
    let bytes = small().bytes();
    let header = bytes.len() - 32 - 64;
    for len in 0..header - 32 {
        assert!(open(&bytes[..len]).is_err(), "{len} bytes were accepted");
    }
    // From here on only padding and data are missing.
    for len in header..bytes.len() - 31 {
        let file = open(&bytes[..len]).unwrap();
        assert_eq!(file.problems().is_empty(), len >= bytes.len() - 30, "{len}: {:?}", file.problems());
    }
}

#[test]
fn rejects_negative_counts() {
    let mut bytes = small().bytes();
    bytes[8..16].copy_from_slice(&(-1i64).to_le_bytes());
    assert!(refusal(&bytes).starts_with("tensor count exceeds the file: a.gguf: expected at most "));
    let mut bytes = small().bytes();
    bytes[16..24].copy_from_slice(&(-1i64).to_le_bytes());
    assert!(refusal(&bytes).starts_with("metadata count exceeds the file: a.gguf: expected at most "));
}

#[test]
fn rejects_string_longer_than_the_file() {
    let long = 1000u64.to_le_bytes();
    assert_eq!(
        refusal(&Builder::new().pair("k", ValueType::String, &long).bytes()),
        "file ends within metadata value: a.gguf, k: expected 1000 bytes at byte 45, found 0 bytes"
    );
}

#[test]
fn rejects_string_beyond_one_gibibyte() {
    let long = ((1u64 << 30) + 1).to_le_bytes();
    assert_eq!(
        refusal(&Builder::new().pair("k", ValueType::String, &long).bytes()),
        "length of metadata value is out of range: a.gguf, k: expected at most 1073741824 bytes, found 1073741825"
    );
}

#[test]
fn rejects_empty_key() {
    assert_eq!(refusal(&Builder::new().u32("k", 1).u32("", 1).bytes()), "metadata key is empty: a.gguf, key 1");
}

#[test]
fn rejects_duplicate_key() {
    assert_eq!(refusal(&Builder::new().u32("k", 1).u32("k", 2).bytes()), "metadata key occurs twice: a.gguf, k");
}

#[test]
fn rejects_key_that_is_not_utf8() {
    let bytes = Builder::new().raw_pair(b"\xff\xfe", 4, &[0; 4]).bytes();
    assert!(refusal(&bytes).starts_with("metadata key is not UTF-8: a.gguf, key 0: expected UTF-8, found "));
}

#[test]
fn rejects_unknown_value_type() {
    assert_eq!(
        refusal(&Builder::new().raw_pair(b"k", 13, &[0; 8]).bytes()),
        "metadata value type is unknown: a.gguf, k: expected 0 to 12, found 13"
    );
    assert_eq!(
        refusal(&Builder::new().array("k", 99, 1, &[0; 8]).bytes()),
        "array element type is unknown: a.gguf, k: expected 0 to 12, found 99"
    );
}

#[test]
fn rejects_array_longer_than_the_file() {
    assert_eq!(
        refusal(&Builder::new().array("k", ValueType::F32.id(), 5, &[0; 16]).bytes()),
        "array length exceeds the file: a.gguf, k: expected at most 4, found 5"
    );
}

#[test]
fn rejects_broken_string_in_an_array() {
    let strings = [text(b"one"), 100u64.to_le_bytes().to_vec()].concat();
    assert_eq!(
        refusal(&Builder::new().array("k", ValueType::String.id(), 2, &strings).bytes()),
        "file ends within metadata string (element 1 of 2): a.gguf, k: expected 100 bytes at byte 68, found 0 bytes"
    );
}

/// Arrays in arrays, `depth` levels, the innermost an empty array of u8.
fn nested(depth: usize) -> Builder {
    let mut elements = Vec::new();
    for _ in 2..depth {
        elements.extend(9u32.to_le_bytes());
        elements.extend(1u64.to_le_bytes());
    }
    elements.extend(0u32.to_le_bytes());
    elements.extend(0u64.to_le_bytes());
    Builder::new().array("k", 9, 1, &elements)
}

#[test]
fn c03_nested_arrays_to_depth_4_open_with_a_problem_and_deeper_ones_do_not() {
    for depth in 2..=4 {
        let file = open(&nested(depth).bytes()).unwrap();
        assert_eq!(
            file.problems(),
            [
                "nested array, which llama.cpp refuses: k: expected an array of scalars or strings, found an array of arrays"
            ]
        );
        assert!(file.require_valid().is_err());
    }
    assert_eq!(
        refusal(&nested(5).bytes()),
        "arrays are nested too deeply: a.gguf, k: expected at most 4 levels, found more"
    );
}

#[test]
fn c03_a_nesting_bomb_is_an_error() {
    // 12 bytes a level.
    let bytes = nested(200_000).bytes();
    assert!(bytes.len() > 2_399_000);
    let (message, peak) = allocation::peak(|| refusal(&bytes));
    assert!(message.starts_with("arrays are nested too deeply"), "{message}");
    assert!(peak < bytes.len() + MIB, "{peak} bytes were held");
}

#[test]
fn c04_sizes_that_wrap() {
    let overflow = |dims: &[u64], ty: u32| {
        let message = refusal(&Builder::new().info("t", dims, ty, 0).bytes());
        assert!(message.starts_with("tensor size overflows: a.gguf, tensor t: expected fewer than 2^63 "), "{message}");
    };
    overflow(&[1 << 33, 1 << 33], 0);
    overflow(&[1 << 62], 0);
    overflow(&[1 << 62, 2], 24);
    overflow(&[262_144, 4_398_046_511_105, 8], 0);
    overflow(&[1 << 32, 1 << 32, 1 << 32, 1 << 32], 0);
    // A zero must not hide two sizes that overflow.
    overflow(&[1 << 40, 1 << 40, 0], 0);
    // 2^63 - 1 bytes, which padding would push over.
    overflow(&[i64::MAX as u64], 24);
    // Not an overflow: merely not in the file.
    let file = open(&Builder::new().info("t", &[1 << 40], 0, 0).bytes()).unwrap();
    let message = file.data(&file.tensors()[0]).unwrap_err().to_string();
    assert_eq!(
        message,
        "tensor data lies past the end of the file: a.gguf, tensor t: expected at most 0 bytes of data, found offset 0 and 4398046511104 bytes"
    );
}

#[test]
fn rejects_negative_dimension() {
    assert_eq!(
        refusal(&Builder::new().info("t", &[u64::MAX, 2], 0, 0).bytes()),
        "tensor dimension is negative: a.gguf, tensor t: expected 0 or more, found -1"
    );
}

#[test]
fn c05_too_many_dimensions() {
    let expected = "tensor has too many dimensions: a.gguf, tensor t: expected at most 4, found 5";
    assert_eq!(refusal(&Builder::new().info("t", &[1; 5], 0, 0).bytes()), expected);
    let mut million = Builder::new().info("t", &[], 0, 0).bytes();
    million[24 + 9..24 + 13].copy_from_slice(&1_000_000u32.to_le_bytes());
    assert!(refusal(&million).ends_with("expected at most 4, found 1000000"));
}

#[test]
fn c05_no_dimension_is_one_element() {
    let file = open(&Builder::new().tensor("t", &[], 0, &[0, 0, 128, 63]).bytes()).unwrap();
    assert_eq!((file.tensors()[0].num_elements(), file.tensors()[0].nbytes), (1, 4));
    assert_eq!(file.data(&file.tensors()[0]).unwrap(), [0, 0, 128, 63]);
    assert!(
        refusal(&Builder::new().info("t", &[], 8, 0).bytes()).starts_with("tensor row is no whole number of blocks")
    );
}

#[test]
fn c07_alignment_of_a_wrong_type_or_value() {
    assert_eq!(
        refusal(&Builder::new().i32("general.alignment", 32).bytes()),
        "metadata value has the wrong type: a.gguf, general.alignment: expected u32, found i32"
    );
    for alignment in [0, 3, 33, 1 << 31, u32::MAX] {
        assert_eq!(
            refusal(&Builder::new().u32("general.alignment", alignment).bytes()),
            format!(
                "alignment is out of range: a.gguf, general.alignment: expected a power of two up to 1073741824, found {alignment}"
            )
        );
    }
    assert_eq!(open(&Builder::new().bytes()).unwrap().alignment(), 32);
    for alignment in [1, 8, 64, 4096] {
        let file = open(&Builder::new().alignment(alignment).tensor("t", &[1], 0, &[1, 2, 3, 4]).bytes()).unwrap();
        assert_eq!((file.alignment(), file.problems().len()), (alignment, 0));
        assert_eq!(file.data(&file.tensors()[0]).unwrap(), [1, 2, 3, 4]);
    }
}

#[test]
fn rejects_long_tensor_name() {
    let name = "n".repeat(64);
    assert_eq!(
        refusal(&Builder::new().info(&name, &[1], 0, 0).bytes()),
        format!("tensor name is too long: a.gguf, tensor {name}: expected at most 63 bytes, found 64")
    );
    assert!(open(&Builder::new().tensor(&name[1..], &[1], 0, &[0; 4]).bytes()).unwrap().problems().is_empty());
}

#[test]
fn rejects_duplicate_tensor_name() {
    assert_eq!(refusal(&small().tensor("a", &[1], 0, &[0; 4]).bytes()), "tensor name occurs twice: a.gguf, tensor a");
}

#[test]
fn rejects_row_that_is_no_whole_number_of_blocks() {
    assert_eq!(
        refusal(&Builder::new().info("t", &[100, 2], 12, 0).bytes()),
        "tensor row is no whole number of blocks: a.gguf, tensor t: expected a multiple of 256 for Q4_K, found 100"
    );
}

#[test]
fn rejects_directory_and_missing_file() {
    let folder = tempfile::tempdir().unwrap();
    let error = GgufFile::open(folder.path()).unwrap_err().to_string();
    assert!(error.ends_with("expected a regular file, found a directory"), "{error}");
    let missing = GgufFile::open(folder.path().join("none.gguf")).unwrap_err();
    assert!(
        matches!(&missing, draftgauge_core::Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    );
}

#[test]
fn a_hostile_name_cannot_fill_or_move_the_terminal() {
    let key = format!("\u{1b}[2J\n{}", "x".repeat(5000));
    let message = refusal(&Builder::new().u32(&key, 1).u32(&key, 1).bytes());
    assert!(message.len() < 200 && !message.contains(['\u{1b}', '\n']), "{message:?}");
}
