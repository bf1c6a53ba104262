//! Updates by their formulas, in double precision.

use crate::{Moment, Update};

/// One step: changes a parameter and what is remembered of it.
pub fn update(update: &Update, moment: Moment, w: &mut [f64], g: &[f64], states: &mut [Vec<f64>]) {
    super::count();
    let rate = moment.learning_rate as f64;
    match *update {
        Update::Sgd { momentum, nesterov, weight_decay } => {
            for i in 0..w.len() {
                let g = g[i] + weight_decay as f64 * w[i];
                let mut step = g;
                if momentum != 0.0 {
                    let v = &mut states[0][i];
                    *v = momentum as f64 * *v + g;
                    step = if nesterov { g + momentum as f64 * *v } else { *v };
                }
                w[i] -= rate * step;
            }
        }
        Update::Adam { beta1, beta2, epsilon, weight_decay, decoupled } => {
            let (beta1, beta2, decay) = (beta1 as f64, beta2 as f64, weight_decay as f64);
            let t = moment.step as i32 + 1;
            for i in 0..w.len() {
                let mut g = g[i];
                if decoupled {
                    w[i] *= 1.0 - rate * decay;
                } else {
                    g += decay * w[i];
                }
                states[0][i] = beta1 * states[0][i] + (1.0 - beta1) * g;
                states[1][i] = beta2 * states[1][i] + (1.0 - beta2) * g * g;
                let m = states[0][i] / (1.0 - beta1.powi(t));
                let v = states[1][i] / (1.0 - beta2.powi(t));
                w[i] -= rate * m / (v.sqrt() + epsilon as f64);
            }
        }
        Update::RmsProp { alpha, epsilon, momentum, weight_decay } => {
            for i in 0..w.len() {
                let g = g[i] + weight_decay as f64 * w[i];
                states[0][i] = alpha as f64 * states[0][i] + (1.0 - alpha as f64) * g * g;
                let mut step = g / (states[0][i].sqrt() + epsilon as f64);
                if momentum != 0.0 {
                    states[1][i] = momentum as f64 * states[1][i] + step;
                    step = states[1][i];
                }
                w[i] -= rate * step;
            }
        }
        Update::Lars { momentum, weight_decay, trust } => {
            let norm = |v: &[f64]| v.iter().map(|v| v * v).sum::<f64>().sqrt();
            let (of_w, of_g) = (norm(w), norm(g));
            let local = match of_w > 0.0 && of_g > 0.0 {
                true => trust as f64 * of_w / (of_g + weight_decay as f64 * of_w),
                false => 1.0,
            };
            for i in 0..w.len() {
                let v = &mut states[0][i];
                *v = momentum as f64 * *v + local * (g[i] + weight_decay as f64 * w[i]);
                w[i] -= rate * *v;
            }
        }
    }
}
