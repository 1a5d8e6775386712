//! The devices the native library can compute on.

use std::ffi::{CStr, c_char};

use forge_sys as sys;

use crate::backend::Backend;

/// What kind of device it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The processor and ordinary memory.
    Cpu,
    /// A GPU with memory of its own.
    Gpu,
    /// A GPU that shares ordinary memory.
    IntegratedGpu,
    /// Helps the CPU with some operations, such as a BLAS library.
    Accelerator,
    /// A kind this wrapper does not know.
    Other,
}

/// Memory of a device in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Bytes that are free now.
    pub free: u64,
    /// Bytes there are.
    pub total: u64,
}

/// What a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCapabilities {
    /// Runs operations asynchronously.
    pub asynchronous: bool,
    /// Has pinned host buffers.
    pub host_buffer: bool,
    /// Computes on memory the caller owns, such as a file mapping.
    pub buffer_from_host_ptr: bool,
    /// Has synchronisation events.
    pub events: bool,
}

/// One device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Unique in this process: the hardware's own id where it has one, otherwise the native name.
    pub id: String,
    /// The native name, such as `CPU`.
    pub name: String,
    /// The backend it belongs to, such as `CPU`.
    pub backend: String,
    /// Its kind.
    pub kind: DeviceKind,
    /// A description for people.
    pub description: String,
    /// Its memory; `None` where the native library does not know. For a CPU device it never does: it reports
    /// all physical memory as free and knows nothing of limits.
    pub memory: Option<DeviceMemory>,
    /// What it can do.
    pub capabilities: DeviceCapabilities,
}

/// The devices of this process, in the native library's order.
#[derive(Clone, Debug)]
pub struct DeviceRegistry {
    devices: Vec<Device>,
}

impl DeviceRegistry {
    /// Asks the native library for its devices.
    pub fn discover(_: Backend) -> Self {
        // SAFETY: the backend token proves that the registry is initialised.
        let count = unsafe { sys::ggml_backend_dev_count() };
        Self { devices: (0..count).map(describe).collect() }
    }

    /// The devices.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The device with this id or native name.
    pub fn by_id(&self, id: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.id == id || device.name == id)
    }

    /// The device at `index` among those of `backend`, both as the native library names and orders them.
    pub fn by_backend(&self, backend: &str, index: usize) -> Option<&Device> {
        self.devices.iter().filter(|device| device.backend.eq_ignore_ascii_case(backend)).nth(index)
    }
}

fn describe(index: usize) -> Device {
    let mut props = sys::ggml_backend_dev_props::default();
    // SAFETY: `index` is below the count, so the device exists; devices live as long as the process, and so
    // do the strings that the properties point to.
    let backend = unsafe {
        let device = sys::ggml_backend_dev_get(index);
        sys::ggml_backend_dev_get_props(device, &raw mut props);
        text(sys::ggml_backend_reg_name(sys::ggml_backend_dev_backend_reg(device)))
    };
    // SAFETY: as above.
    let (name, description, id) =
        unsafe { (text(props.name), text(props.description), text(props.device_id)) };
    let kind = match props.type_ {
        sys::GGML_BACKEND_DEVICE_TYPE_CPU => DeviceKind::Cpu,
        sys::GGML_BACKEND_DEVICE_TYPE_GPU => DeviceKind::Gpu,
        sys::GGML_BACKEND_DEVICE_TYPE_IGPU => DeviceKind::IntegratedGpu,
        sys::GGML_BACKEND_DEVICE_TYPE_ACCEL => DeviceKind::Accelerator,
        _ => DeviceKind::Other,
    };
    let memory = (kind != DeviceKind::Cpu && props.memory_total > 0)
        .then_some(DeviceMemory { free: props.memory_free as u64, total: props.memory_total as u64 });
    Device {
        id: id.or_else(|| name.clone()).unwrap_or_else(|| format!("device{index}")),
        name: name.unwrap_or_default(),
        backend: backend.unwrap_or_default(),
        kind,
        description: description.unwrap_or_default(),
        memory,
        capabilities: DeviceCapabilities {
            asynchronous: props.caps.async_,
            host_buffer: props.caps.host_buffer,
            buffer_from_host_ptr: props.caps.buffer_from_host_ptr,
            events: props.caps.events,
        },
    }
}

/// # Safety
/// `pointer` is null or a NUL-terminated string.
unsafe fn text(pointer: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise; null is handled first.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
}
