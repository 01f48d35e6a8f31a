//! The `everturn` program.

/// A commit is some twenty small allocations, made on one thread and freed on another: with the allocator of the C
/// library a quarter of the processor time of a busy journal went there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    everturn::cli::main(std::env::args_os())
}
