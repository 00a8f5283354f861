"""Benchmarks that ship: each measures carbonq beside a yardstick in the same run and reports ratios."""
