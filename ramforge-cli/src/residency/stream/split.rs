//! Matrices that are computed, and so streamed, in pieces of rows.

use super::Weight;

/// Bytes of a piece: enough for one read, and small beside any budget that a model works in.
const PIECE_BYTES: u64 = 2 << 20;

/// Most pieces: each is three nodes more in a graph whose nodes the native library bounds.
const MOST_PIECES: u64 = 64;

/// Rows of a piece of a matrix with `bytes` bytes in `rows` rows; `None` when it is not worth splitting.
///
/// Only matrices outside the layers are split: a layer's are small beside what is in use at once anyway, but the
/// output of a large vocabulary can be larger than the whole budget.
pub fn piece_rows(bytes: u64, rows: u64) -> Option<u32> {
    let pieces = (bytes / PIECE_BYTES).min(MOST_PIECES);
    (pieces > 1 && rows > pieces).then(|| u32::try_from(rows.div_ceil(pieces)).ok()).flatten()
}

/// The pieces of `matrix`, which has `rows` rows, with `piece_rows` in each but the last.
pub fn pieces(matrix: Weight, rows: u64, piece_rows: u32) -> impl Iterator<Item = Weight> {
    let row_bytes = matrix.bytes / rows.max(1);
    let piece_bytes = row_bytes * u64::from(piece_rows.max(1));
    (matrix.offset..matrix.end())
        .step_by(usize::try_from(piece_bytes.max(1)).unwrap_or(usize::MAX))
        .map(move |offset| Weight { offset, bytes: piece_bytes.min(matrix.end() - offset), ..matrix })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn small_matrices_stay_whole_and_large_ones_have_a_bounded_number_of_pieces() {
        assert_eq!(piece_rows(3 << 20, 1000), None);
        assert_eq!(piece_rows(4 << 20, 1000), Some(500));
        assert_eq!(piece_rows(1 << 30, 1 << 17), Some(1 << 11));
        assert_eq!(piece_rows(1 << 30, 8), None);
    }

    proptest! {
        #[test]
        fn pieces_follow_each_other_and_cover_the_matrix(
            offset in 0_u64..1_000_000, row_bytes in 1_u64..5000, rows in 1_u64..500, piece in 1_u32..700,
        ) {
            let bytes = row_bytes * rows;
            let (layer, used, experts) = (None, None, None);
            let matrix = Weight { file: 0, tensor: 3, offset, bytes, layer, used, rows: true, experts };
            let mut next = offset;
            for part in pieces(matrix, rows, piece) {
                prop_assert_eq!(part.offset, next);
                prop_assert!(part.bytes > 0 && part.bytes <= row_bytes * u64::from(piece));
                prop_assert_eq!(part.bytes % row_bytes, 0);
                next = part.end();
            }
            prop_assert_eq!(next, matrix.end());
        }
    }
}
