"""Where the results of an evaluation lie, and shards of one that are joined."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probmargin.core.errors import Interrupted, UsageError
from probmargin.core.shell import typed
from probmargin.core.speech import Say, silent
from probmargin.engine.files import can_write, check_folder, check_replaces, holds_arrays, holds_json, write_json
from probmargin.engine.signals import terminate_as_interrupt
from probmargin.evaluation.earlier import kept_apart, kept_lines, known_path, replaced_line, with_earlier
from probmargin.evaluation.summary import summarize
from probmargin.evaluation.verdicts import SCORES, Array, Verdicts, differences, join, write_arrays
from probmargin.runs.run import Run, open_run

_FREE = ("shard", "hardware", "commit", "versions")
"""What shards may differ in."""


@dataclass(frozen=True)
class Shard:
    """Every `count`-th image of the test set from `index` on, so that each shard has its share of any prefix."""

    index: int = 0
    count: int = 1

    def __str__(self) -> str:
        return f"{self.index + 1}/{self.count}"

    def positions(self, total: int) -> range:
        """The places of the shard's images.

        >>> list(Shard(1, 3).positions(8))
        [1, 4, 7]
        """
        if self.count > total:
            raise UsageError(f"{total} images cannot be split into {self.count} shards; ask for fewer")
        return range(self.index, total, self.count)


def parse_shard(text: str | None) -> Shard:
    """Read i/n, counted from 1.

    >>> parse_shard("2/5"), parse_shard(None)
    (Shard(index=1, count=5), Shard(index=0, count=1))
    """
    if text is None:
        return Shard()
    found = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise UsageError(f"--shard takes i/n with i from 1 to n, such as 2/5, not {text!r}")
    return Shard(int(found[1]) - 1, int(found[2]))


@dataclass(frozen=True)
class Place:
    """The files of an evaluation: of a run in its folder, of another model beside the file asked for."""

    results: Path | None = None
    parts: Path | None = None
    run: Run | None = None

    def check(self) -> None:
        """Refuse a run's folder, or that of its parts, that cannot be written to, before anything is computed."""
        if self.run is not None and self.parts is not None:
            for folder in (self.run.path, self.parts):
                check_folder(folder, "--out FILE.json")

    def shard_path(self, shard: Shard) -> Path:
        """Where a shard's verdicts lie."""
        if self.parts is None:
            raise UsageError("shards need a place to lie: give a run's folder, or --out FILE")
        return self.parts / f"shard-{shard.index + 1}-of-{shard.count}.npz"

    @contextmanager
    def saying_what_is_kept(self, *, fresh: bool = False) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM end an evaluation with a line on whether it can go on."""
        try:
            with terminate_as_interrupt():
                yield
        except KeyboardInterrupt:
            if self.parts is None:
                raise Interrupted("interrupted; nothing is kept: give --out FILE.json, and it can go on") from None
            but = ", without --fresh" if fresh else ""
            raise Interrupted(f"interrupted; what is judged is stored; go on with the same command{but}") from None

    def write(self, results: Mapping[str, Any], verdicts: Verdicts, *, knows_worst: bool = True) -> None:
        """Write the results, what is known of each example, and the run's record.

        The worst of each example is not known by these attacks alone where others that looked at it are left out.
        """
        if self.results is None:
            return
        if self.parts is not None and knows_worst:
            verdicts.save(known_path(self.parts, verdicts))
        write_arrays(self.results.with_suffix(".npz"), _arrays(verdicts, knows_worst=knows_worst))
        write_json(self.results, results)
        if self.run is not None:
            record = self.run.record
            before = [*(record.get("evaluations") or {}).values(), record.get("evaluation") or {}]
            others = kept_apart(filter(None, before), results)
            entries = {"evaluations": others} if others or "evaluations" in record else {}
            self.run.update_record(evaluation=dict(results), **entries)

    def write_shard(self, shard: Shard, verdicts: Verdicts, log: Say, *, fresh: bool) -> tuple[Verdicts, Path]:
        """Write a shard's verdicts for `merge`, with those of attacks that were carried out on it before."""
        path = self.shard_path(shard)
        together = verdicts if fresh else with_earlier(verdicts, self.parts)
        for line in kept_lines(verdicts.entries, together.entries):
            log(line)
        together.save(known_path(path.parent, together))
        together.save(path)
        return together, path

    def joined(self, verdicts: Verdicts, log: Say, *, fresh: bool = False) -> Verdicts:
        """The verdicts with those of attacks that were carried out before; says what is kept and what is replaced."""
        together = verdicts if fresh else with_earlier(verdicts, self.parts)
        lines = kept_lines(verdicts.entries, together.entries)
        if self.results is not None:
            lines.append(replaced_line(self.results, summarize(together)))
        for line in filter(None, lines):
            log(line)
        return together


def _arrays(verdicts: Verdicts, *, knows_worst: bool) -> dict[str, Array]:
    """Per example: its place, label, predictions and margins, clean and in the worst case."""
    arrays = {"ids": verdicts.ids, **verdicts.places(), "labels": verdicts.labels}
    names = dict(zip(SCORES, ("logit_margin", "probabilistic_margin", "predicted"), strict=True))
    for suffix, group in (("nat", verdicts.clean), *((("adv", verdicts.worst),) if knows_worst else ())):
        arrays |= {f"{names[key]}_{suffix}": group[key] for key in SCORES}
    return arrays


