"""Search over ideas: strategies decide what to ask for, the loop asks, submits and waits."""

from assay.search.ask import SearchError
from assay.search.config import SearchConfig
from assay.search.loop import Observer, drive
from assay.search.pausing import SearchPaused
from assay.search.plan import Ask, Decision, Pending, Remeasure, Situation
from assay.search.strategy import Strategy, open_strategy, strategy_names
from assay.search.trajectories import Trajectory

__all__ = [
    "Ask",
    "Decision",
    "Observer",
    "Pending",
    "Remeasure",
    "SearchConfig",
    "SearchError",
    "SearchPaused",
    "Situation",
    "Strategy",
    "Trajectory",
    "drive",
    "open_strategy",
    "strategy_names",
]
