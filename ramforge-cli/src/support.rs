//! What runs: architectures and tensor types, as the native build says, and what there is evidence for.

use std::io::{self, Write};

use forge_core::Backend;
use forge_core::capability::{self, TensorType};
use serde::Serialize;

use crate::Result;

/// Architectures whose logits this project's tests compare with an independent computation or with the native
/// library's own API, and how.
const EVIDENCE: &[(&str, &str)] = &[
    ("gemma3", "real model: text, and tokens equal to the C API's"),
    ("gptneox", "generated model: same top token as an independent forward pass, cosine of logits >= 0.9999"),
    (
        "llama",
        "real model: same top token as an independent forward pass, cosine of logits >= 0.9999, \
         tokens equal to the C API's",
    ),
    ("qwen2", "generated model: tokens equal to the C API's"),
    ("qwen3moe", "generated model: tokens equal to the C API's"),
];

/// What the native build runs.
#[derive(Clone, Debug, Serialize)]
pub struct Support {
    /// Architectures, sorted by name.
    pub architectures: Vec<Architecture>,
    /// Tensor types, in the order of their numbers in files.
    pub tensor_types: Vec<Type>,
    /// CPU features the native code uses.
    pub cpu_features: Vec<&'static str>,
}

/// One architecture.
#[derive(Clone, Debug, Serialize)]
pub struct Architecture {
    /// The name in `general.architecture`.
    pub name: String,
    /// What this project has tested of it; null when nothing.
    pub evidence: Option<&'static str>,
}

/// One tensor type.
#[derive(Clone, Debug, Serialize)]
pub struct Type {
    /// The native name.
    pub name: &'static str,
    /// The number in files.
    pub id: u32,
    /// Whether the CPU multiplies matrices of it; other types hold indices or intermediate values.
    pub matrix_on_cpu: bool,
}

impl Support {
    /// Asks the native build.
    ///
    /// # Errors
    /// When the native library throws.
    pub fn of_this_build() -> Result<Self> {
        let names = capability::architectures(Backend::init())?;
        let architectures = names
            .into_iter()
            .map(|name| {
                let evidence =
                    EVIDENCE.iter().find(|(known, _)| *known == name).map(|(_, evidence)| *evidence);
                Architecture { name, evidence }
            })
            .collect();
        let tensor_types = TensorType::all()
            .map(|kind| Type { name: kind.name(), id: kind.id(), matrix_on_cpu: kind.runs_on_cpu() })
            .collect();
        Ok(Self { architectures, tensor_types, cpu_features: capability::cpu_features() })
    }

    /// Prints it for people.
    ///
    /// # Errors
    /// When the writer fails.
    pub fn write_human(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "Architectures with evidence in this project's tests:")?;
        for architecture in &self.architectures {
            if let Some(evidence) = architecture.evidence {
                writeln!(out, "  {:<10} {evidence}", architecture.name)?;
            }
        }
        writeln!(out, "\nOther architectures the native library has code for:")?;
        let others = self.architectures.iter().filter(|one| one.evidence.is_none());
        write_wrapped(out, others.map(|one| one.name.as_str()))?;
        writeln!(out, "\nTensor types the CPU multiplies matrices of:")?;
        let types = self.tensor_types.iter().filter(|kind| kind.matrix_on_cpu);
        write_wrapped(out, types.map(|kind| kind.name))?;
        writeln!(out, "\nCPU features in use:")?;
        write_wrapped(out, self.cpu_features.iter().copied())
    }
}

fn write_wrapped<'a>(out: &mut dyn Write, words: impl Iterator<Item = &'a str>) -> io::Result<()> {
    const WIDTH: usize = 78;
    let mut line = String::from(" ");
    for word in words {
        if line.len() + 1 + word.len() > WIDTH {
            writeln!(out, "{line}")?;
            line = String::from(" ");
        }
        line.push(' ');
        line.push_str(word);
    }
    writeln!(out, "{line}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_reader_knows_which_types_are_multiplied() {
        let native = TensorType::all().map(|kind| (kind.id(), kind.runs_on_cpu()));
        let known = crate::gguf::TensorType::all().map(|kind| (kind.id(), kind.is_multiplied()));
        assert_eq!(known.collect::<Vec<_>>(), native.collect::<Vec<_>>());
    }
}
