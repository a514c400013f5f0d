"""Damaged and hostile answers against the patcher.

python -m benchmarks.fuzz_patching [--minutes 10] [--executions N] [--seed 0] [--hostile]
"""
