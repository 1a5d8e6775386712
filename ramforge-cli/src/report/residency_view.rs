//! The report's residency side for people.

use std::io::{self, Write};

use super::{Backing, LedgerEntry, Operation, Report, Tensor};
use crate::size::{exact, readable};

/// One character a layer, from nothing resident to all of it.
const SHADES: [char; 5] = ['·', '░', '▒', '▓', '█'];

/// Layers in one line of the strip.
const STRIP: usize = 64;

/// Writes where the weights were, what was done about them and what explains the memory.
///
/// # Errors
/// What the writer fails with.
pub fn residency(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    weights(report, out)?;
    ledger(report, out)?;
    operations(report, out)?;
    streaming(report, out)?;
    trace(report, out)
}

fn weights(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let Some(inventory) = &report.inventory else {
        return writeln!(out, "weights: not looked at (the model was not loaded, or nobody asked)");
    };
    writeln!(out, "weights")?;
    let rows = [
        ("pages of the files", inventory.file_backed_bytes),
        ("anonymous memory", inventory.anonymous_bytes),
        ("not loaded, or unknown", inventory.unknown_bytes),
        ("second copies", inventory.copy_bytes),
    ];
    for (name, bytes) in rows.into_iter().filter(|&(_, bytes)| bytes > 0) {
        writeln!(out, "  {name:24} {}", exact(bytes))?;
    }
    for mapping in &inventory.mappings {
        let resident = mapping.resident_bytes.map_or("not known".to_owned(), exact);
        writeln!(out, "  {}: {} mapped, {resident} in memory", mapping.path, exact(mapping.mapped_bytes))?;
    }
    strip(report, out)
}

fn strip(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let layers = report.inventory.as_ref().map_or(&[][..], |inventory| &inventory.layers);
    let shade = |layer: &super::Layer| -> char {
        let all = layer.exclusive_page_bytes + layer.shared_page_bytes;
        match layer.resident_bytes {
            _ if all == 0 => ' ',
            None => '?',
            Some(0) => SHADES[0],
            Some(resident) if resident >= all => SHADES[4],
            Some(resident) => SHADES[1 + (resident * 3 / all) as usize],
        }
    };
    for (line, layers) in layers.chunks(STRIP).enumerate() {
        let strip: String = layers.iter().map(shade).collect();
        writeln!(out, "  layers from {:<3}          {strip}", line * STRIP)?;
    }
    if !layers.is_empty() {
        writeln!(out, "  {:24} █ all in memory, · none, blank: no page of a file", "")?;
    }
    Ok(())
}

fn ledger(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    if report.ledger.is_empty() {
        return Ok(());
    }
    writeln!(out, "ledger")?;
    for entry in &report.ledger {
        writeln!(out, "  {:30} {}", name_of(&entry.category), amount(entry))?;
    }
    let Some(reconciliation) = &report.reconciliation else { return Ok(()) };
    writeln!(out, "what the ledger explains")?;
    for difference in &reconciliation.differences {
        let sign = if difference.difference_bytes < 0 { "-" } else { "+" };
        writeln!(
            out,
            "  {:34} {:>11} of {:>11}, {sign}{}",
            difference.name,
            readable(difference.explained_bytes),
            readable(difference.observed_bytes),
            readable(difference.difference_bytes.unsigned_abs())
        )?;
    }
    match reconciliation.unexplained_bytes {
        Some(bytes) => writeln!(out, "  unexplained at the peak: {bytes} bytes"),
        None => writeln!(out, "  unexplained at the peak: not known"),
    }
}

fn amount(entry: &LedgerEntry) -> String {
    match (entry.bytes, &entry.provenance) {
        (Some(bytes), Some(provenance)) => format!("{} ({})", exact(bytes), name_of(provenance)),
        _ => format!("not known: {}", entry.reason.as_deref().unwrap_or("no reason is given")),
    }
}

/// The name that the JSON has.
fn name_of(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}

