//! The figures for eyes.

use std::io::{self, Write};

use super::{Bench, Figures, Measured, Way, median};
use crate::size::readable;

/// One row: its name, and what of the figures it shows.
type Row = (String, fn(&Figures) -> Option<String>);

impl Bench {
    /// Writes the medians as a table, and what they mean.
    ///
    /// # Errors
    /// When `out` cannot be written to.
    pub fn write_human(&self, out: &mut dyn Write) -> io::Result<()> {
        let request = &self.request;
        writeln!(out, "{} in {}", request.model, readable(request.ram_bytes))?;
        writeln!(
            out,
            "{} threads, prompt of {} tokens, medians of {} rounds\n",
            request.threads, request.prompt_tokens, request.rounds
        )?;
        self.write_table(out)?;
        for measured in &self.ways {
            if let Some(reason) = &measured.reason {
                let after = match measured.rounds.len() {
                    0 => String::new(),
                    rounds => format!(" after {rounds} rounds"),
                };
                writeln!(out, "{}{after}: {reason}", self.name(measured))?;
            }
        }
        writeln!(out)?;
        let disk = self.disk_bytes_per_second.clone().and_then(median);
        match (disk, &self.disk_reason) {
            (Some(disk), _) => writeln!(out, "The disk reads {}/s.", readable(disk as u64))?,
            (None, Some(reason)) => writeln!(out, "The disk was not measured: {reason}.")?,
            (None, None) => {}
        }
        let policy = &request.policy;
        let over = |ratio: Option<f64>| {
            ratio.map_or("not measured".to_owned(), |ratio| format!("{ratio:.2} x the limit"))
        };
        writeln!(
            out,
            "{policy}: a token {}, the prompt {}, the first token {}.",
            over(self.token_over_limit),
            over(self.prompt_over_limit),
            over(self.first_token_over_limit)
        )?;
        if let Some(times) = self.times_as_fast_as_paging {
            writeln!(out, "{policy}: {times:.2} times as fast as kernel paging.")?;
        }
        match self.same_logits {
            Some(true) => writeln!(out, "The logits of all runs are the same, bit for bit."),
            Some(false) => writeln!(out, "The logits of the runs DIFFER: please report this."),
            None => Ok(()),
        }
    }

    fn name(&self, measured: &Measured) -> String {
        match measured.way {
            Way::Policy => self.request.policy.clone(),
            Way::KernelPaging => "kernel paging".to_owned(),
            Way::Resident => "all in memory".to_owned(),
        }
    }

    fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let rows: [Row; 12] = [
            ("seconds for a token".to_owned(), |f| {
                f.seconds_per_token.map(|seconds| format!("{seconds:.4}"))
            }),
            ("tokens a second".to_owned(), |f| f.seconds_per_token.map(|s| format!("{:.2}", s.recip()))),
            ("read for a token".to_owned(), |f| f.read_per_token_bytes.map(size)),
            ("time for the prompt".to_owned(), |f| f.prompt_ms.map(seconds)),
            ("read for the prompt".to_owned(), |f| f.prompt_read_bytes.map(size)),
            ("time to the first token".to_owned(), |f| f.first_token_ms.map(seconds)),
            ("filling memory after it".to_owned(), |f| f.settle_ms.map(seconds)),
            ("peak of memory".to_owned(), |f| f.peak_bytes.map(size)),
            ("limit events".to_owned(), |f| f.limit_events.map(|events| format!("{events:.0}"))),
            ("weights kept in memory".to_owned(), |f| f.pinned_bytes.map(size)),
            ("read in each pass".to_owned(), |f| f.streamed_bytes_per_pass.map(size)),
            ("waited for reads".to_owned(), |f| f.stall_ms.map(seconds)),
        ];
        let limit = self.limit.as_ref().map(|limit| Figures {
            seconds_per_token: limit.seconds_per_token,
            prompt_ms: limit.prompt_ms,
            first_token_ms: limit.first_token_ms,
            ..Figures::default()
        });
        let mut columns: Vec<(String, Figures)> =
            self.ways.iter().map(|measured| (self.name(measured), measured.median)).collect();
        columns.extend(limit.map(|limit| ("limit".to_owned(), limit)));
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        write!(out, "{:width$}", "")?;
        columns.iter().try_for_each(|(name, _)| write!(out, "  {name:>13}"))?;
        writeln!(out)?;
        for (name, show) in rows {
            write!(out, "{name:width$}")?;
            for (_, figures) in &columns {
                write!(out, "  {:>13}", show(figures).unwrap_or_else(|| "-".to_owned()))?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

fn size(bytes: f64) -> String {
    readable(bytes as u64)
}

fn seconds(milliseconds: f64) -> String {
    format!("{:.2} s", milliseconds / 1000.0)
}
