"""A network of one's own whose file was edited since training: every command that takes its weights says so."""

import json
import sys
from pathlib import Path

import pytest
import torch
from program import Program, program as program

from probmargin import api as pm
from probmargin.runs.run import open_run

NET = """
from torch import nn
from parts import last
class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.flat, self.head = nn.Flatten(), last(num_classes)
    def forward(self, x):
        return self.head(self.flat(x))
def build(num_classes, in_channels):
    return Net(num_classes)
"""
PARTS = """
from torch import nn
def last(num_classes):
    return nn.Linear(64, num_classes)
"""
TRAIN = (
    *("train", "--data", "digits", "--model", "net:build", "--method", "at", "--set", "attack.num_steps=1"),
    *("--device", "cpu", "--epochs", "1", "--out", "run"),
)
JUDGE = ("evaluate", "run", "--attacks", "nat", "--num-examples", "40")
FEW = ("--num-examples", "40")
CHANGED = "net.py has changed since run was trained: its weights are taken in the network as it is now"


def forget() -> None:
    """Import the user's files anew, as another process would."""
    for name in ("net", "parts"):
        sys.modules.pop(name, None)


def edit(name: str, old: str, new: str) -> None:
    file = Path(name)
    text = file.read_text(encoding="utf-8")
    assert old in text
    # Of another length: bytecode that is kept goes by length and second.
    file.write_text(text.replace(old, new), encoding="utf-8")
    forget()


@pytest.fixture
def trained(program: Program) -> Program:
    Path("net.py").write_text(NET, encoding="utf-8")
    Path("parts.py").write_text(PARTS, encoding="utf-8")
    result = program(*TRAIN)
    assert result.code == 0, result.err
    return program


def test_the_record_has_the_files_of_a_network(trained: Program) -> None:
    files = open_run("run").record["model_files"]
    assert [one["file"] for one in files] == ["net.py", "parts.py"]
    assert str(Path.cwd()) not in json.dumps(files)


def test_a_network_of_ours_has_none(program: Program) -> None:
    model = ("--model", "small-cnn")
    assert program(*TRAIN, *model).code == 0
    assert "model_files" not in open_run("run").record


def test_an_unchanged_network_is_taken_without_a_word(trained: Program) -> None:
    forget()
    for command in (JUDGE, ("audit", "run", *FEW), ("export", "run", "--format", "safetensors", "-o", "w.safetensors")):
        result = trained(*command)
        assert result.code == 0, result.err
        assert "changed since" not in result.out
    assert "Changed since" not in Path("w.safetensors.card.md").read_text(encoding="utf-8")


def test_commands_that_take_its_weights_say_what_was_edited(trained: Program) -> None:
    assert trained(*JUDGE).code == trained("audit", "run", *FEW).code == 0
    edit("net.py", "self.flat(x)", "self.flat(1.0 - x)")
    exported = trained("export", "run", "--format", "safetensors", "-o", "w.safetensors", *FEW)
    assert exported.code == 0, exported.err
    assert CHANGED in exported.out
    assert "evaluation.json is of the network as it was before and is left out; judge it with: " in exported.out
    card = Path("w.safetensors.card.md").read_text(encoding="utf-8")
    assert "- Changed since training: net.py" in card
    assert "| nat |" not in card, "measured with the network as it was"
    assert "Audit, on the" not in card
    assert CHANGED in trained("audit", "run", *FEW).out
    assert CHANGED in trained(*JUDGE).out
    again = trained("export", "run", "--format", "safetensors", "-o", "again.safetensors", *FEW)
    assert "left out" not in again.out
    card = Path("again.safetensors.card.md").read_text(encoding="utf-8")
    assert "| nat |" in card
    assert "Audit, on the" in card


def test_a_file_that_it_imports_counts(trained: Program) -> None:
    edit("parts.py", "return nn.Linear(64, num_classes)", "return nn.Linear(64, num_classes, bias=True)")
    assert CHANGED.replace("net.py", "parts.py") in trained(*JUDGE).out


def test_a_network_that_moved_was_edited(trained: Program) -> None:
    text = Path("net.py").read_text(encoding="utf-8")
    Path("net.py").unlink()
    Path("net").mkdir()
    Path("net/__init__.py").write_text(text.replace("self.flat(x)", "self.flat(1.0 - x)"), encoding="utf-8")
    forget()
    assert CHANGED in trained(*JUDGE).out


