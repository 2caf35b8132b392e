//! Rows times vectors of activations rounded to 8 bits.

use std::marker::PhantomData;

use super::lanes::{LANES, Lanes};
use super::rows::{Blocks, parts};
use super::unpack::{BLOCK, Coded, GROUP, Scales, lane_groups};
use super::vector::RowProduct;

/// Codes are multiplied with codes: the sums of four products are exact, and meet their scales in f32.
///
/// AVX2 and AVX-512 give the same bits; the portable set, which does not fuse multiplications and additions, rounds
/// differently.
pub(super) struct Int8<C>(PhantomData<C>);

/// 256 rounded values.
#[derive(Clone)]
#[repr(C, align(64))]
pub(super) struct RoundedBlock {
    /// The codes in the order of the format's.
    codes: [[i8; 4 * LANES]; 4],
    /// What a unit is, for each lane of each quarter.
    units: [[f32; LANES]; 4],
    /// The sum of each 16 rounded values, negative.
    negative_sums: [f32; LANES],
}

/// The largest code.
const LARGEST: f32 = 127.0;

impl RoundedBlock {
    const ZERO: Self = Self { codes: [[0; 4 * LANES]; 4], units: [[0.0; LANES]; 4], negative_sums: [0.0; LANES] };
}

impl<C: Coded> Int8<C> {
    const LANE_GROUPS: [[u32; LANES]; 4] = lane_groups(C::GROUPS);

    #[inline(always)]
    fn round(x: &[f32], block: &mut RoundedBlock) {
        let mut values = [0.0; BLOCK];
        values[..x.len()].copy_from_slice(x);
        let mut codes = [0; BLOCK];
        let mut units = [0.0; LANES];
        let groups = values.chunks_exact(C::ACTIVATION_GROUP).zip(codes.chunks_exact_mut(C::ACTIVATION_GROUP));
        for ((values, codes), units) in groups.zip(units.chunks_exact_mut(C::ACTIVATION_GROUP / GROUP)) {
            units.fill(round_together(values, codes));
        }
        let (codes, _) = codes.as_chunks::<GROUP>();
        for ((sum, codes), unit) in block.negative_sums.iter_mut().zip(codes).zip(units) {
            let mut total = 0;
            for &code in codes {
                total += i32::from(code);
            }
            *sum = -unit * total as f32;
        }
        for (quarter, groups) in C::GROUPS.iter().enumerate() {
            let places = block.codes[quarter].as_chunks_mut().0.iter_mut();
            let places = places.zip(block.units[quarter].as_chunks_mut::<4>().0);
            for ((place, place_units), &group) in places.zip(groups) {
                *place = codes[usize::from(group)];
                *place_units = [units[usize::from(group)]; 4];
            }
        }
    }
}

/// Rounds values under one scale, which is returned.
///
/// It is such that the value farthest from zero gets the code farthest from zero. Where a value is no number or is
/// infinite, so is the scale no number.
#[inline(always)]
fn round_together(values: &[f32], codes: &mut [i8]) -> f32 {
    // Adding it leaves the nearest integer in the lowest bits.
    const ROUNDING: f32 = 12_582_912.0;

    // Magnitudes order as their bits do, infinity and what is no number last.
    let mut largest = 0;
    for value in values {
        largest = largest.max(value.abs().to_bits());
    }
    let largest = f32::from_bits(largest);
    if !largest.is_finite() {
        return f32::NAN;
    }
    let units_in_one = LARGEST / largest;
    if !units_in_one.is_finite() {
        // Zeros, or so small that their products vanish.
        return 0.0;
    }
    for (code, value) in codes.iter_mut().zip(values) {
        *code = (value * units_in_one + ROUNDING).to_bits() as i8;
    }
    largest / LARGEST
}

impl<C: Coded> RowProduct for Int8<C> {
    type Block = RoundedBlock;

    #[inline(always)]
    fn arrange<L: Lanes>(_: L, x: &[f32]) -> Vec<RoundedBlock> {
        let mut blocks = vec![RoundedBlock::ZERO; x.len().div_ceil(BLOCK)];
        for (block, x) in blocks.iter_mut().zip(x.chunks(BLOCK)) {
            Self::round(x, block);
        }
        blocks
    }

    #[inline(always)]
    fn dot<L: Lanes, const R: usize, const N: usize>(
        lanes: L,
        rows: [&[u8]; R],
        x: [&[RoundedBlock]; N],
    ) -> [[f32; N]; R] {
        let rows = rows.map(Blocks::<C::Bytes>::of_row);
        let mut sums = [[lanes.splat(0.0); N]; R];
        for (rows, x) in parts(&rows, x) {
            for index in 0..rows[0].len() {
                for row in 0..R {
                    let codes = C::codes(lanes, &rows[row][index]);
                    let Scales { units, factors, minima } = C::scales(lanes, &rows[row][index]);
                    for vector in 0..N {
                        let sum = &mut sums[row][vector];
                        *sum = lanes.mul_add(minima, lanes.load(&x[vector][index].negative_sums), *sum);
                    }
                    if C::ACTIVATION_GROUP == BLOCK {
                        let factors = lanes.and_i32(factors, 0xffff);
                        let mut totals = [lanes.load_i32(&[0; LANES]); N];
                        for (quarter, &codes) in codes.iter().enumerate() {
                            let factors = lanes.permute_i32(factors, &Self::LANE_GROUPS[quarter]);
                            for vector in 0..N {
                                let dots = lanes.dot(codes, &x[vector][index].codes[quarter], C::WIDE_CODES);
                                totals[vector] = lanes.mul_add_i16(dots, factors, totals[vector]);
                            }
                        }
                        for vector in 0..N {
                            let units = lanes.mul(units, lanes.splat(x[vector][index].units[0][0]));
                            let sum = &mut sums[row][vector];
                            *sum = lanes.mul_add(lanes.to_f32(totals[vector]), units, *sum);
                        }
                    } else {
                        for (quarter, &codes) in codes.iter().enumerate() {
                            let units = lanes.permute(units, &Self::LANE_GROUPS[quarter]);
                            for vector in 0..N {
                                let x = &x[vector][index];
                                let dots = lanes.dot(codes, &x.codes[quarter], C::WIDE_CODES);
                                let units = lanes.mul(units, lanes.load(&x.units[quarter]));
                                let sum = &mut sums[row][vector];
                                *sum = lanes.mul_add(lanes.to_f32(dots), units, *sum);
                            }
                        }
                    }
                }
            }
        }
        let mut products = [[0.0; N]; R];
        for row in 0..R {
            for vector in 0..N {
                products[row][vector] = lanes.sum(sums[row][vector]);
            }
        }
        products
    }
}
