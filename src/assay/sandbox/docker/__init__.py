"""The Docker backend, reached through `assay.sandbox.choose` only.

Nothing outside this package may import it at its top: it needs the `docker` package, which only a
worker has.
"""
