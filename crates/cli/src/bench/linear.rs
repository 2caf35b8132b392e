use std::fmt;
use std::hint::black_box;
use std::str::FromStr;

use anyhow::Result;
use burn::tensor::{DType, Tensor, TensorData, backend::Backend};
use clap::Args;
use dsv41::{ModelBackend, PackedWeight};
use dsv41_quant::{GgmlType, PackedMatrix, kernel::Activations};

use super::model::values;
use super::options::{DeviceArgs, OutputArgs, RepeatArgs};
use super::report::Case;
use super::session::{Measured as Recorded, Session};
use super::timing::{Timing, time};
use super::work::Work;
use crate::{
    device::{DeviceName, DeviceTask, Precision},
    table::{
        Align::{Left, Right},
        Table,
    },
};

/// What to multiply.
#[derive(Debug, Args)]
pub(super) struct LinearArgs {
    #[command(flatten)]
    devices: DeviceArgs,
    /// Types of the packed matrix, between commas.
    #[arg(long, value_name = "TYPE", value_delimiter = ',', default_values_t = [GgmlType::Q2K, GgmlType::Q3K])]
    types: Vec<GgmlType>,
    /// Outputs and inputs of the matrix, as OUTxIN, between commas.
    #[arg(long, value_name = "SHAPE", value_delimiter = ',', default_values_t = [Shape([5120, 2304]), Shape([2304, 5120])])]
    shape: Vec<Shape>,
    /// Vectors multiplied at once, between commas.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 64])]
    vectors: Vec<usize>,
    #[command(flatten)]
    repeats: RepeatArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// `[out, in]`
#[derive(Debug, Clone, Copy)]
struct Shape([usize; 2]);

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sides = text.split_once('x').and_then(|(out, input)| Some([out.parse().ok()?, input.parse().ok()?]));
        let sides = sides.filter(|sides| !sides.contains(&0));
        sides.map(Shape).ok_or_else(|| "expected OUTxIN, such as 5120x2304".to_owned())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [output, input] = self.0;
        write!(f, "{output}x{input}")
    }
}

/// One product on one device.
struct Product<'a> {
    matrix: &'a PackedMatrix,
    vectors: usize,
    activations: Activations,
    repeats: u32,
}

/// What came of it.
struct Measured {
    packed: Timing,
    /// The same product with the matrix in f32 on the same device.
    dense: Timing,
    /// Root mean square of the packed product's error, relative to the product's own.
    error: f64,
}

/// Prints a table.
pub(super) fn run(args: &LinearArgs) -> Result<()> {
    let mut session = Session::begin("linear", &args.devices, None, None)?;
    let mut table = Table::new([Left, Left, Left, Right, Left, Right, Right, Right, Right, Right]);
    table.row([
        "device",
        "type",
        "shape",
        "vectors",
        "activations",
        "packed",
        "spread",
        "GB/s",
        "f32 / packed",
        "error",
    ]);
    for &Shape([output, input]) in &args.shape {
        let values = values(&format!("bench/{output}x{input}"), output * input);
        for &ty in &args.types {
            let matrix = PackedMatrix::quantise(ty, &values, [output, input], None)?;
            for device in session.devices() {
                for &vectors in &args.vectors {
                    for activations in [Activations::F32, Activations::Int8] {
                        session.announce(device, format_args!("{ty}, {vectors} vectors"));
                        let repeats = args.repeats.repeats;
                        let product = Product { matrix: &matrix, vectors, activations, repeats };
                        let measured = device.dispatch(Precision::F32, product)?;
                        table.row(cells(device, &matrix, vectors, activations, &measured));
                        let records = records(&matrix, vectors, activations, &measured);
                        records.into_iter().for_each(|record| session.add(device, record));
                    }
                }
            }
        }
    }
    session.clear();
    println!("{table}");
    session.conclude(&args.output)
}

