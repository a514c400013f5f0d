"""The Implementer API and the implement loop."""
