"""The ideas for nanoGPT that `execution_grounded_ai_research` prints, by the diff in `paper/`.

The implementations are our own, on this codebase. Where an idea has a number of steps or a
learning rate, that of `tiny` is changed in the same proportion as the published one.
"""

from __future__ import annotations

IDEAS = {
    # Appendix A.2, the best idea of each model.
    "top_opus": (
        "Claude-4.5-Opus, 3.1407: SwiGLU of width 5, skips every 4 and 8 of 12 layers (here a "
        "third and two thirds of the depth), learned scales, untied embeddings, cosine, average "
        "of weights"
    ),
    "top_sonnet": (
        "Claude-4.5-Sonnet, 3.2081: two phases of weight decay and clipping, exponential warm-up, "
        "plateau, cosine to a floor that falls, progressive average of weights"
    ),
    "top_gpt5": (
        "GPT-5, 3.1697: SwiGLU of width 3.5, residual alphas, cosine, falling beta2, three groups "
        "of AdamW, debiased average of weights"
    ),
    # Appendix A.2, "atomic" ideas of Claude-4.5-Opus (residual weights are printed twice).
    "atomic_head_scales": "3.2386: a learned scale for the output of each attention head",
    "atomic_residual_weights": "3.2517: a learned weight, at first 1, of each residual branch",
    "atomic_position_mixture": (
        "3.2497: token and position embeddings mixed by a weight that the token decides"
    ),
    "atomic_output_asymmetry": (
        "3.2499: tied embeddings with a small learned transformation on the side of the output"
    ),
    "atomic_gated_final_norm": "3.2503: a learned gate between normalised and raw final output",
    "atomic_position_gated_mlp": "3.2506: the output of every MLP gated by the position",
    "atomic_token_clusters": "3.2521: an embedding per cluster of tokens on top of the token's",
    # Appendix A.2, ideas of Claude-4.5-Opus whose execution failed there.
    "failed_layer_repetition": "a learned gate mixes a layer's input back into its output",
    "failed_context_compression": (
        "before attention, a learned compression of the last three positions (also section 4.4)"
    ),
    "failed_head_diversity": "a penalty on the similarity of the outputs of attention heads",
    "failed_weighted_skips": "skip connections together with learned residual weights",
    "failed_difficulty_weights": "the loss of a token weighted by the entropy of its prediction",
    # Section 5.3, the two ideas that reinforcement learning collapsed to.
    "collapse_layernorm": "LayerNorm (with gain and bias) in the place of RMSNorm",
    "collapse_weight_average": "an exponential moving average of the weights is evaluated",
}
