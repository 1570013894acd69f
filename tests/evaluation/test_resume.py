"""Killed and started again: the result is that of an evaluation nobody disturbed."""

import importlib
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, make_dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from autoattack_helpers import linear_task
from torch import nn

import probmargin.attacks
from probmargin.attacks.apgd import APGD
from probmargin.evaluation import parts as parts_module
from probmargin.evaluation.evaluate import EvaluationSettings, Keep, judge
from probmargin.evaluation.network import Ready
from probmargin.evaluation.parts import StoredParts, model_code_hash, weights_hash
from probmargin.evaluation.search import Finding, Score
from probmargin.evaluation.subject import EvaluationRequest, evaluate_subject
from probmargin.evaluation.summary import summarize
from probmargin.evaluation.verdicts import write_arrays
from probmargin.models.build import build_model
from probmargin.models.own_code import settings_of_layers

ATTACKS = ["nat", "pgd-3x2", "apgd-ce"]
SETTINGS = EvaluationSettings(eps=0.05, batch_size=7)
CHANGES_WITH_TIME = ("seconds", "seconds_by_step")


def timeless(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {key: timeless(value) for key, value in plain.items() if key not in CHANGES_WITH_TIME}
    return plain


class Killed(BaseException):
    pass


class CountedStore:
    """Ends the process, as it were, at a chosen write: before it, or after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, *, after: bool) -> None:
        self.at, self.after, self.written = at, after, 0
        self.write = write_arrays
        monkeypatch.setattr(parts_module, "write_arrays", self)

    def __call__(self, path: Path, arrays: Any) -> None:
        self.written += 1
        if self.written == self.at and not self.after:
            path.with_name(f".{path.name}.1.part").write_bytes(b"half a file")
            raise Killed
        self.write(path, arrays)
        if self.written == self.at:
            raise Killed


def run(folder: Path | None, settings: EvaluationSettings = SETTINGS, **identity: str) -> dict[str, Any]:
    model, x, labels = linear_task(count=20)
    keep = Keep(folder, {"weights": "w", "data": "d", **identity})
    verdicts, _ = judge(model, x, labels, attacks=ATTACKS, settings=settings, keep=keep)
    result: dict[str, Any] = timeless(summarize(verdicts))
    return result


@pytest.mark.parametrize(("at", "after"), [(1, False), (2, True), (4, False), (5, True), (7, False), (7, True)])
def test_an_interrupted_evaluation_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, after: bool
) -> None:
    expected = run(None)
    with monkeypatch.context() as patch:
        CountedStore(patch, at, after=after)
        with pytest.raises(Killed):
            run(tmp_path)
    with monkeypatch.context() as patch:
        second = CountedStore(patch, 0, after=False)
        assert run(tmp_path) == expected
    with monkeypatch.context() as patch:
        third = CountedStore(patch, 0, after=False)
        assert run(tmp_path) == expected
    assert third.written == 0
    assert second.written > 0


def test_stored_findings_of_anything_else_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path)
    others: list[tuple[EvaluationSettings, dict[str, str]]] = [
        (replace(SETTINGS, eps=0.04), {}),
        (replace(SETTINGS, seed=1), {}),
        (replace(SETTINGS, norm="L2"), {}),
        (replace(SETTINGS, step_size=0.001), {}),
        (SETTINGS, {"weights": "other"}),
        (SETTINGS, {"data": "other"}),
    ]
    for settings, identity in others:
        with monkeypatch.context() as patch:
            store = CountedStore(patch, 0, after=False)
            assert run(tmp_path, settings, **identity) == run(None, settings)
        assert store.written > 0
    with monkeypatch.context() as patch:
        patch.setattr(parts_module, "attack_code_hash", lambda: "newer code")
        store = CountedStore(patch, 0, after=False)
        run(tmp_path)
    assert store.written > 0


def test_another_batch_size_uses_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(tmp_path, replace(SETTINGS, batch_size=9))
    store = CountedStore(monkeypatch, 0, after=False)
    assert run(tmp_path, replace(SETTINGS, batch_size=4)) == expected
    assert store.written == 0


def test_of_pieces_that_overlap_the_first_counts(tmp_path: Path) -> None:
    """An image of both would count twice, in warnings for one."""
    parts = StoredParts(tmp_path, torch.arange(6))
    for rows in (torch.arange(3), torch.arange(2, 6)):
        zeros, no = torch.zeros(len(rows)), torch.zeros(len(rows), dtype=torch.bool)
        parts.keep("apgd-ce", Finding(rows, no, Score(zeros, zeros, rows), zeros, no))
    assert [finding.rows.tolist() for finding in parts.known("apgd-ce")] == [[0, 1, 2]]


def test_a_damaged_part_is_computed_again(tmp_path: Path) -> None:
    expected = run(tmp_path)
    for path in sorted(tmp_path.glob("*/*.npz"))[::2]:
        path.write_bytes(path.read_bytes()[:40])
    assert run(tmp_path) == expected


def test_images_are_stored_only_where_they_are_asked_for(tmp_path: Path) -> None:
    model, x, labels = linear_task(count=6)
    for images in (False, True):
        keep = Keep(tmp_path, {}, images=images)
        verdicts, x_adv = judge(model, x, labels, attacks=["apgd-ce"], settings=SETTINGS, keep=keep)
        assert (x_adv is not None) == images
    again, once_more = judge(model, x, labels, attacks=["apgd-ce"], settings=SETTINGS, keep=keep)
    assert x_adv is not None
    assert once_more is not None
    assert torch.equal(x_adv, once_more)
    assert again.broken_by == verdicts.broken_by


def test_fresh_results_ignore_what_is_stored(tmp_path: Path) -> None:
    parts = StoredParts(tmp_path, torch.arange(3))
    assert parts.known("apgd-ce") == []
    model, x, labels = linear_task(count=6)
    keep = Keep(tmp_path, {})
    judge(model, x, labels, attacks=["apgd-ce"], settings=SETTINGS, keep=keep)
    (folder,) = tmp_path.glob("apgd-ce-*")
    assert StoredParts(folder, torch.arange(6)).known("apgd-ce")
    assert StoredParts(folder, torch.arange(6), fresh=True).known("apgd-ce") == []
    assert not StoredParts(folder, torch.arange(6, 9)).known("apgd-ce")


def test_the_hash_of_weights_sees_every_tensor() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    first = weights_hash(model)
    assert weights_hash(model.to(memory_format=torch.channels_last)) == first  # type: ignore[call-overload]
    model[1].running_mean[0] += 1  # type: ignore[index,operator]
    assert weights_hash(model) != first


FOREIGN = """
from torch import nn

class Net(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale, self.head = scale, nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.scale * x.flatten(1))

def one():
    return Net(1.0)

def other():
    return Net(-1.0)
"""


@pytest.mark.parametrize("folder", ["attacks", "core", "evaluation", "models"])
def test_code_that_verdicts_hang_on_is_told_apart(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("attacks", "core", "evaluation", "models"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.py").write_text("", encoding="utf-8")
    monkeypatch.setattr(probmargin.attacks, "__file__", str(tmp_path / "attacks" / "__init__.py"))
    before = parts_module.attack_code_hash.__wrapped__()
    (tmp_path / folder / "one.py").write_text("changed = True\n", encoding="utf-8")
    assert parts_module.attack_code_hash.__wrapped__() != before


HELPED = {
    "helped_net.py": "from helped.layers import Net\n\n\ndef build():\n    return Net()\n",
    "helped/__init__.py": "",
    "helped/layers.py": """
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(64, 10)

    def forward(self, x):
        from .inputs import ready

        return self.last(ready(x).flatten(1))
""",
    "helped/inputs.py": "from .level import LEVEL\n\n\ndef ready(x):\n    return x * LEVEL\n",
    "helped/level.py": "LEVEL = 1.0\n",
}


@pytest.mark.parametrize("name", HELPED)
def test_code_that_a_model_imports_is_a_part_of_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file, text in HELPED.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    model = importlib.import_module("helped_net").build()
    model(torch.rand(1, 1, 8, 8))
    before = model_code_hash(model, "helped_net:build")
    assert model_code_hash(model, "helped_net:build") == before
    (tmp_path / name).write_text(f"{HELPED[name]}\n# changed\n", encoding="utf-8")
    assert model_code_hash(model, "helped_net:build") != before
    for module in [one for one in sys.modules if one.partition(".")[0] in ("helped", "helped_net")]:
        del sys.modules[module]


def test_the_hash_of_a_models_code_hangs_on_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for net, level in (("a", "b"), ("d", "c")):
        for folder, name, text in (
            (net, "moved_net", "from moved_level import LEVEL\n"),
            (level, "moved_level", "LEVEL = 1\n"),
        ):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / f"{name}.py").write_text(text, encoding="utf-8")
            monkeypatch.syspath_prepend(tmp_path / folder)
            sys.modules.pop(name, None)
        importlib.import_module("moved_net")
        found.append(model_code_hash(nn.Identity(), "moved_net:build"))
    assert found[0] == found[1]
    text = (tmp_path / "c/moved_level.py").read_text()
    (tmp_path / "c/moved_level.py").write_text((tmp_path / "d/moved_net.py").read_text())
    (tmp_path / "d/moved_net.py").write_text(text)
    assert model_code_hash(nn.Identity(), "moved_net:build") != found[0], "the files changed places"
    for name in ("moved_net", "moved_level"):
        del sys.modules[name]


class Set(nn.Module):
    """Has settings of every kind beside its weights."""

    def __init__(self, kept: float = 0.0, **settings: Any) -> None:
        super().__init__()
        for name, value in settings.items():
            setattr(self, name, value)
        self.register_buffer("_kept", torch.tensor([kept]), persistent=False)
        self.last = nn.Linear(4, 2)


class Own:
    """An object such as a small configuration."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Slotted:
    __slots__ = ("level",)

    def __init__(self, level: int) -> None:
        self.level = level


class Picky(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        return self[name]


@dataclass(frozen=True)
class Chosen:
    level: int


OTHERS = make_dataclass("Others", ["level"])
OTHERS.__module__ = "types"
"""A dataclass of Python's own or of an installed package."""


class Mode(Enum):
    ONE = 1
    TWO = 2


def ring(level: int, count: int = 40) -> Own:
    """Objects that all hold each other, and a list that holds itself."""
    every = [Own(level=level, place=place) for place in range(count)]
    for one in every:
        one.every, one.some = every, {*every[:20]}  # type: ignore[attr-defined]
    every.append(every)  # type: ignore[arg-type]
    return every[0]


@pytest.mark.parametrize(
    ("one", "another"),
    [
        ({"level": 1.0}, {"level": 2.0}),
        ({"_level": 1.0}, {"_level": 2.0}),
        ({"mean": torch.tensor([0.0])}, {"mean": torch.tensor([0.5])}),
        ({"mean": torch.zeros(2, 3)}, {"mean": torch.zeros(3, 2)}),
        ({"means": [torch.zeros(1)]}, {"means": [torch.ones(1)]}),
        ({"mean": np.zeros(2)}, {"mean": np.ones(2)}),
        ({"level": np.float32(1)}, {"level": np.float32(2)}),
        ({"kept": 0.0}, {"kept": 0.5}),
        ({"names": ("a",)}, {"names": ("a", "b")}),
        ({"sizes": [[1, 2], [3]]}, {"sizes": [[1], [2, 3]]}),
        ({"chosen": {"level": 1.0}}, {"chosen": {"level": 2.0}}),
        ({"modes": {"a"}}, {"modes": {"b"}}),
        ({"call": torch.relu}, {"call": torch.tanh}),
        ({"call": partial(torch.clamp, min=0)}, {"call": partial(torch.clamp, min=1)}),
        ({"kind": torch.float32}, {"kind": torch.float16}),
        ({"own": Own(level=1)}, {"own": Own(level=2)}),
        ({"own": Own(level=1)}, {"own": Own(other=1)}),
        ({"own": Own(means=[torch.zeros(1)])}, {"own": Own(means=[torch.ones(1)])}),
        ({"own": {"a": Own(inner=Own(level=1))}}, {"own": {"a": Own(inner=Own(level=2))}}),
        ({"own": {Own(level=1)}}, {"own": {Own(level=2)}}),
        ({"own": Slotted(1)}, {"own": Slotted(2)}),
        ({"own": Chosen(1)}, {"own": Chosen(2)}),
        ({"own": OTHERS(1)}, {"own": OTHERS(2)}),
        ({"own": SimpleNamespace(level=1)}, {"own": SimpleNamespace(level=2)}),
        ({"own": Mode.ONE}, {"own": Mode.TWO}),
        ({"own": Picky(level=1)}, {"own": Picky(level=2)}),
        ({"own": ring(1)}, {"own": ring(2)}),
    ],
)
def test_what_layers_are_set_to_is_a_part_of_a_model(one: dict[str, Any], another: dict[str, Any]) -> None:
    model, same, other = Set(**one), Set(**one), Set(**another)
    for each in (same, other):
        each.load_state_dict(model.state_dict())
    same.train(not model.training)
    assert weights_hash(other) == weights_hash(model)
    assert model_code_hash(same, "mine:build") == model_code_hash(model, "mine:build")
    assert model_code_hash(other, "mine:build") != model_code_hash(model, "mine:build")


@pytest.mark.parametrize(
    ("here", "there"),
    [("/home/me/net.pt", "/data/net.pt"), ("cuda:0", "cuda:1"), ("cpu", "cuda")],
)
def test_a_machines_folders_and_devices_are_no_part_of_a_model(here: str, there: str) -> None:
    assert model_code_hash(Set(where=here), "mine:build") == model_code_hash(Set(where=there), "mine:build")


@pytest.mark.parametrize(
    "odd",
    [torch.eye(2).to_sparse(), torch.zeros(2, device="meta"), torch.ones(2, dtype=torch.complex64).conj()],
    ids=["sparse", "meta", "conjugate"],
)
def test_a_tensor_of_an_odd_kind_is_no_error(odd: torch.Tensor) -> None:
    assert model_code_hash(Set(odd=odd), "mine:build") == model_code_hash(Set(odd=odd), "mine:build")


def test_what_is_no_plain_object_counts_by_its_kind() -> None:
    one, two = (
        Set(log=logging.getLogger(name), net=[nn.Linear(2, 2)], lock=threading.Lock(), none=object())
        for name in ("one", "two")
    )
    assert model_code_hash(one, "mine:build") == model_code_hash(two, "mine:build")
    deep: list[Any] = []
    for _ in range(2000):
        deep = [deep]
    assert "list" in settings_of_layers(Set(deep=deep))["deep"]


class Closed:
    """An object of one's own with private slots, that answers for no other name."""

    __slots__ = ("__level", "unset")

    def __init__(self, level: int) -> None:
        self.__level = level

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)


def test_private_slots_count_and_numbers_of_numpy_are_told_as_in_every_version() -> None:
    one, same, other = (settings_of_layers(Set(own=Closed(level))) for level in (1, 1, 2))
    assert one == same
    assert one != other
    assert "(" == settings_of_layers(Set(level=np.float64(0.5)))["level"][0], "a shape, not a repr"


OBJECTS = """
from dataclasses import dataclass, field
from torch import nn
from probmargin.evaluation.parts import model_code_hash

class Config:
    def __init__(self):
        self.names, self.me, self.call = {"a", "b", "c", "d"}, self, lambda x: x
        self.inner = Inner()

@dataclass
class Inner:
    marks: set = field(default_factory=lambda: {Mark(name) for name in "abcdef"})

@dataclass(frozen=True)
class Mark:
    name: str

layer = nn.Identity()
layer.config = Config()
print(model_code_hash(layer, "mine:build"))
"""


def test_objects_are_told_alike_in_every_process(tmp_path: Path) -> None:
    (tmp_path / "objects.py").write_text(OBJECTS, encoding="utf-8")
    found = {
        subprocess.run(
            [sys.executable, str(tmp_path / "objects.py")],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


KEEPS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.seen, self.passes = nn.utils.weight_norm(nn.Linear(64, 10)), None, 0

    def forward(self, x):
        self.seen, self.passes = x, self.passes + 1
        return self.last(x.flatten(1))

def build(num_classes, in_channels):
    return Net()
"""


@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_what_a_pass_leaves_in_a_model_is_no_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keeps_to_judge.py").write_text(KEEPS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    torch.save(importlib.import_module("keeps_to_judge").Net().state_dict(), tmp_path / "net.pt")
    request = EvaluationRequest(
        model="keeps_to_judge:build",
        checkpoint=tmp_path / "net.pt",
        data="digits",
        num_examples=20,
        device="cpu",
        out=tmp_path / "result.json",
    )
    for attacks in (("nat",), ("fgsm",)):
        found, _ = evaluate_subject(replace(request, attacks=attacks), lambda _: None)
    assert {"nat", "fgsm"} <= set(found)


def test_verdicts_of_the_same_weights_under_other_code_are_not_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine_to_judge.py"
    path.write_text(FOREIGN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module("mine_to_judge")
    torch.manual_seed(0)
    torch.save(module.one().state_dict(), tmp_path / "net.pt")
    out = tmp_path / "result.json"

    def accuracy(name: str) -> tuple[float, str]:
        request = EvaluationRequest(
            model=f"mine_to_judge:{name}",
            checkpoint=tmp_path / "net.pt",
            data="digits",
            attacks=("nat", "fgsm"),
            eps="0.01",
            device="cpu",
            out=out,
        )
        found, _ = evaluate_subject(request, lambda _: None)
        return found["fgsm"]["robust_accuracy"], found["model_code"]

    first, other = accuracy("one"), accuracy("other")
    assert first[0] != other[0]
    assert first[1] != other[1]
    assert accuracy("one") == first
    path.write_text(FOREIGN.replace("self.scale * x", "self.scale * (1 - x)"), encoding="utf-8")
    monkeypatch.delitem(sys.modules, "mine_to_judge")
    importlib.invalidate_caches()
    changed = accuracy("one")
    assert changed[0] != first[0]
    assert changed[1] != first[1]


def test_our_own_networks_need_no_hash_of_their_code() -> None:
    assert model_code_hash(build_model("small-cnn", num_classes=10, in_channels=1), "small-cnn") is None
    assert model_code_hash(nn.Sequential(nn.Flatten()), "mine:build") != model_code_hash(nn.Sequential(), "mine:build")


def test_a_run_is_not_attacked_twice(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(trained, tmp_path / "run")
    request = EvaluationRequest(run=folder, attacks=("nat", "apgd-ce"), num_examples=30, device="cpu")
    first, path = evaluate_subject(request, lambda _: None)
    assert path == folder / "evaluation.json"
    calls: list[int] = []
    attack = APGD.run

    def counted(self: APGD, *arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return attack(self, *arguments, **options)

    monkeypatch.setattr(APGD, "run", counted)
    again, _ = evaluate_subject(request, lambda _: None)
    assert again == {**first, "nat": {**first["nat"], "seconds": again["nat"]["seconds"]}}
    assert calls == []
    evaluate_subject(replace(request, fresh=True), lambda _: None)
    assert calls


@pytest.mark.slow
def test_killed_at_ten_random_points_the_result_is_the_same(trained: Path, tmp_path: Path) -> None:
    """SIGKILL, whatever it is doing; the parts on disk are what the next start finds."""

    def command(folder: Path) -> list[str]:
        attacks = ["--attacks", "nat,pgd-20,aa", "--num-examples", "60", "--batch-size", "60", "--device", "cpu"]
        return [sys.executable, "-m", "probmargin", "evaluate", str(folder), *attacks]

    def parts(folder: Path) -> int:
        return len(list(folder.glob("evaluation/*/*.npz")))

    calm, disturbed = (shutil.copytree(trained, tmp_path / name) for name in ("calm", "disturbed"))
    began = time.perf_counter()
    subprocess.run(command(calm), check=True, capture_output=True)
    whole = time.perf_counter() - began
    draw = random.Random(0)
    found = []
    for number in range(10):
        # In turn at a moment of its own and after one more part: on a machine of any speed it cannot get far unseen.
        before = parts(disturbed)
        process = subprocess.Popen(command(disturbed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.perf_counter() + (draw.uniform(0.1, 0.5) * whole if number % 2 else 300.0)
        while parts(disturbed) <= before and process.poll() is None and time.perf_counter() < end:
            time.sleep(0.01)
        process.kill()
        process.wait()
        found.append(parts(disturbed))
        if (disturbed / "evaluation.json").exists():
            shutil.rmtree(disturbed / "evaluation")
            (disturbed / "evaluation.json").unlink()
    subprocess.run(command(disturbed), check=True, capture_output=True)
    assert len(set(found)) > 2, found
    results = [json.loads((folder / "evaluation.json").read_text(encoding="utf-8")) for folder in (calm, disturbed)]
    assert timeless(results[0]) == timeless(results[1])


def test_what_another_machine_searched_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, labels = linear_task(count=12)
    said: list[str] = []

    def judged(hardware: str, examples: int, attacks: str = "nat,apgd-ce,aa") -> dict[str, Any]:
        settings = replace(SETTINGS, aa_examples=examples)
        keep = Keep(tmp_path, {"weights": "w"}, hardware=hardware)
        names = attacks.split(",")
        verdicts, _ = judge(model, x, labels, attacks=names, settings=settings, keep=keep, log=said.append)
        return summarize(verdicts)

    with monkeypatch.context() as patch:
        patch.setattr(Ready, "precision", property(lambda _: "bf16 and tf32"))
        first = judged("H200", 4)
    assert first["aa"]["search_precision"] == "bf16 and tf32"
    assert "hardware" not in first["aa"]
    line = "searched in bf16 and tf32 before: no second look in float32 is taken here"
    assert line not in said
    then = judged("CPU", 4)
    assert then["aa"]["search_precision"] == "bf16 and tf32"
    assert then["aa"]["hardware"] == then["apgd-ce"]["hardware"] == "H200 (collected on CPU)"
    assert "hardware" not in then["nat"]
    assert line in said
    more = judged("CPU", 8, "aa")
    assert more["aa"]["search_precision"] == "bf16 and tf32, float32"
    assert more["aa"]["hardware"] == "H200, CPU"
