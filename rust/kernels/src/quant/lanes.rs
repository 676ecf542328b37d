//! The searches of `search.rs` for eight groups at once: a lane is a group, so each group's sums keep their order and the bits stay the same.
//!
//! Written without branches on data, so that the loops over lanes vectorize when they are inlined into a function compiled for AVX2.

use super::search::{Search, ZERO, nearest};

/// Groups that are searched together.
pub(super) const LANES: usize = 8;

/// One number for each group.
type Lanes = [f32; LANES];

/// Turns groups into lanes: `[group][i]` to `[i][group]`.
#[inline(always)]
fn transposed<const N: usize>(groups: &[[f32; N]; LANES]) -> [Lanes; N] {
    std::array::from_fn(|i| std::array::from_fn(|k| groups[k][i]))
}

/// [`nearest`] as a float.
#[inline(always)]
fn nearest_level(value: f32, low: i32, high: i32) -> f32 {
    nearest(value).max(low).min(high) as f32
}

/// The error of each group, summed in order.
#[inline(always)]
fn error<const N: usize>(
    absolute: bool,
    x: &[Lanes; N],
    w: &[Lanes; N],
    scale: &Lanes,
    min: &Lanes,
    levels: &[Lanes; N],
) -> Lanes {
    let mut error = [0f32; LANES];
    for i in 0..N {
        for k in 0..LANES {
            let difference = scale[k] * levels[i][k] + min[k] - x[i][k];
            error[k] += w[i][k] * if absolute { difference.abs() } else { difference * difference };
        }
    }
    error
}

/// The sums that give a symmetric scale: of values times levels, and of squared levels.
#[inline(always)]
fn sums<const N: usize>(max: i32, x: &[Lanes; N], w: &[Lanes; N], inverse: &Lanes) -> (Lanes, Lanes) {
    let (mut lx, mut l2) = ([0f32; LANES], [0f32; LANES]);
    for i in 0..N {
        for k in 0..LANES {
            let l = nearest_level(inverse[k] * x[i][k], -max, max - 1);
            lx[k] += w[i][k] * x[i][k] * l;
            l2[k] += w[i][k] * l * l;
        }
    }
    (lx, l2)
}

