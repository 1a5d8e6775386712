//! The summary for eyes: aligned columns, sizes readable and exact.

use std::io::{self, Write};

use super::{HyperparameterSummary, LayerSummary, Summary, TokenizerSummary};
use crate::{gguf::printable, size};

impl Summary {
    /// Writes the summary as text. Whatever comes from the file is escaped, so it cannot steer a terminal.
    ///
    /// # Errors
    /// When `out` cannot be written to.
    pub fn write_human(&self, out: &mut impl Write) -> io::Result<()> {
        let mut facts = Facts::default();
        facts.add("architecture", printable(&self.architecture));
        facts.add("name", self.name.as_deref().map_or("(none)".into(), printable));
        facts.add("format", format!("GGUF version {}", self.gguf_version));
        facts.add("parameters", grouped(self.parameters));
        facts.add("size on disk", exact(self.file_bytes));
        facts.add("tensors", format!("{}, {}", self.tensor_count, exact(self.tensor_bytes)));
        facts.write(out)?;
        if let Some(hyperparameters) = &self.hyperparameters {
            writeln!(out, "\nHyper-parameters")?;
            hyperparameters.facts().write(out)?;
        }
        if let Some(tokenizer) = &self.tokenizer {
            writeln!(out, "\nTokenizer")?;
            tokenizer.facts().write(out)?;
        }
        self.tables(out)
    }

    fn tables(&self, out: &mut impl Write) -> io::Result<()> {
        let types = self.types.iter().map(|row| Row::new(row.tensor_type, tensors(row.tensors), row.bytes));
        table(out, "Tensor types", types)?;
        let runs = self.layers.chunk_by(|a, b| (a.tensors, a.bytes) == (b.tensors, b.bytes));
        table(out, "Layers", runs.map(layers))?;
        let outside = self.outside_layers.iter().map(|tensor| {
            let kind = format!("{} {:?}", tensor.tensor_type, tensor.shape);
            Row::new(printable(&tensor.name), kind, tensor.bytes)
        });
        table(out, "Outside the layers", outside)?;
        let files = self.files.iter();
        table(
            out,
            "Files",
            files.map(|file| Row::new(printable(&file.path), tensors(file.tensors), file.bytes)),
        )
    }
}

/// Neighbouring layers of the same size, in one row.
fn layers(run: &[LayerSummary]) -> Row {
    let (first, last) = (&run[0], &run[run.len() - 1]);
    match run.len() {
        1 => Row::new(first.index, tensors(first.tensors), first.bytes),
        _ => Row {
            each: " each",
            ..Row::new(format!("{} to {}", first.index, last.index), tensors(first.tensors), first.bytes)
        },
    }
}

impl HyperparameterSummary {
    fn facts(&self) -> Facts {
        let mut facts = Facts::default();
        facts.add("context length", format!("{} tokens", grouped(self.context_length)));
        facts.add("embedding length", grouped(self.embedding_length));
        facts.add("layers", self.block_count);
        facts.add("heads", list(&self.head_count));
        facts.add("key/value heads", list(&self.head_count_kv));
        facts.add("head size", format!("{} key, {} value", self.key_length, self.value_length));
        facts.add("feed-forward length", list(&self.feed_forward_length));
        if self.expert_count > 0 {
            facts.add("experts", format!("{}, {} used", self.expert_count, list(&self.expert_used_count)));
            if let Some(length) = self.expert_feed_forward_length {
                facts.add("expert length", grouped(length));
            }
        }
        if let Some(window) = self.sliding_window {
            facts.add("sliding window", format!("{} tokens", grouped(window)));
        }
        let mut rope = format!("{} dimensions", self.rope_dimension_count);
        if let Some(base) = self.rope_freq_base {
            rope += &format!(", base {base}");
        }
        match (&self.rope_scaling_type, self.rope_scaling_factor) {
            (Some(kind), Some(factor)) => rope += &format!(", {} scaling by {factor}", printable(kind)),
            (Some(kind), None) => rope += &format!(", {} scaling", printable(kind)),
            (None, Some(factor)) => rope += &format!(", scaling by {factor}"),
            (None, None) => {}
        }
        facts.add("rope", rope);
        facts
    }
}

impl TokenizerSummary {
    fn facts(&self) -> Facts {
        let mut facts = Facts::default();
        facts.add("model", printable(&self.model));
        if let Some(pre) = &self.pre {
            facts.add("pre-tokenizer", printable(pre));
        }
        facts.add("vocabulary", format!("{} tokens", grouped(self.tokens as u64)));
        if let Some(merges) = self.merges {
            facts.add("merges", grouped(merges as u64));
        }
        for (purpose, token) in &self.special_tokens {
            let text = token.text.as_deref().map_or("outside of the vocabulary".into(), printable);
            facts.add(&format!("{} token", printable(purpose)), format!("{} {text}", token.id));
        }
        for (name, added) in [("adds bos", self.add_bos_token), ("adds eos", self.add_eos_token)] {
            if let Some(added) = added {
                facts.add(name, yes_or_no(added));
            }
        }
        facts.add("chat template", yes_or_no(self.chat_template));
        facts
    }
}

/// The first column of everything is at least this wide, in characters.
const NAME_WIDTH: usize = 20;

/// Names and values in two aligned columns.
#[derive(Default)]
struct Facts(Vec<(String, String)>);

impl Facts {
    fn add(&mut self, name: &str, value: impl ToString) {
        self.0.push((name.to_owned(), value.to_string()));
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.0.iter().try_for_each(|(name, value)| writeln!(out, "  {name:<NAME_WIDTH$}  {value}"))
    }
}

/// A row of a table; `each` follows the numbers where they stand for one of several.
struct Row {
    name: String,
    kind: String,
    size: String,
    bytes: String,
    each: &'static str,
}

impl Row {
    fn new(name: impl ToString, kind: String, bytes: u64) -> Self {
        Self { name: name.to_string(), kind, size: size::readable(bytes), bytes: grouped(bytes), each: "" }
    }
}

/// A heading and rows in columns as wide as their longest entries; nothing where there are no rows.
fn table(out: &mut impl Write, heading: &str, rows: impl Iterator<Item = Row>) -> io::Result<()> {
    let rows: Vec<Row> = rows.collect();
    if rows.is_empty() {
        return Ok(());
    }
    let width =
        |column: fn(&Row) -> &str| rows.iter().map(|row| column(row).chars().count()).max().unwrap_or(0);
    let (name, kind) = (width(|row| &row.name).max(NAME_WIDTH), width(|row| &row.kind));
    let (size, bytes) = (width(|row| &row.size), width(|row| &row.bytes));
    writeln!(out, "\n{heading}")?;
    rows.iter().try_for_each(|row| {
        let Row { each, .. } = row;
        writeln!(
            out,
            "  {:<name$}  {:<kind$}  {:>size$}  {:>bytes$} bytes{each}",
            row.name, row.kind, row.size, row.bytes
        )
    })
}

fn tensors(count: usize) -> String {
    match count {
        1 => "1 tensor".to_owned(),
        _ => format!("{} tensors", grouped(count as u64)),
    }
}

fn exact(bytes: u64) -> String {
    format!("{} ({} bytes)", size::readable(bytes), grouped(bytes))
}

fn list(numbers: &[u32]) -> String {
    match numbers {
        [number] => grouped(*number),
        _ => format!("{numbers:?}"),
    }
}

/// Digits in groups of three: `98,362,432`.
fn grouped(number: impl Into<u64>) -> String {
    let digits = number.into().to_string();
    let mut grouped = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn yes_or_no(flag: bool) -> &'static str {
    if flag { "yes" } else { "no" }
}
