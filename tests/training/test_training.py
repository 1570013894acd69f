"""The loop end to end, on data so small that it takes a second."""

import json
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from blobs import blobs
from strategies import tiny_net
from torch import nn
from training_runs import SMALL, Fit, StopAfter, fit, recipe, same

import probmargin.training.train as train_module
from probmargin import api as pm
from probmargin.core.errors import Interrupted, UsageError
from probmargin.engine.signals import stop_signals
from probmargin.methods.method import Phase
from probmargin.methods.resolve import METHODS, resolve
from probmargin.reporting.cells import deviation
from probmargin.runs.run import open_run
from probmargin.training.guards import TrainingStopped
from probmargin.training.progress import Reporter
from probmargin.training.request import TrainRequest
from probmargin.training.train import train


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 2)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.linear(x.flatten(1))
        return logits


def test_training_makes_a_linear_model_robust(tmp_path: Path) -> None:
    data, model = blobs(), Linear()
    images = (data.test.floats(), data.test.labels)
    before = pm.evaluate(model, images, ["pgd-20"], eps=0.1)["pgd-20"]["robust_accuracy"]
    run = pm.train("mail-at", model=model, data=data, out=tmp_path / "run", epochs=10, batch_size=16, settings=SMALL)
    after = pm.evaluate(run.model, images, ["nat", "pgd-20"], eps=0.1)
    assert before <= 0.6
    assert after["pgd-20"]["robust_accuracy"] >= 0.95
    assert after["nat"]["accuracy"] >= 0.95


def test_a_second_run_is_the_same_to_the_bit(undisturbed: Fit, tmp_path: Path) -> None:
    first, path = undisturbed(recipe())
    second, other = fit(tmp_path / "b", recipe())
    assert same(first, second)
    losses = [[row["loss"] for row in open_run(p).metrics] for p in (path, other)]
    assert losses[0] == losses[1]
    third, _ = fit(tmp_path / "c", recipe(), seed=2)
    assert not same(first, third)


def test_a_run_writes_what_it_promises(tmp_path: Path) -> None:
    _, path = fit(tmp_path / "run", recipe("mail-trades"), keep_epochs=(2,))
    run = open_run(path)
    assert run.recipe == recipe("mail-trades")
    rows = run.metrics
    assert [row["epoch"] for row in rows] == list(range(6))
    expected = {"epoch", "lr", "loss", "natural_accuracy", "robust_accuracy", "weight_mean", "effective_sample_size"}
    assert expected | {"images_per_second"} <= rows[0].keys()
    burn_in = run.recipe.burn_in_epochs
    assert all(row["effective_sample_size"] == pytest.approx(64) for row in rows[:burn_in])
    assert all(row["effective_sample_size"] < 64 for row in rows[burn_in:])
    assert all(row["weight_mean"] == pytest.approx(1, abs=1e-5) for row in rows)
    record = run.record
    assert record["recipe_hash"] == run.recipe.hash()
    promised = {"id", "seed", "data", "model", "commit", "hardware", "versions", "train_seconds", "images_per_second"}
    assert promised <= record.keys()
    names = [state.name for state in run.states()]
    assert names == ["state-0002", f"state-{burn_in:04d}", "state-0005", "state-0006"]
    assert not list(path.rglob("*.part"))


def test_metrics_say_what_the_batches_did(undisturbed: Fit, tmp_path: Path) -> None:
    _, path = undisturbed(recipe("at"))
    rows = open_run(path).metrics
    assert all(row["natural_accuracy"] is None for row in rows)
    assert all(0 <= row["robust_accuracy"] <= 1 for row in rows)
    _, path = fit(tmp_path / "standard", recipe("standard"))
    assert all(row["robust_accuracy"] is None for row in open_run(path).metrics)


def test_the_learning_rate_that_is_written_is_that_of_the_last_step(undisturbed: Fit) -> None:
    """A cosine over two epochs stands at a half after the first, and at nothing after the second."""
    _, path = undisturbed(recipe("standard", epochs=2, lr_schedule="cosine", lr_per="iteration"))
    assert [row["lr"] for row in open_run(path).metrics] == pytest.approx([0.025, 0.0])