/// [`super::search::affine`] for eight groups. Returns the scales and minus the minimums.
#[inline(always)]
pub(super) fn affine<const N: usize>(
    search: Search,
    groups: &[[f32; N]; LANES],
    weights: &[[f32; N]; LANES],
    levels: &mut [[u8; N]; LANES],
) -> (Lanes, Lanes) {
    let (x, w) = (transposed(groups), transposed(weights));
    let largest = search.max as f32;
    let (mut min, mut max) = (x[0], x[0]);
    let mut sum_w = w[0];
    let mut sum_x: Lanes = std::array::from_fn(|k| w[0][k] * x[0][k]);
    for i in 1..N {
        for k in 0..LANES {
            min[k] = if x[i][k] < min[k] { x[i][k] } else { min[k] };
            max[k] = if x[i][k] > max[k] { x[i][k] } else { max[k] };
            sum_w[k] += w[i][k];
            sum_x[k] += w[i][k] * x[i][k];
        }
    }
    min = min.map(|min| if min > 0.0 { 0.0 } else { min });
    let flat: [bool; LANES] =
        std::array::from_fn(|k| if search.cut_first { max[k] <= min[k] } else { max[k] == min[k] });
    let lowest = min;
    let inverse: Lanes = std::array::from_fn(|k| largest / (max[k] - min[k]));
    let mut scale: Lanes = inverse.map(|inverse| 1.0 / inverse);
    let mut kept = [[0f32; LANES]; N];
    for i in 0..N {
        for k in 0..LANES {
            kept[i][k] = nearest_level(inverse[k] * (x[i][k] - min[k]), 0, search.max);
        }
    }
    let mut best = error(search.absolute, &x, &w, &scale, &min, &kept);
    for step in 0..=search.steps {
        let width = search.first + search.step * step as f32 + largest;
        let inverse: Lanes = std::array::from_fn(|k| width / (max[k] - min[k]));
        let mut trial = [[0f32; LANES]; N];
        let (mut sum_l, mut sum_l2, mut sum_xl) = ([0f32; LANES], [0f32; LANES], [0f32; LANES]);
        for i in 0..N {
            for k in 0..LANES {
                let value = inverse[k] * (x[i][k] - min[k]);
                let l = if search.cut_first {
                    // Not positive, or NaN: level zero. The sum and difference round as `nearest` does.
                    let cut = if value < largest { value } else { largest };
                    let cut = if value > 0.0 { cut } else { 0.0 };
                    (cut + 12_582_912.0) - 12_582_912.0
                } else {
                    nearest_level(value, 0, search.max)
                };
                trial[i][k] = l;
                sum_l[k] += w[i][k] * l;
                sum_l2[k] += w[i][k] * l * l;
                sum_xl[k] += w[i][k] * l * x[i][k];
            }
        }
        let (mut new_scale, mut new_min, mut solvable) = ([0f32; LANES], [0f32; LANES], [false; LANES]);
        for k in 0..LANES {
            let determinant = sum_w[k] * sum_l2[k] - sum_l[k] * sum_l[k];
            let fitted_min = (sum_l2[k] * sum_x[k] - sum_l[k] * sum_xl[k]) / determinant;
            let fitted_scale = (sum_w[k] * sum_xl[k] - sum_x[k] * sum_l[k]) / determinant;
            let positive = fitted_min > 0.0;
            new_min[k] = if positive { 0.0 } else { fitted_min };
            new_scale[k] = if positive { sum_xl[k] / sum_l2[k] } else { fitted_scale };
            solvable[k] = determinant > 0.0;
        }
        let new_error = error(search.absolute, &x, &w, &new_scale, &new_min, &trial);
        let better: [bool; LANES] = std::array::from_fn(|k| solvable[k] && new_error[k] < best[k]);
        if better == [false; LANES] {
            continue;
        }
        for k in 0..LANES {
            best[k] = if better[k] { new_error[k] } else { best[k] };
            scale[k] = if better[k] { new_scale[k] } else { scale[k] };
            min[k] = if better[k] { new_min[k] } else { min[k] };
        }
        for i in 0..N {
            for k in 0..LANES {
                kept[i][k] = if better[k] { trial[i][k] } else { kept[i][k] };
            }
        }
    }
    for k in 0..LANES {
        if flat[k] {
            levels[k] = [0; N];
            (scale[k], min[k]) = (0.0, lowest[k]);
        } else {
            levels[k] = std::array::from_fn(|i| kept[i][k] as u8);
        }
    }
    (scale, min.map(|min| -min))
}

/// [`super::search::symmetric`] for eight groups. Returns the scales.
#[inline(always)]
pub(super) fn symmetric<const N: usize>(
    max: i32,
    groups: &[[f32; N]; LANES],
    weights: &[[f32; N]; LANES],
    levels: &mut [[i8; N]; LANES],
) -> Lanes {
    let (x, w) = (transposed(groups), transposed(weights));
    let mut extreme = [0f32; LANES];
    for x in &x {
        for k in 0..LANES {
            extreme[k] = if x[k].abs() > extreme[k].abs() { x[k] } else { extreme[k] };
        }
    }
    let mut kept: Lanes = extreme.map(|extreme| -max as f32 / extreme);
    let (lx, l2) = sums(max, &x, &w, &kept);
    let mut scale: Lanes = std::array::from_fn(|k| if l2[k] == 0.0 { 0.0 } else { lx[k] / l2[k] });
    let mut best: Lanes = std::array::from_fn(|k| scale[k] * lx[k]);
    for step in (-9..=9).filter(|&step| step != 0) {
        let numerator = -(max as f32 + 0.1 * step as f32);
        let inverse: Lanes = extreme.map(|extreme| numerator / extreme);
        let (lx, l2) = sums(max, &x, &w, &inverse);
        for k in 0..LANES {
            let better = l2[k] > 0.0 && lx[k] * lx[k] > best[k] * l2[k];
            let new = lx[k] / l2[k];
            scale[k] = if better { new } else { scale[k] };
            best[k] = if better { new * lx[k] } else { best[k] };
            kept[k] = if better { inverse[k] } else { kept[k] };
        }
    }
    for k in 0..LANES {
        if extreme[k].abs() < ZERO {
            levels[k] = [0; N];
            scale[k] = 0.0;
        } else {
            levels[k] = groups[k].map(|x| (nearest(kept[k] * x).clamp(-max, max - 1) + max) as i8);
        }
    }
    scale
}

