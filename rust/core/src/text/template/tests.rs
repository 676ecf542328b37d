//! Tests of chat templates: what the sandbox stops, what reaches the user, and Python's ways.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{ChatTemplate, RenderInput, clock};
use crate::error::Error;

fn render(source: &str, messages: &Value) -> crate::Result<String> {
    ChatTemplate::new(source, "<s>", "</s>")?.render_with(&RenderInput {
        messages: Some(messages),
        unix_time: Some(1_772_787_907),
        ..Default::default()
    })
}

fn text(source: &str) -> String {
    render(source, &json!([{"role": "user", "content": "Hi", "n": [1, 2.5, null, true, "é\u{1}"]}])).unwrap()
}

fn refusal(source: &str) -> String {
    match render(source, &json!([{"role": "user", "content": "Hi"}])) {
        Err(Error::Model(evidence)) => evidence.to_string(),
        other => panic!("{source}: {other:?}"),
    }
}

#[test]
fn c18_there_is_no_way_out_of_the_sandbox() {
    for source in [
        "{{ lipsum.__globals__[\"os\"].popen(\"id\") }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__init__.__globals__ }}",
        "{{ self.__init__.__globals__.__builtins__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ raise_exception.__globals__.os }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ [].append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
    ] {
        assert!(refusal(source).contains("tokenizer.chat_template"), "{source}");
    }
}

#[test]
fn c18_work_and_text_are_bounded() {
    let start = Instant::now();
    for source in [
        "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='aa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x='aa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=(1,)) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x | chain(ns.x) | list %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x * 2 %}{% endfor %}",
        "{{ 'x' * 1000000000 }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 100000) }}",
        "{{ (('y' * 100000) | list) | join('z' * 100000) }}",
        "{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('ab') }}",
        "{% set ns = namespace(x={}) %}{% for i in range(90) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}{{ ns.x | tojson }}",
        "{{ range(10 ** 12) | list }}",
        "{{ '%1000000000d' | format(1) }}",
    ] {
        refusal(source);
    }
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    let nested = "(".repeat(100_000) + &")".repeat(100_000);
    assert!(ChatTemplate::new(&format!("{{{{ {nested} }}}}"), "", "").is_err());
    assert!(ChatTemplate::new(&"{% if a %}".repeat(50_000), "", "").is_err());
    assert!(ChatTemplate::new(&" ".repeat(2 << 20), "", "").is_err());
}

#[test]
fn a_long_conversation_is_within_the_budget() {
    let messages: Vec<Value> =
        (0..2_000).map(|i| json!({"role": "user", "content": "word ".repeat(100 + i % 7)})).collect();
    let source = "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] | trim + '\n' }}{% endfor %}";
    assert!(render(source, &Value::Array(messages)).unwrap().len() > 900_000);
}

#[test]
fn what_a_template_raises_reaches_the_user() {
    let message = refusal("{{ raise_exception('roles must alternate, not ' + messages[0].role) }}");
    assert_eq!(message, "chat template failed: tokenizer.chat_template: found roles must alternate, not user (line 1)");
    assert!(refusal("\n\n{{ messages[7].content }}").contains("(line 3)"));
    assert!(refusal("{% for %}").contains("cannot be read"));
    assert!(refusal("{{ 'a' + 1 }}").contains("cannot add string and number"));
    assert!(refusal("{{ messages | no_such_filter }}").contains("no_such_filter"));
}

#[test]
fn messages_that_are_none_are_refused_before_rendering() {
    for (messages, place) in [
        (json!("Hi"), "messages"),
        (json!({"role": "user"}), "messages"),
        (json!([{"role": "user"}, "Hi"]), "messages[1]"),
        (json!(null), "messages"),
    ] {
        match render("x", &messages) {
            Err(Error::Argument(evidence)) => assert_eq!(evidence.key.as_deref(), Some(place)),
            other => panic!("{messages}: {other:?}"),
        }
    }
    let template = ChatTemplate::new("x", "", "").unwrap();
    assert!(template.render(&json!([]), Some(&json!({})), true).is_err());
    assert_eq!(template.render(&json!([]), None, true).unwrap(), "x");
}

