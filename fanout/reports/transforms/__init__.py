"""Pure DataFrame transforms of the reports: frames in, frames out, no I/O and no Python on an executor."""
