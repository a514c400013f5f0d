"""How long texts are in tokens, where only a rough figure is needed before a model is asked."""

from __future__ import annotations

#: English prose has about four bytes to a token, code and numbers about three.
BYTES_PER_TOKEN = 3


def estimate_tokens(text: str) -> int:
    """Return the tokens of a text: its bytes in UTF-8, divided by three and rounded up.

    That is more than most tokenizers count, so that a prompt which fits by this rule fits. Other
    scripts than Latin have more bytes to a character and more tokens.
    """
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)
