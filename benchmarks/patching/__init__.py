"""Whether answers of models become the edits they mean: a corpus, its proof, and a scorer.

python -m benchmarks.patching --tools all
"""
