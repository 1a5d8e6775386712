use super::NativeSizes;
use crate::Result;

/// The native library rounds contexts up to a multiple of this.
const STEP: u32 = 256;

/// The largest context of at most `most` tokens whose sizes fit, in steps of 256; `None` when even the smallest
/// does not. `sizes` is asked about twice the logarithm of their number of times at most: a larger context never
/// takes less.
///
/// # Errors
/// What `sizes` fails with.
pub fn largest_context(
    most: u32,
    sizes: &mut dyn FnMut(u32) -> Result<NativeSizes>,
    fits: &dyn Fn(NativeSizes) -> bool,
) -> Result<Option<u32>> {
    let mut fits = |steps: u32| sizes(steps.saturating_mul(STEP)).map(fits);
    let (mut fitting, mut too_large) = (0, most.div_ceil(STEP).max(1) + 1);
    if fits(too_large - 1)? {
        return Ok(Some(most.max(STEP)));
    }
    too_large -= 1;
    while too_large - fitting > 1 {
        let middle = fitting + (too_large - fitting) / 2;
        if fits(middle)? {
            fitting = middle;
        } else {
            too_large = middle;
        }
    }
    Ok((fitting > 0).then_some(fitting * STEP))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(most: u32, room: u64) -> (Option<u32>, usize) {
        let mut asked = 0;
        let mut sizes = |tokens: u32| {
            asked += 1;
            Ok(NativeSizes { kv_bytes: u64::from(tokens) * 10, ..NativeSizes::default() })
        };
        let found = largest_context(most, &mut sizes, &|sizes| sizes.kv_bytes <= room).unwrap();
        (found, asked)
    }

    #[test]
    fn the_largest_context_is_found_in_few_questions() {
        assert_eq!(search(131_072, u64::MAX), (Some(131_072), 1));
        assert_eq!(search(131_072, 25_600).0, Some(2560));
        assert_eq!(search(131_072, 25_599).0, Some(2304));
        assert_eq!(search(131_072, 2559).0, None);
        assert_eq!(search(100, 2560).0, Some(256));
        assert_eq!(search(1000, 10_240).0, Some(1000));
        assert!(search(131_072, 1_000_000).1 <= 10);
    }

    #[test]
    fn what_the_native_library_refuses_is_passed_on() {
        let refused = largest_context(512, &mut |_| Err(crate::Error::failed("no")), &|_| true);
        assert!(refused.is_err());
    }
}
