//! Carrying out a plan: the only way from a policy's choice to the kernel.

use forge_core::MappedPages;
use forge_core::pages::Action;

use super::inventory::Inventory;
use super::lifecycle::Token;
use super::plan::{Kind, Plan};
use crate::{Error, Result};

/// What was asked and what the kernel answered; what became of it is for the next sample to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Executed {
    /// Bytes asked for.
    pub requested_bytes: u64,
    /// Bytes of the calls that succeeded.
    pub accepted_bytes: u64,
    /// The first call that did not.
    pub refused: Option<String>,
}

/// Carries out `plan`. The token shows that nothing is being computed.
///
/// # Errors
/// When the plan was made for another inventory, or names pages that are not the model's mapping.
pub fn execute(
    plan: &Plan,
    inventory: &Inventory,
    pages: &MappedPages<'_>,
    _token: Token<'_>,
) -> Result<Executed> {
    if plan.generation != inventory.generation {
        return Err(Error::failed(format!(
            "a plan for inventory {} cannot be carried out on inventory {}",
            plan.generation, inventory.generation
        )));
    }
    let regions: Option<Vec<_>> = plan.pages.iter().map(|pages| inventory.region(pages)).collect();
    let regions = regions.ok_or_else(|| Error::failed("a plan names pages of a file that is not mapped"))?;
    let action = match plan.kind {
        Kind::Release => Action::Release,
        Kind::Prefetch => Action::Prefetch,
    };
    let advised = pages.advise(&regions, action)?;
    Ok(Executed {
        requested_bytes: plan.bytes(),
        accepted_bytes: advised.accepted_bytes,
        refused: advised.refused.map(|error| error.to_string()),
    })
}
