"""What the bundled environments reach on one GPU, in parts that run alone; see `__main__`."""
