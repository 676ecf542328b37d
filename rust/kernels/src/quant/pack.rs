//! Where the bits of small levels go, shared by layouts that agree on it.

/// Levels `j` and `j + 16` share byte `j`, the former low.
#[inline(always)]
pub(super) fn nibbles(levels: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|j| levels[j] & 0xf | levels[j + 16] << 4)
}

/// Bit `j` of the result is the fifth bit of level `j`.
#[inline(always)]
pub(super) fn fifth_bits(levels: &[u8; 32]) -> [u8; 4] {
    let bits = levels.iter().enumerate().fold(0, |bits, (j, &level)| bits | u32::from(level >> 4 & 1) << j);
    bits.to_le_bytes()
}

/// In each half of a super-block, levels `l`, `l + 32`, `l + 64` and `l + 96` share byte `l`, two bits each, the first lowest.
#[inline(always)]
pub(super) fn pairs(levels: &[u8; 256], qs: &mut [u8]) {
    for (levels, qs) in levels.as_chunks::<128>().0.iter().zip(qs.chunks_exact_mut(32)) {
        for (l, q) in qs.iter_mut().enumerate() {
            *q = levels[l] & 3 | (levels[l + 32] & 3) << 2 | (levels[l + 64] & 3) << 4 | (levels[l + 96] & 3) << 6;
        }
    }
}

/// The inverse of [`pairs`].
#[inline(always)]
pub(super) fn unpack_pairs(qs: &[u8], levels: &mut [u8; 256]) {
    for (levels, qs) in levels.as_chunks_mut::<128>().0.iter_mut().zip(qs.as_chunks::<32>().0) {
        for (l, &q) in qs.iter().enumerate() {
            levels[l] = q & 3;
            levels[l + 32] = q >> 2 & 3;
            levels[l + 64] = q >> 4 & 3;
            levels[l + 96] = q >> 6;
        }
    }
}

/// In each quarter of a super-block, levels `l` and `l + 32` share byte `l`, the former low.
#[inline(always)]
pub(super) fn quarter_nibbles(levels: &[u8; 256], qs: &mut [u8]) {
    for (levels, qs) in levels.as_chunks::<64>().0.iter().zip(qs.chunks_exact_mut(32)) {
        for (l, q) in qs.iter_mut().enumerate() {
            *q = levels[l] & 0xf | levels[l + 32] << 4;
        }
    }
}

/// Bit `j / 32` of byte `j % 32` is bit `bit` of level `j`.
#[inline(always)]
pub(super) fn high_bits(levels: &[u8; 256], bit: u32, bytes: &mut [u8]) {
    bytes.fill(0);
    for (group, levels) in levels.as_chunks::<32>().0.iter().enumerate() {
        for (byte, level) in bytes.iter_mut().zip(levels) {
            *byte |= (level >> bit & 1) << group;
        }
    }
}
