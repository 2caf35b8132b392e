//! `--numerics`: where calls round.

use std::fmt;

use clap::ValueEnum;
use dsv41::Numerics;

/// Where calls round, as users choose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NumericsArg {
    /// Nowhere.
    Full,
    /// Where the released kernels round.
    Reference,
}

impl From<NumericsArg> for Numerics {
    fn from(numerics: NumericsArg) -> Self {
        match numerics {
            NumericsArg::Full => Self::Full,
            NumericsArg::Reference => Self::Reference,
        }
    }
}

impl fmt::Display for NumericsArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "full",
            Self::Reference => "reference",
        })
    }
}
