"""Rows as the API shows them."""
