//! The `tojson` filter of `transformers`: Python's `json.dumps`, not the HTML-safe filter of Jinja.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

struct Style {
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
}

/// `value | tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(state: &State, value: &Value, ascii: Option<bool>, options: Kwargs) -> Result<String, Error> {
    let indent = match options.get::<Option<Value>>("indent")? {
        None => None,
        Some(value) if value.is_none() => None,
        Some(value) => match value.as_str() {
            Some(text) => Some(text.to_string()),
            None => Some(" ".repeat(usize::try_from(value)?.min(64))),
        },
    };
    let (item, key) = match options.get::<Option<Value>>("separators")?.filter(|value| !value.is_none()) {
        Some(pair) => (pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string()),
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
    };
    let style = Style {
        ensure_ascii: ascii.or(options.get("ensure_ascii")?).unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent,
        item_separator: item,
        key_separator: key,
    };
    options.assert_all_used()?;
    let mut out = String::new();
    style.write(state, &mut out, value, 0)?;
    Ok(out)
}

impl Style {
    fn write(&self, state: &State, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        // Paid as it grows: a small value may hold itself many times over.
        state.consume_fuel(1 + value.as_str().map_or(0, str::len) as u64 / 64)?;
        if depth > 100 {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: the value is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)?),
            ValueKind::String => self.string(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?;
                self.container(out, '[', ']', items, depth, |style, out, item| {
                    style.write(state, out, &item, depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut entries = Vec::new();
                for key in value.try_iter()? {
                    let text = match key.kind() {
                        ValueKind::String => key.as_str().unwrap_or_default().to_string(),
                        ValueKind::None => "null".to_string(),
                        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_string(),
                        ValueKind::Number => number(&key)?,
                        other => return Err(not_serializable(other)),
                    };
                    entries.push((text, value.get_item(&key)?));
                }
                if self.sort_keys {
                    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                let entries = entries.into_iter();
                self.container(out, '{', '}', entries, depth, |style, out, (key, item)| {
                    style.string(out, &key);
                    out.push_str(&style.key_separator);
                    style.write(state, out, &item, depth + 1)
                })?;
            }
            other => return Err(not_serializable(other)),
        }
        Ok(())
    }

    fn container<T>(
        &self,
        out: &mut String,
        open: char,
        close: char,
        items: impl Iterator<Item = T>,
        depth: usize,
        mut write: impl FnMut(&Self, &mut String, T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        let mut empty = true;
        for item in items {
            if !empty {
                out.push_str(&self.item_separator);
            }
            empty = false;
            self.new_line(out, depth + 1);
            write(self, out, item)?;
        }
        if !empty {
            self.new_line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn new_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }

    fn string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && !matches!(c, ' '..='~')) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn not_serializable(kind: ValueKind) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {kind} is not JSON serializable"))
}

// Python's repr: the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on.
fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    let number = f64::try_from(value.clone())?;
    if number.is_nan() {
        return Ok("NaN".into());
    }
    if number.is_infinite() {
        return Ok(if number > 0.0 { "Infinity" } else { "-Infinity" }.into());
    }
    // Rust's debug form has the same thresholds; only the exponent is spelled otherwise.
    let text = format!("{number:?}");
    Ok(match text.split_once('e') {
        Some((digits, exponent)) => match exponent.parse::<i32>() {
            Ok(exponent) => format!("{digits}e{exponent:+03}"),
            Err(_) => text,
        },
        None => text,
    })
}
