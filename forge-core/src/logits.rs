//! The scores of the next token, read where the native library keeps them.

use std::ops::Deref;

use crate::vocab::Token;

/// Logits of one output: a score for each token of the vocabulary. Borrowed from the context, not copied, so
/// the next decode cannot start while they are held.
#[derive(Clone, Copy, Debug)]
pub struct Logits<'context> {
    scores: &'context [f32],
}

impl<'context> Logits<'context> {
    pub(crate) const fn new(scores: &'context [f32]) -> Self {
        Self { scores }
    }

    /// The scores, by token number.
    pub const fn as_slice(&self) -> &'context [f32] {
        self.scores
    }

    /// The token with the highest score; the lowest number among equals. `None` for an empty vocabulary or
    /// when every score is not a number.
    pub fn best(&self) -> Option<Token> {
        let mut best: Option<(usize, f32)> = None;
        for (index, &score) in self.scores.iter().enumerate() {
            if !score.is_nan() && best.is_none_or(|(_, highest)| score > highest) {
                best = Some((index, score));
            }
        }
        best.and_then(|(index, _)| i32::try_from(index).ok()).map(Token)
    }
}

impl Deref for Logits<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        self.scores
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_is_the_first_of_the_highest() {
        assert_eq!(Logits::new(&[0.0, 2.0, f32::NAN, 2.0]).best(), Some(Token(1)));
        assert_eq!(Logits::new(&[f32::NAN]).best(), None);
        assert_eq!(Logits::new(&[]).best(), None);
    }
}