def test_a_file_that_a_pass_imports_is_not_gone(program: Program) -> None:
    lazy = "        from parts import shift\n        return self.head(self.flat(shift(x)))"
    net = NET.replace("from parts import last\n", "").replace("last(num_classes)", "nn.Linear(64, num_classes)")
    Path("net.py").write_text(net.replace("        return self.head(self.flat(x))", lazy), encoding="utf-8")
    Path("parts.py").write_text("def shift(x):\n    return x + 0.1\n", encoding="utf-8")
    assert program(*TRAIN).code == 0
    assert [one["file"] for one in open_run("run").record["model_files"]] == ["net.py", "parts.py"]
    forget()
    judged = program(*JUDGE)
    assert judged.code == 0, judged.err
    assert "changed since" not in judged.out


def test_an_older_run_that_goes_on_knows_what_it_went_on_with(trained: Program) -> None:
    two = (*TRAIN[:-4], "--epochs", "2", "--keep-epochs", "1", "--out", "long")
    assert trained(*two).code == 0
    record = open_run("long").record
    files = record.pop("model_files")
    Path("long/record.json").write_text(json.dumps(record), encoding="utf-8")
    assert "changed since" not in trained("evaluate", "long", *JUDGE[2:]).out, "nothing is known of its files"
    for round_ in (1, 2):
        for file in Path("long/checkpoints").glob("state-0002.*"):
            file.unlink()
        Path("net.py").write_text(NET.replace("self.flat(x)", f"self.flat(x + {round_ - 1})"), encoding="utf-8")
        forget()
        assert trained(*two, "--resume").code == 0
    first, second = (place["model_files"][0] for place in open_run("long").record["resumes"])
    assert len({files[0]["sha256"], first["sha256"], second["sha256"]}) == 3
    assert "changed since" not in trained("evaluate", "long", *JUDGE[2:]).out, "as it was in the last of two resumes"
    Path("net.py").write_text(NET, encoding="utf-8")
    forget()
    assert "net.py has changed since long was trained" in trained("evaluate", "long", *JUDGE[2:]).out


def test_going_on_with_an_edited_network_is_said_and_listed(trained: Program) -> None:
    before = open_run("run").record["model_files"]
    two = (*TRAIN[:-4], "--epochs", "2", "--keep-epochs", "1", "--out")
    assert trained(*two, "long").code == 0
    for file in Path("long/checkpoints").glob("state-0002.*"):
        file.unlink()
    edit("net.py", "self.flat(x)", "self.flat(1.0 - x)")
    said = "not as long began with: net.py; what follows is by the code of now"
    resumed = trained(*two, "long", "--resume")
    assert resumed.code == 0, resumed.err
    assert said in resumed.out
    record = open_run("long").record
    assert record["model_files"] == before
    assert record["resumes"][-1]["model_files"][0] != before[0]
    assert "changed since" not in trained("evaluate", "long", *JUDGE[2:]).out, "as it was when it was last trained"
    forked = trained(*two, "fork", "--fork", "long@1")
    assert forked.code == 0, forked.err
    assert said in forked.out
    record = open_run("fork").record
    assert record["model_files"][0] != before[0]
    assert record["forked_from"]["model_files"] == before[:1], "its first epoch is by this"
    again = trained(*two, "fork", "--fork", "long@1", "--resume")
    assert "fork is finished" in again.out, again.err


def test_results_of_an_edited_network_are_refused_for_a_card(trained: Program) -> None:
    assert trained(*JUDGE, "--out", "found.json").code == 0
    edit("net.py", "self.flat(x)", "self.flat(1.0 - x)")
    trained.refuses(
        "--results found.json is of the network as it was before: evaluate it again",
        *("export", "run", "--format", "safetensors", "-o", "w.safetensors", "--results", "found.json"),
    )


def test_a_run_from_python_knows_its_files_too(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("net.py").write_text(NET, encoding="utf-8")
    Path("parts.py").write_text(PARTS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    import net  # type: ignore[import-not-found]

    draw = torch.Generator().manual_seed(0)
    data = (torch.rand(40, 1, 8, 8, generator=draw), torch.arange(40) % 10)
    settings = {"attack.num_steps": 1, "attack.eps": 0.1}
    pm.train(method="at", model=net.build(10, 1), data=(data, data), out="run", epochs=1, settings=settings)
    assert [one["file"] for one in open_run("run").record["model_files"]] == ["net.py", "parts.py"]
