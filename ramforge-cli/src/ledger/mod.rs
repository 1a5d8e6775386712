//! The ledger: every known amount of memory with its source, the others with a reason, and what they explain
//! of what the kernel showed. Pure.

use crate::report::{Difference, Inventory, LedgerEntry, LedgerTerm, Provenance, Reconciliation, Report};

/// The name of the comparison that decides what is unexplained in an enforced run.
const GROUP_PEAK: &str = "the group's peak";

/// What the kernel showed at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Anonymous memory of the process.
    pub anonymous_bytes: Option<u64>,
    /// File pages mapped by the process.
    pub file_bytes: Option<u64>,
    /// Pages of the model's files in memory, mapped or not.
    pub mapping_bytes: Option<u64>,
    /// The process's resident memory.
    pub rss_bytes: Option<u64>,
    /// The largest it ever was.
    pub peak_rss_bytes: Option<u64>,
    /// All the group holds.
    pub group_bytes: Option<u64>,
    /// The most it ever held.
    pub group_peak_bytes: Option<u64>,
    /// Pages of files in what it holds.
    pub group_file_bytes: Option<u64>,
    /// Kernel memory in that.
    pub kernel_bytes: Option<u64>,
}

impl Moment {
    /// Pages of files charged to the group that are not the mappings'.
    fn other_file_bytes(&self) -> Option<u64> {
        self.group_file_bytes?.checked_sub(self.mapping_bytes?)
    }
}

/// What was gathered over a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Anonymous memory of the process before the load.
    pub program_bytes: Option<u64>,
    /// Anonymous memory of the process after the load.
    pub loaded_bytes: Option<u64>,
    /// Weights that the load put into anonymous memory, by the native library's account.
    pub repacked_bytes: Option<u64>,
    /// Those, and what was pinned after the load.
    pub anonymous_weight_bytes: Option<u64>,
    /// KV cache, by the native library's account.
    pub kv_bytes: Option<u64>,
    /// Compute buffers, by the native library's account.
    pub compute_bytes: Option<u64>,
    /// Slots for streamed weights.
    pub staging_bytes: Option<u64>,
    /// The process's share of the mappings' pages.
    pub pss_bytes: Option<u64>,
    /// The largest anonymous part seen.
    pub peak_anonymous_bytes: Option<u64>,
    /// The largest file part seen.
    pub peak_file_bytes: Option<u64>,
    /// The moment at which the group, or without one the process, was seen to hold most.
    pub fullest: Moment,
}

impl Facts {
    /// Takes in what was seen at a safe boundary.
    pub fn notice(&mut self, moment: Moment) {
        self.peak_anonymous_bytes = self.peak_anonymous_bytes.max(moment.anonymous_bytes);
        self.peak_file_bytes = self.peak_file_bytes.max(moment.file_bytes);
        let held = |moment: &Moment| moment.group_bytes.or(moment.rss_bytes);
        if held(&moment) >= held(&self.fullest) {
            self.fullest = moment;
        }
    }
}

/// Every category once, in a fixed order.
pub fn entries(facts: &Facts, inventory: &Inventory, now: Moment) -> Vec<LedgerEntry> {
    use LedgerTerm as Term;
    let not_native = "the native library was not asked yet";
    let not_shown = "the kernel does not show it";
    let no_group = "the run has no memory group of its own";
    let native = |term, bytes| entry(term, bytes, Provenance::Native, not_native);
    let kernel = |term, bytes| entry(term, bytes, Provenance::Kernel, not_shown);
    let group = |term, bytes| entry(term, bytes, Provenance::Kernel, no_group);
    let vocabulary = vocabulary_and_metadata(facts);
    vec![
        entry(Term::FileBackedWeights, Some(inventory.file_backed_bytes), Provenance::FileHeader, ""),
        native(Term::AnonymousWeights, facts.anonymous_weight_bytes),
        entry(
            Term::MappingResident,
            now.mapping_bytes,
            Provenance::Kernel,
            "the kernel shows it only to those who own or may write the files",
        ),
        entry(Term::MappingPss, facts.pss_bytes, Provenance::Kernel, "it is looked at when the run ends"),
        native(Term::KvCache, facts.kv_bytes),
        native(Term::ComputeBuffers, facts.compute_bytes),
        entry(Term::OutputBuffers, None, Provenance::Native, "the native library does not say their size"),
        native(Term::StagingSlots, facts.staging_bytes),
        entry(
            Term::VocabularyAndMetadata,
            vocabulary,
            Provenance::Kernel,
            "it is what the load adds to the anonymous memory beside the weights, which was not measured",
        ),
        kernel(Term::Program, facts.program_bytes),
        kernel(Term::ProcessRss, now.rss_bytes),
        kernel(Term::ProcessPeakRss, now.peak_rss_bytes),
        kernel(Term::ProcessRssAnonymous, now.anonymous_bytes),
        kernel(Term::ProcessRssFile, now.file_bytes),
        kernel(Term::ProcessPeakRssAnonymous, facts.peak_anonymous_bytes),
        kernel(Term::ProcessPeakRssFile, facts.peak_file_bytes),
        entry(
            Term::OtherFilePages,
            now.other_file_bytes(),
            Provenance::Kernel,
            "the run has no memory group of its own, or another one has paid for pages of the model's files",
        ),
        group(Term::GroupKernel, now.kernel_bytes),
        group(Term::GroupCurrent, now.group_bytes),
        group(Term::GroupPeak, now.group_peak_bytes),
    ]
}

