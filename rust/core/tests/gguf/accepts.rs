//! What opens, with or without problems, and what is read then.

use crate::build::{Builder, f32s, open, small, text};
use draftgauge_core::gguf::{Array, Override, Value, ValueType};

#[test]
fn reads_metadata_tensors_and_data() {
    let file = open(&small().bytes()).unwrap();
    assert_eq!((file.version(), file.alignment()), (3, 32));
    assert_eq!(file.metadata().required_str("general.architecture").unwrap(), "llama");
    assert_eq!(file.metadata().required_u32("llama.block_count").unwrap(), 2);
    let a = file.tensor("a").unwrap();
    assert_eq!((a.shape.as_slice(), a.nbytes, a.type_name().as_str()), (&[2, 3][..], 24, "F32"));
    assert_eq!(file.data(a).unwrap(), f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    let b = file.tensor("b").unwrap();
    assert_eq!((b.offset, &*file.bytes(b).unwrap()), (32, &[7u8; 34][..]));
    assert_eq!(file.problems(), &[] as &[String]);
    file.require_valid().unwrap();
    assert!(file.tensor("c").is_none());
    assert_eq!(file.required_tensor("c").unwrap_err().to_string(), "tensor is missing: a.gguf, tensor c");
}

#[test]
fn shared_bytes_outlive_the_file() {
    let file = open(&small().bytes()).unwrap();
    let bytes = file.bytes(file.tensor("b").unwrap()).unwrap();
    drop(file);
    assert_eq!(&*bytes, &[7u8; 34][..]);
}

#[test]
fn reads_every_value_type_as_scalar_and_array() {
    let numbers: [(ValueType, &[u8], Value, Value); 11] = [
        (ValueType::U8, &[200], 200u8.into(), vec![200u8].into()),
        (ValueType::I8, &[0xff], (-1i8).into(), vec![-1i8].into()),
        (ValueType::U16, &[1, 2], 513u16.into(), vec![513u16].into()),
        (ValueType::I16, &[0xfe, 0xff], (-2i16).into(), vec![-2i16].into()),
        (ValueType::U32, &[1, 0, 0, 0x80], 0x8000_0001u32.into(), vec![0x8000_0001u32].into()),
        (ValueType::I32, &[0xfd, 0xff, 0xff, 0xff], (-3i32).into(), vec![-3i32].into()),
        (ValueType::F32, &[0, 0, 0xc0, 0x3f], 1.5f32.into(), vec![1.5f32].into()),
        (ValueType::Bool, &[1], true.into(), vec![true].into()),
        (ValueType::U64, &[0, 0, 0, 0, 0, 0, 0, 0x80], (1u64 << 63).into(), vec![1u64 << 63].into()),
        (ValueType::I64, &[0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], (-4i64).into(), vec![-4i64].into()),
        (ValueType::F64, &[0, 0, 0, 0, 0, 0, 0x04, 0xc0], (-2.5f64).into(), vec![-2.5f64].into()),
    ];
    for (ty, bytes, scalar, array) in numbers {
        let file = open(&Builder::new().pair("s", ty, bytes).array("a", ty.id(), 1, bytes).bytes()).unwrap();
        assert_eq!(file.metadata().get("s"), Some(&scalar));
        assert_eq!(file.metadata().get("a"), Some(&array));
        assert_eq!((scalar.value_type(), array.type_name()), (ty, format!("array of {ty}")));
    }
    let strings = [text(b"a"), text(b""), text("é".as_bytes())].concat();
    let file = open(&Builder::new().array("a", 8, 3, &strings).bytes()).unwrap();
    let read = file.metadata().strings("a").unwrap().unwrap();
    assert_eq!(
        (read.len(), read.str(0), read.str(1), read.str(2), read.str(3)),
        (3, Some("a"), Some(""), Some("é"), None)
    );
}

#[test]
fn empty_arrays_keep_their_type() {
    for element in 0..13 {
        let file = open(&Builder::new().array("a", element, 0, &[]).bytes()).unwrap();
        let Some(Value::Array(array)) = file.metadata().get("a") else { panic!("no array") };
        assert_eq!((array.element_type().id(), array.len()), (element, 0));
    }
}

#[test]
fn any_nonzero_boolean_is_true_and_is_noted() {
    let file = open(&Builder::new().pair("b", ValueType::Bool, &[7]).bytes()).unwrap();
    assert_eq!(file.metadata().bool("b").unwrap(), Some(true));
    assert_eq!(file.notices(), ["b: a boolean byte other than 0 and 1 is read as true"]);
}

#[test]
fn text_that_is_not_utf8_opens_with_a_problem() {
    let file = open(&Builder::new().pair("t", ValueType::String, &text(&[0xff])).bytes()).unwrap();
    assert_eq!(file.problems(), ["metadata value is not text: t: expected UTF-8, found other bytes"]);
    assert!(file.metadata().str("t").is_err());
}

#[test]
fn getters_are_strict_about_types() {
    let file = open(&Builder::new().i32("n", 7).str("s", "x").bytes()).unwrap();
    let metadata = file.metadata();
    let message = |result: draftgauge_core::Result<u32>| result.unwrap_err().to_string();
    assert_eq!(
        message(metadata.required_u32("n")),
        "metadata value has the wrong type: a.gguf, n: expected u32, found i32"
    );
    assert_eq!(message(metadata.required_u32("m")), "metadata key is missing: a.gguf, m: expected u32, found nothing");
    assert_eq!(metadata.u32("m").unwrap(), None);
    assert_eq!(metadata.i32("n").unwrap(), Some(7));
    assert!(metadata.f32("s").is_err() && metadata.bool("s").is_err() && metadata.str("n").is_err());
}

#[test]
fn key_or_array_wants_the_exact_length_and_spreads_a_scalar() {
    let three: Vec<u8> = [1i32, 2, 3].iter().flat_map(|v| v.to_le_bytes()).collect();
    let file = open(&Builder::new().array("a", 5, 3, &three).u32("s", 9).array("b", 7, 2, &[1, 0]).bytes()).unwrap();
    let metadata = file.metadata();
    assert_eq!(metadata.u32_or_array("a", 3).unwrap(), Some(vec![1, 2, 3]));
    assert_eq!(
        metadata.u32_or_array("a", 4).unwrap_err().to_string(),
        "metadata array has the wrong length: a.gguf, a: expected 4, found 3"
    );
    assert_eq!(metadata.u32_or_array("s", 2).unwrap(), Some(vec![9, 9]));
    assert_eq!(metadata.u32_or_array("none", 2).unwrap(), None);
    assert_eq!(metadata.bool_or_array("b", 2).unwrap(), Some(vec![true, false]));
    assert!(metadata.f32_or_array("a", 3).is_err());
    assert_eq!(metadata.i32_array("a").unwrap(), Some(vec![1, 2, 3]));
}

#[test]
fn c09_unknown_type_opens_and_is_an_error_only_when_used() {
    let bytes = Builder::new()
        .u32("general.file_type", 7)
        .tensor("a", &[32], 8, &[1; 34])
        .tensor("odd", &[40], 4, &[2; 64])
        .tensor("b", &[32], 8, &[3; 34])
        .bytes();
    let file = open(&bytes).unwrap();
    assert_eq!(file.problems(), ["unknown tensor type: tensor odd: expected a type of ggml, found id 4"]);
    let odd = file.tensor("odd").unwrap();
    // The room up to the next tensor.
    assert_eq!((odd.type_name().as_str(), odd.nbytes), ("unknown (id 4)", 64));
    assert_eq!(
        file.data(odd).unwrap_err().to_string(),
        "tensor has an unknown type: a.gguf, tensor odd: expected a type of ggml, found id 4; general.file_type is 7"
    );
    assert_eq!(file.data(file.tensor("a").unwrap()).unwrap(), [1; 34]);
    assert_eq!(file.data(file.tensor("b").unwrap()).unwrap(), [3; 34]);
    assert!(file.require_valid().is_err());
}

#[test]
fn c11_retired_and_foreign_ids_are_never_a_neighbour() {
    for id in [4, 5, 31, 32, 33, 36, 37, 38, 43, 46, 255, 1 << 16, u32::MAX] {
        let file = open(&Builder::new().tensor("t", &[256], id, &[0; 64]).bytes()).unwrap();
        assert_eq!((file.tensors()[0].ty, file.problems().len()), (None, 1), "id {id}");
        assert_eq!(file.tensors()[0].type_name(), format!("unknown (id {id})"));
    }
}

#[test]
fn c10_types_come_from_each_tensor_and_not_from_the_label() {
    // Labelled Q4_0 (2), holding a Q4_1.
    let file = open(&Builder::new().u32("general.file_type", 2).tensor("t", &[32], 3, &[5; 20]).bytes()).unwrap();
    assert_eq!((file.tensors()[0].type_name().as_str(), file.data(&file.tensors()[0]).unwrap().len()), ("Q4_1", 20));
}

#[test]
fn zero_dimensions_are_accepted() {
    let file = open(&Builder::new().tensor("z", &[0, 5], 0, &[]).tensor("t", &[1], 0, &[0; 4]).bytes()).unwrap();
    assert!(file.problems().is_empty(), "{:?}", file.problems());
    assert_eq!((file.tensors()[0].num_elements(), file.data(&file.tensors()[0]).unwrap()), (0, &[][..]));
}

#[test]
fn a_wrong_offset_is_a_problem_and_the_data_is_where_the_file_says() {
    let mut built = Builder::new().tensor("a", &[4], 0, &[1; 16]);
    built = built.info("b", &[4], 0, 64);
    let mut bytes = built.bytes();
    bytes.extend([0; 32]);
    bytes.extend([9; 16]);
    let file = open(&bytes).unwrap();
    assert_eq!(
        file.problems(),
        ["tensor offset leaves a gap or an overlap: tensor b: expected offset 32, found offset 64"]
    );
    assert_eq!(file.data(file.tensor("b").unwrap()).unwrap(), [9; 16]);
    assert_eq!(
        file.require_valid().unwrap_err().to_string(),
        "tensor offset leaves a gap or an overlap: a.gguf, tensor b: expected offset 32, found offset 64"
    );
}

#[test]
fn data_past_the_end_is_a_problem_and_an_error_only_when_used() {
    let bytes = small().bytes();
    let file = open(&bytes[..bytes.len() - 64]).unwrap();
    assert_eq!(
        file.problems(),
        [
            "tensor data lies past the end of the file: tensor b: expected at most 32 bytes of data, found offset 32 and 34 bytes"
        ]
    );
    assert!(file.data(file.tensor("a").unwrap()).is_ok());
    assert!(file.data(file.tensor("b").unwrap()).is_err());
    let far = open(&Builder::new().info("t", &[1], 0, u64::MAX).bytes()).unwrap();
    assert_eq!(far.problems().len(), 2);
    assert!(far.data(&far.tensors()[0]).is_err());
}

#[test]
fn thousands_of_problems_are_counted_and_not_listed() {
    let mut built = Builder::new();
    for index in 0..1000 {
        built = built.info(&format!("t{index}"), &[1], 99, 0);
    }
    let file = open(&built.bytes()).unwrap();
    assert_eq!((file.problems().len(), file.problems()[64].as_str()), (65, "936 further problems"));
}

#[test]
fn metadata_can_be_set_and_removed_in_place() {
    let mut metadata = open(&small().u32("x", 1).bytes()).unwrap().metadata().clone();
    metadata.set("llama.block_count", 5u32);
    metadata.set("new", "text");
    assert_eq!(metadata.remove("general.architecture"), Some("llama".into()));
    assert_eq!(metadata.keys().collect::<Vec<_>>(), ["llama.block_count", "x", "new"]);
    assert_eq!(metadata.required_u32("llama.block_count").unwrap(), 5);
    assert_eq!(metadata.required_str("new").unwrap(), "text");
}

#[test]
fn overrides_keep_the_type_of_the_file() {
    let file = open(
        &Builder::new()
            .u32("n", 1)
            .u16("h", 2)
            .pair("f", ValueType::F32, &[0; 4])
            .str("s", "x")
            .pair("b", ValueType::Bool, &[0])
            .bytes(),
    )
    .unwrap();
    let apply = |text: &str| file.metadata().with_overrides(&[text.parse::<Override>()?]);
    let get = |text: &str, key: &str| apply(text).unwrap().get(key).cloned().unwrap();
    assert_eq!(get("n=int:7", "n"), 7u32.into());
    assert_eq!(get("h=int:7", "h"), 7u16.into());
    assert_eq!(get("f=float:1.5", "f"), 1.5f32.into());
    assert_eq!(get("b=bool:true", "b"), true.into());
    assert_eq!(get("s=str:a=b:c", "s"), "a=b:c".into());
    assert_eq!(get("new=int:-1", "new"), (-1i32).into());
    assert_eq!(get("new=int:4294967296", "new"), (1i64 << 32).into());
    assert_eq!(get("new=float:2", "new"), 2f32.into());
    let refusal = |text: &str| apply(text).unwrap_err().to_string();
    assert_eq!(
        refusal("n=float:7"),
        "override is of another kind than the key: a.gguf, n: expected u32, found n=float:7"
    );
    assert_eq!(
        refusal("h=int:65536"),
        "override does not fit the type of the key: a.gguf, h: expected u16, found h=int:65536"
    );
    for malformed in ["n", "n=7", "=int:7", "n=int:x", "n=int:", "n=bool:1", "n=u32:7", "f=float:nan"] {
        let message = refusal(malformed);
        assert!(message.starts_with("malformed override: --override-kv: expected "), "{message}");
    }
}

#[test]
fn arrays_of_arrays_are_read() {
    let inner = [&0u32.to_le_bytes()[..], &2u64.to_le_bytes(), &[5, 6]].concat();
    let file = open(&Builder::new().array("k", 9, 1, &inner).bytes()).unwrap();
    assert_eq!(file.metadata().get("k"), Some(&Value::Array(Array::Array(vec![Array::U8(vec![5, 6])]))));
}