/// The packed product and the dense one.
fn records(matrix: &PackedMatrix, vectors: usize, activations: Activations, measured: &Measured) -> [Recorded; 2] {
    let shape = [matrix.rows(), matrix.columns()];
    let case = |weights: &str| {
        Case::new([
            ("type", matrix.ty().to_string()),
            ("shape", Shape(shape).to_string()),
            ("activations", format!("{activations:?}").to_lowercase()),
            ("weights", weights.to_owned()),
            ("vectors", vectors.to_string()),
        ])
    };
    let work = |bytes: usize| {
        let numbers = vectors * (shape[0] + shape[1]) * size_of::<f32>();
        Work { operations: 2 * (vectors * shape[0] * shape[1]) as u64, bytes: (bytes + numbers) as u64 }
    };
    let packed = Recorded {
        work: Some(work(matrix.bytes().len())),
        error: Some(measured.error),
        ..Recorded::new(case("packed"), measured.packed)
    };
    let dense = work(shape[0] * shape[1] * size_of::<f32>());
    [packed, Recorded { work: Some(dense), ..Recorded::new(case("f32"), measured.dense) }]
}

fn cells(
    device: DeviceName,
    matrix: &PackedMatrix,
    vectors: usize,
    activations: Activations,
    measured: &Measured,
) -> [String; 10] {
    let Measured { packed, dense, error } = measured;
    let seconds = packed.median.as_secs_f64();
    let spread = (packed.slowest - packed.fastest).as_secs_f64() / seconds;
    [
        device.to_string(),
        matrix.ty().to_string(),
        Shape([matrix.rows(), matrix.columns()]).to_string(),
        vectors.to_string(),
        format!("{activations:?}").to_lowercase(),
        format!("{:.3} ms", 1e3 * seconds),
        format!("{:.0}%", 100.0 * spread),
        format!("{:.1}", matrix.bytes().len() as f64 / seconds / 1e9),
        format!("{:.2}", dense.median.as_secs_f64() / seconds),
        format!("{error:.1e}"),
    ]
}

impl DeviceTask for Product<'_> {
    type Output = Measured;

    fn run<B: ModelBackend>(self, device: B::Device, dtype: DType) -> Measured {
        let Self { matrix, vectors, activations, repeats } = self;
        let [output, input] = [matrix.rows(), matrix.columns()];
        let x_values = values("bench/x", vectors * input);
        let tensor = |values: Vec<f32>, shape: [usize; 2]| {
            Tensor::<B, 2>::from_data(TensorData::new(values, shape), (&device, dtype))
        };
        let x = tensor(x_values.clone(), [vectors, input]);
        let weight = PackedWeight::<B>::new(matrix.clone(), activations, &device);
        // Stored as the model stores parameters, so that the product needs no transpose.
        let dequantised = matrix.dequantise();
        let dense_weight = tensor(dequantised.clone(), [output, input]).transpose().mul_scalar(1.0);

        let product = weight.product(x.clone()).into_data();
        let packed = time(repeats, || finished(weight.product(x.clone())));
        let dense = time(repeats, || finished(x.clone().matmul(dense_weight.clone())));
        Measured { packed, dense, error: relative_error(&product, &x_values, &dequantised, input) }
    }
}

/// Waits until the device has computed: data on the host can only come after that.
fn finished<B: Backend>(result: Tensor<B, 2>) {
    black_box(result.slice([0..1, 0..1]).into_data());
}

fn relative_error(product: &TensorData, x: &[f32], weight: &[f32], input: usize) -> f64 {
    let exact = x.chunks_exact(input).flat_map(|x| {
        weight.chunks_exact(input).map(|w| x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>())
    });
    let (error, size) = product
        .iter::<f64>()
        .zip(exact)
        .fold((0.0, 0.0), |(error, size), (found, exact)| (error + (found - exact).powi(2), size + exact.powi(2)));
    (error / size).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_as_they_are_shown() {
        let shape: Shape = "5120x2304".parse().unwrap();
        assert_eq!(shape.0, [5120, 2304]);
        assert_eq!(shape.to_string(), "5120x2304");
        for text in ["", "12", "x", "0x5", "3x", "ax2", "1x2x3"] {
            assert!(text.parse::<Shape>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_product_is_timed_and_compared() {
        let values = values("w", 64 * 32);
        let matrix = PackedMatrix::quantise(GgmlType::Q8_0, &values, [64, 32], None).unwrap();
        for device in DeviceName::compiled() {
            let product = Product { matrix: &matrix, vectors: 3, activations: Activations::F32, repeats: 5 };
            let Ok(measured) = device.dispatch(Precision::F32, product) else { continue };
            assert!(measured.error < 1e-6, "{device}: {}", measured.error);
            assert!(measured.packed.fastest <= measured.packed.slowest);
        }
    }
}
