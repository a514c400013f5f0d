"""How fast the execution layer is, on Postgres: ticks, assignments, heartbeats.

    python -m benchmarks.execution            # make bench-execution

1,024 GPUs on 128 hosts, 100,000 queued measurements. See `__main__` for the parts.
"""
