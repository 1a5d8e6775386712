//! Safe wrapper over the patched llama.cpp that `forge-sys` builds.
