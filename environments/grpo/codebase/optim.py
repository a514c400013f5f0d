"""AdamW and the learning rate over time."""

import torch


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019). Weights change in place:
    the rollouts' CUDA graphs read them where they are."""

    def __init__(self, parameters, config, eps=1e-8):
        self.parameters = list(parameters)
        self.config, self.eps = config, eps
        self.steps = 0
        self.mean = [torch.zeros_like(p) for p in self.parameters]
        self.square = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self, learning_rate):
        beta1, beta2 = self.config.beta1, self.config.beta2
        self.steps += 1
        gradients = [p.grad for p in self.parameters]
        torch._foreach_lerp_(self.mean, gradients, 1 - beta1)
        torch._foreach_mul_(self.square, beta2)
        torch._foreach_addcmul_(self.square, gradients, gradients, 1 - beta2)
        # Both averages start at zero; these factors undo that bias.
        scale = torch._foreach_sqrt(self.square)
        torch._foreach_div_(scale, (1 - beta2**self.steps) ** 0.5)
        torch._foreach_add_(scale, self.eps)
        torch._foreach_mul_(self.parameters, 1 - learning_rate * self.config.weight_decay)
        rate = -learning_rate / (1 - beta1**self.steps)
        torch._foreach_addcdiv_(self.parameters, self.mean, scale, rate)

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None


@torch.no_grad()
def clip_gradients(parameters, limit):
    """Scale gradients down to a joint norm of `limit` (0: leave them); the norm before."""
    gradients = [p.grad for p in parameters]
    length = torch.stack(torch._foreach_norm(gradients)).float().norm()
    if limit > 0:
        torch._foreach_mul_(gradients, (limit / (length + 1e-6)).clamp(max=1.0))
    return length


def schedule(update, updates, warmup, final):
    """The factor on the learning rate: a linear warm-up, then linear to `final` at the end."""
    if update < warmup:
        return (update + 1) / warmup
    progress = (update - warmup) / max(1, updates - warmup - 1)
    return 1.0 + (final - 1.0) * min(1.0, progress)
