//! The Jinja environment that `transformers` builds, in minijinja: the same block trimming, filters, tests, functions and
//! methods.

use std::collections::BTreeMap;
use std::fmt;

use minijinja::machinery::{self, CodeGenerator, Instruction, Instructions};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Serde, Tuple, Value, ValueKind, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};
use minijinja_contrib::{globals, pycompat};
use serde_json::Map;

use super::{clock, json};

const NAME: &str = "chat_template";
// No template can spell the name of this filter.
const PLUS: &str = "+";
// The id of a filter that is looked up at each use.
const UNCACHED: u8 = !0;
/// The variable that carries the time of a render; no template can name it by chance.
pub(super) const TIME: &str = "__time";

#[derive(Debug)]
struct Raised;

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("raised by the template")
    }
}

impl std::error::Error for Raised {}

/// Whether the template itself raised this error.
pub(super) fn was_raised(error: &Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if inner.is::<Raised>() {
            return true;
        }
        source = inner.source();
    }
    false
}

/// A template's source, ready to run.
pub(super) struct Program {
    source: String,
    bos: String,
    eos: String,
}

impl Program {
    /// Reads the source, so that what is wrong with it shows before it is used.
    pub(super) fn new(source: &str, bos: &str, eos: &str) -> Result<Self, Error> {
        let program = Self { source: plain_generation_blocks(source), bos: bos.into(), eos: eos.into() };
        program.instructions().map(drop)?;
        Ok(program)
    }

    /// Renders with a budget that grows with the input, so that a long conversation is no attack.
    pub(super) fn render(&self, context: &Map<String, serde_json::Value>, fuel: u64) -> Result<String, Error> {
        let mut environment = environment(&self.bos, &self.eos);
        let size = serde_json::to_string(context).map_or(0, |text| text.len() as u64);
        environment.set_fuel(Some(fuel.saturating_add(size)));
        let (instructions, blocks) = self.instructions()?;
        let mut text = String::new();
        let mut output = machinery::make_string_output(&mut text);
        let root = Value::from(Serde(context));
        machinery::eval(&environment, &instructions, root, &blocks, &mut output, AutoEscape::None)?;
        Ok(text)
    }

    // minijinja joins lists lazily, and when it does copy them it has charged no fuel: thirty-three doublings in a
    // template would fill any memory. So the instruction for `+` is replaced by a filter of ours, which also gives lists
    // where Python gives lists.
    fn instructions(&self) -> Result<(Instructions<'_>, BTreeMap<&str, Instructions<'_>>), Error> {
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
        let tree = machinery::parse(&self.source, NAME, syntax)?;
        let mut generator = CodeGenerator::new(NAME, &self.source);
        generator.compile_stmt(&tree);
        let (mut instructions, mut blocks) = generator.finish();
        for instructions in blocks.values_mut().chain([&mut instructions]) {
            let mut place = 0;
            while let Some(instruction) = instructions.get_mut(place) {
                if matches!(instruction, Instruction::Add) {
                    *instruction = Instruction::ApplyFilter(PLUS, Some(2), UNCACHED);
                }
                place += 1;
            }
        }
        Ok((instructions, blocks))
    }
}

fn environment(bos: &str, eos: &str) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_recursion_limit(200);
    environment.set_unknown_method_callback(method);
    environment.add_filter(PLUS, plus);
    environment.add_filter("tojson", json::tojson);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_function("cycler", globals::cycler);
    environment.add_function("joiner", globals::joiner);
    environment.add_test("iterable", |value: &Value| {
        value.is_undefined() || sized(value) || value.kind() == ValueKind::Iterable
    });
    environment.add_test("sequence", sized);
    // Python's booleans are numbers.
    environment.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    environment.add_global("bos_token", bos);
    environment.add_global("eos_token", eos);
    environment
}

// Python's `+`, paid before anything is made.
fn plus(state: &State, left: &Value, right: &Value) -> Result<Value, Error> {
    let refuse = || {
        let kinds = format!("cannot add {} and {}", left.kind(), right.kind());
        Error::new(ErrorKind::InvalidOperation, kinds)
    };
    if let (Some(head), Some(tail)) = (left.as_str(), right.as_str()) {
        state.consume_fuel((head.len() + tail.len()) as u64 / 64)?;
        return Ok([head, tail].concat().into());
    }
    let list = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    if list(left) && list(right) {
        let mut items = Vec::new();
        for value in [left, right] {
            for item in value.try_iter()? {
                state.consume_fuel(1)?;
                items.push(item);
            }
        }
        return Ok(if left.is_tuple() && right.is_tuple() { Tuple::from(items).into() } else { items.into() });
    }
    let number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    if !number(left) || !number(right) {
        return Err(refuse());
    }
    let whole = |value: &Value| match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        _ if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    };
    match (whole(left), whole(right)) {
        (Some(a), Some(b)) => a.checked_add(b).map(Value::from).ok_or_else(refuse),
        _ => {
            let real =
                |value: &Value| whole(value).map_or_else(|| f64::try_from(value.clone()), |whole| Ok(whole as f64));
            Ok(Value::from(real(left)? + real(right)?))
        }
    }
}

// Strings, lists and mappings have a length and an index in Python.
fn sized(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message).with_source(Raised))
}

fn strftime_now(state: &State, format: &str) -> Result<String, Error> {
    let time = state.lookup(TIME).and_then(|time| i64::try_from(time).ok()).unwrap_or_else(clock::now);
    clock::strftime(format, time)
        .map_err(|field| Error::new(ErrorKind::InvalidOperation, format!("strftime_now does not know %{field}")))
}

// Python's methods of strings that minijinja-contrib lacks, then its own.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, name, args);
    };
    match name {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(text.strip_prefix(prefix).unwrap_or(text).into())
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(text.strip_suffix(suffix).unwrap_or(text).into())
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let parts = if name == "partition" {
                text.split_once(separator).map_or([text, "", ""], |(head, tail)| [head, separator, tail])
            } else {
                text.rsplit_once(separator).map_or(["", "", text], |(head, tail)| [head, separator, tail])
            };
            Ok(parts.iter().map(|&part| Value::from(part)).collect())
        }
        "rsplit" => {
            let (separator, most, _): (&str, Option<i64>, Rest<Kwargs>) = from_args(args)?;
            let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX - 1);
            let mut parts: Vec<Value> = text.rsplitn(most + 1, separator).map(Value::from).collect();
            parts.reverse();
            Ok(parts.into())
        }
        _ => pycompat::unknown_method_callback(state, value, name, args),
    }
}

// `{% generation %}` only marks which part an assistant wrote. What it sets stays inside it, as in a `with` block.
fn plain_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let tag = rest.find("%}").map_or(rest, |end| &rest[..end + 2]);
        let inside = tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+']).trim();
        match inside {
            "generation" => out.push_str(&tag.replacen("generation", "with", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            _ => out.push_str(tag),
        }
        rest = &rest[tag.len()..];
    }
    out.push_str(rest);
    out
}
