use super::op::{InverseRms, Normalise};
use crate::testing::{check_op, numbers};

#[test]
fn the_scale_has_its_kernel_and_gradient() {
    check_op(&InverseRms { eps: 1e-3 }, [numbers(&[5, 19], 0.1)]);
}

#[test]
fn the_norm_has_its_kernel_and_gradients() {
    check_op(&Normalise { eps: 1e-3 }, [numbers(&[5, 19], 0.1), numbers(&[19], 0.7)]);
}
