"""The ideas for GRPO that `execution_grounded_ai_research` prints, by the diff in `paper/`.

The implementations are our own, on this codebase. A published learning rate of 3e-5 is three times
the baseline's, so that of every profile is multiplied by three; where an idea is combined with
"proven hyper-parameters", these are that rate and `reinforce_with_baseline`. What is not printed
(the "standard momentum clip", how an idea meets problems that are additions) is our reading.
The accuracies are the published ones; the baseline has 48.0 there.
"""

from __future__ import annotations

IDEAS = {
    # Section 4.2: what the best solutions of Claude-4.5-Sonnet have in common.
    "search_policy_gradient": (
        "69.4: policy gradient with the group's mean as baseline, at three times the rate"
    ),
    # Table 3: one column per model.
    "table3_residual_ratio": (
        "Claude-4.5-Opus, 61.6: a running mean of the ratio is left alone, a sigmoid bounds the "
        "rest, and the clip range follows a running mean of the clipped share"
    ),
    "table3_rank_difference": (
        "Claude-4.5-Opus, 59.2: weights by the distance of a rank from the mean rank in place of "
        "the advantages' size"
    ),
    "table3_difficulty_balancing": (
        "Claude-4.5-Sonnet, 64.0: the share of hard problems follows the recent rewards (here "
        "long texts are hard, and of equal lengths those with large digits)"
    ),
    "table3_attention_attribution": (
        "Claude-4.5-Sonnet, 45.2, also example 3 of appendix A.3: gradients of tokens that the "
        "last layer attends to are amplified"
    ),
    "table3_working_memory": (
        "Claude-4.5-Sonnet, 58.0, also example 1 of appendix A.3: facts from right completions "
        "stand before the prompts of later rollouts (without a heading: `tiny` has no letters)"
    ),
    "table3_chunked_ratio": (
        "GPT-5, 58.2: one ratio for each eighth of a completion, the mean of its log-ratios"
    ),
    "table3_reward_spread": (
        "GPT-5, 49.4: a temperature of the log-ratios by the spread of a group's rewards"
    ),
    # Table 4: Claude-4.5-Opus; the second one failed there.
    "table4_position_trust_region": "59.8: sigmoid bounds that narrow along the completion",
    "table4_position_group_trust_region": (
        "failed: the same times a bound that is tighter for groups of mixed rewards"
    ),
    # Table 5: Claude-4.5-Sonnet; the last three failed there.
    "table5_step_complexity_reward": (
        "65.6: right completions with more steps of reasoning get up to a tenth more (in `tiny` "
        "all that are right have the same number of columns)"
    ),
    "table5_experience_replay": (
        "39.4: a quarter of each batch are earlier completions with a high reward"
    ),
    "table5_diversity_reward": (
        "19.2, also example 4 of appendix A.3: up to 0.15 for tokens that differ from those of "
        "the most similar completion in the group"
    ),
    "table5_td_advantages": (
        "failed: temporal-difference advantages from a value head (with the formula as printed)"
    ),
    "table5_voting_consensus": (
        "failed: groups of six are two votes of three; consensus is rewarded, dissent costs, the "
        "elected completion is trained on, and the rate follows the consensus"
    ),
    "table5_hierarchical_advantages": (
        "failed: advantages of the completion mixed with those of tokens, larger for mathematical "
        "symbols and answers"
    ),
    # Appendix A.3, the one example that no table has.
    "example2_perturbed_problems": (
        "56.2: equivalent problems put otherwise (a+b as b+a), bonuses for solving both alike, "
        "cosine from 3.4 to 1.8 times the rate; without its perturbation-complexity clipping"
    ),
}
