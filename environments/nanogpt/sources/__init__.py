"""Where the tokens come from: a generator, a text of one's own, or FineWeb from the hub."""
