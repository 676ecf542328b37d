//! Damaged files, made by a mutator that knows where each header field stands.
//!
//! A short run is part of the tests; `DRAFTGAUGE_FUZZ_INPUTS=1000000` makes it long, and `DRAFTGAUGE_FUZZ_SEED` another.
//! Whatever the bytes: no panic, no allocation out of proportion to the file, and what opens can be used and written.

use crate::allocation;
use draftgauge_core::gguf::{Array, GgufFile, Value};
use draftgauge_core::inspect;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// A file with the place of every field: start, width.
#[derive(Clone, Default)]
struct Sample {
    bytes: Vec<u8>,
    fields: Vec<(usize, usize)>,
}

impl Sample {
    fn field(&mut self, bytes: &[u8]) {
        self.fields.push((self.bytes.len(), bytes.len()));
        self.bytes.extend(bytes);
    }

    fn u32(&mut self, value: u32) {
        self.field(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.field(&value.to_le_bytes());
    }

    fn string(&mut self, value: &str) {
        self.u64(value.len() as u64);
        self.field(value.as_bytes());
    }
}

const WIDTHS: [usize; 13] = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];

/// A valid file with a random choice of everything that the format has.
fn sample(random: &mut Random) -> Sample {
    let mut file = Sample::default();
    let num_pairs = random.below(6);
    let num_tensors = random.below(4);
    let aligned = random.below(4) == 0;
    file.field(b"GGUF");
    file.u32(2 + random.below(2) as u32);
    file.u64(num_tensors as u64);
    file.u64((num_pairs + usize::from(aligned)) as u64);
    let alignment = if aligned { 1u32 << random.below(8) } else { 32 };
    if aligned {
        file.string("general.alignment");
        file.u32(4);
        file.u32(alignment);
    }
    for index in 0..num_pairs {
        let known = ["general.architecture", "split.count", "general.file_type", "general.name"];
        file.string(&if random.below(3) == 0 { known[index % 4].to_string() } else { format!("key.{index}") });
        let ty = random.below(13) as u32;
        file.u32(ty);
        value(&mut file, random, ty, 1);
    }
    let mut data = Vec::new();
    for index in 0..num_tensors {
        // F32, F16, Q4_0, Q8_0, Q4_K, I8, F64, BF16.
        let (ty, block, block_bytes) =
            [(0, 1, 4), (1, 1, 2), (2, 32, 18), (8, 32, 34), (12, 256, 144), (24, 1, 1), (28, 1, 8), (30, 1, 2)]
                [random.below(8)];
        let blocks = random.below(3);
        let mut dims = vec![(blocks * block) as u64];
        dims.extend((0..random.below(4)).map(|_| 1 + random.below(2) as u64));
        let bytes = blocks * block_bytes * dims[1..].iter().product::<u64>() as usize;
        file.string(&format!("blk.{index}.weight"));
        file.u32(dims.len() as u32);
        for dim in dims {
            file.u64(dim);
        }
        file.u32(ty);
        file.u64(data.len() as u64);
        data.extend((0..bytes).map(|_| random.next() as u8));
        data.resize(data.len().next_multiple_of(alignment as usize), 0);
    }
    if num_tensors > 0 {
        let padded = file.bytes.len().next_multiple_of(alignment as usize);
        file.bytes.resize(padded, 0);
    }
    file.bytes.extend(data);
    file
}

fn value(file: &mut Sample, random: &mut Random, ty: u32, depth: usize) {
    match ty {
        8 => file.string(&"text ü"[..[0, 4, 7][random.below(3)]]),
        9 => {
            let mut element = random.below(13) as u32;
            if depth >= 4 && element == 9 {
                element = 5;
            }
            let count = random.below(4);
            file.u32(element);
            file.u64(count as u64);
            for _ in 0..count {
                value(file, random, element, depth + 1);
            }
        }
        7 => file.field(&[random.below(2) as u8]),
        _ => {
            let bytes = random.next().to_le_bytes();
            file.field(&bytes[..WIDTHS[ty as usize]]);
        }
    }
}

