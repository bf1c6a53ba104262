//! Reference kernels: naive, readable, complete, in double precision. They judge the fast ones and never run in a training step.
