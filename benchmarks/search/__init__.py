"""Strategies of search on tables of measured results: see `__main__.py`."""
