"""Conditions: the facts about a worker that decide whether two results may be compared.

Deciding facts keep results apart whenever they differ. Recorded facts (a driver, a model of CPU,
the patch level of a library) are presumed to change nothing; a host on which they differ measures
the unmodified codebase first, and its results are kept apart only if those differ.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: The id of conditions that nobody recorded: all that is known is the hardware class.
UNRECORDED = ""
#: Whose measurements controls are: no owner of an API key has this name.
OWN_OWNER = "assay"
#: Counted up with every change of Assay's own scoring that moves results.
EVALUATION = 1
#: Deciding facts that change the data or how they are scored, so that no measurement of the
#: unmodified codebase can show that they do not matter.
INCOMPARABLE = ("hardware_class", "held_out_key", "evaluation")
_RECORDED = ("driver", "cpu_model", "python", "numpy")

Facts = dict[str, str]


@dataclass(frozen=True)
class Conditions:
    """What the results of a batch or a baseline have in common.

    Attributes:
        hardware_class: Of the workers they are made on.
        ids: The id of the conditions, and those of others that are taken for equal.
    """

    hardware_class: str
    ids: tuple[str, ...] = (UNRECORDED,)

    @property
    def id(self) -> str:
        """The one under which new measurements are asked for."""
        return self.ids[0]


@dataclass(frozen=True)
class HostFacts:
    """What a worker told about itself, as far as it matters to an environment.

    Attributes:
        deciding: Keep results apart.
        all: These and the recorded ones.
    """

    deciding: Facts
    all: Facts

    @property
    def wide(self) -> str:
        """The id of the conditions that all hosts with these deciding facts share."""
        return conditions_id(self.deciding)

    @property
    def narrow(self) -> str:
        """The id of the conditions of hosts that are alike in the recorded facts, too."""
        return conditions_id(self.all)

    @property
    def recorded(self) -> Facts:
        """Those that do not decide."""
        return {name: told for name, told in self.all.items() if name not in self.deciding}

    @property
    def sets(self) -> tuple[tuple[str, Facts], tuple[str, Facts]]:
        """Both sets of facts under their ids."""
        return (self.wide, self.deciding), (self.narrow, self.all)


def host_facts(
    hardware_class: str, info: Mapping[str, Any], packages: Sequence[str] = ()
) -> HostFacts:
    """Read the facts from what a worker registered with.

    `packages` are those whose version decides besides torch, as an environment declares them.
    Older workers do not tell all facts; what one does not tell is left out.
    """
    deciding = {"hardware_class": hardware_class}
    key = info.get("held_out_key")
    if isinstance(key, str):
        deciding["held_out_key"] = key or "none"
    if info.get("evaluation") is not None:
        deciding["evaluation"] = str(info["evaluation"])
    if info.get("torch"):
        deciding["torch"] = minor(str(info["torch"]))
    if info.get("image"):
        deciding["image"] = str(info["image"])
    told = info.get("packages")
    if isinstance(told, Mapping):
        for name in packages:
            deciding[name] = str(told.get(normalised(name), "absent"))
    recorded = {name: str(info[name]) for name in _RECORDED if info.get(name)}
    if info.get("torch"):
        recorded["torch_version"] = str(info["torch"])
    return HostFacts(deciding, deciding | recorded)


def minor(version: str) -> str:
    """The first two numbers of a version: `2.9` of `2.9.1+cu128`."""
    found = re.match(r"\d+\.\d+", version)
    return found.group() if found else version


def normalised(package: str) -> str:
    """The name of a distribution as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", package).lower()


def conditions_id(facts: Mapping[str, str]) -> str:
    """The id of conditions with exactly these facts."""
    text = json.dumps(facts, sort_keys=True, ensure_ascii=False)
    return f"cnd_{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Say in which facts two sets differ, each as `torch: 2.8 and 2.9`.

    What one of them does not tell is `unknown`.
    """
    names = sorted(one.keys() | other.keys())
    told = [(name, one.get(name, "unknown"), other.get(name, "unknown")) for name in names]
    return [f"{name}: {mine} and {theirs}" for name, mine, theirs in told if mine != theirs]