/// [`affine`] for any multiple of eight groups.
#[inline(always)]
pub(super) fn affine_groups<const N: usize>(
    search: Search,
    groups: &[[f32; N]],
    weights: &[[f32; N]],
    levels: &mut [[u8; N]],
    scales: &mut [f32],
    mins: &mut [f32],
) {
    let inputs = groups.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0);
    let outputs = scales.as_chunks_mut::<LANES>().0.iter_mut().zip(mins.as_chunks_mut::<LANES>().0);
    for (((x, w), levels), (scales, mins)) in inputs.zip(levels.as_chunks_mut::<LANES>().0).zip(outputs) {
        (*scales, *mins) = affine(search, x, w, levels);
    }
}

/// [`symmetric`] for any multiple of eight groups.
#[inline(always)]
pub(super) fn symmetric_groups<const N: usize>(
    max: i32,
    groups: &[[f32; N]],
    weights: &[[f32; N]],
    levels: &mut [[i8; N]],
    scales: &mut [f32],
) {
    let inputs = groups.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0);
    let outputs = levels.as_chunks_mut::<LANES>().0.iter_mut().zip(scales.as_chunks_mut::<LANES>().0);
    for ((x, w), (levels, scales)) in inputs.zip(outputs) {
        *scales = symmetric(max, x, w, levels);
    }
}

#[cfg(test)]
mod tests {
    use super::super::search;
    use super::*;
    use proptest::prelude::*;

    fn groups(values: &[f32]) -> [[f32; 16]; LANES] {
        std::array::from_fn(|k| std::array::from_fn(|i| values[16 * k + i]))
    }

    /// Values of every magnitude, with zeros, repeats and whole groups of one value.
    fn values() -> impl Strategy<Value = Vec<f32>> {
        let value = prop_oneof![
            Just(0.0f32),
            Just(0.5f32),
            -1f32..1.0,
            0f32..3e-8,
            any::<i8>().prop_map(f32::from),
            any::<f32>().prop_filter("finite", |v| v.is_finite()),
        ];
        let groups = prop_oneof![prop::collection::vec(value.clone(), 16), value.prop_map(|v| vec![v; 16])];
        prop::collection::vec(groups, LANES).prop_map(|groups| groups.concat())
    }

    fn bits(values: &Lanes) -> [u32; LANES] {
        // Which NaN an overflow leaves is nobody's business.
        values.map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() })
    }

    proptest! {
        #[test]
        fn lanes_search_as_single_groups_do(x in values(), w in values(), cut_first: bool, absolute: bool) {
            let (x, w) = (groups(&x), groups(&w).map(|w| w.map(f32::abs)));
            let search = Search { max: 15, first: -0.9, step: 0.05, steps: 36, absolute, cut_first };
            let (mut found, mut expected) = ([[0; 16]; LANES], [[0; 16]; LANES]);
            let (scales, mins) = affine(search, &x, &w, &mut found);
            let single: [_; LANES] = std::array::from_fn(|k| search::affine(search, &x[k], &w[k], &mut expected[k]));
            prop_assert_eq!(found, expected);
            prop_assert_eq!(bits(&scales), bits(&single.map(|(scale, _)| scale)));
            prop_assert_eq!(bits(&mins), bits(&single.map(|(_, min)| min)));

            let (mut found, mut expected) = ([[0; 16]; LANES], [[0; 16]; LANES]);
            let scales = symmetric(32, &x, &w, &mut found);
            let single: [_; LANES] = std::array::from_fn(|k| search::symmetric(32, &x[k], &w[k], &mut expected[k]));
            prop_assert_eq!(found, expected);
            prop_assert_eq!(bits(&scales), bits(&single));
        }
    }
}
