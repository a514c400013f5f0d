"""Seven edits of `nanogpt` whose true effect is known, put through search and confirmation."""
