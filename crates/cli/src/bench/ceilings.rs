//! What a device reaches at best, measured beside everything else.

use burn::tensor::{DType, Distribution, Tensor};
use dsv41::ModelBackend;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::timing::{REPEATS, time};
use crate::device::{DeviceError, DeviceName, DeviceTask, Precision};

/// Numbers copied: 128 MiB of f32, more than caches hold.
const COPIED: usize = 1 << 25;
/// Numbers that a thread of the host copies at a time.
const CHUNK: usize = 1 << 18;

/// The speeds that others are a share of.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Ceilings {
    /// Bytes read and bytes written, added, while a large tensor is copied.
    pub(super) copied_bytes_per_second: f64,
    /// Operations of a large product of two f32 matrices.
    pub(super) product_operations_per_second: f64,
}

impl Ceilings {
    /// Measures them, by medians.
    ///
    /// # Errors
    /// When the device cannot be used.
    pub(super) fn measure(device: DeviceName) -> Result<Self, DeviceError> {
        device.dispatch(Precision::F32, Measure { is_cpu: device.is_cpu() })
    }
}

struct Measure {
    is_cpu: bool,
}

impl DeviceTask for Measure {
    type Output = Ceilings;

    fn run<B: ModelBackend>(self, device: B::Device, dtype: DType) -> Ceilings {
        // A device that fails here fails in what is measured next, which says so.
        let finish = || drop(B::sync(&device));
        let options = (&device, dtype);
        let copying = if self.is_cpu {
            // Tensor operations of CPU backends copy on one core, and the memory is all cores'.
            let from = vec![1.0_f32; COPIED];
            let mut to = vec![0.0_f32; COPIED];
            time(REPEATS, || {
                let chunks = to.par_chunks_mut(CHUNK).zip(from.par_chunks(CHUNK));
                chunks.for_each(|(to, from)| to.copy_from_slice(from));
            })
        } else {
            let from = Tensor::<B, 1>::ones([COPIED], options);
            finish();
            time(REPEATS, || {
                // While `from` is held, the sum cannot take its place.
                drop(from.clone().add_scalar(1.0));
                finish();
            })
        };
        let side = if self.is_cpu { 1024 } else { 4096 };
        let matrix = || Tensor::<B, 2>::random([side, side], Distribution::Default, options);
        let (left, right) = (matrix(), matrix());
        finish();
        let product = time(REPEATS, || {
            drop(left.clone().matmul(right.clone()));
            finish();
        });
        let seconds = |median: std::time::Duration| median.as_secs_f64().max(1e-9);
        Ceilings {
            copied_bytes_per_second: (2 * COPIED * size_of::<f32>()) as f64 / seconds(copying.median),
            product_operations_per_second: 2.0 * (side as f64).powi(3) / seconds(product.median),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "flex")]
    #[test]
    fn a_cpu_copies_and_multiplies() {
        let ceilings = Ceilings::measure(DeviceName::Flex).unwrap();
        for rate in [ceilings.copied_bytes_per_second, ceilings.product_operations_per_second] {
            assert!((1e8..1e14).contains(&rate), "{ceilings:?}");
        }
    }

    #[test]
    fn what_is_not_there_says_so() {
        if !cfg!(feature = "cuda") {
            assert!(matches!(Ceilings::measure(DeviceName::Cuda(0)), Err(DeviceError::NotCompiled { .. })));
        }
    }
}
