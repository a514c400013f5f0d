"""The weights that training starts from: a Hugging Face model folder of the Qwen2 family.

It is taken from `$ASSAY_DATASETS/<name>/` (with or without the owner's name) if that is there,
otherwise from the hub. Whatever would only fail after minutes of training is looked at here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from sources import hub  # Assay adds it; by hand: `assay env unpack grpo DIR`

REQUIRED = ("config.json", "tokenizer.json")
OPTIONAL = ("tokenizer_config.json", "generation_config.json")
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FAMILIES = ("qwen2",)  # what codebase/model.py reads

Fetch = Callable[[Sequence[str]], Iterator[Path]]


def fetch(config: Mapping[str, Any], datasets: Path | None, target: Path) -> None:
    """Put the model `config["model"]` into `target`, checked.

    `config["model"]` is a name on the hub such as "Qwen/Qwen2.5-Math-1.5B", `model_revision` a
    branch, tag or commit of it.
    """
    repo, revision = config["model"], config.get("model_revision", "main")
    name = repo.rsplit("/", 1)[-1]
    owned = [datasets / repo, datasets / name] if datasets else []
    folder = next((path for path in owned if path.is_dir()), None)
    if folder:
        names = {path.name for path in folder.iterdir()}
        collect(str(folder), names, lambda wanted: (folder / n for n in wanted), target)
        return
    own = f"{name}/"

    def download(wanted: Sequence[str]) -> Iterator[Path]:
        return hub.fetch(repo, wanted, kind="model", own=own, revision=revision)

    collect(repo, available(repo, revision, own), download, target)


def available(repo: str, revision: str, own: str) -> set[str]:
    """The names of the hub's files; what the cache holds if it holds weights (they come last)."""
    names = (*REQUIRED, *OPTIONAL, INDEX, SINGLE)
    cached = {name for name in names if hub.in_cache(repo, name, "model", revision)}
    if cached.issuperset(REQUIRED) and cached & {SINGLE, INDEX}:
        return cached
    return set(hub.listing(repo, "model", own, revision))


def collect(where: str, names: set[str], get: Fetch, target: Path) -> None:
    """Small files first: what they say decides whether the large ones are wanted."""
    if missing := [name for name in REQUIRED if name not in names]:
        raise SystemExit(f"{where}: no {missing[0]}: it must be a Hugging Face model folder")
    if not names & {SINGLE, INDEX}:
        raise SystemExit(
            f"{where}: no weights: neither {SINGLE} nor {INDEX} is there; convert other formats"
            " with transformers' save_pretrained"
        )
    target.mkdir(parents=True, exist_ok=True)
    small = [name for name in (*REQUIRED, *OPTIONAL) if name in names]
    for path in get(small):
        hub.link(path, target / path.name)
    described = read_config(target / "config.json", where)
    shards = [SINGLE]
    if SINGLE not in names:
        hub.link(next(get([INDEX])), target / INDEX)
        shards = read_index(target / INDEX, where)
    for path in get(shards):
        if not path.is_file():
            raise SystemExit(f"{where}: {path.name} is missing, though {INDEX} names it")
        hub.link(path, target / path.name)
    check_tensors([target / name for name in shards], described, where)


def read_config(path: Path, where: str) -> dict[str, Any]:
    described = read_json(path, where)
    if described.get("model_type") not in FAMILIES:
        raise SystemExit(
            f"{where}: config.json: model_type is {described.get('model_type')!r}; the codebase"
            f" reads {' and '.join(FAMILIES)}"
        )
    if type(described.get("num_hidden_layers")) is not int:
        raise SystemExit(f"{where}: config.json: num_hidden_layers is missing")
    return described


def read_index(path: Path, where: str) -> list[str]:
    weight_map = read_json(path, where).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise SystemExit(f"{where}: {INDEX}: no weight_map that says where every tensor is")
    shards = sorted(set(weight_map.values()))
    for name in shards:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise SystemExit(f"{where}: {INDEX}: {name!r} is no safetensors file of this folder")
    return shards


def read_json(path: Path, where: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise SystemExit(f"{where}: {path.name}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise SystemExit(f"{where}: {path.name}: not a JSON object")
    return found


def check_tensors(paths: list[Path], described: Mapping[str, Any], where: str) -> None:
    """Read the headers: they fit their files' sizes, and every layer is there."""
    tensors: set[str] = set()
    for path in paths:
        try:
            with safe_open(path, framework="np") as file:
                tensors |= set(file.keys())
        except SafetensorError as error:
            raise SystemExit(f"{where}: {path.name}: truncated or corrupt: {error}") from None
    layers = range(described["num_hidden_layers"])
    expected = ["model.embed_tokens.weight", "model.norm.weight"]
    expected += [f"model.layers.{i}.mlp.down_proj.weight" for i in layers]
    if missing := [name for name in expected if name not in tensors]:
        raise SystemExit(
            f"{where}: the tensor {missing[0]} and {len(missing) - 1} more are missing, though"
            " config.json speaks of them"
        )
