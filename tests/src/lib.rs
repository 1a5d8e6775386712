//! Generated models, and what the end-to-end tests share.
