//! Chat templates render as transformers renders them.

use std::path::{Path, PathBuf};

use draftgauge_core::gguf::GgufFile;
use draftgauge_core::text::{ChatTemplate, RenderInput, Tokenizer};
use serde_json::Value;

use crate::common;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/templates")
}

#[test]
fn real_templates_render_as_transformers_renders_them() {
    let golden: Value = serde_json::from_slice(&std::fs::read(folder().join("rendered.json")).unwrap()).unwrap();
    let text = |key: &str| golden[key].as_str().unwrap();
    let cases = golden["cases"].as_array().unwrap();
    let mut wrong = Vec::new();
    let mut families = std::collections::BTreeMap::new();
    for case in cases {
        let name = case["template"].as_str().unwrap();
        let source = std::fs::read_to_string(folder().join(format!("{name}.jinja"))).unwrap();
        let template =
            families.entry(name).or_insert_with(|| ChatTemplate::new(&source, text("bos"), text("eos")).unwrap());
        let tools = &golden["tools"][case["tools"].as_str().unwrap()];
        let rendered = template.render_with(&RenderInput {
            messages: Some(&golden["conversations"][case["conversation"].as_str().unwrap()]),
            tools: Some(tools).filter(|tools| !tools.is_null()),
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            variables: case["variables"].as_object(),
            unix_time: golden["unix_time"].as_i64(),
        });
        let place = format!("{name}, {}, tools {}", case["conversation"], case["tools"]);
        match (case["text"].as_str(), case["error"].as_str(), rendered) {
            (Some(expected), _, Ok(found)) if expected == found => {}
            (Some(expected), _, Ok(found)) => wrong.push(format!("{place}:\n  {expected:?}\n  {found:?}")),
            (Some(_), _, Err(error)) => wrong.push(format!("{place}: {error}")),
            // The template's own words must reach the user; Python's and minijinja's need not agree.
            (None, Some("UndefinedError" | "TypeError"), Err(_)) => {}
            (None, Some(words), Err(error)) if error.to_string().contains(words) => {}
            (None, words, found) => wrong.push(format!("{place}: expected {words:?}, found {found:?}")),
        }
    }
    assert!(families.len() >= 12 && cases.len() >= 500, "{} templates, {} cases", families.len(), cases.len());
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn f04_the_template_of_a_file_is_found_and_hashed() {
    let file = GgufFile::open(common::smollm2()).unwrap();
    let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap();
    let template = ChatTemplate::from_metadata(file.metadata(), &tokenizer).unwrap().unwrap();
    let source = std::fs::read_to_string(folder().join("smollm2.jinja")).unwrap();
    assert_eq!(template.source(), source);
    assert_eq!(template.hash(), "872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788");
    let messages = serde_json::json!([{"role": "user", "content": "Hi"}]);
    let text = template.render(&messages, None, true).unwrap();
    let ids = tokenizer.encode(&text, true, true).unwrap();
    assert_eq!(tokenizer.decode(&ids, false), text);
    // Gemma 3's file has none.
    let file = GgufFile::open(common::gemma3()).unwrap();
    let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap();
    assert!(ChatTemplate::from_metadata(file.metadata(), &tokenizer).unwrap().is_none());
}
