//! The states of a context between and during operations, and the token that only one of them gives out.
//!
//! ModelReady → PreparingOperation → Executing → Synchronizing → SafeBoundary → Planning → Applying →
//! SafeBoundary. Pages may be released only by whoever holds a [`Token`]; only [`Applying`] gives one, and a
//! lifecycle in that state cannot execute. So this compiles:
//!
//! ```
//! use ramforge::residency::lifecycle::{Lifecycle, ModelReady, Token};
//! fn operation<C>(ready: Lifecycle<'_, C, ModelReady>, decode: fn(&mut C), release: fn(Token<'_>)) {
//!     let (synchronizing, ()) = ready.prepare().execute(decode);
//!     let mut applying = synchronizing.synchronize().plan().apply();
//!     release(applying.token());
//!     let boundary = applying.finish();
//! #   let _ = boundary;
//! }
//! ```
//!
//! A release while the operation is being prepared or executed does not, because there is no token:
//!
//! ```compile_fail,E0599
//! use ramforge::residency::lifecycle::{Lifecycle, ModelReady, Token};
//! fn operation<C>(ready: Lifecycle<'_, C, ModelReady>, decode: fn(&mut C), release: fn(Token<'_>)) {
//!     let mut preparing = ready.prepare();
//!     release(preparing.token());
//!     let (synchronizing, ()) = preparing.execute(decode);
//! #   let _ = synchronizing;
//! }
//! ```
//!
//! nor does keeping the token for the next decode:
//!
//! ```compile_fail,E0505
//! use ramforge::residency::lifecycle::{Applying, Lifecycle, Token};
//! fn operation<C>(mut applying: Lifecycle<'_, C, Applying>, decode: fn(&mut C), release: fn(Token<'_>)) {
//!     let token = applying.token();
//!     let (synchronizing, ()) = applying.finish().prepare().execute(decode);
//!     release(token);
//! #   let _ = synchronizing;
//! }
//! ```
//!
//! nor making one:
//!
//! ```compile_fail,E0423
//! use ramforge::residency::lifecycle::Token;
//! fn release_now(release: fn(Token<'_>)) {
//!     release(Token(std::marker::PhantomData));
//! }
//! ```

use std::marker::PhantomData;

/// The model is loaded and nothing has been computed.
#[derive(Debug)]
pub enum ModelReady {}
/// An operation is about to be executed.
#[derive(Debug)]
pub enum PreparingOperation {}
/// The operation has returned, and may not have come to rest.
#[derive(Debug)]
pub enum Synchronizing {}
/// Nothing is being computed.
#[derive(Debug)]
pub enum SafeBoundary {}
/// A policy is looking at the memory.
#[derive(Debug)]
pub enum Planning {}
/// A plan is being carried out.
#[derive(Debug)]
pub enum Applying {}

/// A context `C` in the state `S`. While it is executing, the lifecycle is inside
/// [`Lifecycle::execute`], out of everybody's reach.
#[derive(Debug)]
pub struct Lifecycle<'context, C, S> {
    context: &'context mut C,
    state: PhantomData<S>,
}

/// The permission to change which pages are in memory. It lasts no longer than the state that gave it.
#[derive(Debug)]
pub struct Token<'applying>(PhantomData<&'applying mut ()>);

impl<'context, C, S> Lifecycle<'context, C, S> {
    fn into_state<T>(self) -> Lifecycle<'context, C, T> {
        Lifecycle { context: self.context, state: PhantomData }
    }
}

impl<'context, C> Lifecycle<'context, C, ModelReady> {
    /// The lifecycle of a context that computes nothing now.
    pub const fn new(context: &'context mut C) -> Self {
        Self { context, state: PhantomData }
    }

    /// Nothing has been computed, so that this is a safe boundary too.
    pub fn at_rest(self) -> Lifecycle<'context, C, SafeBoundary> {
        self.into_state()
    }

    /// An operation is about to begin.
    pub fn prepare(self) -> Lifecycle<'context, C, PreparingOperation> {
        self.into_state()
    }
}

impl<'context, C> Lifecycle<'context, C, PreparingOperation> {
    /// Executes the operation.
    pub fn execute<R>(
        self,
        operation: impl FnOnce(&mut C) -> R,
    ) -> (Lifecycle<'context, C, Synchronizing>, R) {
        let result = operation(self.context);
        (self.into_state(), result)
    }
}

impl<'context, C> Lifecycle<'context, C, Synchronizing> {
    /// The operation has come to rest: on the CPU a decode that has returned has computed everything.
    pub fn synchronize(self) -> Lifecycle<'context, C, SafeBoundary> {
        self.into_state()
    }
}

impl<'context, C> Lifecycle<'context, C, SafeBoundary> {
    /// The next operation is about to begin.
    pub fn prepare(self) -> Lifecycle<'context, C, PreparingOperation> {
        self.into_state()
    }

    /// A policy looks at the memory.
    pub fn plan(self) -> Lifecycle<'context, C, Planning> {
        self.into_state()
    }
}

impl<'context, C> Lifecycle<'context, C, Planning> {
    /// There is nothing to carry out.
    pub fn finish(self) -> Lifecycle<'context, C, SafeBoundary> {
        self.into_state()
    }

    /// A plan is to be carried out.
    pub fn apply(self) -> Lifecycle<'context, C, Applying> {
        self.into_state()
    }
}

impl<'context, C> Lifecycle<'context, C, Applying> {
    /// The permission to carry out one plan.
    pub const fn token(&mut self) -> Token<'_> {
        Token(PhantomData)
    }

    /// The plan is carried out.
    pub fn finish(self) -> Lifecycle<'context, C, SafeBoundary> {
        self.into_state()
    }
}