/// What the load added to the process's anonymous memory, beside weights.
fn vocabulary_and_metadata(facts: &Facts) -> Option<u64> {
    let added = facts.loaded_bytes?.checked_sub(facts.program_bytes?)?;
    added.checked_sub(facts.repacked_bytes?)
}

fn entry(category: LedgerTerm, bytes: Option<u64>, provenance: Provenance, reason: &str) -> LedgerEntry {
    LedgerEntry {
        category,
        bytes,
        provenance: bytes.map(|_| provenance),
        reason: if bytes.is_none() { Some(reason.to_owned()) } else { None },
    }
}

/// The bytes of a category.
pub fn bytes(ledger: &[LedgerEntry], category: LedgerTerm) -> Option<u64> {
    ledger.iter().find(|entry| entry.category == category)?.bytes
}

/// Compares what the ledger explains with what the kernel shows; `fullest` is the moment at which most was held.
///
/// The group's peak is explained by what was there at the fullest moment that was looked at: anonymous memory,
/// pages of the model's files and of others, and kernel memory. What is left is unexplained: whatever was there
/// for a moment between two looks.
pub fn reconcile(ledger: &[LedgerEntry], fullest: Moment) -> Reconciliation {
    use LedgerTerm as Term;
    let mut differences = Vec::new();
    let mut compare = |name: &str, explained: Option<u64>, observed: Option<u64>| {
        let difference = difference(name, explained?, observed?);
        let bytes = difference.difference_bytes;
        differences.push(difference);
        Some(bytes)
    };
    let sum = |terms: &[Term]| -> Option<u64> { terms.iter().map(|&term| bytes(ledger, term)).sum() };
    let allocated = sum(&[
        Term::Program,
        Term::VocabularyAndMetadata,
        Term::AnonymousWeights,
        Term::KvCache,
        Term::ComputeBuffers,
        Term::StagingSlots,
    ]);
    // Negative where buffers are allocated and not all of them touched.
    compare("anonymous memory of the process", allocated, bytes(ledger, Term::ProcessRssAnonymous));
    compare(
        "file pages of the process",
        bytes(ledger, Term::MappingPss).or(bytes(ledger, Term::MappingResident)),
        bytes(ledger, Term::ProcessRssFile),
    );
    compare(
        "the group at the last look",
        sum(&[Term::ProcessRssAnonymous, Term::MappingResident, Term::OtherFilePages, Term::GroupKernel]),
        bytes(ledger, Term::GroupCurrent),
    );
    let parts =
        [fullest.anonymous_bytes, fullest.mapping_bytes, fullest.other_file_bytes(), fullest.kernel_bytes];
    let explained = parts.into_iter().sum::<Option<u64>>();
    let group = compare(GROUP_PEAK, explained, bytes(ledger, Term::GroupPeak));
    let process = compare(
        "the process's peak",
        fullest.anonymous_bytes.zip(fullest.file_bytes).map(|(anonymous, file)| anonymous + file),
        bytes(ledger, Term::ProcessPeakRss),
    );
    Reconciliation { differences, unexplained_bytes: group.or(process) }
}

