//! The `everturn` program.

fn main() -> std::process::ExitCode {
    everturn::cli::main(std::env::args_os())
}
