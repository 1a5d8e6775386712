//! Panics in callbacks: caught before they reach C, stored, and resumed once the C call has returned.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

thread_local! {
    static PENDING: Cell<Option<Box<dyn Any + Send>>> = const { Cell::new(None) };
}

/// Runs the body of a callback. `None` means that it panicked: the caller returns its "stop" answer to C,
/// and [`resume_panic`] continues the panic on this thread afterwards.
pub(crate) fn guard<R>(body: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => Some(value),
        Err(payload) => {
            PENDING.with(|pending| {
                // The first panic is the cause; later ones are its consequences.
                let first = pending.take().unwrap_or(payload);
                pending.set(Some(first));
            });
            None
        }
    }
}

/// Continues the panic of a callback that ran on this thread, if there was one.
pub(crate) fn resume_panic() {
    if let Some(payload) = PENDING.take() {
        resume_unwind(payload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_stored_and_resumed_later() {
        assert_eq!(guard(|| 3), Some(3));
        assert_eq!(guard(|| -> i32 { panic!("first") }), None);
        assert_eq!(guard(|| -> i32 { panic!("second") }), None);
        let payload = catch_unwind(resume_panic).unwrap_err();
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"first"));
        resume_panic();
    }
}
