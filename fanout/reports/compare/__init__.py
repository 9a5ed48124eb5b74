"""DataFrame transforms, frames in and frames out: no I/O, and no Python on an executor."""
