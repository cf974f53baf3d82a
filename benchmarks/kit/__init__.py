"""Code that benchmarks share. The folder of a benchmark is its import path, so modules are `kit.fleet` and so on."""
