"""Faults on purpose: what breaks Assay, and what checks that nothing was lost.

| module | what it holds |
|---|---|
| `arena` | server mode with a proxy on every connection between its parts |
| `embedded` | `assay serve`, killed and started again on its data |
| `implement_kills` | an implement worker, killed in the middle of its model calls |
| `soak` | an arena with many hosts and many ideas, under random faults |
| `hosts` | fake hosts: workers that speak the real API and only pretend to train |
| `points` | the named points at which a process can be told to die |
| `trouble` | what may break in server mode, at random moments from a seed |
| `proxy` | a TCP proxy that can be cut, frozen, slowed, or told to lose an answer |
| `invariants` | what has to hold when everything has come to rest |
| `timing` | leases and limits that all of them share |
| `waste` | GPU-seconds that decided nothing |

The tests in `tests/faults` bring each fault about by itself; `python -m benchmarks.chaos` brings
many, for longer.
"""
