//! The weights by class and layer, from the headers.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::gguf::Model;

/// What a tensor does in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WeightClass {
    /// The embedding of tokens, read row by row.
    Embedding,
    /// Queries, keys, values and their projection.
    Attention,
    /// The dense feed-forward network.
    FeedForward,
    /// The experts of a mixture, of which a token uses some.
    Experts,
    /// The output matrix.
    Output,
    /// Norms, routers and whatever else there is.
    Other,
}

impl WeightClass {
    pub(super) fn of(name: &str) -> Self {
        let own =
            name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map_or(name, |(_, own)| own);
        match own {
            _ if own.contains("_norm") => Self::Other,
            "token_embd.weight" => Self::Embedding,
            "output.weight" => Self::Output,
            // GroveMoE has two kinds.
            _ if own.contains("_exps") || own.contains("_chexps") => Self::Experts,
            _ if own.starts_with("attn_") => Self::Attention,
            _ if own.starts_with("ffn_") && !own.starts_with("ffn_gate_inp") => Self::FeedForward,
            _ => Self::Other,
        }
    }
}

/// Bytes of the weights, added up in two ways.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Weights {
    /// Bytes of all tensors.
    pub total_bytes: u64,
    /// By what they do.
    pub classes: BTreeMap<WeightClass, u64>,
    /// By layer, in order; tensors outside the layers are not among them.
    pub layers: Vec<u64>,
    /// Bytes that generating one token reads: of the experts those that a token uses, of the embedding one row
    /// unless it is the output matrix too.
    pub used_per_token_bytes: u64,
}

impl Weights {
    /// The weights of `model`.
    pub fn of(model: &Model) -> Self {
        let mut weights = Self::default();
        let mut layers = BTreeMap::<u32, u64>::new();
        let tied = model.tensors().all(|(_, tensor)| &*tensor.name != "output.weight");
        for (_, tensor) in model.tensors() {
            let class = WeightClass::of(&tensor.name);
            weights.total_bytes += tensor.bytes;
            *weights.classes.entry(class).or_default() += tensor.bytes;
            if let Some(layer) = tensor.layer() {
                *layers.entry(layer).or_default() += tensor.bytes;
            }
            weights.used_per_token_bytes += match class {
                WeightClass::Embedding if !tied => tensor.bytes / tensor.shape[1].max(1),
                WeightClass::Experts => used_by_a_token(model, tensor.layer(), tensor.bytes),
                _ => tensor.bytes,
            };
        }
        weights.layers = layers.into_values().collect();
        weights
    }
}

fn used_by_a_token(model: &Model, layer: Option<u32>, bytes: u64) -> u64 {
    let experts = model.hyperparameters().and_then(|all| {
        let used = *all.expert_used_count.get(layer? as usize)?;
        (all.expert_count > 0).then_some((used, all.expert_count))
    });
    experts.map_or(bytes, |(used, count)| {
        u64::try_from(u128::from(bytes) * u128::from(used) / u128::from(count)).unwrap_or(bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::builder::Builder;

    #[test]
    fn every_byte_is_in_one_class_and_layers_leave_the_rest() {
        let model = Builder::llama().open().unwrap();
        let weights = Weights::of(&model);
        assert_eq!(weights.classes.values().sum::<u64>(), model.tensor_bytes());
        let outside: u64 =
            model.tensors().filter(|(_, t)| t.layer().is_none()).map(|(_, tensor)| tensor.bytes).sum();
        assert_eq!(weights.layers.iter().sum::<u64>() + outside, model.tensor_bytes());
    }

    #[test]
    fn classes_go_by_the_names_of_tensors() {
        for (name, class) in [
            ("token_embd.weight", WeightClass::Embedding),
            ("output.weight", WeightClass::Output),
            ("output_norm.weight", WeightClass::Other),
            ("blk.0.attn_q.weight", WeightClass::Attention),
            ("blk.0.attn_q_norm.weight", WeightClass::Other),
            ("blk.17.ffn_up.weight", WeightClass::FeedForward),
            ("blk.17.ffn_up_exps.weight", WeightClass::Experts),
            ("blk.17.ffn_gate_inp.weight", WeightClass::Other),
            ("rope_freqs.weight", WeightClass::Other),
        ] {
            assert_eq!(WeightClass::of(name), class, "{name}");
        }
    }
}
