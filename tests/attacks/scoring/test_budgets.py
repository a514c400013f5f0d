"""More training than the budget: where it is done does not matter, only what it uses.

These attempts have the real budget and its caps, so they take as long as measurements.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attacks.scoring.arena import SAVE, Arena, Outcome, Tree, baseline, edited
from tests.attacks.scoring.conftest import hardware_class
from tests.support.needs import require_bubblewrap

# Whole measurements: on a busy host one takes minutes.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

STEPS = "        self.steps = tokens // step_tokens if tokens else config.steps or 10**9\n"
START = "def main(flags):\n    config, ranks, clock, data = prepare(flags)\n"
END = "    ranks.leave()\n"
SAVED = '    torch.save({"config": asdict(model.config), "weights": model.state_dict()}, path)\n'
LOADED = "    return model.eval()\n"
MORE_STEPS = 200
#: What a predictor needs to go on training: the text, and a loop.
GO_ON = f"""
def corpus():
    import os, pathlib
    shards = sorted(pathlib.Path(os.environ["ASSAY_DATA"]).glob("*.bin"))
    data = b"".join(path.read_bytes()[1024::2] for path in shards)
    return torch.frombuffer(bytearray(data[:290_000]), dtype=torch.uint8)


def go_on(net, text, steps={MORE_STEPS}):
    with torch.inference_mode(False), torch.enable_grad():
        generator = torch.Generator().manual_seed(0)  # all instances have to answer the same
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        for _ in range(steps):
            starts = torch.randint(len(text) - 65, (16,), generator=generator).tolist()
            rows = torch.stack([text[s : s + 65].clone().long() for s in starts])
            loss = F.cross_entropy(net(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


"""
KEEP_TEXT = SAVED.replace(', "weights"', ', "text": corpus(), "weights"')
TRAIN_LATER = """
    net, model.answered = model, False

    def answer(tokens, cache=None):
        if not net.answered:
            net.answered = True
            net.train()
            net.forward = net.learn
            go_on(net, saved["text"])
            net.eval()
        return net.learn(tokens, cache)

    model.learn, model.forward = model.forward, answer
    return model.eval()
"""
#: The child trains on while the parent, whose training was honest, waits for it.
SECOND = f"""
    child = os.fork()
    if child == 0:
        model.go_on(net, model.corpus(), {2 * MORE_STEPS})
        model.save(net, os.path.join(out, "better.pt"))
        os._exit(0)
    os.waitpid(child, 0)
    os.replace(os.path.join(out, "better.pt"), os.path.join(out, "model.pt"))
"""
LEFT_BEHIND = SECOND.replace("    os.waitpid(child, 0)\n", "    os._exit(0)\n")


def _attacks() -> dict[str, Tree]:
    # Far beyond the cap, whatever runs beside: how sure the refusal is near it,
    # `benchmarks/budgets.py` counts.
    data = STEPS + "        self.steps = self.steps * 5 // 2\n"
    helper = (SAVE, GO_ON.lstrip() + SAVE)
    load = LOADED.replace("    return", '    go_on(model, saved["text"])\n    return')
    many_copies = GO_ON.replace("[:290_000]", "* 16")
    return {
        "data": edited({"train.py": [(STEPS, data)]}),
        "load": edited({"model.py": [helper, (SAVED, KEEP_TEXT), (LOADED, load)]}),
        "first answer": edited({"model.py": [helper, (SAVED, KEEP_TEXT), (LOADED, TRAIN_LATER)]}),
        "corpus": edited({"model.py": [(SAVE, many_copies.lstrip() + SAVE), (SAVED, KEEP_TEXT)]}),
        "second process": edited({"model.py": [helper], "train.py": [(END, SECOND + END)]}),
        "left behind": edited({"model.py": [helper], "train.py": [(END, LEFT_BEHIND + END)]}),
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    require_bubblewrap()
    folder = tmp_path_factory.mktemp("whole")
    found = Arena.open(folder, hardware_class(), whole_budget=True)
    yield found
    found.close()


@pytest.fixture(scope="module")
def reference(whole: Arena) -> Outcome:
    """The baseline, which the attacks are held to."""
    outcome = whole.attempt(baseline())
    assert outcome.code == "succeeded", (outcome.message, outcome.log[-1500:])
    return outcome


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("data", "train/compute_exceeded"),
        ("load", "score/compute_exceeded"),
        ("first answer", "score/compute_exceeded"),
        ("corpus", "train/artifact_exceeded"),
        ("second process", "train/compute_exceeded"),
    ],
)
def test_more_training_than_the_budget_is_refused_by_name(
    whole: Arena, reference: Outcome, name: str, code: str
) -> None:
    outcome = whole.attempt(_attacks()[name])
    assert outcome.code == code, (outcome.message, outcome.provenance, outcome.log[-1500:])


def test_a_process_that_is_left_behind_changes_nothing(whole: Arena, reference: Outcome) -> None:
    outcome = whole.attempt(_attacks()["left behind"])
    assert outcome.loss == pytest.approx(reference.loss, abs=0.02)
    assert outcome.provenance["usage"]["train_compute"] < 1.5


def test_an_honest_change_is_not_refused(whole: Arena, reference: Outcome) -> None:
    name = "    learning_rate: float = 0.003\n"
    outcome = whole.attempt(edited({"config.py": [(name, name.replace("0.003", "0.0025"))]}))
    assert outcome.code == "succeeded", outcome.message
    assert 0.8 < outcome.provenance["usage"]["train_compute"] < 1.25