fn operations(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let operations = &report.operations;
    if operations.is_empty() {
        return Ok(());
    }
    writeln!(out, "operations: {}", operations.len())?;
    writeln!(
        out,
        "  {:8} {:8} {:13} {:>7} {:>11} {:>11} {:>11} {:>12}",
        "after", "kind", "policy", "tensors", "planned", "requested", "accepted", "observed"
    )?;
    let shown = 8;
    for operation in operations.iter().take(shown) {
        writeln!(out, "  {}", row(operation))?;
        if let Some(reason) = &operation.reason {
            writeln!(out, "    {reason}")?;
        }
    }
    if operations.len() > shown {
        writeln!(out, "  and {} more", operations.len() - shown)?;
    }
    Ok(())
}

fn row(operation: &Operation) -> String {
    let observed = operation.observed_delta_bytes.map_or("not known".to_owned(), |bytes| {
        let sign = if bytes < 0 { "-" } else { "+" };
        format!("{sign}{}", readable(bytes.unsigned_abs()))
    });
    format!(
        "{:8} {:8} {:13} {:>7} {:>11} {:>11} {:>11} {observed:>12}",
        operation.phase,
        operation.kind,
        operation.policy,
        operation.selected_tensors,
        readable(operation.planned_bytes),
        readable(operation.requested_bytes),
        readable(operation.accepted_bytes),
    )
}

fn streaming(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let Some(streaming) = &report.streaming else { return Ok(()) };
    writeln!(out, "streaming")?;
    writeln!(out, "  stay in memory           {}", exact(streaming.pinned_bytes))?;
    writeln!(out, "  stayed at the end        {}", exact(streaming.kept_bytes))?;
    writeln!(out, "  read in each pass        {}", exact(streaming.streamed_bytes_per_pass))?;
    writeln!(
        out,
        "  passes                   {}, {} read, {:.0} ms waited",
        streaming.passes,
        readable(streaming.bytes_read),
        streaming.stall_ms
    )
}

fn trace(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let Some(trace) = &report.graph_trace else { return Ok(()) };
    let complete = if trace.complete { "complete" } else { "incomplete" };
    writeln!(
        out,
        "graph trace: {complete}, {} executions, {} events, {} dropped",
        trace.executions, trace.events, trace.dropped_events
    )?;
    if let Some(reason) = &trace.reason {
        writeln!(out, "  {reason}")?;
    }
    Ok(())
}

