//! The Python door: conversions and errors only.
