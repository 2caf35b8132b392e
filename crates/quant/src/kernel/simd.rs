#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, Avx512};
use super::lanes::{Lanes, Portable};

/// The instruction sets that the kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Simd {
    /// AVX-512 with VNNI: servers since 2019 (Cascade Lake, Zen 4).
    Avx512,
    /// AVX2 with FMA and F16C: nearly every x86-64 processor since 2013.
    Avx2,
    /// What the target of the build has, such as NEON.
    Portable,
}

/// Work that is compiled for each instruction set.
///
/// `run` has to be `#[inline(always)]`: it is the body of a function that was compiled for the set.
pub(super) trait Work {
    type Output;

    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

impl Simd {
    /// Every set, the fastest first.
    pub const ALL: [Self; 3] = [Self::Avx512, Self::Avx2, Self::Portable];

    /// The fastest set that this machine has. The machine is asked once.
    pub fn best() -> Self {
        // The portable set is always there.
        Self::ALL.into_iter().find(|simd| simd.is_available()).unwrap_or(Self::Portable)
    }

    /// Whether this machine has the set.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => Avx512::is_available(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => Avx2::is_available(),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx512 | Self::Avx2 => false,
            Self::Portable => true,
        }
    }

    /// Runs `work` in the set, or in the portable one where this machine lacks it.
    pub(super) fn run<W: Work>(self, work: W) -> W::Output {
        #[cfg(target_arch = "x86_64")]
        match self {
            Self::Avx512 => {
                if let Some(lanes) = Avx512::try_new() {
                    return lanes.vectorize(
                        #[inline(always)]
                        || work.run(lanes),
                    );
                }
            }
            Self::Avx2 => {
                if let Some(lanes) = Avx2::try_new() {
                    return lanes.vectorize(
                        #[inline(always)]
                        || work.run(lanes),
                    );
                }
            }
            Self::Portable => {}
        }
        work.run(Portable)
    }
}
