"""How fast the API answers beside a full database, and what many clients cost: see `__main__`."""