#[test]
fn values_print_and_dump_as_python_has_them() {
    assert_eq!(text("{{ true }} {{ none }} {{ 1.0 }} {{ [1, 'a', none] }}"), "True None 1.0 [1, 'a', None]");
    assert_eq!(
        text("{{ [1] + ['b'] }} {{ (1 + 2, 1 + 0.5, true + 1, 'a' + 'b', -1 + 1) }}"),
        "[1, 'b'] (3, 1.5, 2, 'ab', 0)"
    );
    assert_eq!(
        text("{% set a = [1] %}{% set a = a + [2] %}{{ a[1] }} {{ a is sequence }} {{ a | tojson }}"),
        "2 True [1, 2]"
    );
    assert_eq!(text("{{ messages[0].n | tojson }}"), "[1, 2.5, null, true, \"é\\u0001\"]");
    assert_eq!(text("{{ {'b': 1, 'a': {}} | tojson(indent=2) }}"), "{\n  \"b\": 1,\n  \"a\": {}\n}");
    assert_eq!(
        text("{{ {'b': [1, 2], 'a': 'é'} | tojson(true, separators=(',', ':'), sort_keys=true) }}"),
        r#"{"a":"\u00e9","b":[1,2]}"#
    );
    assert_eq!(text("{{ [1e22, 1e-7, 123456.5, 1e15] | tojson }}"), "[1e+22, 1e-07, 123456.5, 1000000000000000.0]");
    assert_eq!(text("{{ '<a> & \"b\"' | tojson }}"), r#""<a> & \"b\"""#);
}

#[test]
fn strings_have_pythons_methods() {
    assert_eq!(text("{{ 'a-b-c'.rsplit('-', 1) }} {{ 'a=b=c'.partition('=') }}"), "['a-b', 'c'] ['a', '=', 'b=c']");
    assert_eq!(text("{{ 'unhappy'.removeprefix('un') }}{{ 'x.gguf'.removesuffix('.gguf') }}"), "happyx");
    assert_eq!(text("{{ '  a '.strip() }}|{{ 'xxa'.lstrip('x') }}|{{ 'a</think>b'.split('</think>')[-1] }}"), "a|a|b");
    assert_eq!(text("{{ messages[0].items() | list | length }} {{ messages[0].get('x', 7) }}"), "3 7");
    assert_eq!(text("{{ 'abc'.startswith('ab') and 'abc'.endswith(('x', 'c')) }}"), "True");
}

#[test]
fn tests_agree_with_jinja() {
    assert_eq!(
        text("{{ 'a' is iterable }} {{ 'a' is sequence }} {{ none is iterable }} {{ 1 is iterable }}"),
        "True True False False"
    );
    assert_eq!(
        text("{{ {} is sequence }} {{ {} is mapping }} {{ true is number }} {{ 'a' is string }}"),
        "True True True True"
    );
}

#[test]
fn blocks_loops_and_dates() {
    assert_eq!(
        text(
            "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i > 3 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        ),
        "023"
    );
    assert_eq!(text("a{%- generation -%} {% set x = 1 %}{{ x }} {%- endgeneration %}{{ x }}b"), "a1b");
    assert_eq!(text("  {% if true %}\n  x\n  {% endif %}\ny\n"), "  x\ny");
    assert_eq!(text("{{ strftime_now('%d %b %Y, %A %H:%M:%S %p %j %-d') }}"), "06 Mar 2026, Friday 09:05:07 AM 065 6");
    assert!(refusal("{{ strftime_now('%Q') }}").contains("%Q"));
}

#[test]
fn dates_over_the_centuries() {
    for (time, date) in [
        (0, "1970-01-01 Thursday"),
        (951_782_400, "2000-02-29 Tuesday"),
        (4_107_542_399, "2100-02-28 Sunday"),
        (4_107_542_400, "2100-03-01 Monday"),
        (-1, "1969-12-31 Wednesday"),
        (-2_203_891_200, "1900-03-01 Thursday"),
        (253_402_300_799, "9999-12-31 Friday"),
    ] {
        assert_eq!(clock::strftime("%Y-%m-%d %A", time).unwrap(), date);
    }
}

#[test]
fn reasoning_is_known_under_its_usual_name_and_null_is_absent() {
    let messages = json!([{"role": "assistant", "thinking": "hm", "content": null}]);
    let source = "{{ messages[0].reasoning_content }}{{ messages[0].content is defined }}";
    assert_eq!(render(source, &messages).unwrap(), "hmFalse");
}
