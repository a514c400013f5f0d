"""A process of fake hosts: `python -m tests.support.faults.hosts --help`."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from itertools import islice
from pathlib import Path

from tests.support.faults.hosts.fleet import Fleet
from tests.support.faults.hosts.options import HostOptions
from tests.support.faults.hosts.work import Mischief, Work


def main() -> None:
    """Run hosts until SIGTERM; print a line of JSON when ready and one with counts at the end."""
    args = _parser().parse_args()
    tokens: dict[str, str] = json.loads(args.tokens_file.read_text())
    chosen = dict(islice(sorted(tokens.items()), args.first, args.first + args.hosts))
    asyncio.run(_serve(args.api, chosen, args.journals, _options(args)))


async def _serve(api: str, tokens: dict[str, str], journals: Path, options: HostOptions) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    fleet = Fleet(api, tokens, journals, options)
    loop.add_signal_handler(signal.SIGUSR1, lambda: _say("stats", **fleet.stats))
    starting = asyncio.create_task(fleet.start())
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        await starting
        _say("ready", hosts=len(tokens), gpus=len(tokens) * options.gpus)
        await stopped
        await fleet.stop()
    else:
        starting.cancel()
    _say("stopped", **fleet.stats)


def _say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


def _options(args: argparse.Namespace) -> HostOptions:
    return HostOptions(
        gpus=args.gpus,
        hardware_class=args.hardware_class,
        sync_seconds=args.sync_seconds,
        poll_seconds=args.poll_seconds,
        progress_seconds=args.progress_seconds,
        patience_seconds=args.patience_seconds,
        work=Work(
            low=args.seconds[0],
            high=args.seconds[-1],
            log_bytes=args.log_bytes,
            points=args.points,
            artifact_bytes=args.artifact_bytes,
            failing=args.failing,
            hold=args.hold,
        ),
        mischief=Mischief(
            start_failures=args.start_failures,
            infrastructure=args.infrastructure,
            repeat=args.repeat,
            late_seconds=args.late_seconds,
            reorder=args.reorder,
            adopt=args.adopt,
            bad_hosts=tuple(args.bad_host),
        ),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.faults.hosts", description=__doc__
    )
    add = parser.add_argument
    add("--api", required=True)
    add("--tokens-file", type=Path, required=True, help="JSON: name of a host -> its token.")
    add("--hosts", type=int, default=1 << 20, help="So many of the file's hosts, by name.")
    add("--first", type=int, default=0, help="Leaving out so many before them.")
    add("--journals", type=Path, required=True, help="Folder of the hosts' journals.")
    add("--gpus", type=int, default=8)
    add("--hardware-class", default="fake-gpu")
    add("--sync-seconds", type=float, default=10.0)
    add("--poll-seconds", type=float, default=5.0, help="0: syncs are --sync-seconds apart.")
    add("--progress-seconds", type=float, default=1.0)
    add("--patience-seconds", type=float, default=60.0)
    add("--seconds", type=float, nargs="+", default=[0.0], help="Length of runs, or its range.")
    add("--log-bytes", type=int, default=512)
    add("--points", type=int, default=2)
    add("--artifact-bytes", type=int, default=128)
    add("--failing", type=float, default=0.0, help="Share of codebases that fail.")
    add("--hold", type=Path, help="While this file is there, no run comes to its end.")
    add("--start-failures", type=float, default=0.0, help="Share of attempts that do not start.")
    add("--infrastructure", type=float, default=0.0, help="Share that a fake GPU fails.")
    add("--repeat", type=int, default=1, help="Every report is sent so often.")
    add("--late-seconds", type=float, default=0.0, help="And once more, so much later.")
    add("--reorder", action="store_true", help="Log pieces arrive out of order.")
    add("--adopt", action="store_true", help="Runs outlive the process.")
    add("--bad-host", action="append", default=[], help="Nothing starts on this host.")
    return parser


if __name__ == "__main__":
    main()
