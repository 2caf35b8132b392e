use dsv41_ops::CustomOps;
use dsv41_quant::op::PackedOps;

/// What the graph needs of a backend beyond Burn's own operations. Every backend that has the extensions is one.
pub trait ModelBackend: PackedOps + CustomOps {}

impl<B: PackedOps + CustomOps> ModelBackend for B {}
