"""Assay."""
