"""Measure what the pages say of the bundled environments: `make calibrate`."""
