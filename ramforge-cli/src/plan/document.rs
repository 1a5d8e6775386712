//! The plan as it is printed: one structure for eyes and for programs.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Budget, ContextRequest, ContextTokens, Fit, Footprint, KvType, Model, NativeSizes, Term, Way, WayVerdict,
    Weights, largest_context,
};
use crate::Result;

/// The version of [`Plan`]: within it fields are added, never renamed or retyped.
pub const SCHEMA_VERSION: u32 = 1;

const ALL_WAYS: [Way; 4] = [Way::ResidentRepacked, Way::Resident, Way::Streaming, Way::KernelPaging];

/// What a load would take and how it would run. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// Always [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The model.
    pub model: ModelSummary,
    /// Its weights, from the headers.
    pub weights: Weights,
    /// Tokens of context.
    pub context_tokens: u32,
    /// Tokens of context the model was trained with.
    pub trained_context_tokens: u32,
    /// The type of keys and values.
    pub kv_type: KvType,
    /// Most tokens computed at once.
    pub batch_tokens: u32,
    /// Compute threads.
    pub threads: u32,
    /// What a run without any limit holds at its peak, term by term.
    pub terms: Vec<Term>,
    /// The sum of the terms.
    pub peak_bytes: u64,
    /// The part of it that the kernel can neither drop nor read again.
    pub anonymous_bytes: u64,
    /// What the run may use.
    pub budget: Budget,
    /// The ways to run it, the fastest first.
    pub ways: Vec<WayVerdict>,
    /// The fastest way that works, if one does.
    pub best: Option<Way>,
    /// What limits its speed.
    pub bottleneck: Option<String>,
    /// The smallest `--ram` in which some way works.
    pub smallest_ram_bytes: u64,
    /// The largest context in which some way works in the budget, if there is one.
    pub largest_context_tokens: Option<u32>,
    /// What else there is to know.
    pub notes: Vec<String>,
}

/// The model of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModelSummary {
    /// The path of its first file.
    pub path: String,
    /// `general.architecture`.
    pub architecture: String,
    /// Bytes of its files.
    pub file_bytes: u64,
}

impl Plan {
    /// Plans `model` in `budget`. `request` has the context that was asked for; [`ContextTokens::Trained`] stands
    /// for the largest that fits. `sizes` asks the native library.
    ///
    /// # Errors
    /// What `sizes` fails with.
    pub fn new(
        model: &Model,
        budget: Budget,
        request: &ContextRequest,
        sizes: &mut dyn FnMut(&ContextRequest) -> Result<NativeSizes>,
    ) -> Result<Self> {
        let mut answers = HashMap::new();
        let mut ask = |context| match answers.entry(context) {
            Entry::Occupied(answer) => Ok(*answer.get()),
            Entry::Vacant(place) => Ok(*place.insert(sizes(&ContextRequest { context, ..*request })?)),
        };
        let fit = |sizes| Fit::new(model, Footprint { file_bytes: model.file_bytes, sizes }, budget.bytes);
        let asked = ask(request.context)?;
        let trained = asked.trained_context_tokens;
        let mut notes = Vec::new();
        let mut context_tokens = match request.context {
            ContextTokens::Exactly(tokens) => tokens,
            _ => asked.context_tokens.min(trained.max(1)),
        };
        let most = context_tokens.max(trained);
        let largest = largest_context(most, &mut |tokens| ask(ContextTokens::Exactly(tokens)), &|sizes| {
            fit(sizes).works(&ALL_WAYS)
        })?;
        let mut planned = fit(asked);
        if request.context == ContextTokens::Trained {
            // The way that a small context would run in should not be lost to a large one.
            let smallest = fit(ask(ContextTokens::Exactly(1))?);
            let way = smallest.best(&ALL_WAYS).map(|best| best.way);
            let roomy = match way {
                Some(way) => {
                    largest_context(most, &mut |tokens| ask(ContextTokens::Exactly(tokens)), &|sizes| {
                        fit(sizes).works(&[way])
                    })?
                }
                None => None,
            };
            if let Some(tokens) = roomy.filter(|tokens| *tokens < context_tokens) {
                let way = way.map_or("", Way::name);
                notes.push(format!(
                    "the model was trained with {trained} tokens of context; {tokens} is the largest with which \
                     it runs {way}"
                ));
                context_tokens = tokens;
                planned = fit(ask(ContextTokens::Exactly(tokens))?);
            }
        }
        let best = planned.best(&ALL_WAYS).filter(|_| planned.works(&ALL_WAYS));
        let repack = planned.footprint.sizes.repacked_weights_bytes > 0;
        Ok(Self {
            schema_version: SCHEMA_VERSION,
            model: ModelSummary {
                path: model.path.clone(),
                architecture: model.architecture.clone(),
                file_bytes: model.file_bytes,
            },
            weights: model.weights.clone(),
            context_tokens,
            trained_context_tokens: trained,
            kv_type: request.kv_type,
            batch_tokens: request.batch_tokens,
            threads: request.threads,
            terms: planned.footprint.terms(repack),
            peak_bytes: planned.footprint.peak_bytes(repack),
            anonymous_bytes: planned.footprint.repacked_anonymous_bytes(),
            budget,
            best: best.map(|way| way.way),
            bottleneck: best.map(|way| planned.bottleneck(way)),
            smallest_ram_bytes: planned
                .smallest_ram_bytes(&ALL_WAYS)
                .unwrap_or(planned.footprint.resident_bytes()),
            largest_context_tokens: largest,
            ways: planned.ways,
            notes,
        })
    }
}
