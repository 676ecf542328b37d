//! The target's features on their way into a drafter.

use super::config::FeatureControl;
use crate::noise::Noise;

/// Joins the taps of each row, `[taps, rows, hidden]` to `[rows, taps * hidden]`, under a control.
pub fn join(features: &[f32], num_taps: usize, rows: usize, control: FeatureControl, joined: &mut Vec<f32>) {
    joined.clear();
    joined.resize(features.len(), 0.0);
    if features.is_empty() || control == FeatureControl::Zero {
        return;
    }
    let hidden = features.len() / (num_taps * rows);
    let order = (control == FeatureControl::Shuffle).then(|| shuffled(hidden));
    for tap in 0..num_taps {
        for row in 0..rows {
            let from = &features[(tap * rows + row) * hidden..][..hidden];
            let to = &mut joined[(row * num_taps + tap) * hidden..][..hidden];
            match &order {
                None => to.copy_from_slice(from),
                Some(order) => to.iter_mut().zip(order).for_each(|(to, &channel)| *to = from[channel]),
            }
        }
    }
}

/// A fixed permutation without structure: Fisher-Yates on keyed bits.
fn shuffled(n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    let noise = Noise::new(SHUFFLE_SEED, 0);
    for last in (1..n).rev() {
        let bits = noise.bits(last as u32, 0);
        order.swap(last, ((u64::from(bits) * (last as u64 + 1)) >> 32) as usize);
    }
    order
}

/// Any number: the permutation only has to be the same everywhere.
const SHUFFLE_SEED: u64 = 0x0064_7261_6674;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taps_of_a_row_stand_side_by_side() {
        // Two taps, three rows, two channels: value = 100 tap + 10 row + channel.
        let features: Vec<f32> = (0..12).map(|i| (100 * (i / 6) + 10 * (i % 6 / 2) + i % 2) as f32).collect();
        let mut joined = Vec::new();
        join(&features, 2, 3, FeatureControl::Real, &mut joined);
        assert_eq!(joined, [0.0, 1.0, 100.0, 101.0, 10.0, 11.0, 110.0, 111.0, 20.0, 21.0, 120.0, 121.0]);
        join(&features, 2, 3, FeatureControl::Zero, &mut joined);
        assert_eq!(joined, [0.0; 12]);
    }

    #[test]
    fn shuffling_moves_channels_the_same_way_in_every_row_and_chunk() {
        let hidden = 64;
        let features: Vec<f32> = (0..3 * hidden).map(|i| (i % hidden) as f32).collect();
        let mut joined = Vec::new();
        join(&features, 1, 3, FeatureControl::Shuffle, &mut joined);
        let (first, rest) = joined.split_at(hidden);
        assert_eq!(first, &rest[..hidden]);
        let mut sorted = first.to_vec();
        sorted.sort_by(f32::total_cmp);
        assert_eq!(sorted, features[..hidden]);
        assert!(first.iter().zip(&features).filter(|(a, b)| a == b).count() < 8);
        join(&features[..hidden], 1, 1, FeatureControl::Shuffle, &mut sorted);
        assert_eq!(sorted, first);
    }
}