/// Writes the tensors of one layer.
///
/// # Errors
/// What the writer fails with.
pub fn layer(report: &Report, index: u32, out: &mut dyn Write) -> io::Result<()> {
    let inventory = report.inventory.as_ref();
    let tensors = inventory.map_or(&[][..], |inventory| &inventory.tensors);
    let tensors: Vec<&Tensor> = tensors.iter().filter(|tensor| tensor.layer == Some(index)).collect();
    if tensors.is_empty() {
        return writeln!(out, "layer {index}: no tensor of it was loaded");
    }
    let bytes: u64 = tensors.iter().map(|tensor| tensor.bytes).sum();
    writeln!(out, "layer {index}: {} tensors, {}", tensors.len(), exact(bytes))?;
    let width = tensors.iter().map(|tensor| tensor.name.len()).max().unwrap_or(0);
    writeln!(
        out,
        "  {:width$} {:8} {:20} {:>11} {:12} {:>4} {:>12} {:>25} {:>8} {:>11}",
        "tensor", "type", "shape", "bytes", "buffer", "file", "offset", "pages", "shared", "in memory"
    )?;
    for tensor in tensors {
        let dimensions = tensor.shape.iter().rposition(|&length| length > 1).unwrap_or(0) + 1;
        let shape: Vec<String> = tensor.shape[..dimensions].iter().map(u64::to_string).collect();
        let (pages, shared, resident) = match &tensor.pages {
            Some(pages) => (
                format!("{}..{}", pages.start, pages.start + pages.bytes),
                pages.shared_bytes.to_string(),
                pages.resident_bytes.map_or("not known".to_owned(), |bytes| bytes.to_string()),
            ),
            None => match tensor.backing {
                Backing::Anonymous => ("anonymous".to_owned(), String::new(), String::new()),
                Backing::File | Backing::Unknown => ("unknown".to_owned(), String::new(), String::new()),
            },
        };
        let buffer = tensor.buffer.as_deref().unwrap_or("none");
        let line = format!(
            "  {:width$} {:8} {:20} {:>11} {buffer:12} {:>4} {:>12} {pages:>25} {shared:>8} {resident:>11}",
            tensor.name,
            tensor.tensor_type,
            shape.join("x"),
            tensor.bytes,
            tensor.file,
            tensor.offset,
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Writes the whole report: what ran, how it ended, and where the memory was.
///
/// # Errors
/// What the writer fails with.
pub fn whole(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let (model, tool) = (&report.model, &report.tool);
    let known = |value: &Option<String>| value.clone().unwrap_or_else(|| "not known".to_owned());
    writeln!(out, "{} {}", tool.name, tool.version)?;
    let bytes = model.tensor_bytes.map_or("not known".to_owned(), exact);
    writeln!(out, "model          {} ({}, weights {bytes})", model.path, known(&model.architecture))?;
    writeln!(out, "budget         {}", report.request.ram_bytes.map_or("none".to_owned(), exact))?;
    writeln!(out, "policy         {}", known(&report.request.policy))?;
    writeln!(out, "outcome        {}", report.outcome.result)?;
    if let Some(message) = &report.outcome.message {
        writeln!(out, "               {message}")?;
    }
    if let Some(output) = &report.output {
        let stop = known(&output.stop_reason);
        writeln!(
            out,
            "tokens         {} of the prompt, {} generated, then {stop}",
            output.prompt_tokens, output.generated_tokens
        )?;
        writeln!(out, "fingerprint    {}", known(&output.token_fingerprint))?;
    }
    let ms = |ms: Option<f64>| ms.map_or("not reached".to_owned(), |ms| format!("{ms:.0} ms"));
    let timing = &report.timing;
    writeln!(out, "load           {}", ms(timing.load_ms))?;
    writeln!(out, "first token    {}", ms(timing.time_to_first_token_ms))?;
    if let Some(rate) = timing.decode_tokens_per_second {
        writeln!(out, "decode         {rate:.2} tokens/s")?;
    }
    super::human::memory(report, out)?;
    residency(report, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Inventory, Layer, Mapping, Model, Request, TensorPages, Tool};

    fn report() -> Report {
        let mut report = Report::new(Tool::default(), Model::default(), Request::default());
        let layer = |index, resident_bytes| Layer {
            index,
            exclusive_page_bytes: 8192,
            shared_page_bytes: 4096,
            resident_bytes,
            ..Layer::default()
        };
        report.inventory = Some(Inventory {
            file_backed_bytes: 20_000,
            mappings: vec![Mapping {
                path: "m.gguf".to_owned(),
                mapped_bytes: 24_576,
                resident_bytes: Some(16_384),
                ..Mapping::default()
            }],
            layers: vec![layer(0, Some(12_288)), layer(1, Some(4096)), layer(2, Some(0)), layer(3, None)],
            tensors: vec![Tensor {
                name: "blk.1.ffn_up.weight".to_owned(),
                layer: Some(1),
                tensor_type: "q4_0".to_owned(),
                shape: [64, 32, 1, 1],
                bytes: 1152,
                buffer: Some("CPU_Mapped".to_owned()),
                backing: Backing::File,
                file: 0,
                offset: 4100,
                pages: Some(TensorPages {
                    start: 4096,
                    bytes: 4096,
                    shared_bytes: 4096,
                    resident_bytes: Some(0),
                }),
            }],
            ..Inventory::default()
        });
        report
    }

    fn text(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_strip_has_one_character_a_layer() {
        let text = text(|out| residency(&report(), out));
        assert!(text.contains("layers from 0            █▒·?\n"), "{text}");
        assert!(
            text.contains("m.gguf: 24 KiB (24576 bytes) mapped, 16 KiB (16384 bytes) in memory"),
            "{text}"
        );
    }

    #[test]
    fn a_layer_is_a_table_of_its_tensors() {
        let shown = text(|out| layer(&report(), 1, out));
        assert!(shown.starts_with("layer 1: 1 tensors, 1.12 KiB (1152 bytes)\n"), "{shown}");
        assert!(shown.contains("64x32") && shown.contains("4096..8192"), "{shown}");
        assert!(text(|out| layer(&report(), 9, out)).contains("no tensor of it was loaded"));
    }

    #[test]
    fn an_empty_report_can_be_shown() {
        let report = Report::new(Tool::default(), Model::default(), Request::default());
        assert!(text(|out| whole(&report, out)).contains("the run did not end"));
    }
}
