"""The placement policy on a virtual clock, beside simpler ones."""
