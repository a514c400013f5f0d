"""Fake hosts: workers that speak the real API over HTTP and only pretend to train.

    python -m tests.support.faults.hosts --api http://127.0.0.1:8000 --tokens-file tokens.json

One process runs many hosts. Each registers, syncs, claims, reports logs and points, stores an
artifact and finishes, as a worker does; its work is a run of a given length that writes known
bytes. What each host starts and stops goes into a journal outside the database, so that a check
can compare what happened with what was stored.
"""
