//! Memory: zeroed bytes on cache lines, shared by workers that touch disjoint parts.

use convoy_kernels::Slot;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

/// Zeroed bytes, aligned to cache lines; large ones to huge pages.
#[derive(Debug)]
pub struct Memory {
    data: *mut u8,
    bytes: usize,
    layout: Layout,
}

/// From this size on, memory is aligned for huge pages.
const HUGE: usize = 2 << 20;

// SAFETY: a `Memory` owns its bytes; who may touch which is decided by those who take slots of it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// So many zero bytes.
    pub fn zeroed(bytes: usize) -> Memory {
        let align = if bytes >= HUGE { HUGE } else { 64 };
        let layout = Layout::from_size_align(bytes.max(64), align).expect("bug: a size beyond addresses");
        // SAFETY: the layout is not empty.
        let data = unsafe { alloc_zeroed(layout) };
        if data.is_null() {
            handle_alloc_error(layout);
        }
        Memory { data, bytes, layout }
    }

    /// Bytes in all.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// `bytes` bytes from `start`.
    pub fn slot(&self, start: usize, bytes: usize) -> Slot {
        assert!(start + bytes <= self.bytes, "bug: bytes {start}..{} of {}", start + bytes, self.bytes);
        // SAFETY: inside the allocation, as asserted.
        Slot { data: unsafe { self.data.add(start) }, bytes }
    }

    /// All of it as floats.
    pub fn floats(&self) -> &[f32] {
        // SAFETY: aligned, initialised, and shared borrows of `self` are taken only between steps.
        unsafe { std::slice::from_raw_parts(self.data as *const f32, self.bytes / 4) }
    }

    /// All of it as floats to change.
    pub fn floats_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.data as *mut f32, self.bytes / 4) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout.
        unsafe { dealloc(self.data, self.layout) }
    }
}
