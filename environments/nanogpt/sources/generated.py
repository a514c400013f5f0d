"""The generated text: documents in an invented language, without a download and without a licence.

`prepare.py` calls `splits`. A key draws the language (`Language`): which glyph is which letter or
mark, sounds, words and how frequent they are, affixes, word order, function words, the tables
behind sums, the order of numbers, how words are spelt anew, and how every kind of line is put
together: in which order it says what it has to say, and where which marks and words stand between
(`Frame`). With the generator but without the key, nothing of that is known; it has to be learned
from the training text. What the sizes are is not drawn (numbers of words, syllables, marks, table
entries, entropies of word frequencies), so that languages differ little in how hard they are. The
empty key draws the public language of tests and tables.

Documents are about recurring people, with Zipf-distributed words (so that rare ones stay hard),
agreement and relative clauses that nest, quotations, sums, small ledgers that are asked about
again, counting, and words spelt anew. Some of it is learned in seconds and some of it not within
any small budget, which keeps a better idea measurable.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

TRAIN_BYTES = 300_000
HELD_OUT_BYTES = 131_072
SEED = 20_240_520

# The hash of the three public splits of these sizes together: a Python that draws other random
# numbers would otherwise change every published number in silence.
EXPECTED = "23b3a5889f0bf161da37ac7d5299966175d9cee94fa39c62e8884bdb2e0dc7eb"

# Which of these characters occur, and as what, is drawn. Only the line feed is the same in all
# languages: it ends lines, and documents with a blank line.
GLYPHS = [chr(code) for code in range(32, 127)]
MARKS = (
    "space", "stop", "open_quote", "close_quote", "open", "close", "between",
    "first_operation", "second_operation",
)  # fmt: skip
#: Marks that frames share; each takes some of them.
SHARED_MARKS = 6
# (syllables, whether the last one is closed), of single sounds: equally long in all languages.
FUNCTION_WORDS = {
    "article": (1, True),
    "plural article": (2, True),
    "relative": (2, False),
    "of": (1, False),
    "told": (2, False),
    "if": (1, False),
    "then": (2, False),
    "ledger": (3, False),
    "count": (2, True),
    "spelt": (4, True),
    "spelt, second word": (1, False),
}
CONSONANTS, VOWELS, DIGITS = 14, 5, 10
NUMBERS = 60
OPERANDS = 12

# (syllables, whether the last one is closed) of nine neighbouring words in the order of frequency.
# Only their order is drawn: frequent words are about equally long in all languages.
SHAPES = {
    "noun": [(1, False), (1, True), (1, True), *[(2, False)] * 2, *[(2, True)] * 4],
    "verb": [(1, False), (1, True), (1, True), (1, True), (2, False), *[(2, True)] * 4],
    "adjective": [*[(2, False)] * 2, *[(2, True)] * 7],
    "name": [*[(2, False)] * 2, *[(2, True)] * 7],
    "place": [*[(3, False)] * 2, *[(3, True)] * 7],
}
COUNTS = {"noun": 500, "verb": 200, "adjective": 160, "name": 120, "place": 80}

# For each frame its fields, its function words, and how many of the shared marks it has.
FRAMES: dict[str, tuple[tuple[str, ...], tuple[str, ...], int]] = {
    "title": (("hero", "place"), ("of",), 1),
    "telling": (("speaker", "listener"), ("told",), 0),
    "quotation": (("telling", "quoted"), (), 1),
    "condition": (("premise", "conclusion"), ("if", "then"), 1),
    "expression": (("left", "sign", "right"), (), 0),
    "sum": (("expression", "result"), (), 2),
    "entry": (("thing", "number"), (), 0),
    "question": (("asked", "answer"), (), 1),
    "ledger": (("entries", "question"), ("ledger",), 2),
    "counting": (("counted",), ("count",), 1),
    "spelling": (("word", "anew"), ("spelt", "spelt, second word"), 1),
}
LONGEST_WORD = 20

# What the probabilities of choices in the grammar are near; each is drawn within a tenth of it.
CHANCES = {
    "person as object": 0.3,
    "plural": 0.4,
    "adjective": 0.3,
    "relative clause": 0.25,
    "no object": 0.25,
    "person as subject": 0.4,
    "quotation": 0.2,
    "condition": 0.19,
    "first operation": 0.5,
    "nested sum": 0.25,
}


# In a sample of a usual language the entropies of a byte given the one before, and given the three
# before, are between these limits. One language in twelve is usual.
SAMPLE_BYTES = 40_000
USUAL_NATS = {2: (2.147, 2.167), 4: (0.98, 0.994)}


class Weighted:
    """Choices 0 to n - 1, the first most frequent, with what choosing each tells in nats."""

    def __init__(self, weights: Sequence[float]) -> None:
        total = sum(weights)
        self.indices = range(len(weights))
        self.cumulative = list(itertools.accumulate(weights))
        self.nats = [-math.log(weight / total) for weight in weights]

    @classmethod
    def zipf(cls, count: int, rng: random.Random) -> Weighted:
        """Frequencies 1 / (rank + offset)^exponent with an exponent that is drawn, and the offset
        at which they have the entropy of 1 / (rank + 4): equally hard, but not the same."""
        exponent = rng.uniform(0.85, 1.15)
        wanted = cls([1 / (rank + 4) for rank in range(count)]).entropy()
        low, high = 0.01, 100.0  # the entropy rises with the offset
        while high - low > 1e-9:
            offset = (low + high) / 2
            made = cls([(rank + offset) ** -exponent for rank in range(count)])
            low, high = (offset, high) if made.entropy() < wanted else (low, offset)
        return made

    def entropy(self) -> float:
        return sum(math.exp(-nats) * nats for nats in self.nats)


class Dice:
    """Random choices; `nats` is the sum of -log p of all that were made."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)
        self.nats = 0.0

    def chance(self, probability: float) -> bool:
        hit = self.rng.random() < probability
        self.nats -= math.log(probability if hit else 1 - probability)
        return hit

    def below(self, count: int) -> int:
        self.nats += math.log(count)
        return self.rng.randrange(count)

    def pick(self, choices: Weighted) -> int:
        index = self.rng.choices(choices.indices, cum_weights=choices.cumulative)[0]
        self.nats += choices.nats[index]
        return index


