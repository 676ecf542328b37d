//! The same programs on candle tensors.
