//! The device: a run happens on the one that was asked for, or not at all.

use forge_core::{Backend, Device, DeviceKind, DeviceRegistry};

use crate::engine::DeviceChoice;
use crate::{Error, Result};

/// Checks that `choice` names the CPU, the only device models run on.
///
/// # Errors
/// When there is no such device, or it is another kind.
pub fn require_cpu(backend: Backend, choice: &DeviceChoice) -> Result<()> {
    let registry = DeviceRegistry::discover(backend);
    let device = match choice {
        DeviceChoice::Cpu => registry.devices().iter().find(|device| device.kind == DeviceKind::Cpu),
        DeviceChoice::Id(id) => registry.by_id(id),
        DeviceChoice::Backend(name, index) => registry.by_backend(name, *index),
    };
    match device {
        Some(device) if device.kind == DeviceKind::Cpu => Ok(()),
        Some(device) => Err(Error::failed(format!(
            "the device {choice} is {}, and models run on the CPU only",
            device.description
        ))
        .hint("use --device cpu")),
        None => Err(Error::failed(format!(
            "there is no device {choice}; this build has: {}",
            names(registry.devices())
        ))
        .hint("use --device cpu")),
    }
}

fn names(devices: &[Device]) -> String {
    let names: Vec<String> = devices.iter().map(|device| format!("id:{}", device.id)).collect();
    names.join(", ")
}
