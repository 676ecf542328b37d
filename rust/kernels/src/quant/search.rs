//! The searches for scales and minimums that ggml's quantizers share.
//!
//! Source: `ggml-quants.c` of llama.cpp b11434 (`make_qx_quants` and its kin). The bytes must come out the same, so every sum runs in order,
//! every product from left to right, and comparisons are strict where they are strict there.

/// Below this magnitude a group counts as all zero.
pub(super) const ZERO: f32 = 1e-15;

/// Rounds to the nearest integer, ties to even, by way of the mantissa: what lies beyond ±2^22 wraps as it does in ggml.
#[inline(always)]
pub(super) fn nearest(value: f32) -> i32 {
    let bits = (value + 12_582_912.0).to_bits() as i32;
    (bits & 0x007f_ffff) - 0x0040_0000
}

/// Cuts the fraction off and keeps the low byte; what an i32 cannot hold becomes zero, as x86 has it.
#[inline(always)]
pub(super) fn truncate(value: f32) -> i8 {
    if value.abs() < 2_147_483_648.0 { value as i32 as i8 } else { 0 }
}

/// The element of largest magnitude, the first of equals; zero for none.
#[inline(always)]
pub(super) fn extreme(x: &[f32]) -> f32 {
    let (mut magnitude, mut value) = (0.0, 0.0);
    for &x in x {
        if x.abs() > magnitude {
            (magnitude, value) = (x.abs(), x);
        }
    }
    value
}

/// Smallest and largest element.
#[inline(always)]
pub(super) fn range(x: &[f32]) -> (f32, f32) {
    let (mut min, mut max) = (x[0], x[0]);
    for &x in &x[1..] {
        if x < min {
            min = x;
        }
        if x > max {
            max = x;
        }
    }
    (min, max)
}

/// Sum of squares, in order.
#[inline(always)]
pub(super) fn sum_of_squares(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |sum, &x| sum + x * x)
}

/// Weights for a group: its importance, more where the values are large.
#[inline(always)]
pub(super) fn weigh<const N: usize>(imatrix: &[f32], sigma2: f32, x: &[f32; N]) -> [f32; N] {
    std::array::from_fn(|i| imatrix[i] * (sigma2 + x[i] * x[i]).sqrt())
}

/// Levels `-max..max` around zero, stored with `max` added (`make_qx_quants`, type 1): nineteen scales are tried. Returns the scale.
pub(super) fn symmetric<const N: usize>(max: i32, x: &[f32; N], weights: &[f32; N], levels: &mut [i8; N]) -> f32 {
    let extreme = extreme(x);
    if extreme.abs() < ZERO {
        *levels = [0; N];
        return 0.0;
    }
    let level = |inverse: f32, x: f32| nearest(inverse * x).clamp(-max, max - 1);
    let sums = |inverse: f32| {
        let (mut lx, mut l2) = (0.0, 0.0);
        for (&x, &w) in x.iter().zip(weights) {
            let l = level(inverse, x) as f32;
            lx += w * x * l;
            l2 += w * l * l;
        }
        (lx, l2)
    };
    let store = |inverse: f32, levels: &mut [i8; N]| {
        for (stored, &x) in levels.iter_mut().zip(x) {
            *stored = (level(inverse, x) + max) as i8;
        }
    };
    let inverse = -max as f32 / extreme;
    let (lx, l2) = sums(inverse);
    store(inverse, levels);
    let mut scale = if l2 == 0.0 { 0.0 } else { lx / l2 };
    let mut best = scale * lx;
    for step in (-9..=9).filter(|&step| step != 0) {
        let inverse = -(max as f32 + 0.1 * step as f32) / extreme;
        let (lx, l2) = sums(inverse);
        if l2 > 0.0 && lx * lx > best * l2 {
            store(inverse, levels);
            scale = lx / l2;
            best = scale * lx;
        }
    }
    scale
}

/// As [`symmetric`] with the squares as weights, by moving one level at a time (`make_q3_quants`). Returns the scale.
///
/// A group that counts as zero keeps levels of zero, without `max`.
pub(super) fn symmetric_by_descent<const N: usize>(max: i32, x: &[f32; N], levels: &mut [i8; N]) -> f32 {
    let extreme = extreme(x);
    if extreme.abs() < ZERO {
        *levels = [0; N];
        return 0.0;
    }
    let inverse = -max as f32 / extreme;
    let (mut sum_lx, mut sum_l2) = (0.0, 0.0);
    for (stored, &x) in levels.iter_mut().zip(x) {
        let l = nearest(inverse * x).clamp(-max, max - 1);
        *stored = l as i8;
        let w = x * x;
        sum_lx += w * x * l as f32;
        sum_l2 += w * l as f32 * l as f32;
    }
    for _ in 0..5 {
        let mut changed = false;
        for (stored, &x) in levels.iter_mut().zip(x) {
            let (w, old) = (x * x, f32::from(*stored));
            let mut lx = sum_lx - w * x * old;
            if lx > 0.0 {
                let mut l2 = sum_l2 - w * old * old;
                let new = nearest(x * l2 / lx).clamp(-max, max - 1);
                if new != i32::from(*stored) {
                    lx += w * x * new as f32;
                    l2 += w * new as f32 * new as f32;
                    if l2 > 0.0 && lx * lx * sum_l2 > sum_lx * sum_lx * l2 {
                        *stored = new as i8;
                        (sum_lx, sum_l2) = (lx, l2);
                        changed = true;
                    }
                }
            }
        }
        if !changed {
            break;
        }
    }
    for stored in levels {
        *stored += max as i8;
    }
    if sum_l2 > 0.0 { sum_lx / sum_l2 } else { 0.0 }
}

