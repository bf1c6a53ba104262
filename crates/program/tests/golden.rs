//! Programs as text. `UPDATE_GOLDEN=1 cargo test` rewrites them; the diff is read.

use convoy_kernels::{Mode, Update};
use convoy_net::zoo;
use convoy_program::{Options, lower};
use convoy_split::{Rank, Strategy};

fn check(name: &str, ranks: usize, strategy: &str) {
    let network = zoo::model("lenet", Default::default()).unwrap();
    let shapes = network.shapes(8).unwrap();
    let strategy = Strategy::parse(strategy, ranks, &network, &shapes).unwrap();
    let update = Update::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
    let division = Default::default();
    let options = Options { batch: 8, mode: Mode::Train, leaves: 8, winograd: Default::default(), update, division };
    let program = lower(&network, &strategy, Rank(0), &options).unwrap();
    let text = format!(
        "{}{} bytes for a step, {} sent\n",
        program.text(&network),
        program.memory.step_bytes,
        program.sent_bytes()
    );
    let path = format!("{}/tests/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, golden, "{path} is not what lowering gives; UPDATE_GOLDEN=1 rewrites it");
}

#[test]
fn lenet_on_one_rank() {
    check("lenet", 1, "data");
}

#[test]
fn lenet_with_rows_over_two_ranks() {
    check("lenet-spatial", 2, "spatial");
}
