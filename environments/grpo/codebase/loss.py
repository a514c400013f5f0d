"""What is minimised. Pure functions; B completions, T positions, 1 where `mask` counts.

With the policy's probability ratio to the one that sampled, rho = exp(logp - old_logp), a token's
loss is

    grpo_clip                -min(rho * A, clip(rho, 1 - eps, 1 + eps) * A)
    reinforce_with_baseline  -A * logp
    no_baseline              -r * logp

where A is the completion's advantage and r its reward. grpo_clip is PPO's surrogate as GRPO uses it
(arXiv 2402.03300, equation 3, without the KL term).
"""

import torch


def token_losses(loss_type, logp, old_logp, advantages, rewards, clip_range):
    """Losses (B, T) and a dict of what to log; logp, old_logp (B, T), advantages, rewards (B,)."""
    if loss_type == "no_baseline":
        return -rewards[:, None] * logp, {}
    A = advantages[:, None]  # (B, 1)
    if loss_type == "reinforce_with_baseline":
        return -A * logp, {}
    ratio = torch.exp(logp - old_logp)
    bounded = ratio.clamp(1 - clip_range, 1 + clip_range)
    losses = -torch.minimum(ratio * A, bounded * A)
    return losses, {"clipped": (bounded * A < ratio * A).float()}


def reduce_loss(losses, mask, normalizer, max_new_tokens):
    """One number of losses (B, T): see `loss_normalizer` in config.py."""
    total = (losses * mask).sum()
    if normalizer == "constant":
        return total / (losses.size(0) * max_new_tokens)
    return total / mask.sum().clamp(min=1)


def masked_mean(values, mask):
    return (values * mask).sum() / mask.sum().clamp(min=1)


def policy_loss(logp, old_logp, mask, advantages, rewards, config):
    """The loss of a microbatch, and a dict of numbers to log. Shapes as in `token_losses`."""
    losses, found = token_losses(
        config.loss_type, logp, old_logp, advantages, rewards, config.clip_range
    )
    loss = reduce_loss(losses, mask, config.loss_normalizer, config.max_new_tokens)
    return loss, {name: masked_mean(values, mask).item() for name, values in found.items()}
