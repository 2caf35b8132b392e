//! The one place that names backends: from `--device` to a backend type.
//!
//! A comma-separated list is what clap makes of `Vec<DeviceName>` with `value_delimiter = ','`.

use std::{fmt, str::FromStr};

use burn::tensor::DType;
use dsv41::ModelBackend;

/// A device that computes, as `--device` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceName {
    /// `ndarray`: the CPU, plain and portable.
    NdArray,
    /// `flex`: the CPU, faster.
    Flex,
    /// `wgpu` or `wgpu:N`: a GPU through Vulkan, Metal or DirectX.
    Wgpu(usize),
    /// `cuda` or `cuda:N`: an NVIDIA GPU.
    Cuda(usize),
}

/// Floating-point width of weights and results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// 64 bits, on CPU devices.
    F64,
}

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DeviceError {
    /// The name means nothing.
    #[error("unknown device `{name}`: expected ndarray, flex, wgpu[:N] or cuda[:N]")]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The program was built without it.
    #[error("device `{device}` is not compiled in: build with `--features {feature}`")]
    NotCompiled {
        /// What was asked for.
        device: DeviceName,
        /// The cargo feature that adds it.
        feature: &'static str,
    },
    /// The machine does not have it.
    #[error("device `{device}` is not present: {needs}")]
    Absent {
        /// What was asked for.
        device: DeviceName,
        /// Hardware or software that is missing.
        needs: String,
    },
    /// It has no such numbers.
    #[error("device `{device}` has no f64: use ndarray or flex")]
    NoDoublePrecision {
        /// What was asked for.
        device: DeviceName,
    },
}

/// Work to do on a device, whatever its backend.
pub trait DeviceTask {
    /// What comes of it.
    type Output;

    /// Does the work on `device`; tensors are to be made in `dtype`.
    fn run<B: ModelBackend>(self, device: B::Device, dtype: DType) -> Self::Output;
}

impl DeviceName {
    /// The devices that this program was built with, the default one first. Whether the machine has them is another
    /// matter: [`DeviceName::dispatch`] finds out.
    pub fn compiled() -> Vec<Self> {
        [
            (cfg!(feature = "flex"), Self::Flex),
            (cfg!(feature = "ndarray"), Self::NdArray),
            (cfg!(feature = "wgpu"), Self::Wgpu(0)),
            (cfg!(feature = "cuda"), Self::Cuda(0)),
        ]
        .into_iter()
        .filter_map(|(compiled, device)| compiled.then_some(device))
        .collect()
    }

    /// Runs `task` on this device.
    ///
    /// # Errors
    /// When the device is not compiled in, not present, or has no numbers of that precision.
    pub fn dispatch<T: DeviceTask>(self, precision: Precision, task: T) -> Result<T::Output, DeviceError> {
        let dtype = match precision {
            Precision::F32 => DType::F32,
            Precision::F64 => DType::F64,
        };
        match (self, precision) {
            #[cfg(feature = "ndarray")]
            (Self::NdArray, Precision::F32) => Ok(task.run::<burn::backend::NdArray<f32>>(Default::default(), dtype)),
            #[cfg(feature = "ndarray")]
            (Self::NdArray, Precision::F64) => Ok(task.run::<burn::backend::NdArray<f64>>(Default::default(), dtype)),
            #[cfg(feature = "flex")]
            (Self::Flex, _) => Ok(task.run::<burn::backend::Flex>(Default::default(), dtype)),
            (Self::Wgpu(_) | Self::Cuda(_), Precision::F64) => Err(DeviceError::NoDoublePrecision { device: self }),
            #[cfg(feature = "wgpu")]
            (Self::Wgpu(index), _) => {
                let device = present::wgpu(self, index)?;
                Ok(task.run::<burn::backend::Wgpu>(device, dtype))
            }
            #[cfg(feature = "cuda")]
            (Self::Cuda(index), _) => {
                let device = present::cuda(self, index)?;
                Ok(task.run::<burn::backend::Cuda>(device, dtype))
            }
            #[cfg(not(all(feature = "ndarray", feature = "flex", feature = "wgpu", feature = "cuda")))]
            (device, _) => Err(DeviceError::NotCompiled { device, feature: device.feature() }),
        }
    }

    /// Whether it is the host itself.
    pub fn is_cpu(self) -> bool {
        matches!(self, Self::NdArray | Self::Flex)
    }

    fn feature(self) -> &'static str {
        match self {
            Self::NdArray => "ndarray",
            Self::Flex => "flex",
            Self::Wgpu(_) => "wgpu",
            Self::Cuda(_) => "cuda",
        }
    }
}

impl FromStr for DeviceName {
    type Err = DeviceError;

