use std::error::Error;

use candle_core::quantized::ggml_file::qtensor_from_ggml;
use candle_core::quantized::{GgmlDType, QMatMul};
use candle_core::{Device, Module, Tensor};
use dsv41_quant::{GgmlType, PackedMatrix};

use super::contestant::{Contestant, Name};

/// Candle's product with the same packed bytes, or with the matrix in f32.
pub(crate) struct Candle {
    name: Name,
    matrices: Vec<QMatMul>,
    x: Tensor,
    out: Option<Tensor>,
}

impl Candle {
    /// The product with the packed matrices.
    pub(crate) fn packed(matrices: &[PackedMatrix], x: &[f32]) -> Result<Self, Box<dyn Error>> {
        assert!(
            candle_core::utils::with_avx(),
            "candle was built without AVX2: set RUSTFLAGS=\"-C target-cpu=native\""
        );
        let multiplier = |matrix: &PackedMatrix| {
            let shape = vec![matrix.rows(), matrix.columns()];
            QMatMul::from_qtensor(qtensor_from_ggml(dtype(matrix.ty())?, matrix.bytes(), shape, &Device::Cpu)?)
        };
        Self::new(Name::Candle, matrices.iter().map(multiplier).collect::<Result<_, _>>()?, matrices[0].columns(), x)
    }

    /// The product with `copies` of a matrix in f32.
    pub(crate) fn dense(matrix: &PackedMatrix, copies: usize, x: &[f32]) -> Result<Self, Box<dyn Error>> {
        let shape = (matrix.rows(), matrix.columns());
        let multiplier = |_| Ok(QMatMul::Tensor(Tensor::from_vec(matrix.dequantise(), shape, &Device::Cpu)?));
        let matrices = (0..copies).map(multiplier).collect::<Result<_, candle_core::Error>>()?;
        Self::new(Name::Dense, matrices, matrix.columns(), x)
    }

    fn new(name: Name, matrices: Vec<QMatMul>, columns: usize, x: &[f32]) -> Result<Self, Box<dyn Error>> {
        let x = Tensor::from_slice(x, (x.len() / columns, columns), &Device::Cpu)?;
        Ok(Self { name, matrices, x, out: None })
    }
}

impl Contestant for Candle {
    fn name(&self) -> Name {
        self.name
    }

    fn run(&mut self, turn: usize) -> Result<(), Box<dyn Error>> {
        self.out = Some(self.matrices[turn % self.matrices.len()].forward(&self.x)?);
        Ok(())
    }

    fn product(&self) -> Result<Option<Vec<f32>>, Box<dyn Error>> {
        Ok(self.out.as_ref().map(|out| out.flatten_all()?.to_vec1()).transpose()?)
    }
}

fn dtype(ty: GgmlType) -> Result<GgmlDType, candle_core::Error> {
    Ok(match ty {
        GgmlType::Q2K => GgmlDType::Q2K,
        GgmlType::Q3K => GgmlDType::Q3K,
        GgmlType::Q4K => GgmlDType::Q4K,
        GgmlType::Q8_0 => GgmlDType::Q8_0,
        other => candle_core::bail!("{other} is not compared with candle"),
    })
}
