"""A server that speaks the wire formats of OpenAI and Anthropic and answers as a test decides.

No model is behind it. `server` is the HTTP server, `openai` and `anthropic` build what it sends,
`counting`, `seeded` and `searching` are providers whose answers follow from what they are asked.
"""
