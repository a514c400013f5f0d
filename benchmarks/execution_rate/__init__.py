"""How many ideas of a paper become a training that runs: scripted answers, and what they meet."""
