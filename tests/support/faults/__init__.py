"""Faults on purpose: what breaks Assay, and what checks that nothing was lost.

| module | what it holds |
|---|---|
| `arena` | server mode with every connection between its parts behind a proxy |
| `embedded` | `assay serve` that is killed and started again |
| `soak` | many hosts and many ideas in an arena, under random faults |
| `hosts` | fake hosts: workers that speak the real API and only pretend to train |
| `points` | the named points at which a process can be told to die |
| `trouble` | faults at random moments, from a seed |
| `proxy` | a TCP proxy that is cut, frozen, slowed, or loses an answer |
| `invariants` | what has to hold when everything has come to rest |
| `waste` | GPU-seconds that did not count |

The tests in `tests/faults` bring each fault about by itself; `python -m benchmarks.chaos` brings
many, for longer.
"""
