"""Pure rules: states, metrics, ids, placement, hashing. Imports only the standard library."""
