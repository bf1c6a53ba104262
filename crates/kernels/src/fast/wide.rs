//! Wide: kernels of plain loops, compiled once more for the vectors that this processor has.
//!
//! Always true
//! - A wider vector changes no bit: the loops have no fused multiply-add and the compiler adds none.

use super::isa::fence;
#[cfg(target_arch = "x86_64")]
use super::isa::{Set, set};
use crate::{Kernel, Operands};

/// A kernel of plain loops. Everything it calls in its loops should be `#[inline(always)]`, or it stays narrow.
pub trait Plain: Send + Sync {
    /// As [`Kernel::run`]; to be marked `#[inline(always)]`.
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]);
}

/// A plain kernel that runs with the widest vectors there are.
pub struct Wide<K>(pub K);

impl<K: Plain> Kernel for Wide<K> {
    fn run(&self, tile: usize, operands: &Operands, scratch: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        if set() >= Set::Avx2 {
            // SAFETY: the processor has these instructions.
            unsafe { run_avx2(&self.0, tile, operands, scratch) };
            return fence();
        }
        self.0.run(tile, operands, scratch);
        fence();
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn run_avx2<K: Plain>(kernel: &K, tile: usize, operands: &Operands, scratch: &mut [f32]) {
    kernel.run(tile, operands, scratch);
}
