//! Every use of reference code is counted, so that others can say there was none. The only test of its process: the count is
//! the process's.

use convoy_kernels::reference::{self, Array};
use convoy_kernels::{Moment, Update};
use convoy_net::{Kind, Loss, Shape, layers::Add};

#[test]
fn every_use_is_counted() {
    assert_eq!(reference::calls(), 0);
    reference::twin(&Kind::Add(Add));
    assert_eq!(reference::calls(), 1);
    reference::loss::judge(&Loss::MeanSquaredError, &Array::zeros(Shape([1; 5])), &[1.0]);
    assert_eq!(reference::calls(), 2);
    let update = Update::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    reference::update::update(&update, Moment::default(), &mut [1.0], &[1.0], &mut []);
    assert_eq!(reference::calls(), 3);
}
