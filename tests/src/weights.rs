//! Seeded weights, straight in the layout of the file.
//!
//! Every 64-bit word is a hash of (seed, tensor name, position), so a tensor's bytes depend on nothing that
//! was made before it. Quantized blocks are random numbers with a scale, not quantized floats: as good to
//! compute with, and a hundred times as quick to make. The sign of a scale is random too; without that the
//! values of Q4_0, which lie around -0.5 and not around 0, would add the same large number to every
//! activation of a layer.

use std::io::{self, Write};

use half::f16;

use crate::gguf_writer::{TensorInfo, TensorType};

/// How the values of a tensor are spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distribution {
    /// Their mean; quantized types can only have 0.
    pub mean: f32,
    /// Their standard deviation.
    pub deviation: f32,
}

impl Distribution {
    /// Of a matrix whose rows have `fan_in` elements: what comes out of a product with it has about the
    /// size of what went in.
    pub fn matrix(fan_in: u64) -> Self {
        Self { mean: 0.0, deviation: 1.0 / (fan_in as f32).sqrt() }
    }

    /// Of the factors of a normalization.
    pub const NORM: Self = Self { mean: 1.0, deviation: 0.1 };

    /// Of a bias.
    pub const BIAS: Self = Self { mean: 0.0, deviation: 0.1 };
}

/// Writes the data of `tensor`.
///
/// # Errors
/// Whatever `out` gives.
///
/// # Panics
/// If a quantized tensor is to have a mean other than 0.
pub fn write(seed: u64, tensor: &TensorInfo, values: Distribution, out: &mut dyn Write) -> io::Result<()> {
    let mut words = Words::new(seed, &tensor.name);
    let blocks = tensor.bytes() / tensor.kind.block_bytes();
    let mut buffer = Vec::with_capacity(BUFFER_BYTES + 64);
    let push = block_writer(tensor.kind, values);
    for _ in 0..blocks {
        push(&mut words, &mut buffer);
        if buffer.len() >= BUFFER_BYTES {
            out.write_all(&buffer)?;
            buffer.clear();
        }
    }
    out.write_all(&buffer)
}

const BUFFER_BYTES: usize = 1 << 16;

/// Appends one block to a buffer.
type BlockWriter = Box<dyn Fn(&mut Words, &mut Vec<u8>)>;

fn block_writer(kind: TensorType, values: Distribution) -> BlockWriter {
    match kind {
        TensorType::F32 => Box::new(move |words, out| out.extend(words.uniform(values).to_le_bytes())),
        TensorType::F16 => {
            Box::new(move |words, out| out.extend(f16::from_f32(words.uniform(values)).to_le_bytes()))
        }
        TensorType::Q4_0 => {
            let scales = Scales::new(values, 16);
            Box::new(move |words, out| {
                out.extend(scales.pick(words.next()).to_le_bytes());
                out.extend(words.next().to_le_bytes());
                out.extend(words.next().to_le_bytes());
            })
        }
        TensorType::Q4_1 => {
            let scales = Scales::new(values, 16);
            Box::new(move |words, out| {
                let scale = scales.pick(words.next());
                // The minimum puts the middle of 0..=15 at zero.
                let minimum = f16::from_f32(scale.to_f32() * -7.5);
                out.extend(scale.to_le_bytes());
                out.extend(minimum.to_le_bytes());
                out.extend(words.next().to_le_bytes());
                out.extend(words.next().to_le_bytes());
            })
        }
        TensorType::Q8_0 => {
            let scales = Scales::new(values, 255);
            Box::new(move |words, out| {
                out.extend(scales.pick(words.next()).to_le_bytes());
                for _ in 0..4 {
                    // ggml never makes a -128, so kernels need not bear one.
                    let quants =
                        words.next().to_le_bytes().map(|byte| if byte == 0x80 { 0x81 } else { byte });
                    out.extend(quants);
                }
            })
        }
    }
}

/// The scales a quantized tensor's blocks pick from: both signs, 0.5 to 1.5 times the one that gives the
/// wanted deviation.
struct Scales([f16; 256]);

impl Scales {
    /// For quantized values that are uniform over `levels` consecutive integers.
    fn new(values: Distribution, levels: u32) -> Self {
        assert!(values.mean == 0.0, "a quantized tensor has mean 0");
        let levels = levels as f32;
        let integer_deviation = ((levels * levels - 1.0) / 12.0).sqrt();
        // Of the factors below; their square enters the variance.
        let spread = (1.0_f32 + 1.0 / 12.0).sqrt();
        let scale = values.deviation / (integer_deviation * spread);
        Self(std::array::from_fn(|index| {
            let factor = 0.5 + (index % 128) as f32 / 127.0;
            f16::from_f32(if index < 128 { scale * factor } else { -scale * factor })
        }))
    }

    fn pick(&self, word: u64) -> f16 {
        self.0[(word & 0xff) as usize]
    }
}

/// The hash of one tensor's positions, in order.
struct Words {
    state: u64,
    /// Half a word that is still to be used.
    half: Option<u32>,
}

/// The odd number nearest to 2^64 divided by the golden ratio: steps of it visit every 64-bit state.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Words {
    fn new(seed: u64, name: &str) -> Self {
        Self { state: mix(fnv1a(name.as_bytes()) ^ mix(seed.wrapping_add(STEP))), half: None }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }

    fn uniform(&mut self, values: Distribution) -> f32 {
        let bits = match self.half.take() {
            Some(bits) => bits,
            None => {
                let word = self.next();
                self.half = Some((word >> 32) as u32);
                word as u32
            }
        };
        // 24 bits, so that the fraction is exact, over a width whose deviation is 1.
        let fraction = (bits >> 8) as f32 / (1 << 24) as f32;
        values.mean + values.deviation * 12.0_f32.sqrt() * (fraction - 0.5)
    }
}

/// The output function of SplitMix64.
const fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// 64-bit FNV-1a.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
