//! The program `convoy`: parses, calls, tells what went wrong.

use std::process::ExitCode;

fn main() -> ExitCode {
    let matches = convoy::command::definition().get_matches();
    match convoy::command::run(&matches) {
        Ok(code) => ExitCode::from(code),
        // Whoever read our output has seen enough.
        Err(errors) if errors.0.iter().any(|error| error.is_broken_pipe()) => ExitCode::SUCCESS,
        Err(errors) => {
            errors.0.iter().for_each(|error| convoy_comm::tell(&format!("error: {error}")));
            ExitCode::from(errors.exit_code())
        }
    }
}
