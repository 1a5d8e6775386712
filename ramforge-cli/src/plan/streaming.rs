//! What streaming would pin and read, as its policy chooses on what the headers say.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::weights::WeightClass;
use crate::gguf::{Model, TensorInfo};
use crate::residency::stream::{Experts, Weight, choose, piece_rows, pieces};

/// A choice of the streaming policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Streaming {
    /// Bytes of weights that stay in memory.
    pub pinned_bytes: u64,
    /// Bytes that the streamed weights pass through.
    pub pool_bytes: u64,
    /// Bytes read each time the graph runs, that is, for each token.
    pub read_per_token_bytes: u64,
}

/// The weights of `model` as the policy sees them. The header has no graph, so weights are taken to be used in
/// the order of the layers and, in a layer, of the file.
pub(super) fn weights(model: &Model) -> Vec<Weight> {
    let tied = model.tensors().all(|(_, tensor)| &*tensor.name != "output.weight");
    let mut weights = Vec::new();
    for (index, (file, tensor)) in model.tensors().enumerate() {
        let rows = &*tensor.name == "token_embd.weight";
        let whole = Weight {
            file,
            tensor: index,
            offset: tensor.offset,
            bytes: tensor.bytes,
            layer: tensor.layer(),
            used: None,
            rows,
            experts: experts(model, tensor),
        };
        let splits = whole.layer.is_none() && (tied || !rows);
        match piece_rows(tensor.bytes, tensor.shape[1]).filter(|_| splits) {
            Some(piece) => weights.extend(pieces(whole, tensor.shape[1], piece)),
            None => weights.push(whole),
        }
    }
    let mut order: Vec<usize> = (0..weights.len()).filter(|&index| tied || !weights[index].rows).collect();
    // What is outside of the layers comes after them, as the output does.
    order.sort_by_key(|&index| (weights[index].layer.unwrap_or(u32::MAX), index));
    for (node, index) in order.into_iter().enumerate() {
        weights[index].used = Some((node, node));
    }
    weights
}

/// The experts of a tensor that has some.
fn experts(model: &Model, tensor: &TensorInfo) -> Option<Experts> {
    let used = &model.hyperparameters()?.expert_used_count;
    let used = *used.get(tensor.layer()? as usize)?;
    let class = WeightClass::of(&tensor.name);
    Experts::new(tensor.bytes, tensor.shape[2], used.into()).filter(|_| class == WeightClass::Experts)
}

/// What the policy chooses when the weights may take `budget` bytes.
///
/// # Errors
/// The fewest bytes in which it works.
pub(super) fn stream(weights: &[Weight], budget: u64) -> Result<Streaming, u64> {
    let choice = choose(weights, budget)?;
    let total: u64 = weights.iter().map(|weight| weight.bytes).sum();
    let (pinned_bytes, pool_bytes) = (choice.pinned_bytes(), choice.pool_bytes());
    let rows: u64 = choice.rows.iter().map(|pages| pages.bytes()).sum();
    let unused = choice.streamed_bytes() - choice.token_bytes();
    let read_per_token_bytes = total.saturating_sub(pinned_bytes + rows + unused);
    Ok(Streaming { pinned_bytes, pool_bytes, read_per_token_bytes })
}