/// Changes one to three things: mostly a whole field, sometimes single bytes, the length, or the order.
fn mutate(file: &Sample, random: &mut Random) -> Vec<u8> {
    let mut bytes = file.bytes.clone();
    for _ in 0..=random.below(3) {
        if bytes.is_empty() {
            return bytes;
        }
        match random.below(10) {
            0 => bytes.truncate(random.below(bytes.len() + 1)),
            1 => {
                let at = random.below(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
            2 => {
                // One field's bytes in place of another's.
                let (from, width) = file.fields[random.below(file.fields.len())];
                let (to, _) = file.fields[random.below(file.fields.len())];
                if from + width <= bytes.len() && to + width <= bytes.len() {
                    bytes.copy_within(from..from + width, to);
                }
            }
            3 => {
                let at = random.below(bytes.len());
                let end = (at + random.below(40)).min(bytes.len());
                if random.below(2) == 0 {
                    bytes.drain(at..end);
                } else {
                    let copy = bytes[at..end].to_vec();
                    bytes.splice(at..at, copy);
                }
            }
            _ => {
                let (start, width) = file.fields[random.below(file.fields.len())];
                let old = bytes.get(start..start + width).map(|field| {
                    let mut wide = [0; 8];
                    wide[..width.min(8)].copy_from_slice(&field[..width.min(8)]);
                    u64::from_le_bytes(wide)
                });
                let new = telling(random, old.unwrap_or(0), bytes.len() as u64).to_le_bytes();
                if let Some(field) = bytes.get_mut(start..start + width) {
                    let count = width.min(8);
                    field[..count].copy_from_slice(&new[..count]);
                }
            }
        }
    }
    bytes
}

/// A number at which something might break.
fn telling(random: &mut Random, old: u64, len: u64) -> u64 {
    match random.below(12) {
        0 => 0,
        1 => old.wrapping_add(1),
        2 => old.wrapping_sub(1),
        3 => len,
        4 => random.below(14) as u64,
        5 => random.below(64) as u64,
        6 => u64::MAX - random.below(40) as u64,
        7 => u64::from(u32::MAX) - random.below(3) as u64,
        8 => 1 << random.below(64),
        9 => (1u64 << random.below(64)).wrapping_sub(1),
        10 => old.wrapping_mul(2),
        _ => random.next(),
    }
}

/// Uses everything that a reader of the file would.
fn use_all(file: &GgufFile) {
    for (key, value) in file.metadata().iter() {
        assert!(file.metadata().get(key).is_some());
        if let Value::Array(array) = value {
            assert!(array.get(array.len()).is_none());
            if let Array::String(strings) = array {
                assert_eq!(strings.iter().count(), strings.len());
            }
        }
        let _ = (file.metadata().u32_or_array(key, 2), file.metadata().f32_or_array(key, 2));
    }
    for info in file.tensors() {
        let data = file.data(info);
        assert_eq!(data.is_ok(), file.bytes(info).is_ok());
        if let (Ok(data), Some(ty)) = (data, info.ty) {
            assert_eq!(data.len() as u64, info.nbytes);
            if ty.dequantizes() {
                let mut values = vec![0.0; info.num_elements() as usize];
                draftgauge_kernels::quant::dequantize(ty, data, &mut values).unwrap();
            }
        }
    }
    assert_eq!(file.require_valid().is_ok(), file.problems().is_empty());
    serde_json::to_string(&inspect::inspect(file)).unwrap();
    inspect::validate(file);
}

/// Written and opened again, a file must say the same.
fn write_again(file: &GgufFile, folder: &std::path::Path) {
    let path = folder.join("again.gguf");
    match file.write_to(&path) {
        Err(_) => assert!(!path.exists() && !file.problems().is_empty()),
        Ok(()) => {
            let again = GgufFile::open(&path).unwrap();
            // Compared as text, where NaN equals itself.
            let pairs = |file: &GgufFile| format!("{:?}", file.metadata().iter().collect::<Vec<_>>());
            assert_eq!(pairs(&again), pairs(file));
            assert_eq!(again.tensors().len(), file.tensors().len());
            for (a, b) in again.tensors().iter().zip(file.tensors()) {
                assert_eq!((&a.name, a.type_id, &a.shape), (&b.name, b.type_id, &b.shape));
                if let (Ok(a), Ok(b)) = (again.data(a), file.data(b)) {
                    assert_eq!(a, b);
                }
            }
            std::fs::remove_file(&path).unwrap();
        }
    }
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0, "a temporary file was left");
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn damaged_files_never_panic_or_over_allocate() {
    let runs = number("DRAFTGAUGE_FUZZ_INPUTS", 20_000);
    let seed = number("DRAFTGAUGE_FUZZ_SEED", 1);
    let folder = tempfile::tempdir().unwrap();
    let (mut opened, mut clean) = (0u64, 0u64);
    for run in 0..runs {
        let mut random = Random(seed.wrapping_mul(0x1000_0000_0000).wrapping_add(run));
        let bytes = mutate(&sample(&mut random), &mut random);
        let len = bytes.len();
        // A panic is caught only to say which input it was.
        let outcome = std::panic::catch_unwind(|| {
            let (file, peak) = allocation::peak(|| GgufFile::from_bytes("fuzz.gguf", bytes));
            // Names, offsets and reports cost a multiple of the bytes that they come from, never of what those claim.
            assert!(peak < (64 << 10) + 32 * len, "{peak} bytes were held for a file of {len}");
            let Ok(file) = file else { return None };
            use_all(&file);
            if run % 64 == 0 {
                write_again(&file, folder.path());
            }
            Some(file.problems().is_empty())
        });
        match outcome {
            Ok(None) => {}
            Ok(Some(valid)) => {
                opened += 1;
                clean += u64::from(valid);
            }
            Err(_) => panic!("run {run} of seed {seed} panicked"),
        }
    }
    eprintln!("{runs} damaged files: {opened} opened, {clean} of them without a problem");
    // A mutator whose files are all refused at the door, or all accepted, tests nothing.
    assert!(opened > runs / 20 && opened < runs * 19 / 20, "{opened} of {runs} opened");
}

#[test]
fn samples_are_valid_before_they_are_damaged() {
    for seed in 0..500 {
        let file = sample(&mut Random(seed));
        match GgufFile::from_bytes("sample.gguf", file.bytes.clone()) {
            Ok(_) => {}
            // The sampler may draw a key twice or give one that is special another type.
            Err(error) => {
                let message = error.to_string();
                let excused = ["occurs twice", "split.count", "is one shard", "one shard of several"];
                assert!(excused.iter().any(|part| message.contains(part)), "{message}");
            }
        }
    }
}