STATEFUL = {
    "mail-at": recipe("mail-at"),
    "gairat": recipe("gairat"),
    "awp with an average": replace(recipe("awp"), ema=resolve("at", settings={"ema.decay": 0.9}).ema),
    "fat": recipe("fat"),
    "jump": replace(
        recipe("mail-at"),
        phases=(Phase(from_epoch=4, start_from_epoch=3, fresh_momentum=True, set={"attack.loss": "cw"}),),
    ),
}


@pytest.mark.parametrize("key", STATEFUL)
@pytest.mark.parametrize(("steps", "number"), [(9, signal.SIGINT), (12, signal.SIGTERM)])
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(
    undisturbed: Fit, tmp_path: Path, key: str, steps: int, number: signal.Signals
) -> None:
    """Nine steps end within an epoch of four, twelve at an epoch's end."""
    method = STATEFUL[key]
    whole, path = undisturbed(method, keep_epochs=(3,))
    request = TrainRequest(out=tmp_path / "cut", model="small-cnn", device="cpu")
    with pytest.raises(Interrupted, match="--resume"):
        train(method, blobs(), request, StopAfter(steps, number))
    _, model = train(method, blobs(), replace(request, resume=True), Reporter(quiet=True))
    assert same(whole, dict(model.state_dict()))
    rows = [
        [{k: v for k, v in row.items() if k != "images_per_second"} for row in open_run(p).metrics]
        for p in (path, tmp_path / "cut")
    ]
    assert rows[0] == rows[1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_only_the_same_signal_twice_breaks_off_and_never_where_it_is_patient() -> None:
    def breaks_off(patient: bool, *numbers: signal.Signals) -> list[bool]:
        found = []
        with stop_signals(patient=patient) as asked:
            for number in numbers:
                try:
                    signal.raise_signal(number)
                    found.append(False)
                except KeyboardInterrupt:
                    found.append(True)
            assert asked.is_set()
        return found

    assert breaks_off(False, signal.SIGTERM, signal.SIGINT, signal.SIGINT) == [False, False, True]
    assert breaks_off(True, signal.SIGINT, signal.SIGINT) == [False, False]


@pytest.mark.parametrize("key", STATEFUL)
def test_a_longer_run_is_a_shorter_one_gone_on(undisturbed: Fit, tmp_path: Path, key: str) -> None:
    """run(6) = run(3) + resume(3): the states after the third are thrown away."""
    whole, path = undisturbed(STATEFUL[key], keep_epochs=(3,))
    run = open_run(shutil.copytree(path, tmp_path / "run"))
    epochs = [row["epoch"] for row in run.metrics]
    for state in run.states():
        if state.name != "state-0003":
            state.with_suffix(".json").unlink()
    again, _ = fit(tmp_path / "run", STATEFUL[key], resume=True, keep_epochs=(3,))
    assert same(whole, again)
    assert [row["epoch"] for row in run.metrics] == epochs


def test_a_damaged_state_is_passed_over_with_a_message(undisturbed: Fit, tmp_path: Path) -> None:
    whole, path = undisturbed(recipe())
    path = shutil.copytree(path, tmp_path / "run")
    last = open_run(path).states()[-1].with_suffix(".safetensors")
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 0xFF
    last.write_bytes(content)
    reporter = StopAfter(-1)
    request = TrainRequest(out=path, model="small-cnn", device="cpu", resume=True)
    _, model = train(recipe(), blobs(), request, reporter)
    assert any("checksum differs" in text and "before it" in text for text in reporter.said)
    assert same(whole, dict(model.state_dict()))


def test_the_record_lists_the_states_a_run_has_gone_on_from(undisturbed: Fit, tmp_path: Path) -> None:
    whole, path = undisturbed(recipe())
    assert open_run(path).record["resumes"] == []
    cut, places = tmp_path / "cut", [{"epoch": 1, "batch": 1}, {"epoch": 3, "batch": 0}]
    for steps, resume, expected in ((5, False, []), (7, True, places[:1]), (3, True, places)):
        with pytest.raises(Interrupted):
            fit(cut, recipe(), reporter=StopAfter(steps), resume=resume)
        assert open_run(cut).record["resumes"] == expected
    end, _ = fit(cut, recipe(), resume=True)
    assert same(whole, end)
    places.append({"epoch": 3, "batch": 3})
    assert open_run(cut).record["resumes"] == places
    fit(cut, recipe(), resume=True)
    assert open_run(cut).record["resumes"] == places, "a finished run is not gone on with"


def test_the_record_says_under_what_else_a_run_has_gone_on(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        fit(tmp_path / "run", recipe(), reporter=StopAfter(5))
    run = open_run(tmp_path / "run")
    assert deviation(run.record) is None
    run.update_record(precision="bf16", hardware="another", processes=2)
    fit(tmp_path / "run", recipe(), resume=True)
    (place,) = open_run(tmp_path / "run").record["resumes"]
    assert place["precision"] == "fp32"
    assert place["processes"] == 1
    assert "CPU" in place["hardware"]
    assert "sync_bn" not in place
    run.update_record(processes=1)
    assert "went on" in str(deviation(open_run(tmp_path / "run").record))


def test_the_record_says_how_the_network_was_compiled(tmp_path: Path) -> None:
    """On a CPU too: folding batch norm for the attack rounds otherwise."""
    with pytest.raises(Interrupted):
        fit(tmp_path / "run", recipe(), reporter=StopAfter(5), compile="off")
    assert open_run(tmp_path / "run").record["compile"] == "off"
    fit(tmp_path / "run", recipe(), resume=True)
    record = open_run(tmp_path / "run").record
    assert record["compile"] == "off"
    assert record["resumes"] == [{"epoch": 1, "batch": 1, "compile": "default"}]


def test_a_record_that_does_not_say_how_it_was_compiled_is_gone_on_with(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        fit(tmp_path / "run", recipe(), reporter=StopAfter(5))
    path = tmp_path / "run" / "record.json"
    record = json.loads(path.read_text())
    del record["compile"]
    path.write_text(json.dumps(record))
    fit(tmp_path / "run", recipe(), resume=True)
    assert open_run(tmp_path / "run").record["resumes"] == [{"epoch": 1, "batch": 1}]


def test_a_run_is_finished_once_its_weights_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the two, it would pass for finished with an evaluation of other weights."""

    def killed(_: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(train_module, "weights_hash", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(tmp_path / "run", recipe())
    assert "train_seconds" not in open_run(tmp_path / "run").record
    fit(tmp_path / "run", recipe(), resume=True)
    assert {"train_seconds", "weights"} <= open_run(tmp_path / "run").record.keys()


def test_a_record_of_before_resumes_were_listed_and_optimizers_named_is_gone_on_with(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        fit(tmp_path / "run", recipe(), reporter=StopAfter(5))
    path = tmp_path / "run" / "record.json"
    record = json.loads(path.read_text())
    del record["resumes"], record["recipe"]["optimizer"]
    path.write_text(json.dumps(record))
    fit(tmp_path / "run", recipe(), resume=True)
    assert open_run(tmp_path / "run").record["resumes"] == [{"epoch": 1, "batch": 1}]


def test_resuming_a_finished_run_says_so(undisturbed: Fit, tmp_path: Path) -> None:
    whole, path = undisturbed(recipe())
    path = shutil.copytree(path, tmp_path / "run")
    reporter = StopAfter(-1)
    _, model = train(recipe(), blobs(), TrainRequest(out=path, model="small-cnn", resume=True), reporter)
    assert any("is finished" in text for text in reporter.said)
    assert same(whole, dict(model.state_dict()))


def test_another_run_in_the_folder_is_never_overwritten(undisturbed: Fit, tmp_path: Path) -> None:
    path = shutil.copytree(undisturbed(recipe())[1], tmp_path / "run")
    kept = (path / "metrics.jsonl").read_bytes()
    with pytest.raises(UsageError, match="already holds a run"):
        fit(path, recipe())
    with pytest.raises(UsageError, match=r"lr is 0\.05 there and 0\.1 here"):
        fit(path, replace(recipe(), lr=0.1), resume=True)
    with pytest.raises(UsageError, match=r"weight\.slope"):
        fit(path, recipe(weight=replace(recipe().weight, slope=3.0)), resume=True)  # type: ignore[type-var]
    with pytest.raises(UsageError, match="seed is 1 there and 2 here"):
        fit(path, recipe(), resume=True, seed=2)
    assert (path / "metrics.jsonl").read_bytes() == kept


def test_a_loss_that_is_no_number_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(TrainingStopped, match="not a number"):
        fit(tmp_path / "run", recipe("at", lr=1e30))
    assert open_run(tmp_path / "run").record["seed"] == 1


def test_the_average_is_what_is_evaluated_and_saved(undisturbed: Fit, tmp_path: Path) -> None:
    method = replace(recipe("at"), ema=resolve("at", settings={"ema.decay": 0.5}).ema)
    averaged, path = fit(tmp_path / "ema", method)
    plain, _ = undisturbed(recipe("at"))
    assert not same(averaged, plain)
    assert same(averaged, dict(open_run(path).model.state_dict()))


def test_fresh_momentum_and_skipped_epochs(tmp_path: Path) -> None:
    phase = Phase(from_epoch=4, start_from_epoch=2, fresh_momentum=True)
    without, path = fit(tmp_path / "jump", recipe(phases=(phase,)))
    assert [row["epoch"] for row in open_run(path).metrics] == [0, 1, 4, 5]
    with_memory, _ = fit(tmp_path / "memory", recipe(phases=(replace(phase, fresh_momentum=False),)))
    assert not same(with_memory, without)


def test_weights_to_start_from_and_frozen_layers(undisturbed: Fit, tmp_path: Path) -> None:
    weights, path = undisturbed(recipe("at"))
    saved = open_run(path).states()[-1].with_suffix(".safetensors")
    again, _ = fit(tmp_path / "second", recipe("at", lr=1e-12), checkpoint=saved)
    for name, tensor in weights.items():
        if "running" not in name and "tracked" not in name:
            torch.testing.assert_close(tensor, again[name], rtol=1e-4, atol=1e-6)
    model = tiny_net(classes=2)
    model.conv.weight.requires_grad_(False)
    before = model.conv.weight.clone()
    trained, _ = fit(tmp_path / "third", recipe("awp"), model=model)
    assert torch.equal(trained["conv.weight"], before)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(UsageError, match="every one is frozen"):
        fit(tmp_path / "fourth", recipe("at"), model=model)


def test_a_checkpoint_that_does_not_fit_or_cannot_be_read(undisturbed: Fit, tmp_path: Path) -> None:
    _, path = undisturbed(recipe("at"))
    saved = open_run(path).states()[-1].with_suffix(".safetensors")
    with pytest.raises(UsageError, match="does not fit"):
        fit(tmp_path / "second", recipe("at"), checkpoint=saved, model=tiny_net(classes=2))
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"nonsense")
    with pytest.raises(UsageError, match="cannot be read as weights"):
        fit(tmp_path / "third", recipe("at"), checkpoint=bad)
    evil = tmp_path / "evil.pt"
    torch.save({"a": threading.Event}, evil)
    with pytest.raises(UsageError, match="cannot be read as weights"):
        fit(tmp_path / "fourth", recipe("at"), checkpoint=evil)
    evil.write_bytes(b"junk of no kind")
    with pytest.raises(UsageError, match=r"cannot be read as weights \(it is no file of torch.save"):
        fit(tmp_path / "fifth", recipe("at"), checkpoint=evil)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_through_its_burn_in(tmp_path: Path, name: str) -> None:
    _, path = fit(tmp_path / name, recipe(name, epochs=3))
    run = open_run(path)
    assert len(run.metrics) == 3
    assert json.loads((path / "recipe.json").read_text())["method"] == name
    if run.recipe.is_reweighted:
        assert run.metrics[-1]["effective_sample_size"] < 63.9


def test_the_first_epoch_is_saved_however_short_it_was(tmp_path: Path) -> None:
    _, path = fit(tmp_path / "run", recipe("at", epochs=4), save_seconds=1e9)
    assert [state.name for state in open_run(path).states()] == ["state-0001", "state-0003", "state-0004"]


def test_a_run_needs_no_gradients_around_it(tmp_path: Path) -> None:
    plain, _ = fit(tmp_path / "plain", recipe("at", epochs=1))
    with torch.no_grad():
        found, _ = fit(tmp_path / "run", recipe("at", epochs=1))
    assert same(plain, found)
