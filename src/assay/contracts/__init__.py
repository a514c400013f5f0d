"""Wire models: what crosses a process boundary. Pydantic, importing only `assay.domain`."""
