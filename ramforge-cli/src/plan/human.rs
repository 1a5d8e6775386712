//! The plan for eyes.

use std::io::{self, Write};

use super::{Plan, Verdict, WayVerdict};
use crate::size::{exact, readable};

impl Plan {
    /// Writes the plan as text.
    ///
    /// # Errors
    /// When `out` cannot be written to.
    pub fn write_human(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{} ({})", self.model.path, self.model.architecture)?;
        writeln!(
            out,
            "context {} tokens, keys and values {}, batches of {}, {} threads\n",
            self.context_tokens, self.kv_type, self.batch_tokens, self.threads
        )?;
        let width = self.terms.iter().map(|term| term.name.len()).max().unwrap_or(0);
        writeln!(out, "Memory with nothing left out")?;
        for term in &self.terms {
            writeln!(out, "  {:width$}  {:>10}  {}", term.name, readable(term.bytes), term.source)?;
        }
        writeln!(out, "  {:width$}  {:>10}", "together", readable(self.peak_bytes))?;
        writeln!(out, "\nBudget: {}, {}", exact(self.budget.bytes), self.budget.reason)?;
        for bound in &self.budget.bounds {
            writeln!(out, "  {}: {}", bound.name, readable(bound.bytes))?;
        }
        writeln!(out, "\nWays to run it")?;
        for way in &self.ways {
            writeln!(out, "  {:17}  {}", way.way.name(), describe(way))?;
        }
        writeln!(out)?;
        match (&self.best, &self.bottleneck) {
            (Some(best), Some(bottleneck)) => {
                writeln!(out, "It runs {}; its speed is limited by {bottleneck}.", best.name())?;
            }
            _ => writeln!(out, "It does not run in this budget.")?,
        }
        writeln!(out, "Smallest budget: --ram {}M", self.smallest_ram_bytes >> 20)?;
        match self.largest_context_tokens {
            Some(tokens) => writeln!(out, "Largest context in this budget: --ctx {tokens}")?,
            None => writeln!(out, "No context fits in this budget.")?,
        }
        self.notes.iter().try_for_each(|note| writeln!(out, "Note: {note}"))
    }
}

fn describe(way: &WayVerdict) -> String {
    let needs =
        format!("needs {}, {} of it in reserve", readable(way.needs_bytes), readable(way.reserve_bytes));
    let verdict = match way.verdict {
        Verdict::Works => "works",
        Verdict::MayBeKilled => "may be killed",
        Verdict::TooLarge => "too large",
    };
    let pinned = way.pinned_bytes.map(|bytes| format!("; keeps {} of the weights", readable(bytes)));
    let read = way.read_per_token_bytes.map(|bytes| match bytes {
        0 => "; reads nothing after the load".to_owned(),
        bytes => format!("; reads {} for each token", readable(bytes)),
    });
    format!("{verdict}: {needs}{}{}", pinned.unwrap_or_default(), read.unwrap_or_default())
}
