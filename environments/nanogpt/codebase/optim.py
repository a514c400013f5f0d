"""AdamW and the learning rate over time.

Written out instead of imported: torch.optim takes a second to import here (a tenth of the budget),
and an optimiser that stands on one page is one that can be changed.
"""

import torch


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    def __init__(self, parameters, beta1, beta2, weight_decay, eps=1e-8):
        self.parameters = list(parameters)
        self.beta1, self.beta2 = beta1, beta2
        self.weight_decay = weight_decay
        self.eps = eps
        self.steps = 0
        self.mean = [torch.zeros_like(p) for p in self.parameters]
        self.square = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self, learning_rate):
        self.steps += 1
        gradients = [p.grad for p in self.parameters]
        torch._foreach_lerp_(self.mean, gradients, 1 - self.beta1)
        torch._foreach_mul_(self.square, self.beta2)
        torch._foreach_addcmul_(self.square, gradients, gradients, 1 - self.beta2)
        # Both averages start at zero; these factors undo that bias.
        correction1 = 1 - self.beta1**self.steps
        correction2 = 1 - self.beta2**self.steps
        scale = torch._foreach_sqrt(self.square)
        torch._foreach_div_(scale, correction2**0.5)
        torch._foreach_add_(scale, self.eps)
        torch._foreach_mul_(self.parameters, 1 - learning_rate * self.weight_decay)
        torch._foreach_addcdiv_(self.parameters, self.mean, scale, -learning_rate / correction1)


def schedule(step, steps, warmup):
    """The factor on the learning rate at `step` of `steps`: a linear warm-up, then constant."""
    if step < warmup:
        return (step + 1) / warmup
    return 1.0
