//! Whether everything fits, which decides how the `auto` policy runs a model.

use forge_core::{Backend, Context, LoadMode, Model, ModelParams};

use crate::engine::session::context_params;
use crate::engine::{Policy, Settings, prompt};
use crate::residency::streaming::Budget;
use crate::size::exact;
use crate::{Error, ErrorKind, Result};

/// How a run holds its weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// As the native library loads them.
    Resident,
    /// Some pinned, the others streamed, in a budget of so many bytes.
    Stream(u64),
}

/// The way for `settings`, and for `auto` the reason when it is not the usual one.
///
/// # Errors
/// When the policy needs a budget and there is none, or the native library fails.
pub fn way(backend: Backend, settings: &Settings, prompt: &str) -> Result<(Way, Option<String>)> {
    match (settings.policy, settings.ram_bytes) {
        (Policy::Stream, Some(ram)) => Ok((Way::Stream(ram), None)),
        (Policy::Stream, None) => {
            Err(Error::usage("the stream policy needs a budget").hint("give one with --ram SIZE"))
        }
        (Policy::Auto, Some(ram)) => {
            let reason = if settings.weight_bytes >= ram {
                Some(format!("the weights alone are {}", exact(settings.weight_bytes)))
            } else {
                let needed = settings.weight_bytes + beside_weights(backend, settings, prompt, ram)?;
                (needed > ram).then(|| format!("the run needs {}", exact(needed)))
            };
            match reason {
                None => Ok((Way::Resident, None)),
                Some(reason) if settings.must_fit => {
                    let message = format!("refused: {reason}, and it may use {}", exact(ram));
                    Err(Error::new(ErrorKind::Refused, message)
                        .hint("--fit auto (runs it in a slower way)")
                        .hint("use a larger --ram"))
                }
                Some(reason) => {
                    let reason = format!("{reason}, and it may use {}", exact(ram));
                    Ok((Way::Stream(ram), Some(reason)))
                }
            }
        }
        _ => Ok((Way::Resident, None)),
    }
}

/// Bytes of everything but the weights, by the native library's own account of a load without them.
fn beside_weights(backend: Backend, settings: &Settings, prompt: &str, ram: u64) -> Result<u64> {
    let params = ModelParams {
        load_mode: LoadMode::Read,
        prefetch: false,
        extra_buffers: false,
        no_alloc: true,
        ..ModelParams::default()
    };
    let model = Model::load(backend, &settings.files, params, None)?;
    let tokens = prompt::tokens(settings, &model, prompt)?;
    let context = Context::new(&model, &context_params(settings, &model, tokens.len())?)?;
    let budget = Budget::measure(ram, &context, settings.weight_bytes)?;
    Ok(budget.taken() + context.memory_breakdown()?.context_bytes())
}