    fn from_str(name: &str) -> Result<Self, DeviceError> {
        let unknown = || DeviceError::Unknown { name: name.to_owned() };
        let (kind, index) = match name.split_once(':') {
            Some((kind, index)) => (kind, Some(index.parse().map_err(|_| unknown())?)),
            None => (name, None),
        };
        match (kind, index) {
            ("ndarray", None) => Ok(Self::NdArray),
            ("flex", None) => Ok(Self::Flex),
            ("wgpu", index) => Ok(Self::Wgpu(index.unwrap_or(0))),
            ("cuda", index) => Ok(Self::Cuda(index.unwrap_or(0))),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wgpu(index) | Self::Cuda(index) if *index > 0 => write!(f, "{}:{index}", self.feature()),
            _ => f.write_str(self.feature()),
        }
    }
}

/// Finds out whether the machine has a GPU before a backend is started on it: backends panic in a thread of their own
/// where it has none.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod present {
    #[cfg(feature = "cuda")]
    use burn::backend::cuda::CudaDevice;
    #[cfg(feature = "wgpu")]
    use burn::backend::wgpu::WgpuDevice;

    use super::{DeviceError, DeviceName};

    /// The graphics API that the backend uses.
    #[cfg(all(feature = "wgpu", target_os = "macos"))]
    const GRAPHICS: (wgpu::Backends, &str) = (wgpu::Backends::METAL, "Metal");
    /// The graphics API that the backend uses.
    #[cfg(all(feature = "wgpu", not(target_os = "macos")))]
    const GRAPHICS: (wgpu::Backends, &str) = (wgpu::Backends::VULKAN, "Vulkan");

    /// The `index`-th adapter: discrete GPUs first, then integrated and virtual ones, then a software driver.
    #[cfg(feature = "wgpu")]
    pub(super) fn wgpu(name: DeviceName, index: usize) -> Result<WgpuDevice, DeviceError> {
        use std::pin::pin;
        use std::task::{Context, Poll, Waker};

        use wgpu::DeviceType;

        let (backends, api) = GRAPHICS;
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
            backends,
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        });
        // Only in a browser does this have to wait.
        let found = pin!(instance.enumerate_adapters(backends));
        let types: Vec<DeviceType> = match found.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(adapters) => adapters.iter().map(|a| a.get_info().device_type).collect(),
            Poll::Pending => Vec::new(),
        };
        let count = |of: DeviceType| types.iter().filter(|&&found| found == of).count();
        let discrete = (0..count(DeviceType::DiscreteGpu)).map(WgpuDevice::DiscreteGpu);
        let integrated = (0..count(DeviceType::IntegratedGpu)).map(WgpuDevice::IntegratedGpu);
        let virtual_gpus = (0..count(DeviceType::VirtualGpu)).map(WgpuDevice::VirtualGpu);
        let software = (0..count(DeviceType::Cpu).min(1)).map(|_| WgpuDevice::Cpu);
        let devices: Vec<WgpuDevice> = discrete.chain(integrated).chain(virtual_gpus).chain(software).collect();
        if devices.is_empty() {
            let needs = format!("it needs a GPU with a {api} driver, and none was found");
            return Err(DeviceError::Absent { device: name, needs });
        }
        let found = devices.len();
        devices.into_iter().nth(index).ok_or_else(|| beyond(name, found, &format!("{api} adapter")))
    }

    /// The `index`-th NVIDIA GPU, once the driver, NVRTC and the toolkit's headers are found to be there: kernels are
    /// compiled when they are first used.
    #[cfg(feature = "cuda")]
    pub(super) fn cuda(name: DeviceName, index: usize) -> Result<CudaDevice, DeviceError> {
        let absent = |needs: String| DeviceError::Absent { device: name, needs };
        // SAFETY: loading a library runs its initialisers; these are the ones that the backend itself loads next.
        let (driver, compiler) =
            unsafe { (cudarc::driver::sys::is_culib_present(), cudarc::nvrtc::sys::is_culib_present()) };
        if !driver {
            return Err(absent("it needs an NVIDIA GPU with its driver, and no libcuda was found".to_owned()));
        }
        let gpus = match cudarc::driver::CudaContext::device_count() {
            Ok(gpus) => usize::try_from(gpus).unwrap_or(0),
            Err(cudarc::driver::DriverError(code)) => {
                return Err(absent(format!("the NVIDIA driver reports {code:?}")));
            }
        };
        if gpus == 0 {
            return Err(absent("it needs an NVIDIA GPU, and the driver has none".to_owned()));
        }
        if index >= gpus {
            return Err(beyond(name, gpus, "NVIDIA GPU"));
        }
        if !compiler {
            let needs = "it needs NVRTC (libnvrtc, part of the CUDA toolkit) on the library path";
            return Err(absent(needs.to_owned()));
        }
        if cubecl_cuda::install::cuda_path().is_none() {
            let needs = "it needs the CUDA toolkit's headers: set CUDA_PATH to the toolkit";
            return Err(absent(needs.to_owned()));
        }
        Ok(CudaDevice::new(index))
    }

    /// The error of an index past the last device.
    fn beyond(name: DeviceName, found: usize, what: &str) -> DeviceError {
        let needs = match found {
            1 => format!("the machine has 1 {what}, number 0"),
            _ => format!("the machine has {found} {what}s, numbers 0 to {}", found - 1),
        };
        DeviceError::Absent { device: name, needs }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn an_index_past_the_last_device_says_how_many_there_are() {
            let error = |found| beyond(DeviceName::Cuda(8), found, "NVIDIA GPU").to_string();
            assert_eq!(error(1), "device `cuda:8` is not present: the machine has 1 NVIDIA GPU, number 0");
            assert_eq!(error(4), "device `cuda:8` is not present: the machine has 4 NVIDIA GPUs, numbers 0 to 3");
        }

        /// Whether or not the machine has a GPU, it has no millionth one; and asking must not start a backend.
        #[cfg(feature = "wgpu")]
        #[test]
        fn no_machine_has_a_millionth_adapter() {
            let name = DeviceName::Wgpu(1_000_000);
            let error = wgpu(name, 1_000_000).unwrap_err();
            assert!(matches!(error, DeviceError::Absent { device, .. } if device == name), "{error}");
        }

        /// As above.
        #[cfg(feature = "cuda")]
        #[test]
        fn no_machine_has_a_millionth_nvidia_gpu() {
            let name = DeviceName::Cuda(1_000_000);
            let error = cuda(name, 1_000_000).unwrap_err();
            assert!(matches!(error, DeviceError::Absent { device, .. } if device == name), "{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [DeviceName; 6] = [
        DeviceName::NdArray,
        DeviceName::Flex,
        DeviceName::Wgpu(0),
        DeviceName::Wgpu(3),
        DeviceName::Cuda(0),
        DeviceName::Cuda(1),
    ];

    /// Gives the type that it was asked to compute in.
    struct Asked;

    impl DeviceTask for Asked {
        type Output = DType;

        fn run<B: ModelBackend>(self, _: B::Device, dtype: DType) -> DType {
            dtype
        }
    }

    fn is_compiled(device: DeviceName) -> bool {
        let mut compiled = DeviceName::compiled().into_iter();
        compiled.any(|other| other.feature() == device.feature())
    }

    #[test]
    fn names_are_read_as_they_are_shown() {
        for device in ALL {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        let names = ALL.map(|device| device.to_string());
        assert_eq!(names, ["ndarray", "flex", "wgpu", "wgpu:3", "cuda", "cuda:1"]);
        assert_eq!("cuda:0".parse(), Ok(DeviceName::Cuda(0)));
    }

    #[test]
    fn unknown_names_are_refused() {
        let unknown = ["", "tpu", "CUDA", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "flex:0", "ndarray:1", " flex"];
        for name in unknown {
            let name = name.to_owned();
            assert_eq!(name.parse::<DeviceName>(), Err(DeviceError::Unknown { name }));
        }
        let error = "tpu".parse::<DeviceName>().unwrap_err();
        assert_eq!(error.to_string(), "unknown device `tpu`: expected ndarray, flex, wgpu[:N] or cuda[:N]");
    }

    #[test]
    fn cpu_devices_compute_in_both_precisions() {
        for device in [DeviceName::NdArray, DeviceName::Flex].into_iter().filter(|&device| is_compiled(device)) {
            assert_eq!(device.dispatch(Precision::F32, Asked), Ok(DType::F32), "{device}");
            assert_eq!(device.dispatch(Precision::F64, Asked), Ok(DType::F64), "{device}");
        }
    }

    #[test]
    fn a_device_that_is_not_compiled_in_names_its_feature() {
        for device in ALL.into_iter().filter(|&device| !is_compiled(device)) {
            let error = device.dispatch(Precision::F32, Asked).unwrap_err();
            let feature = device.feature();
            assert_eq!(error, DeviceError::NotCompiled { device, feature });
            let expected = format!("device `{device}` is not compiled in: build with `--features {feature}`");
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn gpus_have_no_double_precision() {
        for device in [DeviceName::Wgpu(0), DeviceName::Cuda(1)] {
            let error = device.dispatch(Precision::F64, Asked).unwrap_err();
            assert_eq!(error, DeviceError::NoDoublePrecision { device });
            let expected = format!("device `{device}` has no f64: use ndarray or flex");
            assert_eq!(error.to_string(), expected);
        }
    }
}
