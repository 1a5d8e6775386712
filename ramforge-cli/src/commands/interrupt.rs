//! Ctrl-C, SIGTERM and SIGHUP, for what looks whether it should stop.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::{Error, Result};

/// A flag that is set once one of the signals has arrived, which from now on do nothing else.
pub fn flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, Arc::clone(&stop))
            .map_err(|error| Error::failed("cannot listen to signals").caused_by(error))?;
    }
    Ok(stop)
}
