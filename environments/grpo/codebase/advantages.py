"""From the rewards of a group to advantages."""

import torch


def group_advantages(rewards, group_size, normalize_by_std, eps):
    """How much better each completion is than its group (GRPO, arXiv 2402.03300, section 4.1.2).

        A_i = (r_i - mean_g) / (std_g + eps)

    with the sample standard deviation (n - 1), or A_i = r_i - mean_g without `normalize_by_std`
    (Dr. GRPO, arXiv 2503.20783, section 3.2). A group with equal rewards has no advantages.
    `rewards` (N,) has the members of a group next to each other; the result is (N,).
    """
    groups = rewards.view(-1, group_size)  # (P, G)
    centred = groups - groups.mean(dim=1, keepdim=True)
    if normalize_by_std and group_size > 1:
        centred = centred / (groups.std(dim=1, keepdim=True) + eps)
    return centred.reshape(-1)


def advantages_of(rewards, config):
    """Advantages (N,) of the rewards (N,) of a rollout batch."""
    return group_advantages(
        rewards, config.group_size, config.normalize_by_std, config.advantage_eps
    )