def place_of(run: Run | None, out: Path | None, *, apart: bool = False) -> Place:
    """A run's own folder, or a file and the folder FILE.parts beside it.

    Of a run whose results go to a file, what is known of each example is shared with its folder, and the results there
    stay. Shards, which `merge` looks for beside the file, what begins anew, and all of a run in a folder that cannot be
    written to lie `apart`.
    """
    if run is not None and (out is None or out.resolve() == run.evaluation_path.resolve()):
        return Place(run.evaluation_path, run.path / "evaluation", run)
    if run is not None and not apart and can_write(run.path / "evaluation"):
        return Place(out, run.path / "evaluation")
    if out is not None:
        return Place(out, out.with_name(out.name + ".parts"))
    return Place()


def check_out(out: Path, run: Path | None) -> None:
    """Refuse to write results, and the arrays beside them, over anything but older ones; the run's own are replaced."""
    if run is not None and out.resolve() == Run(run).evaluation_path.resolve():
        return
    check_replaces(out, "--out", "file of results", lambda path: holds_json(path, "protocol", "norm", "num_examples"))
    arrays = out.with_suffix(".npz")
    check_replaces(arrays, "--out", "file of results", lambda path: holds_arrays(path, "logit_margin_nat"))


def check_adversarial(path: Path, out: Path | None) -> None:
    """Refuse to write adversarial images over anything but older ones, or where the results' arrays go."""
    if out is not None and path.resolve() == out.with_suffix(".npz").resolve():
        raise UsageError(f"{path} is where --out {out} puts its arrays; choose another --save-adversarial")
    kind = "file of adversarial images"
    check_replaces(path, "--save-adversarial", kind, lambda path: holds_arrays(path, "x_adv", "x_adv_uint8"))


def merge(path: Path, log: Say = silent, count: int | None = None) -> tuple[dict[str, Any], Path]:
    """Join the shards of an evaluation: those of a run's folder, or those that `--out FILE` left beside FILE.

    With a count, shards of evaluations in another number of parts may lie there too.
    """
    is_runs_own = path.name == "evaluation.json" and (path.parent / "record.json").exists()
    folder = path.parent if is_runs_own else path
    place = place_of(open_run(folder), None) if folder.is_dir() or path.suffix != ".json" else place_of(None, path)
    assert place.parts is not None
    assert place.results is not None
    shards = _shards(place.parts, path, count)
    parts, left_out = _with_common([Verdicts.load(place.shard_path(shard)) for shard in shards])
    for shard, part in zip(shards[1:], parts[1:], strict=True):
        apart = differences(_fixed(parts[0]), _fixed(part))
        if apart:
            raise UsageError(f"shards 1 and {shard.index + 1} do not belong together: {apart[0]}; evaluate one again")
    joined = join(parts)
    if joined.ids.tolist() != list(range(len(joined.ids))):
        raise UsageError(f"the shards in {place.parts} leave images out: evaluate each with the same --num-examples")
    joined.facts.pop("shard", None)
    joined.facts["hardware"] = ", ".join(dict.fromkeys(part.facts.get("hardware", "") for part in parts))
    joined = place.joined(joined, log)
    results = summarize(joined)
    if left_out:
        log(
            f"left out, since only some shards know them: {', '.join(left_out)}; evaluate the others so and merge again"
        )
        results["margins"].pop("worst_case")
        results.get("worst_case", {}).pop("confusion", None)
    place.write(results, joined, knows_worst=not left_out)
    return results, place.results


def _with_common(parts: list[Verdicts]) -> tuple[list[Verdicts], list[str]]:
    """Shards with the attacks that all of them know, in the order of the first; and the attacks that only some know.

    They stay as they are where each knows another one than the rest: these were not asked for the same.
    """
    common = [name for name in parts[0].entries if all(name in part.entries for part in parts)]
    if all(len(part.entries) > len(common) for part in parts):
        return parts, []
    others = dict.fromkeys(name for part in parts for name in part.entries if name not in common)
    return [replace(part, entries={name: part.entries[name] for name in common}) for part in parts], list(others)


def _shards(folder: Path, path: Path, count: int | None) -> list[Shard]:
    """All shards of a folder, complete, or a line that says which are missing."""
    found = [re.fullmatch(r"shard-(\d+)-of-(\d+)", file.stem) for file in sorted(folder.glob("shard-*.npz"))]
    shards = [Shard(int(match[1]) - 1, int(match[2])) for match in found if match]
    shards = [shard for shard in shards if count in (None, shard.count)]
    if not shards:
        place = f"--out {typed(path)}" if path.suffix == ".json" else typed(path)
        raise UsageError(f"{path} holds no shards; make them with: probmargin evaluate {place} --shard 1/2, then 2/2")
    counts = {shard.count for shard in shards}
    if len(counts) > 1:
        kinds = " and ".join(f"shard-*-of-{count}" for count in sorted(counts))
        raise UsageError(f"{folder} holds {kinds}; delete all but one kind and merge again")
    count = counts.pop()
    missing = [str(Shard(index, count)) for index in range(count) if Shard(index, count) not in shards]
    if missing:
        raise UsageError(f"missing: shard {', '.join(missing)}; run probmargin evaluate with --shard {missing[0]}")
    return [Shard(index, count) for index in range(count)]


def _fixed(verdicts: Verdicts) -> dict[str, Any]:
    """What all shards of one evaluation agree in."""
    fixed = {key: value for key, value in verdicts.facts.items() if key not in _FREE}
    attacks = {name: entry.facts.get("attack") for name, entry in verdicts.entries.items()}
    return {**fixed, "list of attacks": list(attacks), **attacks}
