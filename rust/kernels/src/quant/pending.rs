//! Sizes of types whose values are not read yet.

use super::format::TypeInfo;

pub(super) const Q4_0: TypeInfo = TypeInfo::storage(2, "Q4_0", 32, 18);
pub(super) const Q4_1: TypeInfo = TypeInfo::storage(3, "Q4_1", 32, 20);
pub(super) const Q5_0: TypeInfo = TypeInfo::storage(6, "Q5_0", 32, 22);
pub(super) const Q5_1: TypeInfo = TypeInfo::storage(7, "Q5_1", 32, 24);
pub(super) const Q8_0: TypeInfo = TypeInfo::storage(8, "Q8_0", 32, 34);
pub(super) const Q8_1: TypeInfo = TypeInfo::storage(9, "Q8_1", 32, 36);
pub(super) const Q2_K: TypeInfo = TypeInfo::storage(10, "Q2_K", 256, 84);
pub(super) const Q3_K: TypeInfo = TypeInfo::storage(11, "Q3_K", 256, 110);
pub(super) const Q4_K: TypeInfo = TypeInfo::storage(12, "Q4_K", 256, 144);
pub(super) const Q5_K: TypeInfo = TypeInfo::storage(13, "Q5_K", 256, 176);
pub(super) const Q6_K: TypeInfo = TypeInfo::storage(14, "Q6_K", 256, 210);
pub(super) const Q8_K: TypeInfo = TypeInfo::storage(15, "Q8_K", 256, 292);
pub(super) const IQ2_XXS: TypeInfo = TypeInfo::storage(16, "IQ2_XXS", 256, 66);
pub(super) const IQ2_XS: TypeInfo = TypeInfo::storage(17, "IQ2_XS", 256, 74);
pub(super) const IQ3_XXS: TypeInfo = TypeInfo::storage(18, "IQ3_XXS", 256, 98);
pub(super) const IQ1_S: TypeInfo = TypeInfo::storage(19, "IQ1_S", 256, 50);
pub(super) const IQ4_NL: TypeInfo = TypeInfo::storage(20, "IQ4_NL", 32, 18);
pub(super) const IQ3_S: TypeInfo = TypeInfo::storage(21, "IQ3_S", 256, 110);
pub(super) const IQ2_S: TypeInfo = TypeInfo::storage(22, "IQ2_S", 256, 82);
pub(super) const IQ4_XS: TypeInfo = TypeInfo::storage(23, "IQ4_XS", 256, 136);
pub(super) const IQ1_M: TypeInfo = TypeInfo::storage(29, "IQ1_M", 256, 56);
pub(super) const TQ1_0: TypeInfo = TypeInfo::storage(34, "TQ1_0", 256, 54);
pub(super) const TQ2_0: TypeInfo = TypeInfo::storage(35, "TQ2_0", 256, 66);
pub(super) const MXFP4: TypeInfo = TypeInfo::storage(39, "MXFP4", 32, 17);
pub(super) const NVFP4: TypeInfo = TypeInfo::storage(40, "NVFP4", 64, 36);
pub(super) const Q1_0: TypeInfo = TypeInfo::storage(41, "Q1_0", 128, 18);
pub(super) const Q2_0: TypeInfo = TypeInfo::storage(42, "Q2_0", 64, 18);
