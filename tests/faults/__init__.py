"""What may break, broken on purpose: every test proves that its fault happened, and then checks
that nothing was lost, doubled or left behind."""
