use super::op::{InverseRms, Normalise, Order};
use crate::testing::{check_op, numbers};

#[test]
fn the_scale_has_its_kernel_and_gradient() {
    for order in [Order::Any, Order::Backend] {
        check_op(&InverseRms { eps: 1e-3, order }, [numbers(&[5, 19], 0.1)]);
    }
}

#[test]
fn the_norm_has_its_kernel_and_gradients() {
    for order in [Order::Any, Order::Backend] {
        check_op(&Normalise { eps: 1e-3, order }, [numbers(&[5, 19], 0.1), numbers(&[19], 0.7)]);
    }
}
