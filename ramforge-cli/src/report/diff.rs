//! What changed between two reports.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::Value;

use super::Report;
use crate::size::readable;

/// Values with more characters get a line of their own.
const WIDE: usize = 28;

/// Lists with an entry a layer, a tensor, a node or an operation: only how many there are is compared.
const LONG_LISTS: [&str; 7] = [
    "inventory.layers",
    "inventory.tensors",
    "graph_trace.graphs",
    "graph_trace.last_uses",
    "graph_trace.nodes",
    "operations",
    "model.files",
];

/// Fields that tell the entries of a list apart, the first that there is.
const KEYS: [&str; 5] = ["category", "name", "index", "path", "number"];

/// One fact that differs.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Where it is: `timing.load_ms`, `ledger.kv-cache.bytes`.
    pub path: String,
    /// What the old report says; `None` when it has no such fact.
    pub old: Option<Value>,
    /// What the new report says.
    pub new: Option<Value>,
}

/// Every fact that differs, in the order of their names.
///
/// # Errors
/// When a report cannot be made JSON.
pub fn changes(old: &Report, new: &Report) -> serde_json::Result<Vec<Change>> {
    let facts = |report: &Report| -> serde_json::Result<BTreeMap<String, Value>> {
        let mut facts = BTreeMap::new();
        flatten("", serde_json::to_value(report)?, &mut facts);
        Ok(facts)
    };
    let (mut old, mut new) = (facts(old)?, facts(new)?);
    let names: Vec<String> = old.keys().chain(new.keys()).cloned().collect();
    let mut changes: Vec<Change> = names
        .into_iter()
        .filter_map(|path| {
            let (old, new) = (old.remove(&path), new.remove(&path));
            (old != new).then_some(Change { path, old, new })
        })
        .collect();
    changes.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(changes)
}

fn flatten(path: &str, value: Value, facts: &mut BTreeMap<String, Value>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                flatten(&below(&name), value, facts);
            }
        }
        Value::Array(entries) if LONG_LISTS.contains(&path) => {
            facts.insert(below("count"), entries.len().into());
        }
        Value::Array(entries) => {
            for (place, entry) in entries.into_iter().enumerate() {
                let key = KEYS.iter().find_map(|key| entry.get(key)).map(|key| match key {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                });
                flatten(&below(&key.unwrap_or_else(|| place.to_string())), entry, facts);
            }
        }
        value => {
            facts.insert(path.to_owned(), value);
        }
    }
}

/// Writes the changes as an aligned table, numbers with their difference.
///
/// # Errors
/// What the writer fails with.
pub fn write(changes: &[Change], out: &mut dyn Write) -> io::Result<()> {
    if changes.is_empty() {
        return writeln!(out, "no difference");
    }
    let rows: Vec<[String; 4]> = changes
        .iter()
        .map(|change| {
            let shown = |value: &Option<Value>| {
                value.as_ref().map_or("-".to_owned(), |value| show(&change.path, value))
            };
            [change.path.clone(), shown(&change.old), shown(&change.new), difference(change)]
        })
        .collect();
    let is_wide = |row: &[String; 4]| row[1..3].iter().any(|value| value.chars().count() > WIDE);
    let width = |column: usize| {
        let narrow = rows.iter().filter(|row| !is_wide(row));
        narrow.map(|row| row[column].chars().count()).max().unwrap_or(0)
    };
    let widths = [width(0), width(1), width(2)];
    for row in &rows {
        let [path, old, new, difference] = row;
        if is_wide(row) {
            writeln!(out, "{path}\n  - {old}\n  + {new}")?;
            continue;
        }
        let line = format!("{path:0$}  {old:>1$}  {new:>2$}  {difference}", widths[0], widths[1], widths[2]);
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

fn show(path: &str, value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if path.ends_with("bytes") => {
            number.as_u64().map_or(number.to_string(), readable)
        }
        Value::Number(number) => {
            number.as_f64().filter(|_| number.is_f64()).map_or(number.to_string(), |n| format!("{n:.2}"))
        }
        other => other.to_string(),
    }
}

/// The difference of two numbers, with the share it is of the old one.
fn difference(change: &Change) -> String {
    let number = |value: &Option<Value>| value.as_ref().and_then(Value::as_f64);
    let Some((old, new)) = number(&change.old).zip(number(&change.new)) else { return String::new() };
    let difference = new - old;
    let amount = if change.path.ends_with("bytes") {
        let sign = if difference < 0.0 { '-' } else { '+' };
        format!("{sign}{}", readable(difference.abs() as u64))
    } else {
        format!("{difference:+.2}")
    };
    if old == 0.0 { amount } else { format!("{amount} ({:+.1} %)", difference / old.abs() * 100.0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{LedgerEntry, LedgerTerm, Model, Provenance, Request, Tool};

    #[test]
    fn only_what_differs_is_shown_with_how_much() {
        let mut old = Report::new(Tool::default(), Model::default(), Request::default());
        let kv = |bytes| LedgerEntry {
            category: LedgerTerm::KvCache,
            bytes: Some(bytes),
            provenance: Some(Provenance::Native),
            reason: None,
        };
        old.ledger = vec![kv(1 << 20)];
        old.timing.load_ms = Some(200.0);
        let mut new = old.clone();
        assert!(changes(&old, &new).unwrap().is_empty());
        new.ledger = vec![kv(3 << 20)];
        new.timing.load_ms = Some(150.0);
        new.io.read_bytes = Some(7);
        let mut out = Vec::new();
        write(&changes(&old, &new).unwrap(), &mut out).unwrap();
        let expected = "\
io.read_bytes          null      7 B
ledger.kv-cache.bytes  1 MiB   3 MiB  +2 MiB (+200.0 %)
timing.load_ms         200.00  150.00  -50.00 (-25.0 %)
";
        let text = String::from_utf8(out).unwrap();
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&text), words(expected), "{text}");
    }
}
