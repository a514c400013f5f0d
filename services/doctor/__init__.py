"""What `assay doctor` looks at where a part of a server runs; found by entry points."""
