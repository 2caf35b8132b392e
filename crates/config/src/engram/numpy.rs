//! `numpy.random.default_rng(seed).integers(0, high)`: SeedSequence, PCG64 and Lemire's bounded method, bit for bit.

/// numpy's default generator: PCG64 (setseq, XSL-RR 128/64; O'Neill 2014), seeded through SeedSequence.
pub(super) struct Generator {
    state: u128,
    increment: u128,
}

impl Generator {
    const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;

    /// `default_rng(seed)`.
    pub(super) fn seeded(seed: u128) -> Self {
        let words = SeedSequence::new(seed).generate::<8>();
        let wide = |i: usize| u128::from(words[i + 1]) << 32 | u128::from(words[i]);
        let initial = wide(0) << 64 | wide(2);
        let stream = wide(4) << 64 | wide(6);
        let mut generator = Self { state: 0, increment: stream << 1 | 1 };
        generator.step();
        generator.state = generator.state.wrapping_add(initial);
        generator.step();
        generator
    }

    /// One value of `integers(0, high)`, for a `high` over 2^32: numpy draws smaller ranges from 32 bits at a time.
    pub(super) fn below(&mut self, high: u64) -> u64 {
        debug_assert!(high > 1 << 32, "{high} is a 32-bit range");
        // Lemire 2019, algorithm 5: the low word decides whether the product falls in an over-represented part.
        let threshold = high.wrapping_neg() % high;
        loop {
            let product = u128::from(self.next()) * u128::from(high);
            if product as u64 >= threshold {
                return (product >> 64) as u64;
            }
        }
    }

    fn next(&mut self) -> u64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(Self::MULTIPLIER).wrapping_add(self.increment);
    }
}

/// numpy's SeedSequence with its pool of four words (after O'Neill's `seed_seq_fe`).
struct SeedSequence {
    pool: [u32; 4],
}

impl SeedSequence {
    /// Mixes a seed of up to four words; words that a smaller seed lacks count as zeros, as in numpy.
    fn new(seed: u128) -> Self {
        let mut hash = Hash { constant: 0x43B0_D7E5, multiplier: 0x931E_8875 };
        let mut pool = [0, 32, 64, 96].map(|shift| hash.mix((seed >> shift) as u32));
        for source in 0..pool.len() {
            for target in 0..pool.len() {
                if source != target {
                    let left = pool[target].wrapping_mul(0xCA01_F9DD);
                    let right = hash.mix(pool[source]).wrapping_mul(0x4973_F715);
                    let mixed = left.wrapping_sub(right);
                    pool[target] = mixed ^ mixed >> 16;
                }
            }
        }
        Self { pool }
    }

    /// `generate_state(N)` in 32-bit words.
    fn generate<const N: usize>(&self) -> [u32; N] {
        let mut hash = Hash { constant: 0x8B51_F9DD, multiplier: 0x58F3_8DED };
        std::array::from_fn(|i| hash.mix(self.pool[i % self.pool.len()]))
    }
}

/// SeedSequence's word hash, whose constant moves on with each word.
struct Hash {
    constant: u32,
    multiplier: u32,
}

impl Hash {
    fn mix(&mut self, word: u32) -> u32 {
        let keyed = word ^ self.constant;
        self.constant = self.constant.wrapping_mul(self.multiplier);
        let product = keyed.wrapping_mul(self.constant);
        product ^ product >> 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `default_rng(seed).bit_generator.random_raw(3)` of numpy 2.4.
    #[test]
    fn raw_words() {
        let expected = [
            (0, [0xA30F_EBCF_D9C2_825F, 0x4510_BDF8_82D9_D721, 0x0A7D_3DA9_4ECD_E8B8]),
            (10_007 * 14, [0xBA3E_CC29_CF07_C111, 0x8DAC_4BBE_1061_0B7C, 0x550B_7148_777F_F213]),
            ((1 << 100) + 7, [0x10B9_02BA_6D29_6DA0, 0x1A96_47F0_C653_42FB, 0x03A8_44B6_F3FE_6E87]),
        ];
        for (seed, words) in expected {
            let mut generator = Generator::seeded(seed);
            assert_eq!(words.map(|_| generator.next()), words, "seed {seed}");
        }
    }

    /// `default_rng(10007).integers(0, high, 8, dtype=uint64)` of numpy 2.4; the first two bounds reject draws.
    #[test]
    fn bounded_values() {
        let expected: [(u64, [u64; 8]); 3] = [
            (
                3 << 62,
                [
                    11_390_441_492_121_949_862,
                    719_389_502_757_934_887,
                    5_344_973_774_203_445_600,
                    10_997_329_865_140_537_970,
                    311_864_973_255_858_196,
                    8_859_461_479_186_167_646,
                    13_136_140_309_875_706_523,
                    804_614_219_655_536_600,
                ],
            ),
            (
                (1 << 63) + 1,
                [
                    479_593_001_838_623_258,
                    3_563_315_849_468_963_733,
                    6_976_413_731_397_036_916,
                    5_906_307_652_790_778_431,
                    536_409_479_770_357_733,
                    7_521_451_877_440_251_285,
                    4_717_329_417_059_264_074,
                    4_538_807_118_506_230_150,
                ],
            ),
            (
                (1 << 33) + 5,
                [
                    7_072_116_868,
                    446_655_789,
                    3_318_596_493,
                    6_828_041_046,
                    3_687_509_586,
                    6_497_291_601,
                    1_910_781_220,
                    193_631_259,
                ],
            ),
        ];
        for (high, values) in expected {
            let mut generator = Generator::seeded(10_007);
            assert_eq!(values.map(|_| generator.below(high)), values, "below {high}");
        }
    }
}
