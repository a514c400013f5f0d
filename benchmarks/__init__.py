"""Runnable comparisons; each ends with one line of JSON."""
