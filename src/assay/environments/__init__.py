"""Environments on disk: find them, read their manifests, bundle them, prepare their data."""

from assay.environments.bundle import Bundle, pack_tree, unpack_tree
from assay.environments.catalog import Catalog, Environment, default_folders
from assay.environments.prepare import PrepareError, prepare_data

__all__ = [
    "Bundle",
    "Catalog",
    "Environment",
    "PrepareError",
    "default_folders",
    "pack_tree",
    "prepare_data",
    "unpack_tree",
]