@dataclass(frozen=True)
class Frame:
    """How something is put together: the names of its fields, and words and marks between them.

    `joints` are what stands before each part: a space, or nothing.
    """

    parts: tuple[str, ...]
    joints: tuple[str, ...]
    fields: frozenset[str]

    def fill(self, **fields: str) -> str:
        texts = (fields[part] if part in self.fields else part for part in self.parts)
        return "".join(joint + text for joint, text in zip(self.joints, texts, strict=True))


class Language:
    """Everything that has to be learned from the text, drawn from `seed`."""

    def __init__(self, seed: str) -> None:
        rng = self._rng = random.Random(f"{SEED} language {seed}")
        glyphs = rng.sample(GLYPHS, len(GLYPHS))

        def take(count: int) -> list[str]:
            return [glyphs.pop() for _ in range(count)]

        self.mark = dict(zip(MARKS, take(len(MARKS)), strict=True))
        consonants, vowels = take(CONSONANTS), take(VOWELS)
        letters = consonants + vowels
        self._capital = dict(zip(letters, take(len(letters)), strict=True))
        self._sounds(consonants, vowels)
        self._vocabulary()
        self._grammar(consonants, vowels)
        shared = take(SHARED_MARKS)
        self.frame = {name: self._frame(shared, *of) for name, of in FRAMES.items()}
        self._sums(take(DIGITS))
        # Spelling anew: other letters in another order.
        others = rng.sample(consonants, len(consonants)) + rng.sample(vowels, len(vowels))
        self._respelt = dict(zip(letters, others, strict=True))
        self._reordered = [rng.sample(range(n), n) for n in range(LONGEST_WORD)]

    def _sounds(self, consonants: list[str], vowels: list[str]) -> None:
        rng = self._rng
        self._plain = consonants, vowels
        clusters = rng.sample(list(itertools.permutations(consonants, 2)), 5)
        self._onsets = consonants + ["".join(pair) for pair in clusters[:4]]
        doubled = rng.sample(list(itertools.permutations(vowels, 2)), 2)
        self._vowels = vowels + ["".join(pair) for pair in doubled]
        self._codas = [*rng.sample(consonants, 6), "".join(clusters[4])]

    def _word(self, syllables: int, closed: bool, *, plain: bool = False) -> str:
        """A word that no other word is."""
        rng = self._rng
        onsets, vowels = self._plain if plain else (self._onsets, self._vowels)
        while True:
            word = "".join(rng.choice(onsets) + rng.choice(vowels) for _ in range(syllables))
            if closed:
                word += rng.choice(onsets if plain else self._codas)
            if word not in self._words:
                self._words.add(word)
                return word

    def _vocabulary(self) -> None:
        rng = self._rng
        self._words: set[str] = set()
        self.function = {
            name: self._word(*shape, plain=True) for name, shape in FUNCTION_WORDS.items()
        }
        self.words: dict[str, list[str]] = {}
        self.frequency: dict[str, Weighted] = {}
        for kind, count in COUNTS.items():
            shapes: list[tuple[int, bool]] = []
            while len(shapes) < count:
                shapes += rng.sample(SHAPES[kind], len(SHAPES[kind]))
            self.words[kind] = [self._word(*shape) for shape in shapes[:count]]
            self.frequency[kind] = Weighted.zipf(count, rng)

    def _grammar(self, consonants: list[str], vowels: list[str]) -> None:
        rng = self._rng
        self.order = rng.sample("svo", 3)
        self.phrase_order = rng.sample(("article", "adjective", "noun"), 3)
        self.clause_first = rng.random() < 0.5  # a relative clause stands before its noun
        self._capital_names, self._capital_lines = rng.random() < 0.5, rng.random() < 0.5
        affix = rng.sample((rng.choice(vowels), rng.choice(consonants)), 2)
        self._noun_affix = "".join(affix), rng.random() < 0.5
        self._verb_affix = rng.choice(consonants), rng.random() < 0.5
        self.verb_marks_plural = rng.random() < 0.5
        self.chances = {name: p * rng.uniform(0.9, 1.1) for name, p in CHANCES.items()}
        shares = rng.sample((0.115, 0.12, 0.13, 0.135), 4)
        self.kinds = Weighted([0.5, *shares])  # of a document's lines
        self.steps = rng.sample(range(1, 10), 2)  # of counting
        self.answers = rng.randrange(3)  # with the number of which entry, from the one asked for

    def _frame(
        self, shared: list[str], fields: Sequence[str], words: Sequence[str], marks: int
    ) -> Frame:
        rng = self._rng
        separators = rng.sample(shared, marks)
        parts = [*fields, *(self.function[word] for word in words), *separators]
        rng.shuffle(parts)
        # A mark leans on one neighbour. On the other side, and between words, is a space.
        leans = {mark: rng.random() < 0.5 for mark in separators}
        joints = [""]
        for left, right in itertools.pairwise(parts):
            open_left = left not in leans or leans[left]
            open_right = right not in leans or not leans[right]
            joints.append(self.mark["space"] if open_left and open_right else "")
        return Frame(tuple(parts), tuple(joints), frozenset(fields))

    def _sums(self, digits: list[str]) -> None:
        rng = self._rng
        pairs = ["".join(pair) for pair in itertools.product(digits[: NUMBERS // 10], digits)]
        # A number is a sign for a place in a cycle; neither follows from the other.
        self.numbers = rng.sample(pairs, NUMBERS)
        self.inner_first = rng.random() < 0.5  # which index of the outer table a nested result is
        # Results of the two operations: nothing to compute, each has to be remembered.
        self.results = [
            [[rng.randrange(OPERANDS) for _ in range(OPERANDS)] for _ in range(OPERANDS)]
            for _ in range(2)
        ]

    def _capitalised(self, text: str) -> str:
        return self._capital.get(text[0], text[0]) + text[1:]

    def line(self, text: str) -> str:
        """The text of a line, as lines begin in this language."""
        return self._capitalised(text) if self._capital_lines else text

    def name(self, word: str) -> str:
        return self._capitalised(word) if self._capital_names else word

    def plural(self, noun: str) -> str:
        affix, first = self._noun_affix
        return affix + noun if first else noun + affix

    def conjugated(self, verb: str, plural: bool) -> str:
        if plural != self.verb_marks_plural:
            return verb
        affix, first = self._verb_affix
        return affix + verb if first else verb + affix

    def spelt_anew(self, word: str) -> str:
        return "".join(self._respelt[word[place]] for place in self._reordered[len(word)])


class Writer:
    """Writes documents; every sentence is a small grammar of its own."""

    def __init__(self, language: Language, dice: Dice) -> None:
        self.language = language
        self.dice = dice
        self.hero = ""
        self.other = ""
        self.kinds = (self.story, self.sum, self.ledger, self.counting, self.spelling)

    def pick(self, kind: str) -> str:
        language = self.language
        word = language.words[kind][self.dice.pick(language.frequency[kind])]
        return language.name(word) if kind in ("name", "place") else word

    def pick_any(self) -> str:
        """A word of any kind that lines with tables and spellings are about."""
        return self.pick(("noun", "verb", "adjective")[self.dice.below(3)])

    def chance(self, name: str) -> bool:
        return self.dice.chance(self.language.chances[name])

    def spaced(self, *words: str) -> str:
        return self.language.mark["space"].join(word for word in words if word)

    def noun_phrase(self, depth: int) -> tuple[str, bool]:
        """A phrase and whether it is plural: the verb, perhaps a clause away, has to agree."""
        language, mark = self.language, self.language.mark
        if depth and self.chance("person as object"):
            return (self.other if self.dice.below(2) else self.hero), False
        plural = self.chance("plural")
        adjective = self.pick("adjective") if self.chance("adjective") else ""
        noun = self.pick("noun")
        if plural:
            noun = language.plural(noun)
        article = language.function["plural article" if plural else "article"]
        words = {"article": article, "adjective": adjective, "noun": noun}
        phrase = [words[part] for part in language.phrase_order]
        if depth < 2 and self.chance("relative clause"):
            inner = self.verb_phrase(plural, depth + 1)
            relative = self.spaced(language.function["relative"], *inner)
            clause = mark["open"] + relative + mark["close"]
            phrase = [clause, *phrase] if language.clause_first else [*phrase, clause]
        return self.spaced(*phrase), plural

    def verb_phrase(self, plural: bool, depth: int) -> tuple[str, str]:
        """Verb and object in the order of the language; without an object one of them is empty."""
        verb = self.language.conjugated(self.pick("verb"), plural)
        thing = "" if self.chance("no object") else self.noun_phrase(depth + 1)[0]
        order = self.language.order
        return (verb, thing) if order.index("v") < order.index("o") else (thing, verb)

    def clause(self) -> str:
        if self.chance("person as subject"):
            subject, plural = self.hero, False
        else:
            subject, plural = self.noun_phrase(0)
        parts = list(self.verb_phrase(plural, 0))
        parts.insert(self.language.order.index("s"), subject)
        return self.spaced(*parts)

    def story(self) -> str:
        language, mark, frame = self.language, self.language.mark, self.language.frame
        said = self.clause()
        if self.chance("quotation"):
            telling = frame["telling"].fill(speaker=self.hero, listener=self.other)
            quoted = mark["open_quote"] + said + mark["stop"] + mark["close_quote"]
            return frame["quotation"].fill(telling=telling, quoted=quoted)
        if self.chance("condition"):
            said = frame["condition"].fill(premise=said, conclusion=self.clause())
        return language.line(said) + mark["stop"]

    def sum(self) -> str:
        language, mark, frame = self.language, self.language.mark, self.language.frame
        numbers, signs = language.numbers, (mark["first_operation"], mark["second_operation"])
        a, b = self.dice.below(OPERANDS), self.dice.below(OPERANDS)
        kind = 0 if self.chance("first operation") else 1
        result = language.results[kind][a][b]
        written = frame["expression"].fill(left=numbers[a], sign=signs[kind], right=numbers[b])
        if self.chance("nested sum"):
            c = self.dice.below(OPERANDS)
            written = mark["open"] + written + mark["close"]
            written = frame["expression"].fill(
                left=written, sign=signs[1 - kind], right=numbers[c]
            )
            row, column = (result, c) if language.inner_first else (c, result)
            result = language.results[1 - kind][row][column]
        return frame["sum"].fill(expression=written, result=numbers[result])

    def ledger(self) -> str:
        language, mark, frame = self.language, self.language.mark, self.language.frame
        goods: dict[str, str] = {}
        while len(goods) < 3:
            goods[self.pick_any()] = language.numbers[self.dice.below(NUMBERS)]
        entries = [frame["entry"].fill(thing=thing, number=n) for thing, n in goods.items()]
        asked = self.dice.below(3)
        answer = (asked + language.answers) % 3
        question = frame["question"].fill(
            asked=list(goods)[asked], answer=list(goods.values())[answer]
        )
        separator = mark["between"] + mark["space"]
        return frame["ledger"].fill(entries=separator.join(entries), question=question)

    def counting(self) -> str:
        language, mark = self.language, self.language.mark
        start, by = self.dice.below(NUMBERS), language.steps[self.dice.below(2)]
        places = [(start + by * step) % NUMBERS for step in range(6)]
        separator = mark["between"] + mark["space"]
        counted = separator.join(language.numbers[place] for place in places)
        return language.frame["counting"].fill(counted=counted)

    def spelling(self) -> str:
        word = self.pick_any()
        return self.language.frame["spelling"].fill(word=word, anew=self.language.spelt_anew(word))

    def document(self) -> str:
        language = self.language
        self.hero, self.other = self.pick("name"), self.pick("name")
        title = language.frame["title"].fill(hero=self.hero, place=self.pick("place"))
        count = 6 + self.dice.below(8)
        lines = [self.kinds[self.dice.pick(language.kinds)]() for _ in range(count)]
        return "\n".join((title, *lines)) + "\n\n"


def draw_language(key: str) -> Language:
    """Return the first language drawn from the key whose statistics are the usual ones.

    A small training learns pairs of bytes first and short contexts next: these are differences
    between keys that can be kept small.
    """
    languages = (Language(f"{key} {attempt}") for attempt in itertools.count())
    return next(language for language in languages if _is_usual(language))


def _is_usual(language: Language) -> bool:
    writer, sample = Writer(language, Dice(f"{SEED} sample")), ""
    while len(sample) < SAMPLE_BYTES:
        sample += writer.document()
    return all(low < entropy(sample, n) < high for n, (low, high) in USUAL_NATS.items())


def entropy(text: str, n: int) -> float:
    """The entropy of a character given the n - 1 before it, by the text's own counts, in nats."""
    grams = Counter(text[i : i + n] for i in range(len(text) - n + 1))
    before = Counter(text[i : i + n - 1] for i in range(len(text) - n + 1))
    total = sum(grams.values())
    return sum(c / total * math.log(before[gram[:-1]] / c) for gram, c in grams.items())


@dataclass(frozen=True)
class Text:
    """A text of whole documents, the last one cut off.

    `nats_per_byte` is the information in the random choices behind it. No model that has learned
    the language perfectly is better on average: a text has at most the information of the choices
    that made it, and less only where different choices write the same.
    """

    data: bytes
    nats_per_byte: float


def write(sizes: Sequence[int], key: str = "") -> list[Text]:
    """One text per size, of documents none of which stands twice anywhere.

    Language and texts depend on the key, and cannot be made without it. Each text has random
    numbers of its own: knowing one, even all of its choices, tells nothing about those of another.
    """
    language = draw_language(key)
    seen: set[str] = set()
    texts = []
    for number, size in enumerate(sizes):
        dice = Dice(f"{SEED} text {number} {key}")
        writer = Writer(language, dice)
        documents: list[str] = []
        length, nats = 0, 0.0
        while length < size:
            dice.nats = 0.0
            document = writer.document()
            if document not in seen:
                seen.add(document)
                documents.append(document)
                length += len(document)
                nats += dice.nats
        texts.append(Text("".join(documents).encode("ascii")[:size], nats / length))
    return texts


def generate(sizes: Sequence[int], key: str = "") -> list[bytes]:
    """The texts of `write` alone."""
    return [text.data for text in write(sizes, key)]


def splits(train_bytes: int, held_out_bytes: int, key: str) -> list[Text]:
    """Train, search and sealed, of different documents; the default sizes are checked by hash."""
    texts = write((train_bytes, held_out_bytes, held_out_bytes), key=key)
    if not key and (train_bytes, held_out_bytes) == (TRAIN_BYTES, HELD_OUT_BYTES):
        found = hashlib.sha256(b"".join(text.data for text in texts)).hexdigest()
        if found != EXPECTED:
            raise SystemExit(
                f"the generated text has hash {found}, expected {EXPECTED}: this Python draws"
                " other random numbers; use CPython 3.11 or later"
            )
    return texts
