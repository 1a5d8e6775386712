//! What a run holds in memory, term by term.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::NativeSizes;

/// Bytes of a page and of its entry in a page table.
const PAGE_BYTES: u64 = 4096;
const PAGE_ENTRY_BYTES: u64 = 8;

/// One amount of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Term {
    /// What it is.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// Where the number comes from.
    pub source: String,
}

impl Term {
    pub(super) fn new(name: impl Into<String>, bytes: u64, source: &str) -> Self {
        Self { name: name.into(), bytes, source: source.to_owned() }
    }
}

/// The memory of a run with one context.
///
/// The terms explain the peak of a memory group that the run has to itself (`memory.peak`, or
/// `memory.max_usage_in_bytes`): anonymous memory, the pages of the model's files, and the page tables of both.
/// They do not explain a process's peak resident size, in which the program's own pages count too, although
/// every run of the program shares them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of the model's files.
    pub file_bytes: u64,
    /// What the native library and the measurement say.
    pub sizes: NativeSizes,
}

impl Footprint {
    /// Anonymous memory with the weights in the file's layout: the kernel can neither drop it nor read it again.
    pub const fn anonymous_bytes(&self) -> u64 {
        let sizes = &self.sizes;
        sizes.base_bytes + sizes.kv_bytes + sizes.compute_bytes + sizes.work_bytes + sizes.output_bytes
    }

    /// Anonymous memory when weights are repacked.
    pub const fn repacked_anonymous_bytes(&self) -> u64 {
        self.anonymous_bytes() + self.sizes.repacked_weights_bytes
    }

    /// What must stay in memory for nothing to be read again. A repacked weight's pages of the file are not
    /// used any more, so this is the same whether weights are repacked or not.
    pub const fn resident_bytes(&self) -> u64 {
        with_page_tables(self.anonymous_bytes() + self.file_bytes)
    }

    /// The peak of a run without any limit: the file's pages stay, and so do the copies.
    pub const fn peak_bytes(&self, repack: bool) -> u64 {
        let anonymous = if repack { self.repacked_anonymous_bytes() } else { self.anonymous_bytes() };
        with_page_tables(anonymous + self.file_bytes)
    }

    /// The terms of [`Self::peak_bytes`].
    pub fn terms(&self, repack: bool) -> Vec<Term> {
        let mut terms = vec![Term::new("model files", self.file_bytes, "the files' length")];
        terms.extend(self.anonymous_terms(repack));
        let tables = self.peak_bytes(repack) - terms.iter().map(|term| term.bytes).sum::<u64>();
        terms.push(Term::new("page tables", tables, "8 bytes for each page of 4 KiB"));
        terms
    }

    /// The terms of [`Self::anonymous_bytes`], or of [`Self::repacked_anonymous_bytes`].
    pub fn anonymous_terms(&self, repack: bool) -> Vec<Term> {
        let sizes = &self.sizes;
        let native = "the native library, asked without allocating";
        let mut terms = Vec::new();
        if repack && sizes.repacked_weights_bytes > 0 {
            terms.push(Term::new("repacked copies of weights", sizes.repacked_weights_bytes, native));
        }
        terms.push(Term::new(
            format!("KV cache for {} tokens", sizes.context_tokens),
            sizes.kv_bytes,
            native,
        ));
        terms.push(Term::new("compute buffers", sizes.compute_bytes, native));
        terms.push(Term::new("scratch memory of the threads", sizes.work_bytes, native));
        terms.push(Term::new("logits", sizes.output_bytes, "outputs × vocabulary × 4 bytes"));
        let measured = "measured in a process that had loaded the header and made the context";
        terms.push(Term::new("vocabulary, metadata and program", sizes.base_bytes, measured));
        terms
    }
}

/// `bytes` and the page tables that map them.
pub(super) const fn with_page_tables(bytes: u64) -> u64 {
    bytes + bytes.div_ceil(PAGE_BYTES) * PAGE_ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_terms_add_up_to_the_peak() {
        let sizes = NativeSizes {
            repacked_weights_bytes: 1 << 20,
            mapped_weights_bytes: 3 << 20,
            kv_bytes: 5 << 20,
            compute_bytes: 7 << 20,
            work_bytes: 11,
            output_bytes: 13,
            base_bytes: 17 << 20,
            ..NativeSizes::default()
        };
        let footprint = Footprint { file_bytes: (4 << 20) + 5, sizes };
        for repack in [false, true] {
            let sum: u64 = footprint.terms(repack).iter().map(|term| term.bytes).sum();
            assert_eq!(sum, footprint.peak_bytes(repack));
        }
        let copies = footprint.peak_bytes(true) - footprint.peak_bytes(false);
        assert_eq!(copies, (1 << 20) + 256 * 8);
        assert_eq!(footprint.resident_bytes(), footprint.peak_bytes(false));
    }
}
