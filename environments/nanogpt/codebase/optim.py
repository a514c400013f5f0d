"""AdamW, clipping, and the learning rate over time.

Written out instead of imported: torch.optim takes a second to import here (a tenth of the budget
of `tiny`), and an optimiser that stands on one page is one that can be changed.
"""

import torch


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019)."""

    def __init__(self, parameters, beta1, beta2, eps, weight_decay):
        self.parameters = list(parameters)
        self.beta1, self.beta2 = beta1, beta2
        self.eps = eps
        self.weight_decay = weight_decay
        self.steps = 0
        self.mean = [torch.zeros_like(p) for p in self.parameters]
        self.square = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self, learning_rate):
        self.steps += 1
        gradients = [p.grad for p in self.parameters]
        # On GPUs one kernel does all that follows: leave this out where you change that.
        if self.parameters[0].is_cuda:
            return self.fused_update(gradients, learning_rate)
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

    def fused_update(self, gradients, learning_rate):
        steps = [gradients[0].new_full((), self.steps)] * len(gradients)
        torch._fused_adamw_(
            self.parameters,
            gradients,
            self.mean,
            self.square,
            [],
            steps,
            lr=learning_rate,
            beta1=self.beta1,
            beta2=self.beta2,
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )


def clip_gradients(parameters, limit):
    """Scales the gradients so that their joint norm is at most `limit`; returns the norm before.

    It stays on the device: asking for its value would make every step wait for the GPU.
    """
    gradients = [p.grad for p in parameters]
    length = torch.stack(torch._foreach_norm(gradients)).norm()
    torch._foreach_mul_(gradients, (limit / (length + 1e-6)).clamp(max=1.0))
    return length


def schedule(step, progress, warmup, floor):
    """The factor on the learning rate: a linear warm-up, then linear decay to floor / (1 + floor).

    `progress` is the share of the time after the warm-up that has passed, 0 to 1.
    """
    if step < warmup:
        return (step + 1) / warmup
    return (floor + (1 - progress)) / (1 + floor)
