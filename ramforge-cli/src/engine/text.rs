//! Bytes of tokens to text: a token may end in the middle of a character.

/// Collects bytes and gives them back as soon as they are whole characters.
#[derive(Debug, Default)]
pub struct Utf8Stream {
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Adds bytes and returns the text that is complete now. A sequence that can no longer become a
    /// character is replaced by U+FFFD.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut used = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            used += chunk.valid().len();
            let invalid = chunk.invalid();
            let reaches_end = used + invalid.len() == self.pending.len();
            if !invalid.is_empty() {
                if reaches_end && could_continue(invalid) {
                    break;
                }
                text.push(char::REPLACEMENT_CHARACTER);
                used += invalid.len();
            }
        }
        self.pending.drain(..used);
        text
    }

    /// What is left at the end: nothing, or one U+FFFD for a character that was never finished.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}

/// Whether `bytes`, an invalid end of the input, is the beginning of some character.
fn could_continue(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_character_in_pieces_comes_out_once_whole() {
        let mut stream = Utf8Stream::default();
        let bytes = "a€".as_bytes();
        assert_eq!(stream.push(&bytes[..2]), "a");
        assert_eq!(stream.push(&bytes[2..3]), "");
        assert_eq!(stream.push(&bytes[3..]), "€");
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn what_cannot_become_a_character_is_replaced_at_once() {
        let mut stream = Utf8Stream::default();
        assert_eq!(stream.push(b"\xffb"), "\u{fffd}b");
        assert_eq!(stream.push(b"\xe2\x82"), "");
        assert_eq!(stream.push(b"c"), "\u{fffd}c");
        assert_eq!(stream.push(b"\xf0\x9f"), "");
        assert_eq!(stream.finish(), "\u{fffd}");
    }

    proptest! {
        #[test]
        fn pieces_give_the_same_text_as_the_whole(bytes: Vec<u8>, cuts in prop::collection::vec(0_usize..64, 0..8)) {
            let mut stream = Utf8Stream::default();
            let mut text = String::new();
            let mut rest = bytes.as_slice();
            for cut in cuts {
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                text.push_str(&stream.push(head));
                rest = tail;
            }
            text.push_str(&stream.push(rest));
            text.push_str(&stream.finish());
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
