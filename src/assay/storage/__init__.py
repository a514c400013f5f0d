"""Where state lives: the database (rows, the truth) and the object store (bytes)."""
