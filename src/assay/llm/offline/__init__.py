"""Deterministic stand-ins for the executor and ideator models. They are not models.

They take the same path (request, text, diff, patch) without a key and without chance.
"""
