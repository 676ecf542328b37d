//! Slices that several threads write to at once, each its own part.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice whose exclusive borrow is shared out among threads.
///
/// Copies of it all reach the whole slice; who takes a part promises that nobody else touches that part meanwhile.
#[derive(Debug)]
pub struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

impl<T> Clone for Shared<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<'_, T> {}

// SAFETY: it is a mutable borrow of a slice, and whoever reaches into it has promised to have its part alone.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above; nothing is reached without such a promise.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Shares a slice out for as long as it is borrowed.
    #[must_use]
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What begins at `start`.
    ///
    /// # Panics
    /// When `start` lies outside the slice.
    #[must_use]
    pub fn starting_at(self, start: usize) -> Self {
        assert!(start <= self.len, "{start} of {}", self.len);
        // SAFETY: the address lies within the borrowed slice, or just past its end.
        Self { start: unsafe { self.start.add(start) }, len: self.len - start, borrow: PhantomData }
    }

    /// A part to read.
    ///
    /// # Panics
    /// When the range lies outside the slice.
    ///
    /// # Safety
    /// Nobody writes to the part while the result lives.
    #[must_use]
    pub unsafe fn slice(&self, range: Range<usize>) -> &'a [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: the range lies within the borrowed slice, and the caller keeps writers away.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }

    /// A part to write.
    ///
    /// # Panics
    /// When the range lies outside the slice.
    ///
    /// # Safety
    /// Nobody else reads or writes the part while the result lives.
    #[must_use]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice_mut(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: the range lies within the borrowed slice, and the caller keeps everybody else away.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    /// The first element's address, for writes to parts that are no ranges.
    #[must_use]
    pub fn as_ptr(&self) -> *mut T {
        self.start
    }
}
