//! Text taken from a file, made safe to print.

/// Longer text is cut here, in characters.
const LIMIT: usize = 200;

/// `bytes` as one printable line: control characters and text-direction overrides are escaped, what is no
/// UTF-8 becomes the replacement character, and text beyond 200 characters is cut and marked with `…`.
pub fn printable(bytes: impl AsRef<[u8]>) -> String {
    let bytes = bytes.as_ref();
    // A character has at most four bytes; looking at more than the limit needs would only cost time.
    let head = &bytes[..bytes.len().min(4 * LIMIT + 4)];
    let mut line = String::new();
    for (index, character) in String::from_utf8_lossy(head).chars().enumerate() {
        if index == LIMIT {
            line.push('…');
            break;
        }
        push_harmless(&mut line, character);
    }
    line
}

/// `text` with what would steer a terminal escaped.
pub fn harmless(text: &str) -> String {
    text.chars().fold(String::new(), |mut line, character| {
        push_harmless(&mut line, character);
        line
    })
}

fn push_harmless(line: &mut String, character: char) {
    match steers(character) {
        true => line.extend(character.escape_default()),
        false => line.push(character),
    }
}

/// Whether `character` is for the terminal, or changes how the text around it is shown.
pub fn steers(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_long_text_is_cut() {
        assert_eq!(printable("a\x1b[31mb\n"), "a\\u{1b}[31mb\\n");
        assert_eq!(printable("Grüße \u{202e}x"), "Grüße \\u{202e}x");
        assert_eq!(printable(b"\xff!"), "\u{fffd}!");
        assert_eq!(harmless("name = \x1b[2J é"), "name = \\u{1b}[2J é");
        assert_eq!(printable("x".repeat(1000)).chars().count(), LIMIT + 1);
    }
}
