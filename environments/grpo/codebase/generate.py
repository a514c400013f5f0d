"""Sample completions of many prompts with a static cache (protected: no idea may edit it).

Every prompt is read once and its keys and values are copied for all samples of its group. All rows
then advance one token per step. When half of them have ended, those that live move to the front of
the cache and the batch is halved; on a GPU every batch size has its own CUDA graph.

The random numbers are given, one for every row and step: what a row samples depends on its prompt
and its numbers alone, not on the rows beside it.

Shapes: P prompts, N = P * copies rows, B rows still in the batch, M = max_new tokens, V tokens.
"""

from dataclasses import dataclass

import torch

# The cache is attended to in full; on a GPU only up to the next multiple of this.
SPAN = 256
# A cumulative sum over a larger vocabulary goes by blocks of so many tokens.
BLOCK = 128


@dataclass(frozen=True)
class Sampling:
    """How to sample. Temperature 0 takes the likeliest token."""

    max_new: int
    temperature: float = 1.0
    top_p: float = 1.0
    # A completion ends with this text, which is kept.
    stop: str = "</answer>"


@dataclass
class Samples:
    """Completions of N rows, row i of prompt i // copies, filled up at the end with zeros."""

    tokens: torch.Tensor  # (N, M) int64, on the model's device
    logprobs: torch.Tensor  # (N, M) float32, of what was sampled from, temperature included
    lengths: torch.Tensor  # (N,) int64, the token that ended the row included
    finished: list  # N booleans: ended by itself rather than cut off at M tokens
    texts: list  # N strings, up to the stop text


def uniforms(shape, generator):
    """Random numbers for `Sampler.sample`, (N, M), from [0, 1)."""
    return torch.rand(shape, generator=generator, dtype=torch.float32)


def pick(logits, numbers, temperature, top_p):
    """Sample one token per row: logits (B, V), numbers (B,) in [0, 1) -> tokens, logprobs (B,).
    At temperature 0 the log-probabilities are 0.

    The token is where the cumulative distribution passes the row's number. So a row needs one
    random number per step and not V of them.
    """
    if temperature == 0:
        tokens = logits.argmax(dim=-1)
        return tokens, torch.zeros_like(numbers)
    logp = torch.log_softmax(logits.float() / temperature, dim=-1)
    p = logp.exp()
    if top_p < 1.0:
        ordered, order = p.sort(dim=-1, descending=True)
        # A token stays while what is likelier than it has not reached top_p.
        ordered[ordered.cumsum(-1) - ordered >= top_p] = 0.0
        p = torch.zeros_like(p).scatter_(-1, order, ordered)
        logp = (p / p.sum(-1, keepdim=True)).log()
    tokens = pass_by_blocks(p, numbers) if p.size(-1) > BLOCK else pass_all(p, numbers)
    return tokens, logp.gather(-1, tokens[:, None])[:, 0]


def pass_all(p, numbers):
    """Where the cumulative sums of p (B, V) pass `numbers` (B,) times its sum: tokens (B,)."""
    passed = p.cumsum(dim=-1)  # (B, V)
    # The last value is 1 but for rounding; scaled by it, no number can pass all tokens.
    tokens = torch.searchsorted(passed, (numbers * passed[:, -1])[:, None], right=True)[:, 0]
    return tokens.clamp(max=p.size(-1) - 1)


def pass_by_blocks(p, numbers):
    """The same for a large vocabulary: first the block, then the token in it.

    A cumulative sum over 150,000 tokens is slow on a GPU, which adds up whole blocks in one pass.
    It is less exact, too: small probabilities are added to sums near 1.
    """
    rest = -p.size(-1) % BLOCK
    blocks = (torch.nn.functional.pad(p, (0, rest)) if rest else p).unflatten(-1, (-1, BLOCK))
    passed = blocks.sum(dim=-1).cumsum(dim=-1)  # (B, V / BLOCK)
    wanted = (numbers * passed[:, -1])[:, None]  # (B, 1)
    block = passing(passed, wanted)
    before = torch.nn.functional.pad(passed, (1, 0)).gather(-1, block)
    own = blocks[torch.arange(len(p), device=p.device), block[:, 0]].cumsum(dim=-1)  # (B, BLOCK)
    return (block * BLOCK + passing(own, wanted - before))[:, 0]


def passing(sums, wanted):
    """The places (B, 1) where `sums` (B, n), which only grow, pass `wanted` (B, 1).

    Rounding may put `wanted` at the end of them: then the last place where they still grew.
    """
    places = torch.searchsorted(sums, wanted, right=True)
    return torch.minimum(places, torch.searchsorted(sums, sums[:, -1:].contiguous()))


