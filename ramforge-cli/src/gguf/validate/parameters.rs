//! Metadata other than the vocabulary's.

use super::{Error, Facts};
use crate::gguf::{text::printable, value::Value};

/// General keys that the native loader reads, and stops on when they have another type.
pub(super) fn general_types(facts: &Facts) -> Result<(), Error> {
    facts.metadata.string("general.name")?;
    facts.metadata.u32("general.file_type")?;
    Ok(())
}

/// No hyper-parameter is anything with "not a number" in it.
pub(super) fn numbers(facts: &Facts) -> Result<(), Error> {
    let prefix = format!("{}.", facts.model.architecture());
    for (key, value) in facts.metadata.iter().filter(|(key, _)| key.starts_with(&prefix)) {
        let nan = match value {
            Value::F32(number) => number.is_nan(),
            Value::F64(number) => number.is_nan(),
            _ => false,
        };
        if nan {
            return Err(Error::KeyValue {
                key: printable(key),
                value: "NaN".into(),
                rule: "it must be a number".into(),
            });
        }
    }
    Ok(())
}

/// The normalization operators assert that their epsilon is not negative, at the first decode.
pub(super) fn epsilons(facts: &Facts) -> Result<(), Error> {
    let architecture = facts.model.architecture();
    let required = match architecture {
        "gptneox" => "layer_norm_epsilon",
        _ => "layer_norm_rms_epsilon",
    };
    for suffix in ["layer_norm_rms_epsilon", "layer_norm_epsilon", "group_norm_epsilon"] {
        let key = format!("{architecture}.attention.{suffix}");
        match facts.metadata.f32(&key)? {
            Some(epsilon) if !(epsilon.is_finite() && epsilon >= 0.0) => {
                let rule = "it must be a finite number and not negative".into();
                return Err(Error::KeyValue { key: printable(key), value: epsilon.to_string(), rule });
            }
            None if facts.is_uniform() && suffix == required => {
                return Err(Error::MissingKey { key, why: String::new() });
            }
            _ => {}
        }
    }
    Ok(())
}

/// The size of a head and how much of it is rotated: the graphs of these architectures assert both.
pub(super) fn heads(facts: &Facts) -> Result<(), Error> {
    let Some(hyperparameters) = facts.model.hyperparameters().filter(|_| facts.is_uniform()) else {
        return Ok(());
    };
    let architecture = facts.model.architecture();
    let (key, value) = (hyperparameters.key_length, hyperparameters.value_length);
    let rotated = hyperparameters.rope_dimension_count;
    let rule = |suffix: &str, value: u32, holds: bool, rule: String| match holds {
        true => Ok(()),
        false => {
            Err(Error::KeyValue { key: format!("{architecture}.{suffix}"), value: value.to_string(), rule })
        }
    };
    let same = format!("keys and values must have the same size, and keys have {key} elements");
    rule("attention.value_length", value, key == value || architecture.starts_with("gemma"), same)?;
    let whole = architecture.starts_with("qwen");
    let fits =
        format!("heads have {key} elements, and {} of them are rotated", if whole { "all" } else { "some" });
    rule("rope.dimension_count", rotated, if whole { rotated == key } else { rotated <= key }, fits)?;
    rule(
        "rope.dimension_count",
        rotated,
        rotated % 2 == 0,
        "the elements of a head are rotated in pairs".into(),
    )
}
