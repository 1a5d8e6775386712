//! The numbers that shape a model, read the way the native loader reads them.

use super::{
    error::Error,
    header::Metadata,
    text::printable,
    value::{Array, Value},
};

/// Layers and experts at most, from llama-hparams.h.
const MAX_LAYERS: u32 = 512;
const MAX_EXPERTS: u32 = 1024;

/// A model's hyper-parameters; lists have one entry a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Hyperparameters {
    /// Tokens of context the model was trained with.
    pub context_length: u32,
    /// Width of the residual stream, in elements.
    pub embedding_length: u32,
    /// Layers, at least 1 and at most 512.
    pub block_count: u32,
    /// How many of the layers at the end predict further tokens and take no part in normal decoding.
    pub nextn_predict_layers: u32,
    /// Attention heads of each layer; 0 where a layer has none.
    pub head_count: Vec<u32>,
    /// Key and value heads of each layer.
    pub head_count_kv: Vec<u32>,
    /// Width of each layer's feed-forward network, in elements.
    pub feed_forward_length: Vec<u32>,
    /// Experts in a layer; 0 for a dense model.
    pub expert_count: u32,
    /// Experts that each layer routes a token to.
    pub expert_used_count: Vec<u32>,
    /// Width of one expert, in elements, where the file gives one number for all layers.
    pub expert_feed_forward_length: Option<u32>,
    /// Elements of one key head.
    pub key_length: u32,
    /// Elements of one value head.
    pub value_length: u32,
    /// Elements of a head that are rotated.
    pub rope_dimension_count: u32,
    /// The base of the rotary frequencies, where the file gives it.
    pub rope_freq_base: Option<f32>,
    /// `none`, `linear`, `yarn` or `longrope`, where the file gives it.
    pub rope_scaling_type: Option<String>,
    /// By how much the context is stretched, where the file says so.
    pub rope_scaling_factor: Option<f32>,
}

impl Hyperparameters {
    /// Reads and checks the hyper-parameters of `architecture`.
    ///
    /// # Errors
    /// On every value on which the native loader stops: missing keys, wrong types, per-layer arrays of
    /// another length, and numbers outside of what it asserts.
    pub(super) fn read(metadata: &Metadata, architecture: &str) -> Result<Self, Error> {
        let keys = Keys { metadata, architecture };
        let context_length = keys.required("context_length")?;
        let embedding_length = keys.required("embedding_length")?;
        keys.rule("embedding_length", embedding_length, embedding_length > 0, "it must not be 0")?;
        let block_count = keys.required("block_count")?;
        let rule = "the native code supports 1 to 512 layers";
        keys.rule("block_count", block_count, (1..=MAX_LAYERS).contains(&block_count), rule)?;
        let nextn_predict_layers = keys.optional("nextn_predict_layers")?.unwrap_or(0);
        let rule = "it must not be more than block_count";
        keys.rule("nextn_predict_layers", nextn_predict_layers, nextn_predict_layers <= block_count, rule)?;

        let head_count =
            keys.per_layer("attention.head_count", block_count)?.unwrap_or_else(|| zeros(block_count));
        let head_count_kv =
            keys.per_layer("attention.head_count_kv", block_count)?.unwrap_or_else(|| head_count.clone());
        for (layer, (&heads, &kv)) in head_count.iter().zip(&head_count_kv).enumerate() {
            let rule = format!("layer {layer} has {heads} heads, which must be a multiple of it");
            keys.rule("attention.head_count_kv", kv, heads == 0 || kv == 0 || heads % kv == 0, &rule)?;
        }
        let heads = keys.heads(embedding_length, head_count[0])?;
        let (expert_count, expert_used_count) = keys.experts(block_count)?;
        Ok(Self {
            context_length,
            embedding_length,
            block_count,
            nextn_predict_layers,
            feed_forward_length: keys
                .per_layer("feed_forward_length", block_count)?
                .unwrap_or_else(|| zeros(block_count)),
            head_count,
            head_count_kv,
            expert_count,
            expert_used_count,
            expert_feed_forward_length: match metadata.get(&keys.name("expert_feed_forward_length")) {
                Some(Value::U32(length)) => Some(*length),
                _ => None,
            },
            key_length: heads.key_length,
            value_length: heads.value_length,
            rope_dimension_count: heads.rotated,
            rope_freq_base: keys.finite("rope.freq_base")?,
            rope_scaling_type: keys.rope_scaling_type()?,
            rope_scaling_factor: match keys.finite("rope.scaling.factor")? {
                Some(factor) => Some(factor),
                None => keys.finite("rope.scale_linear")?,
            },
        })
    }
}

fn zeros(count: u32) -> Vec<u32> {
    vec![0; count as usize]
}

/// Elements of a head.
#[derive(Default)]
struct HeadSizes {
    key_length: u32,
    value_length: u32,
    rotated: u32,
}

/// The metadata under one architecture's name.
struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'a str,
}

