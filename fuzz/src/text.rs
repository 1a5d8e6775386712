//! What is printed on somebody's terminal.

/// Asserts that `text` cannot steer a terminal, whatever the input it quotes has in it.
pub fn assert_printable(text: &str) {
    let steering = text.chars().find(|&character| character.is_control() && character != '\n');
    assert_eq!(steering, None, "{text:?}");
}