/// Takes in the group's last word about its peak, which the worker cannot have seen.
pub fn complete(report: &mut Report) {
    let Some(peak) = report.enforcement.peak_bytes else { return };
    let seen = report.ledger.iter_mut().find(|entry| entry.category == LedgerTerm::GroupPeak);
    let Some(entry) = seen else { return };
    *entry = self::entry(LedgerTerm::GroupPeak, Some(peak), Provenance::Kernel, "");
    let Some(reconciliation) = report.reconciliation.as_mut() else { return };
    for found in reconciliation.differences.iter_mut().filter(|found| found.name == GROUP_PEAK) {
        *found = difference(GROUP_PEAK, found.explained_bytes, peak);
        reconciliation.unexplained_bytes = Some(found.difference_bytes);
    }
}

fn difference(name: &str, explained_bytes: u64, observed_bytes: u64) -> Difference {
    let signed = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
    Difference {
        name: name.to_owned(),
        explained_bytes,
        observed_bytes,
        difference_bytes: signed(observed_bytes) - signed(explained_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> (Facts, Moment) {
        let moment = Moment {
            anonymous_bytes: Some(900),
            file_bytes: Some(4100),
            mapping_bytes: Some(4000),
            rss_bytes: Some(5000),
            peak_rss_bytes: Some(5050),
            group_bytes: Some(5030),
            group_peak_bytes: Some(5100),
            group_file_bytes: Some(4020),
            kernel_bytes: Some(100),
        };
        let mut facts = Facts {
            program_bytes: Some(100),
            loaded_bytes: Some(600),
            repacked_bytes: Some(200),
            anonymous_weight_bytes: Some(200),
            kv_bytes: Some(300),
            compute_bytes: Some(150),
            staging_bytes: Some(0),
            ..Facts::default()
        };
        facts.notice(Moment { group_bytes: Some(5040), ..moment });
        facts.notice(moment);
        (facts, moment)
    }

    #[test]
    fn every_category_is_known_or_has_a_reason() {
        for (facts, moment) in [facts(), (Facts::default(), Moment::default())] {
            let ledger = entries(&facts, &Inventory::default(), moment);
            assert!(ledger.iter().all(|entry| entry.bytes.is_some() == entry.provenance.is_some()));
            assert!(ledger.iter().all(|entry| entry.bytes.is_none() == entry.reason.is_some()));
        }
        let (facts, moment) = facts();
        let ledger = entries(&facts, &Inventory::default(), moment);
        assert_eq!(bytes(&ledger, LedgerTerm::VocabularyAndMetadata), Some(300));
    }

    #[test]
    fn differences_are_signed_and_the_rest_is_unexplained() {
        let (facts, moment) = facts();
        let ledger = entries(&facts, &Inventory::default(), moment);
        let reconciled = reconcile(&ledger, facts.fullest);
        let of = |name: &str| {
            let found = reconciled.differences.iter().find(|difference| difference.name == name);
            found.map(|difference| difference.difference_bytes)
        };
        assert_eq!(facts.fullest.group_bytes, Some(5040));
        assert_eq!(of("anonymous memory of the process"), Some(900 - 1050));
        assert_eq!(of("the group at the last look"), Some(5030 - 5020));
        assert_eq!(of("the group's peak"), Some(5100 - 5020));
        assert_eq!(reconciled.unexplained_bytes, Some(80));
    }

    #[test]
    fn the_groups_last_word_replaces_the_workers() {
        use crate::report::{Model, Request, Tool};
        let (facts, moment) = facts();
        let mut report = Report::new(Tool::default(), Model::default(), Request::default());
        report.ledger = entries(&facts, &Inventory::default(), moment);
        report.reconciliation = Some(reconcile(&report.ledger, facts.fullest));
        report.enforcement.peak_bytes = Some(5200);
        complete(&mut report);
        assert_eq!(bytes(&report.ledger, LedgerTerm::GroupPeak), Some(5200));
        assert_eq!(report.reconciliation.unwrap().unexplained_bytes, Some(180));
    }

    #[test]
    fn without_a_group_the_process_is_explained() {
        let (mut facts, moment) = facts();
        let moment = Moment { group_bytes: None, group_peak_bytes: None, kernel_bytes: None, ..moment };
        facts.fullest = moment;
        let ledger = entries(&facts, &Inventory::default(), moment);
        assert_eq!(reconcile(&ledger, facts.fullest).unexplained_bytes, Some(50));
    }
}
