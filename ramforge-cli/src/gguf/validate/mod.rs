//! What must hold between the parts of a file before native code opens it.
//!
//! The native loader stops the whole process on some of these, and others end in a crash, an endless loop or
//! nonsense much later. A file that it runs correctly is never refused: where the native code is lenient, so
//! are these checks.

mod parameters;
mod tensors;
mod vocabulary;

use std::collections::HashMap;

use super::{
    error::Error,
    header::{Metadata, TensorInfo},
    model::Model,
};

/// What the checks look at.
struct Facts<'a> {
    model: &'a Model,
    metadata: &'a Metadata,
    tensors: HashMap<&'a str, &'a TensorInfo>,
}

type Check = fn(&Facts<'_>) -> Result<(), Error>;

/// In the order in which a reader of the message would want to know.
const CHECKS: &[Check] = &[
    parameters::complete_model,
    parameters::general_types,
    parameters::numbers,
    parameters::epsilons,
    vocabulary::tokenizer,
    tensors::embedding,
    tensors::heads,
    tensors::layers,
    tensors::shapes,
    tensors::mappable,
];

/// Runs every check; the first that fails is the answer.
pub(super) fn check(model: &Model) -> Result<(), Error> {
    let tensors = model.tensors().map(|(_, tensor)| (&*tensor.name, tensor)).collect();
    let facts = Facts { model, metadata: model.metadata(), tensors };
    CHECKS.iter().try_for_each(|check| check(&facts))
}