/// How [`affine`] searches.
#[derive(Debug, Clone, Copy)]
pub(super) struct Search {
    /// Largest level.
    pub max: i32,
    /// First step of the scale, in levels.
    pub first: f32,
    /// Width of a step, in levels.
    pub step: f32,
    /// Number of steps after the first.
    pub steps: i32,
    /// Whether errors count by magnitude rather than by square.
    pub absolute: bool,
    /// Whether levels are cut before they are rounded (`make_qkx3_quants`) or after (`make_qkx2_quants`).
    pub cut_first: bool,
}

/// Levels `0..=max` above a minimum that is never positive (`make_qkx2_quants`, `make_qkx3_quants`). Returns the scale and minus the minimum.
pub(super) fn affine<const N: usize>(
    search: Search,
    x: &[f32; N],
    weights: &[f32; N],
    levels: &mut [u8; N],
) -> (f32, f32) {
    let (min, max) = range(x);
    let (mut sum_w, mut sum_x) = (weights[0], weights[0] * x[0]);
    for (&x, &w) in x.iter().zip(weights).skip(1) {
        sum_w += w;
        sum_x += w * x;
    }
    let mut min = if min > 0.0 { 0.0 } else { min };
    if if search.cut_first { max <= min } else { max == min } {
        *levels = [0; N];
        return (0.0, -min);
    }
    let error = |scale: f32, min: f32, levels: &[u8; N]| {
        let mut error = 0.0;
        for ((&l, &x), &w) in levels.iter().zip(x).zip(weights) {
            let difference = scale * f32::from(l) + min - x;
            error += w * if search.absolute { difference.abs() } else { difference * difference };
        }
        error
    };
    let inverse = search.max as f32 / (max - min);
    let mut scale = 1.0 / inverse;
    for (stored, &x) in levels.iter_mut().zip(x) {
        *stored = nearest(inverse * (x - min)).clamp(0, search.max) as u8;
    }
    let mut best = error(scale, min, levels);
    for step in 0..=search.steps {
        // The minimum is the best one so far, not the smallest element.
        let inverse = (search.first + search.step * step as f32 + search.max as f32) / (max - min);
        let mut trial = [0; N];
        let (mut sum_l, mut sum_l2, mut sum_xl) = (0.0, 0.0, 0.0);
        for ((stored, &x), &w) in trial.iter_mut().zip(x).zip(weights) {
            let value = inverse * (x - min);
            let l = if !search.cut_first {
                nearest(value).clamp(0, search.max)
            } else if value > 0.0 {
                nearest(if value < search.max as f32 { value } else { search.max as f32 })
            } else {
                0
            };
            *stored = l as u8;
            let l = l as f32;
            sum_l += w * l;
            sum_l2 += w * l * l;
            sum_xl += w * l * x;
        }
        let determinant = sum_w * sum_l2 - sum_l * sum_l;
        if determinant > 0.0 {
            let mut new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
            let mut new_min = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
            if new_min > 0.0 {
                new_min = 0.0;
                new_scale = sum_xl / sum_l2;
            }
            let new_error = error(new_scale, new_min, &trial);
            if new_error < best {
                *levels = trial;
                (best, scale, min) = (new_error, new_scale, new_min);
            }
        }
    }
    (scale, -min)
}

/// Levels `0..=max` for scales or minimums, which are not negative (`make_qp_quants`). Returns their common scale.
pub(super) fn positive<const N: usize>(max: i32, x: &[f32; N], weights: &[f32; N], levels: &mut [u8; N]) -> f32 {
    let mut largest = 0.0;
    for &x in x {
        largest = if largest > x { largest } else { x };
    }
    if largest < ZERO {
        *levels = [0; N];
        return 0.0;
    }
    let mut inverse = max as f32 / largest;
    let squares = |inverse: f32, cut: bool| {
        let scale = 1.0 / inverse;
        let mut sum = 0.0;
        for (&x, &w) in x.iter().zip(weights) {
            // The first try stores its levels as bytes, the others cut them at the largest.
            let l = nearest(inverse * x);
            let l = if cut { l.min(max) } else { i32::from(l as u8) };
            let difference = x - scale * l as f32;
            sum += w * difference * difference;
        }
        sum
    };
    let mut best = squares(inverse, false);
    for step in (-4..=4).filter(|&step| step != 0) {
        let trial = (0.1 * step as f32 + max as f32) / largest;
        let error = squares(trial, true);
        if error < best {
            (best, inverse) = (error, trial);
        }
    }
    let (mut sum_lx, mut sum_l2) = (0.0, 0.0);
    for ((stored, &x), &w) in levels.iter_mut().zip(x).zip(weights) {
        let l = nearest(inverse * x).min(max);
        *stored = l as u8;
        sum_lx += w * x * l as f32;
        sum_l2 += w * l as f32 * l as f32;
    }
    for _ in 0..5 {
        let mut changed = false;
        for ((stored, &x), &w) in levels.iter_mut().zip(x).zip(weights) {
            let old = f32::from(*stored);
            let mut lx = sum_lx - w * x * old;
            let mut l2 = sum_l2 - w * old * old;
            if lx > 0.0 && l2 > 0.0 {
                let new = nearest(x * l2 / lx).min(max);
                if new != i32::from(*stored) {
                    lx += w * x * new as f32;
                    l2 += w * new as f32 * new as f32;
                    if lx * lx * sum_l2 > sum_lx * sum_lx * l2 {
                        *stored = new as u8;
                        (sum_lx, sum_l2) = (lx, l2);
                        changed = true;
                    }
                }
            }
        }
        if !changed {
            break;
        }
    }
    if sum_l2 > 0.0 { sum_lx / sum_l2 } else { 0.0 }
}