class Sampler:
    """Samples from `model`; keeps its cache and CUDA graphs from call to call.

    `rows` is the largest number of rows at once: more prompts are worked off in waves.
    """

    def __init__(self, model, tokenizer, rows):
        self.model, self.tokenizer, self.rows = model, tokenizer, rows
        self.device = model.lm_head.weight.device
        self.graphed = self.device.type == "cuda"
        # Looking for the end needs the tokens on the host: on a GPU that is worth a few in vain.
        self.check_every = 16 if self.graphed else 1
        self.cache, self.logits, self.pool = None, None, None
        self.graphs = {}
        self.ends = {}

    @torch.no_grad()
    def sample(self, prompts, copies, numbers, how):
        """`copies` completions for each of P prompts (lists of tokens); numbers (N, M)."""
        assert numbers.shape == (len(prompts) * copies, how.max_new), numbers.shape
        wave = max(1, self.rows // copies)
        self._reserve(min(wave, len(prompts)) * copies, max(map(len, prompts)) + how.max_new)
        parts = []
        for start in range(0, len(prompts), wave):
            chosen = prompts[start : start + wave]
            first = start * copies
            own = numbers[first : first + len(chosen) * copies].to(self.device)
            parts.append(self._wave(chosen, copies, own, how))
        return Samples(
            tokens=torch.cat([p.tokens for p in parts]),
            logprobs=torch.cat([p.logprobs for p in parts]),
            lengths=torch.cat([p.lengths for p in parts]),
            finished=sum((p.finished for p in parts), []),
            texts=sum((p.texts for p in parts), []),
        )

    def release(self):
        """Give the GPU's memory back until the next `sample`, which takes seconds to make cache and
        graphs anew. A CPU keeps its cache: there memory is not short."""
        if self.graphed:
            self._drop()
            torch.cuda.empty_cache()  # what graphs took is theirs alone until then

    def _drop(self):
        """Forget the cache, and the graphs with it: they hold its address."""
        self.graphs.clear()
        self.cache, self.logits = None, None

    def _reserve(self, rows, length):
        """Make room in the cache."""
        length = -(-length // SPAN) * SPAN if self.graphed else length
        if self.cache is None or self.cache.size(2) < rows or self.cache.size(4) < length:
            self._drop()  # before the new one is made: both may not fit
            self.cache = self.model.new_cache(rows, length)
            if self.graphed:
                self.logits = self.cache.new_zeros(rows, self.model.config.vocab_size)
                self.pool = torch.cuda.graph_pool_handle()

    def _wave(self, prompts, copies, numbers, how):
        rows = _Rows(len(prompts) * copies, how.max_new, self.device)
        logits, positions = self._read(prompts, copies)
        width, checked = max(map(len, prompts)), 0
        for step in range(how.max_new):
            tokens, logp = pick(logits, numbers[rows.ids, step], how.temperature, how.top_p)
            rows.tokens[rows.ids, step], rows.logprobs[rows.ids, step] = tokens, logp
            last = step + 1 == how.max_new
            if last or (step + 1) % self.check_every == 0:
                self._look_for_ends(rows, checked, step + 1, how.stop)
                checked = step + 1
                keep = rows.compact(self.cache)
                if last or rows.live == 0:
                    break
                if keep is not None:
                    tokens, positions = tokens[keep], positions[keep]
            logits = self._decode(tokens, positions, width + step + 1)
            positions = positions + 1
        return self._collect(rows, how.stop)

    def _read(self, prompts, copies):
        """Read every prompt once: logits (N, V) after it, and each row's next position (N,)."""
        lengths = torch.tensor([len(p) for p in prompts])
        width = int(lengths.max())
        padded = torch.tensor([p + [0] * (width - len(p)) for p in prompts], device=self.device)
        cache = self.model.new_cache(len(prompts), width)
        hidden = self.model.hidden(padded, cache)  # (P, width, C)
        lengths = lengths.to(self.device)
        logits = self.model.logits(hidden[torch.arange(len(prompts)), lengths - 1])  # (P, V)
        for own, read in zip(self.cache, cache):  # layer by layer: all copies at once may not fit
            own[:, : len(prompts) * copies, :, :width] = read.repeat_interleave(copies, dim=1)
        return logits.repeat_interleave(copies, 0), lengths.repeat_interleave(copies)

    def _decode(self, tokens, positions, span):
        """Logits (B, V) after tokens (B,); all `positions` (B,) are below `span`."""
        rows = len(tokens)
        if not self.graphed:
            return self.model.decode(tokens, positions, self.cache[:, :, :rows, :, :span])
        span = -(-span // SPAN) * SPAN
        if (rows, span) not in self.graphs:
            cache, logits = self.cache[:, :, :rows, :, :span], self.logits[:rows]
            self.graphs[rows, span] = _Graph(self.model, cache, logits, self.pool)
        return self.graphs[rows, span](tokens, positions)

    def _look_for_ends(self, rows, start, end, stop):
        """Mark the rows that ended in steps start..end - 1."""
        table = self._end_tokens(stop)
        fresh = rows.tokens[rows.ids, start:end]  # (B, steps)
        suspects = table[fresh].nonzero().tolist()  # in the order of rows, then steps
        ids = rows.ids.tolist()
        for place, offset in suspects:
            row, step = ids[place], start + offset
            if rows.lengths[row] is None and self._ends_at(rows, row, step, stop):
                rows.lengths[row] = step + 1

    def _ends_at(self, rows, row, step, stop):
        # The stop text has at most as many tokens as bytes.
        tail = rows.tokens[row, max(0, step - len(stop)) : step + 1].tolist()
        if tail[-1] == self.model.config.eos_token_id:
            return True
        return stop in self.tokenizer.decode(tail, skip_special_tokens=False)

    def _end_tokens(self, stop):
        """(V,) bool: tokens that may complete the stop text, or end the text as such."""
        if stop not in self.ends:
            table = torch.zeros(self.model.config.vocab_size, dtype=torch.bool)
            known = min(self.tokenizer.get_vocab_size(), len(table))
            for token in range(known):
                table[token] = stop[-1] in self.tokenizer.decode([token], skip_special_tokens=False)
            if self.model.config.eos_token_id is not None:
                table[self.model.config.eos_token_id] = True
            self.ends[stop] = table.to(self.device)
        return self.ends[stop]

    def _collect(self, rows, stop):
        finished = [length is not None for length in rows.lengths]
        lengths = torch.tensor([length or rows.tokens.size(1) for length in rows.lengths])
        lengths = lengths.to(self.device)
        beyond = torch.arange(rows.tokens.size(1), device=self.device) >= lengths[:, None]
        tokens = rows.tokens.masked_fill(beyond, 0)
        logprobs = rows.logprobs.masked_fill(beyond, 0.0)
        written = [t[:n] for t, n in zip(tokens.tolist(), lengths.tolist())]
        texts = self.tokenizer.decode_batch(written, skip_special_tokens=True)
        # A token may hold more than the end of the stop text.
        texts = [t[: t.index(stop) + len(stop)] if stop in t else t for t in texts]
        return Samples(tokens, logprobs, lengths, finished, texts)


class _Rows:
    """What was sampled, (N, M), and which of the N rows are still in the batch."""

    def __init__(self, count, max_new, device):
        self.tokens = torch.zeros(count, max_new, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(count, max_new, device=device)
        self.lengths = [None] * count  # None: goes on
        self.ids = torch.arange(count, device=device)  # (B,)
        self.live = count

    def compact(self, cache):
        """Halve the batch as often as the living rows allow; returns the places kept, or None."""
        ids = self.ids.tolist()
        living = [place for place, row in enumerate(ids) if self.lengths[row] is None]
        self.live = len(living)
        size = len(ids)
        while size > 1 and -(-size // 2) >= self.live:
            size = -(-size // 2)
        if size == len(ids) or self.live == 0:
            return None
        # Ended rows fill the batch up; what they sample is dropped.
        ended = [place for place, row in enumerate(ids) if self.lengths[row] is not None]
        keep = torch.tensor(living + ended[: size - self.live], device=self.ids.device)
        for layer in cache:  # layer by layer: a copy of the whole cache might not fit
            layer[:, :size] = layer[:, keep]
        self.ids = self.ids[keep]
        return keep


class _Graph:
    """One decoding step, recorded for one batch size and one length of the cache.

    Nothing that it computes on the way outlives a replay, so all graphs share the memory `pool`
    and the buffer `logits` (B, V): a graph's answer is there until the next one is replayed.
    """

    def __init__(self, model, cache, logits, pool):
        self.logits = logits
        rows = cache.size(2)
        self.tokens = torch.zeros(rows, dtype=torch.long, device=cache.device)
        self.positions = torch.full_like(self.tokens, cache.size(4) - 1)
        # Recording runs the step: what it writes there is put back.
        before = cache[:, :, :, :, -1].clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            model.decode(self.tokens, self.positions, cache)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            self.logits.copy_(model.decode(self.tokens, self.positions, cache))
        cache[:, :, :, :, -1] = before

    def __call__(self, tokens, positions):
        self.tokens.copy_(tokens)
        self.positions.copy_(positions)
        self.graph.replay()
        return self.logits
