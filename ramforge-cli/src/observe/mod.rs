//! Samples of what the kernel says, taken as they are: nothing here interprets, adds up or guesses.
//! A fact this kernel does not give is `None`.

pub mod cgroup;
pub mod host;
pub mod process;
