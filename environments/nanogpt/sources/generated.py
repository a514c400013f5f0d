"""The generated text: documents in an invented language, without a download and without a licence.

Documents are about recurring people, with an invented vocabulary (Zipf distributed, so that rare
words stay hard), agreement and relative clauses that nest, quotations, sums, small ledgers that
are asked about again, counting and words spelt backwards. Some of it is learned in seconds and
some of it not within any small budget, which is what keeps a better idea measurable.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

TRAIN_BYTES = 1_000_000
HELD_OUT_BYTES = 131_072
SEED = 20_240_520

# The hash of the three splits of these sizes together: another Python whose random numbers differ
# would otherwise change every published number in silence.
EXPECTED = "6b3e994cd86d8fc8af9815f121c7c2300a965a2fb474a1ff98581ee5cbc6baf9"


@dataclass
class Lexicon:
    """The invented words, most frequent first, each kind with its Zipf weights."""

    words: dict[str, list[str]] = field(default_factory=dict)
    cumulative: dict[str, list[float]] = field(default_factory=dict)

    def add(self, kind: str, words: list[str]) -> None:
        self.words[kind] = words
        weights = (1.0 / (rank + 4) for rank in range(len(words)))
        self.cumulative[kind] = list(itertools.accumulate(weights))


def make_lexicon(rng: random.Random) -> Lexicon:
    onsets = [
        "b",
        "br",
        "d",
        "f",
        "g",
        "gr",
        "h",
        "k",
        "l",
        "m",
        "n",
        "p",
        "pl",
        "r",
        "s",
        "st",
        "t",
        "v",
    ]
    vowels = ["a", "e", "i", "o", "u", "ai", "ou"]
    codas = ["", "", "l", "m", "n", "r", "s", "th", "k"]
    seen: set[str] = set()

    def word(syllables: int) -> str:
        while True:
            parts = [rng.choice(onsets) + rng.choice(vowels) for _ in range(syllables)]
            made = "".join(parts) + rng.choice(codas)
            if made not in seen:
                seen.add(made)
                return made

    lexicon = Lexicon()
    lexicon.add("noun", [word(rng.choice((1, 2, 2))) for _ in range(500)])
    lexicon.add("verb", [word(rng.choice((1, 2))) for _ in range(200)])
    lexicon.add("adjective", [word(2) for _ in range(160)])
    lexicon.add("name", [word(2).capitalize() for _ in range(120)])
    lexicon.add("place", [word(3).capitalize() for _ in range(80)])
    return lexicon


class Writer:
    """Writes documents; every sentence is a small grammar of its own."""

    def __init__(self, rng: random.Random, lexicon: Lexicon) -> None:
        self.rng = rng
        self.lexicon = lexicon
        self.hero = ""
        self.other = ""

    def pick(self, kind: str) -> str:
        lexicon = self.lexicon
        return self.rng.choices(lexicon.words[kind], cum_weights=lexicon.cumulative[kind])[0]

    def noun_phrase(self, depth: int) -> tuple[str, bool]:
        """A phrase and whether it is plural: the verb, perhaps a clause away, has to agree."""
        rng = self.rng
        if depth and rng.random() < 0.3:
            return rng.choice((self.hero, self.other)), False
        plural = rng.random() < 0.4
        adjective = self.pick("adjective") + " " if rng.random() < 0.3 else ""
        phrase = ("these " if plural else "the ") + adjective + self.pick("noun")
        phrase += "en" if plural else ""
        if depth < 2 and rng.random() < 0.25:
            phrase += f" (that {self.verb_phrase(plural, depth + 1)})"
        return phrase, plural

    def verb_phrase(self, plural: bool, depth: int) -> str:
        verb = self.pick("verb") + ("" if plural else "s")
        if self.rng.random() < 0.25:
            return verb
        return f"{verb} {self.noun_phrase(depth + 1)[0]}"

    def clause(self) -> str:
        subject, plural = self.noun_phrase(0)
        if self.rng.random() < 0.4:
            subject, plural = self.hero, False
        return f"{subject} {self.verb_phrase(plural, 0)}"

    def story(self) -> str:
        said = self.clause()
        kind = self.rng.random()
        if kind < 0.2:
            return f'{self.hero} told {self.other}, "{said}."'
        if kind < 0.35:
            return f"If {said}, then {self.clause()}."
        return said[0].upper() + said[1:] + "."

    def arithmetic(self) -> str:
        rng = self.rng
        a, b = rng.randrange(2, 60), rng.randrange(2, 60)
        if rng.random() < 0.5:
            return f"{a} + {b} = {a + b}."
        if rng.random() < 0.5:
            return f"{a + b} - {b} = {a}."
        c = rng.randrange(2, 6)
        return f"({a} + {b}) * {c} = {(a + b) * c}."

    def ledger(self) -> str:
        goods = {self.pick("noun"): self.rng.randrange(2, 40) for _ in range(3)}
        asked = self.rng.choice(list(goods))
        entries = ", ".join(f"{name} {count}" for name, count in goods.items())
        return f"Ledger: {entries}; {asked}? {goods[asked]}."

    def counting(self) -> str:
        start, by = self.rng.randrange(1, 40), self.rng.randrange(1, 9)
        return "Count " + ", ".join(str(start + by * i) for i in range(6)) + "."

    def spelling(self) -> str:
        word = self.pick("noun")
        return f"{word} backwards is {word[::-1]}."

    def document(self) -> str:
        rng = self.rng
        self.hero, self.other = self.pick("name"), self.pick("name")
        kinds: Sequence[Callable[[], str]] = (
            self.story, self.story, self.story, self.story,
            self.arithmetic, self.ledger, self.counting, self.spelling,
        )  # fmt: skip
        lines = [f"# {self.hero} of {self.pick('place')}"]
        lines += [rng.choice(kinds)() for _ in range(rng.randrange(6, 14))]
        return "\n".join(lines) + "\n\n"


def generate(sizes: Sequence[int], seed: int = SEED, key: str = "") -> list[bytes]:
    """One text per size, of whole documents none of which stands twice anywhere.

    With a key, all but the first text depend on it, and cannot be made without it.
    """
    lexicon = make_lexicon(random.Random(seed))
    writer = Writer(random.Random(seed + 1), lexicon)
    seen: set[str] = set()
    texts = []
    for size in sizes:
        if key and texts:  # each on its own: what is known of one tells nothing about the other
            writer = Writer(random.Random(f"{seed} {key} {len(texts)}"), lexicon)
        documents: list[str] = []
        length = 0
        while length < size:
            document = writer.document()
            if document not in seen:
                seen.add(document)
                documents.append(document)
                length += len(document)
        texts.append("".join(documents).encode("ascii")[:size])
    return texts


def splits(train_bytes: int, held_out_bytes: int, key: str) -> list[bytes]:
    """Train, search and sealed, of different documents; the default sizes are checked by hash."""
    texts = generate((train_bytes, held_out_bytes, held_out_bytes), key=key)
    if not key and (train_bytes, held_out_bytes) == (TRAIN_BYTES, HELD_OUT_BYTES):
        found = hashlib.sha256(b"".join(texts)).hexdigest()
        if found != EXPECTED:
            raise SystemExit(
                f"the generated text has hash {found}, expected {EXPECTED}: this Python draws"
                " other random numbers; use CPython 3.11 or later"
            )
    return texts
