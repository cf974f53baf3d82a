"""What the benchmarks share. The folder of a benchmark is its import path, so these are `kit.fleet` and so on."""
