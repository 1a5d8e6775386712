//! Sizes as people type and read them: binary units, `8G` = `8GiB` = 8 × 2³⁰ bytes.

use humansize::{BINARY, FormatSizeOptions};
use parse_size::Config;

use crate::{Error, Result};

const ACCEPTED: &str = "write a size like 8G, 8GiB, 8192M, 512MiB, 1.5G, or a plain number of bytes";

/// Digits of the largest size. The parser adds one to round what has more, and may overflow.
const MOST_DIGITS: usize = 20;

/// Parses a size into bytes. Units are binary with and without the `i`, in either case; a number without
/// a unit is bytes.
///
/// # Errors
/// A usage error that names `text` and what is wrong with it.
pub fn parse(text: &str) -> Result<u64> {
    // Not a hint: the parser of the command line shows only the message.
    let wrong = |reason: &str| Error::usage(format!("{text:?} is not a size: {reason}; {ACCEPTED}"));
    let trimmed = text.trim();
    if trimmed.starts_with('-') {
        return Err(wrong("it is negative"));
    }
    if trimmed.bytes().filter(u8::is_ascii_digit).count() > MOST_DIGITS {
        return Err(wrong("it has more than 20 digits"));
    }
    match Config::new().with_binary().parse_size(trimmed) {
        Ok(0) => Err(wrong("it is not even one byte")),
        Ok(bytes) => Ok(bytes),
        Err(parse_size::Error::Empty) => Err(wrong("there is no number in it")),
        Err(parse_size::Error::PosOverflow) => Err(wrong("it is more than 2^64 - 1 bytes")),
        Err(_) => Err(wrong("a number with an optional unit (K, M, G, T) is expected")),
    }
}

/// `bytes` for people: `64 MiB`, `1.46 GiB`.
pub fn readable(bytes: u64) -> String {
    humansize::format_size(bytes, FormatSizeOptions::from(BINARY))
}

/// `bytes` for people and exactly: `64 MiB (67108864 bytes)`, `17 bytes`.
pub fn exact(bytes: u64) -> String {
    if bytes < 1024 { format!("{bytes} bytes") } else { format!("{} ({bytes} bytes)", readable(bytes)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_binary() {
        for (text, bytes) in [
            ("8G", 8 << 30),
            ("8GiB", 8 << 30),
            ("8gb", 8 << 30),
            ("8192M", 8 << 30),
            ("512MiB", 512 << 20),
            ("1.5G", 3 << 29),
            (" 64 K ", 64 << 10),
            ("1T", 1 << 40),
            ("65536", 65536),
        ] {
            assert_eq!(parse(text).unwrap(), bytes, "{text}");
        }
    }

    #[test]
    fn wrong_sizes_are_explained() {
        for (text, reason) in [
            ("-5", "negative"),
            ("8X", "a number with an optional unit"),
            ("", "no number"),
            ("G", "no number"),
            ("0", "not even one byte"),
            ("0.0001K", "not even one byte"),
            ("99999999999G", "more than 2^64 - 1 bytes"),
            ("1.5.2G", "a number with an optional unit"),
            ("18446744073709551616", "more than 2^64 - 1 bytes"),
            ("184467440737095516155", "more than 20 digits"),
            ("18446744073709551615.5", "more than 20 digits"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.to_string().contains(reason), "{text:?}: {error}");
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
            assert_eq!(error.kind(), crate::ErrorKind::Usage);
            assert!(error.to_string().ends_with(ACCEPTED), "{error}");
        }
    }

    #[test]
    fn printed_sizes_are_readable_and_exact() {
        assert_eq!(exact(64 << 20), "64 MiB (67108864 bytes)");
        assert_eq!(exact(17), "17 bytes");
        assert_eq!(readable(1_567_000_000), "1.46 GiB");
        assert_eq!(readable(17), "17 B");
    }
}
