"""The worker: leases attempts, trains in a sandbox, scores outside it, reports over HTTP."""
