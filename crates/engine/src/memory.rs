//! Memory: zeroed bytes on cache lines, shared by workers that touch disjoint parts.

use convoy_kernels::Slot;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::sync::LazyLock;

/// Zeroed bytes, aligned to cache lines; large ones in huge pages where the system has them.
#[derive(Debug)]
pub struct Memory {
    data: *mut u8,
    bytes: usize,
    layout: Layout,
}

/// From this size on, memory is asked to be in huge pages. That made steps of resnet18-cifar some 10 % faster, of mobilenet-v2 some 5 %.
const HUGE: usize = 2 << 20;
/// At least a page, on every system.
const PAGE: usize = 64 << 10;

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
        let data = unsafe { alloc(layout) };
        if data.is_null() {
            handle_alloc_error(layout);
        }
        if bytes >= HUGE {
            // Before they are touched for the first time.
            advise(data, bytes, Advice::HugePages);
        }
        // SAFETY: allocated just now, as large.
        unsafe { std::ptr::write_bytes(data, 0, layout.size()) };
        Memory { data, bytes, layout }
    }

    /// Lends large memory to others until it is touched again; what is in it is lost.
    pub fn give_back(&mut self) {
        if self.bytes >= HUGE {
            advise(self.data, self.bytes / PAGE * PAGE, Advice::DontNeed);
        }
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

/// What the system may be told about pages.
#[derive(Clone, Copy)]
enum Advice {
    DontNeed = 4,
    HugePages = 14,
}

/// Advises; where the system does not listen, pages are as they are.
fn advise(data: *mut u8, bytes: usize, advice: Advice) {
    #[cfg(target_os = "linux")]
    {
        unsafe extern "C" {
            fn madvise(start: *mut u8, len: usize, advice: i32) -> i32;
        }
        // SAFETY: memory of ours; who advises that it is not needed knows that nobody needs it.
        unsafe { madvise(data, bytes, advice as i32) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (data, bytes, advice);
}

/// Lets the allocator give large memory back to the system as soon as it is freed, and not keep it for later. Without this a rank held
/// its weights once more, from the first checkpoint on.
pub fn return_what_is_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const M_MMAP_THRESHOLD: i32 = -3;
        unsafe extern "C" {
            fn mallopt(parameter: i32, value: i32) -> i32;
        }
        // SAFETY: it sets a number of the allocator.
        unsafe { mallopt(M_MMAP_THRESHOLD, 1 << 20) };
    }
}

/// Reads more memory than caches hold, line by line.
pub fn empty_caches() {
    static MUCH: LazyLock<Vec<u64>> = LazyLock::new(|| vec![1; 8 << 20]);
    std::hint::black_box(MUCH.iter().step_by(8).sum::<u64>());
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout.
        unsafe { dealloc(self.data, self.layout) }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_zero_again_and_ours() {
        let mut memory = Memory::zeroed(3 * HUGE + 12);
        memory.floats_mut().fill(1.0);
        memory.give_back();
        let whole_pages = (3 * HUGE + 12) / PAGE * PAGE / 4;
        assert!(memory.floats()[..whole_pages].iter().all(|&x| x == 0.0));
        memory.floats_mut().fill(2.0);
        assert!(memory.floats().iter().all(|&x| x == 2.0));
    }
}