impl Keys<'_> {
    fn name(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.architecture)
    }

    fn optional(&self, suffix: &str) -> Result<Option<u32>, Error> {
        self.metadata.u32(&self.name(suffix))
    }

    fn required(&self, suffix: &str) -> Result<u32, Error> {
        self.optional(suffix)?
            .ok_or_else(|| Error::MissingKey { key: printable(self.name(suffix)), why: String::new() })
    }

    fn rule(&self, suffix: &str, value: impl ToString, holds: bool, rule: &str) -> Result<(), Error> {
        if holds {
            return Ok(());
        }
        Err(Error::KeyValue {
            key: printable(self.name(suffix)),
            value: value.to_string(),
            rule: rule.to_owned(),
        })
    }

    fn finite(&self, suffix: &str) -> Result<Option<f32>, Error> {
        let value = self.metadata.f32(&self.name(suffix))?;
        self.rule(
            suffix,
            value.unwrap_or(0.0),
            value.is_none_or(f32::is_finite),
            "it must be a finite number",
        )?;
        Ok(value)
    }

    /// A key that holds one number for all layers, or an array with one for each.
    fn per_layer(&self, suffix: &str, layers: u32) -> Result<Option<Vec<u32>>, Error> {
        let key = self.name(suffix);
        let expected = "u32, or an array of u32, i32 or bool with one value a layer";
        let values = self.metadata.typed(&key, expected, |value| match value {
            Value::U32(number) => Some(vec![*number; layers as usize]),
            Value::Array(array @ Array::Numbers { .. }) => array.to_u32s(),
            _ => None,
        })?;
        if let Some(values) = &values {
            let rule = format!("there are {layers} layers, so it must have as many elements");
            self.rule(
                suffix,
                format!("an array of {}", values.len()),
                values.len() == layers as usize,
                &rule,
            )?;
        }
        Ok(values)
    }

    /// The sizes of heads, of which the first layer has `count`; without any, the native loader reads none.
    fn heads(&self, embedding_length: u32, count: u32) -> Result<HeadSizes, Error> {
        let Some(default) = embedding_length.checked_div(count) else { return Ok(HeadSizes::default()) };
        let key_length = self.optional("attention.key_length")?.unwrap_or(default);
        let value_length = self.optional("attention.value_length")?.unwrap_or(default);
        let rotated = self.optional("rope.dimension_count")?.unwrap_or(key_length);
        if matches!(self.architecture, "llama" | "deci" | "falcon" | "llama-embed") {
            let rule = format!("{} models rotate whole heads of {key_length} elements", self.architecture);
            self.rule("rope.dimension_count", rotated, rotated == key_length, &rule)?;
        }
        Ok(HeadSizes { key_length, value_length, rotated })
    }

    /// The number of experts, and for each layer how many of them a token uses.
    fn experts(&self, layers: u32) -> Result<(u32, Vec<u32>), Error> {
        let count = self.optional("expert_count")?.unwrap_or(0);
        let used = self.per_layer("expert_used_count", layers)?.unwrap_or_else(|| zeros(layers));
        let groups = self.optional("expert_group_count")?.unwrap_or(0);
        let groups_used = self.optional("expert_group_used_count")?.unwrap_or(0);
        // Dense models of these families say that they have one expert.
        if matches!(self.architecture, "hunyuan_vl" | "hunyuan-dense") && count <= 1 {
            return Ok((0, zeros(layers)));
        }
        let most = used.iter().copied().max().unwrap_or(0);
        self.rule(
            "expert_count",
            count,
            count <= MAX_EXPERTS,
            "the native code supports at most 1024 experts",
        )?;
        let rule = format!("expert_count is {count}, and a token cannot use more");
        self.rule("expert_used_count", most, most <= count, &rule)?;
        if count == 0 {
            self.rule(
                "expert_group_count",
                groups,
                groups == 0,
                "a model without experts has no groups of them",
            )?;
            return Ok((count, used));
        }
        self.rule("expert_used_count", most, most > 0, "a model with experts uses at least one")?;
        let rule = format!("it must be less than expert_count, {count}");
        self.rule("expert_group_count", groups, groups < count, &rule)?;
        if groups > 1 {
            let rule = format!("expert_count, {count}, must be a multiple of it");
            self.rule("expert_group_count", groups, count % groups == 0, &rule)?;
            let rule = format!("it must be at least 1 and less than expert_group_count, {groups}");
            self.rule("expert_group_used_count", groups_used, (1..groups).contains(&groups_used), &rule)?;
        }
        Ok((count, used))
    }

    fn rope_scaling_type(&self) -> Result<Option<String>, Error> {
        let suffix = "rope.scaling.type";
        let Some(bytes) = self.metadata.string(&self.name(suffix))? else { return Ok(None) };
        let known = [&b"none"[..], b"linear", b"yarn", b"longrope"].contains(&bytes);
        let rule = "the native code knows none, linear, yarn and longrope";
        self.rule(suffix, format!("\"{}\"", printable(bytes)), known, rule)?;
        Ok(Some(printable(bytes)))
    }
}
